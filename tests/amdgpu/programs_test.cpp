// Kernels with control flow, LDS, exchanges of lanes, atomics, calls and matrices on both targets.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/amdgpu/half.h"
#include "tests/amdgpu/kernels.h"

namespace amdgpu_emulator::programs_test {

std::vector<std::uint32_t> numbers(std::size_t count, std::uint32_t factor = 2654435761U) {
  std::vector<std::uint32_t> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = static_cast<std::uint32_t>(i + 1) * factor;
  }
  return out;
}

std::string load_word(const std::string& to, const std::string& pointer, const std::string& index) {
  return "  %q" + to + " = getelementptr i32, ptr addrspace(1) " + pointer + ", i64 " + index +
         "\n  %" + to + " = load i32, ptr addrspace(1) %q" + to + "\n";
}

const std::string kStoreResult =
    "  %qr = getelementptr i32, ptr addrspace(1) %p1, i64 %x\n  store i32 %r, ptr addrspace(1) "
    "%qr\n  ret void";

// Runs a kernel from numbers to numbers.
std::vector<std::uint32_t> run_words(Device& device, const std::string& kernel,
                                     std::uint32_t blocks, std::uint32_t threads,
                                     const std::vector<std::uint32_t>& input) {
  const std::uint64_t to = device.upload(std::vector<std::uint32_t>(input.size()));
  device.run(kernel, blocks, threads, {device.upload(input), to});
  return device.download<std::uint32_t>(to, input.size());
}

std::string tree_sum() {
  std::string body = load_word("v", "%p0", "%x") + R"(
  %l = getelementptr [256 x i32], ptr addrspace(3) @buffer, i32 0, i32 %t
  store i32 %v, ptr addrspace(3) %l
  br label %head
head:
  %s = phi i32 [ 128, %entry ], [ %half, %next ]
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %in = icmp ult i32 %t, %s
  br i1 %in, label %add, label %next
add:
  %o = add i32 %t, %s
  %lo = getelementptr [256 x i32], ptr addrspace(3) @buffer, i32 0, i32 %o
  %mine = load i32, ptr addrspace(3) %l
  %other = load i32, ptr addrspace(3) %lo
  %sum = add i32 %mine, %other
  store i32 %sum, ptr addrspace(3) %l
  br label %next
next:
  %half = lshr i32 %s, 1
  %more = icmp ne i32 %half, 0
  br i1 %more, label %head, label %done
done:
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %r = load i32, ptr addrspace(3) @buffer
)";
  return declarations() + "@buffer = internal addrspace(3) global [256 x i32] undef, align 16\n" +
         kernel_ir("tree_sum", 2, 256, body + kStoreResult);
}

TEST(Programs, SumsThroughLds) {
  for (const char* target : kTargets) {
    Device device(target);
    device.load_ir(tree_sum());
    const auto input = numbers(4 * 256);
    const auto got = run_words(device, "tree_sum", 4, 256, input);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto from = input.begin() + static_cast<std::ptrdiff_t>(i / 256 * 256);
      ASSERT_EQ(got[i], std::accumulate(from, from + 256, 0U)) << target << " " << i;
    }
  }
}

std::uint32_t collatz(std::uint32_t n) {
  std::uint32_t steps = 0;
  for (std::uint64_t v = n; v != 1; ++steps) {
    v = v % 2 == 0 ? v / 2 : 3 * v + 1;
  }
  return steps;
}

TEST(Programs, LanesLeaveALoopOneByOne) {
  const std::string body = load_word("v", "%p0", "%x") + R"(
  %start = zext i32 %v to i64
  br label %head
head:
  %n = phi i64 [ %start, %entry ], [ %next, %step ]
  %r = phi i32 [ 0, %entry ], [ %more, %step ]
  %end = icmp eq i64 %n, 1
  br i1 %end, label %done, label %choose
choose:
  %odd = trunc i64 %n to i1
  br i1 %odd, label %triple, label %halve
triple:
  %m3 = mul i64 %n, 3
  %a = add i64 %m3, 1
  br label %step
halve:
  %b = lshr i64 %n, 1
  br label %step
step:
  %next = phi i64 [ %a, %triple ], [ %b, %halve ]
  %more = add i32 %r, 1
  br label %head
done:
)";
  for (const char* target : kTargets) {
    Device device(target);
    device.load_ir(declarations() + kernel_ir("collatz", 2, 64, body + kStoreResult));
    std::vector<std::uint32_t> input(256);
    std::iota(input.begin(), input.end(), 1U);
    const auto got = run_words(device, "collatz", 4, 64, input);
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], collatz(input[i])) << target << " " << i;
    }
  }
}

