// An algorithm is looked for by the alignment of this call's pointers: in this program, among the
// products of the GPU, and with BEAM on disk; only then the library is asked. With BEAM its advice
// is timed, for which operands must be readable and writable: during a recording, or when only the
// existence of an algorithm is in question, the first advice serves, and is not kept.
#include "devices/cuda/lt_product.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <mutex>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/observer.h"
#include "core/base/options.h"
#include "core/runtime/file_cache.h"
#include "devices/gpu/timed_work.h"

namespace tinyshard::cuda {

// Shared by the products of a GPU.
struct LtState {
  LtOwned<LtHandle, &CublasLt::destroy> handle;
  std::mutex mutex;
  std::map<std::string, LtCandidate> chosen;
};

namespace {

constexpr int kRounds = 4;              // over all candidates, so that a slow phase hits all
constexpr double kRoundFlops = 1.5e11;  // of one candidate, in repetitions
// Another must be this much faster than the first. Short ones leave multiprocessors to what runs
// beside them, and what is a little faster alone takes more of those.
constexpr float kGain = 0.98f, kGainOfShort = 0.92f;
constexpr float kShort = 0.02f;              // ms
constexpr std::string_view kFile = ".gemm";  // extension of a choice on disk

LtType lt_type(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return kLtF64;
    case DType::F16:
      return kLtF16;
    case DType::BF16:
      return kLtBf16;
    default:
      return kLtF32;
  }
}

LtEpilogue lt_epilogue(const MatmulSpec& spec) {
  switch (spec.epilogue) {
    case Epilogue::None:
    case Epilogue::Update:
      break;
    case Epilogue::Bias:
      return kLtBias;
    case Epilogue::BiasRelu:
      return kLtReluBias;
    case Epilogue::BiasGelu:
      return spec.sum_slot > 0 ? kLtGeluAuxBias : kLtGeluBias;
    case Epilogue::GeluBackward:
      return kLtGeluBackward;
  }
  return kLtPlain;
}

uint32_t alignment(const void* p) {
  return uint32_t(std::min<uintptr_t>(256, uintptr_t{1} << std::countr_zero(uintptr_t(p))));
}

std::shared_ptr<LtState> state_of(Gpu& gpu) {
  auto lock = gpu.in_order();
  if (!gpu.library_state) {
    gpu.make_current();
    auto state = std::make_shared<LtState>();
    const CublasLt& lt = CublasLt::get();
    lt.check(lt.create(&state->handle.handle), gpu.name(), "cuBLASLt, a handle");
    gpu.library_state = state;
  }
  return std::static_pointer_cast<LtState>(gpu.library_state);
}

}  // namespace

LtProduct::LtProduct(Gpu& gpu, MatmulSpec spec)
    : lt_(CublasLt::get()), gpu_(gpu), spec_(std::move(spec)), state_(state_of(gpu)) {
  bool wide = spec_.type == DType::F64;
  bool tf32 = spec_.type == DType::F32 && options().tf32;
  check(lt_.matmul_create(&matmul_.handle,
                          wide   ? kLtComputeF64
                          : tf32 ? kLtComputeTf32
                                 : kLtComputeF32,
                          wide ? kLtF64 : kLtF32),
        "a product");
  set(kLtTransposeA, int32_t(spec_.first.transposed));
  set(kLtTransposeB, int32_t(spec_.second.transposed));
  if (spec_.epilogue != Epilogue::None) set(kLtEpilogue, uint32_t(lt_epilogue(spec_)));
  if (spec_.third_ld > 0 && !updates()) set(kLtAuxLd, spec_.third_ld);
  if (spec_.factors_slot > 0) set(kLtPointerMode, int32_t(kLtFactorsOnDevice));
  layout(first_, spec_.first, spec_.type);
  layout(second_, spec_.second, spec_.type);
  layout(out_, spec_.out, spec_.result);
}

void LtProduct::check(LtStatus status, std::string_view asked) const {
  if (status != 0)
    lt_.check(status, gpu_.name(), fmt::format("cuBLASLt, {} of {}", asked, spec_.describe()));
}

void LtProduct::set(LtMatmulAttribute attribute, auto value) {
  check(lt_.matmul_set(matmul_.handle, attribute, static_cast<const void*>(&value), sizeof(value)),
        "an attribute");
}

