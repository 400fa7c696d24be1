// The key of a job: who does not hold it joins nothing. 256 bits, used for HMAC-SHA256 only and
// never sent. It travels in the environment or in a file that only its owner can read, and on no
// command line. With it goes whether connections are encrypted, on which all of a job have to agree.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace tinyshard {

using Proof = std::array<std::byte, 32>;

class Secret {
 public:
  static Secret random();
  // Reads 64 hexadecimal digits, with white space around them. UserError naming `source` otherwise,
  // without the digits.
  static Secret parse(std::string_view text, std::string_view source);

  std::string text() const;
  // HMAC-SHA256 of the parts one after the other.
  Proof sign(std::initializer_list<std::span<const std::byte>> parts) const;
  // The key of one job of many that share a key.
  Secret for_job(std::string_view job) const;

  // True if connections whose ends prove this key are encrypted by it.
  bool encrypts() const { return encrypts_; }
  void set_encrypts(bool on) { encrypts_ = on; }

 private:
  std::array<std::byte, 32> key_ = {};
  bool encrypts_ = false;
};

// Returns whether two proofs are the same, in a time that does not depend on where they differ.
bool same(const Proof& a, const Proof& b);
void fill_random(std::span<std::byte> bytes);

// The key of `job` for this process: TS_JOB_KEY, else what stands in the file TS_JOB_KEY_FILE, else
// derived from the user's own key, $XDG_CONFIG_HOME/tinyshard/job.key (~/.config), which is made
// where there is none. A file that others can read or that others own is a UserError. It encrypts
// where TS_SECURE says so.
using VariableLookup = std::function<const char*(const char*)>;
Secret job_secret(std::string_view job, const VariableLookup& lookup);
Secret job_secret(std::string_view job);  // with the variables of this process

// TS_SECURE: 1 encrypts the connections of a job; 0, or none, does not. UserError for anything else.
bool wants_encryption(const VariableLookup& lookup);
bool wants_encryption();

}  // namespace tinyshard
