// The only file that drives LLVM for GPUs: the usual passes, then what the GPU's driver takes, text that
// it makes machine code of or an object.
#include "core/codegen/gpu/backend.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <llvm/ADT/SmallVector.h>
#include <llvm/Analysis/CGSCCPassManager.h>
#include <llvm/Analysis/LoopAnalysisManager.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/MCSubtargetInfo.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/Transforms/Utils/Cloning.h>

#include "core/base/error.h"
#include "core/base/observer.h"
#include "core/base/options.h"
#include "core/codegen/gpu/gpu_emit.h"
#include "core/codegen/llvm_failure.h"

namespace tinyshard::codegen::gpu {
namespace {

std::unique_ptr<llvm::TargetMachine> make_machine(const Target& target, const GpuDialect& dialect) {
  dialect.initialise();
  std::string error;
  const llvm::Target* found = llvm::TargetRegistry::lookupTarget(target.triple, error);
  if (!found) throw InternalError("LLVM has no target " + target.triple + ": " + error);
  // It would go on with its oldest one.
  std::unique_ptr<llvm::MCSubtargetInfo> known(found->createMCSubtargetInfo(target.triple, "", ""));
  if (!known->isCPUStringValid(target.cpu))
    throw InternalError("LLVM knows no GPU of architecture " + target.cpu);
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Standard;
  options.NoTrappingFPMath = true;
  std::unique_ptr<llvm::TargetMachine> machine(
      found->createTargetMachine(target.triple, target.cpu, target.features, options,
                                 llvm::Reloc::PIC_, std::nullopt, llvm::CodeGenOptLevel::Default));
  if (!machine) throw InternalError("LLVM makes no code for " + target.cpu);
  return machine;
}

void optimise(llvm::Module& module, llvm::TargetMachine& machine) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager graphs;
  llvm::ModuleAnalysisManager modules;
  llvm::PipelineTuningOptions tuning;
  tuning.LoopVectorization = false;  // what is worth a vector is one already
  tuning.SLPVectorization = false;
  llvm::PassBuilder builder(&machine, tuning);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(graphs);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, graphs, modules);
  builder.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O2).run(module, modules);
}

// Throws LlvmFailure, after which module and machine can be left behind only.
llvm::SmallVector<char, 0> machine_code(llvm::TargetMachine& machine, llvm::Module& module,
                                        bool object) {
  llvm::SmallVector<char, 0> code;
  llvm::raw_svector_ostream out(code);
  auto passes = std::make_unique<llvm::legacy::PassManager>();
  if (machine.addPassesToEmitFile(
          *passes, out, nullptr,
          object ? llvm::CodeGenFileType::ObjectFile : llvm::CodeGenFileType::AssemblyFile))
    throw InternalError("LLVM emits no code for " + machine.getTargetTriple().str());
  try {
    with_llvm_failures([&] { passes->run(module); });
  } catch (const LlvmFailure&) {
    left_behind(std::move(passes));
    throw;
  }
  return code;
}

std::string text_of(const llvm::Module& module) {
  std::string text;
  llvm::raw_string_ostream out(text);
  module.print(out, nullptr);
  return text;
}

void show(const std::string& kernel, const char* form, std::string text) {
  observe([&] {
    return ObservedEvent{.kind = EventKind::Listing,
                         .name = fmt::format("{} of kernel {}", form, kernel),
                         .after = std::move(text)};
  });
}

}  // namespace

std::vector<char> build_module(const Target& target, const std::string& name, int cluster,
                               PhaseTimes& times, const std::function<void(llvm::Module&)>& fill) {
  const double start = thread_cpu_ms();
  const GpuDialect& dialect = *GpuDialect::of(target);
  std::unique_ptr<llvm::TargetMachine> machine = make_machine(target, dialect);
  auto context = std::make_unique<llvm::LLVMContext>();
  const CodeForm read = listings_are_read();
  context->setDiscardValueNames(read < CodeForm::Llvm);
  auto owned = std::make_unique<llvm::Module>(name, *context);
  llvm::Module& module = *owned;
  module.setTargetTriple(target.triple);
  module.setDataLayout(machine->createDataLayout());
  fill(module);
  dialect.prepare(module, target);
  if (options().spec > 0 || read >= CodeForm::Llvm) {
    std::string message;
    llvm::raw_string_ostream out(message);
    if (llvm::verifyModule(module, &out))
      throw InternalError("kernel " + name + ": " + message + "\n" + text_of(module));
  }
  const double emitted = thread_cpu_ms();
  optimise(module, *machine);
  const double optimised = thread_cpu_ms();
  if (read >= CodeForm::Llvm) show(name, "LLVM", text_of(module));

  const bool objects = dialect.words().objects, listed = read >= CodeForm::Assembly;
  llvm::SmallVector<char, 0> written, listing;
  try {
    // The passes change the module: what is to be read besides an object is made of a copy.
    auto copy = objects && listed ? llvm::CloneModule(module) : nullptr;
    written = machine_code(*machine, module, objects);
    if (copy) listing = machine_code(*machine, *copy, false);
  } catch (const LlvmFailure& failure) {
    left_behind(std::move(owned));
    left_behind(std::move(context));
    left_behind(std::move(machine));
    throw InternalError("kernel " + name + ": LLVM finds no instructions: " + failure.what());
  }
  const auto& text = objects ? listing : written;
  if (listed) show(name, dialect.words().form, {text.data(), text.size()});
  std::vector<char> code = dialect.finished({written.data(), written.size()}, cluster);
  times.emit_ms += emitted - start;
  times.optimise_ms += optimised - emitted;
  times.codegen_ms += thread_cpu_ms() - optimised;
  return code;
}

ObjectCode build_code(const Graph& graph, const GpuPlan& plan, const Target& target,
                      const std::string& name, PhaseTimes& times) {
  ObjectCode code;
  code.entry = name;
  code.work_items = plan.blocks;
  code.block = plan.block;
  if (plan.blocks == 0) return code;
  code.bytes = build_module(target, name, plan.cluster, times, [&](llvm::Module& module) {
    Emitter emitter(graph, plan, target, module);
    emitter.emit_entry(name);
    code.coordinates = emitter.coordinates();
    code.waits_itself = emitter.waits_itself();
  });
  return code;
}

}  // namespace tinyshard::codegen::gpu
