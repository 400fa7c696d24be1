// Convolutions by oneDNN. Its fast kernels want channels in blocks of 16. A chunk converts a few
// images at a time, convolves them and converts back while they are in its L2 cache, where PyTorch
// converts whole tensors through memory.
#if TINYSHARD_HAS_ONEDNN

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "core/base/error.h"
#include "devices/cpu/onednn_conv_primitive.h"
#include "devices/cpu/thread_pool.h"

namespace tinyshard::onednn {
namespace {

// Converts between the caller's layout and oneDNN's; empty where they are the same.
Call make_reorder(const memory& from, const memory& to) {
  if (from.get_desc() == to.get_desc()) return {};
  dnnl::reorder::primitive_desc desc(engine(), from.get_desc(), engine(), to.get_desc(),
                                     make_attr(Activation::None));
  return Call(dnnl::reorder(desc), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}},
              desc.scratchpad_desc());
}

// The weights of a part (or of all parts) in the caller's layout and in oneDNN's.
struct ConvWeights {
  memory plain, library;
  Call convert;
  size_t offset = 0;              // bytes into the caller's buffer
  size_t at = 0, scratch_at = 0;  // in the arena
  dnnl::stream stream;
};

// x is the first image operand (src; dst gradient for BackwardData), y the second (dst, src
// gradient, dst gradient). Each has its plain form (the caller's buffer) and oneDNN's form.
struct ConvBlock {
  memory x_plain, x, y_plain, y, weights, bias;
  Call convert_x, compute, convert_y;
};

// The work of one chunk, with everything it binds: parts share primitives but not memories.
// Either a range of images, or, where images are few, all of them with a range of channels.
struct ConvPart {
  ConvSpec slice;                                      // channels and groups of this part
  int64_t first = 0, images = 0;                       // of the minibatch
  int64_t block_images = 1;                            // converted and computed at a time
  size_t x_step = 0, y_step = 0;                       // bytes from one image to the next
  size_t x_offset = 0, y_offset = 0, bias_offset = 0;  // bytes of the part's first channel
  size_t weights = 0;                                  // index into the program's weights
  std::vector<ConvBlock> blocks;              // the usual size, and that of a shorter last one
  size_t x_at = 0, y_at = 0, scratch_at = 0;  // in the arena
  size_t sum_at = 0, product_at = 0;          // BackwardWeights: sum over blocks, one block
  dnnl::stream stream;
};

class OnednnConv final : public ConvProgram {
 public:
  OnednnConv(const ConvSpec& spec, int threads);
  void run(const void* a, const void* b, void* c, const void* bias,
           ThreadPool& pool) const override;
  std::string describe() const override;

 private:
  struct Buffers {
    const char* x;
    const char* y;
    const char* weights;
    const char* bias;
    char* arena;
  };

  bool backward_data() const { return spec_.direction == ConvDirection::BackwardData; }
  bool backward_weights() const { return spec_.direction == ConvDirection::BackwardWeights; }
  int64_t x_image() const;  // elements of one image of x, all channels
  int64_t y_image() const;
  void split(int threads);
  void plan(ConvPart& part);
  void convert(ConvWeights& weights, const Buffers& buffers) const;
  void compute(ConvPart& part, const Buffers& buffers) const;
  void sum_parts(int64_t begin, int64_t end, const Buffers& buffers) const;

  ConvSpec spec_;
  bool split_channels_ = false;
  std::string implementation_;
  ArenaPlan arena_;
  size_t weights_bytes_ = 0;  // of the largest weights in oneDNN's layout, padding included
  // Bound anew by each run, which holds the arena's mutex.
  mutable std::vector<ConvWeights> weights_;
  mutable std::vector<ConvPart> parts_;
};

OnednnConv::OnednnConv(const ConvSpec& spec, int threads) : spec_(spec) {
  SerialOpenMp serial;
  split(threads);
  for (auto& part : parts_) plan(part);
  Arena::get().reserve(arena_.size());
}

int64_t OnednnConv::x_image() const {
  return (backward_data() ? spec_.dst_elements() : spec_.src_elements()) / spec_.n;
}

int64_t OnednnConv::y_image() const {
  return (backward_data() ? spec_.src_elements() : spec_.dst_elements()) / spec_.n;
}

