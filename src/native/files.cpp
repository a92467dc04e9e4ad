#include "files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "failure.hpp"

namespace tilewright {
namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87ULL, kPrime2 = 0xC2B2AE3D27D4EB4FULL,
                        kPrime3 = 0x165667B19E3779F9ULL, kPrime4 = 0x85EBCA77C2B2AE63ULL,
                        kPrime5 = 0x27D4EB2F165667C5ULL;

template <typename Word>
std::uint64_t read(const unsigned char* data) {
  Word word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

std::uint64_t mixed(std::uint64_t sum, std::uint64_t word) {
  return std::rotl(sum + word * kPrime2, 31) * kPrime1;
}

std::uint64_t merged(std::uint64_t hash, std::uint64_t sum) {
  return (hash ^ mixed(0, sum)) * kPrime1 + kPrime4;
}

}  // namespace

FileWatch::FileWatch(int descriptor, std::string path)
    : descriptor_(fcntl(descriptor, F_DUPFD_CLOEXEC, 0)), path_(std::move(path)) {
  if (descriptor_ < 0 || fstat(descriptor_, &expected_) != 0) {
    const std::string why = std::strerror(errno);
    if (descriptor_ >= 0) close(descriptor_);
    throw Failure(FailureKind::resource, "The file cannot be kept open: " + why, path_);
  }
}

FileWatch::~FileWatch() { close(descriptor_); }

void FileWatch::check() const {
  struct stat now;
  if (fstat(descriptor_, &now) == 0 && now.st_size == expected_.st_size &&
      now.st_mtim.tv_sec == expected_.st_mtim.tv_sec &&
      now.st_mtim.tv_nsec == expected_.st_mtim.tv_nsec)
    return;
  throw Failure(FailureKind::artifact,
                "The file was changed in place after the model was loaded, whose weights are in it",
                path_,
                "Load the model again; replace the file under its name instead of writing into it, "
                "or load with copy=True");
}

std::uint64_t checksum(const unsigned char* data, std::size_t size) {
  const unsigned char* const end = data + size;
  std::uint64_t hash = kPrime5;
  if (size >= 32) {
    std::uint64_t a = kPrime1 + kPrime2, b = kPrime2, c = 0, d = 0 - kPrime1;
    for (; end - data >= 32; data += 32) {
      a = mixed(a, read<std::uint64_t>(data));
      b = mixed(b, read<std::uint64_t>(data + 8));
      c = mixed(c, read<std::uint64_t>(data + 16));
      d = mixed(d, read<std::uint64_t>(data + 24));
    }
    hash = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
    hash = merged(merged(merged(merged(hash, a), b), c), d);
  }
  hash += size;
  for (; end - data >= 8; data += 8)
    hash = std::rotl(hash ^ mixed(0, read<std::uint64_t>(data)), 27) * kPrime1 + kPrime4;
  if (end - data >= 4) {
    hash = std::rotl(hash ^ read<std::uint32_t>(data) * kPrime1, 23) * kPrime2 + kPrime3;
    data += 4;
  }
  for (; data < end; ++data) hash = std::rotl(hash ^ *data * kPrime5, 11) * kPrime1;
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

}  // namespace tilewright
