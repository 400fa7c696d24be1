#include "tests/core/codegen/interpreter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>
#include <unordered_map>

#include "core/dtype/half.h"
#include "core/uop/args.h"

namespace tinyshard::test {
namespace {

int64_t wrap(DType dtype, int64_t v) {
  switch (dtype) {
    case DType::Bool:
      return v != 0;
    case DType::I8:
      return static_cast<int8_t>(v);
    case DType::U8:
      return static_cast<uint8_t>(v);
    case DType::I16:
      return static_cast<int16_t>(v);
    case DType::U16:
      return static_cast<uint16_t>(v);
    case DType::I32:
      return static_cast<int32_t>(v);
    case DType::U32:
      return static_cast<uint32_t>(v);
    default:
      return v;
  }
}

template <class T>
T get(const void* memory, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(memory) + index * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}
template <class T>
void put(void* memory, int64_t index, T value) {
  std::memcpy(static_cast<char*>(memory) + index * static_cast<int64_t>(sizeof(T)), &value,
              sizeof(T));
}

int64_t saturate(DType to, double v) {
  if (std::isnan(v)) return 0;
  v = std::trunc(v);
  auto clamp = [&](double low, double high, int64_t lowest, int64_t highest) {
    return v <= low ? lowest : v >= high ? highest : static_cast<int64_t>(v);
  };
  switch (to) {
    case DType::I8:
      return clamp(-128, 127, -128, 127);
    case DType::U8:
      return clamp(0, 255, 0, 255);
    case DType::I16:
      return clamp(-32768, 32767, -32768, 32767);
    case DType::U16:
      return clamp(0, 65535, 0, 65535);
    case DType::I32:
      return clamp(-0x1p31, 0x1p31 - 1, INT32_MIN, INT32_MAX);
    case DType::U32:
      return clamp(0, 0x1p32 - 1, 0, UINT32_MAX);
    case DType::U64:
      return v <= 0 ? 0 : v >= 0x1p64 ? -1 : static_cast<int64_t>(static_cast<uint64_t>(v));
    default:
      return v >= 0x1p63 ? INT64_MAX : v < -0x1p63 ? INT64_MIN : static_cast<int64_t>(v);
  }
}

uint64_t threefry(uint64_t counter, uint64_t key) {
  auto rotate = [](uint32_t x, int n) { return (x << n) | (x >> (32 - n)); };
  uint32_t ks[3] = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), 0};
  ks[2] = 0x1bd11bda ^ ks[0] ^ ks[1];
  uint32_t x[2] = {static_cast<uint32_t>(counter) + ks[0],
                   static_cast<uint32_t>(counter >> 32) + ks[1]};
  static constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  for (int round = 0; round < 20; ++round) {
    x[0] += x[1];
    x[1] = rotate(x[1], kRotations[round / 4 % 2][round % 4]) ^ x[0];
    if (round % 4 == 3) {
      uint32_t s = static_cast<uint32_t>(round / 4 + 1);
      x[0] += ks[s % 3];
      x[1] += ks[(s + 1) % 3] + s;
    }
  }
  return uint64_t{x[1]} << 32 | x[0];
}

class Interpreter {
 public:
  Interpreter(const KernelSource& kernel, const std::vector<void*>& buffers,
              const std::vector<int64_t>& coordinates)
      : kernel_(kernel), buffers_(buffers), coordinates_(coordinates) {}

  void run() {
    // Read everything before anything is written: stores of one iteration come after its loads, and
    // no iteration reads what another one writes.
    std::vector<std::tuple<const Node*, int64_t, Scalar>> writes;
    for (const UOp& store : kernel_.sink->src()) {
      std::vector<UOp> loops;
      for (const UOp& loop : kernel_.loops) {
        if (depends(store, loop)) loops.push_back(loop);
      }
      over(loops, 0, [&] {
        if (store->sources > 3 && !eval(store.src(3)).whole) return;
        writes.emplace_back(store.get(), eval(store.src(1)).whole, eval(store.src(2)));
      });
    }
    for (auto& [store, index, value] : writes) {
      int64_t slot = slot_of(*store);
      if (index < 0 || index >= kernel_.params[slot].numel) continue;
      write_element(buffers_[slot], kernel_.params[slot].dtype, index, value);
    }
  }

 private:
  bool depends(const UOp& x, const UOp& range) {
    for (const UOp& node : toposort(std::span(&x, 1))) {
      if (node == range) return true;
    }
    return false;
  }

