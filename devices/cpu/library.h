// Requests to a CPU math library: plain descriptions of a matrix product or a convolution,
// and the program that a library makes of one. No graph types, no library types.
// Programs are immutable, shared by equal specs, and may be run from any thread.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype/dtype.h"

namespace tinyshard {

class ThreadPool;

enum class Activation : uint8_t { None, Relu, GeluTanh };

// c[batch][m][n] = activation(sum over k of a[batch][m][k] * b[batch][k][n] + bias[n]).
// All strides count elements, so a transposed view is described, not copied. In each operand one of
// the two matrix strides must be 1 (a dimension of size 1 may have any stride).
struct MatmulSpec {
  static constexpr int kMaxBatch = 3;

  DType dtype = DType::F32;      // of a and b: F32 or BF16; sums are F32
  DType out_dtype = DType::F32;  // of c: F32, or BF16 when the inputs are
  bool has_bias = false;         // F32 [n], contiguous
  Activation activation = Activation::None;

  int64_t m = 0, n = 0, k = 0;
  int64_t a_m = 0, a_k = 0, b_k = 0, b_n = 0, c_m = 0, c_n = 0;

  int batch_rank = 0;  // dimensions of `batch` in use; unused entries keep size 1 and stride 0
  std::array<int64_t, kMaxBatch> batch{1, 1, 1};
  std::array<int64_t, kMaxBatch> a_batch{}, b_batch{}, c_batch{};  // a or b stride 0: broadcast

  bool operator==(const MatmulSpec&) const = default;
  std::string to_string() const;

  // [batch, m, k] x [batch, k, n], all contiguous.
  static MatmulSpec contiguous(int64_t m, int64_t k, int64_t n, int64_t batch = 1,
                               DType dtype = DType::F32);
};

enum class ConvDirection : uint8_t { Forward, BackwardData, BackwardWeights };

// A convolution (cross-correlation, as every framework has it) over contiguous buffers:
//   src [n, c, in...], weights [oc, c / groups, kernel...], dst [n, oc, out...].
// Spatial arrays hold `rank` entries from the outermost dimension on (rank 2: h, w).
struct ConvSpec {
  static constexpr int kMaxRank = 3;

  ConvDirection direction = ConvDirection::Forward;
  DType dtype = DType::F32;
  bool has_bias = false;                     // Forward only: F32 [oc]
  Activation activation = Activation::None;  // Forward only
  int rank = 2;
  int64_t n = 0, c = 0, oc = 0, groups = 1;
  std::array<int64_t, kMaxRank> in{1, 1, 1}, kernel{1, 1, 1}, stride{1, 1, 1}, dilation{1, 1, 1};
  std::array<int64_t, kMaxRank> pad_lo{}, pad_hi{};  // zero padding before and after

  int64_t out(int dim) const {
    return (in[dim] + pad_lo[dim] + pad_hi[dim] - (dilation[dim] * (kernel[dim] - 1) + 1)) /
               stride[dim] +
           1;
  }
  int64_t src_elements() const;
  int64_t weight_elements() const;
  int64_t dst_elements() const;

  bool operator==(const ConvSpec&) const = default;
  std::string to_string() const;
};

// Buffers are given at each run and may change between runs; they must not overlap an output.
class MatmulProgram {
 public:
  virtual ~MatmulProgram() = default;
  // `bias` is null unless the spec has one. No allocation, no library object is created.
  virtual void run(const void* a, const void* b, void* c, const void* bias,
                   ThreadPool& pool) const = 0;
  virtual std::string describe() const = 0;  // implementation and split, for DEBUG and reports
};

class ConvProgram {
 public:
  virtual ~ConvProgram() = default;
  //                   a         b         c
  // Forward           src       weights   dst
  // BackwardData      dst grad  weights   src grad
  // BackwardWeights   src       dst grad  weights grad
  virtual void run(const void* a, const void* b, void* c, const void* bias,
                   ThreadPool& pool) const = 0;
  virtual std::string describe() const = 0;
};

// A line of `tinyshard devices`.
struct LibraryReport {
  std::string name;  // "oneDNN"
  bool available = false;
  std::string why_not;    // when not available
  std::string version;    // "2.6.3"
  std::string threading;  // its own runtime, and what we do with it
  std::string isa;        // "AVX512_CORE_BF16"
};

// ---------------------------------------------------------------------------- what callers use

// Returns whether a library of this build can run the spec here; `why` (may be null) says why not.
bool library_supports(const MatmulSpec& spec, std::string* why = nullptr);
bool library_supports(const ConvSpec& spec, std::string* why = nullptr);

// The program that is fastest by our measurements, for a pool of `threads`. Equal requests share
// one. Throws UserError if library_supports() is false, DeviceError if a library fails.
std::shared_ptr<const MatmulProgram> library_program(const MatmulSpec& spec, int threads);
std::shared_ptr<const ConvProgram> library_program(const ConvSpec& spec, int threads);

// Every program that could run the spec, the preferred one first: what a search times.
std::vector<std::shared_ptr<const MatmulProgram>> library_candidates(const MatmulSpec& spec,
                                                                     int threads);

std::vector<LibraryReport> library_reports();

}  // namespace tinyshard
