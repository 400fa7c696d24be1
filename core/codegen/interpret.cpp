// Nodes are numbered, sources before users. A list is what one value needs, in that order, without
// the inside of folds, which have lists of their own; so nothing recurses but folds inside of
// folds. A node is computed again only where a range that it depends on has another value:
//
//   store(p0, i, x[i] * sum over k of w[k])     loop i: lists of i and of the product
//                                               the fold stands, for it depends on no loop
#include "core/codegen/interpret.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/dtype/half.h"
#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kTranscendentalUlps = 4;

// Floats as a double of their type's precision and how far correct code may be off, infinite when
// nothing is known. Integers and Bool as 64 bits, extended as the type is.
struct Value {
  double real = 0, error = 0;
  int64_t whole = 0;
  bool unsure = false;
};

bool has_sign(DType dtype) { return is_signed_int(dtype) || dtype == DType::Index; }
uint64_t width_of(DType dtype) { return dtype == DType::Index ? 64 : 8 * itemsize(dtype); }

double rounded(DType dtype, double value) {
  switch (dtype) {
    case DType::F64:
      return value;
    case DType::F16:
      return f16_to_f32(f32_to_f16(static_cast<float>(value)));
    case DType::BF16:
      return bf16_to_f32(f32_to_bf16(static_cast<float>(value)));
    default:
      return static_cast<float>(value);
  }
}

double ulp(DType dtype, double value) {
  struct Format {
    int digits, lowest;
  };
  const Format format = dtype == DType::F64   ? Format{53, -1074}
                        : dtype == DType::F16 ? Format{11, -24}
                        : dtype == DType::F32 ? Format{24, -149}
                                              : Format{8, -133};
  if (!std::isfinite(value)) return 0;
  int exponent = format.lowest;
  if (value != 0) std::frexp(value, &exponent);
  return std::ldexp(1.0, std::max(exponent - format.digits, format.lowest));
}

double largest(DType dtype) {
  return dtype == DType::F64   ? std::numeric_limits<double>::max()
         : dtype == DType::F16 ? 65504.0
                               : static_cast<double>(std::numeric_limits<float>::max());
}

bool known(const Value& v) { return !v.unsure && std::isfinite(v.error); }

// A result of type `dtype`, computed exactly or in double, of which correct code may be `error` and
// `ulps` of the type it computes in away.
Value real_value(DType dtype, double exact, double error, double ulps = 0) {
  const DType computes_in = dtype == DType::F64 ? DType::F64 : DType::F32;
  const double value = rounded(dtype, rounded(computes_in, exact));
  if (ulps > 0) error += ulps * ulp(computes_in, value);
  if (error > 0) error += ulp(dtype, value);
  const bool open = error > 0 && !std::isfinite(value);
  return {value, open || std::isnan(error) ? kInfinity : error, 0, false};
}

int64_t wrapped(DType dtype, uint64_t bits) {
  switch (dtype) {
    case DType::Bool:
      return bits != 0;
    case DType::I8:
      return static_cast<int8_t>(bits);
    case DType::U8:
      return static_cast<uint8_t>(bits);
    case DType::I16:
      return static_cast<int16_t>(bits);
    case DType::U16:
      return static_cast<uint16_t>(bits);
    case DType::I32:
      return static_cast<int32_t>(bits);
    case DType::U32:
      return static_cast<uint32_t>(bits);
    default:
      return static_cast<int64_t>(bits);
  }
}

int64_t lowest_of(DType dtype) {
  const uint64_t sign = uint64_t{1} << (width_of(dtype) - 1);
  return has_sign(dtype) ? -static_cast<int64_t>(sign - 1) - 1 : 0;
}
int64_t highest_of(DType dtype) {
  if (dtype == DType::Bool) return 1;
  const uint64_t sign = uint64_t{1} << (width_of(dtype) - 1);
  return static_cast<int64_t>(has_sign(dtype) ? sign - 1 : sign - 1 + sign);
}

int64_t saturated(DType to, double v) {
  if (std::isnan(v)) return 0;
  v = std::trunc(v);
  if (to == DType::U64) {
    return v <= 0 ? 0 : v >= 0x1p64 ? -1 : static_cast<int64_t>(static_cast<uint64_t>(v));
  }
  const int64_t low = lowest_of(to), high = highest_of(to);
  if (v <= static_cast<double>(low)) return low;
  return v >= static_cast<double>(high) ? high : static_cast<int64_t>(v);
}