void OnednnConv::split(int threads) {
  constexpr size_t kItem = sizeof(float);
  // Channels are cut where the images cannot feed the threads: by groups, else by the channels of
  // y in whole blocks of 16.
  const bool by_group = spec_.groups > 1;
  const int64_t channels = backward_data() ? spec_.c : spec_.oc;
  const int64_t units = by_group ? spec_.groups : (channels + 15) / 16;
  split_channels_ = spec_.n < threads && units > spec_.n;
  const int64_t count = std::min<int64_t>(threads, split_channels_ ? units : spec_.n);
  for (int64_t i = 0; i < count; ++i) {
    ConvPart part;
    part.slice = spec_;
    part.images = spec_.n;
    part.x_step = kItem * x_image();
    part.y_step = kItem * y_image();
    part.stream = dnnl::stream(engine());
    size_t weights_offset = 0;
    if (!split_channels_) {
      part.first = ThreadPool::part_begin(spec_.n, count, i);
      part.images = ThreadPool::part_begin(spec_.n, count, i + 1) - part.first;
    } else {
      int64_t begin = ThreadPool::part_begin(units, count, i);
      int64_t end = ThreadPool::part_begin(units, count, i + 1);
      if (by_group) {
        auto before = [&](int64_t whole) { return kItem * (whole / units * begin); };
        part.slice.groups = end - begin;
        part.slice.c = spec_.c / units * (end - begin);
        part.slice.oc = spec_.oc / units * (end - begin);
        part.x_offset = before(x_image());
        part.y_offset = before(y_image());
        part.bias_offset = before(spec_.oc);
        weights_offset = before(spec_.weight_elements());
      } else {
        begin *= 16;
        end = std::min(end * 16, channels);
        (backward_data() ? part.slice.c : part.slice.oc) = end - begin;
        part.y_offset = kItem * (y_image() / channels * begin);
        part.bias_offset = kItem * begin;
        int64_t per_channel =
            spec_.weight_elements() / (backward_data() ? spec_.c * spec_.oc : spec_.oc);
        weights_offset = kItem * per_channel * begin;
      }
    }
    part.weights = split_channels_ ? static_cast<size_t>(i) : 0;
    if (part.weights == weights_.size()) {
      auto& weights = weights_.emplace_back();
      weights.offset = weights_offset;
      weights.stream = dnnl::stream(engine());
    }
    parts_.push_back(std::move(part));
  }
}

