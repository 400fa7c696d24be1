// A product cut for threads: rows and columns in parts of whole kernel blocks, whichever cut costs
// the least by a rough count of cycles. Sums are vectors along the columns of the result, so that
// one that lies column by column is computed as its transpose. The inner loops are in
// gemm_kernel.h.
#include "devices/cpu/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <sys/mman.h>
#include <unordered_map>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/dtype/half.h"
#include "devices/cpu/gemm_task.h"
#include "devices/cpu/thread_pool.h"

namespace tinyshard::gemm {
namespace {

// Best first.
std::vector<Kernel> kernels() {
  std::vector<Kernel> all;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    all.push_back(avx512_kernel());
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) all.push_back(avx2_kernel());
#endif
  all.push_back(generic_kernel());
  return all;
}

const Kernel& best_kernel() {
  static const Kernel best = kernels().front();
  return best;
}

Element element_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return Element::F64;
    case DType::F16:
      return Element::F16;
    case DType::BF16:
      return Element::BF16;
    default:
      return Element::F32;
  }
}

constexpr size_t kHugePage = 2 << 20;
static_assert(kScratchBytes <= kHugePage);

// Packed operands and sums of the executing thread, kept for its life.
void* thread_scratch() {
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<void, Free> scratch;
  if (!scratch) {
    scratch.reset(std::aligned_alloc(kHugePage, kHugePage));
    if (scratch) madvise(scratch.get(), kHugePage, MADV_HUGEPAGE);
  }
  if (!scratch) throw DeviceError(fmt::format("no memory for {} bytes of scratch", kScratchBytes));
  return scratch.get();
}

// The product seen the other way: c transposed = b transposed times a transposed.
Task transposed(Task t) {
  std::swap(t.a, t.b);
  std::swap(t.m, t.n);
  std::swap(t.a_m, t.b_n);
  std::swap(t.a_k, t.b_k);
  std::swap(t.c_m, t.c_n);
  std::swap(t.bias_m, t.bias_n);
  return t;
}

// Rough cycles of one task on one core, to choose how to cut a product.
double cost(const Task& t, const Kernel& kernel) {
  auto d = [](int64_t x) { return static_cast<double>(x); };
  double size = t.in == Element::F64 ? 2 : 1;
  double vectors = std::ceil(d(t.n) * size / d(kernel.lanes));
  bool narrow = t.in == Element::F16 || t.in == Element::BF16;
  double pack_b = narrow || (t.b_n != 1 && t.b_k != 1) ? 1.5 : 0.3;
  double pack_a = narrow ? 1.5 : t.a_k != 1 ? 0.3 : 0;
  return d(t.m) * d(t.k) * vectors + size * d(t.k) * (d(t.n) * pack_b + d(t.m) * pack_a) +
         d(t.m) * d(t.n) * (t.c_n == 1 ? 0.2 : 1);
}

class GemmProgram final : public MatmulProgram {
 public:
  GemmProgram(const MatmulSpec& spec, int threads, const Kernel& kernel);
  void run(const void* a, const void* b, void* c, const void* bias,
           ThreadPool& pool) const override;
  std::string describe() const override;

 private:
  void compute(int64_t item, const Task& operands) const;
  int64_t row_begin(int64_t part) const {
    int64_t units = (task_.m + kernel_.rows - 1) / kernel_.rows;
    return std::min(task_.m, ThreadPool::part_begin(units, row_parts_, part) * kernel_.rows);
  }
  int64_t col_begin(int64_t part) const {
    int64_t units = (task_.n + kernel_.lanes - 1) / kernel_.lanes;
    return std::min(task_.n, ThreadPool::part_begin(units, col_parts_, part) * kernel_.lanes);
  }

  Kernel kernel_;
  Task task_;             // the whole product, without addresses
  bool swapped_ = false;  // task_ is the transposed product
  MatmulSpec batch_;      // the batch dimensions left after merging
  int64_t items_ = 1, row_parts_ = 1, col_parts_ = 1;
  int chunks_ = 1;
  int64_t in_bytes_, out_bytes_;
};

