// Programs are kept for the life of the process, by spec and number of threads. An entry whose
// making throws is taken out again, so that the next asker is told the reason, too. A build without
// oneDNN has the same functions, which refuse everything.
#include "devices/cpu/onednn.h"

#if TINYSHARD_HAS_ONEDNN

#include <mutex>
#include <unordered_map>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "devices/cpu/onednn_primitives.h"

namespace tinyshard::onednn {
namespace {

// Answers and programs live as long as the process: a training step asks for the same few again
// and again.
template <class Spec, class Value>
class Cache {
 public:
  template <class Make>
  Value get(const Spec& spec, int threads, Make make) {
    std::lock_guard lock(mutex_);
    auto [entry, added] = entries_.try_emplace(Key{spec, threads});
    if (!added) return entry->second;
    try {
      return entry->second = make();
    } catch (...) {
      entries_.erase(entry);
      throw;
    }
  }

 private:
  struct Key {
    Spec spec;
    int threads;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      return combine(hash_text(key.spec.to_string()), static_cast<uint64_t>(key.threads));
    }
  };
  std::mutex mutex_;
  std::unordered_map<Key, Value, Hash> entries_;
};

}  // namespace

bool supports(const MatmulSpec& spec, std::string* why) {
  SerialOpenMp serial;
  return check_matmul(spec, why);
}

bool supports(const ConvSpec& spec, std::string* why) {
  static auto& answers =
      *new Cache<ConvSpec, bool>;  // outlives every static tensor, as those below
  if (!check_conv(spec, why)) return false;
  return answers.get(spec, 0, [&] { return has_conv_kernel(spec); }) ||
         refuse(why, fmt::format("no fast kernel on this CPU for {}", spec.to_string()));
}

std::shared_ptr<const MatmulProgram> make_program(const MatmulSpec& spec, int threads) {
  static auto& programs = *new Cache<MatmulSpec, std::shared_ptr<const MatmulProgram>>;
  if (std::string why; !supports(spec, &why)) throw UserError("oneDNN: " + why);
  return programs.get(spec, threads, [&] { return make_matmul(spec, threads); });
}

std::shared_ptr<const ConvProgram> make_program(const ConvSpec& spec, int threads) {
  static auto& programs = *new Cache<ConvSpec, std::shared_ptr<const ConvProgram>>;
  if (std::string why; !check_conv(spec, &why)) throw UserError("oneDNN: " + why);
  return programs.get(spec, threads, [&] { return make_conv(spec, threads); });
}

LibraryReport library_report() {
  const auto* version = dnnl_version();
  const char* runtime = version->cpu_runtime == DNNL_RUNTIME_OMP   ? "OpenMP"
                        : version->cpu_runtime == DNNL_RUNTIME_TBB ? "TBB"
                        : version->cpu_runtime == DNNL_RUNTIME_SEQ ? "sequential"
                                                                   : "thread pool";
  auto isa_name = [] {
    switch (dnnl::get_effective_cpu_isa()) {
      case dnnl::cpu_isa::sse41:
        return "SSE4.1";
      case dnnl::cpu_isa::avx:
        return "AVX";
      case dnnl::cpu_isa::avx2:
        return "AVX2";
      case dnnl::cpu_isa::avx2_vnni:
        return "AVX2 VNNI";
      case dnnl::cpu_isa::avx512_core:
        return "AVX-512";
      case dnnl::cpu_isa::avx512_core_vnni:
        return "AVX-512 VNNI";
      case dnnl::cpu_isa::avx512_core_bf16:
        return "AVX-512 BF16";
      case dnnl::cpu_isa::avx512_core_amx:
        return "AVX-512 AMX";
      default:
        return "plain";
    }
  };
  return {.name = "oneDNN",
          .available = true,
          .why_not = {},
          .version = fmt::format("{}.{}.{}", version->major, version->minor, version->patch),
          .threading = fmt::format("{}, one thread per chunk of our pool", runtime),
          .isa = isa_name()};
}

}  // namespace tinyshard::onednn

#else  // built without oneDNN

#include "core/base/error.h"

namespace tinyshard::onednn {
namespace {
constexpr const char* kAbsent = "this build has no oneDNN";
}

bool supports(const MatmulSpec&, std::string* why) {
  if (why) *why = kAbsent;
  return false;
}
bool supports(const ConvSpec&, std::string* why) {
  if (why) *why = kAbsent;
  return false;
}
std::shared_ptr<const MatmulProgram> make_program(const MatmulSpec&, int) {
  throw UserError(kAbsent);
}
std::shared_ptr<const ConvProgram> make_program(const ConvSpec&, int) { throw UserError(kAbsent); }
LibraryReport library_report() {
  LibraryReport report;
  report.name = "oneDNN";
  report.why_not = kAbsent;
  return report;
}

}  // namespace tinyshard::onednn

#endif
