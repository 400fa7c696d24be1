// Plans of attention for a GPU that is not here, from its properties: cuDNN checks the graph and
// picks an engine without one. Skipped where there is no cuDNN.
#include <string_view>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "devices/cuda/attention.h"
#include "tests/devices/cuda/absent_gpu.h"

namespace tinyshard::test::attention_plan_test {
namespace {

using cuda::AttentionCall;

class AttentionPlan : public AbsentGpu {};

UOp buffer(DType dtype, Dims shape) {
  static int64_t next = 1;
  shape.insert(shape.begin(), next++);
  return UOp::make(Op::Buffer, dtype, {}, shape);
}

StridedView row_major(DimSpan shape) {
  StridedView view{0, Dims(shape.begin(), shape.end()), Dims(shape.size())};
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0; stride *= shape[i]) view.strides[i] = stride;
  return view;
}

struct Sizes {
  int64_t batch, heads, rows, columns, width, values;
};

// The forward and the backward call, all results wanted; operands row-major or with heads inside.
std::vector<LibraryCall> calls(const Sizes& s, DType dtype, bool causal, bool inside) {
  UOp q = buffer(dtype, {s.batch, s.heads, s.rows, s.width}),
      k = buffer(dtype, {s.batch, s.heads, s.columns, s.width}),
      v = buffer(dtype, {s.batch, s.heads, s.columns, s.values}),
      o = buffer(dtype, {s.batch, s.heads, s.rows, s.values}),
      statistics = buffer(DType::F32, {s.batch, s.heads, s.rows, 1}),
      d_o = buffer(dtype, {s.batch, s.heads, s.rows, s.values});
  auto node = [&](Op op, int64_t which, std::vector<UOp> src) {
    bool swapped = inside && (op == Op::AttentionBackward || which == 0);
    return UOp::make(op, op == Op::Attention && which == 1 ? DType::F32 : dtype, src,
                     to_ints(AttentionArg{which, causal, 0.125, swapped}));
  };
  std::vector<UOp> forward{q, k, v}, backward{q, k, v, o, statistics, d_o};
  std::vector<LibraryCall> list{
      {node(Op::Attention, 0, forward), {}, {node(Op::Attention, 1, forward)}},
      {node(Op::Attention, 0, forward), {}, {}},
      {node(Op::AttentionBackward, 0, backward),
       {},
       {node(Op::AttentionBackward, 1, backward), node(Op::AttentionBackward, 2, backward)}},
      {node(Op::AttentionBackward, 1, backward), {}, {}}};
  for (LibraryCall& call : list) {
    for (const UOp& operand : call.node->src()) {
      StridedView view = row_major(operand.shape());
      if (inside && operand.dtype() != DType::F32) {
        view.strides[1] = view.shape[3];
        view.strides[2] = view.shape[1] * view.shape[3];
      }
      call.operands.push_back(view);
    }
  }
  return list;
}

TEST_F(AttentionPlan, IsFoundForTheUsualShapes) {
  Sizes sizes[] = {{32, 12, 1024, 1024, 64, 64}, {2, 3, 48, 48, 64, 64},
                   {2, 3, 40, 72, 64, 64},       {2, 3, 72, 40, 64, 64},
                   {1, 2, 512, 512, 128, 128},   {2, 3, 130, 130, 24, 56}};
  for (const Sizes& s : sizes) {
    for (DType dtype : {DType::BF16, DType::F16}) {
      for (bool causal : {false, true}) {
        int number = 0;
        for (const LibraryCall& call : calls(s, dtype, causal, dtype == DType::BF16)) {
          std::string why;
          auto c = cuda::attention_call(call, &why);
          ASSERT_TRUE(c) << why;
          if (!cuda::attention_has_engine(*c, {nullptr, kH200}))
            ADD_FAILURE() << "call " << number << ", " << c->key();
          if (s.rows == 1024 && causal) try {
              cuda::plan_attention(*c, {nullptr, kH200});
            } catch (const DeviceError& error) {
              // An engine was found and its code made; only loading it takes a GPU.
              if (std::string_view(error.what()).find("cuLibraryLoadData") == std::string::npos)
                ADD_FAILURE() << "call " << number << ", " << c->key() << ": " << error.what();
            }
          ++number;
        }
      }
    }
  }
}

// The backward call whose results are the gradient of one projection: parts of its rows.
LibraryCall packed_call(const Sizes& s, DType dtype) {
  LibraryCall call = calls(s, dtype, true, true)[2];
  int64_t part = s.heads * s.width, row = 3 * part;
  for (int64_t which : {0, 1, 2}) {
    call.results.push_back(
        {which * part, {s.batch, s.rows, s.heads, s.width}, {s.rows * row, row, s.width, 1}});
  }
  return call;
}

TEST_F(AttentionPlan, WritesResultsSideBySide) {
  Sizes sizes[] = {{64, 12, 1024, 1024, 64, 64},
                   {4, 12, 1024, 1024, 64, 64},
                   {1, 2, 512, 512, 128, 128},
                   {2, 3, 130, 130, 24, 24},
                   {1, 1, 48, 48, 64, 64}};
  for (const Sizes& s : sizes) {
    for (DType dtype : {DType::BF16, DType::F16}) {
      std::string why;
      auto c = cuda::attention_call(packed_call(s, dtype), &why);
      ASSERT_TRUE(c) << why;
      auto apart = cuda::attention_call(calls(s, dtype, true, true)[2], &why);
      ASSERT_TRUE(apart) << why;
      EXPECT_NE(c->key(), apart->key()) << "plans of their own";
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(c->results[i].offset, int64_t(i) * s.heads * s.width);
        EXPECT_EQ(c->results[i].strides[2], 3 * s.heads * s.width);
      }
      EXPECT_TRUE(cuda::attention_has_engine(*c, {nullptr, kH200})) << c->key();
      if (s.rows == 1024) try {
          cuda::plan_attention(*c, {nullptr, kH200});
        } catch (const DeviceError& error) {
          // Its code was made; only loading it takes a GPU.
          if (std::string_view(error.what()).find("cuLibraryLoadData") == std::string::npos)
            ADD_FAILURE() << c->key() << ": " << error.what();
        }
    }
  }
}

