// Transposes: a tile of two loops goes through shared memory, so that some loads and stores run
// along one of them and the others along the other, all contiguous. Staged loads, then everything
// else, then staged stores.
#include "core/codegen/gpu/gpu_emit.h"

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

  // Rows of the tile, padded to an odd number of words. What is staged is written along them, by
  // neighbouring threads, and read across.
  struct Staged {
    int access;
    StoredValue value;
    llvm::Type* type;
    DType dtype;
    int64_t pitch, offset;
  };
  std::vector<Staged> loads, stores;
  std::vector<int> direct = work_->items.stores;
  int64_t bytes = 0;
  for (int access : tile.staged) {
    const bool load = graph_[access].op == Op::Load;
    DType dtype = graph_.param(graph_.slot(access)).dtype;
    auto size = static_cast<int64_t>(itemsize(dtype));
    int64_t pitch = edge + std::max<int64_t>(1, 4 / size);
    (load ? loads : stores)
        .push_back({access, load ? StoredValue{access, true} : stored_value(access),
                    arith_.memory_type(dtype), dtype, pitch, bytes});
    bytes += (pitch * edge * size + 15) / 16 * 16;
    std::erase(direct, access);
  }
  Value* memory = shared(0, bytes);
  auto address = [&](const Staged& s, Value* row, Value* column) {
    Value* at = b_.CreateAdd(b_.CreateMul(row, i32(s.pitch)), column);
    Value* base = b_.CreateConstGEP1_32(b_.getInt8Ty(), memory, static_cast<unsigned>(s.offset));
    return b_.CreateGEP(s.type, base, at);
  };
  auto put = [&](const Staged& s, const TilePlaces& places, int lanes) {
    Values values = value(s.value.node);
    size_t next = 0;
    for (Value* slow : places.slow) {
      for (int lane = 0; lane < lanes; ++lane)
        b_.CreateStore(arith_.to_memory(values[next++], s.dtype, s.value.rounded),
                       address(s, slow, b_.CreateAdd(places.fast, i32(lane))));
    }
  };
  auto take = [&](const Staged& s, const TilePlaces& places, int lanes) {
    Values values;
    for (Value* slow : places.slow) {
      for (int lane = 0; lane < lanes; ++lane) {
        Value* x = b_.CreateLoad(s.type, address(s, b_.CreateAdd(places.fast, i32(lane)), slow));
        values.push_back(arith_.from_memory(x, s.dtype));
      }
    }
    frames_.back().values[work_->same[static_cast<size_t>(s.value.node)]] = std::move(values);
  };

  if (!loads.empty()) {
    TilePlaces places = open_tile(tile.across, tile.along, tile.lanes_across, across, along);
    for (const Staged& s : loads) put(s, places, tile.lanes_across);
    close();
    dialect_.barrier(b_);
  }
  TilePlaces places = open_tile(tile.along, tile.across, tile.lanes_along, along, across);
  for (const Staged& s : loads) take(s, places, tile.lanes_along);
  for (const Staged& s : stores) put(s, places, tile.lanes_along);
  emit_stores(direct, nullptr);
  if (stores.empty()) return;
  close();
  dialect_.barrier(b_);
  places = open_tile(tile.across, tile.along, tile.lanes_across, across, along);
  std::vector<int> staged;
  for (const Staged& s : stores) {
    take(s, places, tile.lanes_across);
    staged.push_back(s.access);
  }
  emit_stores(staged, nullptr);
}

}  // namespace tinyshard::codegen::gpu
