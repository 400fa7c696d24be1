// Compiles kernels of the tests.
#include "tests/amdgpu/kernels.h"

#include <cstdio>
#include <cstdlib>
#include <elf.h>
#include <fstream>
#include <iterator>
#include <llvm-c/Core.h>
#include <llvm-c/IRReader.h>
#include <llvm-c/Target.h>
#include <llvm-c/TargetMachine.h>
#include <mutex>
#include <stdexcept>
#include <unistd.h>

#include "tests/amdgpu/wave.h"

namespace amdgpu_emulator {
namespace {

constexpr const char* kTriple = "amdgcn-amd-amdhsa";

void initialize() {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeAMDGPUTargetInfo();
    LLVMInitializeAMDGPUTarget();
    LLVMInitializeAMDGPUTargetMC();
    LLVMInitializeAMDGPUAsmPrinter();
    LLVMInitializeAMDGPUAsmParser();  // for asm in IR
  });
}

[[noreturn]] void fail(char* message) {
  throw std::runtime_error(message == nullptr ? "LLVM failed" : message);
}

std::string object_of(const std::string& ir, const std::string& target) {
  initialize();
  LLVMContextRef context = LLVMContextCreate();
  LLVMMemoryBufferRef text =
      LLVMCreateMemoryBufferWithMemoryRangeCopy(ir.data(), ir.size(), "test.ll");
  LLVMModuleRef module = nullptr;
  char* message = nullptr;
  if (LLVMParseIRInContext(context, text, &module, &message) != 0) {
    fail(message);
  }
  LLVMTargetRef made_for = nullptr;
  if (LLVMGetTargetFromTriple(kTriple, &made_for, &message) != 0) {
    fail(message);
  }
  LLVMTargetMachineRef machine =
      LLVMCreateTargetMachine(made_for, kTriple, target.c_str(), "", LLVMCodeGenLevelDefault,
                              LLVMRelocPIC, LLVMCodeModelDefault);
  LLVMMemoryBufferRef object = nullptr;
  if (LLVMTargetMachineEmitToMemoryBuffer(machine, module, LLVMObjectFile, &message, &object) !=
      0) {
    fail(message);
  }
  std::string bytes(LLVMGetBufferStart(object), LLVMGetBufferSize(object));
  LLVMDisposeMemoryBuffer(object);
  LLVMDisposeTargetMachine(machine);
  LLVMDisposeModule(module);
  LLVMContextDispose(context);
  return bytes;
}

// A file that goes with its object.
class ScratchFile {
 public:
  ScratchFile() {
    char name[] = "/tmp/amdgpu_emulator_XXXXXX";
    const int file = mkstemp(name);
    if (file < 0) {
      throw std::runtime_error("no temporary file can be made");
    }
    close_ = fdopen(file, "wb");
    name_ = name;
  }
  ~ScratchFile() {
    std::fclose(close_);
    std::remove(name_.c_str());
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  [[nodiscard]] const std::string& name() const { return name_; }
  void write(const std::string& bytes) {
    std::fwrite(bytes.data(), 1, bytes.size(), close_);
    std::fflush(close_);
  }

 private:
  std::FILE* close_ = nullptr;
  std::string name_;
};

std::uint64_t file_offset(const std::vector<std::uint8_t>& file, std::uint64_t address) {
  Elf64_Ehdr header;
  std::memcpy(&header, file.data(), sizeof header);
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    std::memcpy(&segment, file.data() + header.e_phoff + i * sizeof segment, sizeof segment);
    if (segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
        address - segment.p_vaddr < segment.p_filesz) {
      return address - segment.p_vaddr + segment.p_offset;
    }
  }
  throw std::runtime_error("no segment");
}

}  // namespace