void LtProduct::layout(LtOwned<LtLayout, &CublasLt::layout_destroy>& layout, const Matrix& x,
                       DType dtype) {
  check(lt_.layout_create(&layout.handle, lt_type(dtype), uint64_t(x.rows), uint64_t(x.cols),
                          std::max(x.ld, x.rows)),
        "a layout");
  if (spec_.batch == 1) return;
  auto count = int32_t(spec_.batch);
  check(lt_.layout_set(layout.handle, kLtBatchCount, &count, sizeof(count)), "a batch");
  check(lt_.layout_set(layout.handle, kLtBatchStride, &x.batch_stride, sizeof(x.batch_stride)),
        "a batch");
}

void LtProduct::point(const Pointers& p) {
  if (updates()) return;
  if (spec_.epilogue == Epilogue::GeluBackward)
    set(kLtAuxPointer, p.third);
  else if (spec_.epilogue != Epilogue::None)
    set(kLtBiasPointer, p.third);
  if (spec_.sum_slot > 0) set(kLtAuxPointer, p.sum);
}

void LtProduct::run(const Pointers& p) {
  point(p);
  check(launch(algorithm(p, true).algorithm, p), "running");
}

bool LtProduct::exists(const Pointers& p) {
  point(p);
  try {
    algorithm(p, false);
    return true;
  } catch (const DeviceError&) {
    return false;
  }
}

bool LtProduct::uses_workspace() const {
  return chosen_.empty() || std::ranges::any_of(chosen_, [](const auto& choice) {
           return choice.second.workspace > 0;
         });
}

LtStatus LtProduct::launch(const LtAlgorithm& algorithm, const Pointers& p) {
  const double one64 = 1, zero64 = 0;
  const float one32 = 1, zero32 = 0;
  bool wide = spec_.type == DType::F64;
  const void* of_product = wide ? static_cast<const void*>(&one64) : &one32;
  const void* of_old = wide ? static_cast<const void*>(&zero64) : &zero32;
  if (updates()) of_old = &one32;
  if (p.factors) {
    of_product = p.factors;
    of_old = static_cast<const float*>(p.factors) + 1;
  }
  return lt_.matmul(state_->handle.handle, matmul_.handle, of_product, p.first, first_.handle,
                    p.second, second_.handle, of_old, updates() ? p.third : p.out, out_.handle,
                    p.out, out_.handle, &algorithm, p.workspace, kWorkspaceBytes,
                    gpu_.stream(Queue::Compute));
}

// --- which algorithm

bool LtProduct::recording() const {
  int status = 0;
  gpu_.check(gpu_.driver().capture_info(gpu_.stream(Queue::Compute), &status, nullptr, nullptr,
                                        nullptr, nullptr, nullptr),
             "looking at a recording");
  return status != 0;
}

// `runs`: the pointers are real, and what lies there may be written now.
LtCandidate LtProduct::algorithm(const Pointers& p, bool runs) {
  Alignments aligned{alignment(p.first), alignment(p.second), alignment(p.out)};
  if (p.third) aligned[3] = alignment(p.third);
  if (p.sum) aligned[4] = alignment(p.sum);
  if (auto found = chosen_.find(aligned); found != chosen_.end()) return found->second;
  std::string key = fmt::format("{}, aligned", spec_.describe());
  for (uint32_t a : aligned) key += fmt::format(" {}", a);
  std::lock_guard lock(state_->mutex);
  if (auto found = state_->chosen.find(key); found != state_->chosen.end()) {
    return chosen_[aligned] = found->second;
  }
  LtCandidate best{};
  int beam = options().beam;
  if (beam > 1 && known(disk_key(key), &best)) return chosen_[aligned] = state_->chosen[key] = best;
  Candidates candidates = advised(aligned, std::max(beam, 1));
  best = candidates[0];
  if (beam > 1) {
    if (!runs || recording()) return best;  // to be timed when it can be
    best = fastest(candidates, p);
    file_cache::store(disk_key(key), kFile,
                      std::string_view(reinterpret_cast<char*>(&best), sizeof(best)));
  }
  return chosen_[aligned] = state_->chosen[key] = best;
}

