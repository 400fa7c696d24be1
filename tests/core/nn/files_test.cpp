// Files of other programs: what NumPy and the gguf package wrote, torch's tar archives, hostile
// pickles, and that nothing is read before it is used. golden_files_runner has many more.
#include "core/nn/files.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <span>
#include <sstream>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/nn/linear.h"
#include "core/nn/safe_save.h"
#include "core/tensor/map_file.h"
#include "io/npy.h"
#include "io/safetensors.h"
#include "io/torch_file.h"
#include "tests/devices.h"
#include "tests/io/temp_folder.h"

namespace tinyshard::files_test {
namespace {

using test::TempFolder;

std::string unhex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

class Files : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  template <class Load>
  std::string refusal(const std::string& bytes, Load load) {
    const auto path = write("bad", bytes);
    try {
      load(path);
    } catch (const io::FormatError& error) {
      EXPECT_NE(std::string(error.what()).find(path.native()), std::string::npos) << error.what();
      return error.what();
    }
    return "no error";
  }
  TempFolder folder_;
};

using Floats = std::vector<float>;

// --- NumPy: bytes that numpy 2 wrote ---

const std::string kNpy =
    "934e554d5059010076007b276465736372273a20273c6634272c2027666f727472616e5f6f72646572273a20"
    "46616c73652c20277368617065273a2028322c2033292c207d20202020202020202020202020202020202020"
    "2020202020202020202020202020202020202020202020202020202020202020202020202020200a00000000"
    "0000803f0000004000004040000080400000a040";
const std::string kNpz =
    "504b03042d0000000800000021004fe9002affffffffffffffff05001400612e6e7079010010009800000000"
    "00000055000000000000009bec17ea1b10c9c850c650ad9e925a9c5ca46ea5a06e9366a2aea3a09e965f5452"
    "9498179f5f94920a12774bcc294e058a17672416a402f91a463a0ac69a3a0ab50a64032e063068b007120e40"
    "04c40d40bcc00100504b03042d000000080000002100f0910431ffffffffffffffff05001400622e6e707901"
    "001000a80000000000000048000000000000009bec17ea1b10c9c850c650ad9e925a9c5ca46ea5a05e536aa8"
    "aea3a09e965f54529498179f5f94920a12774bcc294e058a17672416a402f91a26063a9a3a0ab50ae4032e06"
    "220100504b01022d032d0000000800000021004fe9002a550000009800000005000000000000000000000080"
    "0100000000612e6e7079504b01022d032d000000080000002100f091043148000000a8000000050000000000"
    "00000000000080018c000000622e6e7079504b05060000000002000200660000000b0100000000";

// The description of an array, and its elements.
std::string npy(const std::string& description, const std::string& data, char version = 1) {
  std::string out = "\x93NUMPY";
  out += version, out += '\0';
  out += static_cast<char>(description.size()), out += '\0';
  if (version > 1) out += std::string(2, '\0');
  return out + description + data;
}

TEST_F(Files, NpyIsWhatNumpyWrites) {
  const Tensor x = npy_load(write("x.npy", unhex(kNpy)));
  EXPECT_EQ(x.shape(), (Dims{2, 3}));
  EXPECT_EQ(x.to_vector<float>(), (Floats{0, 1, 2, 3, 4, 5}));
  npy_save(x, folder_ / "y.npy");
  std::ifstream file(folder_ / "y.npy", std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), unhex(kNpy));
  EXPECT_THROW(npy_save(x.to_bfloat16(), folder_ / "z.npy"), UserError);
}