  void over(const std::vector<UOp>& ranges, size_t depth, const std::function<void()>& body) {
    if (depth == ranges.size()) {
      body();
      return;
    }
    for (int64_t i = 0; i < range_arg(*ranges[depth]).size; ++i) {
      bound_[ranges[depth].get()] = i;
      over(ranges, depth + 1, body);
    }
  }

  Scalar eval(const UOp& x) {
    auto s = [&](size_t i) { return eval(x.src(i)); };
    DType t = x.dtype();
    switch (x.op()) {
      case Op::Const: {
        Scalar v;
        if (is_float(t)) {
          v.real = round_to(t, const_as_double(x));
        } else {
          v.whole = const_bits(*x);
        }
        return v;
      }
      case Op::Range:
        return {0, range_arg(*x).size == 1 ? 0 : bound_.at(x.get())};
      case Op::DeviceCoordinate:
        return {0, coordinates_.at(static_cast<size_t>(coordinate_arg(*x).mesh_axis))};
      case Op::Load: {
        if (x->src().size() > 2 && !s(2).whole) return {};
        int64_t index = s(1).whole, slot = slot_of(*x);
        if (index < 0 || index >= kernel_.params[slot].numel) return {};
        return read_element(buffers_[slot], t, index);
      }
      case Op::Fold: {
        std::vector<int64_t> place;
        for (const UOp& r : free_ranges(x)) place.push_back(bound_.at(r.get()));
        auto& memo = folds_[x.get()];
        if (memo.known && memo.place == place) return memo.value;
        std::vector<UOp> ranges(x->src().begin() + 1, x->src().end());
        std::vector<int64_t> outer;
        for (const UOp& r : ranges)
          outer.push_back(bound_.contains(r.get()) ? bound_[r.get()] : -1);
        ReduceOp op = fold_arg(*x).op;
        bool first = true;
        Scalar total;
        over(ranges, 0, [&] {
          Scalar v = eval(x.src(0));
          if (first) {
            total = v, first = false;
          } else if (is_float(t)) {
            bool nan = std::isnan(total.real) || std::isnan(v.real);
            switch (op) {
              case ReduceOp::Sum:
                total.real += v.real;
                break;  // in double: better than the kernel
              case ReduceOp::Prod:
                total.real *= v.real;
                break;
              case ReduceOp::Max:
                total.real = nan ? NAN : std::max(total.real, v.real);
                break;
              case ReduceOp::Min:
                total.real = nan ? NAN : std::min(total.real, v.real);
                break;
            }
          } else {
            bool less = is_unsigned_int(t)
                            ? static_cast<uint64_t>(v.whole) < static_cast<uint64_t>(total.whole)
                            : v.whole < total.whole;
            switch (op) {
              case ReduceOp::Sum:
                total.whole = wrap(t, static_cast<int64_t>(static_cast<uint64_t>(total.whole) +
                                                           static_cast<uint64_t>(v.whole)));
                break;
              case ReduceOp::Prod:
                total.whole = wrap(t, static_cast<int64_t>(static_cast<uint64_t>(total.whole) *
                                                           static_cast<uint64_t>(v.whole)));
                break;
              case ReduceOp::Max:
                total.whole = less ? total.whole : v.whole;
                break;
              case ReduceOp::Min:
                total.whole = less ? v.whole : total.whole;
                break;
            }
          }
        });
        if (first) {
          if (op == ReduceOp::Prod) total = {1, 1};
          if (op == ReduceOp::Max)
            total = {-INFINITY,
                     is_unsigned_int(t) || t == DType::Bool
                         ? 0
                         : static_cast<int64_t>(uint64_t{1} << 63 >> (64 - 8 * itemsize(t)) * 0)};
        }
        // Another fold around this one may be using the same ranges.
        for (size_t i = 0; i < ranges.size(); ++i) {
          if (outer[i] >= 0) bound_[ranges[i].get()] = outer[i];
        }
        total.real = round_to(t, total.real);
        auto& done = folds_[x.get()];
        done.known = true;
        done.place = place;
        done.value = total;
        return total;
      }
      case Op::Where:
        return s(0).whole ? s(1) : s(2);
      case Op::Cast:
        return cast(s(0), x.src(0).dtype(), t);
      case Op::Bitcast: {
        char memory[8] = {};
        write_element(memory, x.src(0).dtype(), 0, s(0));
        return read_element(memory, t, 0);
      }
      default:
        break;
    }
    std::vector<Scalar> a;
    for (const UOp& source : x->src()) a.push_back(eval(source));
    DType from = x.src(0).dtype();
    return is_float(from) ? floats(x.op(), t, a) : integers(x.op(), from, t, a);
  }

