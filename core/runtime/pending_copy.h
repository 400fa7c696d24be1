// Bytes on their way from a device to the host.
#pragma once
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace tinyshard {

class PendingCopy {
 public:
  virtual ~PendingCopy() = default;
  // Tells whether they are there, without waiting. Throws as `wait` does.
  virtual bool arrived() = 0;
  // Waits for them; they stay there for as long as this lives. Throws what Device::copy_out throws.
  virtual std::span<const std::byte> wait() = 0;
};

// The copy of a device that copies at once.
class DoneCopy final : public PendingCopy {
 public:
  explicit DoneCopy(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  bool arrived() override { return true; }
  std::span<const std::byte> wait() override { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace tinyshard
