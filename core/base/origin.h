// Where in the user's program something comes from, and what it is for: "matmul, train.cpp:21",
// "gradient of h.0.attn.weight". Nodes of graphs carry the number of their origin, so that plans
// and errors can name the line. Recorded where nodes are made; a run or a replay makes none.
//
// Threads: everything here may be called from any thread.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace tinyshard {

using OriginId = uint32_t;  // 0: not known

struct Origin {
  std::string op;    // the public method: "matmul"
  std::string file;  // without its folders; empty: not known
  unsigned line = 0;
  std::string about;  // what it is for; empty: nothing beyond the method

  std::string source() const;  // "train.cpp:21"; empty: not known
};

// The origin with this number. It stays as it is for as long as the process lives.
const Origin& origin_of(OriginId id);
// The origin of a line: equal pointers and numbers give equal ids.
OriginId origin_at(const char* op, std::string_view file, unsigned line);
// The same line, with what this is for.
OriginId with_about(OriginId id, std::string_view about);

// The origin of what this thread makes now: that of the innermost scope, else the line of the
// public method that runs (call.h).
OriginId current_origin();

// Nodes that this thread makes while the scope lives get this origin; 0: none that is known.
class OriginScope {
 public:
  explicit OriginScope(OriginId origin);
  ~OriginScope();
  OriginScope(const OriginScope&) = delete;
  OriginScope& operator=(const OriginScope&) = delete;

 private:
  OriginId before_;
  bool scoped_before_;
};

}  // namespace tinyshard
