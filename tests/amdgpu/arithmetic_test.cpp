// Elementwise kernels on both targets, compared with what the host computes.
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "tests/amdgpu/half.h"
#include "tests/amdgpu/kernels.h"

namespace amdgpu_emulator::arithmetic_test {

constexpr int kCount = 256;

struct Half16 {
  std::uint16_t bits;
};
struct Bfloat {
  std::uint16_t bits;
};

template <class T>
std::string type_name() {
  if constexpr (std::is_same_v<T, float>) {
    return "float";
  } else if constexpr (std::is_same_v<T, double>) {
    return "double";
  } else if constexpr (std::is_same_v<T, Half16>) {
    return "half";
  } else if constexpr (std::is_same_v<T, Bfloat>) {
    return "bfloat";
  } else {
    return "i" + std::to_string(8 * sizeof(T));
  }
}

double value(Half16 h) { return from_half(h.bits); }
double value(Bfloat h) { return from_bf16(h.bits); }

// Bits of any pattern, small numbers, and the corners of the type.
template <class T>
std::vector<T> samples(unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<T> out(kCount);
  for (int i = 0; i < kCount; ++i) {
    const std::uint64_t bits = random();
    if constexpr (std::is_floating_point_v<T>) {
      static const T corners[] = {T(0),
                                  -T(0),
                                  T(1),
                                  -T(1),
                                  std::numeric_limits<T>::infinity(),
                                  -std::numeric_limits<T>::infinity(),
                                  std::numeric_limits<T>::quiet_NaN(),
                                  std::numeric_limits<T>::denorm_min(),
                                  std::numeric_limits<T>::max(),
                                  std::numeric_limits<T>::min(),
                                  T(0.5),
                                  T(-2.5)};
      if (i % 4 == 0) {
        out[i] = corners[bits % 12];
      } else if (i % 4 == 1) {
        std::memcpy(&out[i], &bits, sizeof(T));
      } else {
        out[i] = static_cast<T>(static_cast<double>(static_cast<std::int64_t>(bits)) * 0x1p-57);
      }
    } else {
      std::memcpy(&out[i], &bits, sizeof(T));
      if constexpr (std::is_integral_v<T>) {
        out[i] = i % 4 == 0   ? static_cast<T>(bits % 7)
                 : i % 4 == 1 ? static_cast<T>(-static_cast<std::int64_t>(bits % 5))
                              : out[i];
      }
    }
  }
  return out;
}

template <class T>
bool is_nan(const T& v) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(v);
  } else if constexpr (std::is_same_v<T, Half16> || std::is_same_v<T, Bfloat>) {
    return std::isnan(value(v));
  } else {
    return false;
  }
}

template <class T>
std::int64_t place(const T& v) {  // neighbours differ by 1
  std::conditional_t<
      sizeof(T) == 8, std::int64_t,
      std::conditional_t<sizeof(T) == 4, std::int32_t,
                         std::conditional_t<sizeof(T) == 2, std::int16_t, std::int8_t>>>
      bits;
  std::memcpy(&bits, &v, sizeof bits);
  if constexpr (std::is_integral_v<T>) {
    return bits;
  } else {
    return bits < 0 ? static_cast<std::int64_t>(std::numeric_limits<decltype(bits)>::min()) - bits
                    : bits;
  }
}

// A kernel %r = body(%a, %b, %c) and the host's opinion.
struct Case {
  std::string name;
  std::string ir;
  std::function<void(Device&)> check;
};

