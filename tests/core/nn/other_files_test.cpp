// Files of other programs, more of them: GGUF of all types and in several parts, archives that take
// a thousand times their size, and tensors of types that have no values here beside others.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/nn/nn.h"
#include "tests/io/temp_folder.h"

namespace tinyshard::other_files_test {
namespace {

using test::put;
using test::TempFolder;
using Floats = std::vector<float>;

template <class T>
std::string bytes_of(std::initializer_list<T> values) {
  return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(T)};
}
std::string unhex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}
std::string message(const auto& call) {
  try {
    call();
  } catch (const UserError& e) {
    return e.what();
  }
  return "no error";
}
bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// --- GGUF ---

std::string gguf_text(const std::string& text) { return bytes_of<uint64_t>({text.size()}) + text; }
std::string gguf_u16(const std::string& key, uint16_t value) {
  return gguf_text(key) + bytes_of<uint32_t>({2}) + bytes_of<uint16_t>({value});
}

struct GgufTensor {
  std::string name;
  uint32_t type;
  uint64_t elements;
  std::string data;
};
std::string gguf(const std::vector<std::string>& values, const std::vector<GgufTensor>& tensors) {
  std::string out = "GGUF" + bytes_of<uint32_t>({3}) +
                    bytes_of<uint64_t>({tensors.size(), values.size()}),
              data;
  for (const std::string& value : values) out += value;
  for (const GgufTensor& t : tensors) {
    out += gguf_text(t.name) + bytes_of<uint32_t>({1}) + bytes_of<uint64_t>({t.elements}) +
           bytes_of<uint32_t>({t.type}) + bytes_of<uint64_t>({data.size()});
    data += t.data;
    data.resize((data.size() + 31) / 32 * 32);
  }
  out.resize((out.size() + 31) / 32 * 32);
  return out + data;
}
GgufTensor f32(const std::string& name, float value) {
  return {name, 0, 2, bytes_of<float>({value, value})};
}

