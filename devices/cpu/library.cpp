// Our own product takes all specs, oneDNN's only some. The choice between them depends on the spec
// and the processor alone, by measurements (see prefer_onednn), as their results differ in the last
// bits. Convolutions are oneDNN's. The text of a spec hashes it in caches and names it in messages.
#include "devices/cpu/library.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "devices/cpu/gemm.h"
#include "devices/cpu/onednn.h"
#include "devices/cpu/program.h"

namespace tinyshard {
namespace {

const char* activation_name(Activation activation) {
  switch (activation) {
    case Activation::None:
      return "";
    case Activation::Relu:
      return " relu";
    case Activation::GeluTanh:
      return " gelu_tanh";
  }
  return " ?";
}

const char* direction_name(ConvDirection direction) {
  switch (direction) {
    case ConvDirection::Forward:
      return "forward";
    case ConvDirection::BackwardData:
      return "backward_data";
    case ConvDirection::BackwardWeights:
      return "backward_weights";
  }
  return "?";
}

int64_t product_of_first(const std::array<int64_t, ConvSpec::kMaxRank>& sizes, int rank) {
  int64_t result = 1;
  for (int i = 0; i < rank; ++i) result *= sizes[i];
  return result;
}

}  // namespace

std::string MatmulSpec::to_string() const {
  std::string text = fmt::format("matmul {}", name(dtype));
  if (out_dtype != dtype) text += fmt::format("->{}", name(out_dtype));
  for (int i = 0; i < batch_rank; ++i)
    text += fmt::format(" batch {}({},{},{})", batch[i], a_batch[i], b_batch[i], c_batch[i]);
  text += fmt::format(" m {} k {} n {} a({},{}) b({},{}) c({},{})", m, k, n, a_m, a_k, b_k, b_n,
                      c_m, c_n);
  return text + (has_bias ? " bias" : "") + activation_name(activation);
}

MatmulSpec MatmulSpec::contiguous(int64_t m, int64_t k, int64_t n, int64_t batch, DType dtype) {
  MatmulSpec spec{.dtype = dtype, .m = m, .n = n, .k = k};
  spec.out_dtype = dtype;
  spec.a_m = k, spec.a_k = 1, spec.b_k = n, spec.b_n = 1, spec.c_m = n, spec.c_n = 1;
  if (batch != 1) {
    spec.batch_rank = 1;
    spec.batch[0] = batch;
    spec.a_batch[0] = m * k, spec.b_batch[0] = k * n, spec.c_batch[0] = m * n;
  }
  return spec;
}

int64_t ConvSpec::src_elements() const { return n * c * product_of_first(in, rank); }

int64_t ConvSpec::weight_elements() const {
  return oc * (c / groups) * product_of_first(kernel, rank);
}

int64_t ConvSpec::dst_elements() const {
  int64_t result = n * oc;
  for (int i = 0; i < rank; ++i) result *= out(i);
  return result;
}

std::string ConvSpec::to_string() const {
  std::string text =
      fmt::format("conv {} {} n {} c {} oc {}", direction_name(direction), name(dtype), n, c, oc);
  if (groups != 1) text += fmt::format(" groups {}", groups);
  for (int i = 0; i < rank; ++i)
    text += fmt::format(" [in {} k {} s {} d {} p {},{}]", in[i], kernel[i], stride[i], dilation[i],
                        pad_lo[i], pad_hi[i]);
  return text + (has_bias ? " bias" : "") + activation_name(activation);
}

namespace {

// Two cores of a Zen 4 at f32, in GFLOP/s (peak 236), on the products of an MLP and a small GPT:
// oneDNN 185 to 231, ours 165 to 228, PyTorch 165 to 203. Ours is ahead where c is thinner than a
// vector (128 x 1024 -> 10: 105 against 65), and the only one for f64, f16 and views without unit
// strides. oneDNN's sgemm has no vector gelu.
//
// Without AVX-512, oneDNN adds up the terms of an f32 element in another order where a thread has
// other rows of c: results would depend on the number of threads. Ours never do.
bool prefer_onednn(const MatmulSpec& s) {
  constexpr int64_t kThin = 16;
  if (s.dtype == DType::F32 && (s.n < kThin || host_target().vector_bits < 512)) return false;
  return s.activation != Activation::GeluTanh && onednn::supports(s);
}

}  // namespace

bool library_supports(const MatmulSpec& spec, std::string* why) {
  return gemm::supports(spec, why);  // oneDNN's are a subset
}

bool library_supports(const ConvSpec& spec, std::string* why) {
  return onednn::supports(spec, why);
}

std::shared_ptr<const MatmulProgram> library_program(const MatmulSpec& spec, int threads) {
  return prefer_onednn(spec) ? onednn::make_program(spec, threads)
                             : gemm::make_program(spec, threads);
}

std::shared_ptr<const ConvProgram> library_program(const ConvSpec& spec, int threads) {
  if (std::string why; !onednn::supports(spec, &why)) throw UserError("convolution: " + why);
  return onednn::make_program(spec, threads);
}

std::vector<std::shared_ptr<const MatmulProgram>> library_candidates(const MatmulSpec& spec,
                                                                     int threads) {
  std::vector<std::shared_ptr<const MatmulProgram>> all;
  if (!gemm::supports(spec)) return all;
  all.push_back(gemm::make_program(spec, threads));
  if (onednn::supports(spec)) all.push_back(onednn::make_program(spec, threads));
  if (prefer_onednn(spec)) std::swap(all.front(), all.back());
  return all;
}

std::vector<LibraryReport> library_reports() {
  return {onednn::library_report(), gemm::library_report()};
}

}  // namespace tinyshard
