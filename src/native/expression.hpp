// Integer expressions over symbols as postfix byte-code, evaluated with overflow checks and with
// Python's floor semantics of // and %.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tilewright {

class Expression {
 public:
  // `code` as made by tilewright.shape.encode; `text` names the expression in errors. Throws
  // Failure(artifact) when the code is malformed or uses a slot outside [0, symbol_count).
  Expression(std::vector<std::int64_t> code, std::string text, std::size_t symbol_count);

  // The value at `symbols`; throws Failure(dimension) on overflow or division by zero.
  std::int64_t evaluate(const std::int64_t* symbols) const {
    if (constant_) return value_;
    if (slot_ >= 0) return symbols[slot_];
    return run(symbols);
  }

  const std::string& text() const { return text_; }

 private:
  std::int64_t run(const std::int64_t* symbols) const;
  // `memory` holds what is kept, then the stack.
  bool run_fast(const std::int64_t* symbols, std::int64_t* memory, std::int64_t& result) const;
  std::int64_t run_careful(const std::int64_t* symbols) const;

  std::vector<std::int64_t> code_;
  std::string text_;
  std::size_t depth_ = 0;
  std::size_t kept_ = 0;
  bool constant_ = false;
  std::int64_t value_ = 0;
  std::int64_t slot_ = -1;
};

}  // namespace tilewright