template <class T>
T get(const void* memory, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(memory) + index * int64_t{sizeof(T)}, sizeof(T));
  return value;
}

Value element(const void* memory, DType dtype, int64_t i) {
  const auto real = [](double x) { return Value{x, 0, 0, false}; };
  const auto whole = [](int64_t x) { return Value{0, 0, x, false}; };
  switch (dtype) {
    case DType::F64:
      return real(get<double>(memory, i));
    case DType::F32:
      return real(get<float>(memory, i));
    case DType::F16:
      return real(f16_to_f32(get<uint16_t>(memory, i)));
    case DType::BF16:
      return real(bf16_to_f32(get<uint16_t>(memory, i)));
    case DType::Bool:
      return whole(get<uint8_t>(memory, i) != 0);
    default:
      break;
  }
  uint64_t bits = 0;
  const size_t size = itemsize(dtype);
  std::memcpy(&bits, static_cast<const char*>(memory) + i * static_cast<int64_t>(size), size);
  return whole(wrapped(dtype, bits));
}

uint64_t bits_of(const Value& v, DType dtype) {
  switch (dtype) {
    case DType::F64:
      return std::bit_cast<uint64_t>(v.real);
    case DType::F32:
      return std::bit_cast<uint32_t>(static_cast<float>(v.real));
    case DType::F16:
      return f32_to_f16(static_cast<float>(v.real));
    case DType::BF16:
      return f32_to_bf16(static_cast<float>(v.real));
    default:
      return static_cast<uint64_t>(v.whole);
  }
}

Value bit_cast(const Value& v, DType from, DType to) {
  const uint64_t bits = bits_of(v, from);
  Value out = element(&bits, to, 0);
  if (v.unsure || v.error > 0 || (is_float(from) && std::isnan(v.real))) {
    out.unsure = true;  // the payload of NaN is nobody's business
    out.error = kInfinity;
  }
  return out;
}

// threefry-2x32, 20 rounds.
uint64_t threefry(uint64_t counter, uint64_t key) {
  constexpr int kTurns[8] = {13, 15, 26, 6, 17, 29, 16, 24};
  const auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  const uint32_t keys[3] = {k0, k1, 0x1bd11bda ^ k0 ^ k1};
  uint32_t a = static_cast<uint32_t>(counter) + k0, b = static_cast<uint32_t>(counter >> 32) + k1;
  for (uint32_t round = 0; round < 20; ++round) {
    a += b;
    b = std::rotl(b, kTurns[round % 8]) ^ a;
    if (round % 4 != 3) continue;
    const uint32_t s = round / 4 + 1;
    a += keys[s % 3];
    b += keys[(s + 1) % 3] + s;
  }
  return uint64_t{b} << 32 | a;
}

Value cast(const Value& v, DType from, DType to) {
  if (is_float(to)) {
    if (is_float(from)) return real_value(to, v.real, v.error);
    // Once from the integer: a double between them would round twice.
    const auto bits = static_cast<uint64_t>(v.whole);
    const double exact = to == DType::F64
                             ? (from == DType::U64 ? double(bits) : double(v.whole))
                             : double(from == DType::U64 ? float(bits) : float(v.whole));
    return real_value(to, exact, v.unsure ? kInfinity : 0);
  }
  if (!is_float(from)) return {0, 0, wrapped(to, static_cast<uint64_t>(v.whole)), v.unsure};
  if (to == DType::Bool) {
    return {0, 0, v.real != 0, v.error > 0 && !(std::abs(v.real) > v.error)};
  }
  const int64_t low = saturated(to, v.real - v.error), high = saturated(to, v.real + v.error);
  return {0, 0, saturated(to, v.real), v.error > 0 && (low != high || !known(v))};
}

