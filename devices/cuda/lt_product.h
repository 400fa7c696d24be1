// A call of cuBLASLt: what it computes, on matrices of which layout, by which algorithm.
//
// Algorithms differ in the alignment that they need, so one is chosen for each combination of
// alignments that occurs, by what the library advises, or, with BEAM=n, by timing the n that it
// advises most. Equal calls of a GPU share the choice; timed ones are kept on disk too.
#pragma once
#include <array>
#include <map>
#include <memory>

#include "devices/cuda/cublaslt.h"
#include "devices/cuda/executor.h"
#include "devices/cuda/matmul_spec.h"

namespace tinyshard::cuda {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what NVIDIA advises for Hopper

// Handles with their ends, so that a plan half made leaks nothing.
template <class Handle, LtStatus (*CublasLt::*Destroy)(Handle)>
struct LtOwned {
  Handle handle = nullptr;
  LtOwned() = default;
  LtOwned(const LtOwned&) = delete;
  ~LtOwned() {
    if (handle) (CublasLt::get().*Destroy)(handle);
  }
};

class LtProduct {
 public:
  LtProduct(Gpu& gpu, MatmulSpec spec);

  struct Pointers {
    const void *first, *second;
    void* out;
    const void* third = nullptr;    // of the epilogue
    const void* factors = nullptr;  // of the product and of what it updates, f32; null: both are 1
    void* sum = nullptr;            // where what precedes the GELU goes
    void* workspace = nullptr;      // of kWorkspaceBytes
  };
  // On the compute queue. DeviceError when it fails.
  void run(const Pointers& p);
  // Returns whether an algorithm exists for pointers so aligned; nothing is read or written.
  bool exists(const Pointers& p);

  const MatmulSpec& spec() const { return spec_; }
  // False once it is known that no algorithm chosen so far uses any.
  bool uses_workspace() const;

 private:
  using Alignments = std::array<uint32_t, 5>;
  using Candidates = std::vector<LtCandidate>;

  void check(LtStatus status, std::string_view asked) const;
  void set(LtMatmulAttribute attribute, auto value);
  void layout(LtOwned<LtLayout, &CublasLt::layout_destroy>& layout, const Matrix& x, DType dtype);
  bool updates() const { return spec_.epilogue == Epilogue::Update; }
  void point(const Pointers& p);
  LtCandidate algorithm(const Pointers& p, bool runs);
  Candidates advised(const Alignments& aligned, int count);
  LtCandidate fastest(const Candidates& candidates, Pointers p);
  bool known(const std::string& key, LtCandidate* found) const;
  std::string disk_key(const std::string& key) const;
  LtStatus launch(const LtAlgorithm& algorithm, const Pointers& p);
  bool recording() const;

  const CublasLt& lt_;
  Gpu& gpu_;
  MatmulSpec spec_;
  std::shared_ptr<struct LtState> state_;  // of the GPU
  LtOwned<LtMatmul, &CublasLt::matmul_destroy> matmul_;
  LtOwned<LtLayout, &CublasLt::layout_destroy> first_, second_, out_;
  std::map<Alignments, LtCandidate> chosen_;
};

}  // namespace tinyshard::cuda
