// Times real kernels: reads the kernels that a program logged under DEBUG=4, compiles each, and
// runs it on made-up data. Shows where generated code is far from the machine's limits.
//   DEBUG=4 TS_CACHE=0 program 2> log;  kernel_replay log [threads] [filter]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <sys/mman.h>
#include <vector>

#include "core/codegen/codegen.h"
#include "core/uop/args.h"
#include "devices/cpu/program.h"

using namespace tinyshard;

namespace {

// CPU time with one thread, so that other programs disturb less.
bool use_cpu_time = false;
double seconds() {
  if (!use_cpu_time)
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::map<std::string, Op, std::less<>> op_names() {
  std::map<std::string, Op, std::less<>> names;
  for (int i = 0; i < kOps; ++i)
    names[std::string(info(static_cast<Op>(i)).name)] = static_cast<Op>(i);
  return names;
}

// Parses a line of print(): "%5 = range index [1001, 64, 1]", "%9 = fold f32 sum %7 %5", "%4 =
// const f32[] 0.5".
UOp parse_node(const std::string& line, const std::vector<UOp>& nodes) {
  static const auto ops = op_names();
  std::istringstream in(line);
  std::string number, equals, op_name, type, word;
  in >> number >> equals >> op_name >> type;
  Op op = ops.at(op_name);
  std::string type_name = type.substr(0, type.find('['));
  DType dtype = type_name == "index" ? DType::Index : dtype_from_name(type_name);
  std::vector<UOp> sources;
  Dims arg;
  if (op == Op::Fold) {
    in >> word;
    for (ReduceOp r : {ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min}) {
      if (name(r) == word) arg.push_back(static_cast<int64_t>(r));
    }
  }
  if (op == Op::Const) {
    in >> word;
    if (is_float(dtype)) return const_float(dtype, std::strtod(word.c_str(), nullptr));
    return const_int(dtype, word == "true"    ? 1
                            : word == "false" ? 0
                                              : std::strtoll(word.c_str(), nullptr, 0));
  }
  while (in >> word) {
    if (word[0] == '%') {
      sources.push_back(nodes.at(std::stoul(word.substr(1))));
    } else {
      std::erase_if(word, [](char c) { return c == '[' || c == ']' || c == ','; });
      if (!word.empty()) arg.push_back(std::stoll(word));
    }
  }
  return UOp::make(op, dtype, sources, arg);
}

std::vector<KernelSource> read_log(const char* path) {
  std::ifstream file(path);
  std::vector<KernelSource> kernels;
  KernelSource kernel;
  std::vector<UOp> nodes;
  std::vector<int64_t> loops;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream in(line);
    std::string word;
    in >> word;
    if (word == "kernel") {  // other lines may begin so as well: the next one decides
      kernel = KernelSource();
      nodes.clear();
      loops.clear();
      in >> kernel.name;
    } else if (word == "params" && !kernel.name.empty()) {
      while (in >> word) {
        std::ranges::replace(word, ':', ' ');
        std::istringstream parts(word);
        std::string type, mode;
        ParamInfo info;
        parts >> type >> info.numel >> mode >> info.alias;
        info.dtype = dtype_from_name(type);
        info.written = mode == "w";
        kernel.params.push_back(info);
      }
    } else if (word == "loops" && !kernel.name.empty()) {
      for (int64_t id; in >> id;) loops.push_back(id);
    } else if (word.starts_with('%') && !kernel.params.empty()) {
      nodes.push_back(parse_node(line, nodes));
      if (nodes.back().op() != Op::Sink) continue;
      kernel.sink = nodes.back();
      for (int64_t id : loops) {
        for (const UOp& x : nodes) {
          if (x.op() == Op::Range && range_arg(*x).id == id &&
              range_arg(*x).kind == RangeKind::Loop) {
            kernel.loops.push_back(x);
            break;
          }
        }
      }
      kernels.push_back(std::move(kernel));
      kernel = KernelSource();
    }
  }
  return kernels;
}

struct Result {
  std::string line;
  double time;
};

Result time_kernel(const KernelSource& source, ThreadPool& pool) {
  const KernelSource* pointer = &source;
  auto kernel = compile_kernels(std::span(&pointer, 1), host_target())[0];
  CpuProgram program(kernel->code, pool);
  std::vector<std::vector<char>> memory;
  std::vector<void*> buffers;
  for (const ParamInfo& p : source.params) {
    memory.emplace_back(static_cast<size_t>(p.numel) * itemsize(p.dtype) + 64);
    char* data =
        memory.back().data() + (64 - reinterpret_cast<uintptr_t>(memory.back().data()) % 64);
    for (int64_t k = 0; k < p.numel; ++k) {
      if (p.dtype == DType::F32)
        reinterpret_cast<float*>(data)[k] = static_cast<float>(k % 997) * 0.002f - 1;
      if (p.dtype == DType::F64)
        reinterpret_cast<double*>(data)[k] = static_cast<double>(k % 997) * 0.002 - 1;
    }
    buffers.push_back(p.alias >= 0 ? buffers[static_cast<size_t>(p.alias)] : data);
  }
  const int64_t coordinates[8] = {};
  std::vector<double> times;
  double begin = seconds();
  program.launch(buffers.data(), coordinates);
  while (times.size() < 5 || (seconds() - begin < 0.1 && times.size() < 1000)) {
    double start = seconds();
    program.launch(buffers.data(), coordinates);
    times.push_back(seconds() - start);
  }
  std::ranges::nth_element(times, times.begin() + static_cast<long>(times.size() / 2));
  double time = times[times.size() / 2];
  char text[300];
  std::snprintf(text, sizeof(text),
                "%9.1f us  estimate %9.1f us  %8.2f GB/s  items %4lld  image %6zu  %s", time * 1e6,
                kernel->cost_ns * 1e-3, static_cast<double>(kernel->bytes_moved) / time * 1e-9,
                static_cast<long long>(kernel->code.work_items), kernel->code.bytes.size(),
                source.name.c_str());
  return {text, time};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr,
                 "usage: kernel_replay <log of a run under DEBUG=4> [threads] [part of a name]\n");
    return 2;
  }
  int threads = argc > 2 ? std::atoi(argv[2]) : 1;
  std::string filter = argc > 3 ? argv[3] : "";
  use_cpu_time = threads == 1;
  ThreadPool pool(threads);
  std::vector<Result> results;
  double total = 0;
  for (const KernelSource& kernel : read_log(argv[1])) {
    if (kernel.name.find(filter) == std::string::npos) continue;
    results.push_back(time_kernel(kernel, pool));
    total += results.back().time;
  }
  std::ranges::sort(results, [](const Result& a, const Result& b) { return a.time > b.time; });
  for (const Result& r : results) std::puts(r.line.c_str());
  CodegenStatistics s = codegen_statistics();
  std::printf(
      "%zu kernels, %.1f us in all; compiled %lld: plan %.1f ms, emit %.1f ms, optimise %.1f ms, "
      "codegen %.1f "
      "ms, link %.1f ms\n",
      results.size(), total * 1e6, static_cast<long long>(s.compiled), s.plan_ms, s.emit_ms,
      s.optimise_ms, s.codegen_ms, s.link_ms);
}
