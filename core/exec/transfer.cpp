// A box is moved in as few copies as its layout allows: dims that are taken whole join
// the stretch of the dim around them. A box [0:4, 2:4, 0:8] of f32[4, 6, 8] is four
// stretches of 16 elements. Elements that lie beyond the source are padding: the
// target is filled with zeros first, and the stretches go over them. If the target can
// take nothing from the source's kind of device, the source passes through the host.
#include "core/exec/transfer.h"

#include <algorithm>
#include <cstring>

#include "core/base/error.h"

namespace tinyshard {
namespace {

// Calls run(to, from, bytes) for each contiguous stretch of the box that lies inside the source.
template <class Run>
void for_each_run(const Box& box, Run&& run) {
  // Dims that are taken whole join the stretch of the one outside of them.
  size_t cut = box.shape.size();
  int64_t inner = 1;
  while (cut > 0 && box.begin[cut - 1] == 0 && box.size[cut - 1] == box.shape[cut - 1])
    inner *= box.shape[--cut];
  if (cut == 0) return run(size_t{0}, size_t{0}, size_t(inner) * box.element);
  size_t axis = cut - 1;
  int64_t rows = product(DimSpan(box.size).first(axis));
  int64_t count = std::clamp<int64_t>(box.shape[axis] - box.begin[axis], 0, box.size[axis]) * inner;
  for (int64_t r = 0; r < rows && count > 0; ++r) {
    int64_t rest = r, position = box.begin[axis] * inner, stride = box.shape[axis] * inner;
    bool inside = true;
    for (size_t i = axis; i-- > 0;) {
      int64_t at = box.begin[i] + rest % box.size[i];
      rest /= box.size[i];
      inside = inside && at < box.shape[i];
      position += at * stride;
      stride *= box.shape[i];
    }
    if (!inside) continue;
    run(size_t(r * box.size[axis] * inner) * box.element, size_t(position) * box.element,
        size_t(count) * box.element);
  }
}

bool is_whole(const Box& box) {
  return box.size == box.shape &&
         std::ranges::all_of(box.begin, [](int64_t begin) { return begin == 0; });
}

bool copy_between(const Box& box, Device& source, const void* in, Device& target, void* out) {
  size_t covered = 0, bytes = size_t(product(box.size)) * box.element;
  for_each_run(box, [&](size_t, size_t, size_t n) { covered += n; });
  if (covered < bytes && !target.fill_zero(out, bytes)) return false;
  bool taken = true;
  for_each_run(box, [&](size_t to, size_t from, size_t n) {
    taken = taken && target.copy_from(static_cast<char*>(out) + to, source,
                                      static_cast<const char*>(in) + from, n);
  });
  return taken;
}

}  // namespace

void copy_box(const Box& box, Device& source, void* in, Device& target, void* out) {
  if (copy_between(box, source, in, target, out)) return;
  source.synchronize();
  size_t bytes = size_t(product(box.shape)) * box.element;
  const auto* host = static_cast<const char*>(source.host_pointer(in));
  std::vector<char> fetched;
  if (!host) {
    fetched.resize(bytes);
    source.copy_out(fetched.data(), in, bytes);
    host = fetched.data();
  }
  if (is_whole(box)) return target.copy_in(out, host, bytes);
  std::vector<char> staged(size_t(product(box.size)) * box.element);
  for_each_run(box, [&](size_t to, size_t from, size_t n) {
    std::memcpy(staged.data() + to, host + from, n);
  });
  target.copy_in(out, staged.data(), staged.size());
}

bool takes_buffers(const Communicator& communicator, std::span<const CommBuffer> buffers) {
  if (communicator.on_devices()) return true;
  return std::ranges::all_of(buffers, [](const CommBuffer& b) {
    return b.data == nullptr || b.device == nullptr || b.device->host_pointer(b.data) != nullptr;
  });
}

void run_through_host(Communicator& communicator, const Collective& call,
                      std::span<const CommBuffer> send, std::span<const CommBuffer> recv) {
  size_t element = itemsize(call.dtype), n = size_t(communicator.size());
  std::vector<std::vector<char>> outgoing(send.size()), incoming(recv.size());
  std::vector<CommBuffer> from, to;
  for (size_t i = 0; i < send.size(); ++i) {
    outgoing[i].resize(sent_elements(call, n, size_t(communicator.local()[i])) * element);
    send[i].device->copy_out(outgoing[i].data(), send[i].data, outgoing[i].size());
    from.push_back({outgoing[i].data()});
  }
  for (size_t i = 0; i < recv.size(); ++i) {
    incoming[i].resize(received_elements(call, n, size_t(communicator.local()[i])) * element);
    to.push_back({incoming[i].data()});
  }
  communicator.start(call, from, to).wait();
  for (size_t i = 0; i < recv.size(); ++i)
    recv[i].device->copy_in(recv[i].data, incoming[i].data(), incoming[i].size());
}

}  // namespace tinyshard
