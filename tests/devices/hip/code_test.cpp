// Code for AMD's GPUs, made without one: whole training steps, sorts, scatters, attention, for GPUs with
// warps of 64 and of 32 threads. Each code object is read as a loader does, and must agree with itself:
// descriptor, notes and symbols; and no kernel may use memory of a thread, which is what registers are spilled
// to, or ask for more memory than blocks have.
#include <cstring>
#include <elf.h>
#include <map>
#include <set>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/codegen/codegen.h"
#include "core/codegen/scatter.h"
#include "core/codegen/sort.h"
#include "core/exec/make_executable.h"
#include "core/exec/schedule_of.h"
#include "core/uop/args.h"
#include "devices/gpu/scatter.h"
#include "devices/hip/code_object.h"
#include "devices/hip/gpu_target.h"
#include "examples/mnist_model.h"
#include "examples/train_gpt_model.h"

namespace tinyshard::code_test {
namespace {

const std::map<std::string, uint32_t> kMachines{
    {"gfx90a", 0x3f}, {"gfx942", 0x4c}, {"gfx1100", 0x41}, {"gfx1201", 0x4e}};

Target target_of(const std::string& architecture) {
  Target target = hip::gpu_target(architecture);
  target.multiprocessors = 100;
  return target;
}

// An ELF file, with what its symbols say.
class File {
 public:
  explicit File(std::span<const char> bytes) : bytes_(bytes) {
    std::memcpy(&head, bytes.data(), sizeof(head));
    for (uint64_t i = 0; i < head.e_shnum; ++i) {
      sections.emplace_back();
      std::memcpy(&sections.back(), bytes.data() + head.e_shoff + i * sizeof(Elf64_Shdr),
                  sizeof(Elf64_Shdr));
    }
    for (uint64_t i = 0; i < head.e_phnum; ++i) {
      segments.emplace_back();
      std::memcpy(&segments.back(), bytes.data() + head.e_phoff + i * sizeof(Elf64_Phdr),
                  sizeof(Elf64_Phdr));
    }
    for (const Elf64_Shdr& s : sections) {
      if (s.sh_type != SHT_DYNSYM) continue;
      for (uint64_t at = 0; at < s.sh_size; at += sizeof(Elf64_Sym)) {
        Elf64_Sym symbol;
        std::memcpy(&symbol, bytes.data() + s.sh_offset + at, sizeof(symbol));
        symbols[bytes.data() + sections.at(s.sh_link).sh_offset + symbol.st_name] = symbol;
      }
    }
  }

  // The file's bytes at an address, through the segments that are loaded.
  std::span<const char> at(uint64_t address) const {
    for (const Elf64_Phdr& s : segments) {
      if (s.p_type == PT_LOAD && address >= s.p_vaddr && address < s.p_vaddr + s.p_filesz)
        return bytes_.subspan(s.p_offset + (address - s.p_vaddr));
    }
    return {};
  }
  // The metadata of its kernels: an Elf64_Nhdr, "AMDGPU" padded to 8 bytes, MessagePack.
  nlohmann::json metadata() const {
    for (const Elf64_Phdr& s : segments) {
      if (s.p_type != PT_NOTE) continue;
      Elf64_Nhdr note;
      std::memcpy(&note, bytes_.data() + s.p_offset, sizeof(note));
      constexpr uint32_t kMetadata = 32;
      if (note.n_type != kMetadata) continue;
      const char* begin = bytes_.data() + s.p_offset + sizeof(note) + 8;
      return nlohmann::json::from_msgpack(begin, begin + note.n_descsz);
    }
    return {};
  }

  Elf64_Ehdr head;
  std::vector<Elf64_Shdr> sections;
  std::vector<Elf64_Phdr> segments;
  std::map<std::string, Elf64_Sym> symbols;

