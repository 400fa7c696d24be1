// The header of a GGUF file. Counts and lengths are believed only as far as bytes are left for what
// they count; sizes are computed with arithmetic that cannot wrap.
#include "io/gguf.h"

#include <set>

#include "core/base/file.h"
#include "io/budget.h"
#include "io/byte_reader.h"
#include "io/checked.h"
#include "io/tokenizers/unicode.h"

namespace tinyshard::io {
namespace {

constexpr GgmlType kGgmlTypes[] = {
    {"F32", 0, 1, 4, DType::F32},  {"F16", 1, 1, 2, DType::F16},    {"Q4_0", 2, 32, 18, {}},
    {"Q4_1", 3, 32, 20, {}},       {"Q5_0", 6, 32, 22, {}},         {"Q5_1", 7, 32, 24, {}},
    {"Q8_0", 8, 32, 34, {}},       {"Q8_1", 9, 32, 36, {}},         {"Q2_K", 10, 256, 84, {}},
    {"Q3_K", 11, 256, 110, {}},    {"Q4_K", 12, 256, 144, {}},      {"Q5_K", 13, 256, 176, {}},
    {"Q6_K", 14, 256, 210, {}},    {"Q8_K", 15, 256, 292, {}},      {"IQ2_XXS", 16, 256, 66, {}},
    {"IQ2_XS", 17, 256, 74, {}},   {"IQ3_XXS", 18, 256, 98, {}},    {"IQ1_S", 19, 256, 50, {}},
    {"IQ4_NL", 20, 32, 18, {}},    {"IQ3_S", 21, 256, 110, {}},     {"IQ2_S", 22, 256, 82, {}},
    {"IQ4_XS", 23, 256, 136, {}},  {"I8", 24, 1, 1, DType::I8},     {"I16", 25, 1, 2, DType::I16},
    {"I32", 26, 1, 4, DType::I32}, {"I64", 27, 1, 8, DType::I64},   {"F64", 28, 1, 8, DType::F64},
    {"IQ1_M", 29, 256, 56, {}},    {"BF16", 30, 1, 2, DType::BF16}, {"TQ1_0", 34, 256, 54, {}},
    {"TQ2_0", 35, 256, 66, {}},    {"MXFP4", 39, 32, 17, {}},       {"NVFP4", 40, 64, 36, {}},
};

// Types that have a name and no values here.
constexpr std::pair<uint32_t, std::string_view> kNamedTypes[] = {
    {4, "Q4_2"},        {5, "Q4_3"},        {31, "Q4_0_4_4"},   {32, "Q4_0_4_8"}, {33, "Q4_0_8_8"},
    {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"}, {41, "Q1_0"},
};

constexpr uint32_t kMaxGgufDims = 4;         // of the format
constexpr uint64_t kMaxAlignment = 1 << 20;  // a tensor may be padded by as much
constexpr uint32_t kMaxArrayDepth = 8;       // arrays inside of each other

bool is_utf8(std::string_view text) { return tokenizers::valid_utf8(text) == text.size(); }

class Header {
 public:
  Header(std::span<const std::byte> file, std::string_view label)
      : in_(file, label), budget_(std::string(label), file.size()) {}

  GgufFile read() {
    if (in_.left() < 4 || in_.text(4, "the magic") != "GGUF")
      throw in_.fail_at(0, "not a GGUF file");
    const auto version = in_.number<uint32_t>("the version");
    if (version != 2 && version != 3) {
      throw in_.fail_at(4,
                        fmt::format("GGUF version {}{}; 2 and 3 are read", version,
                                    __builtin_bswap32(version) < 4 ? " (a big-endian file)" : ""));
    }
    const uint64_t tensors = count("tensors", 24), values = count("key/values", 13);
    for (uint64_t i = 0; i < values; ++i) read_value_pair();
    uint64_t alignment = 32;
    if (auto found = out_.kv.find("general.alignment"); found != out_.kv.end()) {
      const auto* value = std::get_if<int64_t>(&found->second);
      if (value == nullptr || *value <= 0 || *value > int64_t(kMaxAlignment) ||
          (*value & (*value - 1)))
        throw in_.fail("general.alignment is no power of two up to 1048576");
      alignment = static_cast<uint64_t>(*value);
    }
    for (uint64_t i = 0; i < tensors; ++i) read_tensor(alignment);
    place(alignment);
    return std::move(out_);
  }

 private:
  // A number of things that take at least `each` bytes.
  uint64_t count(const char* what, uint64_t each) {
    const uint64_t at = in_.offset();
    const auto number = in_.number<uint64_t>(what);
    if (number > in_.left() / each)
      throw in_.fail_at(
          at, fmt::format("{} {} are said to follow in {} bytes", number, what, in_.left()));
    return number;
  }
  std::string text(const char* what) {
    const auto size = in_.number<uint64_t>(what);
    const std::string_view out = in_.text(size, what);
    budget_.charge(size > 15 ? size + 1 : 0);  // shorter ones lie inside of their std::string
    return std::string(out);
  }

  Value value(uint32_t type, uint32_t depth) {
    const uint64_t at = in_.offset();
    switch (type) {
      case 0:
        return int64_t{in_.number<uint8_t>("a value")};
      case 1:
        return int64_t{in_.number<int8_t>("a value")};
      case 2:
        return int64_t{in_.number<uint16_t>("a value")};
      case 3:
        return int64_t{in_.number<int16_t>("a value")};
      case 4:
        return int64_t{in_.number<uint32_t>("a value")};
      case 5:
        return int64_t{in_.number<int32_t>("a value")};
      case 6:
        return double{in_.number<float>("a value")};
      case 7: {
        const auto flag = in_.number<uint8_t>("a value");
        if (flag > 1) throw in_.fail_at(at, fmt::format("a bool of value {}", flag));
        return flag == 1;
      }
      case 8:
        return text("a text");
      case 9: {
        if (depth == kMaxArrayDepth) throw in_.fail_at(at, "arrays are nested too deeply");
        const auto of = in_.number<uint32_t>("the type of an array");
        const uint64_t items = count("items of an array", least_bytes(of, at));
        // Lists of many items are what vocabularies are: an item is sizeof(Value) bytes.
        budget_.charge(items * sizeof(Value));
        Values list;
        list.reserve(items);
        for (uint64_t i = 0; i < items; ++i) list.push_back(value(of, depth + 1));
        return list;
      }
      case 10: {
        const auto number = in_.number<uint64_t>("a value");
        if (number <= uint64_t(INT64_MAX)) return static_cast<int64_t>(number);
        return number;
      }
      case 11:
        return in_.number<int64_t>("a value");
      case 12:
        return in_.number<double>("a value");
      default:
        throw in_.fail_at(at, fmt::format("a value of type {}; 0 to 12 are known", type));
    }
  }
  uint64_t least_bytes(uint32_t type, uint64_t at) {
    constexpr uint8_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
    if (type >= std::size(kBytes))
      throw in_.fail_at(at, fmt::format("an array of type {}; 0 to 12 are known", type));
    return kBytes[type];
  }

  void read_value_pair() {
    const uint64_t at = in_.offset();
    std::string key = text("a key");
    if (!is_utf8(key)) throw in_.fail_at(at, fmt::format("key {} is not UTF-8", in_quotes(key)));
    const auto type = in_.number<uint32_t>("the type of a value");
    budget_.charge(128);
    Value held = value(type, 0);
    if (!out_.kv.emplace(key, std::move(held)).second)
      throw in_.fail_at(at, fmt::format("key {} stands twice", in_quotes(key)));
  }

  void read_tensor(uint64_t alignment) {
    const uint64_t at = in_.offset();
    GgufTensor tensor;
    tensor.name = text("a tensor's name");
    if (!is_utf8(tensor.name))
      throw in_.fail_at(at, fmt::format("the name {} is not UTF-8", in_quotes(tensor.name)));
    const auto fail = [&](std::string_view why) {
      return in_.fail_at(at, fmt::format("tensor {} {}", in_quotes(tensor.name), why));
    };
    const auto dims = in_.number<uint32_t>("the number of dims");
    if (dims > kMaxGgufDims)
      throw fail(fmt::format("has {} dims, at most {} are possible", dims, kMaxGgufDims));
    uint64_t row = 1;  // elements of the innermost dim
    for (uint32_t d = 0; d < dims; ++d) {
      const auto size = in_.number<uint64_t>("a size");
      if (size > uint64_t(INT64_MAX)) throw fail(fmt::format("has a dim of {}", size));
      if (d == 0) row = size;
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
    }
    tensor.number = in_.number<uint32_t>("a tensor's type");
    tensor.type = ggml_type(tensor.number);
    tensor.offset = in_.number<uint64_t>("an offset");
    if (tensor.type == nullptr) {
      if (name_of_ggml_type(tensor.number).empty())
        throw fail(fmt::format("has ggml type {}, which is not known", tensor.number));
      if (!checked_bytes(tensor.shape, 1)) throw fail("has a shape too large for any memory");
      budget_.charge(sizeof(GgufTensor) + dims * sizeof(int64_t));
      out_.tensors.push_back(std::move(tensor));
      return;
    }
    if (row % tensor.type->block != 0)
      throw fail(fmt::format("has rows of {} elements, {} has blocks of {}", row, tensor.type->name,
                             tensor.type->block));
    if (!checked_bytes(tensor.shape, sizeof(float)))
      throw fail("has a shape too large for any memory");
    const auto elements = checked_bytes(tensor.shape, 1);
    const auto bytes =
        elements ? checked_mul(*elements / tensor.type->block, tensor.type->bytes) : std::nullopt;
    if (!bytes) throw fail("has a shape too large for any memory");
    tensor.bytes = *bytes;
    if (tensor.offset % alignment != 0)
      throw fail(fmt::format("begins at byte {} of the data, which is no multiple of {}",
                             tensor.offset, alignment));
    budget_.charge(sizeof(GgufTensor) + dims * sizeof(int64_t));
    out_.tensors.push_back(std::move(tensor));
  }

  void place(uint64_t alignment) {
    const uint64_t header = in_.offset(), file = header + in_.left();
    const uint64_t data = std::min((header + alignment - 1) / alignment * alignment, file);
    std::set<std::string_view> names;
    budget_.charge(64 * out_.tensors.size());
    for (GgufTensor& tensor : out_.tensors) {
      if (!names.insert(tensor.name).second)
        throw in_.fail(fmt::format("tensor {} stands twice", in_quotes(tensor.name)));
      const auto end = checked_add(tensor.offset, tensor.bytes);
      if (!end || *end > file - data) {
        throw in_.fail_at(
            data, fmt::format("tensor {} takes {} bytes from byte {} of the data on, which has {}",
                              in_quotes(tensor.name), tensor.bytes, tensor.offset, file - data));
      }
      tensor.offset += data;
    }
  }

  ByteReader in_;
  Budget budget_;
  GgufFile out_;
};

}  // namespace

const GgmlType* ggml_type(uint32_t number) {
  for (const GgmlType& type : kGgmlTypes) {
    if (type.number == number) return &type;
  }
  return nullptr;
}

std::string_view name_of_ggml_type(uint32_t number) {
  if (const GgmlType* type = ggml_type(number)) return type->name;
  for (const auto& [other, name] : kNamedTypes) {
    if (other == number) return name;
  }
  return {};
}

GgufFile parse_gguf(std::span<const std::byte> file, std::string_view label) {
  return Header(file, label).read();
}

GgufFile::GgufFile(const std::filesystem::path& path) {
  const MappedFile map(path);
  *this = parse_gguf(map.bytes(), path.native());
}

}  // namespace tinyshard::io
