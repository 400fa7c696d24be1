// Planted faults: each is found, and named with the kernel, the wave and the instruction.
#include <gtest/gtest.h>

#include "tests/amdgpu/kernels.h"

namespace amdgpu_emulator::faults_test {

const std::string kLoad = R"(
  %q = getelementptr i32, ptr addrspace(1) %p0, i64 %x
  %v = load i32, ptr addrspace(1) %q
)";
const std::string kStore = R"(
  %s = getelementptr i32, ptr addrspace(1) %p1, i64 %x
  store i32 %r, ptr addrspace(1) %s
  ret void)";
const std::string kBuffer = "@buffer = internal addrspace(3) global [128 x i32] undef, align 16\n";
const std::string kBarrier = R"(
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
)";
const std::string kExchange = kLoad + R"(
  %l = getelementptr [128 x i32], ptr addrspace(3) @buffer, i32 0, i32 %t
  store i32 %v, ptr addrspace(3) %l
)" + kBarrier + R"(
  %o = xor i32 %t, 64
  %m = getelementptr [128 x i32], ptr addrspace(3) @buffer, i32 0, i32 %o
  %r = load i32, ptr addrspace(3) %m
)";

std::vector<std::uint32_t> words(std::size_t count) { return std::vector<std::uint32_t>(count, 7); }

// The fault of a kernel of 128 threads and one block from 128 words to 128.
std::string fault_of(const std::vector<std::uint8_t>& file, const char* target) {
  Device device(target);
  device.load(file);
  return device.fault("k", 1, 128, {device.upload(words(128)), device.upload(words(128))});
}

std::string fault_of_ir(const std::string& body, const char* target, const std::string& more = "") {
  return fault_of(compile(declarations() + kBuffer + more + kernel_ir("k", 2, 128, body), target),
                  target);
}

void expect_says(const std::string& fault, const std::vector<std::string>& parts,
                 const char* target) {
  for (const std::string& part : parts) {
    EXPECT_NE(fault.find(part), std::string::npos)
        << target << ": \"" << part << "\" is not in: " << fault;
  }
}

TEST(Faults, TheSoundKernelHasNone) {
  for (const char* target : kTargets) {
    EXPECT_EQ(fault_of_ir(kExchange + kStore, target), "");
  }
}

TEST(Faults, WildAddress) {
  const std::string body = R"(
  %far = add i64 %x, 100
  %q = getelementptr i32, ptr addrspace(1) %p0, i64 %far
  %r = load i32, ptr addrspace(1) %q
)";
  for (const char* target : kTargets) {
    expect_says(fault_of_ir(body + kStore, target),
                {"a wild address: 4 bytes", "lane 28", "kernel k", "global_load"}, target);
  }
}

TEST(Faults, MemoryOfAnotherDevice) {
  for (const char* target : kTargets) {
    Device device(target, 2);
    device.load_ir(declarations() + kBuffer +
                   kernel_ir("k", 2, 128, kLoad + "  %r = add i32 %v, 1\n" + kStore));
    const std::uint64_t other = device.memory().allocate(1, 512);
    const std::uint64_t mine = device.upload(words(128));
    expect_says(device.fault("k", 1, 128, {other, mine}), {"peer access is not enabled"}, target);
    device.memory().let_reach(0, 1);
    EXPECT_EQ(device.fault("k", 1, 128, {other, mine}), "");
  }
}

TEST(Faults, EveryMissingWait) {
  for (const char* target : kTargets) {
    const auto sound =
        compile(declarations() + kBuffer + kernel_ir("k", 2, 128, kExchange + kStore), target);
    int removed = 0;
    for (;; ++removed) {
      auto file = sound;
      if (!remove_instruction(file, target, "s_waitcnt", removed)) {
        break;
      }
      expect_says(fault_of(file, target), {"a missing s_waitcnt", "kernel k"}, target);
    }
    EXPECT_GE(removed, 4)
        << target;  // for the arguments, the load, LDS before the barrier, LDS before the store
  }
}

TEST(Faults, MissingBarrier) {
  for (const char* target : kTargets) {
    auto file =
        compile(declarations() + kBuffer + kernel_ir("k", 2, 128, kExchange + kStore), target);
    ASSERT_TRUE(remove_instruction(file, target, "s_barrier", 0));
    // The wave that runs first reads what the other has not written yet; the other then overwrites what was read.
    const std::string fault = fault_of(file, target);
    EXPECT_TRUE(fault.find("a race") != std::string::npos ||
                fault.find("never written") != std::string::npos)
        << fault;
  }
}

TEST(Faults, RaceOfTwoWaves) {
  const std::string body = kLoad + R"(
  %l = getelementptr [128 x i32], ptr addrspace(3) @buffer, i32 0, i32 %t
  store i32 %v, ptr addrspace(3) %l
)" + kBarrier + R"(
  %o = and i32 %t, 31
  %m = getelementptr [128 x i32], ptr addrspace(3) @buffer, i32 0, i32 %o
  store i32 %t, ptr addrspace(3) %m
  %r = load volatile i32, ptr addrspace(3) %l
)";
  for (const char* target : kTargets) {
    expect_says(fault_of_ir(body + kStore, target),
                {"a race: wave", "LDS word", "without a barrier between"}, target);
  }
}

