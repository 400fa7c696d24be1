// The stack machine of pickles, protocols 0 to 5 as far as data need them. In place of objects it
// makes nodes:
//
//   c torch._utils\n_rebuild_tensor_v2\n  ( ... t R      Call(Global, Tuple(...))
//
// Opcodes that could run code of a class (INST, OBJ, NEWOBJ, EXT1...) are refused, as is each name
// that the caller does not know. BUILD sets attributes of an object; these are dropped.
#include "io/pickle.h"

#include <charconv>
#include <cstdlib>
#include <unordered_map>

#include "io/checked.h"

namespace tinyshard::io {

class PickleMachine {
 public:
  using Id = Pickle::Id;
  using Kind = Pickle::Kind;

  PickleMachine(Pickle& out, ByteReader& in, Budget& budget,
                const std::function<bool(std::string_view)>& allowed)
      : out_(out), in_(in), budget_(budget), allowed_(allowed) {}

  Id run() {
    while (true) {
      at_ = in_.offset();
      const auto op = static_cast<char>(in_.number<uint8_t>("a pickle's next opcode"));
      if (op == '.') break;
      step(op);
    }
    if (!marks_.empty() || stack_.size() != 1)
      throw fail("the pickle ends with an unfinished object");
    return stack_[0];
  }

 private:
  FormatError fail(std::string_view why) const { return in_.fail_at(at_, why); }

  // --- making nodes ---

  Id node(Kind kind) {
    budget_.charge(kNodeBytes);
    out_.nodes_.emplace_back().kind = kind;
    return static_cast<Id>(out_.nodes_.size() - 1);
  }
  Id integer(int64_t value, Kind kind = Kind::Int) {
    const Id id = node(kind);
    out_.nodes_[id].integer = value;
    return id;
  }
  Id real(double value) {
    const Id id = node(Kind::Float);
    out_.nodes_[id].real = value;
    return id;
  }
  Id text(std::string_view value, Kind kind = Kind::Text) {
    budget_.charge(sizeof(std::string_view));
    const Id id = node(kind);
    out_.nodes_[id].index = static_cast<uint32_t>(out_.texts_.size());
    out_.texts_.push_back(value);
    return id;
  }
  Id container(Kind kind, std::span<const Id> items) {
    budget_.charge(sizeof(std::vector<Id>) + kItemBytes * items.size());
    const Id id = node(kind);
    out_.nodes_[id].index = static_cast<uint32_t>(out_.containers_.size());
    out_.containers_.emplace_back(items.begin(), items.end());
    return id;
  }
  Id global(std::string_view module, std::string_view name) {
    budget_.charge(sizeof(std::string) + module.size() + name.size() + 1);
    const std::string& whole = out_.owned_.emplace_back(fmt::format("{} {}", module, name));
    if (!allowed_(whole)) {
      const bool torch = module == "torch" || module.starts_with("torch.");
      throw fail(fmt::format("the pickle asks for {}, which {}: refused",
                             in_quotes(fmt::format("{}.{}", module, name)),
                             torch ? "is not supported" : "no state dict needs"));
    }
    return text(whole, Kind::Global);
  }

  // --- the stack ---

  void push(Id id) {
    if (stack_.size() == stack_.capacity()) budget_.charge(sizeof(Id) * (stack_.size() + 16));
    stack_.push_back(id);
  }
  // Takes the last item of the stack; those below the last mark are out of reach.
  Id pop() {
    if (stack_.size() <= floor()) throw fail("an opcode takes more than is on the pickle's stack");
    const Id id = stack_.back();
    stack_.pop_back();
    return id;
  }
  Id top() const {
    if (stack_.size() <= floor()) throw fail("an opcode takes more than is on the pickle's stack");
    return stack_.back();
  }
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  std::span<const Id> above_mark() {
    if (marks_.empty()) throw fail("an opcode needs a mark, there is none");
    const size_t begin = marks_.back();
    marks_.pop_back();
    above_ = std::span<const Id>(stack_).subspan(begin);
    return above_;
  }
  void drop_above() { stack_.resize(stack_.size() - above_.size()); }

  void extend(Id target, std::span<const Id> items, Kind kind) {
    if (out_.kind(target) == Kind::Call && kind == Kind::Dict) {
      target = dict_of(target);
    } else if (out_.kind(target) != kind) {
      throw fail("items are added to what takes none");
    }
    if (kind == Kind::Dict && items.size() % 2 != 0) throw fail("a key has no value");
    budget_.charge(kItemBytes * items.size());
    std::vector<Id>& list = out_.containers_[out_.nodes_[target].index];
    list.insert(list.end(), items.begin(), items.end());
  }
  // An OrderedDict is a Call of its class; items that are set in it make a dict of it. So it is of a
  // defaultdict, whose argument says what is in it when nothing is.
  Id dict_of(Id call) {
    const std::vector<Id>& items = out_.items(call);
    const bool has_default = out_.is_global(items[0], "collections defaultdict");
    if (!has_default && !out_.is_global(items[0], "collections OrderedDict"))
      throw fail("items are set in what takes none");
    const Id first = items[1];
    Id dict;
    if (!has_default && !out_.items(first).empty())
      throw fail("an OrderedDict is made of something");
    budget_.charge(sizeof(std::vector<Id>));
    // The node itself becomes the dict: the memo and others refer to it.
    out_.nodes_[call].kind = Kind::Dict;
    out_.nodes_[call].index = static_cast<uint32_t>(out_.containers_.size());
    out_.containers_.emplace_back();
    dict = call;
    return dict;
  }