std::vector<std::uint8_t> compile(const std::string& ir, const std::string& target) {
  ScratchFile object;
  ScratchFile linked;
  object.write(object_of("target triple = \"" + std::string(kTriple) + "\"\n" + ir, target));
  const std::string command =
      std::string(AMDGPU_EMULATOR_LLD) + " -shared " + object.name() + " -o " + linked.name();
  if (std::system(command.c_str()) != 0) {
    throw std::runtime_error("lld failed: " + command);
  }
  std::ifstream in(linked.name(), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string declarations() {
  return R"(
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workitem.id.y()
declare i32 @llvm.amdgcn.workgroup.id.x()
declare void @llvm.amdgcn.s.barrier()
attributes #0 = { "amdgpu-flat-work-group-size"="1,1024" "amdgpu-no-dispatch-ptr" "amdgpu-no-queue-ptr" "uniform-work-group-size"="true" }
)";
}

std::string kernel_ir(const std::string& name, int pointers, int threads, const std::string& body) {
  std::string out = "define amdgpu_kernel void @" + name + "(";
  for (int i = 0; i < pointers; ++i) {
    out += std::string(i == 0 ? "" : ", ") + "ptr addrspace(1) %p" + std::to_string(i);
  }
  out += ") #0 {\nentry:\n";
  out +=
      "  %t = call i32 @llvm.amdgcn.workitem.id.x()\n  %w = call i32 "
      "@llvm.amdgcn.workgroup.id.x()\n";
  out += "  %wt = mul i32 %w, " + std::to_string(threads) +
         "\n  %i = add i32 %wt, %t\n  %x = zext i32 %i to i64\n";
  return out + body + "\n}\n";
}

bool change_instruction(std::vector<std::uint8_t>& file, const std::string& target,
                        std::string_view name, int number, unsigned word, std::uint32_t clear,
                        std::uint32_t set) {
  DeviceMemory memory(1, 1ULL << 26);
  const CodeObject object(file, target, memory, 0);
  for (const auto& [kernel_name, kernel] : object.kernels()) {
    for (std::uint64_t pc = kernel.entry;;) {
      const Instruction& in = kernel.code->at(pc);
      const std::string_view text(in.text);
      if (text.substr(0, text.find(' ')) == name && number-- == 0) {
        // Modules begin at the address 0 of their file.
        const std::uint64_t at = file_offset(file, pc + std::uint64_t{4} * word - object.base());
        std::uint32_t bits = 0;
        std::memcpy(&bits, file.data() + at, 4);
        bits = (bits & ~clear) | set;
        std::memcpy(file.data() + at, &bits, 4);
        return true;
      }
      if (in.name == "s_endpgm") {
        break;
      }
      pc += in.size;
    }
  }
  return false;
}

bool remove_instruction(std::vector<std::uint8_t>& file, const std::string& target,
                        std::string_view name, int number) {
  return change_instruction(file, target, name, number, 0, ~0U, 0xbf800000U);
}

LaunchCounts Device::run(const std::string& kernel, std::uint32_t blocks, std::uint32_t threads,
                         std::vector<std::uint64_t> arguments, int host_threads) {
  Launch launch;
  launch.kernel = module_->find(kernel);
  if (launch.kernel == nullptr) {
    throw std::runtime_error("no kernel " + kernel);
  }
  launch.blocks = {blocks, 1, 1};
  launch.threads = {threads, 1, 1};
  std::vector<void*> params;
  for (std::uint64_t& argument : arguments) {
    params.push_back(&argument);
  }
  launch.kernarg = argument_block(*launch.kernel, params.data(), launch.blocks, launch.threads);
  return amdgpu_emulator::run(launch, memory_, host_threads);
}

std::string Device::fault(const std::string& kernel, std::uint32_t blocks, std::uint32_t threads,
                          std::vector<std::uint64_t> arguments) {
  try {
    run(kernel, blocks, threads, std::move(arguments));
  } catch (const Fault& found) {
    return found.what();
  }
  return {};
}

}  // namespace amdgpu_emulator