TEST_F(AttentionPlan, RefusesWhatCudnnCannotExpress) {
  auto refused = [](const LibraryCall& call, const std::string& reason) {
    std::string why;
    EXPECT_FALSE(cuda::attention_call(call, &why));
    EXPECT_NE(why.find(reason), std::string::npos) << why;
  };
  Sizes s{2, 3, 48, 48, 64, 64};
  LibraryCall call = calls(s, DType::BF16, true, false)[0];
  LibraryCall odd = call;
  odd.operands[0].strides = {48 * 3 * 65, 48 * 65, 65, 1};
  refused(odd, "stride");
  LibraryCall transposed = call;
  std::swap(transposed.operands[1].strides[2], transposed.operands[1].strides[3]);
  refused(transposed, "apart");
  LibraryCall shifted = call;
  shifted.operands[2].offset = 4;
  refused(shifted, "starts at");
  LibraryCall repeated = call;
  repeated.operands[1].strides[1] = 0;
  refused(repeated, "stride");
  LibraryCall between = packed_call(s, DType::BF16);
  between.results[1].offset += 4;
  refused(between, "result 1 starts at");
  LibraryCall narrow = packed_call(s, DType::BF16);
  narrow.results[2].strides[1] -= 4;
  refused(narrow, "result 2 has a stride");
  LibraryCall columns = packed_call(s, DType::BF16);
  std::swap(columns.results[0].strides[1], columns.results[0].strides[3]);
  refused(columns, "result 0 has rows that lie apart");
  LibraryCall spread = call;  // the statistics in every second column
  spread.results = {row_major(call.node.shape()), row_major(call.also[0].shape())};
  for (int64_t& stride : spread.results[1].strides) stride *= 2;
  refused(spread, "result 1 has");
  refused(calls({2, 3, 48, 48, 60, 64}, DType::BF16, true, false)[0], "multiples");
  refused(calls(s, DType::F32, true, false)[0], "no attention of f32");
}

}  // namespace
}  // namespace tinyshard::test::attention_plan_test