template <class Out, class In, class F>
Case make(const std::string& name, const std::string& body, F host, std::int64_t units = 0) {
  const std::string in = type_name<In>();
  const std::string out = type_name<Out>();
  std::string ir;
  for (const char* source : {"a", "b", "c"}) {
    const std::string s(source);
    const std::string p = s == "a" ? "%p0" : s == "b" ? "%p1" : "%p2";
    ir += "  %q" + s + " = getelementptr " + in + ", ptr addrspace(1) " + p + ", i64 %x\n";
    ir += "  %" + s + " = load " + in + ", ptr addrspace(1) %q" + s + "\n";
  }
  ir += "  " + body + "\n  %qo = getelementptr " + out +
        ", ptr addrspace(1) %p3, i64 %x\n  store " + out + " %r, ptr addrspace(1) %qo\n  ret void";
  const auto check = [=](Device& device) {
    const auto a = samples<In>(1);
    const auto b = samples<In>(2);
    const auto c = samples<In>(3);
    const std::uint64_t to = device.upload(std::vector<Out>(kCount));
    device.run(name, 4, kCount / 4, {device.upload(a), device.upload(b), device.upload(c), to});
    const auto got = device.download<Out>(to, kCount);
    int wrong = 0;
    for (std::size_t i = 0; i < kCount && wrong < 3; ++i) {
      const Out wanted = host(a[i], b[i], c[i]);
      if (is_nan(wanted) && is_nan(got[i])) {
        continue;
      }
      if (std::abs(place(wanted) - place(got[i])) > units) {
        ++wrong;
        ADD_FAILURE() << name << " on " << device.target() << ", element " << i << ": bits "
                      << std::hex << place(got[i]) << ", wanted " << place(wanted) << " of "
                      << place(a[i]) << ", " << place(b[i]) << ", " << place(c[i]);
      }
    }
  };
  return {name, kernel_ir(name, 4, kCount / 4, ir), check};
}

template <class T>
T to_integer(double v) {
  if (std::isnan(v)) {
    return 0;
  }
  const double low = static_cast<double>(std::numeric_limits<T>::min());
  const double high = static_cast<double>(std::numeric_limits<T>::max());
  return v <= low    ? std::numeric_limits<T>::min()
         : v >= high ? std::numeric_limits<T>::max()
                     : static_cast<T>(v);
}

template <class T>
void add_float_cases(std::vector<Case>& out, const std::string& t) {
  const std::string n = type_name<T>();
  out.push_back(
      make<T, T>("add_" + t, "%r = fadd " + n + " %a, %b", [](T a, T b, T) { return a + b; }));
  out.push_back(
      make<T, T>("sub_" + t, "%r = fsub " + n + " %a, %b", [](T a, T b, T) { return a - b; }));
  out.push_back(
      make<T, T>("mul_" + t, "%r = fmul " + n + " %a, %b", [](T a, T b, T) { return a * b; }));
  out.push_back(
      make<T, T>("div_" + t, "%r = fdiv " + n + " %a, %b", [](T a, T b, T) { return a / b; }));
  const std::string suffix = sizeof(T) == 4 ? "f32" : "f64";
  const auto call = [&](const std::string& f, const std::string& args) {
    return "%r = call " + n + " @llvm." + f + "." + suffix + "(" + args + ")";
  };
  const std::string one = n + " %a";
  const std::string two = one + ", " + n + " %b";
  out.push_back(make<T, T>("fma_" + t, call("fma", two + ", " + n + " %c"),
                           [](T a, T b, T c) { return std::fma(a, b, c); }));
  out.push_back(make<T, T>("sqrt_" + t, call("sqrt", one), [](T a, T, T) { return std::sqrt(a); }));
  out.push_back(
      make<T, T>("floor_" + t, call("floor", one), [](T a, T, T) { return std::floor(a); }));
  out.push_back(make<T, T>("ceil_" + t, call("ceil", one), [](T a, T, T) { return std::ceil(a); }));
  out.push_back(
      make<T, T>("trunc_" + t, call("trunc", one), [](T a, T, T) { return std::trunc(a); }));
  out.push_back(
      make<T, T>("rint_" + t, call("rint", one), [](T a, T, T) { return std::nearbyint(a); }));
  out.push_back(make<T, T>("abs_" + t, call("fabs", one), [](T a, T, T) { return std::fabs(a); }));
  out.push_back(
      make<T, T>("select_" + t,
                 "%m = fcmp olt " + n + " %a, %b\n  %r = select i1 %m, " + n + " %b, " + n + " %c",
                 [](T a, T b, T c) { return a < b ? b : c; }));
  out.push_back(make<std::int32_t, T>(
      "to_i32_" + t, "%r = call i32 @llvm.fptosi.sat.i32." + suffix + "(" + one + ")",
      [](T a, T, T) { return to_integer<std::int32_t>(a); }));
  out.push_back(make<std::uint32_t, T>(
      "to_u32_" + t, "%r = call i32 @llvm.fptoui.sat.i32." + suffix + "(" + one + ")",
      [](T a, T, T) { return to_integer<std::uint32_t>(a); }));
  out.push_back(make<std::int64_t, T>(
      "to_i64_" + t, "%r = call i64 @llvm.fptosi.sat.i64." + suffix + "(" + one + ")",
      [](T a, T, T) { return to_integer<std::int64_t>(a); }));
  out.push_back(make<T, std::int64_t>(
      "from_i64_" + t, "%r = sitofp i64 %a to " + n,
      [](std::int64_t a, std::int64_t, std::int64_t) { return static_cast<T>(a); }));
  out.push_back(make<T, std::uint64_t>(
      "from_u64_" + t, "%r = uitofp i64 %a to " + n,
      [](std::uint64_t a, std::uint64_t, std::uint64_t) { return static_cast<T>(a); }));
}

