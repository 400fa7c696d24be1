// The PTX of a scatter.
#include <fmt/format.h>

#include "devices/cuda/scatter.h"

namespace tinyshard::cuda {
namespace {

constexpr int kThreads = 256;

// How an element is read into, added to and written from the register %v (64 or 32 bits wide).
struct Element {
  int bytes;  // of the accumulator
  const char* reg;
  std::string load, add, store;
};
Element element(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return {8, "f64", "ld.global.f64 %v, [%src];", "add.f64 %a, %a, %v;",
              "st.global.f64 [%out], %a;"};
    case DType::F32:
      return {4, "f32", "ld.global.f32 %v, [%src];", "add.f32 %a, %a, %v;",
              "st.global.f32 [%out], %a;"};
    case DType::F16:
      return {4, "f32", "ld.global.b16 %h, [%src]; cvt.f32.f16 %v, %h;", "add.f32 %a, %a, %v;",
              "cvt.rn.f16.f32 %h, %a; st.global.b16 [%out], %h;"};
    case DType::BF16:
      return {4, "f32", "ld.global.b16 %h, [%src]; mov.b32 %v, {%zero, %h};", "add.f32 %a, %a, %v;",
              "cvt.rn.bf16.f32 %h, %a; st.global.b16 [%out], %h;"};
    default: {
      int bits = int(itemsize(dtype)) * 8;
      if (bits == 64)
        return {8, "b64", "ld.global.b64 %v, [%src];", "add.s64 %a, %a, %v;",
                "st.global.b64 [%out], %a;"};
      return {4, "b32", fmt::format("ld.global.u{} %v, [%src];", bits), "add.s32 %a, %a, %v;",
              fmt::format("st.global.u{} [%out], %a;", bits)};
    }
  }
}

// %idx, the index of row %r + lane or %r; %d, how far it lies into this block's rows of the result:
// an index out of range lies in no block's.
std::string load_index(const ScatterShape& s) {
  return s.index_dtype == DType::I64 ? "ld.global.s64 %idx, [%ip];"
                                     : "ld.global.s32 %i32, [%ip]; cvt.s64.s32 %idx, %i32;";
}

// Rows of the base that a thread reads at once, for their latency to overlap.
constexpr int kBaseRows = 8;

std::string replaced(std::string text, std::string_view from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// Writes the start values of the sums of the block's rows: zeros, or rows of the base.
std::string start(const ScatterShape& s, const Element& e) {
  const int row = kThreads * e.bytes;
  if (s.in_place) return "";
  if (!s.base) {
    return fmt::format(R"(
CLEAR:
  st.shared.{reg} [%acc], %a;
  add.s64 %acc, %acc, {row};
  add.s64 %r, %r, 1;
  setp.lt.s64 %p, %r, %rows;
  @%p bra CLEAR;)",
                       fmt::arg("reg", e.reg), fmt::arg("row", row));
  }
  const int64_t bytes = s.inner * int64_t(itemsize(*s.base));
  const std::string load = element(*s.base).load;
  std::string text = fmt::format("\n  .reg .pred %q<{0}>;\n  .reg .b16 %bh<{0}>;", kBaseRows) +
                     fmt::format("\n  .reg .{} %b<{}>;", e.reg, kBaseRows);
  text += "\nSTART:";
  for (int k = 0; k < kBaseRows; ++k) {
    std::string own = replaced(load, "[%src]", fmt::format("[%base+{}]", k * bytes));
    own = replaced(replaced(own, "%v", fmt::format("%b{}", k)), "%h", fmt::format("%bh{}", k));
    text += fmt::format(R"(
  add.s64 %t, %r, {k};
  setp.lt.and.s64 %q{k}, %t, %rows, %active;
  @%q{k} {load})",
                        fmt::arg("k", k), fmt::arg("load", own));
  }
  for (int k = 0; k < kBaseRows; ++k)
    text += fmt::format("\n  @%q{0} st.shared.{1} [%acc+{2}], %b{0};", k, e.reg, k * row);
  return text + fmt::format(R"(
  add.s64 %acc, %acc, {step};
  add.s64 %base, %base, {base_step};
  add.s64 %r, %r, {rows};
  setp.lt.s64 %p, %r, %rows;
  @%p bra START;)",
                            fmt::arg("step", kBaseRows * row),
                            fmt::arg("base_step", kBaseRows * bytes), fmt::arg("rows", kBaseRows));
}