  Id tuple(size_t count) {
    if (stack_.size() - floor() < count)
      throw fail("an opcode takes more than is on the pickle's stack");
    const Id id = container(Kind::Tuple, std::span<const Id>(stack_).last(count));
    stack_.resize(stack_.size() - count);
    return id;
  }

  void remember(uint32_t slot) {
    const Id id = top();
    if (memo_.insert_or_assign(slot, id).second) budget_.charge(kMemoBytes);
  }
  Id remembered(uint32_t slot) const {
    const auto found = memo_.find(slot);
    if (found == memo_.end()) throw fail(fmt::format("memo entry {} was never made", slot));
    return found->second;
  }
  template <class T>
  T of_text(std::string_view digits) const {
    T value{};
    const char *begin = digits.data(), *end = begin + digits.size();
    const auto [rest, error] = std::from_chars(begin, end, value);
    if (error != std::errc{} || rest != end)
      throw fail(fmt::format("{} is no number", in_quotes(digits)));
    return value;
  }
  // Two's complement, little-endian.
  Id long_of(std::span<const std::byte> bytes) {
    if (bytes.size() > 8) return node(Kind::Big);
    uint64_t value = 0;
    for (size_t i = 0; i < bytes.size(); ++i) value |= uint64_t(bytes[i]) << (8 * i);
    if (!bytes.empty() && bytes.size() < 8 && (bytes.back() & std::byte{0x80}) != std::byte{0})
      value |= ~uint64_t{0} << (8 * bytes.size());
    return integer(static_cast<int64_t>(value));
  }
  template <class Size>
  std::string_view sized_text() {
    const auto size = in_.number<Size>("the size of a text");
    return in_.text(size, "a text");
  }

  void call(Id callable, Id arguments) {
    if (out_.kind(callable) != Kind::Global || out_.kind(arguments) != Kind::Tuple)
      throw fail("what is called is no name with a tuple of arguments");
    const Id both[] = {callable, arguments};
    push(container(Kind::Call, both));
  }

  FormatError refused(char op) const {
    return fail(fmt::format("pickle opcode 0x{:02x}, which no state dict needs: refused",
                            static_cast<uint8_t>(op)));
  }

