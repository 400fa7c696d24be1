// Computes a tensor-level graph on the host in double precision, one node at a time and as
// literally as the op's definition reads: what tests of passes compare with.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "core/dtype/half.h"
#include "core/uop/args.h"
#include "core/uop/composite.h"
#include "core/uop/node_map.h"
#include "core/uop/product_region.h"
#include "core/uop/scan.h"
#include "core/uop/uop.h"

namespace tinyshard::test {

using Values = std::vector<double>;

class Evaluator {
 public:
  enum class Casts { Round, KeepDoubles };
  // Quotients of differences want values that no cast has rounded.
  explicit Evaluator(Casts casts = Casts::Round) : casts_(casts) {}

  void set(const UOp& buffer, Values values) { values_[buffer] = std::move(values); }

  Values operator()(const UOp& root) {
    NodeMap<Values> memo(256);
    for (const UOp& x : toposort({&root, 1})) {
      Values out = evaluate(x, [&](size_t i) -> const Values& { return memo.at(x.src(i)); });
      memo[x] = std::move(out);
    }
    return memo.at(root);
  }

 private:
  using Source = std::function<const Values&(size_t)>;
  using Place = std::vector<int64_t>;

  static int64_t offset(const Place& place, DimSpan shape) {
    int64_t at = 0;
    for (size_t i = 0; i < shape.size(); ++i) at = at * shape[i] + place[i];
    return at;
  }

  // Calls visit(place, offset) for each element of the shape, row-major.
  static void each(DimSpan shape, const std::function<void(const Place&, int64_t)>& visit) {
    Place place(shape.size(), 0);
    int64_t n = product(shape);
    for (int64_t at = 0; at < n; ++at) {
      visit(place, at);
      for (size_t i = shape.size(); i-- > 0;) {
        ++place[i];
        if (place[i] < shape[i]) break;
        place[i] = 0;
      }
    }
  }

