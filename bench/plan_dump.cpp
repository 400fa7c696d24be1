// The whole plan of a training step, or of decoding a token, as text, made without the device that it
// is for: two files of equal text are plans that do the same with the same bits.
// scripts/compare_plans.sh compares them.
//
//   plan_dump --model gpt2 --device h200 --out FILE
//   plan_dump --model gpt2 --device mi300x --out FILE --objects FOLDER      and each kernel's code
//
// A file holds the names of the passes and the steps of scheduling that ran, then of each schedule
// its buffers with their places in the arena, and its items in order: arguments, kernel graphs,
// digests of the machine code or PTX.
//
//   buffer 7 f32[3072] arena 4096                     bytes from the start of the arena
//   item 4 kernel reduce_3 (1 in, 1 out) mesh(data=1) buffers 7 2 reads 2 writes 7
//     code 9a0be4... 12 work items, block 128, shared 0
//     %0 = param f32 [0]
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/measure.h"
#include "core/base/hash.h"
#include "core/codegen/codegen.h"
#include "core/exec/context.h"
#include "core/exec/make_executable.h"
#include "core/exec/schedule_of.h"
#include "core/uop/args.h"
#include "examples/gpt2_step.h"
#include "examples/llama_model.h"
#include "examples/mnist_model.h"
#include "examples/train_gpt_model.h"

using namespace tinyshard;

namespace {

struct Flags {
  std::string model = "gpt2", device = "h200", out, objects;
  int devices = 1;
  bool code = true;
};

// --- text ----------------------------------------------------------------------------------------

std::string text_of(const StridedView& view) {
  return fmt::format("{} + {} by {}", view.offset, to_string(view.shape), to_string(view.strides));
}

// The fields of a library call beyond its node; the line of the item shows the node.
std::string text_of(const LibraryCall& call) {
  std::string text;
  for (const StridedView& view : call.operands) text += "  operand " + text_of(view) + "\n";
  for (const UOp& also : call.also) text += "  also " + describe(*also) + "\n";
  for (const StridedView& view : call.results) text += "  result " + text_of(view) + "\n";
  return text;
}

std::string text_of(const CompiledKernel& kernel) {
  const ObjectCode& code = kernel.code;
  const std::string_view bytes(code.bytes.data(), code.bytes.size());
  return fmt::format("  code {:016x} {} work items, {} at least, block {}, shared {}, {}\n",
                     hash_text(bytes), code.work_items, code.min_items, code.block,
                     code.shared_bytes, code.waits_itself ? "waits itself" : "in order");
}

class PlanText {
 public:
  // `objects`: a folder for the code of each kernel, or empty.
  PlanText(bool code, std::string objects) : code_(code), objects_(std::move(objects)) {}

  std::string operator()(const Schedule& schedule) {
    std::string text = fmt::format("roots {}\narena of {} bytes\n", fmt::join(schedule.roots, " "),
                                   schedule.arena_bytes);
    for (size_t b = 0; b < schedule.buffers.size(); ++b)
      text += fmt::format("buffer {} {}\n", b, of_buffer(schedule.buffers[b]));
    std::vector<std::string> codes = code_of(schedule);
    for (size_t i = 0; i < schedule.items.size(); ++i)
      text += fmt::format("item {} {}", i, of_item(schedule.items[i])) + codes[i];
    return text;
  }

 private:
  std::string of_buffer(const VirtualBuffer& b) {
    std::string text =
        fmt::format("{}{} {}", name(b.dtype), to_string(b.shape), b.mesh.to_string());
    if (b.storage) {
      int number = int(storages_.size());
      text +=
          fmt::format(" storage {}", storages_.try_emplace(b.storage.get(), number).first->second);
    }
    if (b.output) text += " output";
    if (b.previous >= 0) text += fmt::format(" version of {}", b.previous);
    if (b.container >= 0) text += fmt::format(" in {} at {}", b.container, b.container_offset);
    if (b.arena_offset >= 0) text += fmt::format(" arena {}", b.arena_offset);
    return text;
  }