 private:
  std::span<const char> bytes_;
};

void check_code(const ObjectCode& code, const std::string& architecture, int64_t parameters) {
  SCOPED_TRACE(code.entry + " for " + architecture);
  if (code.work_items == 0) return;
  const File file(code.bytes);
  EXPECT_EQ(file.head.e_type, ET_DYN);
  EXPECT_EQ(file.head.e_machine, 224) << "EM_AMDGPU";
  EXPECT_EQ(file.head.e_ident[EI_OSABI], 64) << "of HSA";
  EXPECT_EQ(file.head.e_flags & 0xff, kMachines.at(architecture));

  const nlohmann::json kernels = file.metadata().at("amdhsa.kernels");
  ASSERT_EQ(kernels.size(), 1u);
  const nlohmann::json& kernel = kernels[0];
  EXPECT_EQ(kernel.at(".name"), code.entry);
  EXPECT_EQ(kernel.at(".max_flat_workgroup_size"), code.block);
  EXPECT_EQ(kernel.at(".wavefront_size"), architecture.starts_with("gfx9") ? 64 : 32);
  EXPECT_EQ(kernel.at(".kernarg_segment_size"), 8 * parameters);
  EXPECT_EQ(kernel.at(".args").size(), size_t(parameters)) << "no hidden arguments";
  EXPECT_EQ(kernel.at(".vgpr_spill_count"), 0);
  EXPECT_LE(kernel.at(".sgpr_spill_count"), 16) << "to lanes of a vector register: no memory";
  EXPECT_LE(kernel.at(".group_segment_fixed_size").get<int>() + code.shared_bytes, 64 << 10);

  const auto descriptor = hip::find_descriptor(code.bytes, code.entry);
  ASSERT_TRUE(descriptor);
  EXPECT_EQ(descriptor->argument_bytes, 8 * parameters);
  EXPECT_EQ(descriptor->shared_bytes, kernel.at(".group_segment_fixed_size").get<uint32_t>());
  EXPECT_EQ(descriptor->private_bytes, 0u) << "no memory of a thread";
  EXPECT_FALSE(hip::find_descriptor(code.bytes, code.entry + "_"));

  // Its descriptor says how far away the code is: the one relocation of a code object.
  const Elf64_Sym& entry = file.symbols.at(code.entry);
  const Elf64_Sym& place = file.symbols.at(code.entry + ".kd");
  int64_t distance = 0;
  std::memcpy(&distance, file.at(place.st_value).subspan(16).data(), sizeof(distance));
  EXPECT_EQ(place.st_value + uint64_t(distance), entry.st_value);
  EXPECT_EQ(entry.st_value % 256, 0u);
  EXPECT_FALSE(file.at(entry.st_value).empty());
  for (const Elf64_Phdr& s : file.segments) {
    if (s.p_type != PT_LOAD) continue;
    EXPECT_EQ(s.p_vaddr % 4096, s.p_offset % 4096) << "mapped by pages";
  }
}

ScatterShape scatter(int64_t outer, int64_t rows_in, int64_t rows_out, int64_t inner) {
  ScatterShape s;
  s.outer = outer, s.rows_in = rows_in, s.rows_out = rows_out, s.inner = inner;
  return s;
}

class HipCode : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    Runtime::shutdown();
    Runtime::configure(
        {.devices = {GetParam().starts_with("gfx9") ? "NULL_MI300X" : "NULL_RX7900"}});
  }
  void TearDown() override { Runtime::shutdown(); }

  static void check_sort(const LibraryCall& call, const Target& target) {
    const DimSpan shape = call.node.src(0).shape();
    const SortShape sort{.key = call.node.src(0).dtype(),
                         .rows = product(shape.first(shape.size() - 1)),
                         .n = shape.back(),
                         .k = sorted_places(*call.node)};
    if (sort.n <= sort.tile()) return check_code(compile_row_sort(sort, target), GetParam(), 2);
    const SortSteps steps = compile_sort_steps(sort, target);
    check_code(steps.count, GetParam(), 4);
    check_code(steps.add, GetParam(), 4);
    check_code(steps.move, GetParam(), 8);
    check_code(steps.move_first, GetParam(), 8);
  }
  static void check_scatter(const LibraryCall& call, const Target& target) {
    const auto shape = gpu::scatter_shape(call);
    ASSERT_TRUE(shape);
    if (shape->op == ReduceOp::Sum)
      check_code(compile_scatter(*shape, target), GetParam(), shape->base ? 4 : 3);
    const SortedScatter sorted = compile_sorted_scatter(*shape, target);
    check_code(sorted.keys, GetParam(), 2);
    check_code(sorted.clear, GetParam(), 1);
    check_code(sorted.mark, GetParam(), 3);
    check_code(sorted.combine, GetParam(), shape->base ? 5 : 4);
  }

  static void check_kernels(const Schedule& schedule) {
    const Target target = target_of(GetParam());
    std::vector<const KernelSource*> sources;
    int64_t scatters = 0;
    for (const Item& item : schedule.items) {
      if (item.kind == Item::Kind::Kernel) sources.push_back(&item.kernel);
      if (item.kind != Item::Kind::Library) continue;
      if (item.call.node.op() == Op::Sort) {
        check_sort(item.call, target);
        continue;
      }
      ASSERT_EQ(item.call.node.op(), Op::ScatterAdd) << "all else is loops";
      check_scatter(item.call, target);
      ++scatters;
    }
    scatters_ += scatters;
    std::set<const CompiledKernel*> seen;
    size_t next = 0;
    for (const auto& kernel : compile_kernels(sources, target)) {
      const auto slots = int64_t(sources[next++]->params.size());
      if (seen.insert(kernel.get()).second)
        check_code(kernel->code, GetParam(), slots + kernel->code.coordinates);
    }
    kernels_ += int64_t(seen.size());
  }
  static void check(const Tensor& x) {
    const std::vector<UOp> roots{x.uop()};
    check_kernels(make_plan(roots));
  }
  static inline int64_t kernels_ = 0, scatters_ = 0;
};

template <class T>
Tensor numbers(const Dims& shape) {
  return Tensor(std::vector<T>(size_t(product(shape))), shape);
}