  Values evaluate(const UOp& x, const Source& src) {
    DimSpan shape = x.shape(), arg = x->arg();
    Values out(product(shape), 0.0);
    auto map1 = [&](auto f) {
      for (size_t i = 0; i < out.size(); ++i) out[i] = f(src(0)[i]);
    };
    auto map2 = [&](auto f) {
      for (size_t i = 0; i < out.size(); ++i) out[i] = f(src(0)[i], src(1)[i]);
    };
    // out[place] = source[where(place)]
    auto move = [&](auto where) {
      each(shape, [&](const Place& place, int64_t at) {
        Place from = where(place);
        DimSpan s = x.src(0).shape();
        for (size_t i = 0; i < s.size(); ++i) {
          if (from[i] < 0 || from[i] >= s[i]) return;
        }
        out[at] = src(0)[offset(from, s)];
      });
    };
    switch (x.op()) {
      case Op::Const:
        std::ranges::fill(out, const_as_double(x));
        break;
      case Op::Buffer: {
        if (const Values* found = values_.find(x)) return *found;
        std::ranges::fill(out, NAN);  // memory that nothing was written to
        break;
      }
      case Op::Iota:
        for (size_t i = 0; i < out.size(); ++i) out[i] = double(i);
        break;
      case Op::Neg:
        map1([](double a) { return -a; });
        break;
      case Op::Exp2:
        map1([](double a) { return std::exp2(a); });
        break;
      case Op::Log2:
        map1([](double a) { return std::log2(a); });
        break;
      case Op::Sin:
        map1([](double a) { return std::sin(a); });
        break;
      case Op::Sqrt:
        map1([](double a) { return std::sqrt(a); });
        break;
      case Op::Recip:
        map1([](double a) { return 1 / a; });
        break;
      case Op::Trunc:
        map1([](double a) { return std::trunc(a); });
        break;
      case Op::Not:
        map1([](double a) { return a == 0; });
        break;
      case Op::Cast:
        map1([&](double a) {
          if (!is_float(x.dtype())) return std::trunc(a);
          return casts_ == Casts::Round ? rounded_to(x.dtype(), a) : a;
        });
        break;
      case Op::Composite: {  // as it is spelled, on its operands alone
        Evaluator inside(casts_);
        std::vector<UOp> operands;
        for (size_t i = 0; i < x->sources; ++i) {
          Dims arg{-1 - int64_t(i)};
          arg.insert(arg.end(), shape.begin(), shape.end());
          operands.push_back(UOp::make(Op::Buffer, x.src(i).dtype(), {}, arg));
          inside.set(operands.back(), src(i));
        }
        return inside(composite_row(*x).spell(operands));
      }
      case Op::Bitcast:  // of floats to integers of their size
        map1([&](double a) {
          return x.dtype() == DType::I32 ? double(std::bit_cast<int32_t>(float(a)))
                                         : double(std::bit_cast<int64_t>(a));
        });
        break;
      case Op::Contiguous:
      case Op::Detach:
      case Op::Identity:
      case Op::ContiguousBackward:
      case Op::Redistribute:
        return src(0);
      case Op::Assign:
        return src(1);
      case Op::Add:
        map2([](double a, double b) { return a + b; });
        break;
      case Op::IDiv:
        map2([](double a, double b) { return std::trunc(a / b); });
        break;
      case Op::Mod:
        map2([](double a, double b) { return std::fmod(a, b); });
        break;
      case Op::Sub:
        map2([](double a, double b) { return a - b; });
        break;
      case Op::Mul:
        map2([](double a, double b) { return a * b; });
        break;
      case Op::Div:
        map2([](double a, double b) { return a / b; });
        break;
      case Op::Max:
        map2([](double a, double b) { return std::max(a, b); });
        break;
      case Op::And:
        map2([](double a, double b) { return a != 0 && b != 0; });
        break;
      case Op::Or:
        map2([&](double a, double b) {
          return is_float(x.dtype()) ? (a == 0 ? b : a) : double(a != 0 || b != 0);
        });
        break;
      case Op::CmpLt:
        map2([](double a, double b) { return a < b; });
        break;
      case Op::CmpEq:
        map2([](double a, double b) { return a == b; });
        break;
      case Op::CmpNe:
        map2([](double a, double b) { return a != b; });
        break;
      case Op::Where:
        for (size_t i = 0; i < out.size(); ++i) out[i] = src(0)[i] != 0 ? src(1)[i] : src(2)[i];
        break;
      case Op::Reshape:
        return src(0);
      case Op::Expand:
        move([&](Place p) {
          for (size_t i = 0; i < p.size(); ++i) p[i] = x.src(0).shape()[i] == 1 ? 0 : p[i];
          return p;
        });
        break;
      case Op::Permute:
        move([&](const Place& p) {
          Place from(p.size());
          for (size_t i = 0; i < p.size(); ++i) from[arg[i]] = p[i];
          return from;
        });
        break;
      case Op::Pad:
        move([&](Place p) {
          for (size_t i = 0; i < p.size(); ++i) p[i] -= arg[2 * i];
          return p;
        });
        break;
      case Op::Shrink:
        move([&](Place p) {
          for (size_t i = 0; i < p.size(); ++i) p[i] += arg[2 * i];
          return p;
        });
        break;
      case Op::Flip:
        move([&](Place p) {
          for (int64_t axis : arg) p[axis] = shape[axis] - 1 - p[axis];
          return p;
        });
        break;
      case Op::Unfold:
        move([&](Place p) {
          const int64_t within = p.back();
          p.pop_back();
          p.back() = p.back() * arg[1] + within * arg[2];
          return p;
        });
        break;
      case Op::UnfoldBackward: {
        const DimSpan windows = x.src(0).shape();
        each(windows, [&](const Place& place, int64_t at) {
          Place to = place;
          to.pop_back();
          to.back() = to.back() * arg[1] + place.back() * arg[2];
          out[offset(to, shape)] += src(0)[at];
        });
        break;
      }
      case Op::Reduce: {
        auto op = ReduceOp(arg[0]);
        static_assert(kReduceOps == 4, "a new reduction needs a line of its own below");
        if (op > ReduceOp::Min) throw std::logic_error("evaluate.h knows no such reduction");
        double first = op == ReduceOp::Sum    ? 0
                       : op == ReduceOp::Prod ? 1
                       : op == ReduceOp::Max  ? -INFINITY
                                              : INFINITY;
        std::ranges::fill(out, first);
        each(x.src(0).shape(), [&](Place p, int64_t at) {
          for (int64_t axis : arg.subspan(1)) p[axis] = 0;
          double &sum = out[offset(p, shape)], v = src(0)[at];
          sum = op == ReduceOp::Sum    ? sum + v
                : op == ReduceOp::Prod ? sum * v
                : op == ReduceOp::Max  ? std::max(sum, v)
                                       : std::min(sum, v);
        });
        break;
      }
      case Op::Gather:
        each(shape, [&](Place p, int64_t at) {
          const int64_t from = p[arg[0]] = int64_t(src(1)[at]);
          const bool inside = from >= 0 && from < x.src(0).shape()[arg[0]];
          if (inside) out[at] = src(0)[offset(p, x.src(0).shape())];
        });
        break;
      case Op::ScatterAdd:
        if (x->sources > 2) out = src(2);
        if (scatter_arg(*x).op == ReduceOp::Max && !scatter_arg(*x).writes)
          std::ranges::fill(out, std::numeric_limits<int32_t>::lowest());
        else if (arg.size() == 3)
          throw std::logic_error("cannot evaluate " + describe(*x));
        each(x.src(0).shape(), [&](Place p, int64_t at) {
          p[arg[0]] = int64_t(src(0)[at]);
          if (p[arg[0]] < 0 || p[arg[0]] >= arg[1]) return;
          double& to = out[offset(p, shape)];
          const double from = src(1)[at];
          to = arg.size() == 2 ? to + from : arg.size() == 4 ? from : std::max(to, from);
        });
        break;
      case Op::Sort: {
        int64_t n = x.src(0).shape().back(), k = arg[0];
        for (int64_t row = 0; row < int64_t(src(0).size()) / std::max<int64_t>(n, 1); ++row) {
          const double* keys = src(0).data() + row * n;
          std::vector<int64_t> order(static_cast<size_t>(n));
          std::iota(order.begin(), order.end(), 0);
          std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return keys[a] < keys[b]; });
          std::copy(order.begin(), order.begin() + k, out.begin() + row * k);
        }
        break;
      }
      case Op::Scan: {
        const ScanArg scan = scan_arg(*x);
        const int64_t n = shape[scan.axis];
        each(shape, [&](Place p, int64_t at) {
          const bool best = scan.kind == ScanKind::Max || scan.kind == ScanKind::Min;
          const int64_t here = p[scan.axis], low = scan.reverse ? here : 0;
          const int64_t high = scan.reverse ? n : here + 1;
          double total = 0;
          int64_t place = 0;
          for (int64_t i = low; i < high; ++i) {
            p[scan.axis] = i;
            const double v = src(0)[offset(p, shape)];
            if (i == low) {
              total = scan.kind == ScanKind::LogSumExp ? std::exp(v) : v;
            } else if (best) {
              const bool better = scan.kind == ScanKind::Max ? v > total : v < total;
              if (better || (std::isnan(v) && !std::isnan(total))) total = v, place = i;
            } else {
              total = scan.kind == ScanKind::Sum    ? total + v
                      : scan.kind == ScanKind::Prod ? total * v
                                                    : total + std::exp(v);
            }
          }
          out[at] = scan.places                        ? double(place)
                    : scan.kind == ScanKind::LogSumExp ? std::log(total)
                                                       : total;
        });
        break;
      }
      case Op::Dot:
        if (region_of(x)) return spelled(x, src);
        each(shape, [&](const Place& p, int64_t at) {
          size_t m = p.size() - 2;
          Place a = p, b = p;
          for (int64_t k = 0; k < x.src(0).shape()[m + 1]; ++k) {
            a[m + 1] = b[m] = k;
            out[at] += src(0)[offset(a, x.src(0).shape())] * src(1)[offset(b, x.src(1).shape())];
          }
        });
        break;
      case Op::Conv:
        convolve(x, x.src(0).shape(), x.src(1).shape(), shape,
                 [&](int64_t i, int64_t w, int64_t o) { out[o] += src(0)[i] * src(1)[w]; });
        break;
      case Op::ConvBackwardData:
        convolve(x, shape, x.src(1).shape(), x.src(0).shape(),
                 [&](int64_t i, int64_t w, int64_t o) { out[i] += src(0)[o] * src(1)[w]; });
        break;
      case Op::ConvBackwardWeight:
        convolve(x, x.src(0).shape(), shape, x.src(1).shape(),
                 [&](int64_t i, int64_t w, int64_t o) { out[w] += src(0)[i] * src(1)[o]; });
        break;
      default:
        throw std::logic_error("cannot evaluate " + describe(*x));
    }
    return out;
  }

  // A product with a region is what that is spelled as, of these operands.
  Values spelled(const UOp& x, const Source& src) const {
    Evaluator apart(casts_);
    std::vector<UOp> leaves;
    for (size_t i = 0; i < x->sources; ++i) {
      Dims arg{-1 - int64_t(i)};
      arg.insert(arg.end(), x.src(i).shape().begin(), x.src(i).shape().end());
      leaves.push_back(UOp::make(Op::Buffer, x.src(i).dtype(), {}, arg));
      apart.set(leaves.back(), src(i));
    }
    const UOp product = x.with_src(leaves);
    return apart(from_sums(product, sums_of(product)));
  }

  // Calls visit(input, weight, output) for each product that a convolution is the sum of.
  static void convolve(const UOp& x, DimSpan in, DimSpan weight, DimSpan result,
                       const std::function<void(int64_t, int64_t, int64_t)>& visit) {
    ConvArg c = conv_arg(*x);
    int64_t outs = weight[0] / c.groups;
    each(result, [&](const Place& o, int64_t at) {
      each(Place{weight[1], weight[2], weight[3]}, [&](const Place& k, int64_t) {
        Place i{o[0], o[1] / outs * weight[1] + k[0],
                o[2] * c.stride[0] + k[1] * c.dilation[0] - c.pad_low[0],
                o[3] * c.stride[1] + k[2] * c.dilation[1] - c.pad_low[1]};
        if (i[2] < 0 || i[2] >= in[2] || i[3] < 0 || i[3] >= in[3]) return;
        visit(offset(i, in), offset(Place{o[1], k[0], k[1], k[2]}, weight), at);
      });
    });
  }

  Casts casts_;
  NodeMap<Values> values_;
};

}  // namespace tinyshard::test
