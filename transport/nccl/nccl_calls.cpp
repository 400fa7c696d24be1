// NCCL has neither parts of different sizes nor an all-to-all. A gather of such parts is a
// broadcast of each, a reduce-scatter a reduction of each, an all-to-all a send and a receive for
// each peer.
#include "transport/nccl/nccl_calls.h"

#include <optional>

namespace tinyshard::nccl {
namespace {

std::optional<Type> type_of(DType dtype) {
  switch (dtype) {
    case DType::Bool:
    case DType::U8:
      return kUint8;
    case DType::I8:
      return kInt8;
    case DType::I32:
      return kInt32;
    case DType::U32:
      return kUint32;
    case DType::I64:
      return kInt64;
    case DType::U64:
      return kUint64;
    case DType::F16:
      return kFloat16;
    case DType::BF16:
      return kBfloat16;
    case DType::F32:
      return kFloat32;
    case DType::F64:
      return kFloat64;
    default:
      return std::nullopt;
  }
}

std::optional<Reduction> reduction_of(DType dtype, ReduceOp op) {
  switch (dtype == DType::Bool ? info(op).of_truths : op) {
    case ReduceOp::Sum:
      return kSum;
    case ReduceOp::Prod:
      return kProd;
    case ReduceOp::Max:
      return kMax;
    case ReduceOp::Min:
      return kMin;
    default:
      return std::nullopt;
  }
}

bool goes_on(Result result) { return result == kSuccess || result == kInProgress; }

// The calls of one participant, up to the first that fails.
class Calls {
 public:
  Calls(const Nccl& nccl, const Collective& call, const Participant& self, const void* send,
        void* recv)
      : nccl_(nccl),
        call_(call),
        self_(self),
        send_(static_cast<const char*>(send)),
        recv_(static_cast<char*>(recv)),
        item_(itemsize(call.dtype)),
        op_(reduction_of(call.dtype, call.reduce).value_or(kSum)) {
    auto known = type_of(call.dtype);
    type_ = known ? *known : kUint8;
    scale_ = known ? 1 : item_;
  }

  Result run() {
    switch (call_.op) {
      case CollectiveOp::AllReduce:
        if (call_.count > 0)
          add(nccl_.all_reduce(send_, recv_, call_.count, type_, op_, self_.comm, self_.stream));
        break;
      case CollectiveOp::Broadcast:
        broadcast(send_, recv_, call_.count, call_.from);
        break;
      case CollectiveOp::AllGather:
        all_gather();
        break;
      case CollectiveOp::ReduceScatter:
        reduce_scatter();
        break;
      case CollectiveOp::AllToAll:
        all_to_all();
        break;
      case CollectiveOp::Send:
        send(0, call_.count, size_t(call_.to));
        break;
      case CollectiveOp::Recv:
        receive(0, call_.count, size_t(call_.from));
        break;
      case CollectiveOp::Barrier:
        break;
    }
    return result_;
  }

 private:
  void add(Result result) {
    if (goes_on(result_) && !goes_on(result)) result_ = result;
  }
  // Offsets and counts are in elements.
  const char* out(size_t element) const { return send_ + element * item_; }
  char* in(size_t element) const { return recv_ + element * item_; }

  void broadcast(const void* from, void* to, size_t count, int root) {
    if (count > 0)
      add(nccl_.broadcast(from, to, count * scale_, type_, root, self_.comm, self_.stream));
  }
  void send(size_t offset, size_t count, size_t peer) {
    if (count > 0)
      add(nccl_.send(out(offset), count * scale_, type_, int(peer), self_.comm, self_.stream));
  }
  void receive(size_t offset, size_t count, size_t peer) {
    if (count > 0)
      add(nccl_.receive(in(offset), count * scale_, type_, int(peer), self_.comm, self_.stream));
  }

  void all_gather() {
    if (call_.counts.empty()) {
      if (call_.count > 0)
        add(nccl_.all_gather(send_, recv_, call_.count * scale_, type_, self_.comm, self_.stream));
      return;
    }
    for (size_t p = 0, offset = 0; p < self_.of; offset += call_.counts[p++])
      broadcast(p == self_.number ? send_ : in(offset), in(offset), call_.counts[p], int(p));
  }
  void reduce_scatter() {
    if (call_.counts.empty()) {
      if (call_.count > 0)
        add(nccl_.reduce_scatter(send_, recv_, call_.count, type_, op_, self_.comm, self_.stream));
      return;
    }
    for (size_t p = 0, offset = 0; p < self_.of; offset += call_.counts[p++]) {
      if (call_.counts[p] == 0) continue;
      add(nccl_.reduce(out(offset), recv_, call_.counts[p], type_, op_, int(p), self_.comm,
                       self_.stream));
    }
  }
  void all_to_all() {
    auto count = [&](size_t from, size_t to) {
      return call_.counts.empty() ? call_.count : call_.counts[from * self_.of + to];
    };
    size_t to = 0, from = 0;
    for (size_t p = 0; p < self_.of; ++p) {
      size_t sent = count(self_.number, p), received = count(p, self_.number);
      send(to, sent, p);
      receive(from, received, p);
      to += sent;
      from += received;
    }
  }

  const Nccl& nccl_;
  const Collective& call_;
  const Participant& self_;
  const char* send_;
  char* recv_;
  size_t item_, scale_ = 1;  // bytes of an element, elements of NCCL's in one of ours
  int type_ = kUint8, op_;
  Result result_ = kSuccess;
};

}  // namespace

bool offers(CollectiveOp op, DType dtype, ReduceOp reduce) {
  if (op != CollectiveOp::AllReduce && op != CollectiveOp::ReduceScatter)
    return dtype != DType::Index;
  if (is_float(dtype) && (reduce == ReduceOp::Max || reduce == ReduceOp::Min)) return false;
  return type_of(dtype).has_value() && reduction_of(dtype, reduce).has_value();
}

Result issue(const Nccl& nccl, const Collective& call, const Participant& participant,
             const void* send, void* recv) {
  return Calls(nccl, call, participant, send, recv).run();
}

Result meet(const Nccl& nccl, const Participant& participant, int peer, void* two_bytes) {
  char* bytes = static_cast<char*>(two_bytes);
  Result result = nccl.send(bytes, 1, kUint8, peer, participant.comm, participant.stream);
  if (!goes_on(result)) return result;
  return nccl.receive(bytes + 1, 1, kUint8, peer, participant.comm, participant.stream);
}

}  // namespace tinyshard::nccl