  static std::string of_item(const Item& item) {
    std::string text = fmt::format("{} {} buffers {} reads {} writes {}", item.describe(),
                                   item.mesh.to_string(), fmt::join(item.buffers, " "),
                                   fmt::join(item.reads, " "), fmt::join(item.writes, " "));
    if (!item.waits.empty()) text += fmt::format(" waits for {}", fmt::join(item.waits, " "));
    if (!item.pieces.empty()) text += fmt::format(" pieces {}", fmt::join(item.pieces, " "));
    for (const CopyPart& part : item.parts)
      text += fmt::format(" part {} on axis {} of {}", part.axis, part.mesh_axis, part.parts);
    text += "\n";
    if (item.kind == Item::Kind::Library) text += text_of(item.call);
    if (item.kind != Item::Kind::Kernel) return text;
    for (const ParamInfo& p : item.kernel.params) {
      text += fmt::format("  param {} x {}{}", name(p.dtype), p.numel, p.written ? " written" : "");
      text += p.alias >= 0 ? fmt::format(" alias {}\n", p.alias) : "\n";
    }
    for (const UOp& r : item.kernel.loops)
      text += fmt::format("  loop {} of {}\n", range_arg(*r).id, range_arg(*r).size);
    return text + "  " + print(std::span(&item.kernel.sink, 1)) + "\n";
  }

  // Returns the code of each item, in order; empty for those that are no kernels.
  std::vector<std::string> code_of(const Schedule& schedule) const {
    std::vector<std::string> texts(schedule.items.size());
    if (!code_) return texts;
    Context& context = Context::get();
    for (size_t i = 0; i < schedule.items.size(); ++i) {
      const Item& item = schedule.items[i];
      if (item.kind != Item::Kind::Kernel) continue;
      const Target& target = context.device(item.mesh.devices()[0]).target();
      const KernelSource* source = &item.kernel;
      const auto kernel = compile_kernels(std::span(&source, 1), target)[0];
      texts[i] = text_of(*kernel);
      if (!objects_.empty()) write_object(i, *kernel);
    }
    return texts;
  }

  // The name holds the item, the bytes that it moves, its blocks and their threads.
  void write_object(size_t item, const CompiledKernel& kernel) const {
    const ObjectCode& code = kernel.code;
    const std::string path = fmt::format("{}/{}.{}.{}.{}.{}.o", objects_, item, kernel.bytes_moved,
                                         code.work_items, code.block, code.entry);
    std::ofstream file(path, std::ios::binary);
    file.write(code.bytes.data(), std::streamsize(code.bytes.size()));
    file.close();
    if (!file) throw UserError(fmt::format("--objects {}: cannot be written", path));
  }

