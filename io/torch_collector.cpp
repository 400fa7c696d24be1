// The walk over what a pickle made, and the tensors that it rebuilds:
//
//   _rebuild_tensor_v2(storage, offset, shape, strides, ...)    storage: persistent id
//   ('storage', torch.FloatStorage, '0', 'cpu', 1024)           key '0', 1024 elements
#include <algorithm>

#include <fmt/format.h>

#include "io/checked.h"
#include "io/torch_internal.h"

namespace tinyshard::io {
namespace {

constexpr uint64_t kEntryBytes = 192;  // of a map of names

using Id = Pickle::Id;
using Kind = Pickle::Kind;

struct TorchType {
  std::string_view name;
  DType dtype;
};
constexpr TorchType kStorages[] = {
    {"torch DoubleStorage", DType::F64}, {"torch FloatStorage", DType::F32},
    {"torch HalfStorage", DType::F16},   {"torch BFloat16Storage", DType::BF16},
    {"torch LongStorage", DType::I64},   {"torch IntStorage", DType::I32},
    {"torch ShortStorage", DType::I16},  {"torch CharStorage", DType::I8},
    {"torch ByteStorage", DType::U8},    {"torch BoolStorage", DType::Bool},
};
// Types that have no values here, and the bytes of an element.
struct OtherType {
  std::string_view storage, name;
  uint64_t bytes;
};
constexpr OtherType kOtherTypes[] = {
    {"torch ComplexFloatStorage", "torch complex64", 8},
    {"torch ComplexDoubleStorage", "torch complex128", 16},
    {"torch QInt8Storage", "torch qint8", 1},
    {"torch QUInt8Storage", "torch quint8", 1},
    {"torch QInt32Storage", "torch qint32", 4},
    {"torch QUInt4x2Storage", "torch quint4x2", 1},
    {"torch QUInt2x4Storage", "torch quint2x4", 1},
};
// A name that begins so is a type, too: torch.complex32, torch.float8_e8m0fnu, torch.uint4.
constexpr std::string_view kTypePrefixes[] = {"torch complex", "torch float", "torch int",
                                              "torch uint",    "torch bits",  "torch qint",
                                              "torch quint"};
constexpr TorchType kTorchTypes[] = {
    {"torch float64", DType::F64},
    {"torch float32", DType::F32},
    {"torch float16", DType::F16},
    {"torch bfloat16", DType::BF16},
    {"torch int64", DType::I64},
    {"torch int32", DType::I32},
    {"torch int16", DType::I16},
    {"torch int8", DType::I8},
    {"torch uint8", DType::U8},
    {"torch uint16", DType::U16},
    {"torch uint32", DType::U32},
    {"torch uint64", DType::U64},
    {"torch bool", DType::Bool},
    {"torch float8_e4m3fn", DType::F8E4M3FN},
    {"torch float8_e5m2", DType::F8E5M2},
    {"torch float8_e4m3fnuz", DType::F8E4M3FNUZ},
    {"torch float8_e5m2fnuz", DType::F8E5M2FNUZ},
};
constexpr std::string_view kUntyped = "torch.storage UntypedStorage";
constexpr std::string_view kOrderedDict = "collections OrderedDict";
constexpr std::string_view kCounter = "collections Counter";
constexpr std::string_view kSets[] = {"__builtin__ set", "builtins set"};
// Bytes before protocol 3 had them: encode("text", "latin1"), and bytes() for none.
constexpr std::string_view kEncode = "_codecs encode";
constexpr std::string_view kNoBytes[] = {"__builtin__ bytes", "builtins bytes"};
constexpr std::string_view kByteArrays[] = {"__builtin__ bytearray", "builtins bytearray"};
constexpr std::string_view kTensorV2 = "torch._utils _rebuild_tensor_v2";
constexpr std::string_view kTensorV3 = "torch._utils _rebuild_tensor_v3";
constexpr std::string_view kTensor = "torch._utils _rebuild_tensor";
constexpr std::string_view kParameter = "torch._utils _rebuild_parameter";
constexpr std::string_view kParameterState = "torch._utils _rebuild_parameter_with_state";
// A tensor with attributes of its own: of_type(rebuild, type, arguments, attributes).
constexpr std::string_view kOfType = "torch._tensor _rebuild_from_type_v2";
constexpr std::string_view kTypes[] = {"torch Tensor", "torch.nn.parameter Parameter"};
constexpr std::string_view kQuantised = "torch._utils _rebuild_qtensor";
// Calls that make tensors of which no elements can be told here.
constexpr std::string_view kOtherTensors[] = {kQuantised,
                                              "torch._utils _rebuild_sparse_tensor",
                                              "torch._utils _rebuild_sparse_csr_tensor",
                                              "torch._utils _rebuild_nested_tensor",
                                              "torch._utils _rebuild_meta_tensor_no_storage",
                                              "torch._utils _rebuild_wrapper_subclass"};
constexpr std::string_view kTheirWords[] = {"torch per_tensor_affine",
                                            "torch per_channel_affine",
                                            "torch per_tensor_symmetric",
                                            "torch per_channel_symmetric",
                                            "torch per_channel_affine_float_qparams",
                                            "torch.serialization _get_layout"};
// Settings that a training program keeps beside its tensors: left out.
constexpr std::string_view kSettings[] = {"argparse Namespace",
                                          "types SimpleNamespace",
                                          "pathlib Path",
                                          "pathlib PosixPath",
                                          "pathlib WindowsPath",
                                          "pathlib PurePosixPath",
                                          "pathlib PureWindowsPath",
                                          "pathlib._local PosixPath",
                                          "pathlib._local WindowsPath",
                                          "datetime datetime",
                                          "datetime date",
                                          "datetime timedelta",
                                          "datetime timezone",
                                          "uuid UUID",
                                          "decimal Decimal",
                                          "numpy dtype",
                                          "numpy.core.multiarray scalar",
                                          "numpy._core.multiarray scalar"};
constexpr std::string_view kDefaultDict = "collections defaultdict";
constexpr std::string_view kFactories[] = {
    "builtins dict",   "builtins list",    "builtins int",     "builtins float",
    "builtins str",    "builtins bool",    "__builtin__ dict", "__builtin__ list",
    "__builtin__ int", "__builtin__ float"};
constexpr std::string_view kSize = "torch Size", kDevice = "torch device";
constexpr std::string_view kOldTensors[] = {
    "torch FloatTensor", "torch DoubleTensor", "torch HalfTensor", "torch LongTensor",
    "torch IntTensor",   "torch ShortTensor",  "torch CharTensor", "torch ByteTensor"};

template <size_t n>
bool is_among(const std::string_view (&names)[n], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool is_other_type(std::string_view name) {
  return std::ranges::any_of(kTypePrefixes,
                             [&](std::string_view prefix) { return name.starts_with(prefix); });
}
const OtherType* other_storage(std::string_view name) {
  const auto found = std::ranges::find(kOtherTypes, name, &OtherType::storage);
  return found == std::end(kOtherTypes) ? nullptr : found;
}
// Returns the name as Python writes it: "torch.complex64".
std::string dotted(std::string_view name) {
  std::string text(name);
  std::ranges::replace(text, ' ', '.');
  return text;
}

template <size_t n>
std::optional<DType> type_named(const TorchType (&names)[n], std::string_view name) {
  for (const TorchType& type : names) {
    if (type.name == name) return type.dtype;
  }
  return std::nullopt;
}

}  // namespace

bool is_allowed(std::string_view name) {
  for (const std::string_view known :
       {kOrderedDict, kCounter, kEncode, kTensorV2, kTensorV3, kTensor, kParameter, kParameterState,
        kOfType, kSize, kDevice, kUntyped, kDefaultDict}) {
    if (name == known) return true;
  }
  if (is_other_type(name) || other_storage(name) || is_among(kOtherTensors, name) ||
      is_among(kTheirWords, name) || is_among(kSettings, name) || is_among(kFactories, name) ||
      name.starts_with("torchao"))
    return true;
  return type_named(kStorages, name) || type_named(kTorchTypes, name) || is_among(kSets, name) ||
         is_among(kNoBytes, name) || is_among(kByteArrays, name) || is_among(kTypes, name) ||
         is_among(kOldTensors, name);
}

uint64_t width_of(const StorageId& id) {
  if (id.dtype) return itemsize(*id.dtype);
  const auto other = std::ranges::find(kOtherTypes, id.other_type, &OtherType::name);
  return other == std::end(kOtherTypes) ? 1 : other->bytes;
}

std::optional<DType> type_of_storage(std::string_view name) { return type_named(kStorages, name); }

FormatError Collector::fail(std::string_view path, std::string_view why) const {
  return FormatError(label_, fmt::format("tensor {}: {}", in_quotes(path), why));
}

std::string Collector::name_of(Id key, std::string_view path) {
  std::string text;
  switch (pickle_.kind(key)) {
    case Kind::Text:
      text = pickle_.text(key);
      break;
    case Kind::Int:
      text = std::to_string(pickle_.integer(key));
      break;
    case Kind::Bool:
      text = pickle_.integer(key) ? "True" : "False";
      break;
    case Kind::None:
      text = "None";
      break;
    case Kind::Float:
      text = fmt::format("{}", pickle_.real(key));
      break;
    default:
      throw fail(path, "a key of its dict is no text and no number");
  }
  return join(path, text);
}

std::string Collector::join(std::string_view path, std::string_view name) {
  budget_.charge(path.size() + name.size() + sizeof(std::string));
  if (path.empty()) return std::string(name);
  return fmt::format("{}.{}", path, name);
}

void Collector::visit(Id id, const std::string& path, size_t depth) {
  if (depth > kMaxDepth)
    throw fail(path, fmt::format("more than {} containers inside of each other", kMaxDepth));
  budget_.charge(sizeof(Id));  // what is shared is visited as often as it is reached
  switch (pickle_.kind(id)) {
    case Kind::List:
    case Kind::Tuple:
      return visit_all(pickle_.items(id), path, depth);
    case Kind::Set:
      return;  // of plain values: no order, no names
    case Kind::Dict: {
      const std::vector<Id>& items = pickle_.items(id);
      for (size_t i = 0; i + 1 < items.size(); i += 2)
        visit(items[i + 1], name_of(items[i], path), depth + 1);
      return;
    }
    case Kind::Call: {
      const std::vector<Id>& call = pickle_.items(id);
      return visit_call(pickle_.text(call[0]), pickle_.items(call[1]), path, depth);
    }
    case Kind::Persistent:
      if (auto tensor = tensor_of(id, path)) return add(path, std::move(*tensor));
      storage(id, path);  // by itself it is checked, and no tensor
      return;
    case Kind::None:
      return leaf(path, std::monostate());
    case Kind::Bool:
      return leaf(path, pickle_.integer(id) != 0);
    case Kind::Int:
      return leaf(path, pickle_.integer(id));
    case Kind::Float:
      return leaf(path, pickle_.real(id));
    case Kind::Text:
      budget_.charge(pickle_.text(id).size());
      return leaf(path, std::string(pickle_.text(id)));
    case Kind::Big:
    case Kind::Global:  // a type such as torch.float32, or an integer that no one loads
      return;
  }
}

void Collector::visit_all(const std::vector<Id>& items, const std::string& path, size_t depth) {
  for (size_t i = 0; i < items.size(); ++i)
    visit(items[i], join(path, std::to_string(i)), depth + 1);
}

void Collector::leaf(const std::string& path, Value value) {
  budget_.charge(kEntryBytes);
  out_.other.insert_or_assign(path, std::move(value));
}

std::string Collector::latin1(std::string_view text, std::string_view path) {
  budget_.charge(text.size());
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    const auto lead = static_cast<unsigned char>(text[at]);
    if (lead < 0x80) {
      out += text[at];
    } else if ((lead == 0xc2 || lead == 0xc3) && at + 1 < text.size()) {
      out += static_cast<char>(lead << 6 | (static_cast<unsigned char>(text[++at]) & 0x3f));
    } else {
      throw fail(path, "its bytes are written in letters beyond 255");
    }
  }
  return out;
}

void Collector::add(const std::string& path, TorchTensor tensor) {
  budget_.charge(kEntryBytes + tensor.shape.size() * 2 * sizeof(int64_t));
  if (!out_.tensors.emplace(path, std::move(tensor)).second)
    throw fail(path, "its name stands for two tensors");
}

void Collector::visit_call(std::string_view name, const std::vector<Id>& arguments,
                           const std::string& path, size_t depth) {
  if (name == kTensorV2 || name == kTensorV3 || name == kTensor)
    return add(path, rebuilt(arguments, name == kTensorV3, path));
  if ((name == kParameter || name == kParameterState) && !arguments.empty())
    return visit(arguments[0], path, depth + 1);
  if (is_among(kOtherTensors, name) || name.starts_with("torchao")) {
    const bool tells = name == kQuantised && arguments.size() > 2;
    return add(path,
               refused(dotted(name),
                       tells ? sizes(arguments[2], "shape", path) : std::vector<int64_t>(), path));
  }
  if (is_among(kSettings, name)) {
    budget_.charge(kEntryBytes);
    out_.left_out.push_back(fmt::format("{} ({})", path, dotted(name)));
    return;
  }
  if (name == kDefaultDict) return;  // an empty one: see Pickle
  if (is_among(kTheirWords, name)) return;
  if (name == kOrderedDict) {  // made of a list of pairs, as Python 2 wrote it
    if (arguments.empty()) return;
    if (pickle_.kind(arguments[0]) != Kind::List) throw fail(path, "an OrderedDict of no list");
    for (const Id pair : pickle_.items(arguments[0])) {
      const Kind kind = pickle_.kind(pair);
      if ((kind != Kind::List && kind != Kind::Tuple) || pickle_.items(pair).size() != 2)
        throw fail(path, "an OrderedDict of no pairs");
      visit(pickle_.items(pair)[1], name_of(pickle_.items(pair)[0], path), depth + 1);
    }
    return;
  }
  if ((name == kSize || name == kCounter) && arguments.size() == 1)
    return visit(arguments[0], path, depth + 1);
  if (is_among(kSets, name)) return;  // as Kind::Set
  if (name == kEncode && arguments.size() == 2 && pickle_.kind(arguments[0]) == Kind::Text)
    return leaf(path, latin1(pickle_.text(arguments[0]), path));
  if (is_among(kNoBytes, name) && arguments.empty()) return leaf(path, std::string());
  if (name == kDevice) return;
  if (is_among(kByteArrays, name) && arguments.size() == 2 &&
      pickle_.kind(arguments[0]) == Kind::Text)
    return leaf(path, latin1(pickle_.text(arguments[0]), path));
  if (is_among(kByteArrays, name) && arguments.size() < 2) {
    if (arguments.empty()) return leaf(path, std::string());
    return visit(arguments[0], path, depth + 1);
  }
  if (name == kOfType && arguments.size() > 2 && depth < kMaxDepth &&
      pickle_.kind(arguments[0]) == Kind::Global && pickle_.kind(arguments[2]) == Kind::Tuple)
    return visit_call(pickle_.text(arguments[0]), pickle_.items(arguments[2]), path, depth + 1);
  throw fail(path, fmt::format("{} is called, which makes no tensor", in_quotes(name)));
}

std::vector<int64_t> Collector::sizes(Id id, const char* what, std::string_view path) {
  Id list = id;
  if (pickle_.kind(list) == Kind::Call && pickle_.is_global(pickle_.items(list)[0], kSize)) {
    const std::vector<Id>& arguments = pickle_.items(pickle_.items(list)[1]);
    if (arguments.size() == 1) list = arguments[0];
  }
  if (pickle_.kind(list) != Kind::Tuple && pickle_.kind(list) != Kind::List)
    throw fail(path, fmt::format("its {} is no tuple", what));
  std::vector<int64_t> out;
  if (pickle_.items(list).size() > kMaxDepth)
    throw fail(path, fmt::format("it has more than {} dims", kMaxDepth));
  for (const Id item : pickle_.items(list)) {
    if (pickle_.kind(item) != Kind::Int || pickle_.integer(item) < 0)
      throw fail(path, fmt::format("its {} holds what is no size", what));
    out.push_back(pickle_.integer(item));
  }
  return out;
}

bool Collector::is_negative(Id metadata, std::string_view path) const {
  if (pickle_.kind(metadata) == Kind::None) return false;
  if (pickle_.kind(metadata) != Kind::Dict) throw fail(path, "what describes it is no dict");
  bool negative = false;
  const std::vector<Id>& items = pickle_.items(metadata);
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    const bool known = pickle_.kind(items[i]) == Kind::Text &&
                       (pickle_.text(items[i]) == "neg" || pickle_.text(items[i]) == "conj");
    if (!known || pickle_.kind(items[i + 1]) != Kind::Bool)
      throw fail(path, "what describes it has an entry that is not known");
    negative |= pickle_.text(items[i]) == "neg" && pickle_.integer(items[i + 1]) != 0;
  }
  return negative;
}