// Whole files in memory, given as bytes or as a tensor: they are copied, and read as files are.
TEST_F(Files, AreReadFromMemory) {
  const auto bytes_of = [](const std::filesystem::path& path) {
    std::ostringstream out;
    out << std::ifstream(path, std::ios::binary).rdbuf();
    return out.str();
  };
  const Tensor a = Tensor::arange(20000).cast(DType::F32).reshape({100, 200}), b = Tensor{1, 2, 3};
  safe_save({{"a", a}, {"b", b}}, folder_ / "m.safetensors", {{"format", "pt"}});
  std::string file = bytes_of(folder_ / "m.safetensors");
  const std::vector<uint8_t> elements(file.begin(), file.end());
  const Tensor tensor{elements};
  nn::StateDict from_bytes = safe_load(std::as_bytes(std::span(file))),
                from_tensor = safe_load(tensor);
  std::ranges::fill(file, 'x');
  for (const nn::StateDict& dict : {from_bytes, from_tensor}) {
    ASSERT_EQ(dict.size(), 2u);
    EXPECT_TRUE(dict.at("a").allclose(a));
    EXPECT_TRUE(dict.at("b").allclose(b));
    const Tensor divided = dict.at("a").shard({"CPU:0", "CPU:1", "CPU:2"}, 0);
    EXPECT_TRUE((divided * 2).to("CPU").allclose(a * 2));
  }
  // Into a model, part by part.
  nn::Linear model(200, 100, {.bias = false});
  nn::load_state_dict(model, {{"weight", safe_load(tensor).at("a")}});
  EXPECT_TRUE(model.weight.allclose(a));

  const std::string npy = unhex(kNpy);
  EXPECT_EQ(npy_load(std::as_bytes(std::span(npy))).to_vector<float>(), (Floats{0, 1, 2, 3, 4, 5}));
  const Tensor npy_tensor{std::vector<uint8_t>(npy.begin(), npy.end())};
  EXPECT_EQ(npy_load(npy_tensor).shape(), (Dims{2, 3}));

  for (const std::string& bad : {std::string("x"), std::string(100, '{'), npy.substr(0, 100)}) {
    const auto span = std::as_bytes(std::span(bad));
    EXPECT_THROW(safe_load(span), io::FormatError);
    EXPECT_THROW(torch_load(span), io::FormatError);
    EXPECT_THROW(gguf_load(span), io::FormatError);
    EXPECT_THROW(npz_load(span), io::FormatError);
    EXPECT_THROW(npy_load(span), io::FormatError);
  }
}

TEST_F(Files, NpyOfAllOrdersAndTypes) {
  const std::string columns = npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }",
                                  unhex("000000000000803f0000004000004040"), 2);
  EXPECT_EQ(npy_load(write("f.npy", columns)).to_vector<float>(), (Floats{0, 2, 1, 3}));
  const std::string big =
      npy("{'descr': '>i2', 'fortran_order': False, 'shape': (3,), }", unhex("0001fffe012c"), 3);
  EXPECT_EQ(npy_load(write("b.npy", big)).to_vector<int>(), (std::vector<int>{1, -2, 300}));
  const std::string python2 =
      npy("{'descr': '|i1', 'fortran_order': False, 'shape': (1L, 2L), }", unhex("01ff"));
  EXPECT_EQ(npy_load(write("l.npy", python2)).to_vector<int>(), (std::vector<int>{1, -1}));
  for (const DType type :
       {DType::Bool, DType::I8, DType::U16, DType::I64, DType::U64, DType::F16, DType::F64}) {
    for (const Dims& shape : {Dims{}, Dims{3}, Dims{0, 4}, Dims{2, 3, 4}}) {
      const Tensor x = (Tensor::arange(product(shape)).reshape(shape) % 2).cast(type);
      npy_save(x, folder_ / "x.npy");
      const Tensor y = npy_load(folder_ / "x.npy");
      EXPECT_EQ(y.dtype(), type);
      EXPECT_EQ(y.shape(), shape);
      EXPECT_EQ(y.data(), x.data());
    }
  }
}

