// Makes system calls of this process fail on order: the test program's own write, pwrite, fsync,
// close, rename and readdir stand before those of the C library. One fault at a time, not for
// several threads.
#pragma once
#include <string>

namespace tinyshard::test {

// The n-th call from now (1 is the next) of "write" (pwrite counts as one), "fsync", "close",
// "rename" or "readdir" gives `error`; every call after it, too, when `sticky`.
void fail_call(const std::string& call, int n, int error, bool sticky = false);
// No more faults. Returns whether the last one was met.
bool clear_faults();
// Calls of `call` since fail_call or clear_faults.
int calls_of(const std::string& call);

}  // namespace tinyshard::test
