// The only file that drives LLVM's passes. Each thread keeps a TargetMachine; contexts live for one
// kernel.
#include "core/codegen/backend.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <mutex>

#include <fmt/format.h>
#include <llvm/ADT/SmallVector.h>
#include <llvm/Analysis/CGSCCPassManager.h>
#include <llvm/Analysis/LoopAnalysisManager.h>
#include <llvm/ExecutionEngine/JITLink/JITLink.h>
#include <llvm/ExecutionEngine/JITLink/JITLinkMemoryManager.h>
#include <llvm/ExecutionEngine/JITLink/aarch64.h>
#include <llvm/ExecutionEngine/JITLink/x86_64.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/SmallVectorMemoryBuffer.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Triple.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>
#include <llvm/Transforms/Scalar/SimplifyCFG.h>
#include <llvm/Transforms/Utils/Cloning.h>

#include "core/base/error.h"
#include "core/base/observer.h"
#include "core/base/options.h"
#include "core/codegen/emit.h"
#include "core/codegen/llvm_failure.h"
#include "core/runtime/image.h"

namespace tinyshard::codegen {
namespace {

void show(const std::string& kernel, const char* form, std::string text) {
  observe([&] {
    return ObservedEvent{.kind = EventKind::Listing,
                         .name = fmt::format("{} of kernel {}", form, kernel),
                         .after = std::move(text)};
  });
}

std::unique_ptr<llvm::TargetMachine> make_machine(const Target& target) {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
  });
  std::string error;
  const llvm::Target* found = llvm::TargetRegistry::lookupTarget(target.triple, error);
  if (!found) throw InternalError("LLVM has no target " + target.triple + ": " + error);
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Standard;
  options.NoTrappingFPMath = true;
  std::unique_ptr<llvm::TargetMachine> machine(found->createTargetMachine(
      target.triple, target.cpu, target.features, options, llvm::Reloc::PIC_,
      llvm::CodeModel::Small, llvm::CodeGenOptLevel::Default, true));
  if (!machine) throw InternalError("LLVM makes no code for " + target.cpu);
  return machine;
}

// A TargetMachine serves one kernel at a time. Making one takes as long as a small kernel, and
// compiling threads come and go: machines are kept and lent.
class Machine {
 public:
  explicit Machine(const Target& target) : target_(target) {
    {
      std::lock_guard lock(mutex());
      for (auto& idle : idle_machines()) {
        if (idle.second && idle.first == target) {
          machine_ = std::move(idle.second);
          break;
        }
      }
      std::erase_if(idle_machines(), [](auto& idle) { return !idle.second; });
    }
    if (!machine_) machine_ = make_machine(target);
  }
  ~Machine() {
    if (!machine_) return;
    std::lock_guard lock(mutex());
    idle_machines().emplace_back(target_, std::move(machine_));
  }
  Machine(const Machine&) = delete;
  llvm::TargetMachine& operator*() { return *machine_; }
  std::unique_ptr<llvm::TargetMachine> taken() { return std::move(machine_); }

 private:
  using Idle = std::vector<std::pair<Target, std::unique_ptr<llvm::TargetMachine>>>;
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static Idle& idle_machines() {
    static Idle* idle = new Idle;  // outlives LLVM's own statics
    return *idle;
  }
  const Target& target_;
  std::unique_ptr<llvm::TargetMachine> machine_;
};

void optimise(llvm::Module& module, llvm::TargetMachine& machine) {
  // The IR comes with values already in place and vectors explicit; what is left is redundancy.
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager graphs;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&machine);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(graphs);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, graphs, modules);
  llvm::FunctionPassManager passes;
  passes.addPass(llvm::SimplifyCFGPass());
  passes.addPass(llvm::EarlyCSEPass(false));
  for (llvm::Function& function : module) {
    if (!function.isDeclaration()) passes.run(function, functions);
  }
}

// Code generation changes its module, and where LLVM gives up the module stays with the passes.
llvm::SmallVector<char, 0> emit_file(std::unique_ptr<llvm::Module> module,
                                     llvm::TargetMachine& machine, llvm::CodeGenFileType type) {
  llvm::SmallVector<char, 0> bytes;
  llvm::raw_svector_ostream out(bytes);
  auto passes = std::make_unique<llvm::legacy::PassManager>();
  if (machine.addPassesToEmitFile(*passes, out, nullptr, type))
    throw InternalError("LLVM emits no object for this target");
  try {
    with_llvm_failures([&] { passes->run(*module); });
  } catch (const LlvmFailure&) {
    left_behind(std::move(passes));
    left_behind(std::move(module));
    throw;
  }
  return bytes;
}

