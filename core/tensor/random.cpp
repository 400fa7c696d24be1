// From counts to numbers: the state of the generator, random bits of a draw, floats in [0, 1) of
// the bits, and distributions of those.
//
// Example: with seed 42, x = rand({3}), y = rand({2}). x has the bits that the hash makes of (42,
// 0), (42, 1), (42, 2), and y those of (42, 3), (42, 4), on as many devices as there may be.
#include "core/tensor/random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <numbers>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/dtype/half.h"
#include "core/exec/capture.h"
#include "core/exec/state.h"
#include "core/exec/storage.h"
#include "core/tensor/value_internal.h"

namespace tinyshard {

using value::Value;

namespace {

// Counts of training start in the upper half, so that no draw shares an element with one outside,
// and those of one thread are far from those of the next.
constexpr uint64_t kFirstTrained = uint64_t{1} << 63;
constexpr uint64_t kThread = uint64_t{1} << 48, kThreads = kFirstTrained / kThread;

// Draws of one thread. Those outside of training are counted apart from other threads', too: what a
// loader draws, and when, must change no weights.
struct Stream {
  uint64_t number = 0;  // of the thread
  uint64_t drawn = 0;   // elements outside of training
  uint64_t first_drawn() const { return number * kThread; }
  uint64_t first_trained() const { return kFirstTrained + number * kThread; }
  // In training. A captured step advances the count when it is replayed, so that no other thread's
  // may depend on it.
  StatePtr words;  // u64[2] on the default device: elements drawn, from the first on, and the seed
  // Outside of captures draws count on the host, beside what the storage holds, so that no draw has
  // to be computed before the next one. `counted` waits to be written there, until a captured step
  // or a reader needs it.
  uint64_t beside = 0;
  UOp counted;
};

struct Generator {
  std::mutex mutex;
  uint64_t seed = 0;
  uint64_t threads = 0;  // that have drawn, beside those that are number 0
  std::map<std::thread::id, Stream> streams;
};

Generator& generator() {
  static auto* g = new Generator;  // outlives static tensors
  return *g;
}

// Returns the stream of this thread. Its entry goes when the thread ends; the generator's lock is
// held. Others leave an entry alone, so it may be used without the lock. The thread of main(), and
// one that has seeded, are number 0: which numbers they get depends on no other thread.
Stream& stream_here(Generator& g) {
  struct AtEnd {
    ~AtEnd() {
      Stream last{};
      std::lock_guard lock(generator().mutex);
      auto found = generator().streams.find(std::this_thread::get_id());
      if (found == generator().streams.end()) return;
      last = std::move(found->second);
      generator().streams.erase(found);
    }
  };
  thread_local const AtEnd at_end;
  static_cast<void>(at_end);
  auto [entry, added] = g.streams.try_emplace(std::this_thread::get_id());
  if (added && !is_main_thread()) entry->second.number = ++g.threads % kThreads;
  return entry->second;
}

// How far the draws are and the seed, as data: a constant would make every draw a kernel of its
// own.
UOp count_buffer(uint64_t drawn, uint64_t seed) {
  std::array<uint64_t, 2> words{drawn, seed};
  UOp buffer = host_buffer(Dims{2}, DType::U64, std::as_bytes(std::span(words)));
  Storage::of(*buffer)->set_draw();
  return buffer;
}

// The words of a draw of n elements outside of a capture.
Value drawn_beside(Stream& mine, uint64_t n) {
  if (!(mine.words->value == mine.counted)) {  // written, or a captured step has drawn since
    realize(std::span(&mine.words, 1));
    mine.beside = 0;
  }
  const UOp stored = storage_node(mine.words->value);
  auto ahead = [&](uint64_t count) {
    return (Value(stored) + Value(count_buffer(count, 0))).node();
  };
  const Value words = ahead(mine.beside);
  mine.beside += n;
  mine.counted = UOp::make(Op::Assign, DType::U64, {stored, ahead(mine.beside)});
  mine.words->set(mine.counted);
  return words;
}

}  // namespace

UOp random_bits(DimSpan shape) {
  check_size(shape, DType::U64);
  Generator& g = generator();
  int64_t n = product(shape);
  if (n == 0) return value::constant(DType::U64, 0, shape).node();
  std::optional<Value> words;
  auto [seed, mine] = [&]() -> std::pair<uint64_t, Stream*> {
    std::lock_guard lock(g.mutex);
    return {g.seed, &stream_here(g)};
  }();
  if (is_training() || current_capture()) {
    if (!mine->words || is_lost(*mine->words)) {
      const CaptureScope outside(nullptr);  // the thread's, whatever becomes of a trace
      mine->words = make_state(count_buffer(mine->first_trained(), seed));
    }
    if (current_capture()) {
      words = Value(touch(*mine->words));
      Value step = value::pad(value::constant(DType::U64, n, Dims{1}), {{0, 1}});
      mine->words->set(UOp::make(Op::Assign, DType::U64, {words->node(), (*words + step).node()}));
    } else {
      words = drawn_beside(*mine, static_cast<uint64_t>(n));
    }
  } else {
    words = Value(count_buffer(mine->first_drawn() + mine->drawn, seed));
    mine->drawn += static_cast<uint64_t>(n);
  }
  Dims flat{n};
  Value counter = value::iota(n, DType::U64) + value::shrink(*words, {{0, 1}});
  Value key = value::broadcast_to(value::shrink(*words, {{1, 2}}), flat);
  return reshape(tinyshard::binary(Op::Threefry, counter.node(), key.node()), shape);
}

RandomState random_state() {
  Generator& g = generator();
  RandomState out;
  Stream* mine = nullptr;
  {
    std::lock_guard lock(g.mutex);
    mine = &stream_here(g);
    out = {g.seed, mine->drawn, 0};
  }
  if (mine->words && !is_lost(*mine->words)) {
    uint64_t count = 0;
    std::memcpy(&count, read(*mine->words).data(), sizeof(count));
    out.trained = count - mine->first_trained();
  }
  return out;
}

void set_random_state(const RandomState& state) {
  if (current_capture())
    fail("in a captured step it would seed the first call alone; call it before the step");
  Generator& g = generator();
  Stream* mine = nullptr;
  {
    std::lock_guard lock(g.mutex);
    g.seed = state.seed;
    mine = &stream_here(g);
    mine->number = 0;
    mine->drawn = state.drawn;
  }
  std::array<uint64_t, 2> words{mine->first_trained() + state.trained, state.seed};
  if (mine->words && !is_lost(*mine->words)) {
    realize(std::span(&mine->words, 1));  // captured steps hold the storage: it is written over
    write(*mine->words, std::as_bytes(std::span(words)));
  } else if (state.trained != 0) {
    mine->words = make_state(count_buffer(words[0], words[1]));
  }
}

void Tensor::manual_seed(uint64_t seed, Caller caller) {
  Call call("manual_seed", caller);
  set_random_state({.seed = seed});
}

namespace {

Value upper_half(const Value& bits) {
  return value::cast(
      tinyshard::binary(Op::Shr, bits.node(), value::constant(DType::U64, 32, bits.shape()).node()),
      DType::U32);
}
Value lower_half(const Value& bits) { return value::cast(bits & int64_t{0xffffffff}, DType::U32); }

// The upper `count` of 32 bits, over 2^count: in [0, 1), exact.
Value fraction(const Value& half, int count, DType dtype) {
  Value kept = tinyshard::binary(Op::Shr, half.node(),
                                 value::constant(DType::U32, 32 - count, half.shape()).node());
  return value::cast(value::cast(kept, count < 32 ? DType::I32 : DType::I64), dtype) *
         std::ldexp(1.0, -count);
}

// Uniform in [0, 1), with as many bits as the type holds.
Value unit(const Value& bits, DType dtype) {
  switch (dtype) {
    case DType::F64: {
      Value kept = tinyshard::binary(Op::Shr, bits.node(),
                                     value::constant(DType::U64, 11, bits.shape()).node());
      return value::cast(value::cast(kept, DType::I64), dtype) * 0x1p-53;
    }
    case DType::F16:
      return value::cast(fraction(upper_half(bits), 11, DType::F32), dtype);
    case DType::BF16:
      return value::cast(fraction(upper_half(bits), 8, DType::F32), dtype);
    case DType::F8E4M3FN:
    case DType::F8E4M3FNUZ:
      return value::cast(fraction(upper_half(bits), 4, DType::F32), dtype);
    case DType::F8E5M2:
    case DType::F8E5M2FNUZ:
      return value::cast(fraction(upper_half(bits), 3, DType::F32), dtype);
    default:
      return fraction(upper_half(bits), 24, DType::F32);
  }
}

void need_float_type(DType dtype) {
  value::check_dtype(dtype);
  if (!is_float(dtype))
    fail(fmt::format("draws floats, not {}; use randint for integers", name(dtype)));
}

Value random_unit(const Dims& shape, DType dtype) {
  need_float_type(dtype);
  return unit(random_bits(shape), dtype);
}

// Box and Muller: both halves of the bits make one value.
Value random_normal(const Dims& shape, DType dtype) {
  need_float_type(dtype);
  Value bits = random_bits(shape);
  DType wide = dtype == DType::F64 ? DType::F64 : DType::F32;
  int count = wide == DType::F64 ? 32 : 24;
  Value angle = fraction(lower_half(bits), count, wide) * (2 * std::numbers::pi);
  Value radius = value::sqrt(value::log(1 - fraction(upper_half(bits), count, wide)) * -2.0);
  return value::cast(value::cos(angle) * radius, dtype);
}

// The largest number of the type below x, which it holds.
double below(double x, DType dtype) {
  if (dtype == DType::F64) return std::nextafter(x, -std::numeric_limits<double>::infinity());
  if (!is_narrow(dtype))
    return std::nextafter(static_cast<float>(x), -std::numeric_limits<float>::infinity());
  // Neighbours of 8 and 16 bits differ by 1 as integers.
  const uint32_t sign = 1u << (8 * itemsize(dtype) - 1);
  const uint32_t at = x == 0 ? sign : f64_to_narrow(dtype, x);
  return narrow_to_f32(dtype, at & sign ? at + 1 : at - 1);
}

// Fails where the type has neither the bounds nor infinity: it would be NaN that is drawn.
void need_range(double low, double high, DType dtype) {
  for (const double x : {low, high, high - low}) {
    if (std::isfinite(x) && std::isnan(rounded_to(dtype, x)))
      fail(fmt::format("draws from {} to {}, beyond {}", low, high, name(dtype)));
  }
}

// u in [0, 1) as numbers of [low, high) in the type. Rounding may come to `high`: such numbers are
// the one below it.
Value in_range(const Value& u, double low, double high, DType dtype) {
  if (low == 0 && high == 1) return value::cast(u, dtype);
  need_range(low, high, dtype);
  Value scaled = high - low == 1 ? u : u * (high - low);
  Value out = value::cast(low == 0 ? scaled : scaled + low, dtype);
  if (!(low < high)) return out;
  // The type may hold neither bound: then those are the ones within.
  const double rounded = rounded_to(dtype, high);
  const double most = rounded < high ? rounded : below(rounded, dtype);
  return value::minimum(out, std::max(most, rounded_to(dtype, low)));
}

int64_t fan_in(const Dims& shape) {
  check_size(shape, DType::U64);
  return shape.empty() ? 1 : product(DimSpan(shape).subspan(1));
}
double kaiming_bound(const Dims& shape, double a) {
  return std::sqrt(2 / (1 + a * a)) /
         std::sqrt(static_cast<double>(std::max<int64_t>(1, fan_in(shape))));
}

}  // namespace

Tensor Tensor::rand(const Ints& shape, DType dtype, Caller caller) {
  Call call("rand", caller);
  return random_unit(shape.values, dtype);
}

Tensor Tensor::randn(const Ints& shape, DType dtype, Caller caller) {
  Call call("randn", caller);
  return random_normal(shape.values, dtype);
}

Tensor Tensor::rand_like(std::optional<DType> dtype) const {
  Call call("rand_like");
  return random_unit(shape(), dtype.value_or(this->dtype())).tensor().shard_like(*this);
}

Tensor Tensor::randn_like(std::optional<DType> dtype) const {
  Call call("randn_like");
  return random_normal(shape(), dtype.value_or(this->dtype())).tensor().shard_like(*this);
}

Tensor Tensor::uniform(const Ints& shape, double low, double high, DType dtype, Caller caller) {
  Call call("uniform", caller);
  return in_range(random_unit(shape.values, dtype), low, high, dtype);
}

Tensor Tensor::normal(const Ints& shape, double mean, double std, DType dtype, Caller caller) {
  Call call("normal", caller);
  return random_normal(shape.values, dtype) * std + mean;
}

Tensor Tensor::randint(const Ints& shape, int64_t low, int64_t high, DType dtype, Caller caller) {
  Call call("randint", caller);
  value::check_dtype(dtype);
  if (!is_int(dtype)) fail(fmt::format("draws integers, not {}", name(dtype)));
  if (low >= high)
    fail(fmt::format("there is no integer from {} up to but not including {}", low, high));
  if (!value::fits(low, dtype) || !value::fits(high - 1, dtype)) {
    fail(fmt::format("{} does not hold the integers from {} up to but not including {}",
                     name(dtype), low, high));
  }
  Value bits = random_bits(shape.values);
  uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  Value out = bits;
  if (range <= uint64_t{1} << 32) {
    Value upper = value::cast(upper_half(bits), DType::U64) * static_cast<int64_t>(range);
    out = value::cast(upper_half(upper), DType::I64);
  } else {
    out = value::cast(
        Value(tinyshard::binary(Op::Mod, bits.node(),
                                value::constant(DType::U64, range, bits.shape()).node())),
        DType::I64);
  }
  return value::cast(out + low, dtype);
}

Tensor Tensor::scaled_uniform(const Ints& shape, DType dtype, Caller caller) {
  Call call("scaled_uniform", caller);
  check_size(shape.values, DType::U64);
  double bound = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(1, product(shape.values))));
  return in_range(random_unit(shape.values, dtype), -bound, bound, dtype);
}

