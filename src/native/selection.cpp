#include "selection.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "buffer.hpp"
#include "gil.hpp"

namespace tilewright {
namespace {

template <std::size_t bytes>
using Unsigned = std::conditional_t<
    bytes == 1, std::uint8_t,
    std::conditional_t<bytes == 2, std::uint16_t,
                       std::conditional_t<bytes == 4, std::uint32_t, std::uint64_t>>>;

// An unsigned number in the order of the values: both zeros are one, NaN is the greatest.
template <typename T>
Unsigned<sizeof(T)> key_of(T value) {
  using Key = Unsigned<sizeof(T)>;
  constexpr Key top = Key{1} << (8 * sizeof(T) - 1);
  if constexpr (std::is_floating_point_v<T>) {
    if (value != value) return std::numeric_limits<Key>::max();
    const Key bits = std::bit_cast<Key>(value + T{0});
    return (bits & top) != 0 ? static_cast<Key>(~bits) : static_cast<Key>(bits | top);
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<Key>(static_cast<Key>(value) ^ top);
  } else {
    return value;
  }
}

// A key and where it is, in the order of the keys and of equal ones in that of the places. Those of
// four bytes and less are one number with the place, which sorts faster.
template <typename T, bool is_short = sizeof(T) <= 4>
struct Entry {
  std::uint64_t both;
  Entry(Unsigned<sizeof(T)> key, std::int64_t place)
      : both(static_cast<std::uint64_t>(key) << 32 | static_cast<std::uint64_t>(place)) {}
  Unsigned<sizeof(T)> key() const { return static_cast<Unsigned<sizeof(T)>>(both >> 32); }
  std::int64_t place() const { return static_cast<std::int64_t>(both & 0xffffffffu); }
  bool operator<(const Entry& other) const { return both < other.both; }
};

template <typename T>
struct Entry<T, false> {
  std::uint64_t own;
  std::int64_t at;
  Entry(std::uint64_t key, std::int64_t place) : own(key), at(place) {}
  std::uint64_t key() const { return own; }
  std::int64_t place() const { return at; }
  bool operator<(const Entry& other) const {
    return own != other.own ? own < other.own : at < other.at;
  }
};

constexpr std::int64_t kGlanced = 16;  // elements that are compared before asking for a better one

// Whether any of some elements may be better than `bound`; written so that it becomes vectors.
template <typename T>
bool may_be_better(const T* data, T bound, bool largest) {
  int found = 0;
  if (largest) {
    for (std::int64_t at = 0; at < kGlanced; ++at) found |= !(data[at] <= bound);
  } else {
    for (std::int64_t at = 0; at < kGlanced; ++at) found |= !(data[at] >= bound);
  }
  return found != 0;
}

// The best elements of a row so far. What is better than the worst of those known is collected, and
// sifted whenever twice as many as are wanted, or some more, have come together: most of a row is compared once.
template <typename T>
class Best {
 public:
  Best(std::int64_t wanted, bool largest)
      : wanted_(wanted), largest_(largest), most_(wanted + std::max<std::size_t>(wanted, 16)) {
    found_.reserve(most_);
  }

  void find(const T* row, std::int64_t length, std::int64_t* places) {
    found_.clear();
    is_bounded_ = false;
    std::int64_t place = 0;
    for (; place + kGlanced <= length; place += kGlanced) {
      if (is_bounded_ && !may_be_better(row + place, row[worst_], largest_)) continue;
      for (std::int64_t at = place; at < place + kGlanced; ++at) add(row, at);
    }
    for (; place < length; ++place) add(row, place);
    sift();
    std::sort(found_.begin(), found_.end());
    for (const Entry<T>& entry : found_) *places++ = entry.place();
  }

 private:
  using Key = Unsigned<sizeof(T)>;

