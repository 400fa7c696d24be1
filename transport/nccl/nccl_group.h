// The communicator of a group whose participants are GPUs of one maker, over NCCL or RCCL, both of
// which are called NCCL here. Calls are queued on the
// devices' communication queues (core/runtime/communicator.h, `on_devices`) and may be recorded.
//
// It stands beside a communicator of the same group on host memory, which brings NCCL's id to
// everyone, says when a peer is gone, and takes what NCCL does not offer (`supports`). NCCL itself
// is never trusted with a wait: its communicators do not block, their errors are polled, and a
// group that failed is aborted.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "core/runtime/communicator.h"
#include "core/runtime/device.h"
#include "transport/comm_options.h"
#include "transport/world.h"

namespace tinyshard {

// `devices` are this process's participants of `host`, which must outlive the result. Every rank of
// the group calls it. Null, with the reason, when NCCL is missing somewhere, versions differ, or
// two participants share one GPU,
// or are of different makers. CommError when a rank does not come.
std::unique_ptr<Communicator> connect_nccl(Communicator& host, std::span<Device* const> devices,
                                           const CommOptions& options, std::string* why);

TransportInfo nccl_info();
TransportInfo rccl_info();

}  // namespace tinyshard