  static Scalar cast(Scalar v, DType from, DType to) {
    if (is_float(from)) {
      if (to == DType::Bool) return {0, v.real != 0};
      if (is_float(to)) return {round_to(to, v.real), 0};
      return {0, saturate(to, v.real)};
    }
    if (is_float(to)) {
      const auto exact = from == DType::U64
                             ? static_cast<long double>(static_cast<uint64_t>(v.whole))
                             : static_cast<long double>(v.whole);
      return {round_to(to, exact), 0};
    }
    return {0, wrap(to, v.whole)};
  }

  static Scalar floats(Op op, DType t, const std::vector<Scalar>& a) {
    double x = a[0].real, y = a.size() > 1 ? a[1].real : 0;
    // 16-bit floats are computed in f32, then rounded.
    auto r = [&](double v) {
      return Scalar{t == DType::F64 ? v : round_to(t, round_to(DType::F32, v)), 0};
    };
    switch (op) {
      case Op::Neg:
        return r(-x);
      case Op::Mod:
        return r(std::fmod(x, y));
      case Op::Exp2:
        return r(std::exp2(x));
      case Op::Log2:
        return r(std::log2(x));
      case Op::Sin:
        return r(std::sin(x));
      case Op::Sqrt:
        return r(std::sqrt(x));
      case Op::Recip:
        return r(1 / x);
      case Op::Trunc:
        return r(std::trunc(x));
      case Op::Add:
        return r(x + y);
      case Op::Sub:
        return r(x - y);
      case Op::Mul:
        return r(x * y);
      case Op::Div:
        return r(x / y);
      case Op::Or:  // one of them is +0
        return std::bit_cast<uint64_t>(x) == 0 ? r(y) : r(x);
      case Op::Max:
        return r(std::isnan(x) || std::isnan(y) ? NAN : std::max(x, y));
      case Op::CmpLt:
        return {0, x < y};
      case Op::CmpEq:
        return {0, x == y};
      case Op::CmpNe:
        return {0, x != y};
      default:
        throw std::runtime_error("interpreter: op on floats");
    }
  }

  static Scalar integers(Op op, DType from, DType t, const std::vector<Scalar>& a) {
    int64_t x = a[0].whole, y = a.size() > 1 ? a[1].whole : 0;
    auto ux = static_cast<uint64_t>(x), uy = static_cast<uint64_t>(y);
    bool u = is_unsigned_int(from), boolean = from == DType::Bool;
    uint64_t width = 8 * (from == DType::Index ? 8 : itemsize(from));
    auto r = [&](uint64_t v) { return Scalar{0, wrap(t, static_cast<int64_t>(v))}; };
    switch (op) {
      case Op::Neg:
        return boolean ? r(ux) : r(0 - ux);
      case Op::Not:
        return boolean ? r(x == 0) : r(~ux);
      case Op::Trunc:
        return r(ux);
      case Op::Add:
        return boolean ? r(ux | uy) : r(ux + uy);
      case Op::Sub:
        return boolean ? r(ux ^ uy) : r(ux - uy);
      case Op::Mul:
        return r(ux * uy);
      case Op::Max:
        return u ? r(std::max(ux, uy)) : r(static_cast<uint64_t>(std::max(x, y)));
      case Op::And:
        return r(ux & uy);
      case Op::Or:
        return r(ux | uy);
      case Op::Xor:
        return r(ux ^ uy);
      case Op::Shl:
        return r(uy < width ? ux << uy : 0);
      case Op::Shr:
        return r(uy >= width ? 0 : u ? ux >> uy : static_cast<uint64_t>(x >> y));
      case Op::CmpLt:
        return {0, u ? ux < uy : x < y};
      case Op::CmpEq:
        return {0, x == y};
      case Op::CmpNe:
        return {0, x != y};
      case Op::Threefry:
        return r(threefry(ux, uy));
      case Op::IDiv:
      case Op::Mod: {
        if (y == 0) return r(0);
        if (boolean) return r(op == Op::IDiv ? ux : 0);
        if (u) return r(op == Op::IDiv ? ux / uy : ux % uy);
        if (y == -1) return r(op == Op::IDiv ? 0 - ux : 0);
        int64_t q = x / y, m = x % y;
        if (from == DType::Index && m != 0 && (m ^ y) < 0) q -= 1, m += y;
        return r(static_cast<uint64_t>(op == Op::IDiv ? q : m));
      }
      default:
        throw std::runtime_error("interpreter: op on integers");
    }
  }

