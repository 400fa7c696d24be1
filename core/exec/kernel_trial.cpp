// Work items are independent of each other, so a kernel's first ones alone are a kernel, too: of a
// product in loops that takes 80 ms, where 1 ms is enough,
//
//   items    16    64   256  1024  4096   of 65536
//   us       60    60    65    90   330   1024 items fill the device, from there on time grows with them
//
// 4096 items took nearly four times as long as 1024, hence 65536 take about 16 * 330 us: too long. The
// trial took a millisecond. As long as a device is not full, its time says nothing of more items.
#include "core/exec/kernel_trial.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "core/base/stopwatch.h"
#include "core/codegen/scalars.h"

namespace tinyshard {
namespace {

constexpr int64_t kFirstItems = 16;    // a multiple of any cluster of blocks
constexpr int64_t kMoreItems = 4;      // times as many, the next time
constexpr double kFull = 3;            // times as long for those: they run one after another
constexpr double kMeasurable = 30e-6;  // less is what a launch takes

constexpr size_t kMostAxes = 8;  // of a mesh

}  // namespace

TrialBuffers::TrialBuffers(Device& device, const KernelSource& source)
    : arguments_(source.params.size()),
      coordinates_(source.scalars.constants.empty() ? kMostAxes : size_t(source.scalars.first)) {
  std::ranges::copy(scalar_values(source), std::back_inserter(coordinates_));
  for (size_t slot = 0; slot < source.params.size(); ++slot) {
    const ParamInfo& param = source.params[slot];
    if (param.alias >= 0) continue;
    size_t bytes = std::max<size_t>(64, size_t(param.numel) * itemsize(param.dtype));
    owned_.emplace_back(device.allocate(bytes, "kernels to be timed"), Free{&device, bytes});
    fill_with_zeros(device, owned_.back().get(), bytes);
    arguments_[slot] = owned_.back().get();
  }
  for (size_t i = 0; i < source.params.size(); ++i) {
    if (source.params[i].alias >= 0) arguments_[i] = arguments_[size_t(source.params[i].alias)];
  }
}

Repeated::Repeated(Device& device, int repetitions, std::function<void()> launch, bool record)
    : device_(device), repetitions_(repetitions), launch_(std::move(launch)) {
  if (!record || !device.can_record()) return;
  device.begin_recording();
  try {
    for (int i = 0; i < repetitions; ++i) launch_();
  } catch (...) {
    device.abandon_recording();
    throw;
  }
  recording_ = device.end_recording();
}

double Repeated::seconds_of_one() {
  device_.synchronize();
  Stopwatch watch;
  if (recording_) {
    recording_->launch();
  } else {
    for (int i = 0; i < repetitions_; ++i) launch_();
  }
  device_.synchronize();
  return watch.ms() / 1e3 / repetitions_;
}

void fill_with_zeros(Device& device, void* memory, size_t bytes) {
  if (!device.fill_zero(memory, bytes)) std::memset(device.host_pointer(memory), 0, bytes);
}

void launch_trial(Program& program, const TrialBuffers& buffers) {
  program.launch(buffers.get(), buffers.coordinates());
}

double seconds_up_to(double enough, Device& device, const ObjectCode& code,
                     const TrialBuffers& buffers) {
  if (code.work_items == 0) return 0;
  double fewer = 0;  // the time of a quarter of the items
  for (int64_t items = kFirstItems;; items *= kMoreItems) {
    ObjectCode part = code;
    part.work_items = std::min(items, code.work_items);
    const std::unique_ptr<Program> program = device.load(part);
    Repeated one(device, 1, [&] { launch_trial(*program, buffers); }, false);
    double seconds = one.seconds_of_one();
    if (seconds <= enough || fewer == 0) seconds = std::min(seconds, one.seconds_of_one());
    if (seconds > enough || part.work_items == code.work_items) return seconds;
    if (fewer > 0 && seconds > kMeasurable && seconds > kFull * fewer) {
      const double whole = seconds * double(code.work_items) / double(items);
      if (whole > enough) return whole;
      items = code.work_items;  // what is left to do is short enough
    }
    fewer = seconds;
  }
}

}  // namespace tinyshard