TEST(Programs, AtomicsCountEveryLane) {
  const std::string body = R"(
  %old = atomicrmw add ptr addrspace(1) %p0, i32 3 syncscope("agent") monotonic
  %f = getelementptr i32, ptr addrspace(1) %p0, i64 1
  %oldf = atomicrmw fadd ptr addrspace(1) %f, float 1.0 syncscope("agent") monotonic
  %m = getelementptr i32, ptr addrspace(1) %p0, i64 2
  %oldm = atomicrmw umax ptr addrspace(1) %m, i32 %i syncscope("agent") monotonic
  %w64 = getelementptr i64, ptr addrspace(1) %p0, i64 2
  %oldw = atomicrmw add ptr addrspace(1) %w64, i64 4294967296 syncscope("agent") monotonic
  %pr = getelementptr i32, ptr addrspace(1) %p1, i64 %x
  store i32 %old, ptr addrspace(1) %pr
  ret void)";
  for (const char* target : kTargets) {
    Device device(target);
    device.load_ir(declarations() + kernel_ir("atomics", 2, 128, body));
    const std::uint64_t cells = device.upload(std::vector<std::uint32_t>(8, 0));
    const std::uint64_t seen = device.upload(std::vector<std::uint32_t>(1024));
    device.run("atomics", 8, 128, {cells, seen});
    const auto got = device.download<std::uint32_t>(cells, 8);
    EXPECT_EQ(got[0], 3 * 1024U) << target;
    EXPECT_EQ(std::bit_cast<float>(got[1]), 1024.0F) << target;
    EXPECT_EQ(got[2], 1023U) << target;
    EXPECT_EQ(got[5], 1024U) << target;
    auto order = device.download<std::uint32_t>(seen, 1024);
    std::sort(order.begin(), order.end());
    for (std::uint32_t i = 0; i < 1024; ++i) {
      ASSERT_EQ(order[i], 3 * i) << target;
    }
  }
}

TEST(Programs, LanesExchange) {
  const std::string body = load_word("v", "%p0", "%x") + R"(
  %to = xor i32 %t, 5
  %at = shl i32 %to, 2
  %b = call i32 @llvm.amdgcn.ds.bpermute(i32 %at, i32 %v)
  %s = call i32 @llvm.amdgcn.update.dpp.i32(i32 0, i32 %v, i32 273, i32 15, i32 15, i1 true)
  %q = call i32 @llvm.amdgcn.update.dpp.i32(i32 0, i32 %v, i32 27, i32 15, i32 15, i1 true)
  %z = call i32 @llvm.amdgcn.ds.swizzle(i32 %v, i32 1055)
  %f = call i32 @llvm.amdgcn.readfirstlane.i32(i32 %v)
  %b1 = mul i32 %b, 3
  %s1 = mul i32 %s, 5
  %q1 = mul i32 %q, 7
  %z1 = mul i32 %z, 11
  %c1 = add i32 %b1, %s1
  %c2 = add i32 %q1, %z1
  %c3 = add i32 %c1, %c2
  %r = add i32 %c3, %f
)";
  const std::string declared = declarations() + R"(
declare i32 @llvm.amdgcn.ds.bpermute(i32, i32)
declare i32 @llvm.amdgcn.update.dpp.i32(i32, i32, i32 immarg, i32 immarg, i32 immarg, i1 immarg)
declare i32 @llvm.amdgcn.ds.swizzle(i32, i32 immarg)
declare i32 @llvm.amdgcn.readfirstlane.i32(i32)
)";
  for (const char* target : kTargets) {
    Device device(target);
    device.load_ir(declared + kernel_ir("exchange", 2, 64, body + kStoreResult));
    const auto input = numbers(64);
    const auto got = run_words(device, "exchange", 1, 64, input);
    const std::size_t lanes = device.module().find("exchange")->wave32() ? 32 : 64;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t shifted = i % 16 == 0 ? 0 : input[i - 1];  // 273: row_shr:1
      const std::uint32_t reversed = input[i ^ 3];                   // 27: quad_perm [3, 2, 1, 0]
      const std::uint32_t swapped = input[(i & ~31U) | ((i & 31U) ^ 1U)];  // 1055: xor 1
      ASSERT_EQ(got[i], input[i ^ 5] * 3 + shifted * 5 + reversed * 7 + swapped * 11 +
                            input[i / lanes * lanes])
          << target << " " << i;
    }
  }
}