// Random blocks, with the first elements that the gguf package makes of them, and the FNV-1a hash of
// the bytes of all.
TEST(OtherFiles, QuantisedBlocksOfAllTypes) {
  struct Row {
    uint32_t type;
    uint64_t elements;  // of a block
    std::string blocks;
    uint64_t hash;
    Floats first;
  };
  const Row rows[] = {
      {19,
       256,
       "7f36e5f1a94106a0956a26afbccdafe562f90a945f5693c642276ad5ab2da7394551370e99b2d74c3427"
       "fa48d732a1df70ac583726115901dd06f27f8f063cd25e19a621f9bd0ccc21397c1ec795ca7748dc03d1"
       "7a88934d85527357a2e64647f03e2fb8",
       0xa5e3c0d664339ba1,
       {0.050750732421875f, 0.050750732421875f, 0.050750732421875f, 0.050750732421875f}},
      {29,
       256,
       "1f223f418d882195a100b28d6b236b82481bd9fe630dc3ce3be4ebcab72f45b35223479f6e794d57037e"
       "2cfde9e15a7789b81e7721755738e5a703296dcb81db3f65cf9c1bdc5d1d8fc83f0b0bb4db71be572209"
       "851d3d24f4c0cf83fe4363f82f4759778955f6ced6c1cb3a7179ce32",
       0x869af7dacc48cfe0,
       {-1.227264404296875f, -1.227264404296875f, 0.175323486328125f, 1.577911376953125f}},
      {16,
       256,
       "de3714a108cd1e614f235d3f83bc45fee9ee0403a79be118544441317c9311f85e0429b19f7ec0e156f6"
       "5a3322e791b880ee995e3f0d307d2fbaf400693a179e0d026437e58be7a9ebc28a271d43a78855638144"
       "eb6603f7b2725de11fe6ac2f88a68182869793f0aad6ded8116e3ab51681c4a374fec70a68b3e4bdc92b"
       "387987416c17",
       0x93dda15eefd987b1,
       {13.21441650390625f, -2.45849609375f, -13.21441650390625f, -13.21441650390625f}},
      {17,
       256,
       "f93aea9cee1810dfd5169faf26cd7b5c30c8aba44d972299e8c7b41b9a1d2b0f180600a974d63b633220"
       "2c998e82b2522c49c4394c7d73265b6aaf61b288fbd0aecfa766616223611e767132aa388ffabd0a6a64"
       "12b209971e2d827076f7e49ab8fa197271be53a3442b128cdad72bad0f8aeef42a0b9a26d74fc78f2562"
       "b8701097a55b5510543d27ed600de3200a6749307fd3",
       0xa35beded1f607bc5,
       {40.85540771484375f, -13.07373046875f, -13.07373046875f, -40.85540771484375f}},
      {22,
       256,
       "9e29c118ca7bf1013ccdf8ab8ab4a6039954e84cbe3b3f7f1183c3df8375c517b4e786a9aadf7488f892"
       "b12191387ad86aca56d8531c927b931fe8f16e795b9b331767e712dbe8f5331dd9917f01e64710dd523a"
       "f4d21690a049453135550ec0193a8bed1783d53ec944658d1d28960c44b0382e93438e60788d51e279a1"
       "31f8130b3ea4bd2f5d95e57bd791436d840f4e6654608135bbfb885d346959a49b36402a4f3d",
       0x27aa0513acd54d17,
       {4.481681823730469f, -2.6056289672851562f, -2.6056289672851562f, 4.481681823730469f}},
      {18,
       256,
       "37304991e02abd77279fedc206d2318ca8b8287a6f4b795209575d7277d456c0f6e81a0e584d730660f5"
       "6bb8b588475f7066c1cd7109c5079a933ee857db751ff223726ad90697f749f7c61bd80163a8c9a356ba"
       "91d79f6d24ee3a14ebd41386d8fa20369e6c70df41dba9aeb5301e5824b7db0e504f1d970686934768f0"
       "05af0d5a23ddb465fc5a489b43e76ea3e384969be487a440e7c3ea5204cabbf9bfe8e648caff7704ac26"
       "d227a069c392f4eeb361c24ef366530178b479933822c3c0cf6b3cbe",
       0xf71152b70f6bab74,
       {0.6585693359375f, -0.6585693359375f, 0.3951416015625f, 0.3951416015625f}},
      {21,
       256,
       "8e2c7ecfad90efd8aba2b4d096226df8d446a703fcb2bdddd8e1e2a09a633f7c349903cb463dc4f3ea33"
       "5483e56f64168344d1b96b410c3bade3f6390f4a62312e48d232ddc3f3e848e3f55cb7e22d1bad8ded2d"
       "d7fb1065837b97585cae654f2c42b8f27265d7ddd7eec5923eb448366bb30e571a96372332a38245e6a7"
       "dc162ddcb8f3d54a0f38ee52c9719952c3338026fbfa0adf76282c4bf9838c2557f3b7246b852bab20e6"
       "04ae83e5385d98c4690126be98f09c9384aaa5945fc3d3d4e1e6386dbe5b1df267ebd0e0f0a3d85f5fa4"
       "61698f35e2b6b9f839ec",
       0x89f349bf4ef62ee8,
       {-3.9141845703125f, 11.7425537109375f, -0.7828369140625f, 2.3485107421875f}},
      {23,
       256,
       "543aa92959ecfe84886a928a82af70f39304ebbe937c4140821f57c9e09458ce1d9b09ae70372dad1acf"
       "5c4f1bf192b701b682225ceb2ea1b0b2cbebdc33b8f80cbf564cb39c2a558b53769e1763f565d2e329bb"
       "4b06f233bc2f422be3f0fa0cdd682f78c6268136c5d5ae4ceedf5bea752175d0b84d15d704b6df97679f"
       "c61c2a4527bf1f43919a9d37a5e8199fac7ab4b3532c86443d981aafc374303fc6a86bd92e60843c814e"
       "e9b10320c6161bf6355049c1e34a41772dc9023cb637cba025aa8269e52e9ea289eb1d172060132f2a68"
       "28bc7b69d60faba177ada22a5969596dd200d37997c3cacb25b30760b2d073813de54e93e0ba771450d7"
       "f0fffa1c917d1febcb9fd1e915b4afb1e84452cd",
       0xa96d592c7f6e86db,
       {-5.537109375f, -138.427734375f, 459.580078125f, -138.427734375f}},
      {34,
       256,
       "840dfed0781567ea9662124cac66f10b559b922b4f02c1072c033e6f0ad92c0534f84a42b572b5404d84"
       "ebb4c644a23f660828f3c33a0030163ec7f8f2912a91a6c9753ee0f9fa09b3c14c4ec8a82397f692ea1b"
       "f9b47f2ad872651da12189ad21138f16c631650543e4d437",
       0x8dfc307b49eff8d0,
       {0.0f, -0.84521484375f, 0.84521484375f, 0.84521484375f}},
      {35,
       256,
       "4787814fae7893a42831c4cf9bc5f86fb46574a8992a6637da295a9cdd09ab3c86eff5307316edc2c288"
       "0b93836474609de3280ac9f4a43ce2e039cdf214d977393ac7f5a3da8ae6a756a0daf4b71604af4efb0c"
       "dfd723945e6db2567b0888d756a86851440f3a275105db1c2fad244dd7a169a0d2ea50200f3826ccfc55"
       "784de60cc139",
       0xa3584bad70212e2a,
       {1.5556640625f, 1.5556640625f, 0.0f, 1.5556640625f}},
      {40,
       64,
       "007f0338232f0f21a89119d4b6e150c410e42ec0766ef3e17939897f491c8132ea0dc4957e0140157dbf"
       "d362261e85a3426b5e437454fd9bcbd936cb858ea3189e702374f5d743a9",
       0xe70088815817a46a,
       {0.0f, -0.0f, -0.0f, 0.0f}},
      {39,
       32,
       "01891c0debc8c7a11468a1e9ce28ead2da7d79af1c02b3cd3c55975cb14bc1535b09",
       0x94e93b6b1d9d9962,
       {-5.877471754111438e-39f, -2.350988701644575e-38f, -3.5264830524668625e-38f,
        -1.7632415262334313e-38f}},
  };
  const TempFolder folder;
  for (const Row& row : rows) {
    put(folder / "x.gguf", gguf({}, {{"w", row.type, row.elements * 2, unhex(row.blocks)}}));
    const Floats got = gguf_load(folder / "x.gguf").second.at("w").to_vector<float>();
    ASSERT_EQ(got.size(), row.elements * 2) << row.type;
    for (size_t i = 0; i < row.first.size(); ++i) EXPECT_EQ(got[i], row.first[i]) << row.type;
    uint64_t hash = 0xcbf29ce484222325;
    for (const float value : got) {
      for (const char byte : bytes_of<float>({value}))
        hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
    }
    EXPECT_EQ(hash, row.hash) << row.type;
  }
}

