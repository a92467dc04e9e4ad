// Errors that leave the extension: translated to the classes of tilewright.support.errors.
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace tilewright {

enum class FailureKind { dimension, input, artifact, execution, resource };

class Failure : public std::exception {
 public:
  Failure(FailureKind failure_kind, std::string what_happened, std::string place = {},
          std::string way_out = {})
      : kind(failure_kind),
        message(std::move(what_happened)),
        where(std::move(place)),
        hint(std::move(way_out)) {}

  const char* what() const noexcept override { return message.c_str(); }

  FailureKind kind;
  std::string message;
  std::string where;
  std::string hint;
};

}  // namespace tilewright