template <class T>
void add_integer_cases(std::vector<Case>& out, const std::string& t) {
  using S = std::make_signed_t<T>;
  const std::string n = type_name<T>();
  constexpr unsigned kBits = 8 * sizeof(T);
  const auto add = [&](const std::string& op, const std::string& body, auto host) {
    out.push_back(make<T, T>(op + "_" + t, body, host));
  };
  const std::string two = n + " %a, %b";
  add("add", "%r = add " + two, [](T a, T b, T) { return static_cast<T>(a + b); });
  add("sub", "%r = sub " + two, [](T a, T b, T) { return static_cast<T>(a - b); });
  add("mul", "%r = mul " + two, [](T a, T b, T) { return static_cast<T>(std::uint64_t(a) * b); });
  add("and", "%r = and " + two, [](T a, T b, T) { return static_cast<T>(a & b); });
  add("xor", "%r = xor " + two, [](T a, T b, T) { return static_cast<T>(a ^ b); });
  add("udiv", "%d = or " + n + " %b, 1\n  %r = udiv " + n + " %a, %d",
      [](T a, T b, T) { return static_cast<T>(a / static_cast<T>(b | 1)); });
  add("urem", "%d = or " + n + " %b, 1\n  %r = urem " + n + " %a, %d",
      [](T a, T b, T) { return static_cast<T>(a % static_cast<T>(b | 1)); });
  const std::string positive = std::to_string((std::uint64_t{1} << (kBits - 1)) - 1);
  add("sdiv",
      "%e = and " + n + " %b, " + positive + "\n  %d = or " + n + " %e, 1\n  %r = sdiv " + n +
          " %a, %d",
      [](T a, T b, T) {
        return static_cast<T>(static_cast<S>(a) /
                              static_cast<S>((b & std::numeric_limits<S>::max()) | 1));
      });
  const std::string mask = "%s = and " + n + " %b, " + std::to_string(kBits - 1) + "\n  ";
  add("shl", mask + "%r = shl " + n + " %a, %s",
      [](T a, T b, T) { return static_cast<T>(std::uint64_t(a) << (b & (kBits - 1))); });
  add("lshr", mask + "%r = lshr " + n + " %a, %s",
      [](T a, T b, T) { return static_cast<T>(a >> (b & (kBits - 1))); });
  add("ashr", mask + "%r = ashr " + n + " %a, %s",
      [](T a, T b, T) { return static_cast<T>(static_cast<S>(a) >> (b & (kBits - 1))); });
  add("smin", "%m = icmp slt " + two + "\n  %r = select i1 %m, " + n + " %a, " + n + " %b",
      [](T a, T b, T) { return static_cast<S>(a) < static_cast<S>(b) ? a : b; });
  add("umax", "%m = icmp ugt " + two + "\n  %r = select i1 %m, " + n + " %a, " + n + " %b",
      [](T a, T b, T) { return std::max(a, b); });
  add("ctpop", "%r = call " + n + " @llvm.ctpop." + n + "(" + n + " %a)",
      [](T a, T, T) { return static_cast<T>(std::popcount(a)); });
  add("ctlz", "%r = call " + n + " @llvm.ctlz." + n + "(" + n + " %a, i1 false)",
      [](T a, T, T) { return static_cast<T>(std::countl_zero(a)); });
  add("cttz", "%r = call " + n + " @llvm.cttz." + n + "(" + n + " %a, i1 false)",
      [](T a, T, T) { return static_cast<T>(std::countr_zero(a)); });
  add("usat", "%r = call " + n + " @llvm.uadd.sat." + n + "(" + n + " %a, " + n + " %b)",
      [](T a, T b, T) {
        const T sum = static_cast<T>(a + b);
        return sum < a ? std::numeric_limits<T>::max() : sum;
      });
  add("merge",
      "%d = and " + n + " %a, %c\n  %n = xor " + n + " %a, -1\n  %e = and " + n +
          " %b, %n\n  %r = or " + n + " %d, %e",
      [](T a, T b, T c) { return static_cast<T>((a & c) | (b & static_cast<T>(~a))); });
}

