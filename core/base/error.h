// The four kinds of error a caller can meet. Each says whose fault it is; messages carry values.
//   UserError     the call is wrong (shapes, names, files, environment): fix the program
//   DeviceError   a device failed or ran out of something
//   CommError     a peer is gone, late or diverged; every survivor gets one
//   InternalError an invariant of tinyshard does not hold: our bug
#pragma once
#include <cstdint>
#include <source_location>
#include <stdexcept>
#include <string>

namespace tinyshard {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class UserError : public Error {
 public:
  using Error::Error;
};

class DeviceError : public Error {
 public:
  using Error::Error;
};

class InternalError : public Error {
 public:
  explicit InternalError(const std::string& what,
                         std::source_location where = std::source_location::current());
};

// Who stopped, in which operation, and when. `peer` is -1 where the transport cannot tell, and
// `process` ("process 812 on node02") is empty where nobody has told who the peer is.
struct CommErrorInfo {
  int rank = -1;
  int peer = -1;
  std::string process = {};
  std::string operation = {};
  uint64_t sequence = 0;
  double elapsed_s = 0;
  std::string detail = {};
};

class CommError : public Error {
 public:
  explicit CommError(CommErrorInfo info);
  const CommErrorInfo& info() const { return info_; }

 private:
  CommErrorInfo info_;
};

// Invariant of our own code; `what` says what should have held.
inline void check_internal(bool holds, const char* what,
                           std::source_location where = std::source_location::current()) {
  if (!holds) throw InternalError(what, where);
}

}  // namespace tinyshard