// The op on two reals; the bound of the result grows with those of both operands.
Value on_reals(Op op, DType dtype, const Value& a, const Value& b, double division_ulps) {
  const double x = a.real, y = b.real, ea = a.error, eb = b.error;
  const auto compare = [&](bool holds) {
    const bool open = ea + eb > 0 && !(std::abs(x - y) > ea + eb);
    return Value{0, 0, holds, open};
  };
  // The largest change of f within the bound, of functions that are monotonous there.
  const auto within = [&](auto f, bool defined) {
    if (ea == 0) return 0.0;
    if (!defined || !std::isfinite(ea)) return kInfinity;
    return std::max(std::abs(f(x + ea) - f(x)), std::abs(f(x - ea) - f(x)));
  };
  const auto exp2 = [](double v) { return std::exp2(v); };
  const auto log2 = [](double v) { return std::log2(v); };
  const auto root = [](double v) { return std::sqrt(v); };
  const auto recip = [](double v) { return 1 / v; };
  switch (op) {
    case Op::Neg:
      return real_value(dtype, -x, ea);
    case Op::Exp2:
      return real_value(dtype, exp2(x), within(exp2, true), kTranscendentalUlps);
    case Op::Log2:
      return real_value(dtype, log2(x), within(log2, x > ea), kTranscendentalUlps);
    case Op::Sin:
      return real_value(dtype, std::sin(x), ea, kTranscendentalUlps);
    case Op::Sqrt:
      return real_value(dtype, root(x), within(root, x >= ea), division_ulps);
    case Op::Recip:
      return real_value(dtype, recip(x), within(recip, std::abs(x) > ea), division_ulps);
    case Op::Trunc: {
      const double v = std::trunc(x);
      return real_value(dtype, v, std::trunc(x - ea) == v && std::trunc(x + ea) == v ? 0 : ea + 1);
    }
    case Op::Add:
      return real_value(dtype, x + y, ea + eb);
    case Op::Sub:
      return real_value(dtype, x - y, ea + eb);
    case Op::Mul: {
      const double error = ea + eb == 0 ? 0 : std::abs(x) * eb + std::abs(y) * ea + ea * eb;
      return real_value(dtype, x * y, error);
    }
    case Op::Div: {
      double error = 0;
      if (ea + eb > 0) {
        error = std::abs(y) > eb ? (ea + std::abs(x / y) * eb) / (std::abs(y) - eb) : kInfinity;
      }
      return real_value(dtype, x / y, error, division_ulps);
    }
    case Op::Max: {
      const bool nan = std::isnan(x) || std::isnan(y);
      return real_value(dtype, nan ? NAN : std::max(x, y), std::max(ea, eb));
    }
    case Op::Or: {  // of bits; one of the two is 0 where it is used, and bounds stay
      const uint64_t bits = bits_of(a, dtype) | bits_of(b, dtype);
      Value result = element(&bits, dtype, 0);
      result.error = std::max(ea, eb);
      return result;
    }
    case Op::CmpLt:
      return compare(x < y);
    case Op::CmpEq:
      return compare(x == y);
    case Op::CmpNe:
      return compare(x != y);
    default:
      throw InternalError("TS_CHECK=values knows no floats of op " + std::string(info(op).name));
  }
}

Value on_integers(Op op, DType from, DType dtype, const Value& a, const Value& b) {
  const int64_t x = a.whole, y = b.whole;
  const auto ux = static_cast<uint64_t>(x), uy = static_cast<uint64_t>(y);
  const bool no_sign = !has_sign(from), flag = from == DType::Bool;
  const uint64_t width = width_of(from);
  const auto result = [&](uint64_t bits) {
    return Value{0, 0, wrapped(dtype, bits), a.unsure || b.unsure};
  };
  switch (op) {
    case Op::Neg:
      return result(flag ? ux : 0 - ux);
    case Op::Not:
      return result(flag ? uint64_t{x == 0} : ~ux);
    case Op::Trunc:
      return result(ux);
    case Op::Add:
      return result(flag ? ux | uy : ux + uy);
    case Op::Sub:
      return result(flag ? ux ^ uy : ux - uy);
    case Op::Mul:
      return result(ux * uy);
    case Op::Max:
      return result(no_sign ? std::max(ux, uy) : static_cast<uint64_t>(std::max(x, y)));
    case Op::And:
      return result(ux & uy);
    case Op::Or:
      return result(ux | uy);
    case Op::Xor:
      return result(ux ^ uy);
    case Op::Shl:
      return result(uy < width ? ux << uy : 0);
    case Op::Shr:
      if (uy >= width) return result(0);
      return result(no_sign ? ux >> uy : static_cast<uint64_t>(x >> y));
    case Op::CmpLt:
      return result(no_sign ? ux < uy : x < y);
    case Op::CmpEq:
      return result(x == y);
    case Op::CmpNe:
      return result(x != y);
    case Op::Threefry:
      return result(threefry(ux, uy));
    case Op::IDiv:
    case Op::Mod: {
      const bool quotient = op == Op::IDiv;
      if (y == 0) return result(0);
      if (no_sign) return result(quotient ? ux / uy : ux % uy);
      if (y == -1) return result(quotient ? 0 - ux : 0);
      const bool floor = from == DType::Index && x % y != 0 && (x ^ y) < 0;
      return result(
          static_cast<uint64_t>(quotient ? x / y - (floor ? 1 : 0) : x % y + (floor ? y : 0)));
    }
    default:
      throw InternalError("TS_CHECK=values knows no integers of op " + std::string(info(op).name));
  }
}