  const KernelSource& kernel_;
  const std::vector<void*>& buffers_;
  const std::vector<int64_t>& coordinates_;
  std::unordered_map<const Node*, int64_t> bound_;
  // The latest value of each fold and where it was computed.
  struct Memo {
    bool known = false;
    std::vector<int64_t> place;
    Scalar value;
  };
  std::unordered_map<const Node*, Memo> folds_;
  std::unordered_map<const Node*, std::vector<UOp>> free_;

  const std::vector<UOp>& free_ranges(const UOp& x) {
    if (auto found = free_.find(x.get()); found != free_.end()) return found->second;
    std::vector<UOp> result;
    if (x.op() == Op::Range && range_arg(*x).size != 1) result.push_back(x);
    size_t values = x.op() == Op::Fold ? 1 : x->src().size();
    for (size_t i = 0; i < values; ++i) {
      for (const UOp& r : free_ranges(x.src(i))) {
        bool own =
            x.op() == Op::Fold && std::ranges::find(x->src().subspan(1), r) != x->src().end();
        if (!own && std::ranges::find(result, r) == result.end()) result.push_back(r);
      }
    }
    return free_[x.get()] = result;
  }
};

}  // namespace

// By the definition of the formats: to the nearest multiple of the last digit's place, to even in
// the middle. No type lies between, so a number of any width is rounded once.
double round_to(DType dtype, long double value) {
  if (dtype == DType::F64) return static_cast<double>(value);
  if (dtype == DType::F32) return static_cast<float>(value);
  if (!is_float(dtype) || !std::isfinite(value) || value == 0) return static_cast<double>(value);
  const int digits = dtype == DType::F16 ? 11 : 8, most = dtype == DType::F16 ? 15 : 127;
  int exponent = 0;
  (void)std::frexp(value, &exponent);  // below 2^exponent
  const int place = std::max(exponent - 1, 1 - most) - (digits - 1);
  const long double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -place)), place);
  const bool beyond = std::fabs(rounded) >= std::ldexp(1.0L, most + 1);
  return static_cast<double>(beyond ? std::copysign(INFINITY, rounded) : rounded);
}

Scalar read_element(const void* m, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::Bool:
      return {0, get<uint8_t>(m, i) != 0};
    case DType::I8:
      return {0, get<int8_t>(m, i)};
    case DType::U8:
      return {0, get<uint8_t>(m, i)};
    case DType::I16:
      return {0, get<int16_t>(m, i)};
    case DType::U16:
      return {0, get<uint16_t>(m, i)};
    case DType::I32:
      return {0, get<int32_t>(m, i)};
    case DType::U32:
      return {0, get<uint32_t>(m, i)};
    case DType::I64:
    case DType::U64:
    case DType::Index:
      return {0, get<int64_t>(m, i)};
    case DType::F8E4M3FN:
    case DType::F8E5M2:
    case DType::F8E4M3FNUZ:
    case DType::F8E5M2FNUZ:
      return {narrow_to_f32(dtype, get<uint8_t>(m, i)), 0};
    case DType::F16:
      return {f16_to_f32(get<uint16_t>(m, i)), 0};
    case DType::BF16:
      return {bf16_to_f32(get<uint16_t>(m, i)), 0};
    case DType::F32:
      return {get<float>(m, i), 0};
    case DType::F64:
      return {get<double>(m, i), 0};
  }
  return {};
}

void write_element(void* m, DType dtype, int64_t i, Scalar v) {
  switch (dtype) {
    case DType::F16:
      put(m, i, f32_to_f16(static_cast<float>(v.real)));
      return;
    case DType::BF16:
      put(m, i, f32_to_bf16(static_cast<float>(v.real)));
      return;
    case DType::F32:
      put(m, i, static_cast<float>(v.real));
      return;
    case DType::F64:
      put(m, i, v.real);
      return;
    default:
      break;
  }
  if (is_float8(dtype)) v.whole = f64_to_narrow(dtype, v.real);
  std::memcpy(static_cast<char*>(m) + i * static_cast<int64_t>(itemsize(dtype)), &v.whole,
              itemsize(dtype));
}

void interpret(const KernelSource& kernel, const std::vector<void*>& buffers,
               const std::vector<int64_t>& coordinates) {
  Interpreter(kernel, buffers, coordinates).run();
}

}  // namespace tinyshard::test