GemmProgram::GemmProgram(const MatmulSpec& spec, int threads, const Kernel& kernel)
    : kernel_(kernel),
      batch_(spec),
      in_bytes_(static_cast<int64_t>(itemsize(spec.dtype))),
      out_bytes_(static_cast<int64_t>(itemsize(spec.out_dtype))) {
  MatmulSpec& s = batch_;
  // A batch of contiguous rows that share b is one product with more rows.
  while (s.batch_rank > 0) {
    int last = s.batch_rank - 1;
    bool rows =
        s.b_batch[last] == 0 && s.a_batch[last] == s.m * s.a_m && s.c_batch[last] == s.m * s.c_m;
    if (!rows && s.batch[last] != 1) break;
    s.m *= s.batch[last];
    s.batch_rank = last;
  }
  task_.in = element_of(s.dtype);
  task_.out = element_of(s.out_dtype);
  task_.epilogue = s.activation == Activation::Relu       ? Epilogue::Relu
                   : s.activation == Activation::GeluTanh ? Epilogue::GeluTanh
                                                          : Epilogue::None;
  task_.m = s.m, task_.n = s.n, task_.k = s.k;
  task_.a_m = s.a_m, task_.a_k = s.a_k, task_.b_k = s.b_k, task_.b_n = s.b_n;
  task_.c_m = s.c_m, task_.c_n = s.c_n;
  // Sums are vectors along n: a column-major c is the row-major c of the transposed product.
  swapped_ = task_.c_n != 1 && task_.n > 1 && task_.c_m == 1;
  if (swapped_) task_ = transposed(task_);

  int64_t batch = 1;
  for (int i = 0; i < s.batch_rank; ++i) batch *= s.batch[i];
  double best = 0;
  int64_t row_units = (task_.m + kernel_.rows - 1) / kernel_.rows;
  int64_t col_units = (task_.n + kernel_.lanes - 1) / kernel_.lanes;
  for (int64_t rows = 1; rows <= std::min<int64_t>(threads, row_units); ++rows)
    for (int64_t cols = 1; rows * cols <= threads && cols <= col_units; ++cols) {
      Task part = task_;
      part.m = std::min(task_.m, (row_units + rows - 1) / rows * kernel_.rows);
      part.n = std::min(task_.n, (col_units + cols - 1) / cols * kernel_.lanes);
      double rounds = std::ceil(static_cast<double>(batch * rows * cols) / threads);
      double time = rounds * (cost(part, kernel_) + 300);
      if (best != 0 && time >= best) continue;
      best = time;
      row_parts_ = rows;
      col_parts_ = cols;
    }
  items_ = task_.m == 0 || task_.n == 0 ? 0 : batch * row_parts_ * col_parts_;
  chunks_ = static_cast<int>(std::min<int64_t>(items_, 4 * static_cast<int64_t>(threads)));
}

void GemmProgram::run(const void* a, const void* b, void* c, const void* bias,
                      ThreadPool& pool) const {
  Task operands = task_;
  operands.a = swapped_ ? b : a;
  operands.b = swapped_ ? a : b;
  operands.c = c;
  operands.bias = batch_.has_bias ? bias : nullptr;
  operands.bias_n = swapped_ ? 0 : 1;
  operands.bias_m = swapped_ ? 1 : 0;
  struct Context {
    const GemmProgram* self;
    const Task* operands;
  } context{this, &operands};
  auto chunk = [](void* ctx, int chunk, int) {
    auto& [self, operands] = *static_cast<Context*>(ctx);
    int64_t end = ThreadPool::part_begin(self->items_, self->chunks_, chunk + 1);
    for (int64_t i = ThreadPool::part_begin(self->items_, self->chunks_, chunk); i < end; ++i)
      self->compute(i, *operands);
  };
  pool.run(chunks_, chunk, &context);
}

