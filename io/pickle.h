// A reader of Python pickles that runs nothing. It knows the opcodes that containers, numbers,
// texts and references need; a class or function is a name and no more, and what is called stays an
// unevaluated Call, for the caller to look at. The caller says which names may appear at all.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/budget.h"
#include "io/byte_reader.h"

namespace tinyshard::io {

class Pickle {
 public:
  using Id = uint32_t;
  enum class Kind : uint8_t {
    None,
    Bool,
    Int,  // of 64 bits
    Big,  // an integer of more bits: only that it is one
    Float,
    Text,        // str or bytes
    List,        // of items
    Tuple,       // of items
    Dict,        // items are key, value, key, value...
    Set,         // of items
    Global,      // text is "module name"
    Call,        // items are the callable and its arguments, a tuple
    Persistent,  // one item: what names an object outside of the pickle
  };

  // Reads one pickle; the reader stands behind it afterwards. `allowed` is asked for each global,
  // "module name", before anything is made of it. FormatError for the rest: memory is in proportion
  // to `budget`, and so is time.
  Pickle(ByteReader& in, Budget& budget, const std::function<bool(std::string_view)>& allowed);

  Id root() const { return root_; }
  Kind kind(Id id) const { return nodes_[id].kind; }
  int64_t integer(Id id) const { return nodes_[id].integer; }  // of a Bool or an Int
  double real(Id id) const { return nodes_[id].real; }
  std::string_view text(Id id) const { return texts_[nodes_[id].index]; }
  const std::vector<Id>& items(Id id) const { return containers_[nodes_[id].index]; }
  bool is_global(Id id, std::string_view name) const {
    return kind(id) == Kind::Global && text(id) == name;
  }

 private:
  friend class PickleMachine;
  struct Node {
    Kind kind = Kind::None;
    union {
      int64_t integer = 0;
      double real;
      uint32_t index;  // in texts_ or containers_
    };
  };
  std::deque<Node> nodes_;
  std::deque<std::string_view> texts_;  // into the file, or into owned_
  std::deque<std::string> owned_;
  std::deque<std::vector<Id>> containers_;
  Id root_ = 0;
};

}  // namespace tinyshard::io
