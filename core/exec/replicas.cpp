// Hashes are gathered first: for each axis of a mesh along which something is replicated, one
// all-gather per group of devices. Example: w f32[1000] on mesh(data=3), rank 1 drew it from
// another seed. The hashes are a, b, a: device 1 differs from most. Each round then gathers the
// hashes of 64 pieces of the range that is left and goes on with the first piece that differs: 1000
// elements, then 16, then 1.
// So all learn of element 7, say, and the values around it, without moving w.
#include "core/exec/replicas.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/content_hash.h"
#include "core/base/error.h"
#include "core/dtype/half.h"
#include "core/exec/context.h"
#include "multi/local_box.h"

namespace tinyshard {
namespace {

constexpr size_t kPieces = 64, kShown = 4;

struct Group : AxisGroup {
  Communicator* communicator;
};

// Everyone gets the bytes of all participants, as many of each; `own` are those of the local ones.
std::vector<std::byte> gather(const Group& group, std::vector<std::vector<std::byte>> own) {
  const size_t each = own[0].size(), all = each * group.positions.size();
  std::vector<std::byte> gathered(all * own.size());
  std::vector<CommBuffer> send, recv;
  for (size_t i = 0; i < own.size(); ++i) {
    send.push_back({own[i].data()});
    recv.push_back({gathered.data() + i * all});
  }
  const RunIdentity identity{.label = "a check of replicas"};
  group.communicator
      ->start(
          {.op = CollectiveOp::AllGather, .dtype = DType::U8, .count = each, .identity = &identity},
          send, recv)
      .wait();
  gathered.resize(all);
  return gathered;
}

// The part of a value that a device holds, without padding.
struct Part {
  Dims begin, size;
  std::vector<std::byte> bytes;
};

Part part_of(Storage& storage, size_t local) {
  const Sharding& where = storage.sharding;
  const Dims& held = storage.local_shape();
  const int position = Context::get().local_positions(where.mesh)[local];
  LocalBox box = local_box(where, storage.shape(), position);
  Part part{std::move(box.begin), std::move(box.size),
            std::vector<std::byte>(storage.local_bytes())};
  storage.devices()[local]->copy_out(part.bytes.data(), storage.memory()[local], part.bytes.size());
  if (part.size == held) return part;
  // Row by row to the front.
  const size_t element = itemsize(storage.dtype()), row = size_t(part.size.back()) * element;
  size_t to = 0;
  Dims at(held.size());
  for (int64_t left = product(part.size) == 0 ? 0 : product(part.size) / part.size.back(); left > 0;
       --left) {
    int64_t from = 0;
    for (size_t d = 0; d < held.size(); ++d) from = from * held[d] + at[d];
    std::memmove(part.bytes.data() + to, part.bytes.data() + size_t(from) * element, row);
    to += row;
    for (size_t d = held.size() - 1; d-- > 0;) {
      ++at[d];
      if (at[d] < part.size[d]) break;
      at[d] = 0;
    }
  }
  part.bytes.resize(to);
  return part;
}

std::string element_text(DType dtype, const std::byte* at) {
  auto as = [&]<class T>(T value) {
    std::memcpy(&value, at, sizeof(T));
    return value;
  };
  switch (dtype) {
    case DType::Bool:
      return as(uint8_t{}) ? "true" : "false";
    case DType::I8:
      return fmt::format("{}", int(as(int8_t{})));
    case DType::I16:
      return fmt::format("{}", as(int16_t{}));
    case DType::I32:
      return fmt::format("{}", as(int32_t{}));
    case DType::I64:
      return fmt::format("{}", as(int64_t{}));
    case DType::U8:
      return fmt::format("{}", int(as(uint8_t{})));
    case DType::U16:
      return fmt::format("{}", as(uint16_t{}));
    case DType::U32:
      return fmt::format("{}", as(uint32_t{}));
    case DType::U64:
      return fmt::format("{}", as(uint64_t{}));
    case DType::F8E4M3FN:
    case DType::F8E5M2:
    case DType::F8E4M3FNUZ:
    case DType::F8E5M2FNUZ:
      return fmt::format("{}", narrow_to_f32(dtype, as(uint8_t{})));
    case DType::F16:
    case DType::BF16:
      return fmt::format("{}", narrow_to_f32(dtype, as(uint16_t{})));
    case DType::F32:
      return fmt::format("{}", as(float{}));
    case DType::F64:
      return fmt::format("{}", as(double{}));
    case DType::Index:
      break;
  }
  return "?";
}

// The holders of another value than most, and one of most; of two, the second is the other one.
struct Odd {
  std::vector<size_t> others, most;  // participants
};
Odd split_by(std::span<const uint64_t> hashes) {
  auto count = [&](uint64_t h) { return std::ranges::count(hashes, h); };
  const uint64_t usual = *std::ranges::max_element(hashes, {}, count);  // the first of the most
  Odd odd;
  for (size_t p = 0; p < hashes.size(); ++p) {
    (hashes[p] == usual ? odd.most : odd.others).push_back(p);
  }
  return odd;
}

// The first element in which two participants differ, and some elements of both from there on.
// Called by all of the group.
std::string first_difference(const Group& group, Storage& value, size_t a, size_t b,
                             const std::vector<std::string>& who) {
  std::vector<Part> parts;
  for (size_t local : group.local) parts.push_back(part_of(value, local));
  const size_t element = itemsize(value.dtype());
  size_t begin = 0, count = parts[0].bytes.size() / element;
  while (count > 1) {
    const size_t piece = (count + kPieces - 1) / kPieces, pieces = (count + piece - 1) / piece;
    std::vector<std::vector<std::byte>> own;
    for (const Part& part : parts) {
      std::vector<uint64_t> hashes;
      for (size_t i = 0; i < pieces; ++i) {
        const size_t n = std::min(piece, count - i * piece);
        hashes.push_back(
            hash_bytes(std::span(part.bytes).subspan((begin + i * piece) * element, n * element)));
      }
      const auto bytes = std::as_bytes(std::span(hashes));
      own.emplace_back(bytes.begin(), bytes.end());
    }
    const std::vector<std::byte> all = gather(group, std::move(own));
    size_t i = 0;
    const size_t each = pieces * sizeof(uint64_t);
    auto hash_at = [&](size_t p) { return all.data() + p * each + i * sizeof(uint64_t); };
    while (i + 1 < pieces && std::memcmp(hash_at(a), hash_at(b), sizeof(uint64_t)) == 0) ++i;
    begin += i * piece;
    count = std::min(piece, count - i * piece);
  }
  const size_t shown = std::min(kShown, parts[0].bytes.size() / element - begin);
  std::vector<std::vector<std::byte>> own;
  for (const Part& part : parts) {
    const auto bytes = std::span(part.bytes).subspan(begin * element, shown * element);
    own.emplace_back(bytes.begin(), bytes.end());
  }
  const std::vector<std::byte> all = gather(group, std::move(own));
  auto values_of = [&](size_t p) {
    std::vector<std::string> texts;
    for (size_t i = 0; i < shown; ++i)
      texts.push_back(element_text(value.dtype(), all.data() + (p * shown + i) * element));
    return fmt::format("{}", fmt::join(texts, ", "));
  };
  Dims index = parts[0].begin;
  size_t rest = begin;
  for (size_t d = index.size(); d-- > 0;) {
    index[d] += int64_t(rest % size_t(parts[0].size[d]));
    rest /= size_t(parts[0].size[d]);
  }
  return fmt::format("from element {} on {} {}, {} {}", to_string(index), who[a], values_of(a),
                     who[b], values_of(b));
}

void check_group(const Group& group, std::span<Storage* const> values,
                 std::span<const std::string> names) {
  std::vector<std::vector<std::byte>> own;
  for (size_t local : group.local) {
    std::vector<uint64_t> hashes;
    for (Storage* value : values) hashes.push_back(hash_bytes(part_of(*value, local).bytes));
    const auto bytes = std::as_bytes(std::span(hashes));
    own.emplace_back(bytes.begin(), bytes.end());
  }
  const std::vector<std::byte> all = gather(group, std::move(own));
  for (size_t v = 0; v < values.size(); ++v) {
    std::vector<uint64_t> hashes(group.positions.size());
    for (size_t p = 0; p < hashes.size(); ++p) {
      std::memcpy(&hashes[p], all.data() + (p * values.size() + v) * sizeof(uint64_t),
                  sizeof(uint64_t));
    }
    const Odd odd = split_by(hashes);
    if (odd.others.empty()) continue;
    const Mesh& mesh = values[v]->sharding.mesh;
    const bool one_rank = group.local.size() == group.positions.size();
    auto name_of = [&](size_t p) {
      const DeviceRef& device = mesh.devices()[group.positions[p]];
      return one_rank ? device.to_string()
                      : fmt::format("rank {} ({})", group.communicator->rank_of(int(p)),
                                    device.to_string());
    };
    std::vector<std::string> who, others, most;
    for (size_t p = 0; p < hashes.size(); ++p) who.push_back(name_of(p) + " has");
    for (size_t p : odd.others) others.push_back(name_of(p));
    for (size_t p : odd.most) most.push_back(name_of(p));
    const std::string text =
        fmt::format("replicas differ: {} is another value on {} than on {}: {}", names[v],
                    fmt::join(others, ", "), fmt::join(most, ", "),
                    first_difference(group, *values[v], odd.others[0], odd.most[0], who));
    if (one_rank) throw DeviceError(text);
    throw UserError(text);
  }
}

}  // namespace

void check_replicas(std::span<const std::shared_ptr<Storage>> roots) {
  std::vector<Mesh> meshes;
  for (const auto& root : roots) {
    if (std::ranges::find(meshes, root->sharding.mesh) == meshes.end())
      meshes.push_back(root->sharding.mesh);
  }
  for (const Mesh& mesh : meshes) {
    for (int axis = 0; axis < int(mesh.axes().size()); ++axis) {
      if (mesh.axes()[axis].size < 2) continue;
      std::vector<Storage*> values;
      std::vector<std::string> names;
      for (size_t r = 0; r < roots.size(); ++r) {
        Storage* value = roots[r].get();
        const Sharding& where = value->sharding;
        if (!(where.mesh == mesh) || !where.placements[axis].is_replicate() ||
            std::ranges::find(values, value) != values.end())
          continue;
        values.push_back(value);
        names.push_back(fmt::format("value {} of {} that the run wrote, {}{} on {},", r + 1,
                                    roots.size(), name(value->dtype()), to_string(value->shape()),
                                    where.to_string()));
      }
      if (values.empty()) continue;
      Context& context = Context::get();
      for (AxisGroup& along : context.groups_along(mesh, axis)) {
        Communicator& communicator = context.communicator(mesh, axis, along.positions[0]);
        check_group({std::move(along), &communicator}, values, names);
      }
    }
  }
}

}  // namespace tinyshard