// In place %touched has a bit for each row of the group: notes that row %d is named, and reads what it
// starts from where it was not before and is not just written over.
std::string touch(const ScatterShape& s, const Element& e, int number) {
  if (!s.in_place) return "";
  const std::string note = R"(
  cvt.u32.u64 %row_bit, %d;
  shl.b32 %row_bit, %one, %row_bit;)";
  if (s.writes) return note + "\n  or.b32 %touched, %touched, %row_bit;";
  return note + fmt::format(R"(
  and.b32 %was, %touched, %row_bit;
  setp.ne.u32 %p, %was, 0;
  @%p bra TOUCHED{number};
  or.b32 %touched, %touched, %row_bit;
  mad.lo.s64 %src, %d, {row_bytes}, %out;
  {load}
  mad.lo.s64 %acc, %d, {stride}, %acc0;
  st.shared.{reg} [%acc], %v;
TOUCHED{number}:)",
                            fmt::arg("number", number), fmt::arg("load", e.load),
                            fmt::arg("row_bytes", s.inner * int64_t(itemsize(s.dtype))),
                            fmt::arg("stride", kThreads * e.bytes), fmt::arg("reg", e.reg));
}

// Adds the source element of row %row to the accumulator of %d, or puts it there. `number` tells the
// places where a kernel does so apart.
std::string accumulate(const ScatterShape& s, const Element& e, int number = 0) {
  return touch(s, e, number) +
         fmt::format(
             R"(
  mad.lo.s64 %src, %row, {row_bytes}, %src0;
  {load}
  mad.lo.s64 %acc, %d, {stride}, %acc0;
  ld.shared.{reg} %a, [%acc];
  {add}
  st.shared.{reg} [%acc], %a;)",
             fmt::arg("row_bytes", s.inner * int64_t(itemsize(s.dtype))), fmt::arg("load", e.load),
             fmt::arg("stride", kThreads * e.bytes), fmt::arg("reg", e.reg),
             fmt::arg("add", s.writes ? fmt::format("mov.b{} %a, %v;", e.bytes * 8) : e.add));
}