TEST(Faults, DroppedMask) {
  const std::string body = R"(
  %in = icmp ult i32 %t, 64
  br i1 %in, label %do, label %end
do:
  %far = add i64 %x, 64
  %q = getelementptr i32, ptr addrspace(1) %p0, i64 %far
  store i32 %i, ptr addrspace(1) %q
  br label %end
end:
  ret void)";
  for (const char* target : kTargets) {
    auto file = compile(declarations() + kernel_ir("k", 2, 128, body), target);
    EXPECT_EQ(fault_of(file, target), "");
    const std::string name =
        std::string(target) == "gfx942" ? "s_and_saveexec_b64" : "v_cmpx_gt_u32_e32";
    ASSERT_TRUE(remove_instruction(file, target, name, 0)) << target;
    expect_says(fault_of(file, target), {"a wild address", "store"}, target);
  }
}

TEST(Faults, RegisterThatNobodyWrote) {
  const std::string body = "  %r = call i32 asm \"; $0 stays as it is\", \"=v\"()\n";
  for (const char* target : kTargets) {
    expect_says(fault_of_ir(body + kStore, target), {"never written", "global_store"}, target);
  }
}

TEST(Faults, BranchOnARegisterThatNobodyWrote) {
  const std::string body = R"(
  %u = call i32 asm "; $0 stays as it is", "={s50}"()
  %in = icmp ult i32 %u, 5
  br i1 %in, label %do, label %end
do:
  %q = getelementptr i32, ptr addrspace(1) %p0, i64 %x
  store i32 %i, ptr addrspace(1) %q
  br label %end
end:
  ret void)";
  for (const char* target : kTargets) {
    expect_says(fault_of_ir(body, target),
                {"a branch depends on a register that was never written", "s_cbranch"}, target);
  }
}

TEST(Faults, LdsWordThatNobodyWrote) {
  const std::string body = R"(
  %l = getelementptr [128 x i32], ptr addrspace(3) @buffer, i32 0, i32 %t
  %r = load volatile i32, ptr addrspace(3) %l
)";
  for (const char* target : kTargets) {
    expect_says(fault_of_ir(body + kStore, target), {"never written", "global_store"}, target);
  }
}

TEST(Faults, LdsOutOfBounds) {
  const std::string body = R"(
  %o = add i32 %t, 1
  %l = getelementptr [128 x i32], ptr addrspace(3) @buffer, i32 0, i32 %o
  store volatile i32 %t, ptr addrspace(3) %l
  %r = load volatile i32, ptr addrspace(3) %l
)";
  for (const char* target : kTargets) {
    expect_says(fault_of_ir(body + kStore, target), {"LDS out of bounds", "at 512 of 512", "ds_"},
                target);
  }
}

TEST(Faults, BarrierThatNotAllReach) {
  const std::string body = R"(
  %in = icmp ult i32 %t, 64
  br i1 %in, label %do, label %end
do:
  call void @llvm.amdgcn.s.barrier()
  br label %end
end:
  ret void)";
  for (const char* target : kTargets) {
    expect_says(fault_of_ir(body, target), {"a barrier that not all waves reach", "s_barrier"},
                target);
  }
}

TEST(Faults, UnknownInstruction) {
  const std::string body = kLoad + "  %r = call i32 @llvm.amdgcn.sad.u8(i32 %v, i32 %v, i32 %v)\n";
  for (const char* target : kTargets) {
    expect_says(
        fault_of_ir(body + kStore, target, "declare i32 @llvm.amdgcn.sad.u8(i32, i32, i32)\n"),
        {"v_sad_u8 is unknown to the emulator"}, target);
  }
}

TEST(Faults, MisalignedAtomic) {
  const std::string body = R"(
  %q = getelementptr i8, ptr addrspace(1) %p0, i64 2
  %r = atomicrmw add ptr addrspace(1) %q, i32 1 syncscope("agent") monotonic
)";
  for (const char* target : kTargets) {
    expect_says(fault_of_ir(body + kStore, target), {"a misaligned atomic", "atomic_add"}, target);
  }
}

TEST(Faults, Trap) {
  const std::string body = "  call void @llvm.trap()\n  ret void";
  for (const char* target : kTargets) {
    const std::string fault = fault_of_ir(body, target, "declare void @llvm.trap()\n");
    EXPECT_NE(fault, "") << target;
  }
}

// A module for one processor is refused on another.
TEST(Faults, AnotherProcessorsCode) {
  const auto file =
      compile(declarations() + kBuffer + kernel_ir("k", 2, 128, kExchange + kStore), "gfx942");
  Device device("gfx1100");
  EXPECT_ANY_THROW(device.load(file));
}

}  // namespace amdgpu_emulator::faults_test
