#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "built_in.hpp"
#include "ordering.hpp"
#include "widest.hpp"

namespace tilewright {
namespace {

constexpr std::int64_t kGlanced = 16;  // elements that are compared before asking for a good one
constexpr std::int64_t kFewSteps = 512;  // comparisons up to which elements are kept in order
// Comparisons of a row up to which rows are beside each other with vectors of 16 bytes, in proportion
// with longer ones; then the same of rows too short for lanes of their own. By times on Zen 4 with
// vectors of 64 bytes: 10 of 150 elements, half of the first limit there, take 0.5 to 0.67 of what
// rows one by one take.
constexpr std::int64_t kFewBeside = 768;
constexpr std::int64_t kMostBeside = 2048;
constexpr std::size_t kFewLanes = 32;  // lanes that are compared with each other
constexpr std::int64_t kBeside = 16;   // rows that are gathered or compared at a time
constexpr std::int64_t kAhead = 16;    // elements of these whose keys are made before they are compared
constexpr std::int64_t kLeastBeside = 4;  // rows from which on they are compared beside each other
constexpr std::int64_t kLeastTurns = 4;  // elements of each lane from which on lanes are worth while

struct Wanted {
  std::int64_t length, count;
  bool largest, sorted;
};

// Of so many are the best elements of lanes found, where `count` elements are wanted.
std::size_t lanes_for(std::int64_t count) {
  return std::max<std::size_t>(std::bit_ceil(2 * static_cast<std::size_t>(count)), kGlanced);
}

bool has_lanes(const Wanted& wanted) {
  return static_cast<std::int64_t>(lanes_for(wanted.count)) * kLeastTurns <= wanted.length;
}

// Half floats are compared as whole numbers in the same order.
template <typename T>
using Compared = std::conditional_t<std::is_arithmetic_v<T>, T, std::int16_t>;

// Whether an element is no worse than another one, or is not a number.
template <bool largest, typename T>
bool is_good(T value, T other) {
  return largest ? !(value < other) : !(value > other);
}

// Finds the best elements of rows. A row is read twice, with vectors: once for the best element of
// each of some lanes, of which as many as are wanted are at least as good as the worst of these, and
// once for the elements that are no worse than that one. Few others are among them.
template <typename T, bool largest>
class Best {
 public:
  explicit Best(const Wanted& wanted)
      : count_(static_cast<std::size_t>(wanted.count)),
        length_(wanted.length),
        is_sorted_(wanted.sorted),
        is_short_(wanted.count * wanted.length <= (has_lanes(wanted) ? kFewBeside : kFewSteps)) {
    const auto most = static_cast<std::size_t>(is_short_ ? wanted.count : wanted.length + kGlanced);
    entries_ = std::make_unique_for_overwrite<Own[]>(most);
    if (is_short_) return;
    spare_ = std::make_unique_for_overwrite<Own[]>(most);
    chosen_ = std::make_unique_for_overwrite<Own[]>(most);
    if (has_lanes(wanted)) lanes_.resize(lanes_for(wanted.count));
  }

  // Writes where they are. Element `n` of the results is `stride` after the one before.
  void find(const T* row, T* values, std::int64_t* places, std::int64_t stride) {
    const Own* const found = in_order(comparable(row));
    for (std::size_t rank = 0; rank < count_; ++rank) {
      const std::int64_t place = found[rank].place(), to = static_cast<std::int64_t>(rank) * stride;
      if (values != nullptr) values[to] = row[place];
      if (places != nullptr) places[to] = place;
    }
  }

 private:
  using Number = Compared<T>;
  using Own = Entry<Number>;
  using Key = typename Own::Key;

  static Own entry(Number value, std::int64_t place) {
    const Key key = key_of(value);
    return {largest ? static_cast<Key>(~key) : key, place};
  }

  const Number* comparable(const T* row) {
    if constexpr (std::is_arithmetic_v<T>) {
      return row;
    } else {
      constexpr std::uint16_t top = 0x8000;
      numbers_.resize(static_cast<std::size_t>(length_));
      for (std::size_t at = 0; at < numbers_.size(); ++at)
        numbers_[at] = static_cast<Number>(key_of(row[at]) ^ top);
      return numbers_.data();
    }
  }

  const Own* in_order(const Number* row) {
    if (is_short_) return keep_few(row);
    const std::size_t found = lanes_.empty() ? take_all(row) : take_good(row, worst_wanted(row));
    const bool is_chosen_by_sorting = is_sorted_ && found <= 2 * count_;
    const std::size_t left = found <= count_ || is_chosen_by_sorting ? found : choose(found);
    return is_sorted_ ? sorted<Number>(entries_.get(), spare_.get(), left) : entries_.get();
  }

