// Models in files, loaded and saved by several ranks: what each reads and holds, and how fast.
//
//   mpirun -n 4 files_of_ranks_test              32 MiB, bounds on bytes: what ctest runs
//   mpirun -n 4 files_of_ranks_test 2048 DIR     2 GiB in DIR, with rates beside those of cat and dd
//
// Exits with 1 where a bound does not hold.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <sys/resource.h>
#include <unistd.h>

#include "core/exec/context.h"
#include "core/nn/nn.h"
#include "core/tensor/jit.h"
#include "io/safetensors.h"

namespace tinyshard {
namespace {

namespace fs = std::filesystem;

int64_t counter_of(const char* path, const std::string& name) {
  std::ifstream file(path);
  std::string key;
  int64_t value = 0;
  while (file >> key) {
    if (key == name && file >> value) return value;
  }
  return 0;
}
int64_t bytes_read() { return counter_of("/proc/self/io", "rchar:"); }
int64_t bytes_written() { return counter_of("/proc/self/io", "wchar:"); }
int64_t resident() { return counter_of("/proc/self/status", "VmRSS:") << 10; }
int64_t peak_resident() { return counter_of("/proc/self/status", "VmHWM:") << 10; }
// The peak counts from here on.
void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
void meet() { Context::get().world().barrier().wait(); }

double seconds_of(const std::string& command) {
  const double begin = now();
  return std::system(command.c_str()) == 0 ? now() - begin : -1;
}

int failures = 0;
void expect_at_most(const char* what, int64_t value, int64_t bound) {
  const bool fine = value <= bound;
  if (!fine) ++failures;
  if (!fine || world().rank == 0) {
    std::printf("[%d] %s: %.2f MiB, at most %.2f: %s\n", world().rank, what,
                double(value) / (1 << 20), double(bound) / (1 << 20), fine ? "ok" : "FAILED");
  }
}

// Tensors of 16 MiB, split by rows and by columns in turn; elements tell their place.
constexpr int64_t kRows = 1024, kColumns = 4096, kEach = kRows * kColumns * 4;

std::vector<int32_t> elements(int64_t number) {
  std::vector<int32_t> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) values[i] = int32_t(i) + int32_t(number);
  return values;
}

void write_model(const fs::path& path, int64_t count) {
  std::ofstream file(path, std::ios::binary);
  std::string header = "{";
  for (int64_t i = 0; i < count; ++i) {
    header += (i ? ",\"" : "\"") + std::to_string(10000 + i) + "\":{\"dtype\":\"I32\",\"shape\":[" +
              std::to_string(kRows) + "," + std::to_string(kColumns) + "],\"data_offsets\":[" +
              std::to_string(i * kEach) + "," + std::to_string((i + 1) * kEach) + "]}";
  }
  header += "}";
  const uint64_t length = header.size();
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << header;
  for (int64_t i = 0; i < count; ++i)
    file.write(reinterpret_cast<const char*>(elements(i).data()), kEach);
}

nn::StateDict empty_model(const Mesh& mesh, int64_t count) {
  nn::StateDict model;
  for (int64_t i = 0; i < count; ++i) {
    model.emplace(
        std::to_string(10000 + i),
        Tensor::empty({kRows, kColumns}, DType::I32).shard(mesh, {{"all", Shard(i % 2)}}));
  }
  return model;
}

void check_values(const nn::StateDict& model, int64_t count) {
  const Tensor place = Tensor::arange(kRows * kColumns, DType::I32).reshape({kRows, kColumns});
  for (int64_t i = 0; i < count; i += std::max<int64_t>(1, count / 8)) {
    const Tensor& t = model.at(std::to_string(10000 + i));
    if (((t - i) == place.shard_like(t)).all().item<bool>()) continue;
    ++failures;
    std::printf("[%d] tensor %d has other values: FAILED\n", world().rank, int(i));
  }
}

void rates(const char* what, int64_t bytes, double seconds, const fs::path& from,
           const std::vector<std::pair<std::string, std::string>>& others) {
  std::printf("%s %.2f GiB/s", what, double(bytes) / seconds / (1 << 30));
  for (const auto& [name, command] : others) {
    const double theirs = seconds_of(command);
    std::printf("; %s %.2f GiB/s, %.0f %% of it", name.c_str(), double(bytes) / theirs / (1 << 30),
                100 * theirs / seconds);
  }
  std::printf("; %s\n", from.c_str());
}

void load(const Mesh& mesh, const fs::path& path, int64_t count, bool timed) {
  const int64_t whole = count * kEach, own = whole / world().ranks;
  nn::StateDict model = empty_model(mesh, count);
  meet();
  const int64_t read = bytes_read(), held = resident();
  forget_peak();
  const double begin = now();
  nn::load(model, safe_load(path));
  const double seconds = now() - begin;
  expect_at_most("loading reads", bytes_read() - read, own + own / 100 + (256 << 10));
  expect_at_most("loading holds", peak_resident() - held, own + (timed ? 256 << 20 : 16 << 20));
  meet();
  const double all = now() - begin;
  if (timed && world().rank == 0) {
    std::printf("[0] %.3f s, all ranks %.3f s\n", seconds, all);
    rates("load", whole, all, path,
          {{"cat to /dev/null", "cat '" + path.native() + "' > /dev/null"},
           {"cat to /dev/shm",
            "cat '" + path.native() + "' > /dev/shm/tinyshard-cat-" + std::to_string(getpid())}});
    fs::remove("/dev/shm/tinyshard-cat-" + std::to_string(getpid()));
  }
  meet();
  check_values(model, count);
}

// The address sanitizer keeps memory that was freed.
#ifdef __SANITIZE_ADDRESS__
constexpr int64_t kNotGivenBack = 8 << 20;
#else
constexpr int64_t kNotGivenBack = 0;
#endif

// Looks up rows of a file by an index that all ranks have, and by one that is divided. Each rank
// reads the rows that it needs, and no others.
void look_up(const Mesh& mesh, const fs::path& path) {
  const Tensor w = safe_load(path).at("10000");
  const Tensor ids = (Tensor::arange(8) * 131 + 5).realize();
  const Tensor want = (ids * kColumns).unsqueeze(1) + Tensor::arange(kColumns, DType::I32);
  const Tensor table = w.shard(mesh, {{"all", Shard(0)}});
  for (const bool measured : {false, true}) {  // kernels are compiled before
    const int64_t held = resident();
    forget_peak();
    for (const Placement& place : {Replicate, Shard(0)}) {
      const Tensor mine = ids.shard(mesh, {{"all", place}}).realize();
      for (const Tensor& rows : {w.embedding(mine), table.embedding(mine), table[{mine}]}) {
        if ((rows == want.shard_like(rows)).all().item<bool>()) continue;
        ++failures;
        std::printf("[%d] other rows were looked up: FAILED\n", world().rank);
      }
    }
    if (measured) expect_at_most("lookups hold", peak_resident() - held, (2 << 20) + kNotGivenBack);
  }
  meet();
}

nn::StateDict full_model(const Mesh& mesh, int64_t count) {
  nn::StateDict model = empty_model(mesh, count);
  const Tensor place = Tensor::arange(kRows * kColumns, DType::I32).reshape({kRows, kColumns});
  for (int64_t i = 0; i < count; ++i) {
    const Tensor& t = model.at(std::to_string(10000 + i));
    t.assign(place.shard_like(t) + i).realize();
  }
  return model;
}

// Steps of training without and beside a save, in turn.
void steps_beside_a_save(const nn::StateDict& model, const fs::path& root) {
  Tensor x = Tensor::rand({256, 1024}).realize();
  const Tensor w = Tensor::rand({1024, 1024}).realize();
  Jit step([&](const Tensor& in) { return in.matmul(w).tanh(); });
  constexpr int kSteps = 2000;
  auto run = [&] {
    meet();
    const double begin = now();
    for (int i = 0; i < kSteps; ++i) x = step(x);
    x.realize();
    return now() - begin;
  };
  for (int i = 0; i < 5; ++i) x = step(x);
  for (int i = 0; i < 3; ++i) {
    const double alone = run();
    const double begin = now();
    nn::save_checkpoint(model, root, 20 + i, {.keep = 1, .asynchronous = true});
    const double returned = now() - begin, beside = run();
    const double stepped = now() - begin;
    nn::wait_for_checkpoints();
    if (world().rank == 0) {
      std::printf(
          "%d steps alone %.3f s, beside a save %.3f s (%+.1f %%), its snapshot %.3f s; there "
          "%.3f s after the steps\n",
          kSteps, alone, beside, 100 * (beside / alone - 1), returned, now() - begin - stepped);
    }
  }
}

void save(const Mesh& mesh, const fs::path& root, int64_t count, bool timed) {
  const int64_t whole = count * kEach, own = whole / world().ranks;
  nn::StateDict model = full_model(mesh, count);
  meet();
  const int64_t written = bytes_written(), held = resident();
  forget_peak();
  double begin = now();
  nn::save_checkpoint(model, root, 1, {.keep = 1});
  const double seconds = now() - begin;
  // Rank 0 writes the manifest, too.
  expect_at_most("saving writes", bytes_written() - written, own + own / 100 + (256 << 10));
  expect_at_most("saving holds", peak_resident() - held, 64 << 20);
  meet();
  if (timed && world().rank == 0) {
    const fs::path other = root / "dd";
    rates("save", whole, seconds, root,
          {{"dd", "dd if=/dev/zero of='" + other.native() +
                      "' bs=16M count=" + std::to_string(count) + " conv=fsync 2> /dev/null"}});
    fs::remove(other);
  }
  meet();
  // Plain files, each rank its rows of them.
  const int64_t before = bytes_written();
  forget_peak();
  begin = now();
  safe_save(model, root / "model", {}, {.shard_bytes = 1 << 30});
  const double took = now() - begin;
  if (!fs::exists(root / "model" / "model.safetensors.index.json")) {
    ++failures;
    std::printf("[%d] safe_save returned before its index was there\n", world().rank);
  }
  expect_at_most("safe_save writes", bytes_written() - before, own + own / 100 + (256 << 10));
  expect_at_most("safe_save holds", peak_resident() - held, 64 << 20);
  meet();
  if (timed && world().rank == 0)
    std::printf("safe_save %.2f GiB/s\n", double(whole) / took / (1 << 30));
  nn::StateDict plain;
  for (const auto& [name, t] : model)
    plain.emplace(name, Tensor::empty(t.shape(), DType::I32).shard_like(t));
  nn::load(plain, safe_load(root / "model"));
  check_values(plain, count);
  plain.clear();
  meet();
  if (world().rank == 0) fs::remove_all(root / "model");
  // Beside work that changes what was saved; it comes back on another mesh.
  begin = now();
  nn::save_checkpoint(model, root, 2, {.keep = 1, .asynchronous = true});
  const double returned = now() - begin;
  for (auto& [name, t] : model)
    t.assign(Tensor::zeros({}, DType::I32).expand({kRows, kColumns}).shard_like(t));
  for (auto& [name, t] : model) t.realize();
  nn::wait_for_checkpoints();
  if (timed && world().rank == 0) {
    std::printf("asynchronous save: returned after %.3f s, there after %.3f s\n", returned,
                now() - begin);
  }
  if (timed) steps_beside_a_save(model, root.parent_path() / "beside");
  model.clear();
  nn::StateDict other;
  for (int64_t i = 0; i < count; ++i) {
    other.emplace(
        std::to_string(10000 + i),
        Tensor::empty({kRows, kColumns}, DType::I32).shard(mesh, {{"all", Shard(1 - i % 2)}}));
  }
  nn::load_checkpoint(other, root);
  check_values(other, count);
}

void expect_text(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return;
  ++failures;
  std::printf("[%d] the error does not say \"%s\": %s\n", world().rank, part.c_str(), text.c_str());
}

// All ranks learn that one could not write, and what there was stands.
void fail_to_save(const Mesh& mesh, const fs::path& root) {
  const int last = world().ranks - 1;
  rlimit before;
  ::getrlimit(RLIMIT_FSIZE, &before);
  for (bool asynchronous : {false, true}) {
    const nn::StateDict model = full_model(mesh, 1);
    const rlimit little{1 << 20, before.rlim_max};
    if (world().rank == last) ::setrlimit(RLIMIT_FSIZE, &little);
    std::string text = "no error";
    try {
      nn::save_checkpoint(model, root, 9, {.asynchronous = asynchronous});
      nn::wait_for_checkpoints();
    } catch (const UserError& error) {
      text = error.what();
    }
    ::setrlimit(RLIMIT_FSIZE, &before);
    // Whoever ends first, its error says why.
    expect_text(text, "File too large");
    if (asynchronous) {
      if (world().rank != last)
        expect_text(text, "rank " + std::to_string(last) + " could not write its part");
    } else if (world().rank != last) {
      expect_text(text, "another rank could not write its part");
      expect_text(text, "(rank " + std::to_string(last) + " on ");
    }
    meet();
    if (nn::checkpoint_info(root).step == 9) expect_text("step 9 is there", "nothing of it");
  }
}

int run(int argc, char** argv) {
  const int64_t mib = argc > 1 ? std::atoll(argv[1]) : 32;
  const bool timed = argc > 1;
  const fs::path folder =
      fs::path(argc > 2 ? argv[2] : fs::temp_directory_path().c_str()) / "tinyshard-files-of-ranks";
  const int64_t count = std::max<int64_t>(1, mib >> 4);
  Tensor(1.0).item<float>();
  const Mesh mesh = Mesh::world({{"all", -1}});
  if (world().rank == 0) {
    fs::remove_all(folder);
    fs::create_directories(folder);
    write_model(folder / "model.safetensors", count);
    // From the page cache: a disk is as slow for one program as for the other.
    if (timed) seconds_of("cat '" + (folder / "model.safetensors").native() + "' > /dev/null");
  }
  meet();
  for (int i = 0; i < (timed ? 3 : 1); ++i) load(mesh, folder / "model.safetensors", count, timed);
  look_up(mesh, folder / "model.safetensors");
  for (int i = 0; i < (timed ? 2 : 1); ++i) save(mesh, folder / "run", count, timed);
  fail_to_save(mesh, folder / "run");
  meet();
  if (world().rank == 0) fs::remove_all(folder);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tinyshard

int main(int argc, char** argv) { return tinyshard::run(argc, argv); }