// A sum, product or extremum that takes its operands one by one.
class Total {
 public:
  Total(ReduceOp op, DType dtype, bool contracts) : op_(op), dtype_(dtype), contracts_(contracts) {
    if (op == ReduceOp::Prod) real_ = 1, value_.whole = 1;
    if (op == ReduceOp::Max) extremum_ = -kInfinity;
    if (op == ReduceOp::Min) extremum_ = kInfinity;
    if (op == ReduceOp::Max && !is_float(dtype)) value_.whole = lowest_of(dtype);
    if (op == ReduceOp::Min && !is_float(dtype)) value_.whole = highest_of(dtype);
  }

  void add(const Value& v) {
    ++count_;
    if (!is_float(dtype_)) return add_whole(v);
    nan_ = nan_ || std::isnan(v.real);
    switch (op_) {
      case ReduceOp::Sum:
        real_ += v.real;
        sizes_ += std::abs(v.real);
        error_ += v.error;
        break;
      case ReduceOp::Prod:
        real_ *= v.real;
        if (v.error > 0) error_ += v.error / std::abs(v.real);  // relative
        break;
      case ReduceOp::Max:
        extremum_ = std::max(extremum_, v.real);
        error_ = std::max(error_, v.error);
        break;
      case ReduceOp::Min:
        extremum_ = std::min(extremum_, v.real);
        error_ = std::max(error_, v.error);
        break;
    }
  }

  Value value() const {
    if (!is_float(dtype_)) return value_;
    if (nan_) return {NAN, error_ > 0 ? kInfinity : 0, 0, false};
    // Each addition rounds once, whatever their order, and each product, if it does.
    const double rounding = (dtype_ == DType::F64 ? 0x1p-53 : 0x1p-24) * 1.01;
    const double roundings = double(count_ - (count_ > 0)) + (contracts_ ? 1 : 0);
    const auto total = static_cast<double>(real_);
    double error = error_;
    switch (op_) {
      case ReduceOp::Sum:
        error += roundings * rounding * static_cast<double>(sizes_);
        if (sizes_ > largest(dtype_ == DType::F64 ? dtype_ : DType::F32)) error = kInfinity;
        return real_value(dtype_, total, error);
      case ReduceOp::Prod: {
        // Partial products may have left the range of the type on the way.
        const bool in_range = std::abs(total) > 1e-30 && std::abs(total) < 1e30;
        error =
            in_range || count_ < 2 ? (error + roundings * rounding) * std::abs(total) : kInfinity;
        return real_value(dtype_, total, error);
      }
      default:
        return real_value(dtype_, extremum_, error);
    }
  }

 private:
  void add_whole(const Value& v) {
    const auto a = static_cast<uint64_t>(value_.whole), b = static_cast<uint64_t>(v.whole);
    const bool less = has_sign(dtype_) ? v.whole < value_.whole : b < a;
    value_.unsure = value_.unsure || v.unsure;
    switch (op_) {
      case ReduceOp::Sum:
        value_.whole = wrapped(dtype_, a + b);
        break;
      case ReduceOp::Prod:
        value_.whole = wrapped(dtype_, a * b);
        break;
      case ReduceOp::Max:
        if (!less) value_.whole = v.whole;
        break;
      case ReduceOp::Min:
        if (less) value_.whole = v.whole;
        break;
    }
  }

