// The only file that drives LLVM for GPUs: the usual passes, then text that the GPU's driver makes
// machine code of.
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

ObjectCode build_code(const Graph& graph, const GpuPlan& plan, const Target& target,
                      const std::string& name, PhaseTimes& times) {
  ObjectCode code;
  code.entry = name;
  code.work_items = plan.blocks;
  code.block = plan.block;
  if (plan.blocks == 0) return code;
  double start = thread_cpu_ms();
  const GpuDialect& dialect = *GpuDialect::of(target);
  std::unique_ptr<llvm::TargetMachine> machine = make_machine(target, dialect);
  auto context = std::make_unique<llvm::LLVMContext>();
  const CodeForm read = listings_are_read();
  context->setDiscardValueNames(read < CodeForm::Llvm);
  auto owned = std::make_unique<llvm::Module>(name, *context);
  llvm::Module& module = *owned;
  module.setTargetTriple(target.triple);
  module.setDataLayout(machine->createDataLayout());
  Emitter emitter(graph, plan, target, module);
  emitter.emit_entry(name);
  code.coordinates = emitter.coordinates();
  code.waits_itself = emitter.waits_itself();
  if (options().spec > 0 || read >= CodeForm::Llvm) {
    std::string message;
    llvm::raw_string_ostream out(message);
    if (llvm::verifyModule(module, &out))
      throw InternalError("kernel " + name + ": " + message + "\n" + text_of(module));
  }
  double emitted = thread_cpu_ms();
  optimise(module, *machine);
  double optimised = thread_cpu_ms();
  if (read >= CodeForm::Llvm) show(name, "LLVM", text_of(module));

  llvm::SmallVector<char, 0> text;
  llvm::raw_svector_ostream out(text);
  auto passes = std::make_unique<llvm::legacy::PassManager>();
  if (machine->addPassesToEmitFile(*passes, out, nullptr, llvm::CodeGenFileType::AssemblyFile))
    throw InternalError("LLVM emits no text for " + target.triple);
  try {
    with_llvm_failures([&] { passes->run(module); });
  } catch (const LlvmFailure& failure) {
    left_behind(std::move(passes));
    left_behind(std::move(owned));
    left_behind(std::move(context));
    left_behind(std::move(machine));
    throw InternalError("kernel " + name + ": LLVM finds no instructions: " + failure.what());
  }
  if (read >= CodeForm::Assembly) show(name, dialect.words().form, {text.data(), text.size()});
  const std::string finished = dialect.finished({text.data(), text.size()}, plan.cluster);
  code.bytes.assign(finished.begin(), finished.end());
  code.bytes.push_back('\0');
  times.emit_ms += emitted - start;
  times.optimise_ms += optimised - emitted;
  times.codegen_ms += thread_cpu_ms() - optimised;
  return code;
}

}  // namespace tinyshard::codegen::gpu
