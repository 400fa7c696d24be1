// oneDNN behind plain specs: matrix products and convolutions for the CPU device. Only onednn*.cpp
// see oneDNN's headers; both its 2.x and its 3.x are understood. oneDNN never starts threads of its
// own here: each chunk of our pool calls it single-threaded. Creation is thread-safe and cached for
// the life of the process by (spec, threads): equal specs share one program. Runs of programs do
// not overlap (they share one scratch arena).
#pragma once
#include <memory>
#include <string>

#include "devices/cpu/library.h"

namespace tinyshard::onednn {

// False if oneDNN cannot run this; `why` (may be null) then names the reason with values.
bool supports(const MatmulSpec& spec, std::string* why = nullptr);
bool supports(const ConvSpec& spec, std::string* why = nullptr);

// The program for `threads` threads of a pool. Throws UserError if supports() is false, DeviceError
// if oneDNN fails to create it. For one thread count the results are the same bits on every run.
std::shared_ptr<const MatmulProgram> make_program(const MatmulSpec& spec, int threads);
std::shared_ptr<const ConvProgram> make_program(const ConvSpec& spec, int threads);

LibraryReport library_report();

}  // namespace tinyshard::onednn