  // Puts each element where it belongs among the best ones so far.
  const Own* keep_few(const Number* row) {
    Own* const kept = entries_.get();
    std::fill_n(kept, count_, Own::last());
    for (std::int64_t place = 0; place < length_; ++place) {
      // Without branches, which would be foreseen half of the time.
      const Own found = entry(row[place], place);
      for (std::size_t at = count_ - 1; at > 0; --at) {
        const Own before = kept[at - 1], later = found < before ? before : found;
        kept[at] = later < kept[at] ? later : kept[at];
      }
      kept[0] = found < kept[0] ? found : kept[0];
    }
    return kept;
  }

  // What is not a number is left out of the lanes, as it is found to be good in any case.
  Number worst_wanted(const Number* row) {
    using Limits = std::numeric_limits<Number>;
    const Number greatest = Limits::has_infinity ? Limits::infinity() : Limits::max();
    const auto least = Limits::has_infinity ? static_cast<Number>(-greatest) : Limits::lowest();
    const Number worst = largest ? least : greatest;
    std::fill(lanes_.begin(), lanes_.end(), worst);
    const auto width = static_cast<std::int64_t>(lanes_.size());
    Number* const lanes = lanes_.data();
    for (std::int64_t begin = 0; begin + width <= length_; begin += width)
      for (std::int64_t lane = 0; lane < width; ++lane) {
        const Number value = row[begin + lane];
        const bool is_better = largest ? value > lanes[lane] : value < lanes[lane];
        lanes[lane] = is_better ? value : lanes[lane];
      }
    return worst_lane();
  }

  // The lane before which as many are as are wanted, less one.
  Number worst_lane() {
    const Number* const lanes = lanes_.data();
    if (lanes_.size() > kFewLanes) {
      for (std::size_t lane = 0; lane < lanes_.size(); ++lane)
        chosen_[lane] = entry(lanes[lane], static_cast<std::int64_t>(lane));
      return lanes[entry_of_rank<Number>(chosen_.get(), spare_.get(), lanes_.size(), count_ - 1).place()];
    }
    Number worst = lanes[0];
    bool is_known = false;
    for (const Number own : lanes_) {
      std::uint32_t before = 0;
      for (const Number other : lanes_) before += (largest ? other > own : other < own) ? 1 : 0;
      if (before < count_ && !(is_known && is_good<largest>(own, worst))) {
        worst = own;
        is_known = true;
      }
    }
    return worst;
  }

  std::size_t take_all(const Number* row) {
    for (std::int64_t place = 0; place < length_; ++place) entries_[place] = entry(row[place], place);
    return static_cast<std::size_t>(length_);
  }

  // Takes the elements that are no worse than one, and some that are not numbers.
  std::size_t take_good(const Number* row, Number bound) {
    std::size_t count = 0;
    std::int64_t place = 0;
    const auto take = [&](std::int64_t end) {
      for (; place < end; ++place) {
        entries_[count] = entry(row[place], place);
        count += is_good<largest>(row[place], bound) ? 1 : 0;
      }
    };
    while (place + kGlanced <= length_) {
      int found = 0;  // or-ed, so that it becomes vectors
      for (std::int64_t at = 0; at < kGlanced; ++at)
        found |= static_cast<int>(is_good<largest>(row[place + at], bound));
      if (found != 0) {
        take(place + kGlanced);
      } else {
        place += kGlanced;
      }
    }
    take(length_);
    return count;
  }

  // Leaves as many as are wanted, in the order of their places.
  std::size_t choose(std::size_t found) {
    std::copy_n(entries_.get(), found, chosen_.get());
    const Own last = entry_of_rank<Number>(chosen_.get(), spare_.get(), found, count_ - 1);
    std::size_t kept = 0;
    for (std::size_t at = 0; at < found; ++at) {
      const Own entry = entries_[at];
      entries_[kept] = entry;
      kept += last < entry ? 0 : 1;
    }
    return kept;
  }

  std::size_t count_;
  std::int64_t length_;
  bool is_sorted_, is_short_;
  std::unique_ptr<Own[]> entries_, spare_, chosen_;
  std::vector<Number> lanes_, numbers_;
};

// Where the elements of rows are: of element `place` of row `row`, how far from the first.
struct Strides {
  std::int64_t row, place;
};

// Finds the best elements of short rows, some of them beside each other in vectors, without a branch.
// Elements come in the order of their places, so that one that equals a better one stays behind it.
template <typename T, bool largest>
class BestBeside {
 public:
  explicit BestBeside(const Wanted& wanted)
      : length_(wanted.length), kept_(static_cast<std::size_t>(wanted.count) + 1) {
    std::fill_n(kept_[0].keys, kBeside, std::numeric_limits<std::int32_t>::min());
  }