// --- object to image -----------------------------------------------------------------------------

// Lays all sections out one behind the other and keeps the linked bytes.
class ImageMemory : public llvm::jitlink::JITLinkMemoryManager {
 public:
  static constexpr uint64_t kBase =
      1 << 20;  // any page-aligned address: the code does not depend on it
  std::vector<char> bytes;
  uint64_t alignment = 64;

  void allocate(const llvm::jitlink::JITLinkDylib*, llvm::jitlink::LinkGraph& graph,
                OnAllocatedFunction allocated) override {
    llvm::jitlink::BasicLayout layout(graph);
    uint64_t size = 0;
    for (auto& [lifetime, segment] : layout.segments()) {
      alignment = std::max<uint64_t>(alignment, segment.Alignment.value());
      size = llvm::alignTo(size, alignment);
      segment.Addr = llvm::orc::ExecutorAddr(kBase + size);
      size += segment.ContentSize + segment.ZeroFillSize;
    }
    bytes.assign(size, 0);
    for (auto& [lifetime, segment] : layout.segments())
      segment.WorkingMem = bytes.data() + (segment.Addr.getValue() - kBase);
    if (auto error = layout.apply()) {
      allocated(std::move(error));
      return;
    }
    allocated(std::make_unique<Allocation>());
  }
  using JITLinkMemoryManager::allocate;
  void deallocate(std::vector<FinalizedAlloc> allocations, OnDeallocatedFunction done) override {
    for (auto& a : allocations) a.release();
    done(llvm::Error::success());
  }
  using JITLinkMemoryManager::deallocate;

 private:
  struct Allocation : InFlightAlloc {
    void abandon(OnAbandonedFunction done) override { done(llvm::Error::success()); }
    void finalize(OnFinalizedFunction done) override {
      done(FinalizedAlloc(llvm::orc::ExecutorAddr(kBase)));
    }
  };
};

bool absolute(const llvm::Triple& triple, llvm::jitlink::Edge::Kind kind) {
  namespace x86 = llvm::jitlink::x86_64;
  namespace arm = llvm::jitlink::aarch64;
  if (triple.isAArch64()) return kind == arm::Pointer64 || kind == arm::Pointer32;
  return kind == x86::Pointer64 || kind == x86::Pointer32 || kind == x86::Pointer32Signed ||
         kind == x86::Pointer16 || kind == x86::Pointer8;
}

class ImageContext : public llvm::jitlink::JITLinkContext {
 public:
  struct Result {
    std::string error;
    uint64_t entry = 0;
  };
  ImageContext(ImageMemory& memory, std::string name, Result& result)
      : JITLinkContext(nullptr), memory_(memory), name_(std::move(name)), result_(result) {}

  llvm::jitlink::JITLinkMemoryManager& getMemoryManager() override { return memory_; }
  void notifyFailed(llvm::Error error) override {
    result_.error = llvm::toString(std::move(error));
  }
  void lookup(const LookupMap& symbols,
              std::unique_ptr<llvm::jitlink::JITLinkAsyncLookupContinuation> next) override {
    std::string names;
    for (auto& [symbol, flags] : symbols) names += " " + symbol.str();
    next->run(llvm::make_error<llvm::StringError>("code calls functions outside of itself:" + names,
                                                  llvm::inconvertibleErrorCode()));
  }
  llvm::Error notifyResolved(llvm::jitlink::LinkGraph& graph) override {
    for (auto* symbol : graph.defined_symbols()) {
      if (symbol->hasName() && symbol->getName() == name_)
        result_.entry = symbol->getAddress().getValue() - ImageMemory::kBase;
    }
    for (auto* block : graph.blocks()) {
      for (auto& edge : block->edges()) {
        if (absolute(graph.getTargetTriple(), edge.getKind())) {
          return llvm::make_error<llvm::StringError>("code holds an absolute address",
                                                     llvm::inconvertibleErrorCode());
        }
      }
    }
    return llvm::Error::success();
  }
  void notifyFinalized(llvm::jitlink::JITLinkMemoryManager::FinalizedAlloc allocation) override {
    allocation.release();
  }
  llvm::Error modifyPassConfig(llvm::jitlink::LinkGraph&,
                               llvm::jitlink::PassConfiguration&) override {
    return llvm::Error::success();
  }

 private:
  ImageMemory& memory_;
  std::string name_;
  Result& result_;
};