void OnednnConv::plan(ConvPart& part) {
  constexpr int64_t kCacheBytes = 384 << 10;  // of both image operands of a block, to stay in L2
  int64_t images = 1;
  if (!split_channels_) {
    images = kCacheBytes / static_cast<int64_t>(part.x_step + part.y_step);
    if (backward_weights()) {
      // Each block ends by adding its weights to the part's sum: keep that small beside the block.
      int64_t spatial = spec_.dst_elements() / (spec_.n * spec_.oc);
      images = std::max(images, (512 + spatial - 1) / spatial);
    }
    images = std::clamp<int64_t>(images, 1, part.images);
  }
  int64_t blocks = (part.images + images - 1) / images;
  part.block_images = (part.images + blocks - 1) / blocks;
  std::vector<int64_t> sizes{part.block_images};
  if (int64_t last = part.images % part.block_images) sizes.push_back(last);

  ConvWeights& weights = weights_[part.weights];
  size_t x_bytes = 0, y_bytes = 0, scratch_bytes = 0;
  for (int64_t size : sizes) {
    ConvSpec spec = part.slice;
    spec.n = size;
    ConvPrimitive conv;
    bool first = !weights.library;
    memory::desc fixed = first ? memory::desc() : weights.library.get_desc();
    if (!create_conv(spec, true, conv, first ? nullptr : &fixed))
      throw DeviceError(fmt::format("oneDNN has no kernel for {}", spec.to_string()));
    implementation_ = conv.implementation;
    if (first) {
      // A slice of the input channels leaves gaps in the caller's weights.
      Dims dims = weight_dims(spec), strides = dense_strides(dims);
      if (spec_.groups == 1) strides[0] = strides[1] * spec_.c;
      weights.plain = make_memory(memory::desc(dims, memory::data_type::f32, strides));
      weights.library = make_memory(conv.weights);
      weights.convert = backward_weights() ? make_reorder(weights.library, weights.plain)
                                           : make_reorder(weights.plain, weights.library);
      weights.at = arena_.take(conv.weights.get_size());
      weights.scratch_at = arena_.take(weights.convert.scratch_bytes());
      weights_bytes_ = std::max(weights_bytes_, conv.weights.get_size());
    }

    ConvBlock block;
    auto f32 = memory::data_type::f32;
    Dims x_dims = backward_data() ? dst_dims(spec) : src_dims(spec);
    Dims y_dims = backward_data() ? src_dims(spec) : dst_dims(spec);
    block.x_plain = make_memory({x_dims, f32, dense_strides(x_dims)});
    block.y_plain = make_memory({y_dims, f32, dense_strides(y_dims)});
    block.x = make_memory(backward_data() ? conv.dst : conv.src);
    block.y = make_memory(backward_data() ? conv.src : conv.dst);
    block.weights = make_memory(conv.weights);
    block.convert_x = make_reorder(block.x_plain, block.x);
    block.convert_y = backward_weights() ? make_reorder(block.y_plain, block.y)
                                         : make_reorder(block.y, block.y_plain);
    std::vector<std::pair<int, memory>> args;
    switch (spec_.direction) {
      case ConvDirection::Forward:
        args = {
            {DNNL_ARG_SRC, block.x}, {DNNL_ARG_WEIGHTS, block.weights}, {DNNL_ARG_DST, block.y}};
        break;
      case ConvDirection::BackwardData:
        args = {{DNNL_ARG_DIFF_DST, block.x},
                {DNNL_ARG_WEIGHTS, block.weights},
                {DNNL_ARG_DIFF_SRC, block.y}};
        break;
      case ConvDirection::BackwardWeights:
        args = {{DNNL_ARG_SRC, block.x},
                {DNNL_ARG_DIFF_DST, block.y},
                {DNNL_ARG_DIFF_WEIGHTS, block.weights}};
        break;
    }
    if (spec_.has_bias) {
      block.bias = make_memory(conv.bias);
      args.emplace_back(DNNL_ARG_BIAS, block.bias);
    }
    block.compute = Call(conv.primitive, std::move(args), conv.scratch);
    if (block.convert_x) x_bytes = std::max(x_bytes, block.x.get_desc().get_size());
    if (block.convert_y) y_bytes = std::max(y_bytes, block.y.get_desc().get_size());
    scratch_bytes = std::max({scratch_bytes, block.convert_x.scratch_bytes(),
                              block.compute.scratch_bytes(), block.convert_y.scratch_bytes()});
    part.blocks.push_back(std::move(block));
  }
  part.x_at = arena_.take(x_bytes);
  part.y_at = arena_.take(y_bytes);
  part.scratch_at = arena_.take(scratch_bytes);
  if (backward_weights()) {
    size_t bytes = weights.library.get_desc().get_size();
    part.sum_at = &part == parts_.data() || split_channels_ ? weights.at : arena_.take(bytes);
    part.product_at = part.images > part.block_images ? arena_.take(bytes) : 0;
  }
}

void OnednnConv::run(const void* a, const void* b, void* c, const void* bias,
                     ThreadPool& pool) const {
  const Undisturbed run;
  Buffers buffers{.x = static_cast<const char*>(a),
                  .y = static_cast<const char*>(backward_weights() ? b : c),
                  .weights = static_cast<const char*>(backward_weights() ? c : b),
                  .bias = static_cast<const char*>(bias),
                  .arena = Arena::get().data()};
  auto compute_parts = [&](int64_t begin, int64_t end, int) {
    SerialOpenMp serial;
    for (int64_t i = begin; i < end; ++i) {
      ConvPart& part = parts_[i];
      ConvWeights& weights = weights_[part.weights];
      if (split_channels_ && !backward_weights()) convert(weights, buffers);
      compute(part, buffers);
      if (split_channels_ && backward_weights()) convert(weights, buffers);
    }
  };
  auto convert_shared = [&] {
    if (split_channels_) return;
    SerialOpenMp serial;
    convert(weights_[0], buffers);
  };
  auto sum = [&](int64_t begin, int64_t end, int) { sum_parts(begin, end, buffers); };

  if (!backward_weights()) convert_shared();
  pool.parallel_for(static_cast<int64_t>(parts_.size()), compute_parts);
  if (!backward_weights()) return;
  if (!split_channels_ && parts_.size() > 1)
    pool.parallel_for(static_cast<int64_t>(weights_bytes_ / sizeof(float)), sum, 4096);
  convert_shared();
}

void OnednnConv::convert(ConvWeights& weights, const Buffers& buffers) const {
  if (weights.convert) {
    bind(weights.plain, buffers.weights, weights.offset);
    bind(weights.library, buffers.arena, weights.at);
    weights.convert(weights.stream, buffers.arena + weights.scratch_at);
  } else if (backward_weights()) {
    std::memcpy(const_cast<char*>(buffers.weights) + weights.offset, buffers.arena + weights.at,
                weights.library.get_desc().get_size());
  }
}