  void step(char op) {
    switch (op) {
      case '\x80': {  // PROTO
        const int version = in_.number<uint8_t>("a pickle's protocol");
        if (version > 5)
          throw fail(fmt::format("a pickle of protocol {}, the newest known is 5", version));
        return;
      }
      case '\x95':  // FRAME
        in_.number<uint64_t>("a frame's size");
        return;
      case '(':
        budget_.charge(2 * sizeof(size_t));
        marks_.push_back(stack_.size());
        return;
      case '0':  // POP
        if (stack_.size() == floor() && !marks_.empty()) {
          marks_.pop_back();
        } else {
          pop();
        }
        return;
      case '1':  // POP_MARK
        above_mark();
        return drop_above();
      case '2':
        return push(top());
      // constants and numbers
      case 'N':
        return push(node(Kind::None));
      case '\x88':
        return push(integer(1, Kind::Bool));
      case '\x89':
        return push(integer(0, Kind::Bool));
      case 'J':
        return push(integer(in_.number<int32_t>("an integer")));
      case 'K':
        return push(integer(in_.number<uint8_t>("an integer")));
      case 'M':
        return push(integer(in_.number<uint16_t>("an integer")));
      case 'I': {  // INT: decimal, or 00 and 01 for bools
        const std::string_view digits = in_.line("an integer");
        if (digits == "00" || digits == "01") return push(integer(digits[1] - '0', Kind::Bool));
        return push(integer(of_text<int64_t>(digits)));
      }
      case 'L': {
        std::string_view digits = in_.line("an integer");
        if (digits.ends_with('L')) digits.remove_suffix(1);
        return push(digits.size() > 18 ? node(Kind::Big) : integer(of_text<int64_t>(digits)));
      }
      case '\x8a':
        return push(long_of(in_.take(in_.number<uint8_t>("a size"), "an integer")));
      case '\x8b':
        return push(long_of(in_.take(in_.number<uint32_t>("a size"), "an integer")));
      case 'G': {  // big-endian
        uint64_t bits = __builtin_bswap64(in_.number<uint64_t>("a number"));
        return push(real(std::bit_cast<double>(bits)));
      }
      case 'F':
        return push(real(of_text<double>(in_.line("a number"))));
      // texts
      case 'X':
      case 'T':
      case 'B':
        return push(text(sized_text<uint32_t>()));
      case '\x8c':
      case 'U':
      case 'C':
        return push(text(sized_text<uint8_t>()));
      case '\x8d':
      case '\x8e':
      case '\x96':
        return push(text(sized_text<uint64_t>()));
      case 'V':
        return push(text(in_.line("a text")));
      case 'S': {
        std::string_view quoted = in_.line("a text");
        if (quoted.size() < 2 || quoted.front() != quoted.back() ||
            quoted.find('\\') != quoted.npos)
          throw fail("a text without quotes, or with escapes in them");
        return push(text(quoted.substr(1, quoted.size() - 2)));
      }
      // containers
      case ')':
        return push(container(Kind::Tuple, {}));
      case ']':
        return push(container(Kind::List, {}));
      case '}':
        return push(container(Kind::Dict, {}));
      case '\x8f':
        return push(container(Kind::Set, {}));
      case '\x85':
        return push(tuple(1));
      case '\x86':
        return push(tuple(2));
      case '\x87':
        return push(tuple(3));
      case 't':
      case 'l':
      case 'd': {
        const Kind kind = op == 't' ? Kind::Tuple : op == 'l' ? Kind::List : Kind::Dict;
        const auto items = above_mark();
        if (kind == Kind::Dict && items.size() % 2 != 0) throw fail("a key has no value");
        const Id id = container(kind, items);
        drop_above();
        return push(id);
      }
      case 'a': {
        const Id item = pop();
        return extend(top(), {&item, 1}, Kind::List);
      }
      case 's': {
        const Id value = pop(), key = pop();
        const Id both[] = {key, value};
        return extend(top(), both, Kind::Dict);
      }
      case 'e':
      case 'u':
      case '\x90': {
        const auto items = above_mark();
        if (stack_.size() - items.size() <= floor()) throw fail("items are added to nothing");
        extend(stack_[stack_.size() - items.size() - 1], items,
               op == 'e'   ? Kind::List
               : op == 'u' ? Kind::Dict
                           : Kind::Set);
        return drop_above();
      }
      // names and calls
      case 'c': {
        const std::string_view module = in_.line("a module's name");
        return push(global(module, in_.line("a name")));
      }
      case '\x93': {
        const Id name = pop(), module = pop();
        if (out_.kind(name) != Kind::Text || out_.kind(module) != Kind::Text)
          throw fail("a name that is no text");
        return push(global(out_.text(module), out_.text(name)));
      }
      case '\x81': {  // NEWOBJ: an object of a class, which no one makes here; tensors have none
        const Id arguments = pop(), callable = pop();
        if (out_.kind(callable) != Kind::Global || out_.text(callable).starts_with("torch."))
          throw refused(op);
        return call(callable, arguments);
      }
      case 'R': {
        const Id arguments = pop(), callable = pop();
        return call(callable, arguments);
      }
      case 'b':  // BUILD: attributes, which no state dict needs
        pop();
        top();
        return;
      case 'P':
      case 'Q': {
        const Id id = op == 'Q' ? pop() : text(in_.line("a persistent id"));
        return push(container(Kind::Persistent, {&id, 1}));
      }
      // the memo
      case 'q':
        return remember(in_.number<uint8_t>("a memo's entry"));
      case 'r':
        return remember(in_.number<uint32_t>("a memo's entry"));
      case 'p':
        return remember(of_text<uint32_t>(in_.line("a memo's entry")));
      case '\x94':
        return remember(static_cast<uint32_t>(memo_.size()));
      case 'h':
        return push(remembered(in_.number<uint8_t>("a memo's entry")));
      case 'j':
        return push(remembered(in_.number<uint32_t>("a memo's entry")));
      case 'g':
        return push(remembered(of_text<uint32_t>(in_.line("a memo's entry"))));
      default:
        throw refused(op);
    }
  }

  static constexpr uint64_t kNodeBytes = 16;
  static constexpr uint64_t kItemBytes = 3 * sizeof(Id);  // a vector that grows holds both at once
  static constexpr uint64_t kMemoBytes = 48;

  Pickle& out_;
  ByteReader& in_;
  Budget& budget_;
  const std::function<bool(std::string_view)>& allowed_;
  uint64_t at_ = 0;  // of the opcode, in the file
  std::vector<Id> stack_;
  std::vector<size_t> marks_;
  std::span<const Id> above_;
  std::unordered_map<uint32_t, Id> memo_;
};

Pickle::Pickle(ByteReader& in, Budget& budget,
               const std::function<bool(std::string_view)>& allowed) {
  root_ = PickleMachine(*this, in, budget, allowed).run();
}

}  // namespace tinyshard::io