std::vector<char> link_image(llvm::ArrayRef<char> object, const std::string& name) {
  auto graph = llvm::jitlink::createLinkGraphFromObject(
      llvm::MemoryBufferRef(llvm::StringRef(object.data(), object.size()), name));
  if (!graph) throw InternalError("kernel " + name + ": " + llvm::toString(graph.takeError()));
  ImageMemory memory;
  ImageContext::Result result;
  llvm::jitlink::link(std::move(*graph), std::make_unique<ImageContext>(memory, name, result));
  if (!result.error.empty()) throw InternalError("kernel " + name + ": " + result.error);
  ImageHeader header;
  header.alignment = static_cast<uint32_t>(memory.alignment);
  header.entry = result.entry;
  header.size = memory.bytes.size();
  std::vector<char> image(sizeof(header) + memory.bytes.size());
  std::memcpy(image.data(), &header, sizeof(header));
  std::memcpy(image.data() + sizeof(header), memory.bytes.data(), memory.bytes.size());
  return image;
}

std::string text_of(const llvm::Module& module) {
  std::string text;
  llvm::raw_string_ostream out(text);
  module.print(out, nullptr);
  return text;
}

}  // namespace

double thread_cpu_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

namespace {

// A module and what LLVM makes of it. `width`: of the registers for vectors; the values depend
// neither on it nor on the target's extensions.
std::vector<char> build_for_width(const Graph& graph, const Plan& plan, const Target& target,
                                  const std::string& name, int width, PhaseTimes& times) {
  double start = thread_cpu_ms();
  Machine lent(target);
  llvm::TargetMachine& machine = *lent;
  auto context = std::make_unique<llvm::LLVMContext>();
  const CodeForm read = listings_are_read();
  context->setDiscardValueNames(read < CodeForm::Llvm);
  auto module = std::make_unique<llvm::Module>(name, *context);
  module->setTargetTriple(target.triple);
  module->setDataLayout(machine.createDataLayout());
  Emitter(graph, plan, target, *module).emit_entry(name);
  for (llvm::Function& function : *module) {
    if (function.isDeclaration()) continue;
    function.addFnAttr("target-cpu", target.cpu);
    function.addFnAttr("target-features", target.features);
    function.addFnAttr("prefer-vector-width", std::to_string(width));
    function.addFnAttr("min-legal-vector-width", std::to_string(width));
  }
  if (options().spec > 0 || read >= CodeForm::Llvm) {
    std::string message;
    llvm::raw_string_ostream out(message);
    if (llvm::verifyModule(*module, &out))
      throw InternalError("kernel " + name + ": " + message + "\n" + text_of(*module));
  }
  double emitted = thread_cpu_ms();
  optimise(*module, machine);
  double optimised = thread_cpu_ms();
  if (read >= CodeForm::Llvm) show(name, "LLVM", text_of(*module));
  double before_object = 0;
  llvm::SmallVector<char, 0> object;
  try {
    if (read >= CodeForm::Assembly) {
      auto text =
          emit_file(llvm::CloneModule(*module), machine, llvm::CodeGenFileType::AssemblyFile);
      show(name, "assembly", {text.data(), text.size()});
    }
    before_object = thread_cpu_ms();
    object = emit_file(std::move(module), machine, llvm::CodeGenFileType::ObjectFile);
  } catch (const LlvmFailure&) {
    if (module) left_behind(std::move(module));
    left_behind(std::move(context));
    left_behind(lent.taken());
    throw;
  }
  double generated = thread_cpu_ms();
  std::vector<char> image = link_image(object, name);
  times.emit_ms += emitted - start;
  times.optimise_ms += optimised - emitted;
  times.codegen_ms += generated - before_object;
  times.link_ms += thread_cpu_ms() - generated;
  return image;
}

// "+avx512f,+avx512vl,+fma" -> "-avx512f,-avx512vl,+fma"
void switch_off(std::string& features, std::string_view family) {
  const std::string on = "+" + std::string(family);
  for (size_t at = 0; (at = features.find(on, at)) != std::string::npos;) features[at] = '-';
}

}  // namespace

// LLVM 19 finds no instructions for some vectors in registers of 512 bits, and does for the same in
// narrower ones, without the extensions that came with 512 bits.
std::vector<char> build_image(const Graph& graph, const Plan& plan, const Target& target,
                              const std::string& name, PhaseTimes& times) {
  std::string reason;
  Target narrowed = target;
  for (int width = target.vector_bits; width >= 128; width /= 2) {
    try {
      return build_for_width(graph, plan, narrowed, name, width, times);
    } catch (const LlvmFailure& failure) {
      reason = failure.what();
    }
    switch_off(narrowed.features, "avx512");
    switch_off(narrowed.features, "avx10");
  }
  throw InternalError("kernel " + name + ": LLVM finds no instructions: " + reason);
}

}  // namespace tinyshard::codegen
