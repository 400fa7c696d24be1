// For the conformance suite: a communicator of host buffers whose calls go through GPUs, and NCCL
// where it has them, as the engine does it.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "core/base/error.h"
#include "core/runtime/device.h"
#include "transport/nccl/nccl_group.h"

namespace tinyshard::test {

class GpuCommunicator final : public Communicator {
 public:
  GpuCommunicator(Communicator& host, std::vector<Device*> gpus, const CommOptions& options,
                  std::unique_ptr<Communicator> owned = nullptr)
      : Communicator(host.name(), host.rank(), ranks_of(host)),
        owned_(std::move(owned)),
        host_(host),
        gpus_(std::move(gpus)),
        options_(options) {
    std::string why;
    nccl_ = connect_nccl(host, gpus_, options, &why);
    if (!nccl_) throw UserError("no NCCL: " + why);
  }

  std::string_view transport() const override { return nccl_->transport(); }
  bool supports(CollectiveOp op, DType dtype, ReduceOp reduce) const override {
    return host_.supports(op, dtype, reduce);
  }
  Work start(const Collective& call, std::span<const CommBuffer> send,
             std::span<const CommBuffer> recv) override {
    if (!nccl_->supports(call.op, call.dtype, call.reduce) || call.op == CollectiveOp::Barrier)
      return host_.start(call, send, recv);
    check(call, send, recv);
    if (nccl_->failed()) nccl_->check_alive();
    if (is_pair(call.op)) return start_pair(call, send, recv);
    Pending pending;
    std::vector<CommBuffer> from, to;
    size_t item = itemsize(call.dtype), n = size_t(size());
    for (size_t i = 0; i < gpus_.size(); ++i) {
      size_t p = size_t(local()[i]);
      Range out = range(send[i].data, sent_elements(call, n, p) * item);
      Range in = range(recv[i].data, received_elements(call, n, p) * item);
      bool together = out.begin < in.end && in.begin < out.end;
      if (together) out = in = {std::min(out.begin, in.begin), std::max(out.end, in.end)};
      char* on_gpu = pending.add(*gpus_[i], out, together);
      from.push_back({on_gpu + (static_cast<char*>(send[i].data) - out.begin), gpus_[i]});
      if (!together) on_gpu = pending.add(*gpus_[i], in, true);
      to.push_back({on_gpu + (static_cast<char*>(recv[i].data) - in.begin), gpus_[i]});
    }
    pending.work = nccl_->start(call, from, to);
    pending_.emplace(++next_, std::move(pending));
    return work(next_);
  }
  void begin_batch() override { nccl_->begin_batch(); }
  void end_batch() override { nccl_->end_batch(); }
  void drop_batch() noexcept override { nccl_->drop_batch(); }
  std::unique_ptr<Communicator> split(std::span<const int> participants,
                                      std::string name) override {
    auto part = host_.split(participants, std::move(name));
    std::vector<Device*> gpus;
    for (int p : participants) {
      auto own = std::ranges::find(local(), p);
      if (own != local().end()) gpus.push_back(gpus_[size_t(own - local().begin())]);
    }
    Communicator& host = *part;
    return std::make_unique<GpuCommunicator>(host, gpus, options_, std::move(part));
  }
  void check_same(uint64_t hash, const Items& items, std::string_view what,
                  const RunIdentity& told) override {
    nccl_->check_same(hash, items, what, told);
  }
  void announce(const RunIdentity& identity) override { nccl_->announce(identity); }
  void abort(std::string_view reason) noexcept override { nccl_->abort(reason); }
  bool failed() const noexcept override { return host_.failed(); }
  void check_alive() override { host_.check_alive(); }
  uint64_t sequence() const override { return host_.sequence() + nccl_->sequence(); }

 private:
  struct Range {
    char *begin, *end;
  };
  struct Piece {
    Device* gpu;
    Range host;
    void* memory;
    bool comes_back;
  };
  struct Pending {
    Pending() = default;
    Pending(Pending&&) = default;
    ~Pending() {
      for (Piece& p : pieces) p.gpu->free(p.memory, size_t(p.host.end - p.host.begin));
    }
    char* add(Device& gpu, Range host, bool comes_back) {
      size_t bytes = size_t(host.end - host.begin);
      void* memory = gpu.allocate(bytes);
      gpu.copy_in(memory, host.begin, bytes);
      pieces.push_back({&gpu, host, memory, comes_back});
      return static_cast<char*>(memory);
    }
    std::vector<Piece> pieces;
    Work work;
  };

  Work start_pair(const Collective& call, std::span<const CommBuffer> send,
                  std::span<const CommBuffer> recv) {
    bool sends = call.op == CollectiveOp::Send;
    auto place = std::ranges::find(local(), sends ? call.from : call.to);
    Device& gpu = *gpus_[size_t(place - local().begin())];
    Pending pending;
    Range host = range((sends ? send : recv)[0].data, call.count * itemsize(call.dtype));
    CommBuffer there{pending.add(gpu, host, !sends), &gpu};
    std::span<const CommBuffer> one(&there, 1), none;
    pending.work = nccl_->start(call, sends ? one : none, sends ? none : one);
    pending_.emplace(++next_, std::move(pending));
    return work(next_);
  }

  static std::vector<int> ranks_of(const Communicator& host) {
    std::vector<int> ranks;
    for (int p = 0; p < host.size(); ++p) ranks.push_back(host.rank_of(p));
    return ranks;
  }
  static Range range(void* data, size_t bytes) {
    return {static_cast<char*>(data), static_cast<char*>(data) + bytes};
  }
  void settle(Pending& pending) {
    for (Piece& p : pending.pieces) {
      if (p.comes_back) p.gpu->copy_out(p.host.begin, p.memory, size_t(p.host.end - p.host.begin));
    }
  }
  bool test(uint64_t ticket) override {
    auto found = pending_.find(ticket);
    if (found == pending_.end()) return true;
    if (!found->second.work.test()) return false;
    wait(ticket, Deadline::max());
    return true;
  }
  void wait(uint64_t ticket, Deadline) override {
    auto found = pending_.find(ticket);
    if (found == pending_.end()) return;
    found->second.work.wait();
    settle(found->second);
    pending_.erase(found);
  }

  std::unique_ptr<Communicator> owned_;
  Communicator& host_;
  std::vector<Device*> gpus_;
  CommOptions options_;
  std::unique_ptr<Communicator> nccl_;
  std::map<uint64_t, Pending> pending_;
  uint64_t next_ = 0;
};

}  // namespace tinyshard::test
