// Transposes: a tile of two loops goes through shared memory, so that loads run along one of them
// and stores along the other, both contiguous.
#include "core/codegen/gpu/emit.h"

namespace tinyshard::codegen::gpu {

using llvm::Value;

// The frame of a tile whose threads lie along `fast`, `lanes` elements each.
Emitter::TilePlaces Emitter::open_tile(int fast, int slow, int lanes, Value* fast_tile,
                                       Value* slow_tile) {
  int edge = work_->tile.edge, columns = edge / lanes;
  int64_t size_fast = graph_.range(fast).size, size_slow = graph_.range(slow).size;
  Frame& frame = push(bit(fast) | bit(slow));
  frame.lanes = lanes;
  frame.chunks = edge * columns / plan_.block;
  if (lanes > 1) frame.lane_ranges = bit(fast);
  TilePlaces places;
  places.fast = b_.CreateMul(b_.CreateURem(thread_, i32(columns)), i32(lanes));
  Value* row = b_.CreateUDiv(thread_, i32(columns));
  Value* at_fast = b_.CreateAdd(b_.CreateMul(fast_tile, i32(edge)), places.fast);
  Value* inside = nullptr;
  if (size_fast % edge != 0) {
    inside = b_.CreateICmpULT(at_fast, i32(size_fast));
    at_fast = b_.CreateBinaryIntrinsic(llvm::Intrinsic::umin, at_fast, i32(size_fast - lanes));
  }
  for (int c = 0; c < frame.chunks; ++c) {
    places.slow.push_back(b_.CreateAdd(row, i32(c * (plan_.block / columns))));
    Value* at_slow = b_.CreateAdd(b_.CreateMul(slow_tile, i32(edge)), places.slow.back());
    Value* active = inside;
    if (size_slow % edge != 0) {
      active = both(active, b_.CreateICmpULT(at_slow, i32(size_slow)));
      at_slow = b_.CreateBinaryIntrinsic(llvm::Intrinsic::umin, at_slow, i32(size_slow - 1));
    }
    frame.active.push_back(active);
    frame.digits[fast].push_back(at_fast);
    frame.digits[slow].push_back(at_slow);
  }
  return places;
}

void Emitter::emit_tile(Value* block) {
  const Tile& tile = work_->tile;
  int edge = tile.edge;
  auto tiles = [&](int range) { return (graph_.range(range).size + edge - 1) / edge; };
  Value* along = b_.CreateURem(block, i32(tiles(tile.along)));
  Value* rest = b_.CreateUDiv(block, i32(tiles(tile.along)));
  Value* across = b_.CreateURem(rest, i32(tiles(tile.across)));
  open(work_->items.space, b_.CreateUDiv(rest, i32(tiles(tile.across))), 1, i32(0), std::nullopt);

  // A row of the tile for each value of `along`, padded to an odd number of words.
  struct Staged {
    int load;
    llvm::Type* type;
    DType dtype;
    int64_t pitch, offset;
  };
  std::vector<Staged> staged;
  int64_t bytes = 0;
  for (int load : tile.staged) {
    DType dtype = graph_.param(graph_.slot(load)).dtype;
    auto size = static_cast<int64_t>(itemsize(dtype));
    int64_t pitch = edge + std::max<int64_t>(1, 4 / size);
    staged.push_back({load, arith_.memory_type(dtype), dtype, pitch, bytes});
    bytes += (pitch * edge * size + 15) / 16 * 16;
  }
  Value* memory = shared(0, bytes);
  auto address = [&](const Staged& s, Value* row, Value* column) {
    Value* at = b_.CreateAdd(b_.CreateMul(row, i32(s.pitch)), column);
    Value* base = b_.CreateConstGEP1_32(b_.getInt8Ty(), memory, static_cast<unsigned>(s.offset));
    return b_.CreateGEP(s.type, base, at);
  };

  TilePlaces in = open_tile(tile.across, tile.along, tile.lanes_across, across, along);
  int lanes = tile.lanes_across;
  for (const Staged& s : staged) {
    Values loaded = value(s.load);
    for (size_t c = 0; c < in.slow.size(); ++c) {
      for (int lane = 0; lane < lanes; ++lane) {
        Value* x = loaded[c * static_cast<size_t>(lanes) + static_cast<size_t>(lane)];
        b_.CreateStore(arith_.to_memory(x, s.dtype, true),
                       address(s, in.slow[c], b_.CreateAdd(in.fast, i32(lane))));
      }
    }
  }
  close();
  barrier();
  TilePlaces out = open_tile(tile.along, tile.across, tile.lanes_along, along, across);
  lanes = tile.lanes_along;
  for (const Staged& s : staged) {
    Values values;
    for (Value* slow : out.slow) {
      for (int lane = 0; lane < lanes; ++lane) {
        Value* x = b_.CreateLoad(s.type, address(s, b_.CreateAdd(out.fast, i32(lane)), slow));
        values.push_back(arith_.from_memory(x, s.dtype));
      }
    }
    frames_.back().values[work_->same[static_cast<size_t>(s.load)]] = std::move(values);
  }
  emit_stores(work_->items.stores, nullptr);
}

}  // namespace tinyshard::codegen::gpu
