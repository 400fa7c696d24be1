// The PTX of row_attention.h's kernel.
//
// A warp takes pieces of 16 keys, and products of 16 x 8 x 16 do both sums. The rows of q are the
// first operand, filled up with zeros. Which of the 16 places of a sum is which element of a key
// does not matter as long as both operands agree, so that each thread loads 16 bytes of a row and
// needs nothing of its neighbours. With g = lane / 4 and t = lane % 4:
//
//   scores    thread loads keys g and 8 + g, elements 8 t .. 8 t + 7 of each 32;
//             gets those of row g by keys 2 t, 2 t + 1, 8 + 2 t, 9 + 2 t
//   weights   are where the second product wants them, once they are rounded to 16 bits
//   values    thread loads keys 2 t, 2 t + 1, 8 + 2 t, 9 + 2 t, elements 8 g .. 8 g + 7 of each 64;
//             product j is of element j of these: gets row g, elements 16 t + j and 16 t + 8 + j
//
// Scores are scaled by log2(e), too, for powers of two. The largest score so far begins with the
// least finite number, so that no difference is NaN where a warp has no keys. The code is short
// rather than unrolled: it comes from memory at each launch.
#include <bit>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numbers>
#include <string_view>

#include <fmt/format.h>

#include "core/dtype/dtype.h"
#include "devices/cuda/row_attention.h"

namespace tinyshard::cuda {
namespace {

constexpr int kPiece = 16;         // keys of a product
constexpr int kSlots = 8;          // rows of q that a product has room for
constexpr int kWarps = 8;          // of a block
constexpr int kMostOfCluster = 8;  // blocks: what every GPU with clusters can launch
constexpr int kBlockThreads = 32 * kWarps;

std::string number(float x) { return fmt::format("0f{:08X}", std::bit_cast<uint32_t>(x)); }

class Writer {
 public:
  Writer(const RowAttentionShape& shape, const Target& target)
      : s_(shape), blocks_(kMostOfCluster) {
    while (blocks_ > 1 && (s_.groups * blocks_ > target.multiprocessors ||
                           s_.columns <= int64_t{blocks_ / 2} * kPiece))
      blocks_ /= 2;
  }

  ObjectCode code() {
    entry();
    load_query();
    attend();
    join_warps();
    join_blocks();
    line("ret;\n}}");
    ObjectCode code;
    code.entry = "row_attention";
    code.bytes.assign(text_.c_str(), text_.c_str() + text_.size() + 1);
    code.work_items = s_.groups * blocks_;
    code.block = kBlockThreads;
    code.waits_itself = true;
    return code;
  }

 private:
  int64_t results() const { return s_.rows * s_.values; }  // of a group
  int64_t share() const { return results() / blocks_; }    // of them, of a block
  int64_t key_loads() const { return s_.width / 32; }      // of 16 bytes, by a thread for one key
  int64_t value_loads() const { return s_.values / 64; }   // likewise
  int64_t sums() const { return s_.values / 4; }           // of a thread
  const char* type() const { return s_.dtype == DType::BF16 ? "bf16" : "f16"; }

  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    text_ += "  ";
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }

  // Four words, `to` from `first` on, from [%from + bytes].
  void load(char to, int64_t first, int64_t bytes, const char* condition = "") {
    line("{0}ld.global.nc.v4.b32 {{%{1}{2}, %{1}{3}, %{1}{4}, %{1}{5}}}, [%from + {6}];", condition,
         to, first, first + 1, first + 2, first + 3, bytes);
  }

  // Adds to two sums, or begins them, the products of words a and a + 1 of `left` with words of the
  // other operand. Rows 8 to 15 of the product are zeros, and their sums nobody's.
  void multiply(char sums, int64_t first, char left, int64_t a, std::string_view b0,
                std::string_view b1, bool begins = false) {
    const std::string to = fmt::format("%{0}{1}, %{0}{2}", sums, first, first + 1);
    line(
        "mma.sync.aligned.m16n8k16.row.col.f32.{0}.{0}.f32 {{{1}, %none0, %none1}}, "
        "{{%{2}{3}, %zero, %{2}{4}, %zero}}, {{{5}, {6}}}, {{{7}, %null, %null}};",
        type(), to, left, a, a + 1, b0, b1, begins ? "%null, %null" : to);
  }