// An array in scratch with an index that is known at run time only, and a function that is not inlined.
TEST(Programs, ScratchAndCalls) {
  const std::string body = load_word("v", "%p0", "%x") + R"(
  %a = alloca [16 x i32], align 4, addrspace(5)
  br label %head
head:
  %k = phi i32 [ 0, %entry ], [ %k1, %head ]
  %e = getelementptr [16 x i32], ptr addrspace(5) %a, i32 0, i32 %k
  %kv = call i32 @mixed(i32 %k, i32 %v)
  store i32 %kv, ptr addrspace(5) %e
  %k1 = add i32 %k, 1
  %more = icmp ult i32 %k1, 16
  br i1 %more, label %head, label %done
done:
  %at = and i32 %v, 15
  %g = getelementptr [16 x i32], ptr addrspace(5) %a, i32 0, i32 %at
  %r = load volatile i32, ptr addrspace(5) %g
)";
  const std::string function = R"(
define internal i32 @mixed(i32 %a, i32 %b) noinline {
  %m = mul i32 %a, 77
  %r = xor i32 %m, %b
  ret i32 %r
}
)";
  for (const char* target : kTargets) {
    Device device(target);
    std::string ir = declarations() + function + kernel_ir("scratch", 2, 64, body + kStoreResult);
    device.load_ir(ir);
    const auto input = numbers(128, 40503U);
    const auto got = run_words(device, "scratch", 2, 64, input);
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], ((input[i] & 15U) * 77) ^ input[i]) << target << " " << i;
    }
  }
}

TEST(Programs, PackedHalves) {
  const std::string body = load_word("v", "%p0", "%x") + R"(
  %h = bitcast i32 %v to <2 x half>
  %k = shufflevector <2 x half> %h, <2 x half> poison, <2 x i32> <i32 1, i32 0>
  %m = fmul <2 x half> %h, %k
  %s = fadd <2 x half> %m, <half 1.0, half 2.0>
  %n = fneg <2 x half> %s
  %i16 = bitcast <2 x half> %n to <2 x i16>
  %two = add <2 x i16> %i16, <i16 3, i16 5>
  %r = bitcast <2 x i16> %two to i32
)";
  for (const char* target : kTargets) {
    Device device(target);
    device.load_ir(declarations() + kernel_ir("packed", 2, 64, body + kStoreResult));
    std::vector<std::uint32_t> input(64);
    for (std::size_t i = 0; i < 64; ++i) {
      input[i] = to_half(0.37 * static_cast<double>(i) - 9) |
                 static_cast<std::uint32_t>(to_half(1.1 * static_cast<double>(i))) << 16;
    }
    const auto got = run_words(device, "packed", 1, 64, input);
    for (std::size_t i = 0; i < 64; ++i) {
      const auto low = static_cast<double>(from_half(static_cast<std::uint16_t>(input[i])));
      const auto high = static_cast<double>(from_half(static_cast<std::uint16_t>(input[i] >> 16)));
      const auto product = static_cast<double>(from_half(to_half(low * high)));
      const auto first = static_cast<std::uint16_t>((to_half(product + 1) ^ 0x8000U) + 3);
      const auto second = static_cast<std::uint16_t>((to_half(product + 2) ^ 0x8000U) + 5);
      ASSERT_EQ(got[i], first | static_cast<std::uint32_t>(second) << 16) << target << " " << i;
    }
  }
}

