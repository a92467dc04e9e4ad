#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "built_in.hpp"

namespace tilewright {
namespace {

constexpr std::int64_t kPiece = 4096;  // elements of a task

std::int64_t pieces_of(std::int64_t count) { return (count + kPiece - 1) / kPiece; }

// How many elements other than 0 come before each piece, and in all.
template <typename T>
std::vector<std::int64_t> places_before(Work& work, const T* data, std::int64_t count) {
  const std::int64_t pieces = pieces_of(count);
  std::vector<std::int64_t> before(static_cast<std::size_t>(pieces) + 1);
  work.share(pieces, kPiece / 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t piece = begin; piece < end; ++piece) {
      const T* const from = data + piece * kPiece;
      const std::int64_t length = std::min(kPiece, count - piece * kPiece);
      std::int32_t found = 0;
      for (std::int64_t at = 0; at < length; ++at) found += is_zero(from[at]) ? 0 : 1;
      before[static_cast<std::size_t>(piece) + 1] = found;
    }
  });
  std::partial_sum(before.begin(), before.end(), before.begin());
  return before;
}

// Calls row(outer, columns, count) for the stretches of rows that are in a piece.
template <typename T, typename Row>
void go_over(const T* data, std::int64_t piece, std::int64_t count, std::int64_t width,
             const Row& row) {
  std::array<std::int32_t, kPiece + 1> columns;
  const std::int64_t end = std::min(count, (piece + 1) * kPiece);
  std::int64_t at = piece * kPiece, outer = at / width, column = at % width;
  while (at < end) {
    const std::int64_t length = std::min(end - at, width - column);
    std::size_t found = 0;
    for (std::int64_t next = 0; next < length; ++next) {
      columns[found] = static_cast<std::int32_t>(next);
      found += is_zero(data[at + next]) ? 0 : 1;
    }
    row(outer, column, columns.data(), static_cast<std::int64_t>(found));
    at += length;
    ++outer;
    column = 0;
  }
}

template <std::size_t bytes>
void copy_each(char* to, const char* from, std::int64_t) {
  std::memcpy(to, from, bytes);
}

void copy_all(char* to, const char* from, std::int64_t bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

// Copies elements of one size to where they are collected; small sizes are known when compiling.
template <typename Function>
void with_copy(std::int64_t bytes, const Function& function) {
  switch (bytes) {
    case 1:
      return function(copy_each<1>);
    case 2:
      return function(copy_each<2>);
    case 4:
      return function(copy_each<4>);
    case 8:
      return function(copy_each<8>);
    case 16:
      return function(copy_each<16>);
    default:
      return function(copy_all);
  }
}

}  // namespace

void non_zero(Work& work) {
  const Operand& data = work.operand(0);
  const std::int64_t count = data.count();
  // Axes of one element at the end are places of 0 only.
  int last = std::max(data.rank - 1, 0);
  while (last > 0 && data.dims[last] == 1) --last;
  const std::int64_t width = data.rank == 0 ? 1 : std::max<std::int64_t>(data.dims[last], 1);
  with_type(data.type, [&]<typename T>() {
    const T* const elements = data.as<T>();
    const std::vector<std::int64_t> before = places_before(work, elements, count);
    const std::int64_t found = before.back();
    auto* const places =
        static_cast<std::int64_t*>(work.result(0, ElementType::int64, {data.rank, found}));
    if (places == nullptr || found == 0 || data.rank == 0) return;
    std::fill(places + (last + 1) * found, places + data.rank * found, 0);
    work.share(pieces_of(count), 2 * kPiece, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) {
        std::int64_t next = before[static_cast<std::size_t>(piece)];
        go_over(elements, piece, count, width,
                [&](std::int64_t outer, std::int64_t first, const std::int32_t* columns,
                    std::int64_t length) {
                  if (length == 0) return;
                  std::int64_t* const along = places + last * found + next;
                  for (std::int64_t at = 0; at < length; ++at) along[at] = first + columns[at];
                  for (int axis = last - 1; axis >= 0; --axis) {
                    std::int64_t* const own = places + axis * found + next;
                    std::fill(own, own + length, outer % data.dims[axis]);
                    outer /= data.dims[axis];
                  }
                  next += length;
                });
      }
    });
  });
}

void compress(Work& work) {
  const Operand& data = work.operand(0);
  const Operand& condition = work.operand(1);
  const Along along = work.along(0, data);
  const std::int64_t length = along.length, bytes = along.inner * bytes_of(data.type);
  const auto* const wanted = condition.as<std::uint8_t>();
  std::vector<std::int64_t> kept;
  for (std::int64_t place = 0; place < condition.count(); ++place)
    if (wanted[place] != 0) kept.push_back(place);
  if (!kept.empty() && kept.back() >= length)
    work.refuse("The condition holds for element " + std::to_string(kept.back()) + " of " +
                std::to_string(length));
  const auto found = static_cast<std::int64_t>(kept.size());
  auto* const result = static_cast<char*>(work.result(0, data.type, along.dims(data, found)));
  if (result == nullptr || bytes == 0) return;
  with_copy(bytes, [&](const auto& copy) {
    work.share(along.outer * found, 2 + bytes / 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin; at < end; ++at) {
        const std::int64_t from = at / found * length + kept[static_cast<std::size_t>(at % found)];
        copy(result + at * bytes, data.as<char>() + from * bytes, bytes);
      }
    });
  });
}

}  // namespace tilewright
