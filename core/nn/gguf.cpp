// GGUF tensors as lazy tensors. A quantised one is its blocks, u8 [blocks, bytes], and the ops that
// compute its elements from them, so that a device that is given the tensor reads the blocks only:
//
//   Q4_0, 32 elements in 18 bytes:  f16 scale, 16 bytes of two elements each
//   element j of a block = scale * ((byte[j % 16] >> 4 * (j / 16) & 15) - 8)
//
// Bytes that hold several elements are shifted by a short list of shifts, which gives them a dim:
// [blocks, 1, 16] >> [[0], [4]] is [blocks, 2, 16], in the order of the elements.
#include "io/gguf.h"

#include "core/base/call.h"
#include "core/nn/files.h"
#include "core/tensor/map_file.h"

namespace tinyshard::nn {
namespace {

// What the 4 bits of IQ4_NL and IQ4_XS, and of MXFP4 (there doubled), stand for.
const std::vector<float> kNonlinear = {-127, -104, -83, -65, -49, -35, -22, -10,
                                       1,    13,   25,  38,  53,  69,  89,  113};
const std::vector<float> kE2m1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

class Blocks {
 public:
  explicit Blocks(const Tensor& bytes) : bytes_(bytes), count_(bytes.shape(0)) {}

  // Bytes [from, from + the product of shape) of each block, as i32 [blocks, shape...].
  Tensor ints(int64_t from, const Dims& shape) const { return raw(from, shape).cast(DType::I32); }
  Tensor signed_ints(int64_t from, const Dims& shape) const {
    return raw(from, shape).bitcast(DType::I8).cast(DType::I32);
  }
  Tensor u16(int64_t from) const {  // [blocks, 1]
    return ints(from, {1}) | ints(from + 1, {1}) << 8;
  }
  Tensor f16(int64_t from) const {  // as f32 [blocks, 1]
    return u16(from).cast(DType::U16).bitcast(DType::F16).cast(DType::F32);
  }
  // A factor per block, for elements of `rank` dims.
  Tensor factor(int64_t from, size_t rank) const {
    Dims shape(rank + 1, 1);
    shape[0] = count_;
    return f16(from).reshape(shape);
  }
  int64_t count() const { return count_; }

 private:
  Tensor raw(int64_t from, const Dims& shape) const {
    Dims all{count_};
    all.insert(all.end(), shape.begin(), shape.end());
    return bytes_.shrink({{0, count_}, {from, from + product(shape)}}).reshape(all);
  }