Tensor Tensor::glorot_uniform(const Ints& shape, DType dtype, Caller caller) {
  Call call("glorot_uniform", caller);
  if (shape.size() == 0) fail("needs at least one dim");
  int64_t fans = shape[0] + fan_in(shape.values);
  double bound = std::sqrt(6.0 / static_cast<double>(std::max<int64_t>(1, fans)));
  return in_range(random_unit(shape.values, dtype), -bound, bound, dtype);
}

Tensor Tensor::kaiming_uniform(const Ints& shape, double a, DType dtype, Caller caller) {
  Call call("kaiming_uniform", caller);
  double bound = std::sqrt(3.0) * kaiming_bound(shape.values, a);
  return in_range(random_unit(shape.values, dtype), -bound, bound, dtype);
}

Tensor Tensor::kaiming_normal(const Ints& shape, double a, DType dtype, Caller caller) {
  Call call("kaiming_normal", caller);
  return random_normal(shape.values, dtype) * kaiming_bound(shape.values, a);
}

Tensor Tensor::randperm(int64_t n, DType dtype, Caller caller) {
  Call call("randperm", caller);
  if (n < 0) fail(fmt::format("{} elements: a number of elements is not negative", n));
  value::check_dtype(dtype);
  if (n > 0 && !value::fits(n - 1, dtype))
    fail(fmt::format("{} does not hold the integers up to {}", name(dtype), n - 1));
  if (n == 0) return value::constant(dtype, 0, Dims{0});
  // The order of as many draws of uniform f64: of their 53 bits.
  Value bits = Value(random_bits(Dims{n})) & ~uint64_t{0x7ff};
  return value::cast(value::sort_order(bits, n), dtype);
}

