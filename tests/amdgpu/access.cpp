// Checks accesses of a lane: bounds, alignment, what was written, and races between waves.
#include "tests/amdgpu/access.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "tests/amdgpu/device_memory.h"

namespace amdgpu_emulator {
namespace {

constexpr std::uint16_t kNobody = 0xffff;
constexpr std::uint16_t kSeveral = 0xfffe;

[[noreturn]] void race(const Wave& w, std::uint64_t address, int other, const char* what,
                       int lane) {
  throw Fault(
      "a race: wave " + std::to_string(w.number) + " " + what + " LDS word " +
          std::to_string(address / 4 * 4) + " that " +
          (other == kSeveral ? "other waves read" : "wave " + std::to_string(other) + " uses") +
          " without a barrier between",
      lane);
}

void note_word(Wave& w, std::uint64_t address, std::uint8_t mask, Use use, bool same, int lane) {
  LocalWord& word = w.group->local_words[address / 4];
  if (word.epoch != w.group->epoch) {
    const std::uint8_t defined = word.defined;
    word = {};
    word.epoch = w.group->epoch;
    word.defined = defined;
  }
  const auto self = static_cast<std::uint16_t>(w.number);
  const bool written_by_other =
      word.writer != kNobody && word.writer != self && (word.written & mask) != 0;
  if (use == Use::Read) {
    if (written_by_other) {
      race(w, address, word.writer, "reads", lane);
    }
    word.reader = word.reader == kNobody || word.reader == self ? self : kSeveral;
    word.read |= mask;
  } else if (use == Use::Write) {
    const bool read_by_other =
        word.reader != kNobody && word.reader != self && (word.read & mask) != 0;
    if (!same && (written_by_other || read_by_other)) {
      race(w, address, written_by_other ? word.writer : word.reader, "writes", lane);
    }
    word.written = static_cast<std::uint8_t>(word.writer == self ? word.written | mask : mask);
    word.writer = self;
  }
  if (use != Use::Read) {
    word.defined |= mask;
  }
}

}  // namespace

std::uint8_t* local_at(Wave& w, std::uint64_t address, unsigned bytes, int lane, Use use,
                       const void* written, bool* defined) {
  Workgroup& group = *w.group;
  if (address + bytes > group.local.size()) {
    throw Fault("LDS out of bounds: " + std::to_string(bytes) + " bytes at " +
                    std::to_string(address) + " of " + std::to_string(group.local.size()),
                lane);
  }
  if (use == Use::Atomic && address % bytes != 0) {
    throw Fault("a misaligned atomic: LDS address " + std::to_string(address), lane);
  }
  std::uint8_t* at = group.local.data() + address;
  const bool same = written != nullptr && std::memcmp(at, written, bytes) == 0;
  for (unsigned done = 0; done < bytes;) {
    const std::uint64_t here = address + done;
    const unsigned in_word = static_cast<unsigned>(here % 4);
    const unsigned count = std::min(4 - in_word, bytes - done);
    const auto mask = static_cast<std::uint8_t>(((1U << count) - 1) << in_word);
    if (use != Use::Write && defined != nullptr &&
        (group.local_words[here / 4].defined & mask) != mask) {
      *defined = false;
    }
    note_word(w, here, mask, use, same, lane);
    done += count;
  }
  return at;
}

std::uint8_t* scratch_at(Wave& w, std::uint64_t address, unsigned bytes, int lane) {
  if (address + bytes > w.scratch_bytes) {
    throw Fault("scratch out of bounds: " + std::to_string(bytes) + " bytes at " +
                    std::to_string(address) + " of " + std::to_string(w.scratch_bytes),
                lane);
  }
  return w.scratch.data() + static_cast<std::size_t>(lane) * w.scratch_bytes + address;
}

std::uint8_t* flat_at(Wave& w, std::uint64_t address, unsigned bytes, int lane, Use use, bool flat,
                      const void* written, bool* defined) {
  const std::uint64_t aperture = address >> 48;
  if (flat && aperture == 1) {
    return local_at(w, address & 0xffffffffULL, bytes, lane, use, written, defined);
  }
  if (flat && aperture == 2) {
    return scratch_at(w, address & 0xffffffffULL, bytes, lane);
  }
  if (use == Use::Atomic && address % bytes != 0) {
    throw Fault("a misaligned atomic at address " + std::to_string(address), lane);
  }
  try {
    return w.memory->at(w.device, address, bytes);
  } catch (const Fault& fault) {
    throw Fault(fault.what(), lane);
  }
}

void check_defined(const Wave& w, const char* what) {
  const std::uint64_t missing = w.exec & ~w.defined & w.all_lanes();
  if (missing != 0) {
    throw Fault(std::string(what) + " comes from a register that was never written",
                std::countr_zero(missing));
  }
}

}  // namespace amdgpu_emulator