  ReduceOp op_;
  DType dtype_;
  bool contracts_, nan_ = false;
  int64_t count_ = 0;
  long double real_ = 0, sizes_ = 0;
  double extremum_ = 0, error_ = 0;
  Value value_;  // of integers
};

class Interpreter {
 public:
  Interpreter(const KernelSource& kernel, std::span<const void* const> before,
              std::span<const void* const> after, std::span<const int64_t> coordinates,
              const InterpretOptions& options)
      : kernel_(kernel),
        before_(before),
        after_(after),
        coordinates_(coordinates),
        options_(options),
        numbers_(256) {}

  std::optional<ValueDifference> run() {
    if (!number_nodes()) return std::nullopt;
    std::vector<std::vector<char>> stored(kernel_.params.size());
    bool all = true;
    for (const UOp& store : kernel_.sink->src()) {
      auto& done = stored[size_t(store.src(0).arg(0))];
      if (auto found = compare(store, done, all)) return found;
    }
    for (size_t slot = 0; all && slot < stored.size(); ++slot) {
      if (auto found = compare_rest(int64_t(slot), stored[slot])) return found;
    }
    return std::nullopt;
  }

 private:
  struct Numbered {
    const Node* node = nullptr;
    std::vector<int> sources;
    uint64_t ranges = 0;  // that it depends on
    bool has_load = false;
    std::vector<int> own;   // a fold's ranges
    std::vector<int> body;  // what its operand needs
    bool computed = false;
    std::vector<int64_t> places;  // of its ranges, lowest number first, when it was computed
    Value value;
  };
  struct Range {
    int64_t size, at = 0;
  };

  bool number_nodes() {
    for (const UOp& x : toposort(std::span(&kernel_.sink, 1))) {
      const int number = int(nodes_.size());
      numbers_[x] = number;
      Numbered n;
      n.node = x.get();
      n.has_load = x.op() == Op::Load;
      for (const UOp& s : x->src()) {
        n.sources.push_back(numbers_.at(s));
        if (x.op() == Op::Fold && s.op() == Op::Range) continue;
        n.ranges |= nodes_[size_t(n.sources.back())].ranges;
        n.has_load = n.has_load || nodes_[size_t(n.sources.back())].has_load;
      }
      if (x.op() == Op::Range) {
        if (ranges_.size() == 64) return false;
        n.ranges = uint64_t{1} << ranges_.size();
        ranges_.push_back({x.arg(1)});
      }
      if (x.op() == Op::Fold) {
        for (size_t i = 1; i < x->sources; ++i) {
          const uint64_t bit = nodes_[size_t(n.sources[i])].ranges;
          n.own.push_back(std::countr_zero(bit));
          n.ranges &= ~bit;
        }
        n.body = needs(n.sources[0]);
      }
      nodes_.push_back(std::move(n));
    }
    return true;
  }

  // Numbers of the nodes below `root`, sources first, that do not lie inside of a fold.
  std::vector<int> needs(int root) const {
    std::vector<int> list, stack{root};
    std::vector<char> seen(nodes_.size() + 1);
    while (!stack.empty()) {
      const int at = stack.back();
      stack.pop_back();
      if (seen[size_t(at)]) continue;
      seen[size_t(at)] = 1;
      list.push_back(at);
      const Numbered& n = nodes_[size_t(at)];
      if (n.node->op == Op::Fold) continue;
      for (int s : n.sources) stack.push_back(s);
    }
    std::sort(list.begin(), list.end());
    return list;
  }

  // Whether the value is that of where the ranges are now.
  bool stands(const Numbered& n) const {
    if (!n.computed) return false;
    size_t i = 0;
    for (uint64_t rest = n.ranges; rest != 0; rest &= rest - 1) {
      if (n.places[i++] != ranges_[size_t(std::countr_zero(rest))].at) return false;
    }
    return true;
  }

  const Value& evaluate(const std::vector<int>& list) {
    for (size_t i = 0; i < list.size(); ++i) {
      const size_t number = size_t(list[i]);
      if (stands(nodes_[number])) continue;
      const Value value = compute(nodes_[number]);
      Numbered& n = nodes_[number];
      n.value = value;
      n.computed = true;
      n.places.clear();
      for (uint64_t rest = n.ranges; rest != 0; rest &= rest - 1)
        n.places.push_back(ranges_[size_t(std::countr_zero(rest))].at);
      // A fold that uses a range of this list, too, has left other values in the nodes before it.
      if (n.node->op == Op::Fold) i = size_t(-1);
    }
    return nodes_[size_t(list.back())].value;
  }