TorchTensor Collector::rebuilt(const std::vector<Id>& arguments, bool typed,
                               std::string_view path) {
  if (arguments.size() < 4 || pickle_.kind(arguments[0]) != Kind::Persistent ||
      pickle_.kind(arguments[1]) != Kind::Int || pickle_.integer(arguments[1]) < 0) {
    throw fail(path, "it is not made of a storage, an offset, a shape and strides");
  }
  Stored from = storage(arguments[0], path);
  if (typed) {
    from.dtype.reset();
    if (arguments.size() > 6 && pickle_.kind(arguments[6]) == Kind::Global) {
      from.dtype = type_named(kTorchTypes, pickle_.text(arguments[6]));
      if (!from.dtype && is_other_type(pickle_.text(arguments[6])))
        from.other_type = pickle_.text(arguments[6]);
    }
  }
  if (!from.dtype && !from.other_type.empty())
    return refused(fmt::format("type {}", dotted(from.other_type)),
                   sizes(arguments[2], "shape", path), path);
  if (!from.dtype) throw fail(path, "nothing says its type");
  TorchTensor out =
      view(from, static_cast<uint64_t>(pickle_.integer(arguments[1])),
           sizes(arguments[2], "shape", path), sizes(arguments[3], "strides", path), path);
  // (storage, offset, shape, strides, requires_grad, hooks, [type,] metadata)
  const size_t metadata = typed ? 7 : 6;
  out.negative = arguments.size() > metadata && is_negative(arguments[metadata], path);
  if (out.negative && !is_float(out.dtype))
    throw fail(path, fmt::format("it is the negative of {} elements", name(out.dtype)));
  return out;
}