// Their layout in memory, as ggml has it: a scale, a sum that is not needed, and bytes.
TEST(OtherFiles, BlocksOfBytes) {
  const TempFolder folder;
  std::string q8_1 = unhex("003e0000"), q8_k = bytes_of<float>({-0.5f});
  for (int i = 0; i < 32; ++i) q8_1 += static_cast<char>(i - 16);
  for (int i = 0; i < 256; ++i) q8_k += static_cast<char>(i - 128);
  put(folder / "x.gguf", gguf({}, {{"a", 9, 32, q8_1}, {"b", 15, 256, q8_k + std::string(32, 1)}}));
  const nn::StateDict got = gguf_load(folder / "x.gguf").second;
  const Floats a = got.at("a").to_vector<float>(), b = got.at("b").to_vector<float>();
  for (int i = 0; i < 32; ++i) EXPECT_EQ(a[size_t(i)], 1.5f * float(i - 16));
  for (int i = 0; i < 256; ++i) EXPECT_EQ(b[size_t(i)], -0.5f * float(i - 128));
}

TEST(OtherFiles, AnyPartOfASplitModelIsTheWhole) {
  const TempFolder folder;
  auto part = [](uint16_t number, uint16_t count, int all, const std::vector<GgufTensor>& tensors) {
    return gguf(
        {gguf_u16("own", uint16_t(10 + number)), gguf_u16("split.no", number),
         gguf_u16("split.count", count),
         gguf_text("split.tensors.count") + bytes_of<uint32_t>({5}) + bytes_of<int32_t>({all})},
        tensors);
  };
  auto path = [&](const char* ending) { return folder / (std::string("m-") + ending + ".gguf"); };
  put(path("00001-of-00003"), part(0, 3, 3, {f32("a", 1)}));
  put(path("00002-of-00003"), part(1, 3, 3, {f32("b", 2)}));
  put(path("00003-of-00003"), part(2, 3, 3, {f32("c", 3)}));
  for (const char* ending : {"00001-of-00003", "00002-of-00003", "00003-of-00003"}) {
    const auto [settings, tensors] = gguf_load(path(ending));
    ASSERT_EQ(tensors.size(), 3u) << ending;
    EXPECT_EQ(tensors.at("b").to_vector<float>(), Floats(2, 2));
    EXPECT_EQ(std::get<int64_t>(settings.at("own")), 10) << "the settings are the first part's";
  }
  auto text = [&](const char* ending = "00001-of-00003") {
    return message([&] { gguf_load(path(ending)); });
  };
  std::filesystem::rename(path("00003-of-00003"), folder / "kept");
  EXPECT_TRUE(says(text(), "part 3 is missing") && says(text(), "m-00003-of-00003.gguf")) << text();
  put(path("00003-of-00003"), part(1, 3, 3, {f32("c", 3)}));
  EXPECT_TRUE(says(text(), "it is not part 3 of 3")) << text();
  put(path("00003-of-00003"), part(2, 3, 3, {f32("a", 3)}));
  EXPECT_TRUE(says(text(), "\"a\" is in another part")) << text();
  put(path("00003-of-00003"), part(2, 3, 4, {f32("c", 3)}));
  EXPECT_TRUE(says(text("00003-of-00003"), "hold 3 tensors, 4 are said")) << text();
  put(folder / "other.gguf", part(0, 3, 3, {f32("a", 1)}));
  EXPECT_TRUE(says(message([&] { gguf_load(folder / "other.gguf"); }), "part 1 of 3"));
}