  Value compute(const Numbered& n) {
    const Node& x = *n.node;
    const auto source = [&](size_t i) -> const Value& {
      return nodes_[size_t(n.sources[i])].value;
    };
    const auto type = [&](size_t i) { return x.src()[i].dtype(); };
    switch (x.op) {
      case Op::Param:
        return {};
      case Op::Const:
        if (!is_float(x.dtype)) return {0, 0, x.arg()[0], false};
        return real_value(x.dtype, std::bit_cast<double>(x.arg()[0]), 0);
      case Op::Range:
        return {0, 0, ranges_[size_t(std::countr_zero(n.ranges))].at, false};
      case Op::DeviceCoordinate:
        return {0, 0, coordinates_[size_t(x.arg()[0])], false};
      case Op::Load: {
        const int64_t slot = x.src()[0].arg(0), at = source(1).whole;
        if (x.sources > 2 && !source(2).unsure && source(2).whole == 0) return {};
        if (source(1).unsure || (x.sources > 2 && source(2).unsure)) return {0, kInfinity, 0, true};
        if (at < 0 || at >= kernel_.params[size_t(slot)].numel) return {};
        return element(before_[size_t(slot)], x.dtype, at);
      }
      case Op::Fold:
        return fold(n);
      case Op::Where: {
        const Value &condition = source(0), &a = source(1), &b = source(2);
        Value chosen = condition.whole != 0 ? a : b;
        if (!condition.unsure) return chosen;
        if (is_float(x.dtype)) {
          chosen.error = std::abs(a.real - b.real) + std::max(a.error, b.error);
          if (std::isnan(chosen.error)) chosen.error = kInfinity;
        } else {
          chosen.unsure = a.unsure || b.unsure || a.whole != b.whole;
        }
        return chosen;
      }
      case Op::Cast:
        return cast(source(0), type(0), x.dtype);
      case Op::Bitcast:
        return bit_cast(source(0), type(0), x.dtype);
      default: {
        static const Value none;
        const Value& second = x.sources > 1 ? source(1) : none;
        return is_float(type(0))
                   ? on_reals(x.op, x.dtype, source(0), second, options_.division_ulps)
                   : on_integers(x.op, type(0), x.dtype, source(0), second);
      }
    }
  }

  Value fold(const Numbered& n) {
    const DimSpan arg = n.node->arg();
    Total total(ReduceOp(arg[0]), n.node->dtype, arg.size() > 1 && arg[1] != 0);
    const std::vector<int> own = n.own, body = n.body;
    std::vector<int64_t> outside;  // a fold around this one may be using the same ranges
    for (int r : own) outside.push_back(ranges_[size_t(r)].at);
    over(own, 1, [&](int64_t) {
      total.add(evaluate(body));
      return true;
    });
    for (size_t i = 0; i < own.size(); ++i) ranges_[size_t(own[i])].at = outside[i];
    return total.value();
  }

  // body(i) with the ranges at each `step`-th of their places, the last one included, until it
  // returns false.
  template <class Body>
  void over(const std::vector<int>& ranges, int64_t step, Body body) {
    int64_t count = 1;
    for (int r : ranges) count *= ranges_[size_t(r)].size;
    for (int64_t i = 0; i < count; i = i + step < count || i == count - 1 ? i + step : count - 1) {
      int64_t rest = i;
      for (size_t d = ranges.size(); d-- > 0;) {
        Range& range = ranges_[size_t(ranges[d])];
        range.at = rest % range.size;
        rest /= range.size;
      }
      if (!body(i)) return;
    }
  }

  // How many values evaluating the list computes, about.
  double cost(const std::vector<int>& list) const {
    double sum = 0;
    for (int number : list) {
      const Numbered& n = nodes_[size_t(number)];
      double times = 1;
      for (int r : n.own) times *= double(ranges_[size_t(r)].size);
      sum += 1 + (n.own.empty() ? 0 : times * cost(n.body));
    }
    return sum;
  }