  void add(const T* row, std::int64_t place) {
    const Key key = static_cast<Key>(key_of(row[place]) ^ (largest_ ? ~Key{0} : Key{0}));
    if (is_bounded_ && key >= bound_) return;
    found_.push_back({key, place});
    if (found_.size() == most_) sift();
  }

  // Leaves as many as are wanted, the worst of which all others have to beat.
  void sift() {
    if (found_.size() <= wanted_) return;
    const auto last = found_.begin() + static_cast<std::ptrdiff_t>(wanted_) - 1;
    std::nth_element(found_.begin(), last, found_.end());
    bound_ = last->key();
    worst_ = last->place();
    is_bounded_ = true;
    found_.erase(last + 1, found_.end());
  }

  std::size_t wanted_;
  bool largest_;
  std::size_t most_;
  std::vector<Entry<T>> found_;
  bool is_bounded_ = false;
  Key bound_ = 0;
  std::int64_t worst_ = 0;
};

template <typename T>
void best_of(const Buffer& rows, const Buffer& places, bool largest) {
  const WithoutGil without_gil;
  const std::int64_t length = rows.size(1), count = places.size(1);
  Best<T> best(count, largest);
  for (std::int64_t row = 0; row < rows.size(0); ++row)
    best.find(rows.data<const T>() + row * length, length,
              places.data<std::int64_t>() + row * count);
}

// The corners of the boxes of an image and their areas, each kind side by side.
struct Corners {
  std::vector<float> low[2], high[2], area;

  void reserve(std::size_t count) {
    for (int axis = 0; axis < 2; ++axis) {
      low[axis].reserve(count);
      high[axis].reserve(count);
    }
    area.reserve(count);
  }

  void clear() {
    for (int axis = 0; axis < 2; ++axis) {
      low[axis].clear();
      high[axis].clear();
    }
    area.clear();
  }

  void add(const float (&from)[2], const float (&to)[2], float covered) {
    for (int axis = 0; axis < 2; ++axis) {
      low[axis].push_back(from[axis]);
      high[axis].push_back(to[axis]);
    }
    area.push_back(covered);
  }