// All columns of a block share their indices: its threads look at kLooks * 256 of them together,
// and leave a bit for each that falls into the group. Every warp then visits these in the order of
// the rows. The words of one round are read while those of the next are written.
std::string walk_as_block(const ScatterShape& s, const Element& e) {
  constexpr int kLooks = 8, kWarps = kThreads / 32, kHalf = kLooks * kWarps * 4;
  static_assert(kLooks * kWarps == 64, "two words a lane");
  int64_t row_bytes = s.index_row * int64_t(itemsize(s.index_dtype));
  std::string text = fmt::format(R"(
  .shared .align 16 .b8 words[{both}];
  .reg .b32 %words, %word, %warp, %any, %m, %at;
  .reg .b64 %ip0, %row0;
  mov.u32 %lane, %laneid;
  shr.u32 %warp, %thread, 5;
  mov.u32 %words, words;
  mov.u64 %ip0, %ip;
  cvt.u64.u32 %lane64, %thread;
WALK:
  setp.ge.s64 %p, %r, {rows_in};
  @%p bra DONE;)",
                                 fmt::arg("both", 2 * kHalf), fmt::arg("rows_in", s.rows_in));
  for (int look = 0; look < kLooks; ++look) {
    text += fmt::format(
        R"(
  add.s64 %pos, %r, {first};
  add.s64 %pos, %pos, %lane64;
  mov.s64 %d, -1;
  setp.ge.s64 %p, %pos, {rows_in};
  @%p bra LOOKED{look};
  mad.lo.s64 %ip, %pos, {row_bytes}, %ip0;
  {load_index}
  sub.s64 %d, %idx, %g0;
LOOKED{look}:
  setp.lt.u64 %p, %d, %rows;
  vote.sync.ballot.b32 %mask, %p, 0xffffffff;
  mad.lo.u32 %word, %warp, 4, %words;
  setp.eq.u32 %p, %lane, 0;
  @%p st.shared.b32 [%word+{place}], %mask;)",
        fmt::arg("first", look * kThreads), fmt::arg("rows_in", s.rows_in), fmt::arg("look", look),
        fmt::arg("row_bytes", row_bytes), fmt::arg("load_index", load_index(s)),
        fmt::arg("place", look * kWarps * 4));
  }
  text += "\n  bar.sync 0;\n  mad.lo.u32 %word, %lane, 4, %words;";
  for (int half = 0; half < 2; ++half) {
    text += fmt::format(R"(
  ld.shared.b32 %m, [%word+{place}];
  setp.ne.u32 %p, %m, 0;
  vote.sync.ballot.b32 %any, %p, 0xffffffff;
WORD{half}:
  setp.eq.u32 %p, %any, 0;
  @%p bra READ{half};
  brev.b32 %at, %any;
  clz.b32 %at, %at;
  shfl.sync.idx.b32 %mask, %m, %at, 31, 0xffffffff;
  sub.u32 %bit, %any, 1;
  and.b32 %any, %any, %bit;
  mul.wide.u32 %row0, %at, 32;
  add.s64 %row0, %row0, %r;
VISIT{half}:
  setp.eq.u32 %p, %mask, 0;
  @%p bra WORD{half};
  brev.b32 %bit, %mask;
  clz.b32 %bit, %bit;
  cvt.u64.u32 %row, %bit;
  add.s64 %row, %row, %row0;
  add.s64 %row, %row, {first};
  sub.u32 %bit, %mask, 1;
  and.b32 %mask, %mask, %bit;
  @!%active bra VISIT{half};
  mad.lo.s64 %ip, %row, {row_bytes}, %ip0;
  {load_index}
  sub.s64 %d, %idx, %g0;
  {accumulate}
  bra VISIT{half};
READ{half}:)",
                        fmt::arg("half", half), fmt::arg("place", half * 128),
                        fmt::arg("first", half * 1024), fmt::arg("row_bytes", row_bytes),
                        fmt::arg("load_index", load_index(s)),
                        fmt::arg("accumulate", accumulate(s, e, half)));
  }
  return text + fmt::format(R"(
  add.s64 %r, %r, {step};
  mov.u32 %at, words;
  sub.u32 %words, %words, %at;
  xor.b32 %words, %words, {half};
  add.u32 %words, %words, %at;
  bra WALK;)",
                            fmt::arg("step", kLooks * kThreads), fmt::arg("half", kHalf));
}

}  // namespace