TEST_F(Files, NpzHoldsArrays) {
  nn::StateDict arrays = npz_load(write("x.npz", unhex(kNpz)));  // compressed
  ASSERT_EQ(arrays.size(), 2u);
  EXPECT_EQ(arrays.at("a").to_vector<float>(), (Floats{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(arrays.at("b").to_vector<int>(), std::vector<int>(40, 0));
}

TEST_F(Files, MalformedNpyIsRefused) {
  const auto refused = [&](const std::string& bytes) {
    return refusal(bytes, [](const auto& path) { npy_load(path); });
  };
  const std::string whole = unhex(kNpy);
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_NE(refused(whole.substr(0, size)), "no error") << size;
  EXPECT_NE(refused(whole + "x").find("at byte 128: f32 [2, 3] takes 24 bytes, 25 are there"),
            std::string::npos)
      << refused(whole + "x");
  const auto described = [&](const std::string& text) { return refused(npy(text, "")); };
  EXPECT_NE(described("{'descr': '|O', 'fortran_order': False, 'shape': (), }")
                .find("element type \"|O\""),
            std::string::npos);
  EXPECT_NE(
      described("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }")
          .find("too large"),
      std::string::npos);
  EXPECT_NE(
      described("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }").find("no number"),
      std::string::npos);
  EXPECT_NE(described("{'descr': '<f4', 'descr': '<f4', }").find("twice"), std::string::npos);
  EXPECT_NE(described("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (), }"),
            "no error");
}

// --- torch ---

// A pickle by hand: protocol 2.
struct Pickler {
  std::string text = "\x80\x02";
  Pickler& raw(std::string_view bytes) { return text += bytes, *this; }
  Pickler& integer(int value) {
    text += 'J';
    return raw({reinterpret_cast<const char*>(&value), 4});
  }
  Pickler& word(const std::string& value) {
    const auto size = static_cast<uint32_t>(value.size());
    text += 'X';
    return raw({reinterpret_cast<const char*>(&size), 4}).raw(value);
  }
  Pickler& global(const std::string& module, const std::string& name) {
    return raw("c" + module + "\n" + name + "\n");
  }
  std::string done() const { return text + "."; }
};

template <class T>
std::string bytes_of(std::initializer_list<T> values) {
  return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(T)};
}

std::string tar_member(const std::string& name, const std::string& data) {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  char size[13];
  std::snprintf(size, sizeof size, "%011o", static_cast<unsigned>(data.size()));
  header.replace(124, 11, size);
  header[156] = '0';
  header.replace(257, 5, "ustar");
  return header + data + std::string((512 - data.size() % 512) % 512, '\0');
}

// As torch wrote before version 0.1.11: {"w": [2, 2], "views": [one row]}.
std::string torch_tar() {
  const std::string storages =
      Pickler().integer(1).done() +
      Pickler().integer(7).word("cpu").global("torch", "FloatStorage").raw("\x87").done() +
      bytes_of<int64_t>({4}) + bytes_of<float>({1, 2, 3, 4}) +
      Pickler().raw("]((").integer(8).integer(7).integer(2).integer(2).raw("te").done();
  const auto tensor = [](int key, int storage) {
    return Pickler()
        .integer(key)
        .integer(storage)
        .global("torch", "FloatTensor")
        .raw("\x87")
        .done();
  };
  const std::string tensors = Pickler().integer(2).done() + tensor(1, 7) +
                              bytes_of<int32_t>({2, 0}) + bytes_of<int64_t>({2, 2, 1, 2, 0}) +
                              tensor(2, 8) + bytes_of<int32_t>({1, 0}) +
                              bytes_of<int64_t>({2, 1, 0});
  const std::string object = Pickler()
                                 .raw("}(")
                                 .word("w")
                                 .word("1")
                                 .raw("Q")
                                 .word("views")
                                 .raw("](")
                                 .word("2")
                                 .raw("Qeu")
                                 .done();
  return tar_member("storages", storages) + tar_member("tensors", tensors) +
         tar_member("pickle", object) + std::string(1024, '\0');
}

TEST_F(Files, TorchTarArchives) {
  nn::StateDict tensors = torch_load(write("old.pth", torch_tar()));
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors.at("w").to_vector<float>(), (Floats{1, 3, 2, 4}));  // strides [1, 2]
  EXPECT_EQ(tensors.at("views.0").to_vector<float>(), (Floats{3, 4}));
  const std::string whole = torch_tar();
  for (size_t size = 0; size < whole.rfind('.'); size += 37)
    EXPECT_NE(refusal(whole.substr(0, size), [](const auto& p) { torch_load(p); }), "no error");
}

// A zip archive of stored members.
std::string zip(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string out, directory;
  for (const auto& [name, data] : members) {
    const auto size = static_cast<uint32_t>(data.size()), at = static_cast<uint32_t>(out.size());
    const auto length = static_cast<uint16_t>(name.size());
    const std::string facts = std::string(8, '\0') + bytes_of<uint32_t>({0, size, size}) +
                              bytes_of<uint16_t>({length, 0});
    out.append("PK\x03\x04").append(bytes_of<uint16_t>({20})).append(facts);
    out.append(name).append(data);
    directory.append("PK\x01\x02").append(bytes_of<uint16_t>({20, 20})).append(facts);
    directory.append(10, '\0').append(bytes_of<uint32_t>({at})).append(name);
  }
  const auto count = static_cast<uint16_t>(members.size());
  return out + directory + "PK\x05\x06" + bytes_of<uint16_t>({0, 0, count, count}) +
         bytes_of<uint32_t>(
             {static_cast<uint32_t>(directory.size()), static_cast<uint32_t>(out.size())}) +
         bytes_of<uint16_t>({0});
}
std::string torch_zip(const std::string& pickle) {
  return zip({{"a/data.pkl", pickle}, {"a/data/0", std::string(64, '\1')}});
}

TEST_F(Files, PicklesRunNothing) {
  const auto refused = [&](const Pickler& pickle) {
    return refusal(torch_zip(pickle.done()), [](const auto& p) { torch_load(p); });
  };
  const std::string text = refused(Pickler().global("posix", "system").word("true").raw("\x85R"));
  EXPECT_NE(text.find("\"posix.system\", which no state dict needs"), std::string::npos) << text;
  EXPECT_NE(text.find("at byte 42"), std::string::npos) << text;  // of the opcode, in the file
  EXPECT_NE(refused(Pickler().global("builtins", "getattr")), "no error");
  EXPECT_NE(refused(Pickler().global("torch._utils", "_rebuild_tensor_v2").raw(")\x81"))
                .find("opcode 0x81"),
            std::string::npos);
  EXPECT_NE(refused(Pickler().raw("\x82\x01")), "no error");  // EXT1: a registry of classes
  EXPECT_NE(refused(Pickler().word("x").word("y").raw("\x85R")).find("no name"), std::string::npos);
  EXPECT_NE(refused(Pickler().raw("R")).find("more than is on"), std::string::npos);
  EXPECT_NE(refused(Pickler().raw("h\x09")).find("memo entry 9"), std::string::npos);
}

// The arguments of a tensor of the storage "0": rows and columns without gaps, with what stands
// behind the hooks.
Pickler& arguments(Pickler& pickle, int rows, int columns, const std::string& behind = {}) {
  return pickle.raw("((")
      .word("storage")
      .global("torch", "FloatStorage")
      .word("0")
      .word("cpu")
      .integer(rows * columns)
      .raw(std::string_view("tQK\0(", 5))
      .integer(rows)
      .integer(columns)
      .raw("t(")
      .integer(columns)
      .integer(1)
      .raw("t\x89}" + behind + "t");
}
Pickler& tensor(Pickler& pickle, int rows, int columns, const std::string& behind = {}) {
  return arguments(pickle.global("torch._utils", "_rebuild_tensor_v2"), rows, columns, behind)
      .raw("R");
}

// torch 2 writes as much for pickle_protocol=4 and _use_new_zipfile_serialization=False: the number
// of the format lies in a frame.
TEST_F(Files, TorchPicklesOfAllProtocols) {
  const std::string number = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
  const std::string rest = Pickler().integer(1001).done() + Pickler().raw("}").done();
  Pickler object;
  object.raw("}").word("w");
  tensor(object, 1, 2).raw("s");
  const std::string behind = rest + object.done() + Pickler().raw("]").word("0").raw("a").done() +
                             bytes_of<int64_t>({2}) + bytes_of<float>({3, 4});
  for (const std::string& magic : {"\x80\x02" + number, "\x80\x03" + number,
                                   "\x80\x04\x95\x0d" + std::string(7, '\0') + number,
                                   std::string("L119547037146038801333356L\n.")}) {
    const auto path = write("old.pth", magic + behind);
    EXPECT_EQ(torch_load(path).at("w").to_vector<float>(), (Floats{3, 4}));
  }
  for (const std::string& bytes : {std::string("\x80"), std::string("\x80\x04\x95"), number})
    EXPECT_NE(refusal(bytes, [](const auto& p) { torch_load(p); }).find("not a torch file"),
              std::string::npos);
}

// x.conj().imag of a complex tensor is a view of what is stored, with the sign turned.
TEST_F(Files, TorchTensorsThatAreNegatives) {
  const auto with = [](const std::string& metadata) {
    Pickler object;
    return zip({{"a/data.pkl", tensor(object, 1, 2, metadata).done()},
                {"a/data/0", bytes_of<float>({3, -4})}});
  };
  const auto key = [](const char* name) { return Pickler().word(name).text.substr(2); };
  const auto values = [&](const std::string& metadata) {
    return torch_load(write("n.pth", with(metadata))).at("").to_vector<float>();
  };
  EXPECT_EQ(values("}" + key("neg") + "\x88s"), (Floats{-3, 4}));
  EXPECT_EQ(values("}" + key("neg") + "\x89s"), (Floats{3, -4}));
  EXPECT_EQ(values("N"), (Floats{3, -4}));
  EXPECT_NE(refusal(with("}" + key("other") + "\x88s"), [](const auto& p) { torch_load(p); })
                .find("not known"),
            std::string::npos);
}

// A member of no bytes may be deflated, to two.
TEST_F(Files, EmptyMembersThatAreDeflated) {
  Pickler object;
  std::string file =
      zip({{"a/data.pkl", tensor(object, 0, 2).done()}, {"a/data/0", std::string("\3\0", 2)}});
  const size_t local = file.find("a/data/0") - 30, entry = file.rfind("a/data/0") - 46;
  file[local + 8] = file[entry + 10] = 8;   // the method
  file[local + 22] = file[entry + 24] = 0;  // the size
  const Tensor empty = torch_load(write("empty.pth", file)).at("");
  EXPECT_EQ(empty.shape(), (Dims{0, 2}));
}

// A file of a big-endian machine says so in a member, which may be deflated like any other.
TEST_F(Files, TorchFilesOfAnotherByteOrder) {
  Pickler object;
  const std::string pickle = tensor(object, 1, 2).done(), values = bytes_of<float>({3, 4});
  const auto with = [&](const std::string& order) {
    return zip({{"a/data.pkl", pickle}, {"a/byteorder", order}, {"a/data/0", values}});
  };
  const auto load = [](const auto& p) { torch_load(p); };
  EXPECT_EQ(refusal(with("little"), load), "no error");
  EXPECT_NE(refusal(with("big"), load).find("byte order \"big\""), std::string::npos);
  std::string file = with("\x4b\xca\x4c\x07" + std::string(1, '\0'));  // "big", deflated
  const size_t local = file.find("a/byteorder") - 30, entry = file.rfind("a/byteorder") - 46;
  file[local + 8] = file[entry + 10] = 8;   // the method
  file[local + 22] = file[entry + 24] = 3;  // the size
  EXPECT_NE(refusal(file, load).find("byte order \"big\""), std::string::npos);
}

// PyTorch's weights-only loading takes these beside tensors: a schedule's milestones are a Counter.
TEST_F(Files, TorchFilesOfPlainValues) {
  Pickler object;
  object.raw("}(").word("steps").global("collections", "Counter").raw("}K\x03K\x01s\x85R");
  object.word("set").global("__builtin__", "set").raw("]K\x01\x61\x85R");
  object.word("bytes").global("_codecs", "encode").word("a\xc3\xbf").word("latin1").raw("\x86R");
  object.word("none").global("__builtin__", "bytes").raw(")R");
  object.word("array").global("__builtin__", "bytearray").word("\xc3\xbf").word("latin-1");
  object.raw("\x86R").word("array 5").raw("\x96").raw(bytes_of<uint64_t>({2})).raw("\x01\xff");
  object.raw("u");
  io::ValueMap other;
  EXPECT_TRUE(torch_load(write("v.pth", torch_zip(object.done())), other).empty());
  EXPECT_EQ(other, (io::ValueMap{{"steps.3", int64_t{1}},
                                 {"bytes", "a\xff"},
                                 {"none", ""},
                                 {"array", "\xff"},
                                 {"array 5", "\x01\xff"}}));
}

// Parameters that a program has given attributes are saved by their type, with the attributes.
TEST_F(Files, TorchTensorsWithAttributes) {
  Pickler object;
  object.raw("}").word("w").global("torch._tensor", "_rebuild_from_type_v2").raw("(");
  object.global("torch._utils", "_rebuild_tensor_v2").global("torch", "Tensor");
  arguments(object, 1, 2).raw("}tRs");
  const auto found = torch_load(write("a.pth", torch_zip(object.done())));
  EXPECT_EQ(found.at("w").shape(), (Dims{1, 2}));
}

// Small values are many times what they take in the file.
TEST_F(Files, FilesOfManySmallValues) {
  Pickler losses;
  losses.raw("](");
  for (int i = 0; i < 2000; ++i) losses.raw("G" + std::string(8, '\1'));
  io::ValueMap other;
  torch_load(write("losses.pth", torch_zip(losses.raw("e").done())), other);
  EXPECT_EQ(other.size(), 2000u);
  Pickler tensors;
  tensors.raw("](");
  for (int i = 0; i < 500; ++i) tensor(tensors, 1, 1);
  EXPECT_EQ(torch_load(write("tensors.pth", torch_zip(tensors.raw("e").done()))).size(), 500u);
  std::string vocabulary = "GGUF" + bytes_of<uint32_t>({3}) + bytes_of<uint64_t>({0, 1, 1}) + "t" +
                           bytes_of<uint32_t>({9, 8}) + bytes_of<uint64_t>({40000});
  for (int i = 0; i < 40000; ++i) vocabulary += bytes_of<uint64_t>({12}) + "a longer one";
  const auto [settings, none] = gguf_load(write("vocabulary.gguf", vocabulary));
  EXPECT_EQ(std::get<io::Values>(settings.at("t")).size(), 40000u);
}

TEST_F(Files, PicklesTakeNoMoreThanTheirFiles) {
  const auto refused = [&](const Pickler& pickle) {
    return refusal(torch_zip(pickle.done()), [](const auto& p) { torch_load(p); });
  };
  EXPECT_NE(refused(Pickler().raw(std::string(4 << 20, 'N'))).find("out of proportion"),
            std::string::npos);
  // Sixty lists, each twice in the next: 2^60 paths.
  Pickler doubled;
  doubled.raw("N");
  for (int i = 0; i < 60; ++i) doubled.raw("2\x86");
  EXPECT_NE(refused(doubled).find("out of proportion"), std::string::npos);
  Pickler deep;
  deep.raw("N");
  for (int i = 0; i < 5000; ++i) deep.raw("\x85");
  EXPECT_NE(refused(deep).find("inside of each other"), std::string::npos);
  EXPECT_NE(refused(Pickler().raw("]q\1h\1a")).find("inside of each other"),
            std::string::npos);  // holds itself
}

// --- GGUF: blocks and values of the gguf package ---

std::string gguf(uint32_t type, uint64_t elements, const std::string& data) {
  std::string out = "GGUF" + bytes_of<uint32_t>({3}) + bytes_of<uint64_t>({1, 0, 1}) + "w" +
                    bytes_of<uint32_t>({1}) + bytes_of<uint64_t>({elements}) +
                    bytes_of<uint32_t>({type}) + bytes_of<uint64_t>({0});
  out.resize((out.size() + 31) / 32 * 32);
  return out + data;
}

TEST_F(Files, QuantisedBlocks) {
  struct Row {
    uint32_t type;
    std::string block;
    double sum;  // of each element times its number, from 1 on
    Floats first;
    float last;
  };
  const Row rows[] = {
      {10,
       "4ecc402210fae920677a0dcc8aacd07f7c640c97decbfb99d3eb50b6b02958078df1497cdf7bde255437c866d33"
       "c9fed358a398c371507127643"
       "f18a94dd382159d022c14ca7c5f2b1f3bcfa5cc3339f00320030",
       50088.125,
       {-0.5f, -0.5f, -0.5f},
       4.75f},
      {11,
       "5655765e3b394f25db74ea82d58a98716313b0a9132f9afe77a37a46ff5910db28e051237eec05597ef6bcc9d76"
       "4643f51c09cabc2a78075bf7c"
       "2b8302b7f7f099a315d19eded3d66232908c37e375fb00281dfbdf35972268bb5a342a1af14ee745c18d1ba3e8d"
       "200d4ce7b002c",
       -3698.875,
       {6.25f, 0.f, 4.6875f},
       -0.1875f},
      {20, "002c705a427fa6ed32ca72970aef84b896b3", 69.25, {-7.9375f, 1.5625f, -5.1875f}, 2.375f},
  };
  for (const Row& row : rows) {
    const uint64_t elements = row.type == 20 ? 32 : 256;
    auto [kv, tensors] = gguf_load(write("x.gguf", gguf(row.type, elements, unhex(row.block))));
    const std::vector<double> got = tensors.at("w").to_vector<double>();
    ASSERT_EQ(got.size(), elements);
    double sum = 0;
    for (size_t i = 0; i < got.size(); ++i) sum += got[i] * static_cast<double>(i + 1);
    EXPECT_EQ(sum, row.sum);
    for (size_t i = 0; i < row.first.size(); ++i) EXPECT_EQ(got[i], row.first[i]);
    EXPECT_EQ(got.back(), row.last);
  }
}

// --- laziness ---

int64_t resident() {
  std::ifstream file("/proc/self/statm");
  int64_t size, pages;
  file >> size >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

int64_t peak_resident() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    int64_t kib;
    if (word == "VmHWM:" && file >> kib) return kib * 1024;
  }
  return 0;
}