TEST(OtherFiles, NamesOfGgufAreUtf8) {
  const TempFolder folder;
  auto text = [&](const std::string& key, const std::string& name) {
    put(folder / "x.gguf", gguf({gguf_u16(key, 1)}, {f32(name, 1)}));
    return message([&] { gguf_load(folder / "x.gguf"); });
  };
  EXPECT_EQ(text("gr\xc3\xb6\xc3\x9f"
                 "e \xe2\x82\xac \xf0\x9f\x98\x80",
                 "w"),
            "no error");
  for (const char* bad : {"k\xff", "\xc0\x80", "\xe2\x82", "\xed\xa0\x80", "\xf5\x80\x80\x80"}) {
    EXPECT_TRUE(says(text(bad, "w"), "is not UTF-8"));
    EXPECT_TRUE(says(text("key", bad), "is not UTF-8"));
  }
}

// --- tensors that cannot be used ---

TEST(OtherFiles, ATypeWithoutValuesKeepsNoOtherTensorFromLoading) {
  const TempFolder folder;
  std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                       R"("c":{"dtype":"C64","shape":[1,2],"data_offsets":[8,24]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  put(folder / "x.safetensors",
      bytes_of<uint64_t>({header.size()}) + header + bytes_of<float>({1, 2, 3, 4, 5, 6}));
  put(folder / "x.gguf", gguf({}, {f32("a", 1), {"c", 41, 128, std::string(18, 1)}}));
  auto check = [](const nn::StateDict& found, const std::string& type) {
    EXPECT_EQ(found.at("a").to_vector<float>()[0], 1);
    const Tensor& c = found.at("c");
    Tensor into = Tensor::zeros(c.shape()).clone();
    for (const std::string& text :
         {message([&] { c.realize(); }),
          message([&] { (c.cast(DType::F32) + 1).to_vector<float>(); }), message([&] { c.data(); }),
          message([&] { nn::load({{"c", into}}, {{"c", c}}); })})
      EXPECT_TRUE(says(text, "tensor \"c\" of") && says(text, type) &&
                  says(text, "is not supported"))
          << text;
    EXPECT_EQ(into.to_vector<float>()[0], 0);
  };
  const nn::StateDict found = safe_load(folder / "x.safetensors");
  EXPECT_EQ(found.at("c").shape(), (Dims{1, 2}));
  check(found, "\"C64\"");
  check(gguf_load(folder / "x.gguf").second, "Q1_0");
  EXPECT_TRUE(says(message([&] { safe_save(found, folder / "y.safetensors"); }), "\"C64\""));
}

