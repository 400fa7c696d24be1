// A line that says how far a loop is: a bar on a terminal, redrawn at most ten times a second;
// elsewhere a plain line every ten seconds. Both end with a line of totals.
//
//   for (const Batch& batch : progress(batches, "train")) ...
//
//   auto bar = progress(1000, "train", {.enabled = rank == 0});
//   for (int64_t step : bar) bar.show("loss", train(step));
//
// For one thread; nothing is drawn behind its back. Failures to write are ignored: a bar stops no
// training.
#pragma once
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tinyshard {

struct ProgressOptions {
  bool enabled = true;      // false: all calls do nothing; so on all ranks but one
  int64_t start = 0;        // done before this loop: counts for the percentage, not for the rate
  std::string unit = "it";  // "34.5 it/s"
  double interval_s = 0.1;  // between redraws of the bar
  double plain_interval_s = 10;  // between lines where there is no terminal
  std::ostream* stream =
      nullptr;  // instead of stderr; taken for no terminal unless `terminal` says so
  // Found out if not given: whether stderr is a terminal, or is mpirun's pipe to one; its columns,
  // asked at each drawing; whether LANG speaks UTF-8; the steady clock in seconds.
  std::optional<bool> terminal = {};
  std::function<int()> width = {};
  std::optional<bool> unicode = {};
  std::function<double()> clock = {};
};

class Progress {
 public:
  // `total` counts `start` in; negative if it is not known.
  Progress(const std::string& label, int64_t total, ProgressOptions options = {});
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  // finishes

  void advance(int64_t count = 1);
  void set(int64_t done);

  // A figure beside the bar, such as "loss 2.31"; shown with the next drawing. Fields keep their
  // first order.
  void show(std::string_view name, double value);
  void show(std::string_view name, std::string_view text);

  // A line of text above the bar.
  void print(std::string_view line);

  // The last drawing and the totals; later calls do nothing.
  void finish();

  int64_t done() const;

 private:
  struct State;
  std::unique_ptr<State> state_;  // null if not enabled
  int64_t done_;
};

// 0, 1, ... count - 1.
class CountRange {
 public:
  class Iterator {
   public:
    explicit Iterator(int64_t at) : at_(at) {}
    int64_t operator*() const { return at_; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    bool operator==(const Iterator&) const = default;

   private:
    int64_t at_;
  };
  CountRange(int64_t first, int64_t last) : first_(first), last_(last < first ? first : last) {}
  Iterator begin() const { return Iterator(first_); }
  Iterator end() const { return Iterator(last_); }
  int64_t size() const { return last_ - first_; }

 private:
  int64_t first_, last_;
};

// A range that moves a bar while it is walked. Holds a range given as a temporary, refers to one
// that has a name.
template <class Range>
class ProgressRange : public Progress {
 public:
  ProgressRange(Range&& range, const std::string& label, const ProgressOptions& options)
      : Progress(label, total_of(range, options.start), options),
        range_(std::forward<Range>(range)) {}

  class Iterator {
   public:
    using Inner = decltype(std::begin(std::declval<std::remove_reference_t<Range>&>()));
    Iterator(Inner at, Progress& bar) : at_(std::move(at)), bar_(&bar) {}
    decltype(auto) operator*() const { return *at_; }
    Iterator& operator++() {
      ++at_;
      bar_->advance();
      return *this;
    }
    template <class End>
    bool operator==(const End& end) const {
      const bool over = at_ == end;
      if (over) bar_->finish();
      return over;
    }

   private:
    Inner at_;
    Progress* bar_;
  };

  Iterator begin() { return Iterator(std::begin(range_), *this); }
  auto end() { return std::end(range_); }

 private:
  static int64_t total_of(const std::remove_reference_t<Range>& range, int64_t start) {
    if constexpr (requires { std::size(range); }) {
      return start + static_cast<int64_t>(std::size(range));
    } else {
      return -1;
    }
  }
  Range range_;
};

template <class Range>
  requires(!std::is_arithmetic_v<std::remove_cvref_t<Range>>)
ProgressRange<Range> progress(Range&& range, const std::string& label,
                              const ProgressOptions& options = {}) {
  return ProgressRange<Range>(std::forward<Range>(range), label, options);
}

// The numbers from options.start to count.
inline ProgressRange<CountRange> progress(int64_t count, const std::string& label,
                                          const ProgressOptions& options = {}) {
  return ProgressRange<CountRange>(CountRange(options.start, count), label, options);
}

// A bar of MiB for what tells how many bytes are done, of how many: loads and saves of models.
//
//   nn::load_state_dict(model, safe_load("model"), {.progress = byte_bar("load")});
std::function<void(int64_t done, int64_t total)> byte_bar(const std::string& label,
                                                          ProgressOptions options = {});

// Write figures as bars and plots do: "2.312", "0.0004", "12.3k"; and times: "0:17", "1:02:05".
std::string short_number(double value);
std::string short_time(double seconds);

}  // namespace tinyshard