  // Takes up to `kBeside` rows; `from` and `to` say where elements and results lie.
  void find(const T* rows, std::int64_t count, Strides from, T* values, std::int64_t* places,
            Strides to) {
    Lanes found[kAhead] = {};  // what is behind the last row is compared for nothing
    for (std::int64_t begin = 0; begin < length_; begin += kAhead) {
      const std::int64_t end = std::min(length_, begin + kAhead);
      for (std::int64_t place = begin; place < end; ++place) {
        const T* const first = rows + place * from.place;
        Lanes& keys = found[place - begin];
        if (from.row == 1 && count == kBeside) {
          for (std::int64_t row = 0; row < kBeside; ++row) keys[row] = order_of(first[row]);
        } else {
          for (std::int64_t row = 0; row < count; ++row) keys[row] = order_of(first[row * from.row]);
        }
      }
      for (std::int64_t place = begin; place < end; ++place) insert(found[place - begin], place);
    }
    for (std::size_t rank = 0; rank + 1 < kept_.size(); ++rank)
      for (std::int64_t row = 0; row < count; ++row) {
        const std::int64_t place = kept_[rank + 1].places[row];
        const std::int64_t at = static_cast<std::int64_t>(rank) * to.place + row * to.row;
        if (values != nullptr) values[at] = rows[row * from.row + place * from.place];
        if (places != nullptr) places[at] = place;
      }
  }

 private:
  using Lanes = std::int32_t[kBeside];
  struct Kept {
    alignas(64) Lanes keys;
    alignas(64) Lanes places;
  };

  // A number with a sign, since these are what vectors compare. The best one is the least.
  static std::int32_t order_of(T value) {
    using Key = Unsigned<sizeof(T)>;
    const Key key = largest ? static_cast<Key>(~key_of(value)) : key_of(value);
    if constexpr (sizeof(T) < sizeof(std::int32_t)) return key;
    return static_cast<std::int32_t>(key ^ 0x80000000u);
  }

  // From the last place that new elements may have to the first: what is worse than they moves on.
  void insert(const Lanes& found, std::int64_t place) {
    const auto own = static_cast<std::int32_t>(place);
    auto at = static_cast<std::size_t>(place) + 1;
    if (at < kept_.size()) {  // nobody is there yet
      std::fill_n(kept_[at].keys, kBeside, std::numeric_limits<std::int32_t>::max());
      std::fill_n(kept_[at].places, kBeside, own);
    } else {
      at = kept_.size() - 1;
    }
    for (Kept* here = &kept_[at]; here != kept_.data(); --here) settle(found, own, here[-1], *here);
  }

  // All of these are other memory, which vectors are only made of if that is certain; a copy would
  // be read again in other pieces than it is written in, which processors wait for.
  static void settle(const std::int32_t* __restrict found, std::int32_t own,
                     const Kept& __restrict better, Kept& __restrict here) {
    for (std::int64_t row = 0; row < kBeside; ++row) {
      const std::int32_t new_key = found[row], earlier = better.keys[row], key = here.keys[row];
      const bool moves = new_key < earlier, is_better = new_key < key;
      const std::int32_t from = moves ? better.places[row] : own;
      const std::int32_t place = here.places[row];
      here.keys[row] = is_better ? (moves ? earlier : new_key) : key;
      here.places[row] = is_better ? from : place;
    }
  }

  std::int64_t length_;
  std::vector<Kept> kept_;  // behind one that is as good as any other
};

// All rows of a call. Short ones are compared some at a time, others of which the elements lie apart
// are gathered into memory of their own, some at a time as well.
template <typename T>
class Rows {
 public:
  Rows(const Operand& data, int axis, const Wanted& wanted, void* values, void* places)
      : data_(data.as<T>()),
        values_(static_cast<T*>(values)),
        places_(static_cast<std::int64_t*>(places)),
        wanted_(wanted),
        outer_(data.count(0, axis)),
        inner_(data.count(axis + 1)),
        from_{1, inner_},
        to_{1, inner_} {
    const std::int64_t beside = inner_ == 1 ? outer_ : inner_;
    const std::int64_t wide = widest_vector_bytes() / kLeastVectorBytes;
    const std::int64_t most = wide * (has_lanes(wanted) ? kFewBeside : kMostBeside);
    is_beside_ = kOwnBytes && wanted.count * wanted.length <= most && beside >= kLeastBeside;
    if (is_beside_ && inner_ == 1) {
      from_ = {wanted.length, 1};
      to_ = {wanted.count, 1};
      std::swap(outer_, inner_);
    }
    blocks_ = (inner_ + kBeside - 1) / kBeside;
  }