TorchTensor Collector::refused(std::string_view kind, std::vector<int64_t> shape,
                               std::string_view path) const {
  if (!checked_bytes(shape, 1)) throw fail(path, "its shape is too large for any memory");
  TorchTensor out;
  out.shape = std::move(shape);
  out.refusal = fmt::format("tensor {} of {} is of {}, which is not supported", in_quotes(path),
                            label_, kind);
  budget_.charge(out.refusal.size());
  return out;
}

TorchTensor Collector::view(const Stored& from, uint64_t begin, std::vector<int64_t> shape,
                            std::vector<int64_t> strides, std::string_view path) const {
  if (shape.size() != strides.size())
    throw fail(path, fmt::format("it has {} sizes and {} strides", shape.size(), strides.size()));
  const size_t size = itemsize(*from.dtype);
  const auto too_large = [&] { return fail(path, "its shape is too large for any memory"); };
  if (!checked_bytes(shape, size)) throw too_large();
  uint64_t last = begin;  // the farthest element that the view reaches
  bool empty = false;
  for (size_t i = 0; i < shape.size(); ++i) {
    empty |= shape[i] == 0;
    if (shape[i] == 0) continue;
    const auto reach =
        checked_mul(static_cast<uint64_t>(shape[i] - 1), static_cast<uint64_t>(strides[i]));
    const auto sum = reach ? checked_add(last, *reach) : std::nullopt;
    if (!sum) throw too_large();
    last = *sum;
  }
  const uint64_t held = from.elements.size / size;
  if (!empty && last >= held) {
    throw fail(path,
               fmt::format("its view needs {} elements of {}, its storage at byte {} holds {}",
                           last + 1, name(*from.dtype), from.elements.offset, held));
  }
  TorchTensor out;
  out.dtype = *from.dtype;
  out.shape = std::move(shape);
  out.strides = std::move(strides);
  out.elements = empty ? 0 : last - begin + 1;
  out.offset = empty ? from.elements.offset : from.elements.offset + begin * size;
  out.bytes = from.elements.bytes;
  out.packed = from.elements.packed;
  return out;
}