TEST_F(Files, WeightsStayInTheFileUntilTheyAreUsed) {
  TINYSHARD_NEED_DEVICES(2);
  constexpr int64_t kRows = 8192, kColumns = 4096;  // 128 MiB
  const std::string name(9, 'w');                   // data begins where no kernel can read it
  std::string header =
      "{\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[8192,4096],\"data_offsets\":[0,134217728]}}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if ((8 + header.size()) % 64 == 0) header += "        ";
  const auto path = write("w.safetensors", bytes_of<uint64_t>({header.size()}) + header);
  std::filesystem::resize_file(path, 8 + header.size() + kRows * kColumns * 4);  // zeros, sparse
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(8 + header.size() + (kRows - 1) * kColumns * 4));
    const float seven = 7;
    file.write(reinterpret_cast<const char*>(&seven), 4);
  }
  Tensor(1.0).item<float>();
  const int64_t before = resident();
  const nn::StateDict weights = safe_load(path);
  const Tensor& w = weights.at(name);
  EXPECT_EQ(w.shape(), (Dims{kRows, kColumns}));
  EXPECT_LT(resident() - before, 8 << 20);
  // The last rows go to a device without the others.
  const Tensor row =
      map_file(path, {kRows, kColumns}, DType::F32, static_cast<int64_t>(8 + header.size()))
          .shard(device_names(2), 0);
  EXPECT_EQ((w + 1).max().item<float>(), 8);
  EXPECT_EQ(row.max().item<float>(), 7);
  // As itself it is a tensor of the default device, that others meet.
  EXPECT_EQ((w[kRows - 1] * Tensor({2.0})).sum().item<float>(), 14);
}

