// A kernel's structure is written as a list of numbers: target, options and parameters, then each node
// below its loops and stores, sources before users, as op, type, arguments and how many nodes ago each
// source was written:
//
//   %0 = range 4096     %1 = param f32     %2 = load %1 %0     %3 = recip %2
//   range 0 sources 4096;  param 0 sources;  load 2 sources, 1 ago, 2 ago;  recip 1 source, 1 ago
//
// Nothing in it names an address or the number of a range, so that it is the same in every process.
#include "core/codegen/key.h"

#include <cstring>
#include <vector>

#include "core/base/options.h"
#include "core/uop/node_map.h"

namespace tinyshard::codegen {
namespace {

class Writer {
 public:
  // 7 bits a byte, low first; the sign is folded into the lowest bit.
  void number(int64_t value) {
    uint64_t v = (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63);
    while (v >= 0x80) {
      bytes.push_back(static_cast<char>(v | 0x80));
      v >>= 7;
    }
    bytes.push_back(static_cast<char>(v));
  }
  void text(const std::string& text) {
    number(static_cast<int64_t>(text.size()));
    bytes += text;
  }
  std::string bytes;
};

// Appends the nodes below `root` that are not written yet, sources before users.
// The values of `scalars` are left out.
void write_nodes(Writer& out, const UOp& root, const NodeMap<bool>& scalars,
                 NodeMap<int>& numbers) {
  std::vector<std::pair<const UOp*, size_t>> stack{{&root, 0}};
  while (!stack.empty()) {
    auto& [x, next] = stack.back();
    if (numbers.contains(*x)) {
      stack.pop_back();
      continue;
    }
    std::span<const UOp> sources = (*x)->src();
    if (next < sources.size()) {
      const UOp* source = &sources[next++];
      if (!numbers.contains(*source)) stack.emplace_back(source, 0);
      continue;
    }
    const Node& node = **x;
    out.number(static_cast<int64_t>(node.op));
    out.number(static_cast<int64_t>(node.dtype));
    out.number(node.sources);
    out.number(node.arguments);
    int number = static_cast<int>(numbers.size());
    for (const UOp& source : sources) out.number(number - numbers.at(source));
    // A range is known by its place here, not by its id.
    const bool known_by_place = node.op == Op::Range || scalars.contains(*x);
    for (size_t i = known_by_place ? 1 : 0; i < node.arguments; ++i) out.number(node.arg()[i]);
    numbers[*x] = number;
    stack.pop_back();
  }
}

}  // namespace

std::string kernel_key(const KernelSource& kernel, const Target& target) {
  Writer out;
  out.bytes.reserve(1024);
  out.text(target.triple);
  out.text(target.cpu);
  out.text(target.features);
  out.number(target.vector_bits);
  out.number(target.memory_alignment);
  out.number(target.multiprocessors);
  out.number(target.shared_bytes);
  out.number(target.cache_bytes);
  out.number(kernel.choice);
  out.number(options().check.memory);
  out.number(static_cast<int64_t>(kernel.params.size()));
  for (const ParamInfo& param : kernel.params) {
    out.number(static_cast<int64_t>(param.dtype));
    out.number(param.numel);
    out.number(param.written);
    out.number(param.alias);
  }
  const std::vector<UOp>& constants = kernel.scalars.constants;
  NodeMap<bool> scalars(constants.size());
  for (const UOp& constant : constants) scalars[constant] = true;
  NodeMap<int> numbers(256);
  out.number(static_cast<int64_t>(kernel.loops.size()));
  for (const UOp& loop : kernel.loops) write_nodes(out, loop, scalars, numbers);
  write_nodes(out, kernel.sink, scalars, numbers);
  if (constants.empty()) return std::move(out.bytes);
  out.number(kernel.scalars.first);
  for (const UOp& constant : constants) out.number(numbers.at(constant));
  return std::move(out.bytes);
}

}  // namespace tinyshard::codegen