void add(float* to, const float* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

void OnednnConv::compute(ConvPart& part, const Buffers& buffers) const {
  const ConvWeights& weights = weights_[part.weights];
  char* scratch = buffers.arena + part.scratch_at;
  for (int64_t done = 0; done < part.images; done += part.block_images) {
    bool usual = part.images - done >= part.block_images;
    const ConvBlock& block = usual ? part.blocks.front() : part.blocks.back();
    auto image = static_cast<size_t>(part.first + done);
    const char* x = buffers.x + image * part.x_step + part.x_offset;
    const char* y = buffers.y + image * part.y_step + part.y_offset;
    bind(block.x_plain, x);
    bind(block.y_plain, y);
    bind(block.x, block.convert_x ? buffers.arena + part.x_at : x);
    bind(block.y, block.convert_y ? buffers.arena + part.y_at : y);
    if (spec_.has_bias) bind(block.bias, buffers.bias + part.bias_offset);

    if (block.convert_x) block.convert_x(part.stream, scratch);
    if (!backward_weights()) {
      bind(block.weights,
           weights.convert ? buffers.arena + weights.at : buffers.weights + weights.offset);
      block.compute(part.stream, scratch);
      if (block.convert_y) block.convert_y(part.stream, scratch);
      continue;
    }
    if (block.convert_y) block.convert_y(part.stream, scratch);
    bind(block.weights, buffers.arena + (done == 0 ? part.sum_at : part.product_at));
    block.compute(part.stream, scratch);
    if (done != 0)
      add(reinterpret_cast<float*>(buffers.arena + part.sum_at),
          reinterpret_cast<const float*>(buffers.arena + part.product_at),
          static_cast<int64_t>(weights.library.get_desc().get_size() / sizeof(float)));
  }
}

// Adds the sums of all parts to that of part 0, in the order of the parts.
void OnednnConv::sum_parts(int64_t begin, int64_t end, const Buffers& buffers) const {
  auto sum = [&](const ConvPart& part) {
    return reinterpret_cast<float*>(buffers.arena + part.sum_at) + begin;
  };
  for (size_t i = 1; i < parts_.size(); ++i) add(sum(parts_[0]), sum(parts_[i]), end - begin);
}

std::string OnednnConv::describe() const {
  return fmt::format("oneDNN {} in {} parts of {}, {} images at a time", implementation_,
                     parts_.size(), split_channels_ ? "channels" : "images",
                     parts_[0].block_images);
}

}  // namespace

bool check_conv(const ConvSpec& s, std::string* why) {
  if (s.dtype != DType::F32)
    return refuse(why, fmt::format("convolutions are done in f32, not {}", name(s.dtype)));
  if (s.rank < 1 || s.rank > ConvSpec::kMaxRank)
    return refuse(why, fmt::format("{} spatial dimensions; 1 to 3 are supported", s.rank));
  if (s.n < 1 || s.c < 1 || s.oc < 1 || s.groups < 1 || s.c % s.groups || s.oc % s.groups)
    return refuse(why, fmt::format("n {}, c {}, oc {} and groups {} do not describe a convolution",
                                   s.n, s.c, s.oc, s.groups));
  for (int i = 0; i < s.rank; ++i) {
    bool good = s.in[i] >= 1 && s.kernel[i] >= 1 && s.stride[i] >= 1 && s.dilation[i] >= 1 &&
                s.pad_lo[i] >= 0 && s.pad_hi[i] >= 0 &&
                s.in[i] + s.pad_lo[i] + s.pad_hi[i] > s.dilation[i] * (s.kernel[i] - 1);
    if (!good)
      return refuse(why, fmt::format("dimension {} of {} has no output", i, s.to_string()));
  }
  if (s.direction != ConvDirection::Forward && (s.has_bias || s.activation != Activation::None))
    return refuse(why, "a bias or an activation is part of the forward direction only");
  return true;
}

bool has_conv_kernel(const ConvSpec& spec) {
  SerialOpenMp serial;
  ConvPrimitive conv;
  return create_conv(spec, false, conv);
}

std::shared_ptr<const ConvProgram> make_conv(const ConvSpec& spec, int threads) {
  return std::make_shared<const OnednnConv>(spec, threads);
}

}  // namespace tinyshard::onednn

#endif