// A block has 256 columns of the source (all of outer x inner, flattened), one a thread, and a
// group of rows of the result, which it keeps in shared memory while it walks the source rows. Where
// the result is its base, those are only the rows that are named.
// Where a warp's columns share their indices, its lanes read 32 of them at once and visit those
// that fall into the group; where a block's do, its warps share that work.
ObjectCode scatter_code(const ScatterShape& s) {
  Element e = element(s.dtype);
  int64_t group = e.bytes == 8 ? 16 : 32;
  int64_t columns = s.outer * s.inner, tiles = (columns + kThreads - 1) / kThreads;
  int64_t groups = (s.rows_out + group - 1) / group;
  bool shared_index = s.index_inner == 0 && s.inner % 32 == 0;
  bool by_block = s.index_inner == 0 && (s.outer == 1 || s.inner % kThreads == 0);
  int64_t item = int64_t(itemsize(s.dtype)), index_item = int64_t(itemsize(s.index_dtype));
  std::string walk;
  if (by_block) {
    walk = walk_as_block(s, e);
  } else if (shared_index) {
    walk =
        fmt::format(R"(
  mov.u32 %lane, %laneid;
  cvt.u64.u32 %lane64, %lane;
  mad.lo.s64 %ip, %lane64, {index_row}, %ip;
WALK:
  setp.ge.s64 %p, %r, {rows_in};
  @%p bra DONE;
  add.s64 %pos, %r, %lane64;
  mov.s64 %d, -1;
  setp.ge.s64 %p, %pos, {rows_in};
  @%p bra MATCH;
  {load_index}
  sub.s64 %d, %idx, %g0;
MATCH:
  setp.lt.u64 %p, %d, %rows;
  vote.sync.ballot.b32 %mask, %p, 0xffffffff;
  cvt.u32.u64 %d32, %d;
VISIT:
  setp.eq.u32 %p, %mask, 0;
  @%p bra NEXT;
  brev.b32 %bit, %mask;
  clz.b32 %bit, %bit;
  shfl.sync.idx.b32 %row32, %d32, %bit, 31, 0xffffffff;
  cvt.u64.u32 %d, %row32;
  cvt.u64.u32 %row, %bit;
  add.s64 %row, %row, %r;
  {accumulate}
  sub.u32 %bit, %mask, 1;
  and.b32 %mask, %mask, %bit;
  bra VISIT;
NEXT:
  add.s64 %r, %r, 32;
  add.s64 %ip, %ip, {index_step};
  bra WALK;)",
                    fmt::arg("index_row", s.index_row * index_item), fmt::arg("rows_in", s.rows_in),
                    fmt::arg("load_index", load_index(s)), fmt::arg("accumulate", accumulate(s, e)),
                    fmt::arg("index_step", 32 * s.index_row * index_item));
  } else {
    walk = fmt::format(R"(
WALK:
  setp.ge.s64 %p, %r, {rows_in};
  @%p bra DONE;
  {load_index}
  sub.s64 %d, %idx, %g0;
  setp.ge.u64 %p, %d, %rows;
  @%p bra NEXT;
  mov.s64 %row, %r;
  {accumulate}
NEXT:
  add.s64 %r, %r, 1;
  add.s64 %ip, %ip, {index_step};
  bra WALK;)",
                       fmt::arg("rows_in", s.rows_in), fmt::arg("load_index", load_index(s)),
                       fmt::arg("accumulate", accumulate(s, e)),
                       fmt::arg("index_step", s.index_row * index_item));
  }
  std::string text = fmt::format(
      R"(.version 7.1
.target {target}
.address_size 64
.visible .entry scatter_add(.param .u64 index, .param .u64 source, {base_param}.param .u64 result)
{{
  .shared .align 16 .b8 sums[{shared}];
  .reg .pred %p, %active;
  .reg .b16 %h, %zero;
  .reg .b32 %thread, %block, %tile32, %group32, %mask, %bit, %lane, %d32, %row32, %i32;
  .reg .b64 %ip, %src, %src0, %out, %column, %o, %i, %t, %g0, %rows, %r, %row, %d, %idx, %pos;
  .reg .b64 %acc, %acc0, %lane64, %base;
{touched_registers}  .reg .{reg} %v, %a;
  ld.param.u64 %ip, [index];
  ld.param.u64 %src0, [source];
  ld.param.u64 %out, [result];
  mov.b16 %zero, 0;
  mov.u32 %thread, %tid.x;
  mov.u32 %block, %ctaid.x;
  div.u32 %group32, %block, {tiles};
  mul.lo.u32 %tile32, %group32, {tiles};
  sub.u32 %tile32, %block, %tile32;
  cvt.u64.u32 %g0, %group32;
  mul.lo.s64 %g0, %g0, {group};
  sub.s64 %rows, {rows_out}, %g0;
  min.s64 %rows, %rows, {group};
  cvt.u64.u32 %column, %tile32;
  mul.lo.s64 %column, %column, {threads};
  cvt.u64.u32 %t, %thread;
  add.s64 %column, %column, %t;
  setp.lt.s64 %active, %column, {columns};
  {leave}
  mov.u64 %acc0, sums;
  mad.lo.s64 %acc0, %t, {acc_bytes}, %acc0;
  mov.{bits} %a, 0{zero_suffix};
  {outer}
  mul.lo.s64 %i, %o, {inner};
  sub.s64 %i, %column, %i;
  add.s64 %ip, %ip, {index_offset};
  mad.lo.s64 %ip, %o, {index_outer}, %ip;
  mad.lo.s64 %ip, %i, {index_inner}, %ip;
  mul.lo.s64 %t, %o, {rows_in};
  mad.lo.s64 %t, %t, {inner}, %i;
  mad.lo.s64 %src0, %t, {item}, %src0;
  mad.lo.s64 %t, %o, {rows_out}, %g0;
  mad.lo.s64 %t, %t, {inner}, %i;
  mad.lo.s64 %out, %t, {item}, %out;
  {base_address}
  mov.u64 %r, 0;
  mov.u64 %acc, %acc0;
{start}
  mov.u64 %r, 0;
{walk}
DONE:
  @!%active bra END;
  mov.u64 %acc, %acc0;
  mov.u64 %r, 0;
WRITE:{skip}
  ld.shared.{reg} %a, [%acc];
  {store}
{unchanged}  add.s64 %acc, %acc, {acc_row};
  add.s64 %out, %out, {out_row};
  add.s64 %r, %r, 1;
  setp.lt.s64 %p, %r, %rows;
  @%p bra WRITE;
END:
  ret;
}}
)",
      fmt::arg("target", s.dtype == DType::BF16 || s.base == DType::BF16 ? "sm_80" : "sm_70"),
      fmt::arg("shared", group * kThreads * e.bytes), fmt::arg("reg", e.reg),
      fmt::arg("tiles", tiles), fmt::arg("group", group), fmt::arg("rows_out", s.rows_out),
      fmt::arg("threads", kThreads), fmt::arg("columns", columns),
      // All threads of a block that looks together stay; with one outer step, those behind the last
      // column look at the same indices.
      fmt::arg("leave", by_block ? "" : "@!%active bra END;"),
      fmt::arg("outer", s.outer == 1 ? std::string("mov.u64 %o, 0;")
                                     : fmt::format("div.u64 %o, %column, {};", s.inner)),
      fmt::arg("acc_bytes", e.bytes),
      fmt::arg("bits", e.reg[0] == 'f' ? e.reg
                       : e.bytes == 8  ? "b64"
                                       : "b32"),
      fmt::arg("zero_suffix", e.reg[0] != 'f' ? ""
                              : e.bytes == 8  ? "d0000000000000000"
                                              : "f00000000"),
      fmt::arg("touched_registers", s.in_place ? "  .reg .b32 %touched, %row_bit, %was, %one;\n"
                                                 "  mov.b32 %one, 1;\n  mov.b32 %touched, 0;\n"
                                               : ""),
      fmt::arg("acc_row", kThreads * e.bytes), fmt::arg("inner", s.inner),
      fmt::arg("index_offset", s.index_offset * index_item),
      fmt::arg("index_outer", s.index_outer * index_item),
      fmt::arg("index_inner", s.index_inner * index_item), fmt::arg("rows_in", s.rows_in),
      fmt::arg("item", item), fmt::arg("walk", walk), fmt::arg("store", e.store),
      fmt::arg("skip", s.in_place ? R"(
  and.b32 %was, %touched, 1;
  shr.b32 %touched, %touched, 1;
  setp.eq.u32 %p, %was, 0;
  @%p bra UNCHANGED;)"
                                  : ""),
      fmt::arg("unchanged", s.in_place ? "UNCHANGED:\n" : ""), fmt::arg("out_row", s.inner * item),
      fmt::arg("start", start(s, e)), fmt::arg("base_param", s.base ? ".param .u64 base, " : ""),
      fmt::arg("base_address",
               s.base
                   ? fmt::format("ld.param.u64 %base, [base];\n  mad.lo.s64 %base, %t, {}, %base;",
                                 itemsize(*s.base))
                   : ""));
  ObjectCode code;
  code.entry = "scatter_add";
  code.bytes.assign(text.c_str(), text.c_str() + text.size() + 1);
  code.work_items = tiles * groups;
  code.block = kThreads;
  return code;
}

}  // namespace tinyshard::cuda
