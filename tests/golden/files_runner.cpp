// golden_files_runner: loads each file that expected.json of a folder lists, and compares tensors,
// metadata and other values with those recorded; malformed files have to be refused with an error
// that names them. See --help.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/nn/files.h"
#include "core/tensor/map_file.h"
#include "tests/golden/golden_case.h"
#include "tests/golden/runner.h"

namespace tinyshard::golden {
namespace {

// The file that pickles of malicious files would make, if their code were run.
const char* const kPwned = "/tmp/tinyshard_pwned";

struct Loaded {
  nn::StateDict tensors;
  io::ValueMap values;                          // kv, or other leaves
  std::map<std::string, std::string> metadata;  // of safetensors
};

Loaded load(const std::string& loader, const std::filesystem::path& path) {
  Loaded out;
  if (loader == "safe_load") {
    out.tensors = safe_load(path);
    out.metadata = safe_load_metadata(path);
  } else if (loader == "torch_load") {
    out.tensors = torch_load(path, out.values);
  } else if (loader == "gguf_load") {
    std::tie(out.values, out.tensors) = gguf_load(path);
  } else if (loader == "npy_load") {
    out.tensors.emplace("", npy_load(path));
  } else if (loader == "npz_load") {
    out.tensors = npz_load(path);
  } else {
    throw Mismatch("unknown loader " + loader);
  }
  return out;
}

json plain(const io::Value& value) {
  return std::visit(
      [](const auto& held) -> json {
        using T = std::remove_cvref_t<decltype(held)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<T, io::Values>) {
          json list = json::array();
          for (const io::Value& item : held) list.push_back(plain(item));
          return list;
        } else {
          return held;
        }
      },
      static_cast<const io::Value::variant&>(value));
}

// Numbers of 32 bits are recorded as they were written down.
bool same(const json& got, const json& expected) {
  if (got.is_array() && expected.is_array()) {
    return got.size() == expected.size() &&
           std::equal(got.begin(), got.end(), expected.begin(), same);
  }
  if (got.is_number_float() && expected.is_number()) {
    const double a = got.get<double>(), b = expected.get<double>();
    return a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= 1e-6 * std::abs(b);
  }
  if (got.is_boolean() != expected.is_boolean()) return false;
  return got == expected;
}

void compare_values(const json& got, const json& expected, const std::string& what) {
  for (const auto& [name, value] : expected.items()) {
    if (!got.contains(name)) throw Mismatch(fmt::format("{} {} is missing", what, name));
    if (!same(got.at(name), value)) {
      throw Mismatch(
          fmt::format("{} {} is {}, expected {}", what, name, got.at(name).dump(), value.dump()));
    }
  }
  for (const auto& [name, value] : got.items()) {
    if (!expected.contains(name))
      throw Mismatch(fmt::format("{} {} is not in the file", what, name));
  }
}

void compare_tensors(const nn::StateDict& got, const json& file,
                     const io::SafetensorsFile& recorded) {
  const json& expected = file.at("tensors");
  for (const auto& [name, wanted] : expected.items()) {
    const auto found = got.find(name);
    if (found == got.end()) throw Mismatch(fmt::format("tensor \"{}\" is missing", name));
    Tensor tensor = found->second;
    check_not_refused(tensor);
    // Values of 8 bits are recorded in f32.
    if (is_float8(tensor.dtype()) && wanted.at("dtype") == "F32") tensor = tensor.cast(DType::F32);
    const DType dtype = dtype_from_name(wanted.at("dtype").get<std::string>());
    if (tensor.dtype() != dtype || tensor.shape() != wanted.at("shape").get<Dims>()) {
      throw Mismatch(fmt::format("tensor \"{}\" is {}, expected {}{}", name, tensor.describe(),
                                 wanted.at("dtype").dump(), wanted.at("shape").dump()));
    }
    const io::TensorEntry& values = recorded.at(wanted.at("values").get<std::string>());
    const std::vector<double> a = numbers(tensor), b = numbers(values.bytes, values.dtype);
    const double rtol = file.value("rtol", 0.0), atol = file.value("atol", 0.0);
    if (a.size() != b.size())
      throw Mismatch(fmt::format("tensor \"{}\" has {} elements", name, a.size()));
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
      if (std::abs(a[i] - b[i]) <= atol + rtol * std::abs(b[i]) && !std::isinf(b[i])) continue;
      throw Mismatch(
          fmt::format("tensor \"{}\", element {}, is {}, expected {}", name, i, a[i], b[i]));
    }
  }
  for (const auto& [name, tensor] : got) {
    if (!expected.contains(name))
      throw Mismatch(fmt::format("tensor \"{}\" is not in the file", name));
  }
}

// Empty when all is as recorded.
std::string run(const std::filesystem::path& folder, const std::string& name, const json& file,
                const io::SafetensorsFile& recorded) {
  const bool malformed = file.contains("error");
  const bool may_refuse = malformed || file.value("may_refuse", false);
  std::error_code ignored;
  std::filesystem::remove(kPwned, ignored);
  std::string failure;
  try {
    const Loaded got = load(file.at("loader"), folder / name);
    json values = json::object();
    for (const auto& [key, value] : got.values) values[key] = plain(value);
    if (malformed) {
      failure = "no error, though: " + file.at("error").get<std::string>();
    } else {
      compare_tensors(got.tensors, file, recorded);
      if (file.contains("metadata")) compare_values(got.metadata, file.at("metadata"), "metadata");
      if (file.contains("kv")) compare_values(values, file.at("kv"), "key");
      if (file.contains("other")) compare_values(values, file.at("other"), "value");
    }
  } catch (const UserError& error) {
    const std::string text = error.what();
    if (!may_refuse) failure = text;
    if (may_refuse && text.find(name) == std::string::npos)
      failure = "an error that does not name the file: " + text;
  } catch (const std::exception& error) {
    failure = error.what();
  }
  if (std::filesystem::exists(kPwned)) failure = "code of the file was run";
  return failure;
}

int run_all(const std::filesystem::path& folder, bool verbose) {
  std::ifstream stream(folder / "expected.json");
  if (!stream) {
    std::cerr << "golden_files_runner: no " << (folder / "expected.json") << '\n';
    return 2;
  }
  const json expected = json::parse(stream);
  const io::SafetensorsFile recorded(folder / "expected.safetensors");
  Tally tally(verbose);
  for (const auto& [name, file] : expected.at("files").items()) {
    tally.begin(name);
    const std::string failure = run(folder, name, file, recorded);
    tally.end(name, failure.empty(), failure);
  }
  return tally.finish();
}

int parse_and_run(int argc, char** argv) {
  std::string folder;
  bool verbose = false;
  CLI::App app(
      "Loads the files that expected.json of a folder lists and compares what they hold; malformed "
      "ones have\n"
      "to be refused. The last line is \"N passed, N failed\"; the exit status is 0 if none "
      "failed.");
  app.add_option("--cases", folder, "folder with expected.json, expected.safetensors and the files")
      ->required();
  app.add_flag("--verbose", verbose, "prints each name before the file is loaded");
  CLI11_PARSE(app, argc, argv);
  // The folder of the cases may be the one above.
  const std::filesystem::path below = std::filesystem::path(folder) / "files";
  const bool here = std::filesystem::exists(std::filesystem::path(folder) / "expected.json");
  return run_all(here ? std::filesystem::path(folder) : below, verbose);
}

}  // namespace
}  // namespace tinyshard::golden

int main(int argc, char** argv) {
  return tinyshard::golden::run_main("golden_files_runner", tinyshard::golden::parse_and_run, argc,
                                     argv);
}