TEST_P(HipCode, AGptTrainingStep) {
  const gpt::Config config{.layers = 2, .width = 64, .heads = 2, .context = 32};
  const gpt::Model model(config);
  nn::optim::AdamW optim(nn::parameters(model), {.lr = 2e-3, .weight_decay = 0.1});
  Jit step = [&](const Tensor& text) {
    TrainingMode on;
    optim.zero_grad();
    Tensor loss = model.loss(text).backward();
    optim.step();
    return loss;
  };
  step(numbers<int32_t>({4, config.context + 1}));
  kernels_ = scatters_ = 0;
  check_kernels(schedule_of(step.captured_step()));
  EXPECT_GT(kernels_, 20);
  EXPECT_GT(scatters_, 0) << "the gradient of the embedding";
}

TEST_P(HipCode, AConvnetTrainingStep) {
  const mnist::Convnet net;
  nn::optim::Adam optim(nn::parameters(net), {.lr = 1e-3});
  Jit step = [&](const Tensor& images, const Tensor& labels) {
    TrainingMode on;
    optim.zero_grad();
    Tensor loss = net(images.cast(default_float()) / 255.0)
                      .sparse_categorical_crossentropy(labels)
                      .backward();
    optim.step();
    return loss;
  };
  step(numbers<uint8_t>({16, 1, 28, 28}), numbers<uint8_t>({16}));
  kernels_ = 0;
  check_kernels(schedule_of(step.captured_step()));
  EXPECT_GT(kernels_, 20);
}

TEST_P(HipCode, SortsScansAndAttention) {
  for (DType t : {DType::F32, DType::BF16, DType::F16, DType::F64}) {
    const Tensor x = Tensor::empty({3, 500}, t).is_param_().realize();
    check(x.sort().first);
    check(x.cumsum(1));
    const Tensor q = Tensor::empty({2, 3, 40, 16}, t).is_param_().realize();
    check(q.scaled_dot_product_attention(q, q, {}, {.is_causal = true}));
  }
}

TEST_P(HipCode, Elementwise) {
  for (DType t : {DType::F32, DType::BF16, DType::F16, DType::F64, DType::F8E4M3FN}) {
    const Tensor x = Tensor::empty({1027, 129}, t).is_param_().realize();
    check((x.sin() + x.exp() / x.log2() + x.sqrt()).tanh());
    check(x.cast(DType::I32).cast(t).transpose(0, 1).contiguous());
    check(x.sum(0));
    check(x.max(1));
    check(x.softmax(1));
  }
  for (DType t : {DType::I8, DType::U16, DType::I32, DType::U64, DType::I64}) {
    const Tensor x = Tensor::empty({1000, 7}, t).realize();
    check((x * x + x).sum(0));
    check((x / (x + 1)).cast(DType::F32));
  }
}

TEST_P(HipCode, Scatters) {
  for (DType t : {DType::F32, DType::F64, DType::BF16, DType::F16, DType::I8, DType::U64}) {
    for (bool based : {false, true}) {
      for (int64_t inner : {1, 96, 128}) {
        ScatterShape s = scatter(2, 100, 70, inner);
        s.dtype = t;
        if (based) s.base = t, s.in_place = inner == 96;
        s.index_outer = 100;
        check_code(compile_scatter(s, target_of(GetParam())), GetParam(), based ? 4 : 3);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, HipCode, testing::Values("gfx90a", "gfx942", "gfx1100", "gfx1201"),
                         [](const auto& info) { return info.param; });

TEST(HipTarget, NamesOfNewGpusAreThoseOfTheirFamily) {
  EXPECT_EQ(hip::gpu_target("gfx942").cpu, "gfx942");
  EXPECT_EQ(hip::gpu_target("gfx1153").cpu, "gfx11-generic");
  EXPECT_EQ(hip::gpu_target("gfx1037").cpu, "gfx10-3-generic");
  for (const char* unknown : {"gfx950", "gfx803", "gfx1300", ""})
    EXPECT_THROW(hip::gpu_target(unknown), DeviceError) << unknown;
}

TEST(HipTarget, GenericCodeIsMade) {
  const ScatterShape s = scatter(1, 10, 7, 3);
  for (const char* family : {"gfx10-3-generic", "gfx11-generic", "gfx12-generic"}) {
    const ObjectCode code = compile_scatter(s, target_of(family));
    EXPECT_TRUE(hip::find_descriptor(code.bytes, code.entry)) << family;
  }
}

TEST(HipCodeObject, OthersFilesHaveNoKernels) {
  EXPECT_FALSE(hip::find_descriptor({}, "x"));
  const std::vector<char> zeros(4096);
  EXPECT_FALSE(hip::find_descriptor(zeros, "x"));
  const ScatterShape s = scatter(1, 10, 7, 3);
  std::vector<char> code = compile_scatter(s, target_of("gfx942")).bytes;
  while (code.size() > 100) {
    code.resize(code.size() - 97);
    hip::find_descriptor(code, "scatter");  // reads nothing behind the end
  }
}

}  // namespace
}  // namespace tinyshard::code_test
