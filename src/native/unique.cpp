#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "built_in.hpp"
#include "ordering.hpp"

namespace tilewright {
namespace {

// Places in the order of what is there, of equals the first ones first, and which begin a group of equals.
struct Groups {
  std::vector<std::int64_t> places;
  std::vector<bool> begins;
};

template <typename T>
Groups groups_of_elements(const T* data, std::int64_t count) {
  std::vector<Entry<T>> entries(static_cast<std::size_t>(count)), spare(entries.size());
  for (std::size_t at = 0; at < entries.size(); ++at)
    entries[at] = {key_of(data[at]), static_cast<std::int64_t>(at)};
  const Entry<T>* const found = sorted<T>(entries.data(), spare.data(), entries.size());
  Groups groups;
  groups.places.resize(entries.size());
  groups.begins.resize(entries.size());
  for (std::size_t at = 0; at < entries.size(); ++at) {
    groups.places[at] = found[at].place();
    groups.begins[at] = at == 0 || found[at].key() != found[at - 1].key();
  }
  return groups;
}

// Slices of [outer, length, inner] elements, compared element by element.
template <typename T>
Groups groups_of_slices(const T* data, std::int64_t outer, std::int64_t length,
                        std::int64_t inner) {
  const auto compared = [&](std::int64_t one, std::int64_t other) {
    for (std::int64_t row = 0; row < outer; ++row) {
      const T* const first = data + (row * length + one) * inner;
      const T* const second = data + (row * length + other) * inner;
      for (std::int64_t at = 0; at < inner; ++at) {
        const auto own = key_of(first[at]), its = key_of(second[at]);
        if (own != its) return own < its ? -1 : 1;
      }
    }
    return 0;
  };
  Groups groups;
  groups.places.resize(static_cast<std::size_t>(length));
  groups.begins.resize(groups.places.size());
  std::iota(groups.places.begin(), groups.places.end(), 0);
  std::stable_sort(groups.places.begin(), groups.places.end(),
                   [&](std::int64_t one, std::int64_t other) { return compared(one, other) < 0; });
  for (std::size_t at = 0; at < groups.places.size(); ++at)
    groups.begins[at] = at == 0 || compared(groups.places[at - 1], groups.places[at]) != 0;
  return groups;
}

// For each group where it is first, and how often it is there; for each place its group.
struct Numbered {
  std::vector<std::int64_t> firsts, counts, group_of;
};

Numbered numbered(const Groups& groups, bool by_value) {
  Numbered made;
  made.group_of.resize(groups.places.size());
  for (std::size_t at = 0; at < groups.places.size(); ++at) {
    if (groups.begins[at]) {
      made.firsts.push_back(groups.places[at]);
      made.counts.push_back(0);
    }
    ++made.counts.back();
    made.group_of[static_cast<std::size_t>(groups.places[at])] =
        static_cast<std::int64_t>(made.firsts.size()) - 1;
  }
  if (by_value) return made;
  Numbered other;
  std::vector<std::int64_t> number(made.firsts.size(), -1);
  for (std::int64_t& group : made.group_of) {
    const auto known = static_cast<std::size_t>(group);
    if (number[known] < 0) {
      number[known] = static_cast<std::int64_t>(other.firsts.size());
      other.firsts.push_back(made.firsts[known]);
      other.counts.push_back(made.counts[known]);
    }
    other.group_of.push_back(number[known]);
  }
  return other;
}

void copy_numbers(Work& work, std::size_t result, const std::vector<std::int64_t>& numbers) {
  void* const to =
      work.result(result, ElementType::int64, {static_cast<std::int64_t>(numbers.size())});
  if (to != nullptr && !numbers.empty())
    std::memcpy(to, numbers.data(), numbers.size() * sizeof numbers[0]);
}

}  // namespace

void unique(Work& work) {
  const Operand& data = work.operand(0);
  const Along along = work.along(0, data);
  const std::int64_t outer = along.outer, length = along.length, inner = along.inner;
  if (length > kMostPlaces)
    work.refuse("An axis has more than 2^32 - 1 elements");
  Numbered found;
  with_type(data.type, [&]<typename T>() {
    const T* const elements = data.as<T>();
    found = numbered(outer * inner == 1 ? groups_of_elements(elements, length)
                                        : groups_of_slices(elements, outer, length, inner),
                     work.attribute(1) != 0);
  });
  const auto count = static_cast<std::int64_t>(found.firsts.size());
  const auto bytes = static_cast<std::size_t>(inner * bytes_of(data.type));
  auto* to = static_cast<char*>(work.result(0, data.type, along.dims(data, count)));
  for (std::int64_t row = 0; to != nullptr && row < outer; ++row)
    for (const std::int64_t first : found.firsts) {
      std::memcpy(to, data.as<char>() + static_cast<std::size_t>(row * length + first) * bytes,
                  bytes);
      to += bytes;
    }
  copy_numbers(work, 1, found.firsts);
  copy_numbers(work, 2, found.group_of);
  copy_numbers(work, 3, found.counts);
}

}  // namespace tilewright