  std::map<const void*, int> storages_;  // numbered as they appear
  bool code_;
  std::string objects_;
};

// --- the programs --------------------------------------------------------------------------------

using Visit = std::function<void(const Schedule&)>;

// An input that the host gives; its values do not matter.
template <class T>
Tensor numbers(const Dims& shape) {
  return Tensor(std::vector<T>(size_t(product(shape))), shape);
}

void plan_gpt2(const Mesh& mesh, const Visit& visit) {
  gpt2::Config config;
  set_default_float(promote(config.compute, DType::F32));
  const gpt2::Model model(config);
  nn::data_parallel(model, mesh, "data");
  gpt2::Optimizer optim(nn::parameters(model), {});
  gpt2::Step step(model, optim, mesh, 1);
  const int64_t sequences = 64;
  Tensor batch = numbers<int32_t>({sequences, config.context + 1});
  for (const CapturedStep* part : step.parts(batch)) visit(schedule_of(*part));
}

// A step of training, captured on these inputs; `loss_of` takes them in the order given.
template <class Optimizer, class LossOf, class... Inputs>
void plan_step(Optimizer& optim, const Mesh& mesh, const LossOf& loss_of, const Visit& visit,
               const Inputs&... inputs) {
  Jit step = [&](Inputs... x) {
    TrainingMode on;
    optim.zero_grad();
    Tensor loss = loss_of(x.shard(mesh, {{"data", Shard(0)}})...).backward();
    optim.step();
    return loss;
  };
  step(inputs...);
  visit(schedule_of(step.captured_step()));
}

void plan_mnist(const Mesh& mesh, const Visit& visit) {
  const mnist::Convnet net;
  nn::data_parallel(net, mesh, "data");
  nn::optim::Adam optim(nn::parameters(net), {.lr = 1e-3});
  auto loss_of = [&](const Tensor& images, const Tensor& labels) {
    return net(images.cast(default_float()) / 255.0).sparse_categorical_crossentropy(labels);
  };
  const int64_t images = 128;
  plan_step(optim, mesh, loss_of, visit, numbers<uint8_t>({images, 1, 28, 28}),
            numbers<uint8_t>({images}));
}

void plan_quickstart(const Mesh& mesh, const Visit& visit) {
  const gpt::Config config;
  const gpt::Model model(config);
  nn::data_parallel(model, mesh, "data");
  nn::optim::AdamW optim(nn::parameters(model), {.lr = 2e-3, .weight_decay = 0.1});
  auto loss_of = [&](const Tensor& text) { return model.loss(text); };
  const int64_t sequences = 8;
  plan_step(optim, mesh, loss_of, visit, numbers<int32_t>({sequences, config.context + 1}));
}

// A token behind others, by a Llama of 1B with two of its blocks, in bf16.
void plan_decode(const Mesh& mesh, const Visit& visit) {
  set_default_float(DType::BF16);
  ModelConfig config;
  config.family = "llama";
  config.layers = 2, config.width = 2048, config.heads = 32, config.kv_heads = 8;
  config.head_width = 64, config.hidden = 8192, config.vocabulary = 128256, config.context = 4096;
  const llama::Model model(config);
  llama::place(model, config, mesh, "data");
  const llama::Turns turns = llama::turns(config, config.context, mesh);
  const auto caches = llama::caches(config, config.context, mesh, "data");
  Variable pos("pos", 0, config.context - 1);
  Jit step = [&](Tensor token, Variable p) {
    return model.next(token.shard(mesh), p, turns, caches).argmax(-1).cast(DType::I32);
  };
  step(numbers<int32_t>({1}), pos.bind(3));
  visit(schedule_of(step.captured_step()));
}

void dump(const Flags& f) {
  const std::map<std::string, std::string> kDevices{
      {"h200", "NULL_H200"}, {"mi300x", "NULL_MI300X"}, {"rx7900", "NULL_RX7900"}, {"cpu", "NULL"}};
  Runtime::configure({.devices = {kDevices.at(f.device)}, .devices_per_rank = f.devices});
  const Mesh mesh = Mesh::world({{"data", -1}});
  const Target& target = Context::get().device(mesh.devices()[0]).target();
  std::string text = fmt::format("{} on {} of {} {} {}\npasses", f.model, f.devices, target.triple,
                                 target.cpu, target.features);
  for (const StepName& step : known_steps()) {
    if (!is_disabled(step.name)) text += fmt::format(" {}", step.name);
  }
  text += "\n";
  PlanText text_of(f.code, f.objects);
  Tensor::manual_seed(1);
  auto visit = [&](const Schedule& schedule) { text += text_of(schedule); };
  const std::map<std::string, std::function<void(const Mesh&, const Visit&)>> kModels{
      {"gpt2", plan_gpt2},
      {"mnist", plan_mnist},
      {"quickstart", plan_quickstart},
      {"decode", plan_decode}};
  kModels.at(f.model)(mesh, visit);
  std::ofstream file(f.out);
  file << text;
  file.close();
  if (!file) throw UserError(fmt::format("--out {}: cannot be written", f.out));
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  Flags f;
  CLI::App app("Writes the plan of a training step, for a device that need not be there.");
  app.option_defaults()->always_capture_default();
  app.add_option("--model", f.model,
                 "GPT-2 124M, the MNIST convnet, the quickstart's GPT, a token of a Llama")
      ->check(CLI::IsMember({"gpt2", "mnist", "quickstart", "decode"}));
  app.add_option("--device", f.device, "A GPU, or this machine's CPU")
      ->check(CLI::IsMember({"h200", "mi300x", "rx7900", "cpu"}));
  app.add_option("--devices", f.devices, "That share each batch")->check(CLI::PositiveNumber);
  app.add_option("--out", f.out, "File to write")->required();
  app.add_flag("!--no-code", f.code,
               "Leave out the digests of the kernels' code, which takes a compiler's time");
  app.add_option("--objects", f.objects, "Folder to write the code of each kernel to")
      ->check(CLI::ExistingDirectory);
  return bench::run_main("plan_dump", app, argc, argv, [&] { dump(f); });
}
