// A file without a name, in memory: what reads files reads bytes that came from elsewhere.
#pragma once
#include <cstddef>
#include <span>

#include "core/base/file.h"

namespace tinyshard {

// Holds a copy of the bytes. IoError where there is no memory for them.
OpenFile memory_file(std::span<const std::byte> bytes);

}  // namespace tinyshard