// --- torch and NumPy ---

struct Pickler {
  std::string text = "\x80\x02";
  Pickler& raw(std::string_view bytes) { return text += bytes, *this; }
  Pickler& integer(int value) { return raw("J").raw(bytes_of<int>({value})); }
  Pickler& word(const std::string& value) {
    return raw("X").raw(bytes_of<uint32_t>({uint32_t(value.size())})).raw(value);
  }
  Pickler& global(const std::string& module, const std::string& name) {
    return raw("c" + module + "\n" + name + "\n");
  }
  // (storage of that class, offset 0, shape [2], strides [1], False, OrderedDict()
  Pickler& view(const std::string& key, const std::string& module, const std::string& storage) {
    raw("((").word("storage").global(module, storage).word(key).word("cpu").integer(2);
    return raw("tQ")
        .integer(0)
        .integer(2)
        .raw("\x85")
        .integer(1)
        .raw("\x85\x89")
        .global("collections", "OrderedDict")
        .raw(")R");
  }
  std::string done() const { return text + "."; }
};

struct Member {
  std::string name, data;
  uint32_t inflated = 0;  // its size, where `data` is deflated
};
std::string zip(const std::vector<Member>& members) {
  std::string out, directory;
  for (const auto& [name, data, inflated] : members) {
    const auto size = static_cast<uint32_t>(data.size()), at = static_cast<uint32_t>(out.size());
    const auto length = static_cast<uint16_t>(name.size());
    const std::string facts = bytes_of<uint16_t>({0, uint16_t(inflated ? 8 : 0), 0, 0}) +
                              bytes_of<uint32_t>({0, size, inflated ? inflated : size}) +
                              bytes_of<uint16_t>({length, 0});
    out += std::string("PK\x03\x04") + bytes_of<uint16_t>({20}) + facts + name + data;
    directory += std::string("PK\x01\x02") + bytes_of<uint16_t>({20, 20}) + facts +
                 std::string(10, '\0') + bytes_of<uint32_t>({at}) + name;
  }
  const auto count = static_cast<uint16_t>(members.size());
  return out + directory + "PK\x05\x06" + bytes_of<uint16_t>({0, 0, count, count}) +
         bytes_of<uint32_t>({uint32_t(directory.size()), uint32_t(out.size())}) +
         bytes_of<uint16_t>({0});
}

