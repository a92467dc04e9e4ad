#include "expression.hpp"

#include <algorithm>
#include <limits>

#include "failure.hpp"

namespace tilewright {
namespace {

enum Operation : std::int64_t {
  kConstant,
  kSymbol,
  kAdd,
  kSubtract,
  kMultiply,
  kFloorDivide,
  kModulo,
  kMinimum,
  kMaximum,
  kEqual,
  kLess,
  kLessEqual,
  kSelect,
  kCeilDivide,
  kAnd,
  kOr,
  kNot,
  kKeep,
  kRecall,
  kOperationCount
};

constexpr std::size_t kInlineWords = 1024;

enum class Fault { none, overflow, division_by_zero };

// floor(a / b); the only quotient that does not fit is the least integer by -1.
inline Fault floor_divide(std::int64_t a, std::int64_t b, std::int64_t& result) {
  if (b == 0) return Fault::division_by_zero;
  if (b == -1) return __builtin_sub_overflow(0, a, &result) ? Fault::overflow : Fault::none;
  std::int64_t quotient = a / b;
  if (a % b != 0 && ((a < 0) != (b < 0))) --quotient;
  result = quotient;
  return Fault::none;
}

inline Fault ceil_divide(std::int64_t a, std::int64_t b, std::int64_t& result) {
  if (b == 0) return Fault::division_by_zero;
  if (b == -1) return __builtin_sub_overflow(0, a, &result) ? Fault::overflow : Fault::none;
  std::int64_t quotient = a / b;
  if (a % b != 0 && ((a < 0) == (b < 0))) ++quotient;
  result = quotient;
  return Fault::none;
}

inline Fault modulo(std::int64_t a, std::int64_t b, std::int64_t& result) {
  if (b == 0) return Fault::division_by_zero;
  if (b == -1) {
    result = 0;
    return Fault::none;
  }
  std::int64_t remainder = a % b;
  if (remainder != 0 && ((remainder < 0) != (b < 0))) remainder += b;
  result = remainder;
  return Fault::none;
}

inline Fault binary(std::int64_t operation, std::int64_t a, std::int64_t b, std::int64_t& result) {
  switch (operation) {
    case kAdd:
      return __builtin_add_overflow(a, b, &result) ? Fault::overflow : Fault::none;
    case kSubtract:
      return __builtin_sub_overflow(a, b, &result) ? Fault::overflow : Fault::none;
    case kMultiply:
      return __builtin_mul_overflow(a, b, &result) ? Fault::overflow : Fault::none;
    case kFloorDivide:
      return floor_divide(a, b, result);
    case kCeilDivide:
      return ceil_divide(a, b, result);
    case kModulo:
      return modulo(a, b, result);
    case kMinimum:
      result = std::min(a, b);
      return Fault::none;
    case kMaximum:
      result = std::max(a, b);
      return Fault::none;
    case kEqual:
      result = a == b;
      return Fault::none;
    case kLess:
      result = a < b;
      return Fault::none;
    case kLessEqual:
      result = a <= b;
      return Fault::none;
    case kAnd:
      result = (a != 0) & (b != 0);
      return Fault::none;
    default:
      result = (a != 0) | (b != 0);
      return Fault::none;
  }
}

}  // namespace

Expression::Expression(std::vector<std::int64_t> code, std::string text, std::size_t symbol_count)
    : code_(std::move(code)), text_(std::move(text)) {
  const auto malformed = [this] {
    return Failure(FailureKind::artifact, "The byte-code of an expression is malformed.", text_);
  };
  std::size_t depth = 0;
  bool uses_symbols = false;
  for (std::size_t position = 0; position < code_.size(); ++position) {
    const std::int64_t operation = code_[position];
    if (operation < 0 || operation >= kOperationCount) throw malformed();
    if (operation == kKeep) {
      if (depth == 0) throw malformed();
      ++kept_;
    } else if (operation == kConstant || operation == kSymbol || operation == kRecall) {
      if (++position >= code_.size()) throw malformed();
      if (operation == kSymbol) {
        uses_symbols = true;
        if (code_[position] < 0 || code_[position] >= static_cast<std::int64_t>(symbol_count))
          throw malformed();
      }
      if (operation == kRecall &&
          (code_[position] < 0 || code_[position] >= static_cast<std::int64_t>(kept_)))
        throw malformed();
      ++depth;
    } else {
      const std::size_t operands = operation == kNot ? 1 : operation == kSelect ? 3 : 2;
      if (depth < operands) throw malformed();
      depth -= operands - 1;
    }
    depth_ = std::max(depth_, depth);
  }
  if (depth != 1) throw malformed();
  if (code_.size() == 2 && code_[0] == kSymbol) {
    slot_ = code_[1];
  } else if (!uses_symbols) {
    // An expression that always fails stays as it is, so that it fails only where it is used.
    std::vector<std::int64_t> memory(kept_ + depth_);
    constant_ = run_fast(nullptr, memory.data(), value_);
  }
}

std::int64_t Expression::run(const std::int64_t* symbols) const {
  std::int64_t result = 0;
  if (kept_ + depth_ <= kInlineWords) {
    std::int64_t memory[kInlineWords];
    if (run_fast(symbols, memory, result)) return result;
  } else {
    std::vector<std::int64_t> memory(kept_ + depth_);
    if (run_fast(symbols, memory.data(), result)) return result;
  }
  return run_careful(symbols);
}

// Returns false on any fault, also in a branch that SELECT would drop.
bool Expression::run_fast(const std::int64_t* symbols, std::int64_t* memory,
                          std::int64_t& result) const {
  std::int64_t* keep = memory;
  std::int64_t* top = memory + kept_ - 1;
  const std::int64_t* const end = code_.data() + code_.size();
  for (const std::int64_t* word = code_.data(); word != end; ++word) {
    switch (*word) {
      case kConstant:
        *++top = *++word;
        break;
      case kSymbol:
        *++top = symbols[*++word];
        break;
      case kKeep:
        *keep++ = *top;
        break;
      case kRecall:
        *++top = memory[*++word];
        break;
      case kNot:
        *top = *top == 0;
        break;
      case kSelect:
        top -= 2;
        *top = *top != 0 ? top[1] : top[2];
        break;
      default:
        --top;
        if (binary(*word, top[0], top[1], top[0]) != Fault::none) return false;
    }
  }
  result = *top;
  return true;
}

// As run_fast, but a fault travels with the value it spoils and counts only if it reaches the
// result.
std::int64_t Expression::run_careful(const std::int64_t* symbols) const {
  struct Item {
    std::int64_t value;
    Fault fault;
  };
  std::vector<Item> stack, kept;
  stack.reserve(depth_);
  kept.reserve(kept_);
  for (std::size_t position = 0; position < code_.size(); ++position) {
    const std::int64_t operation = code_[position];
    if (operation == kConstant) {
      stack.push_back({code_[++position], Fault::none});
    } else if (operation == kSymbol) {
      stack.push_back({symbols[code_[++position]], Fault::none});
    } else if (operation == kKeep) {
      kept.push_back(stack.back());
    } else if (operation == kRecall) {
      stack.push_back(kept[static_cast<std::size_t>(code_[++position])]);
    } else if (operation == kNot) {
      stack.back().value = stack.back().value == 0;
    } else if (operation == kSelect) {
      const Item other = stack.back();
      stack.pop_back();
      const Item chosen = stack.back();
      stack.pop_back();
      Item& condition = stack.back();
      if (condition.fault == Fault::none) condition = condition.value != 0 ? chosen : other;
    } else {
      const Item right = stack.back();
      stack.pop_back();
      Item& left = stack.back();
      if (left.fault != Fault::none) continue;
      const bool decided =
          (operation == kAnd && left.value == 0) || (operation == kOr && left.value);
      if (right.fault != Fault::none && !decided) {
        left.fault = right.fault;
      } else {
        left.fault = binary(operation, left.value, right.value, left.value);
      }
    }
  }
  const Item result = stack.back();
  if (result.fault == Fault::overflow)
    throw Failure(FailureKind::dimension,
                  "The size computation '" + text_ + "' does not fit 64-bit integers.", {},
                  "use smaller dimensions");
  if (result.fault == Fault::division_by_zero)
    throw Failure(FailureKind::dimension, "The size computation '" + text_ + "' divides by zero.");
  return result.value;
}

}  // namespace tilewright