void add_half_cases(std::vector<Case>& out) {
  using H = Half16;
  const auto half = [](double v) { return H{to_half(v)}; };
  out.push_back(make<H, H>("add_f16", "%r = fadd half %a, %b",
                           [=](H a, H b, H) { return half(value(a) + value(b)); }));
  out.push_back(make<H, H>("mul_f16", "%r = fmul half %a, %b",
                           [=](H a, H b, H) { return half(value(a) * value(b)); }));
  out.push_back(make<H, H>("div_f16", "%r = fdiv half %a, %b",
                           [=](H a, H b, H) { return half(value(a) / value(b)); }));
  out.push_back(make<H, float>("narrow_f16", "%r = fptrunc float %a to half",
                               [=](float a, float, float) { return half(a); }));
  out.push_back(make<float, H>("widen_f16", "%r = fpext half %a to float",
                               [](H a, H, H) { return static_cast<float>(value(a)); }));
  out.push_back(make<H, H>("long_f16",
                           "%u = fadd half %a, 1.0\n  %v = fmul half %u, %b\n  %r = call half "
                           "@llvm.fma.f16(half %v, half %c, half %a)",
                           [=](H a, H b, H c) {
                             const double u = value(half(value(a) + 1));
                             const double v = value(half(u * value(b)));
                             return half(odd_fma(v, value(c), value(a)));
                           }));
  out.push_back(make<Bfloat, float>("narrow_bf16", "%r = fptrunc float %a to bfloat",
                                    [](float a, float, float) { return Bfloat{to_bf16(a)}; }));
  out.push_back(
      make<float, Bfloat>("widen_bf16", "%r = fpext bfloat %a to float",
                          [](Bfloat a, Bfloat, Bfloat) { return static_cast<float>(value(a)); }));
  out.push_back(make<Bfloat, Bfloat>(
      "add_bf16", "%r = fadd bfloat %a, %b",
      [](Bfloat a, Bfloat b, Bfloat) { return Bfloat{to_bf16(value(a) + value(b))}; }));
}

void add_function_cases(std::vector<Case>& out) {
  out.push_back(
      make<float, double>("narrow_f64", "%r = fptrunc double %a to float",
                          [](double a, double, double) { return static_cast<float>(a); }));
  out.push_back(make<double, float>("widen_f32", "%r = fpext float %a to double",
                                    [](float a, float, float) { return static_cast<double>(a); }));
  out.push_back(make<float, float>(
      "exp2_f32", "%r = call float @llvm.exp2.f32(float %a)",
      [](float a, float, float) { return static_cast<float>(std::exp2(static_cast<double>(a))); },
      2));
  out.push_back(make<float, float>(
      "log2_f32", "%r = call float @llvm.log2.f32(float %a)",
      [](float a, float, float) { return static_cast<float>(std::log2(static_cast<double>(a))); },
      2));
  out.push_back(
      make<float, float>("class_f32",
                         "%k = call i1 @llvm.is.fpclass.f32(float %a, i32 519)\n  %r = select i1 "
                         "%k, float 1.0, float 2.0",
                         [](float a, float, float) { return std::isfinite(a) ? 2.0F : 1.0F; }));
}

