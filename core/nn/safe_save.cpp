// Where each tensor lies follows from names, types and shapes alone, so that every rank knows where
// its rows go:
//
//   rank 0      makes the files under temporary names, with their headers
//   every rank  writes the rows of its boxes at their places, and syncs
//   rank 0      renames the files, then writes the index
//
// Between these steps all ranks learn whether the last one worked everywhere.
#include "core/nn/safe_save.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <fcntl.h>
#include <functional>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/exec/box_rows.h"
#include "core/exec/context.h"
#include "core/nn/agreement.h"
#include "core/nn/parts_to_save.h"
#include "io/atomic_file.h"
#include "io/safetensors.h"

namespace tinyshard::nn {
namespace {

namespace fs = std::filesystem;

constexpr size_t kJobBytes = 8 << 20;
constexpr const char* kIndexName = "model.safetensors.index.json";

struct OutFile {
  fs::path path, temporary;
  io::SafetensorsLayout layout;
};

// Bytes [from, to) of a part.
struct Job {
  size_t part, from, to;
};

bool goes_to_folder(const fs::path& path, const SafeSaveOptions& options) {
  if (options.folder || !path.has_filename()) return true;
  std::error_code unreadable;
  const fs::file_type found = fs::status(path, unreadable).type();
  if (found == fs::file_type::directory) return true;
  return found != fs::file_type::regular && !path.has_extension();
}

class Saving {
 public:
  Saving(const StateDict& tensors, const fs::path& path, const SafeSaveOptions& options)
      : parts_(tensors), path_(path), options_(options) {
    first_ = Context::get().rank() == 0;
    // Rank 0 looks, and all do as it says.
    const bool folder = first_ && goes_to_folder(path, options);
    is_folder_ = exchange({folder, 0, 0}, ReduceOp::Max, 0)[0] != 0;
  }

  void run(const io::Metadata& metadata) {
    lay_out(metadata);
    together(first_, [&] { make_files(); });
    together(true, [&] { write_parts(); });
    together(first_, [&] { commit(metadata); });
  }

 private:
  // Decides in which file each tensor is, and where.
  void lay_out(const io::Metadata& metadata) {
    const auto& tensors = parts_.tensors();
    std::vector<std::vector<io::TensorInfo>> files(1);
    uint64_t in_file = 0;
    for (const auto& [name, dtype, shape] : tensors) {
      const uint64_t bytes = static_cast<uint64_t>(product(shape)) * itemsize(dtype);
      if (is_folder_ && in_file > 0 && in_file + bytes > options_.shard_bytes) {
        files.emplace_back();
        in_file = 0;
      }
      file_of_.push_back(files.size() - 1);
      number_in_file_.push_back(files.back().size());
      files.back().push_back({name, dtype, shape});
      in_file += bytes;
      total_bytes_ += bytes;
    }
    const int64_t tag = first_ ? int64_t(std::hash<std::string>{}(io::random_tag()) >> 1) : 0;
    const std::string suffix =
        fmt::format(".{:016x}{}", exchange({tag, 0, 0}, ReduceOp::Max, 0)[0], io::kTempSuffix);
    for (size_t i = 0; i < files.size(); ++i) {
      OutFile file{path_, {}, io::layout_safetensors(files[i], metadata)};
      if (is_folder_)
        file.path /= fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
      file.temporary = file.path;
      file.temporary += suffix;
      files_.push_back(std::move(file));
    }
  }

