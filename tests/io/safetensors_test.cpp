// The reader against real files, malformed ones and random damage; the writer against the reader.
#include "io/safetensors.h"

#include <cstdlib>
#include <cstring>
#include <random>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/io/temp_folder.h"
#include "tests/sanitized.h"
#include "tests/test_data.h"

namespace tinyshard::io::safetensors_test {
namespace {

using nlohmann::json;
using test::bytes_of;
using test::get;
using test::message_of;
using test::put;
using test::TempFolder;
using testing::ElementsAre;
using testing::HasSubstr;

std::string file_of(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string text(reinterpret_cast<const char*>(&length), 8);
  return text.append(header).append(data);
}

std::string error_of(const std::string& bytes) {
  return message_of<FormatError>([&] { parse_safetensors(std::as_bytes(std::span(bytes)), "x"); });
}

std::filesystem::path golden_files() { return test::test_data() / "golden/files"; }

// Values of F8_E4M3 are given as F32; all else is compared byte by
// byte.
TEST(Safetensors, GoldenFiles) {
  const auto folder = golden_files();
  if (!std::filesystem::exists(folder / "expected.json")) {
    GTEST_SKIP() << "no golden files in " << folder
                 << " (TINYSHARD_TEST_DATA names another folder)";
  }
  const SafetensorsFile expected(folder / "expected.safetensors");
  const json cases = json::parse(get(folder / "expected.json")).at("files");
  int good = 0, bad = 0;
  for (const auto& [name, wanted] : cases.items()) {
    if (wanted.at("loader") != "safe_load") continue;
    SCOPED_TRACE(name);
    if (wanted.contains("error")) {
      ++bad;
      EXPECT_THAT(message_of<FormatError>([&] { SafetensorsFile file(folder / name); }),
                  HasSubstr(name));
      continue;
    }
    ++good;
    if (wanted.value("may_refuse", false)) {
      EXPECT_EQ(SafetensorsFile(folder / name).at("x").dtype, DType::F8E4M3FN);
      continue;
    }
    const SafetensorsFile file(folder / name);
    EXPECT_EQ(file.tensors().size(), wanted.at("tensors").size());
    if (wanted.contains("metadata")) {
      EXPECT_EQ(file.metadata(), wanted.at("metadata").get<Metadata>());
    }
    for (const auto& [tensor, info] : wanted.at("tensors").items()) {
      const TensorEntry& entry = file.at(tensor);
      EXPECT_EQ(safetensors_name(entry.dtype), info.at("dtype").get<std::string>());
      EXPECT_EQ(entry.shape, info.at("shape").get<std::vector<int64_t>>());
      const TensorEntry& values = expected.at(info.at("values").get<std::string>());
      EXPECT_EQ(entry.dtype, values.dtype);
      EXPECT_TRUE(std::ranges::equal(entry.bytes, values.bytes)) << tensor;
    }
  }
  EXPECT_GE(good, 6);
  EXPECT_GE(bad, 20);
}

struct Malformed {
  const char* header;
  size_t data_bytes;
  const char* message;
};

class SafetensorsMalformed : public testing::TestWithParam<Malformed> {};

TEST_P(SafetensorsMalformed, IsRefused) {
  const auto& [header, data_bytes, message] = GetParam();
  EXPECT_THAT(error_of(file_of(header, std::string(data_bytes, '\0'))), HasSubstr(message))
      << header;
}

INSTANTIATE_TEST_SUITE_P(
    Headers, SafetensorsMalformed,
    testing::Values(
        Malformed{"", 0, "does not begin with {"}, Malformed{" {}", 0, "does not begin with {"},
        Malformed{"{", 0, "not valid JSON"}, Malformed{"{} x", 0, "not valid JSON"},
        Malformed{"{}{}", 0, "not valid JSON"},
        Malformed{"{\"a\":1}", 0, "\"a\" is a number, not an object"},
        Malformed{"{\"a\":null}", 0, "\"a\" is null"},
        Malformed{"{\"a\":[]}", 0, "\"a\" is an array"},
        Malformed{"{\"a\":{}}", 0, "header, at byte 9: tensor \"a\" has no dtype"},
        Malformed{"{\"a\":{\"dtype\":\"U8\"}}", 0, "tensor \"a\" has no shape"},
        Malformed{"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0, "has dtype twice"},
        Malformed{"{\"a\":{\"dtype\":3}}", 0, "a number in its dtype"},
        Malformed{"{\"a\":{\"dtype\":[\"U8\"]}}", 0, "an array in its dtype"},
        Malformed{"{\"a\":{\"dtype\":\"u8\"}}", 0, "element type \"u8\""},
        Malformed{"{\"a\":{\"shape\":2}}", 0, "a number in its shape"},
        Malformed{"{\"a\":{\"shape\":[[2]]}}", 0, "an array in its shape"},
        Malformed{"{\"a\":{\"shape\":[2.0]}}", 0, "no 64-bit integer"},
        Malformed{"{\"a\":{\"shape\":[-0]}}", 0, "a negative number 0"},
        Malformed{"{\"a\":{\"shape\":[true]}}", 0, "a boolean in its shape"},
        Malformed{"{\"a\":{\"shape\":[9223372036854775808]}}", 0,
                  "dimension of 9223372036854775808"},
        Malformed{"{\"a\":{\"shape\":[18446744073709551616]}}", 0, "no 64-bit integer"},
        Malformed{"{\"a\":{\"data_offsets\":[0]}}", 0, "has 1 data_offsets"},
        Malformed{"{\"a\":{\"data_offsets\":[0,1,2]}}", 0, "has 3 data_offsets"},
        Malformed{"{\"a\":{\"more\":{}}}", 0, "unknown field \"more\""},
        Malformed{"{\"__metadata__\":{\"a\":1}}", 0, "metadata \"a\" is a number, not a string"},
        Malformed{"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0,
                  "metadata \"a\" appears twice"},
        Malformed{"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "\"__metadata__\" appears twice"},
        Malformed{"{\"__metadata__\":\"a\"}", 0, "\"__metadata__\" is a string"},
        Malformed{"{\"a\\u0000b\":3}", 0, "\"a\\x00b\" is a number"},
        Malformed{"{\"\xff\":3}", 0, "not valid JSON"},
        Malformed{"{\"\\ud800\":3}", 0, "not valid JSON"}, Malformed{"{}", 1, "1 bytes follow"},
        Malformed{"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2,
                  "after a gap of 1 bytes"},
        Malformed{"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                  "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
                  3, "at byte 114: tensor \"b\" begins at 1, inside of the tensor before it"},
        Malformed{"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,0]}}", 2,
                  "data_offsets 2 to 0"},
        Malformed{
            "{\"a\":{\"dtype\":\"U8\",\"shape\":[0,4611686018427387904,4],\"data_offsets\":[0,0]}}",
            0, "too large for any memory"},
        Malformed{
            "{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,18446744073709551615]}}", 1,
            "data_offsets 0 to 18446744073709551615"}));

TEST(Safetensors, DeepNestingAndLongNamesStayCheap) {
  EXPECT_THAT(error_of(file_of("{\"a\":" + std::string(1 << 20, '['), "")),
              HasSubstr("is an array"));
  const std::string name(1 << 20, 'n');
  const std::string message = error_of(file_of("{\"" + name + "\":3}", ""));
  EXPECT_THAT(message, HasSubstr("nnn...\" is a number"));
  EXPECT_LT(message.size(), 300u);
  std::string dims = "1";
  for (int i = 0; i < 100; ++i) dims += ",1";
  EXPECT_THAT(error_of(file_of("{\"a\":{\"shape\":[" + dims + "]}}", "")),
              HasSubstr("more than 64 dimensions"));
}

// The names of a header are kept in the list of tensors, once: 88 bytes of list and 32 of shape for
// the 56 or so that an entry takes, and 8 to 16 while names are compared.
TEST(Safetensors, ManyEmptyTensorsTakeLittleMemory) {
  if (test::kSanitized) GTEST_SKIP() << "the sanitizer's own memory is in the way";
  std::string header = "{";
  constexpr int kTensors = 200'000;
  for (int i = 0; i < kTensors; ++i) {
    header += fmt::format("{}\"{:x}\":{{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                          i == 0 ? "" : ",", i);
  }
  const std::string file = file_of(header + "}", "");
  const pid_t child = ::fork();
  if (child == 0) {
    const auto peak = [] {
      rusage usage;
      ::getrusage(RUSAGE_SELF, &usage);
      return static_cast<size_t>(usage.ru_maxrss) << 10;
    };
    const size_t before = peak();
    const auto parsed = parse_safetensors(std::as_bytes(std::span(file)), "x");
    ::_exit(parsed.tensors.size() == kTensors && peak() - before < 3 * file.size() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

std::vector<TensorView> sample(const std::vector<float>& f, const std::vector<int64_t>& i,
                               const std::vector<uint8_t>& b) {
  return {{"bytes", DType::U8, {3}, bytes_of(b)},
          {"scalar", DType::F32, {}, std::span(bytes_of(f)).first(4)},
          {"w", DType::F32, {2, 3}, bytes_of(f)},
          {"empty", DType::F64, {0, 3}, {}},
          {"ids", DType::I64, {2}, bytes_of(i)},
          {"name with \"quotes\", \u00e9 and \n", DType::Bool, {3}, bytes_of(b)}};
}

TEST(Safetensors, WhatIsWrittenIsRead) {
  const TempFolder folder;
  const std::vector<float> f = {1, 2, 3, 4, 5, 6};
  const std::vector<int64_t> i = {7, -8};
  const std::vector<uint8_t> b = {0, 1, 1};
  const auto views = sample(f, i, b);
  const Metadata metadata = {{"format", "pt"}, {"k\"", "v\\ \u20ac"}};
  write_safetensors(folder / "a.safetensors", views, metadata);
  const SafetensorsFile file(folder / "a.safetensors");
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_EQ(file.header_bytes() % 64, 0u);
  ASSERT_EQ(file.tensors().size(), views.size());
  for (const TensorView& view : views) {
    const TensorEntry& entry = file.at(view.name);
    EXPECT_EQ(entry.dtype, view.dtype);
    EXPECT_EQ(entry.shape, view.shape);
    EXPECT_TRUE(std::ranges::equal(entry.bytes, view.bytes));
    EXPECT_EQ(entry.offset % itemsize(entry.dtype), 0u);
    EXPECT_EQ(entry.bytes.data(), file.file_bytes().data() + entry.offset);
  }
  // Equal tensors give equal bytes, in whatever order they come.
  auto reversed = views;
  std::reverse(reversed.begin(), reversed.end());
  write_safetensors(folder / "b.safetensors", reversed, metadata);
  EXPECT_TRUE(get(folder / "a.safetensors") == get(folder / "b.safetensors"));
}

TEST(Safetensors, AnEmptyFileIsValid) {
  const TempFolder folder;
  write_safetensors(folder / "none.safetensors", {});
  EXPECT_TRUE(SafetensorsFile(folder / "none.safetensors").tensors().empty());
}

TEST(Safetensors, WriterRefusesWhatTheFormatCannotHold) {
  const TempFolder folder;
  const std::vector<float> f = {1, 2};
  const auto write = [&](std::vector<TensorView> views) {
    return message_of<UserError>([&] { write_safetensors(folder / "a", views); });
  };
  const TensorView good{"a", DType::F32, {2}, bytes_of(f)};
  EXPECT_THAT(write({good, good}), HasSubstr("\"a\" is given twice"));
  EXPECT_THAT(write({{"a", DType::F32, {3}, bytes_of(f)}}),
              HasSubstr("\"a\" is F32 [3], but comes with 8 bytes"));
  EXPECT_THAT(write({{"a", DType::F32, {-2}, bytes_of(f)}}), HasSubstr("F32 [-2]"));
  EXPECT_THAT(write({{"__metadata__", DType::F32, {2}, bytes_of(f)}}),
              HasSubstr("cannot be named"));
  EXPECT_THAT(write({{"\xff", DType::F32, {2}, bytes_of(f)}}), HasSubstr("not UTF-8"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Safetensors, AMissingNameSuggestsTheNearest) {
  const TempFolder folder;
  const std::vector<float> f = {1, 2};
  write_safetensors(folder / "a",
                    std::vector<TensorView>{{"layers.0.weight", DType::F32, {2}, bytes_of(f)}});
  const SafetensorsFile file(folder / "a");
  EXPECT_THAT(
      message_of<UserError>([&] { file.at("layers.0.weigth"); }),
      HasSubstr(
          "has no tensor \"layers.0.weigth\" (1 tensors; did you mean \"layers.0.weight\"?)"));
  EXPECT_THAT(message_of<UserError>([&] { file.at("optimizer"); }), HasSubstr("(1 tensors)"));
}

TEST(SafetensorsSet, ReadsFileIndexAndFolder) {
  const TempFolder folder;
  const std::vector<float> f = {1, 2}, g = {3};
  const TensorView a{"a", DType::F32, {2}, bytes_of(f)}, b{"b", DType::F32, {1}, bytes_of(g)};
  write_safetensors(folder / "m-1.safetensors", std::vector{a});
  write_safetensors(folder / "m-2.safetensors", std::vector{b, a});
  EXPECT_EQ(SafetensorsSet(folder / "m-1.safetensors").tensors().size(), 1u);
  EXPECT_THAT(message_of<UserError>([&] { SafetensorsSet set(folder.path()); }),
              HasSubstr("holds 2 .safetensors files"));
  const auto index = folder / "model.safetensors.index.json";
  put(index,
      R"({"metadata":{"total_size":12},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");
  for (const auto& path : {index, folder.path()}) {
    const SafetensorsSet set(path);
    EXPECT_EQ(set.files().size(), 2u);
    EXPECT_EQ(set.tensors().size(), 2u);
    EXPECT_EQ(set.metadata().at("total_size"), "12");
    EXPECT_EQ(set.at("b").bytes.size(), 4u);
    EXPECT_EQ(set.at("a").bytes.data(), set.files()[0].at("a").bytes.data());
    EXPECT_EQ(set.find("c"), nullptr);
    EXPECT_THAT(message_of<UserError>([&] { set.at("c"); }), HasSubstr("no tensor \"c\""));
  }
}

TEST(SafetensorsSet, MetadataOfAnIndexIsTextOrJson) {
  const TempFolder folder;
  const auto index = folder / "model.safetensors.index.json";
  put(index,
      R"({"more":[1,{"weight_map":{"a":1}},"x"],"metadata":{"text":"a \"b\"","none":null,"n":-3,)"
      R"("x":0.5,"yes":true,"list":[],"tree":{"a":[1,{"b c":[[],{}]},"d,"],"e":{"f":"[g"}}},)"
      R"("weight_map":{},"last":{"metadata":{"text":2}}})");
  const Metadata expected = {{"text", "a \"b\""},
                             {"none", "null"},
                             {"n", "-3"},
                             {"x", "0.5"},
                             {"yes", "true"},
                             {"list", "[]"},
                             {"tree", R"({"a":[1,{"b c":[[],{}]},"d,"],"e":{"f":"[g"}})"}};
  EXPECT_EQ(SafetensorsSet(index).metadata(), expected);
}

TEST(SafetensorsSet, RefusesBadIndexes) {
  const TempFolder folder;
  const std::vector<float> f = {1, 2};
  write_safetensors(folder / "m.safetensors",
                    std::vector<TensorView>{{"a", DType::F32, {2}, bytes_of(f)}});
  const auto index = folder / "model.safetensors.index.json";
  const auto error = [&](std::string_view text) {
    put(index, text);
    return message_of<UserError>([&] { SafetensorsSet set(index); });
  };
  EXPECT_THAT(error("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error("[]"), HasSubstr("no object weight_map"));
  EXPECT_THAT(error(R"({"weight_map":[]})"), HasSubstr("no object weight_map"));
  EXPECT_THAT(error("3"), HasSubstr("no object weight_map"));
  EXPECT_THAT(error(R"({"metadata":{"weight_map":{}}})"), HasSubstr("no object weight_map"));
  for (const char* value : {"1", "null", "[\"m.safetensors\"]", "{\"b\":\"m.safetensors\"}"}) {
    EXPECT_THAT(error(fmt::format("{{\"weight_map\":{{\"a\":{}}}}}", value)),
                HasSubstr("\"a\" is not a file name"));
  }
  // Readers differ in which of the two they take.
  EXPECT_THAT(error(R"({"weight_map":{"a":"m.safetensors","a":"n.safetensors"}})"),
              HasSubstr("\"a\" appears twice"));
  EXPECT_THAT(error(R"({"weight_map":{},"metadata":{"x":[{"y":1,"z":2,"y":3}]}})"),
              HasSubstr("\"y\" appears twice"));
  EXPECT_THAT(error(R"({"weight_map":{},"weight_map":{}})"),
              HasSubstr("\"weight_map\" appears twice"));
  // As deep as text allows: neither the parser nor what it made may recurse.
  for (const char* member : {"metadata", "other"}) {
    for (const auto& [open, close] : {std::pair("[", "]"), std::pair("{\"a\":", "}")}) {
      std::string text = fmt::format("{{\"{}\":{{\"a\":", member);
      for (int i = 0; i < 1'000'000; ++i) text += open;
      if (*open == '{') text += "0";
      for (int i = 0; i < 1'000'000; ++i) text += close;
      EXPECT_THAT(error(text + "},\"weight_map\":{}}"), HasSubstr("nested deeper than 64 levels"));
    }
  }
  for (const char* name : {"../m.safetensors", "/etc/passwd", "..", "", "x/y"}) {
    EXPECT_THAT(error(json{{"weight_map", {{"a", name}}}}.dump()),
                HasSubstr("not the name of a file beside it"));
  }
  EXPECT_THAT(error(R"({"weight_map":{"a":"gone.safetensors"}})"),
              HasSubstr("gone.safetensors: No such file"));
  EXPECT_THAT(error(R"({"weight_map":{"b":"m.safetensors"}})"),
              HasSubstr("\"b\" is said to be in m.safetensors"));
}

// Random damage: bytes changed, cut out, doubled, the file cut. Every outcome is a FormatError or a
// header whose tensors lie in the file; the sanitizers see the rest.
TEST(Safetensors, RandomDamage) {
  const TempFolder folder;
  const std::vector<float> f = {1, 2, 3, 4, 5, 6};
  const std::vector<int64_t> i = {7, -8};
  const std::vector<uint8_t> b = {0, 1, 1};
  write_safetensors(folder / "a", sample(f, i, b), {{"format", "pt"}});
  const std::string seed = get(folder / "a");
  static constexpr std::string_view kTokens[] = {"{",
                                                 "}",
                                                 "[",
                                                 "]",
                                                 ",",
                                                 "\"",
                                                 "-",
                                                 "0",
                                                 "9",
                                                 ":",
                                                 "18446744073709551615",
                                                 "__metadata__",
                                                 "\\u0000"};
  std::mt19937 random(3);
  int accepted = 0, refused = 0;
  for (int trial = 0; trial < 50'000; ++trial) {
    std::string bytes = seed;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0 && !bytes.empty(); --edits) {
      const size_t at = random() % 4 == 0 ? random() % std::min<size_t>(8, bytes.size())
                                          : random() % bytes.size();
      switch (random() % 5) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] ^= static_cast<char>(1 << random() % 8);
          break;
        case 2:
          bytes.erase(at, 1 + random() % 8);
          break;
        case 3:
          bytes.insert(at, kTokens[random() % std::size(kTokens)]);
          break;
        default:
          bytes.resize(at);
          break;
      }
    }
    // Half of the time the length field is made right again, so that the damage is deeper.
    if (bytes.size() >= 8 && random() % 2 == 0) {
      const size_t end = bytes.find("}}", 8);
      const uint64_t length =
          end == bytes.npos ? bytes.size() - 8 : std::min(bytes.size() - 8, end + 2 - 8);
      std::memcpy(bytes.data(), &length, 8);
    }
    const std::vector<char> exact(bytes.begin(),
                                  bytes.end());  // no terminator behind: a byte too far is seen
    const auto span = std::as_bytes(std::span(exact));
    try {
      const SafetensorsHeader header = parse_safetensors(span, "x");
      ++accepted;
      for (const TensorEntry& entry : header.tensors) {
        EXPECT_LE(entry.offset + entry.bytes.size(), span.size());
        EXPECT_EQ(entry.bytes.data(), span.data() + entry.offset);
      }
    } catch (const FormatError&) {
      ++refused;
    }
  }
  EXPECT_EQ(accepted + refused, 50'000);
  EXPECT_LT(accepted, 25'000);  // changes of values and names are valid
}

}  // namespace
}  // namespace tinyshard::io::safetensors_test