LtProduct::Candidates LtProduct::advised(const Alignments& aligned, int count) {
  LtOwned<LtPreference, &CublasLt::preference_destroy> preference;
  check(lt_.preference_create(&preference.handle), "a preference");
  auto prefer = [&](LtPreferenceAttribute attribute, auto value) {
    check(lt_.preference_set(preference.handle, attribute, &value, sizeof(value)), "a preference");
  };
  prefer(kLtMaxWorkspace, uint64_t{kWorkspaceBytes});
  prefer(kLtAlignmentA, aligned[0]);
  prefer(kLtAlignmentB, aligned[1]);
  prefer(kLtAlignmentC, aligned[2]);
  prefer(kLtAlignmentD, aligned[2]);
  Candidates found(static_cast<size_t>(count));
  int valid = 0;
  LtStatus status =
      lt_.heuristic(state_->handle.handle, matmul_.handle, first_.handle, second_.handle,
                    out_.handle, out_.handle, preference.handle, count, found.data(), &valid);
  if (status == 0 && valid == 0) status = found[0].state;
  check(status, "an algorithm");
  found.resize(size_t(valid));
  std::erase_if(found, [](const LtCandidate& c) { return c.state != 0; });
  if (found.empty())
    throw DeviceError(fmt::format("{}: no algorithm for {}", gpu_.name(), spec_.describe()));
  return found;
}

// Run on the operands of this very call: whichever ran last, the result is what was asked for. What
// is updated would be so many times: results go elsewhere.
LtCandidate LtProduct::fastest(const Candidates& candidates, Pointers p) {
  std::shared_ptr<void> elsewhere;
  if (updates()) {
    size_t bytes = size_t(spec_.m * spec_.n) * itemsize(spec_.result);
    elsewhere = {gpu_.allocate(bytes, "timing of products"),
                 [this, bytes](void* memory) { gpu_.free(memory, bytes); }};
    p.out = elsewhere.get();
  }
  double flops = 2.0 * double(spec_.m) * double(spec_.k) * double(spec_.n) * double(spec_.batch);
  int repeat = int(std::clamp(kRoundFlops / flops, 1.0, 20.0));
  struct Timed {
    const LtCandidate* candidate;
    std::unique_ptr<TimedWork> work;
    float ms = std::numeric_limits<float>::infinity();
  };
  ObservedScope event([&] {
    return ObservedEvent{.kind = EventKind::Tuning,
                         .name = fmt::format("{}: {}", gpu_.name(), spec_.describe())};
  });
  std::vector<Timed> timed;
  for (const LtCandidate& c : candidates) {
    if (launch(c.algorithm, p) != 0) continue;  // the first run also loads its code
    timed.push_back({&c, std::make_unique<TimedWork>(
                             gpu_, repeat, [&] { check(launch(c.algorithm, p), "running"); })});
  }
  if (timed.empty()) return candidates[0];
  for (int round = 0; round < kRounds; ++round) {
    for (Timed& t : timed) t.ms = std::min(t.ms, t.work->run());
  }
  const Timed* best = &*std::ranges::min_element(timed, {}, &Timed::ms);
  const float gain = timed[0].ms < kShort ? kGainOfShort : kGain;
  if (best->ms > gain * timed[0].ms) best = timed.data();
  event.finish([&] {
    return fmt::format("algorithm {} of {}, {:.1f} us, the first {:.1f} us",
                       best->candidate - candidates.data() + 1, candidates.size(), best->ms * 1e3,
                       timed[0].ms * 1e3);
  });
  return *best->candidate;
}

std::string LtProduct::disk_key(const std::string& key) const {
  return fmt::format(
      "algorithm: cuBLASLt {}, capability {}, {} multiprocessors, tf32 {}, the best of {}: {}",
      lt_.version_number(), gpu_.capability(), gpu_.target().multiprocessors, options().tf32,
      options().beam, key);
}

bool LtProduct::known(const std::string& key, LtCandidate* found) const {
  auto bytes = file_cache::load(key, kFile);
  if (!bytes || bytes->size() != sizeof(*found)) return false;
  std::memcpy(found, bytes->data(), sizeof(*found));
  LtCandidate checked{};
  return lt_.algorithm_check(state_->handle.handle, matmul_.handle, first_.handle, second_.handle,
                             out_.handle, out_.handle, &found->algorithm, &checked) == 0 &&
         checked.workspace <= kWorkspaceBytes;
}

}  // namespace tinyshard::cuda