StorageId storage_id(const Pickle& pickle, Id persistent, std::string_view label) {
  const Id tuple = pickle.items(persistent)[0];
  const auto fail = [&](std::string_view why) {
    return FormatError(label, fmt::format("a persistent id {}", why));
  };
  if (pickle.kind(tuple) != Kind::Tuple) throw fail("is no tuple");
  const std::vector<Id>& items = pickle.items(tuple);
  if (items.size() < 5 || pickle.kind(items[0]) != Kind::Text ||
      pickle.text(items[0]) != "storage" || pickle.kind(items[1]) != Kind::Global ||
      pickle.kind(items[2]) != Kind::Text || pickle.kind(items[4]) != Kind::Int ||
      pickle.integer(items[4]) < 0) {
    throw fail("is not (storage, type, key, location, elements)");
  }
  if (items.size() > 5 && pickle.kind(items[5]) != Kind::None)
    throw fail(fmt::format("names a view of storage {}, which is not supported",
                           in_quotes(pickle.text(items[2]))));
  StorageId out{type_of_storage(pickle.text(items[1])), pickle.text(items[2]),
                static_cast<uint64_t>(pickle.integer(items[4]))};
  if (const OtherType* other = other_storage(pickle.text(items[1]))) out.other_type = other->name;
  if (!out.dtype && out.other_type.empty() && pickle.text(items[1]) != kUntyped)
    throw fail(
        fmt::format("has type {}, which is none of a storage", in_quotes(pickle.text(items[1]))));
  return out;
}

uint64_t bytes_of(const StorageId& id, std::string_view label) {
  const auto bytes = checked_mul(id.elements, width_of(id));
  if (!bytes)
    throw FormatError(label,
                      fmt::format("storage {} is too large for any memory", in_quotes(id.key)));
  return *bytes;
}

}  // namespace tinyshard::io