  void add(const Corners& other, std::size_t box) {
    add({other.low[0][box], other.low[1][box]}, {other.high[0][box], other.high[1][box]},
        other.area[box]);
  }
};

void read_corners(const float* boxes, std::int64_t count, bool centred, Corners& corners) {
  corners.clear();
  corners.reserve(static_cast<std::size_t>(count));
  for (std::int64_t box = 0; box < count; ++box, boxes += 4) {
    float low[2], high[2];
    bool is_known = true;
    for (int axis = 0; axis < 2; ++axis) {
      const float first = boxes[axis], second = boxes[axis + 2];
      is_known = is_known && first == first && second == second;
      low[axis] = centred ? first - second / 2 : std::min(first, second);
      high[axis] = centred ? first + second / 2 : std::max(first, second);
    }
    const float area = (high[0] - low[0]) * (high[1] - low[1]);
    corners.add(low, high, is_known ? area : 0);
  }
}

constexpr std::size_t kTogether = 64;  // boxes that are compared before asking whether one overlaps

// Whether a box overlaps with any of some others more than is allowed.
bool overlaps(const Corners& others, const Corners& all, std::size_t box, float allowed) {
  const float area = all.area[box];
  if (!(area > 0)) return false;
  const float low[2] = {all.low[0][box], all.low[1][box]};
  const float high[2] = {all.high[0][box], all.high[1][box]};
  for (std::size_t begin = 0; begin < others.area.size(); begin += kTogether) {
    const std::size_t end = std::min(begin + kTogether, others.area.size());
    int found = 0;
    for (std::size_t at = begin; at < end; ++at) {
      const float down = std::min(high[0], others.high[0][at]) - std::max(low[0], others.low[0][at]);
      const float along =
          std::min(high[1], others.high[1][at]) - std::max(low[1], others.low[1][at]);
      const float both = std::max(down, 0.0f) * std::max(along, 0.0f);
      const float either = area + others.area[at] - both;
      found |= static_cast<int>(others.area[at] > 0) & static_cast<int>(either > 0) &
               static_cast<int>(both / either > allowed);
    }
    if (found != 0) return true;
  }
  return false;
}

struct Scored {
  float score;
  std::int64_t box;
  // Whether this one comes after the other: what a heap of the best wants.
  bool operator<(const Scored& other) const {
    return score != other.score ? score < other.score : box > other.box;
  }
};

}  // namespace

void best_places(nb::handle rows, nb::handle places, bool largest) {
  const Buffer data(rows, 2, false), found(places, 2, true);
  if (found.letter() != 'l' && found.letter() != 'q')
    throw nb::value_error("places are of 64 bits");
  if (found.size(0) != data.size(0) || found.size(1) > data.size(1))
    throw nb::value_error("there is one row of places, no longer than it, for every row");
  if (data.size(1) > std::numeric_limits<std::uint32_t>::max())
    throw nb::value_error("a row has at most 2^32 - 1 elements");
  if (found.size(1) == 0) return;
  switch (data.letter()) {
    case 'f':
      return best_of<float>(data, found, largest);
    case 'd':
      return best_of<double>(data, found, largest);
    case 'b':
      return best_of<std::int8_t>(data, found, largest);
    case 'B':
      return best_of<std::uint8_t>(data, found, largest);
    case 'h':
      return best_of<std::int16_t>(data, found, largest);
    case 'H':
      return best_of<std::uint16_t>(data, found, largest);
    case 'i':
      return best_of<std::int32_t>(data, found, largest);
    case 'I':
      return best_of<std::uint32_t>(data, found, largest);
    case 'l':
    case 'q':
      return best_of<std::int64_t>(data, found, largest);
    case 'L':
    case 'Q':
      return best_of<std::uint64_t>(data, found, largest);
    default:
      throw nb::value_error("rows are neither floats nor integers of the machine");
  }
}

nb::bytes suppressed_boxes(nb::handle boxes, nb::handle scores, const Suppression& how) {
  const Buffer places(boxes, 3, false), rated(scores, 3, false);
  const std::int64_t images = rated.size(0), classes = rated.size(1), count = rated.size(2);
  if (places.letter() != 'f' || rated.letter() != 'f')
    throw nb::value_error("boxes and scores are float32");
  if (places.size(0) != images || places.size(1) != count || places.size(2) != 4)
    throw nb::value_error("boxes are [images, boxes, 4], and scores [images, classes, boxes]");
  std::vector<std::int64_t> result;
  {
    const WithoutGil without_gil;
    Corners corners, taken;
    std::vector<Scored> waiting;
    for (std::int64_t image = 0; image < images; ++image) {
      read_corners(places.data<const float>() + image * count * 4, count, how.centred, corners);
      for (std::int64_t label = 0; label < classes; ++label) {
        const float* row = rated.data<const float>() + (image * classes + label) * count;
        waiting.clear();
        taken.clear();
        for (std::int64_t box = 0; box < count; ++box)
          if (how.has_least ? row[box] > how.least : row[box] == row[box])
            waiting.push_back({row[box], box});
        std::make_heap(waiting.begin(), waiting.end());
        while (!waiting.empty() && static_cast<std::int64_t>(taken.area.size()) < how.most) {
          std::pop_heap(waiting.begin(), waiting.end());
          const std::int64_t box = waiting.back().box;
          waiting.pop_back();
          if (overlaps(taken, corners, static_cast<std::size_t>(box), how.overlap)) continue;
          taken.add(corners, static_cast<std::size_t>(box));
          result.insert(result.end(), {image, label, box});
        }
      }
    }
  }
  return nb::bytes(reinterpret_cast<const char*>(result.data()), result.size() * sizeof result[0]);
}

}  // namespace tilewright