namespace {

// How many of the running totals along the last dim each mark has passed: rows of up to so many are
// compared one by one, longer ones are halved again and again.
Value passed_totals(const Value& totals, const Value& marks) {
  constexpr int64_t kCompared = 256;
  int64_t n = totals.shape().back(), last = totals.rank() - 1;
  if (n <= kCompared) {
    Value passed = value::unsqueeze(marks, last + 1) >= value::unsqueeze(totals, last);
    return value::sum(value::cast(passed, DType::I32), {last + 1});
  }
  int64_t step = 1;
  while (step <= n / 2) step *= 2;
  Value passed = value::constant(DType::I32, 0, marks.shape());
  for (; step > 0; step /= 2) {
    Value next = passed + step;  // that many have been passed if the last of them has been
    Value reached = value::gather(totals, last, value::minimum(next, n) - 1);
    passed = value::where((next <= n) & (marks >= reached), next, passed);
  }
  return passed;
}

}  // namespace

Tensor Tensor::multinomial(int64_t num_samples, bool replacement, Caller caller) const {
  Call call("multinomial", caller);
  Value weight(*this);
  if (weight.rank() < 1 || weight.rank() > 2 || num_samples <= 0) {
    fail(fmt::format("{} samples from {}: needs one or two dims of weights and at least one sample",
                     num_samples, describe()));
  }
  if (!replacement && num_samples > weight.shape().back()) {
    fail(fmt::format("{} samples without replacement from {} weights", num_samples,
                     weight.shape().back()));
  }
  const int64_t last = weight.rank() - 1, n = weight.size(last);
  if (n == 0) fail(fmt::format("{} has no weights to draw by", describe()));
  // The largest weight of a row becomes 1, so that no total overflows.
  const DType wide = weight.dtype() == DType::F64 ? DType::F64 : DType::F32;
  weight = value::contiguous(value::cast(weight, wide));
  const Value largest = value::max(weight, {last}, true);
  const Value sane = (value::min(weight, {last}, true) >= 0) & (largest > 0) &
                     (largest < std::numeric_limits<double>::infinity());
  weight = value::cast(weight / value::where(sane, largest, 1), DType::F32);
  Dims rows = weight.dims();
  // Places of no weight are drawn where there is no other one, or a weight is none.
  auto checked = [&](const Value& places) {
    const Value weighs = value::gather(weight, last, places) > 0;
    return value::where(weighs & sane, places, -1).tensor();
  };
  if (!replacement) {
    // The smallest of exponential variables with these rates.
    Value wait = -value::log(1 - random_unit(rows, DType::F32)) / weight;
    wait = value::where(weight > 0, wait, std::numeric_limits<double>::infinity());
    return checked(value::contiguous(wait).tensor().topk(num_samples, -1, false).second);
  }
  Tensor total = weight.tensor().cumsum(-1);
  rows.back() = num_samples;
  Value all = value::shrink_axis(total, last, n - 1, n);
  Value mark = value::contiguous(random_unit(rows, DType::F32)) * all;
  return checked(value::minimum(passed_totals(total, mark), n - 1));
}

}  // namespace tinyshard