  void make_files() {
    if (is_folder_) io::make_folders(path_);
    if (is_folder_) io::check_writable(path_ / kIndexName);
    for (const OutFile& file : files_) {
      io::check_writable(file.path);
      const Fd fd(::open(file.temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (!fd) throw IoError("create a file next to", file.path, errno);
      // A file that only its owner may read stays so.
      struct stat old;
      if (::stat(file.path.c_str(), &old) == 0) (void)!::fchmod(fd.get(), old.st_mode & 07777);
      write_at(fd.get(), 0, std::as_bytes(std::span(file.layout.header)), file.path);
      if (::fsync(fd.get()) != 0) throw IoError("sync", file.path, errno);
    }
  }

  void write_parts() {
    const Context::Use use;
    const auto& parts = parts_.parts();
    std::vector<BoxRows> rows;
    std::vector<Job> jobs;
    int64_t total = 0;
    for (size_t p = 0; p < parts.size(); ++p) {
      const auto& [name, dtype, shape] = parts_.tensors()[parts[p].tensor];
      rows.emplace_back(shape, parts[p].box, parts[p].box.size, itemsize(dtype));
      for (size_t at = 0; at < parts[p].bytes; at += kJobBytes)
        jobs.push_back({p, at, std::min(at + kJobBytes, parts[p].bytes)});
      total += static_cast<int64_t>(parts[p].bytes);
    }
    std::vector<Fd> open(files_.size());
    for (const PartsToSave::Part& part : parts) {
      const OutFile& file = files_[file_of_[part.tensor]];
      Fd& fd = open[file_of_[part.tensor]];
      if (fd) continue;
      fd = Fd(::open(file.temporary.c_str(), O_WRONLY | O_CLOEXEC));
      if (!fd) throw IoError("open", file.temporary, errno, "all ranks must see one folder");
    }
    auto write = [&](size_t i) {
      const size_t p = jobs[i].part, tensor = parts[p].tensor;
      const OutFile& file = files_[file_of_[tensor]];
      const int fd = open[file_of_[tensor]].get();
      const uint64_t begin = file.layout.offsets[number_in_file_[tensor]];
      parts_.read(p, jobs[i].from, jobs[i].to, [&](size_t at, std::span<const std::byte> bytes) {
        const BoxRows::Stretch stretch{at, at + bytes.size(), at, at + bytes.size()};
        rows[p].for_each_row(stretch, [&](uint64_t in_array, uint64_t in_part, size_t n) {
          write_at(fd, begin + in_array, bytes.subspan(in_part - at, n), file.path);
        });
      });
      return static_cast<int64_t>(jobs[i].to - jobs[i].from);
    };
    run_file_jobs(jobs.size(), write, [&](int64_t bytes) {
      if (options_.progress) options_.progress(bytes, total);
    });
    for (size_t i = 0; i < open.size(); ++i) {
      if (open[i] && ::fsync(open[i].get()) != 0) throw IoError("sync", files_[i].path, errno);
    }
  }

  void commit(const io::Metadata& metadata) {
    const fs::path index = path_ / kIndexName;
    if (is_folder_ && ::unlink(index.c_str()) != 0 && errno != ENOENT)
      throw IoError("remove", index, errno);
    for (const OutFile& file : files_) {
      if (::rename(file.temporary.c_str(), file.path.c_str()) != 0)
        throw IoError("write", file.path, errno);
    }
    io::sync_renamed(files_.back().path);
    if (!is_folder_) return;
    std::map<std::string, std::string> names;
    for (size_t i = 0; i < parts_.tensors().size(); ++i)
      names[parts_.tensors()[i].name] = files_[file_of_[i]].path.filename().native();
    io::write_file(index, io::index_text(total_bytes_, names, metadata));
  }

  // This rank's part of a step, where it has one; then all ranks know how it went.
  template <class Work>
  void together(bool takes_part, const Work& work) {
    std::exception_ptr problem;
    try {
      if (takes_part) work();
    } catch (...) {
      problem = std::current_exception();
    }
    if (Context::get().ranks() == 1 ? !problem : agree(!problem)) return;
    for (const OutFile& file : files_) {
      if (first_) ::unlink(file.temporary.c_str());
    }
    if (problem) std::rethrow_exception(problem);
    throw UserError(
        fmt::format("safe_save: {} was not written: another rank says why", path_.native()));
  }

  PartsToSave parts_;
  const fs::path path_;
  const SafeSaveOptions& options_;
  bool is_folder_, first_;
  std::vector<OutFile> files_;
  std::vector<size_t> file_of_, number_in_file_;  // of each tensor
  uint64_t total_bytes_ = 0;
};

}  // namespace

void safe_save(const StateDict& tensors, const fs::path& path,
               const std::map<std::string, std::string>& metadata, const SafeSaveOptions& options) {
  Saving(tensors, path, options).run(metadata);
}

}  // namespace tinyshard::nn