  std::int64_t tasks() const { return outer_ * blocks_; }

  // Nanoseconds, about.
  std::int64_t time_of_task() const {
    constexpr std::int64_t kRow = 20, kChosen = 16, kStepsPerNanosecond = 4;
    const std::int64_t steps = wanted_.length * wanted_.count / kStepsPerNanosecond;
    const std::int64_t row = is_beside_ ? steps : wanted_.length / 2 + kChosen * wanted_.count;
    return std::min(inner_, kBeside) * (kRow + row);
  }

  void run(std::int64_t begin, std::int64_t end) const {
    if (wanted_.largest) {
      run_in<true>(begin, end);
    } else {
      run_in<false>(begin, end);
    }
  }

 private:
  static constexpr bool kOwnBytes = sizeof(T) <= sizeof(std::int32_t);

  template <bool largest>
  void run_in(std::int64_t begin, std::int64_t end) const {
    if constexpr (kOwnBytes) {
      if (is_beside_) {
        BestBeside<T, largest> best(wanted_);
        return in_widest_vectors([&] { run_beside(best, begin, end); });
      }
    }
    run_with(Best<T, largest>(wanted_), begin, end);
  }

  // The first row of a task, and how many it has; the first of its results.
  struct Part {
    const T* rows;
    std::int64_t count, to;
  };

  Part part(std::int64_t task) const {
    const std::int64_t outer = task / blocks_, first = task % blocks_ * kBeside;
    return {data_ + outer * wanted_.length * inner_ + first * from_.row,
            std::min(kBeside, inner_ - first), outer * wanted_.count * inner_ + first * to_.row};
  }

  template <typename Finder>
  void run_beside(Finder& best, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t task = begin; task < end; ++task) {
      const auto [rows, count, to] = part(task);
      best.find(rows, count, from_, values_ == nullptr ? nullptr : values_ + to,
                places_ == nullptr ? nullptr : places_ + to, to_);
    }
  }

  template <typename Finder>
  void run_with(Finder best, std::int64_t begin, std::int64_t end) const {
    std::vector<T> gathered;
    if (inner_ > 1)
      gathered.resize(static_cast<std::size_t>(wanted_.length * std::min(inner_, kBeside)));
    for (std::int64_t task = begin; task < end; ++task) {
      auto [rows, count, to] = part(task);
      if (inner_ > 1) {
        for (std::int64_t place = 0; place < wanted_.length; ++place)
          for (std::int64_t row = 0; row < count; ++row)
            gathered[static_cast<std::size_t>(row * wanted_.length + place)] =
                rows[place * inner_ + row];
        rows = gathered.data();
      }
      for (std::int64_t row = 0; row < count; ++row)
        best.find(rows + row * wanted_.length, values_ == nullptr ? nullptr : values_ + to + row,
                  places_ == nullptr ? nullptr : places_ + to + row, inner_);
    }
  }

  const T* data_;
  T* values_;
  std::int64_t* places_;
  Wanted wanted_;
  std::int64_t outer_, inner_, blocks_;
  Strides from_, to_;
  bool is_beside_;
};

}  // namespace

void top_k(Work& work) {
  const Operand& data = work.operand(0);
  if (data.rank == 0) work.refuse("A number alone has no best elements");
  const int axis = work.axis(0, data.rank);
  const Wanted wanted{data.dims[axis], work.scalar<std::int64_t>(1, 0), work.attribute(1) != 0,
                      work.attribute(2) != 0};
  if (wanted.count < 0 || wanted.count > wanted.length)
    work.refuse(std::to_string(wanted.count) + " of " + std::to_string(wanted.length) +
                " elements along axis " + std::to_string(axis) + " are wanted");
  if (wanted.length > kMostPlaces)
    work.refuse("A row has more than 2^32 - 1 elements");
  std::vector<std::int64_t> dims(data.dims, data.dims + data.rank);
  dims[static_cast<std::size_t>(axis)] = wanted.count;
  void* const values = work.result(0, data.type, dims);
  void* const places = work.result(1, ElementType::int64, dims);
  if (wanted.count == 0) return;
  with_type(data.type, [&]<typename T>() {
    const Rows<T> rows(data, axis, wanted, values, places);
    work.share(rows.tasks(), rows.time_of_task(),
               [&](std::int64_t begin, std::int64_t end) { rows.run(begin, end); });
  });
}

}  // namespace tilewright