  std::optional<ValueDifference> compare(const UOp& store, std::vector<char>& done, bool& all) {
    const int64_t slot = store.src(0).arg(0);
    const ParamInfo& param = kernel_.params[size_t(slot)];
    done.resize(size_t(param.numel));
    const int at = numbers_.at(store.src(1)), value = numbers_.at(store.src(2));
    const std::vector<int> place_list = needs(at), value_list = needs(value);
    const uint64_t used = nodes_[size_t(at)].ranges | nodes_[size_t(value)].ranges;
    std::vector<int> loops;
    double places = 1;
    for (const UOp& loop : kernel_.loops) {
      const int* number = numbers_.find(loop);
      if (!number || (nodes_[size_t(*number)].ranges & used) == 0) continue;
      loops.push_back(std::countr_zero(nodes_[size_t(*number)].ranges));
      places *= double(ranges_[size_t(loops.back())].size);
    }
    const double work = places * (cost(place_list) + cost(value_list));
    const int64_t step = std::max<int64_t>(1, int64_t(std::ceil(work / double(options_.most))));
    all = all && step == 1;
    // Which of several values that go to one place stays there is nobody's promise.
    const bool scatters = nodes_[size_t(at)].has_load;
    if (scatters) {
      all = false;
      return std::nullopt;
    }
    std::optional<ValueDifference> found;
    over(loops, step, [&](int64_t) {
      const int64_t place = evaluate(place_list).whole;
      if (place < 0 || place >= param.numel) return true;
      done[size_t(place)] = 1;
      const Value &expected = evaluate(value_list),
                  actual = element(after_[size_t(slot)], param.dtype, place);
      if (agree(param.dtype, expected, actual)) return true;
      const auto text = [&](const Value& v) {
        return is_float(param.dtype)   ? fmt::format("{:.17g}", v.real)
               : has_sign(param.dtype) ? fmt::format("{}", v.whole)
                                       : fmt::format("{}", static_cast<uint64_t>(v.whole));
      };
      found = {slot, place, text(actual), text(expected), expected.error, store.src(2)};
      return false;
    });
    return found;
  }

  static bool agree(DType dtype, const Value& expected, const Value& actual) {
    if (!known(expected)) return true;
    if (!is_float(dtype)) return expected.whole == actual.whole;
    const double x = expected.real, y = actual.real;
    if (x == y || (std::isnan(x) && std::isnan(y))) return true;
    if (!std::isfinite(y))
      return expected.error > 0 && std::abs(x) + expected.error > largest(dtype);
    return std::abs(x - y) <= expected.error;
  }

  // Elements that the kernel does not store stay what they were.
  std::optional<ValueDifference> compare_rest(int64_t slot, const std::vector<char>& done) const {
    const ParamInfo& param = kernel_.params[size_t(slot)];
    if (!param.written) return std::nullopt;
    for (size_t other = 0; other < kernel_.params.size(); ++other) {  // maybe the same memory
      const ParamInfo& p = kernel_.params[other];
      if (int64_t(other) != slot && p.written && (p.alias == slot || param.alias == int64_t(other)))
        return std::nullopt;
    }
    const size_t size = itemsize(param.dtype);
    for (size_t i = 0; i < size_t(param.numel); ++i) {
      if (i < done.size() && done[i]) continue;
      const auto* old = static_cast<const char*>(before_[size_t(slot)]) + i * size;
      const auto* now = static_cast<const char*>(after_[size_t(slot)]) + i * size;
      if (std::memcmp(old, now, size) != 0) {
        return ValueDifference{slot, int64_t(i), "written to", "what it was", 0, {}};
      }
    }
    return std::nullopt;
  }

  const KernelSource& kernel_;
  std::span<const void* const> before_, after_;
  std::span<const int64_t> coordinates_;
  const InterpretOptions& options_;
  NodeMap<int> numbers_;
  std::vector<Numbered> nodes_;
  std::vector<Range> ranges_;
};

}  // namespace

std::optional<ValueDifference> first_difference(const KernelSource& kernel,
                                                std::span<const void* const> before,
                                                std::span<const void* const> after,
                                                std::span<const int64_t> coordinates,
                                                const InterpretOptions& options) {
  return Interpreter(kernel, before, after, coordinates, options).run();
}

}  // namespace tinyshard
