// Files whose contents a model uses in place: noticing changes, and checksums of what they hold.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace tilewright {

// A mapped file as it was when it was opened. Its descriptor stays open, so that the file is found
// whatever becomes of its name; one that was replaced keeps its old contents and is no change.
class FileWatch {
 public:
  FileWatch(int descriptor, std::string path);
  ~FileWatch();
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

  // Throws Failure where the size or the time of the last change differ. What happens after that,
  // while a call runs, goes unnoticed: the kernel answers a read beyond the end with SIGBUS.
  void check() const;

 private:
  int descriptor_;
  struct stat expected_;
  std::string path_;
};

// XXH64 with seed 0: at the speed of memory, against damage and not against malice.
std::uint64_t checksum(const unsigned char* data, std::size_t size);

}  // namespace tilewright
