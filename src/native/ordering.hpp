// Elements in the order of their values: both zeros are one, what is not a number is the greatest.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "elements.hpp"

namespace tilewright {

template <std::size_t bytes>
using Unsigned = std::conditional_t<
    bytes == 1, std::uint8_t,
    std::conditional_t<bytes == 2, std::uint16_t,
                       std::conditional_t<bytes == 4, std::uint32_t, std::uint64_t>>>;

// An unsigned number in the order of the values.
template <typename T>
Unsigned<sizeof(T)> key_of(T value) {
  using Key = Unsigned<sizeof(T)>;
  constexpr Key top = static_cast<Key>(Key{1} << (8 * sizeof(T) - 1));
  const auto of_float = [](Key bits) {  // without a branch, as signs are as chance has them
    const auto negative = static_cast<Key>(-static_cast<Key>(bits >> (8 * sizeof(T) - 1)));
    return static_cast<Key>(bits ^ (negative | top));
  };
  if constexpr (std::is_floating_point_v<T>) {
    if (value != value) return std::numeric_limits<Key>::max();
    return of_float(std::bit_cast<Key>(value + T{0}));
  } else if constexpr (!std::is_integral_v<T>) {
    if (!value.is_number()) return std::numeric_limits<Key>::max();
    return of_float(value.is_zero() ? Key{0} : value.bits);
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<Key>(static_cast<Key>(value) ^ top);
  } else {
    return value;
  }
}

constexpr std::int64_t kMostPlaces = std::numeric_limits<std::uint32_t>::max();

// A key and where it is, in the order of the keys and of equal ones in that of the places. Those of
// four bytes and less are one number with the place, which sorts faster.
template <typename T, bool is_short = sizeof(T) <= 4>
struct Entry {
  using Key = Unsigned<sizeof(T)>;
  std::uint64_t both;
  Entry() = default;
  static Entry last() { return {std::numeric_limits<Key>::max(), kMostPlaces}; }
  Entry(Key key, std::int64_t place)
      : both(static_cast<std::uint64_t>(key) << 32 | static_cast<std::uint64_t>(place)) {}
  Key key() const { return static_cast<Key>(both >> 32); }
  std::int64_t place() const { return static_cast<std::int64_t>(both & 0xffffffffu); }
  bool operator<(const Entry& other) const { return both < other.both; }
};

template <typename T>
struct Entry<T, false> {
  using Key = std::uint64_t;
  std::uint64_t own;
  std::int64_t at;
  Entry() = default;
  static Entry last() { return {std::numeric_limits<Key>::max(), kMostPlaces}; }
  Entry(std::uint64_t key, std::int64_t place) : own(key), at(place) {}
  std::uint64_t key() const { return own; }
  std::int64_t place() const { return at; }
  bool operator<(const Entry& other) const {
    return own != other.own ? own < other.own : at < other.at;
  }
};

// Sorts entries that are in the order of their places, and returns where they are then: one of two
// stretches of memory for so many. Digits take the time of their tables, which many entries make up
// for.
template <typename T>
Entry<T>* sorted(Entry<T>* entries, Entry<T>* spare, std::size_t count) {
  constexpr std::size_t kFew = 32, kFewest = 128, kValues = 256;
  if (count <= kFew) {
    // Without branches, which would be foreseen half of the time.
    for (std::size_t at = 0; at < count; ++at) {
      std::size_t rank = 0;
      for (std::size_t other = 0; other < count; ++other)
        rank += entries[other] < entries[at] ? 1 : 0;
      spare[rank] = entries[at];
    }
    return spare;
  }
  if (count < kFewest) {
    std::sort(entries, entries + count);
    return entries;
  }
  std::array<std::array<std::uint32_t, kValues>, sizeof(T)> counts{};
  for (std::size_t at = 0; at < count; ++at)
    for (std::size_t digit = 0; digit < sizeof(T); ++digit)
      ++counts[digit][(entries[at].key() >> (8 * digit)) & 0xff];
  for (std::size_t digit = 0; digit < sizeof(T); ++digit) {
    auto& begins = counts[digit];
    const auto value = [digit](const Entry<T>& entry) { return (entry.key() >> (8 * digit)) & 0xff; };
    if (begins[value(entries[0])] == count) continue;
    std::uint32_t next = 0;
    for (std::uint32_t& begin : begins) next += std::exchange(begin, next);
    for (std::size_t at = 0; at < count; ++at) spare[begins[value(entries[at])]++] = entries[at];
    std::swap(entries, spare);
  }
  return entries;
}

// The entry before which `rank` others come. What both stretches hold afterwards is arbitrary.
template <typename T>
Entry<T> entry_of_rank(Entry<T>* from, Entry<T>* to, std::size_t count, std::size_t rank) {
  constexpr std::size_t kFew = 32;
  constexpr int kMostPasses = 40;  // more than that are a chance that somebody has made
  const auto median = [](Entry<T> a, Entry<T> b, Entry<T> c) {
    return std::max(std::min(a, b), std::min(std::max(a, b), c));
  };
  for (int pass = 0; count > kFew && pass < kMostPasses; ++pass) {
    const auto near = [&](std::size_t at) { return median(from[at], from[at + 1], from[at + 2]); };
    const Entry<T> pivot = median(near(0), near(count / 2), near(count - 3));
    // Without branches, which would be foreseen half of the time.
    std::size_t low = 0, high = count;
    for (std::size_t at = 0; at < count; ++at) {
      const Entry<T> entry = from[at];
      const bool is_less = entry < pivot;
      to[low] = entry;
      to[high - 1] = entry;
      low += is_less ? 1 : 0;
      high -= is_less ? 0 : 1;
    }
    std::swap(from, to);
    if (rank < low) {
      count = low;
    } else {
      rank -= low;
      count -= low;
      from += low;
    }
  }
  std::nth_element(from, from + rank, from + count);
  return from[rank];
}

}  // namespace tilewright