std::string intrinsics() {
  std::string out = declarations();
  for (const char* t : {"float,f32", "double,f64"}) {
    const std::string n = std::string(t).substr(0, std::string(t).find(','));
    const std::string s = std::string(t).substr(std::string(t).find(',') + 1);
    for (const char* f : {"sqrt", "floor", "ceil", "trunc", "rint", "fabs", "exp2", "log2"}) {
      out += "declare " + n + " @llvm." + f + "." + s + "(" + n + ")\n";
    }
    out += "declare " + n + " @llvm.fma." + s + "(" + n + ", " + n + ", " + n + ")\n";
    for (const char* to : {"i32", "i64"}) {
      out += std::string("declare ") + to + " @llvm.fptosi.sat." + to + "." + s + "(" + n + ")\n";
      out += std::string("declare ") + to + " @llvm.fptoui.sat." + to + "." + s + "(" + n + ")\n";
    }
  }
  out +=
      "declare half @llvm.fma.f16(half, half, half)\ndeclare i1 @llvm.is.fpclass.f32(float, i32 "
      "immarg)\n";
  for (const char* t : {"i8", "i16", "i32", "i64"}) {
    const std::string n = t;
    out += "declare " + n + " @llvm.ctpop." + n + "(" + n + ")\ndeclare " + n + " @llvm.ctlz." + n +
           "(" + n + ", i1)\n";
    out += "declare " + n + " @llvm.cttz." + n + "(" + n + ", i1)\ndeclare " + n +
           " @llvm.uadd.sat." + n + "(" + n + ", " + n + ")\n";
  }
  return out;
}

void run_cases(const std::vector<Case>& cases) {
  std::string ir = intrinsics();
  for (const Case& c : cases) {
    ir += c.ir;
  }
  for (const char* target : kTargets) {
    Device device(target);
    device.load_ir(ir);
    for (const Case& c : cases) {
      try {
        c.check(device);
      } catch (const std::exception& error) {
        ADD_FAILURE() << c.name << " on " << target << ": " << error.what();
      }
    }
  }
}

TEST(Arithmetic, Float32) {
  std::vector<Case> cases;
  add_float_cases<float>(cases, "f32");
  add_function_cases(cases);
  run_cases(cases);
}

TEST(Arithmetic, Float64) {
  std::vector<Case> cases;
  add_float_cases<double>(cases, "f64");
  run_cases(cases);
}

TEST(Arithmetic, Float16) {
  std::vector<Case> cases;
  add_half_cases(cases);
  run_cases(cases);
}

TEST(Arithmetic, Integers) {
  std::vector<Case> cases;
  add_integer_cases<std::uint8_t>(cases, "i8");
  add_integer_cases<std::uint16_t>(cases, "i16");
  add_integer_cases<std::uint32_t>(cases, "i32");
  add_integer_cases<std::uint64_t>(cases, "i64");
  run_cases(cases);
}

// The conversion to f16 against its definition: no other f16 lies nearer, and of two the even one is taken.
TEST(Arithmetic, HalvesAreTheNearest) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    const double v = std::ldexp(static_cast<double>(random() >> 11) * 0x1p-53,
                                static_cast<int>(random() % 48) - 28);
    const std::uint16_t got = to_half(v);
    if (v >= 65520) {
      EXPECT_EQ(got, 0x7c00);
      continue;
    }
    const double error = std::fabs(static_cast<double>(from_half(got)) - v);
    for (const int step : {-1, 1}) {
      const auto other = static_cast<std::uint16_t>(got + step);
      if (other < 0x7c00) {
        const double its = std::fabs(static_cast<double>(from_half(other)) - v);
        EXPECT_TRUE(error < its || (error == its && got % 2 == 0)) << v;
      }
    }
  }
}

}  // namespace amdgpu_emulator::arithmetic_test