// A lookup brings the rows that it names, to one device or several, however the file lies in memory.
TEST_F(Files, LookupsReadTheirRowsOnly) {
  TINYSHARD_NEED_DEVICES(2);
  constexpr int64_t kRows = 32768, kColumns = 1024;  // 128 MiB
  constexpr int64_t kMiddle = kRows / 2;
  std::string header = R"({"w":{"dtype":"F32","shape":[32768,1024],"data_offsets":[0,134217728]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if ((8 + header.size()) % 64 == 0) header += "        ";
  const auto path = write("w.safetensors", bytes_of<uint64_t>({header.size()}) + header);
  std::filesystem::resize_file(path, 8 + header.size() + kRows * kColumns * 4);
  for (int64_t row : {int64_t{3}, kMiddle, kRows - 1}) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(8 + header.size() + row * kColumns * 4));
    const auto value = float(row);
    file.write(reinterpret_cast<const char*>(&value), 4);
  }
  const Mesh mesh = Mesh::of(device_names(2), "x");
  const Tensor ids = Tensor({3, int(kRows - 1), int(kMiddle), 4}).realize();
  const Tensor split = ids.shard(mesh, {{"x", Shard(0)}}).realize();
  const std::vector<float> want{3, float(kRows - 1), float(kMiddle), 0};
  const auto first = [](const Tensor& rows) {
    return rows[{Slice(), 0}].contiguous().to_vector<float>();
  };
  const auto looked_up = [&] {
    const Tensor w = safe_load(path).at("w");
    EXPECT_EQ(first(w.embedding(ids)), want);
    EXPECT_EQ(first(w[{ids}]), want);
    EXPECT_EQ(first(w.embedding(split)), want);
    EXPECT_EQ(first(w.cast(DType::F64).cast(DType::I32).embedding(ids)), want);
    const Tensor parts = w.shard(mesh, {{"x", Shard(0)}});
    EXPECT_EQ(first(parts.embedding(split)), want);
    EXPECT_EQ(parts.embedding(split).sharding().placements[0], Shard(0));
    EXPECT_EQ(first(parts.embedding(ids.shard(mesh))), want);
    EXPECT_EQ((w.embedding(ids) * 2).sum().item<float>(),
              2 * (3 + float(kRows - 1) + float(kMiddle)));
  };
  looked_up();  // kernels are compiled
  const int64_t before = resident();
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak is that of now
  looked_up();
  EXPECT_LT(peak_resident() - before, 32 << 20);
}

TEST_F(Files, LoadingAModelReadsItsTensorsOnly) {
  nn::Linear model(64, 64);
  safe_save(nn::state_dict(model), folder_ / "m.safetensors", {{"kind", "linear"}});
  EXPECT_EQ(safe_load_metadata(folder_ / "m.safetensors").at("kind"), "linear");
  nn::Linear other(64, 64);
  nn::load_state_dict(other, safe_load(folder_ / "m.safetensors"));
  EXPECT_EQ(other.weight.data(), model.weight.data());
  EXPECT_EQ(other.bias.data(), model.bias.data());
}

}  // namespace
}  // namespace tinyshard::files_test
