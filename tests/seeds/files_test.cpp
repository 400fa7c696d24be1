// "nn" state: torch_load and gguf_load, by path and of a tensor of bytes. The files are written here, byte by
// byte, as the formats say.
#include "core/nn/files.h"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "core/tensor/map_file.h"
#include "tests/io/temp_folder.h"
#include "tests/seeds/printed.h"

namespace tinyshard::seeds::files_test {
namespace {

std::filesystem::path write(const test::TempFolder& folder, const std::string& name,
                            const std::string& bytes) {
  std::ofstream(folder / name, std::ios::binary) << bytes;
  return folder / name;
}

template <class T>
std::string number(T value) {
  std::string bytes(sizeof value, 0);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}
std::string text(const std::string& s) { return number<uint64_t>(s.size()) + s; }

// A file of version 3: general.alignment = 32, and weight f32[2, 3].
std::string gguf() {
  std::string file = "GGUF" + number<uint32_t>(3) + number<uint64_t>(1) + number<uint64_t>(1);
  file += text("general.alignment") + number<uint32_t>(4) + number<uint32_t>(32);
  file += text("weight") + number<uint32_t>(2) + number<uint64_t>(3) + number<uint64_t>(2) +
          number<uint32_t>(0) + number<uint64_t>(0);
  file.resize((file.size() + 31) / 32 * 32);
  for (int i = 0; i < 6; ++i) file += number(float(i) / 2);
  return file;
}

TEST(SeedFiles, GgufLoad) {
  const test::TempFolder folder;
  const auto fn = write(folder, "model.gguf", gguf());
  const Tensor weight{{0.0, 0.5, 1.0}, {1.5, 2.0, 2.5}};
  auto [kv, tensors] = gguf_load(fn);
  prints(tensors.at("weight"), weight);
  EXPECT_EQ(std::get<int64_t>(kv.at("general.alignment")), 32);
  // gguf_load(Tensor.empty(os.stat(fn).st_size, dtype=dtypes.uint8, device=f"disk:{fn}"))
  const Tensor on_disk = map_file(fn, {int64_t(std::filesystem::file_size(fn))}, DType::U8);
  auto [kv_data, state_dict] = gguf_load(on_disk);
  prints(state_dict.at("weight"), weight);
  EXPECT_EQ(std::get<int64_t>(kv_data.at("general.alignment")), 32);
  std::filesystem::remove(fn);
  prints(state_dict.at("weight") * 2, weight * 2);
}

// As torch.save of before version 1.6 writes {"weight": FloatTensor of [2, 3]}: pickles of a magic number, the
// version, the system and the dict, then the keys of the storages and their bytes.
std::string pth() {
  const auto pickled = [](const std::string& body) { return "\x80\x02" + body + "."; };
  std::string file = pickled(std::string("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 12)) +
                     pickled(std::string("M\xe9\x03", 3)) + pickled("}");
  const auto word = [](const std::string& s) {
    return std::string("X") + number<uint32_t>(s.size()) + s;
  };
  const std::string storage = "(" + word("storage") + "ctorch\nFloatStorage\n" + word("0") +
                              word("cpu") + "K" + char(6) + "Nt" + "Q";
  file += pickled("}" + word("weight") + "ctorch._utils\n_rebuild_tensor_v2\n(" + storage + "K" +
                  std::string(1, 0) + "K" + char(2) + "K" + char(3) + "\x86" + "K" + char(3) + "K" +
                  char(1) + "\x86" + "\x89" + "}t" + "R" + "s");
  file += pickled("]" + word("0") + "a") + number<uint64_t>(6);
  for (int i = 0; i < 6; ++i) file += number(float(i) / 4);
  return file;
}

TEST(SeedFiles, TorchLoad) {
  const test::TempFolder folder;
  const auto fn = write(folder, "test.pth", pth());
  const Tensor weight{{0.0, 0.25, 0.5}, {0.75, 1.0, 1.25}};
  prints(torch_load(fn).at("weight"), weight);
  const std::string bytes = pth();
  prints(torch_load(std::as_bytes(std::span(bytes))).at("weight"), weight);
}

}  // namespace
}  // namespace tinyshard::seeds::files_test