// `text`, then so many zeros, deflated as well as it can be: 258 zeros are 13 bits.
std::string deflated(const std::string& text, size_t zeros) {
  std::string out;
  unsigned held = 0, have = 0;
  auto bits = [&](unsigned value, int count) {  // the first one lowest
    for (int i = 0; i < count; ++i) {
      held |= (value >> i & 1) << have;
      if (++have == 8) out += static_cast<char>(held), held = have = 0;
    }
  };
  auto code = [&](unsigned value, int count) {  // the first one highest
    for (int i = count; i-- > 0;) bits(value >> i, 1);
  };
  auto literal = [&](unsigned char c) { c < 144 ? code(0x30u + c, 8) : code(0x100u + c, 9); };
  bits(3, 3);  // the last block, of fixed codes
  for (const char c : text) literal(static_cast<unsigned char>(c));
  if (zeros > 0) literal(0), --zeros;
  for (; zeros >= 258; zeros -= 258) code(0xc5, 8), code(0, 5);  // once more the byte before
  for (; zeros > 0; --zeros) literal(0);
  code(0, 7);
  if (have > 0) out += static_cast<char>(held);
  return out;
}
std::string npy(const std::string& type, const std::string& shape) {
  std::string text =
      "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
  return std::string("\x93NUMPY\x01\0", 8) + bytes_of<uint16_t>({uint16_t(text.size())}) + text;
}
Member packed(const std::string& name, const std::string& begin, size_t zeros) {
  return {name, deflated(begin, zeros), uint32_t(begin.size() + zeros)};
}

TEST(OtherFiles, ArraysOfZerosTakeAThousandthInTheirFile) {
  const TempFolder folder;
  put(folder / "mask.npz", zip({packed("mask.npy", npy("|b1", "(1000, 1000)"), 1000000)}));
  EXPECT_LT(std::filesystem::file_size(folder / "mask.npz"), 8000u);
  const Tensor mask = npz_load(folder / "mask.npz").at("mask");
  EXPECT_EQ(mask.shape(), (Dims{1000, 1000}));
  EXPECT_FALSE(mask.any().item<bool>());
  put(folder / "f.npz",
      zip({packed("a.npy", npy("<f4", "(1048577,)") + bytes_of<float>({2.5f}), 4 << 20),
           packed("b.npy", npy(">i4", "(1048577,)") + std::string("\0\0\0\7", 4), 4 << 20)}));
  const nn::StateDict two = npz_load(folder / "f.npz");
  EXPECT_EQ(two.at("a").sum().item<float>(), 2.5f);
  EXPECT_EQ(two.at("b").sum().item<int>(), 7);
  EXPECT_EQ(two.at("b")[0].item<int>(), 7);

  Pickler object;
  object.global("torch._utils", "_rebuild_tensor_v2").raw("((");
  object.word("storage").global("torch", "FloatStorage").word("0").word("cpu").integer(1 << 20);
  object.raw("tQ").integer(0).integer(1 << 20).raw("\x85").integer(1).raw("\x85\x89");
  object.global("collections", "OrderedDict").raw(")RtR");
  put(folder / "x.pth", zip({{"a/data.pkl", object.done()},
                             packed("a/data/0", bytes_of<float>({1, 2}), (4 << 20) - 8)}));
  EXPECT_EQ(torch_load(folder / "x.pth").at("").sum().item<float>(), 3);
}

int64_t peak_resident() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    int64_t kib;
    if (word == "VmHWM:" && file >> kib) return kib * 1024;
  }
  return 0;
}