void GemmProgram::compute(int64_t item, const Task& operands) const {
  auto moved = [](const void* p, int64_t bytes) { return static_cast<const char*>(p) + bytes; };
  int64_t parts = row_parts_ * col_parts_, part = item % parts, batch = item / parts;
  int64_t a = 0, b = 0, c = 0;  // elements
  for (int i = batch_.batch_rank; i-- > 0; batch /= batch_.batch[i]) {
    int64_t index = batch % batch_.batch[i];
    a += index * (swapped_ ? batch_.b_batch[i] : batch_.a_batch[i]);
    b += index * (swapped_ ? batch_.a_batch[i] : batch_.b_batch[i]);
    c += index * batch_.c_batch[i];
  }
  int64_t row = row_begin(part / col_parts_), col = col_begin(part % col_parts_);
  Task t = operands;
  t.m = row_begin(part / col_parts_ + 1) - row;
  t.n = col_begin(part % col_parts_ + 1) - col;
  t.a = moved(t.a, (a + row * t.a_m) * in_bytes_);
  t.b = moved(t.b, (b + col * t.b_n) * in_bytes_);
  t.c = const_cast<char*>(moved(t.c, (c + row * t.c_m + col * t.c_n) * out_bytes_));
  int64_t bias_bytes = t.in == Element::F64 ? 8 : 4;
  if (t.bias) t.bias = moved(t.bias, (row * t.bias_m + col * t.bias_n) * bias_bytes);
  t.scratch = thread_scratch();
  kernel_.run(t);
}

std::string GemmProgram::describe() const {
  return fmt::format("gemm {}{} in {} x {} parts of {} items", kernel_.isa,
                     swapped_ ? " transposed" : "", row_parts_, col_parts_, items_);
}

struct Key {
  MatmulSpec spec;
  int threads;
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  size_t operator()(const Key& key) const {
    return combine(hash_text(key.spec.to_string()), static_cast<uint64_t>(key.threads));
  }
};

}  // namespace

bool supports(const MatmulSpec& s, std::string* why) {
  auto refuse = [&](std::string reason) {
    if (why) *why = std::move(reason);
    return false;
  };
  bool narrow = is_half(s.dtype);
  bool wide = s.dtype == DType::F32 || s.dtype == DType::F64;
  if (!(wide && s.out_dtype == s.dtype) &&
      !(narrow && (s.out_dtype == s.dtype || s.out_dtype == DType::F32)))
    return refuse(fmt::format("no product of {} into {}", name(s.dtype), name(s.out_dtype)));
  if (s.batch_rank < 0 || s.batch_rank > MatmulSpec::kMaxBatch)
    return refuse(fmt::format("{} batch dimensions; 0 to {} are supported", s.batch_rank,
                              MatmulSpec::kMaxBatch));
  if (s.m < 0 || s.n < 0 || s.k < 0)
    return refuse(fmt::format("m {}, n {}, k {}: a size is negative", s.m, s.n, s.k));
  return true;
}

std::shared_ptr<const MatmulProgram> make_program(const MatmulSpec& spec, int threads) {
  static std::mutex mutex;
  // Outlives every static tensor.
  static auto& programs =
      *new std::unordered_map<Key, std::shared_ptr<const MatmulProgram>, KeyHash>;
  if (std::string why; !supports(spec, &why)) throw UserError("matrix product: " + why);
  std::lock_guard lock(mutex);
  auto& program = programs[{spec, threads}];
  if (!program) program = std::make_shared<GemmProgram>(spec, threads, best_kernel());
  return program;
}

std::shared_ptr<const MatmulProgram> make_program(const MatmulSpec& spec, int threads,
                                                  const std::string& isa) {
  if (std::string why; !supports(spec, &why)) throw UserError("matrix product: " + why);
  for (const auto& kernel : kernels())
    if (kernel.isa == isa) return std::make_shared<GemmProgram>(spec, threads, kernel);
  throw UserError(fmt::format("this CPU has no instruction set '{}'", isa));
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const auto& kernel : kernels()) names.emplace_back(kernel.isa);
  return names;
}

LibraryReport library_report() {
  return {.name = "gemm",
          .available = true,
          .why_not = {},
          .version = TINYSHARD_VERSION,
          .threading = "our pool",
          .isa = best_kernel().isa};
}

}  // namespace tinyshard::gemm