// The layouts of the matrix instructions, as AMD's tables of registers have them.
TEST(Programs, MatrixOfGfx942) {
  const std::string body = R"(
  %qa = getelementptr <4 x half>, ptr addrspace(1) %p0, i64 %x
  %a = load <4 x half>, ptr addrspace(1) %qa
  %qb = getelementptr <4 x half>, ptr addrspace(1) %p1, i64 %x
  %b = load <4 x half>, ptr addrspace(1) %qb
  %d = call <4 x float> @llvm.amdgcn.mfma.f32.16x16x16f16(<4 x half> %a, <4 x half> %b, <4 x float> zeroinitializer, i32 0, i32 0, i32 0)
  %qd = getelementptr <4 x float>, ptr addrspace(1) %p2, i64 %x
  store <4 x float> %d, ptr addrspace(1) %qd
  ret void)";
  Device device("gfx942");
  device.load_ir(declarations() +
                 "declare <4 x float> @llvm.amdgcn.mfma.f32.16x16x16f16(<4 x half>, <4 x half>, <4 "
                 "x float>, i32 immarg, i32 "
                 "immarg, i32 immarg)\n" +
                 kernel_ir("matrix", 3, 64, body));
  const auto a = [](std::size_t row, std::size_t k) {
    return static_cast<float>(row) - 2 * static_cast<float>(k);
  };
  const auto b = [](std::size_t k, std::size_t column) {
    return static_cast<float>(3 * k) + static_cast<float>(column % 5);
  };
  std::vector<std::uint16_t> as(256);
  std::vector<std::uint16_t> bs(256);
  for (std::size_t lane = 0; lane < 64; ++lane) {
    for (std::size_t j = 0; j < 4; ++j) {
      as[lane * 4 + j] = to_half(static_cast<double>(a(lane % 16, lane / 16 * 4 + j)));
      bs[lane * 4 + j] = to_half(static_cast<double>(b(lane / 16 * 4 + j, lane % 16)));
    }
  }
  const std::uint64_t to = device.upload(std::vector<float>(256));
  device.run("matrix", 1, 64, {device.upload(as), device.upload(bs), to});
  const auto got = device.download<float>(to, 256);
  for (std::size_t lane = 0; lane < 64; ++lane) {
    for (std::size_t r = 0; r < 4; ++r) {
      float wanted = 0;
      for (std::size_t k = 0; k < 16; ++k) {
        wanted += a(4 * (lane / 16) + r, k) * b(k, lane % 16);
      }
      ASSERT_EQ(got[lane * 4 + r], wanted) << lane << " " << r;
    }
  }
}

// How fast it is: lanes' instructions a second on one thread of the host.
TEST(Programs, TenMillionLanesASecond) {
  const std::string body = load_word("v", "%p0", "%x") + R"(
  br label %head
head:
  %k = phi i32 [ 0, %entry ], [ %k1, %head ]
  %f = phi float [ 1.0, %entry ], [ %g, %head ]
  %u = phi i32 [ %v, %entry ], [ %u3, %head ]
  %u1 = shl i32 %u, 3
  %u2 = xor i32 %u, %u1
  %u3 = add i32 %u2, %k
  %uf = uitofp i32 %u3 to float
  %g = call float @llvm.fma.f32(float %f, float 0.5, float %uf)
  %k1 = add i32 %k, 1
  %more = icmp ult i32 %k1, 2000
  br i1 %more, label %head, label %done
done:
  %r = bitcast float %g to i32
)";
  for (const char* target : kTargets) {
    Device device(target);
    device.load_ir(declarations() + "declare float @llvm.fma.f32(float, float, float)\n" +
                   kernel_ir("busy", 2, 256, body + kStoreResult));
    const std::uint64_t from = device.upload(numbers(1024));
    const std::uint64_t to = device.upload(numbers(1024));
    const auto begin = std::chrono::steady_clock::now();
    const LaunchCounts counts = device.run("busy", 4, 256, {from, to}, 1);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf("%s: %.0f million lanes' instructions a second\n", target,
                static_cast<double>(counts.lanes) / seconds * 1e-6);
    RecordProperty(std::string("lanes_a_second_") + target,
                   std::to_string(static_cast<double>(counts.lanes) / seconds));
    EXPECT_GT(counts.lanes, 4 * 256 * 2000U);
  }
}

}  // namespace amdgpu_emulator::programs_test