// A size that no bytes can hold, an array of another shape, and a program out of zeros.
TEST(OtherFiles, BombsAreRefused) {
  const TempFolder folder;
  auto text = [&](const Member& member) {
    put(folder / "x.npz", zip({member}));
    return message([&] { npz_load(folder / "x.npz"); });
  };
  Member lies = packed("a.npy", npy("|u1", "(4000000000,)"), 1000);
  lies.inflated = uint32_t(npy("|u1", "(4000000000,)").size() + 4000000000u);
  EXPECT_TRUE(says(text(lies), "deflated ones cannot hold")) << text(lies);
  constexpr size_t kMany = 96 << 20;
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak is that of now
  const int64_t before = peak_resident();
  const Member short_shape = packed("a.npy", npy("|u1", "(10,)"), kMany);
  EXPECT_TRUE(says(text(short_shape), "takes 10 bytes")) << text(short_shape);
  EXPECT_TRUE(says(text(packed("a.npy", "", kMany)), "not a .npy file"));
  put(folder / "p.pth", zip({packed("a/data.pkl", "\x80\x02", kMany)}));
  EXPECT_TRUE(says(message([&] { torch_load(folder / "p.pth"); }), "out of proportion"));
  put(folder / "good.npz", zip({packed("a.npy", npy("|u1", "(100663296,)"), kMany)}));
  const Tensor big = npz_load(folder / "good.npz").at("a");
  EXPECT_EQ(big.numel(), int64_t(kMany));
  EXPECT_LT(peak_resident() - before, 32 << 20);

  Member cut = packed("a.npy", npy("<f4", "(1048576,)"), 4 << 20);
  cut.data.resize(cut.data.size() - 2000),
      cut.inflated = uint32_t(npy("<f4", "(1048576,)").size() + (4 << 20));
  put(folder / "cut.npz", zip({cut}));
  const std::string at_use =
      message([&] { npz_load(folder / "cut.npz").at("a").sum().item<float>(); });
  EXPECT_TRUE(says(at_use, "\"a.npy\"")) << at_use;
}

TEST(OtherFiles, TorchFilesLeaveOutWhatIsNoTensor) {
  const TempFolder folder;
  Pickler object;
  object.raw("}(").word("w").global("torch._utils", "_rebuild_tensor_v2");
  object.view("0", "torch", "FloatStorage").raw("tR");
  object.word("z").global("torch._utils", "_rebuild_tensor_v2");
  object.view("0", "torch", "ComplexFloatStorage").raw("tR");
  object.word("q").global("torch._utils", "_rebuild_qtensor").raw("((");
  object.word("storage").global("torch", "QInt8Storage").word("0").word("cpu").integer(2);
  object.raw("tQ").integer(0).integer(2).raw("\x85").integer(1).raw("\x85(");
  object.global("torch", "per_tensor_affine").raw("G" + std::string(8, '\0')).integer(0);
  object.raw("t\x89").global("collections", "OrderedDict").raw(")RtR");
  object.word("args").global("argparse", "Namespace").raw(")\x81}(");
  object.word("lr").integer(3).raw("ub");
  object.word("best").global("numpy.core.multiarray", "scalar").global("numpy", "dtype");
  object.word("f8").raw("\x89\x88\x87R").word("8 bytes!").raw("\x86R");
  object.word("state").global("collections", "defaultdict").global("builtins", "dict");
  object.raw("\x85R").word("step").integer(9).raw("su");
  put(folder / "x.pth",
      zip({{"a/data.pkl", object.done()}, {"a/data/0", bytes_of<float>({5, 6, 7, 8})}}));
  io::ValueMap other;
  const nn::StateDict found = torch_load(folder / "x.pth", other);
  EXPECT_EQ(found.size(), 3u);
  EXPECT_EQ(found.at("w").to_vector<float>(), (Floats{5, 6}));
  EXPECT_EQ(found.at("z").shape(), (Dims{2}));
  EXPECT_TRUE(says(message([&] { found.at("z").realize(); }), "\"z\" of"));
  EXPECT_TRUE(says(message([&] { found.at("z").realize(); }), "torch.complex64"));
  EXPECT_TRUE(says(message([&] { found.at("q").realize(); }), "_rebuild_qtensor"));
  EXPECT_EQ(other, (io::ValueMap{{"state.step", int64_t{9}}}));

  Pickler bad;
  bad.raw("}").word("x").global("posix", "system").raw(")\x81s");
  put(folder / "bad.pth", zip({{"a/data.pkl", bad.done()}}));
  EXPECT_TRUE(says(message([&] { torch_load(folder / "bad.pth"); }), "posix.system"));
}

}  // namespace
}  // namespace tinyshard::other_files_test