  Tensor bytes_;
  int64_t count_;
};

Tensor shifts(int64_t count, int64_t by, const Dims& shape) {
  return (Tensor::arange(count, DType::I32) * by).reshape(shape);
}
Tensor nibbles(const Tensor& bytes, const Dims& shape) { return bytes >> shifts(2, 4, shape) & 15; }
Tensor floats(const Tensor& x) { return x.cast(DType::F32); }
Tensor looked_up(const std::vector<float>& table, const Tensor& index) {
  return Tensor(table)[index];
}

// --- blocks of 32 ---

// The fifth bits of 32 elements, from four bytes: [blocks, 2, 16] of 0 and 16.
Tensor fifth_bits(const Blocks& b, int64_t from) {
  const Tensor bits = b.ints(from, {4, 1}) >> shifts(8, 1, {1, 8}) & 1;
  return bits.reshape({b.count(), 2, 16}) << 4;
}

Tensor q4_0(const Blocks& b) {
  return b.factor(0, 2) * floats(nibbles(b.ints(2, {1, 16}), {2, 1}) - 8);
}
Tensor q4_1(const Blocks& b) {
  return b.factor(0, 2) * floats(nibbles(b.ints(4, {1, 16}), {2, 1})) + b.factor(2, 2);
}
Tensor q5_0(const Blocks& b) {
  return b.factor(0, 2) * floats((nibbles(b.ints(6, {1, 16}), {2, 1}) | fifth_bits(b, 2)) - 16);
}
Tensor q5_1(const Blocks& b) {
  return b.factor(0, 2) * floats(nibbles(b.ints(8, {1, 16}), {2, 1}) | fifth_bits(b, 4)) +
         b.factor(2, 2);
}
Tensor q8_0(const Blocks& b) { return b.factor(0, 1) * floats(b.signed_ints(2, {32})); }
Tensor iq4_nl(const Blocks& b) {
  return b.factor(0, 2) * looked_up(kNonlinear, nibbles(b.ints(2, {1, 16}), {2, 1}));
}
Tensor mxfp4(const Blocks& b) {
  // The scale is 2 to the power of (byte - 128), the halves of the table's doubled values.
  const Tensor e = b.ints(0, {1, 1});
  const Tensor bits =
      (e < 2).where(Tensor::full({}, 0x200000, DType::I32) << e.minimum(1), (e - 1) << 23);
  return bits.bitcast(DType::F32) * looked_up(kE2m1, nibbles(b.ints(1, {1, 16}), {2, 1}));
}

// --- blocks of 256 ---

// Eight scales and eight minima of 6 bits each, packed in 12 bytes.
std::pair<Tensor, Tensor> packed_scales(const Blocks& b, int64_t from) {
  const Tensor first = b.ints(from, {4}), second = b.ints(from + 4, {4}),
               third = b.ints(from + 8, {4});
  const Tensor scale = cat({first & 63, (third & 15) | first >> 6 << 4}, 1);
  const Tensor least = cat({second & 63, third >> 4 | second >> 6 << 4}, 1);
  const Dims shape{b.count(), 4, 2, 1};
  return {floats(scale).reshape(shape), floats(least).reshape(shape)};
}

Tensor q2_k(const Blocks& b) {
  const Tensor scales = b.ints(0, {2, 4, 2, 1});
  const Tensor q =
      (b.ints(16, {2, 1, 32}) >> shifts(4, 2, {4, 1}) & 3).reshape({b.count(), 2, 4, 2, 16});
  return b.factor(80, 4) * floats(scales & 15) * floats(q) - b.factor(82, 4) * floats(scales >> 4);
}
Tensor q3_k(const Blocks& b) {
  const Tensor low = b.ints(96, {1, 8}) >> shifts(2, 4, {2, 1}) & 15;   // [blocks, 2, 8]
  const Tensor high = b.ints(104, {1, 4}) >> shifts(4, 2, {4, 1}) & 3;  // [blocks, 4, 4]
  const Dims per_part{b.count(), 2, 4, 2, 1};
  const Tensor scales = low.reshape({b.count(), 16}) | high.reshape({b.count(), 16}) << 4;
  const Tensor q = b.ints(32, {2, 1, 32}) >> shifts(4, 2, {4, 1}) & 3;
  const Tensor bit = b.ints(0, {1, 1, 32}) >> shifts(8, 1, {2, 4, 1}) & 1;
  const Tensor value = (q + (bit << 2) - 4).reshape({b.count(), 2, 4, 2, 16});
  return b.factor(108, 4) * floats(scales.reshape(per_part) - 32) * floats(value);
}
Tensor q4_k(const Blocks& b) {
  const auto [scale, least] = packed_scales(b, 4);
  const Tensor q = nibbles(b.ints(16, {4, 1, 32}), {2, 1});
  return b.factor(0, 3) * scale * floats(q) - b.factor(2, 3) * least;
}
Tensor q5_k(const Blocks& b) {
  const auto [scale, least] = packed_scales(b, 4);
  const Tensor fifth = (b.ints(16, {1, 1, 32}) >> shifts(8, 1, {4, 2, 1}) & 1) << 4;
  const Tensor q = nibbles(b.ints(48, {4, 1, 32}), {2, 1}) | fifth;
  return b.factor(0, 3) * scale * floats(q) - b.factor(2, 3) * least;
}
Tensor q6_k(const Blocks& b) {
  // Of 128 elements, 32 each come from the low and the high halves of two rows of 32 bytes.
  const Tensor low = nibbles(b.ints(0, {2, 1, 2, 32}), {2, 1, 1}).reshape({b.count(), 2, 4, 32});
  const Tensor high = b.ints(128, {2, 1, 32}) >> shifts(4, 2, {4, 1}) & 3;
  const Tensor q = ((low | high << 4) - 32).reshape({b.count(), 2, 4, 2, 16});
  return b.factor(208, 4) * floats(b.signed_ints(192, {2, 4, 2, 1})) * floats(q);
}
Tensor iq4_xs(const Blocks& b) {
  const Tensor low = (b.ints(4, {4, 1}) >> shifts(2, 4, {1, 2}) & 15).reshape({b.count(), 8});
  const Tensor high = b.u16(2) >> shifts(8, 2, {8}) & 3;
  const Tensor scale = floats((low | high << 4) - 32).reshape({b.count(), 8, 1, 1});
  return b.factor(0, 3) * scale * looked_up(kNonlinear, nibbles(b.ints(8, {8, 1, 16}), {2, 1}));
}

struct Format {
  std::string_view name;
  Tensor (*values)(const Blocks&);
};
constexpr Format kFormats[] = {
    {"Q4_0", q4_0},     {"Q4_1", q4_1},     {"Q5_0", q5_0},   {"Q5_1", q5_1}, {"Q8_0", q8_0},
    {"Q2_K", q2_k},     {"Q3_K", q3_k},     {"Q4_K", q4_k},   {"Q5_K", q5_k}, {"Q6_K", q6_k},
    {"IQ4_NL", iq4_nl}, {"IQ4_XS", iq4_xs}, {"MXFP4", mxfp4},
};

Tensor tensor_of(const io::GgufTensor& stored, const SharedFile& file, const std::string& path) {
  const Dims shape(stored.shape.begin(), stored.shape.end());
  if (stored.type->plain) return load_from(file, path, shape, *stored.type->plain, stored.offset);
  if (product(shape) == 0) return Tensor::zeros(shape, DType::F32);
  const auto width = static_cast<int64_t>(stored.type->bytes);
  const Ints blocks{static_cast<int64_t>(stored.bytes) / width, width};
  for (const Format& format : kFormats) {
    if (format.name == stored.type->name)
      return format.values(Blocks(load_from(file, path, blocks, DType::U8, stored.offset)))
          .reshape(shape);
  }
  throw InternalError("no values for ggml type " + std::string(stored.type->name));
}

}  // namespace

std::pair<io::ValueMap, StateDict> gguf_load(const std::filesystem::path& path) {
  io::GgufFile found(path);
  const SharedFile file = open_to_share(path);
  StateDict tensors;
  for (const io::GgufTensor& stored : found.tensors)
    tensors.emplace(stored.name, tensor_of(stored, file, path.native()));
  return {std::move(found.kv), std::move(tensors)};
}

}  // namespace tinyshard::nn