  // %x and the same of the threads with another t.
  void over_row(const char* op, const char* x) {
    for (int distance : {1, 2}) {
      line("shfl.sync.bfly.b32 %y, {}, {}, 31, 0xffffffff;", x, distance);
      line("{0} {1}, {1}, %y;", op, x);
    }
  }

  void entry() {
    fmt::format_to(std::back_inserter(text_),
                   R"(.version 7.8
.target sm_90
.address_size 64
.visible .entry row_attention(.param .u64 query, .param .u64 keys, .param .u64 values, .param .u64 position, .param .u64 result)
.explicitcluster
.reqnctapercluster {}, 1, 1
.maxntid {}, 1, 1
.minnctapersm 1
{{
)",
                   blocks_, kBlockThreads);
    line(".shared .align 16 .b8 parts[{}];", 4 * kWarps * results());
    line(".shared .align 16 .b8 all_parts[{}];", 4 * results());
    for (const char* name : {"largest", "sums"}) {
      line(".shared .align 16 .b8 {}[{}];", name, 4 * kWarps * kSlots);
      line(".shared .align 16 .b8 all_{}[{}];", name, 4 * blocks_ * kSlots);
    }
    line(".reg .pred %p, %has_row, %first;");
    line(".reg .b16 %h;");
    line(
        ".reg .b32 %thread, %lane, %warp, %g, %t, %rank, %group, %count, %last, %at, %zero, %i, "
        "%j, %key, %row, %owner;");
    line(".reg .b32 %q<{}>, %k<{}>, %v<{}>, %w<2>, %b<2>;", 4 * key_loads(), 8 * key_loads(),
         16 * value_loads());
    line(".reg .f32 %s<4>, %a<{}>, %null, %none0, %none1, %m, %l, %factor, %x, %y;", sums());
    line(".reg .b64 %query, %keys, %values, %result, %position, %from, %n;");
    for (const char* name : {"query", "keys", "values", "position", "result"}) {
      line("ld.param.u64 %{}, [{}];", name, name);
      line("cvta.to.global.u64 %{}, %{};", name, name);
    }
    line("mov.u32 %thread, %tid.x;");
    line("and.b32 %lane, %thread, 31;");
    line("shr.u32 %warp, %thread, 5;");
    line("shr.u32 %g, %lane, 2;");
    line("and.b32 %t, %lane, 3;");
    line("mov.u32 %i, %ctaid.x;");
    line("div.u32 %group, %i, {};", blocks_);
    line("rem.u32 %rank, %i, {};", blocks_);
    to_group("%query", s_.q);
    to_group("%keys", s_.k);
    to_group("%values", s_.v);
    line("mov.b32 %zero, 0;");
    line("mov.f32 %null, {};", number(0));
    line("setp.lt.u32 %has_row, %g, {};", s_.rows);
    if (blocks_ > 1) line("barrier.cluster.arrive.aligned;");
    line("griddepcontrol.wait;");
    line("griddepcontrol.launch_dependents;");
    load_position();
  }

  // %count of the keys, and the number of the last one.
  void load_position() {
    if (s_.position_dtype == DType::I64) {
      line("ld.global.nc.s64 %n, [%position + {}];", 8 * s_.position_offset);
    } else {
      line("ld.global.nc.s32 %i, [%position + {}];", 4 * s_.position_offset);
      line("cvt.s64.s32 %n, %i;");
    }
    // A position outside of the columns means none or all of them.
    line("max.s64 %n, %n, -1;");
    line("min.s64 %n, %n, {};", s_.columns - 1);
    line("cvt.u32.u64 %last, %n;");
    line("add.s32 %count, %last, 1;");
  }

  // The group's part of an operand.
  void to_group(const char* operand, const RowAttentionView& view) {
    line("cvt.u64.u32 %n, %group;");
    line("mad.lo.s64 {0}, %n, {1}, {0};", operand, 2 * view.group);
  }

  void load_query() {
    line("mul.wide.u32 %from, %g, {};", 2 * s_.q.row);
    line("add.s64 %from, %from, %query;");
    line("mad.wide.u32 %from, %t, 16, %from;");
    for (int64_t i = 0; i < 4 * key_loads(); ++i) line("mov.b32 %q{}, 0;", i);
    for (int64_t j = 0; j < key_loads(); ++j)
      load('q', 4 * j, 2 * s_.q.offset + 64 * j, "@%has_row ");
    line("mad.wide.u32 %keys, %t, 16, %keys;");
    line("mad.wide.u32 %values, %g, 16, %values;");
    for (int64_t i = 0; i < sums(); ++i) line("mov.f32 %a{}, {};", i, number(0));
    line("mov.f32 %m, {};", number(std::numeric_limits<float>::lowest()));
    line("mov.f32 %l, {};", number(0));
  }

  // %from: the row of this key, or the last one that counts: what is behind it is not read.
  void row_address(const char* operand, int64_t row) {
    line("min.u32 %key, %key, %last;");
    line("mad.wide.u32 %from, %key, {}, {};", 2 * row, operand);
  }

  void load_keys() {
    for (int half = 0; half < 2; ++half) {
      line("add.u32 %key, %at, %g;");
      line("add.u32 %key, %key, {};", 8 * half);
      row_address("%keys", s_.k.row);
      for (int64_t j = 0; j < key_loads(); ++j)
        load('k', 4 * (half * key_loads() + j), 2 * s_.k.offset + 64 * j);
    }
  }
  // Key n of the four of this thread that its scores and values are of.
  void own_key(int n) {
    line("mad.lo.u32 %key, %t, 2, %at;");
    line("add.u32 %key, %key, {};", 8 * (n / 2) + n % 2);
  }
  void load_values() {
    for (int n = 0; n < 4; ++n) {
      own_key(n);
      row_address("%values", s_.v.row);
      for (int64_t c = 0; c < value_loads(); ++c)
        load('v', 4 * (n * value_loads() + c), 2 * s_.v.offset + 128 * c);
    }
  }

  void scores() {
    for (int half = 0; half < 2; ++half) {
      for (int64_t q = 0; q < 4 * key_loads(); q += 2) {
        const int64_t k = 4 * half * key_loads() + q;
        multiply('s', 2 * half, 'q', q, fmt::format("%k{}", k), fmt::format("%k{}", k + 1), q == 0);
      }
    }
    for (int n = 0; n < 4; ++n) {
      line("mul.f32 %s{0}, %s{0}, {1};", n, number(s_.scale * std::numbers::log2e_v<float>));
      own_key(n);
      line("setp.lt.u32 %p, %key, %count;");
      line("selp.f32 %s{0}, %s{0}, {1}, %p;", n, number(-std::numeric_limits<float>::infinity()));
    }
  }

  void add_values() {
    for (int64_t c = 0; c < value_loads(); ++c) {
      for (int j = 0; j < 8; ++j) {
        auto word = [&](int n) { return 4 * (n * value_loads() + c) + j / 2; };
        for (int half = 0; half < 2; ++half)
          line("prmt.b32 %b{}, %v{}, %v{}, {};", half, word(2 * half), word(2 * half + 1),
               j % 2 == 0 ? "0x5410" : "0x7632");
        multiply('a', 2 * (8 * c + j), 'w', 0, "%b0", "%b1");
      }
    }
  }

  // The warps of the cluster take pieces in turn; %at: the first key of one.
  void attend() {
    line("mad.lo.u32 %i, %warp, {}, %rank;", blocks_);
    line("mul.lo.u32 %at, %i, {};", kPiece);
    text_ += "PIECE:\n";
    line("setp.ge.u32 %p, %at, %count;");
    line("@%p bra PIECE_END;");
    load_keys();
    load_values();
    scores();
    line("mov.f32 %x, %s0;");
    for (int n = 1; n < 4; ++n) line("max.f32 %x, %x, %s{};", n);
    over_row("max.f32", "%x");
    line("mov.f32 %y, %m;");
    line("max.f32 %m, %m, %x;");
    factor();
    line("mul.f32 %l, %l, %factor;");
    for (int n = 0; n < 4; ++n) {
      line("sub.f32 %s{0}, %s{0}, %m;", n);
      line("ex2.approx.ftz.f32 %s{0}, %s{0};", n);
      line("add.f32 %l, %l, %s{};", n);
    }
    for (int i = 0; i < 2; ++i)
      line("cvt.rn.{}x2.f32 %w{}, %s{}, %s{};", type(), i, 2 * i + 1, 2 * i);
    for (int64_t i = 0; i < sums(); ++i) line("mul.f32 %a{0}, %a{0}, %factor;", i);
    add_values();
    line("add.u32 %at, %at, {};", kPiece * kWarps * blocks_);
    line("bra PIECE;");
    text_ += "PIECE_END:\n";
  }

  // %j: the address in shared memory of word %i of `name`.
  void shared_word(const char* name) {
    line("mov.u32 %j, {};", name);
    line("mad.lo.u32 %j, %i, 4, %j;");
  }

  // %factor: that by which what has the largest score %y is brought to that of %m.
  void factor() {
    line("sub.f32 %factor, %y, %m;");
    line("ex2.approx.ftz.f32 %factor, %factor;");
  }

  // %m: the largest of so many words from `name`, this far apart, in front of which %i lie.
  void largest_of(const char* name, int count, int64_t apart) {
    shared_word(name);
    line("ld.shared.f32 %m, [%j];");
    for (int n = 1; n < count; ++n) {
      line("ld.shared.f32 %y, [%j + {}];", 4 * apart * n);
      line("max.f32 %m, %m, %y;");
    }
  }

  // Calls `body` for %at = thread, thread + threads .. below `count`.
  template <class Body>
  void share_out(const char* label, int64_t count, const Body& body) {
    line("mov.u32 %at, %thread;");
    line("setp.ge.u32 %p, %at, {};", count);
    line("@%p bra {}_END;", label);
    text_ += fmt::format("{}:\n", label);
    body();
    if (count > kBlockThreads) {
      line("add.u32 %at, %at, {};", kBlockThreads);
      line("setp.lt.u32 %p, %at, {};", count);
      line("@%p bra {};", label);
    }
    text_ += fmt::format("{}_END:\n", label);
  }

  // Stores x in word %i of `name` in block %owner of the cluster.
  void give(const char* name, const char* x) {
    shared_word(name);
    if (blocks_ == 1) {
      line("st.shared.f32 [%j], {};", x);
      return;
    }
    line("mapa.shared::cluster.u32 %j, %j, %owner;");
    line("st.shared::cluster.f32 [%j], {};", x);
  }

  // The warps have stored their sums side by side. Each thread adds up those of one result and
  // gives the total to the block whose share of the results it belongs to.
  void join_warps() {
    over_row("add.f32", "%l");
    line("setp.eq.u32 %first, %t, 0;");
    line("mad.lo.u32 %i, %warp, {}, %g;", kSlots);
    shared_word("largest");
    line("@%first st.shared.f32 [%j], %m;");
    shared_word("sums");
    line("@%first st.shared.f32 [%j], %l;");
    line("mad.lo.u32 %i, %warp, {}, %g;", s_.rows);
    line("mul.lo.u32 %i, %i, {};", s_.values);
    line("mad.lo.u32 %i, %t, 16, %i;");
    shared_word("parts");
    for (int64_t c = 0; c < value_loads(); ++c) {
      for (int i = 0; i < 16; i += 4) {
        // Products 0 to 7 have elements 0 to 7 and 8 to 15 of the thread's.
        auto sum = [&](int at) { return 2 * (8 * c + at % 8) + at / 8; };
        line("@%has_row st.shared.v4.f32 [%j + {}], {{%a{}, %a{}, %a{}, %a{}}};", 4 * (64 * c + i),
             sum(i), sum(i + 1), sum(i + 2), sum(i + 3));
      }
    }
    line("bar.sync 0;");
    if (blocks_ > 1) line("barrier.cluster.wait.aligned;");  // all blocks have begun
    share_out("PARTS", results(), [&] {
      line("div.u32 %row, %at, {};", s_.values);
      add_up("%x", "parts", "%at", results());
      line("div.u32 %owner, %at, {};", share());
      line("rem.u32 %i, %at, {};", share());
      line("mad.lo.u32 %i, %rank, {}, %i;", share());
      give("all_parts", "%x");
    });
    share_out("SUMS", kSlots, [&] {
      line("mov.u32 %row, %at;");
      add_up("%l", "sums", "%at", kSlots);
      line("mad.lo.u32 %key, %rank, {}, %at;", kSlots);
      for (int b = 0; b < blocks_; ++b) {
        line("mov.u32 %owner, {};", b);
        line("mov.u32 %i, %key;");
        give("all_largest", "%m");
        give("all_sums", "%l");
      }
    });
  }

  // `to`: the sum over the warps of words of `name`, from `first` on and so far apart, which belong
  // to row %row; %m: the largest score of that row.
  void add_up(const char* to, const char* name, const char* first, int64_t apart) {
    line("mov.u32 %i, %row;");
    largest_of("largest", kWarps, kSlots);
    line("mov.u32 %key, %j;");
    line("mov.u32 %i, {};", first);
    shared_word(name);
    line("mov.f32 {}, {};", to, number(0));
    for (int w = 0; w < kWarps; ++w) {
      line("ld.shared.f32 %y, [%key + {}];", 4 * kSlots * w);
      factor();
      line("ld.shared.f32 %y, [%j + {}];", 4 * apart * w);
      line("fma.rn.f32 {0}, %y, %factor, {0};", to);
    }
  }

  // Each block has all of its share of the results in its own memory: none waits for others before
  // it ends.
  void join_blocks() {
    if (blocks_ > 1) {
      line("barrier.cluster.arrive;");
      line("barrier.cluster.wait;");
    } else {
      line("bar.sync 0;");
    }
    share_out("RESULTS", share(), [&] {
      line("mad.lo.u32 %key, %rank, {}, %at;", share());
      line("div.u32 %row, %key, {};", s_.values);
      line("mov.u32 %i, %row;");
      largest_of("all_largest", blocks_, kSlots);
      line("mov.f32 %l, {};", number(0));
      line("mov.f32 %x, {};", number(0));
      for (int b = 0; b < blocks_; ++b) {
        auto load = [&](const char* name, int64_t word) {
          shared_word(name);
          line("ld.shared.f32 %y, [%j + {}];", 4 * word);
        };
        line("mov.u32 %i, %row;");
        load("all_largest", kSlots * b);
        factor();
        load("all_sums", kSlots * b);
        line("fma.rn.f32 %l, %y, %factor, %l;");
        line("mov.u32 %i, %at;");
        load("all_parts", share() * b);
        line("fma.rn.f32 %x, %y, %factor, %x;");
      }
      line("div.rn.f32 %x, %x, %l;");
      line("setp.eq.s32 %p, %count, 0;");  // of no keys: zeros
      line("selp.f32 %x, {}, %x, %p;", number(0));
      line("cvt.rn.{}.f32 %h, %x;", type());
      line("mad.lo.u32 %i, %group, {}, %key;", results());
      line("mad.wide.u32 %from, %i, 2, %result;");
      line("st.global.b16 [%from], %h;");
    });
  }

  const RowAttentionShape& s_;
  int blocks_;  // of a cluster
  std::string text_;
};

}  // namespace

ObjectCode row_attention_code(const RowAttentionShape& shape, const Target& target) {
  return Writer(shape, target).code();
}

}  // namespace tinyshard::cuda
