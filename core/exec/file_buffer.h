// The bytes of a file as a value.
#pragma once
#include <memory>
#include <string>

#include "core/base/file.h"
#include "core/uop/uop.h"

namespace tinyshard {

class Storage;

// A Buffer on DISK:0 over `shape` elements of the file from byte `offset` on, in the machine's byte
// order. The file is mapped, not read; writes to the value stay in memory. A page or less is read
// at once. Copies to devices read what they copy, whatever the offset is; where it is no multiple
// of 64, the first kernel that reads the value brings all of it to memory. UserError names the
// path, what it holds and what was asked for.
UOp file_buffer(const std::string& path, DimSpan shape, DType dtype, int64_t offset);

// Bytes of an open file, from `offset` on.
struct FileRegion {
  std::shared_ptr<const OpenFile> file;
  std::string path;
  uint64_t offset = 0;
};
// Makes such a Buffer over a file that is open, for values that nobody writes to: region_of() knows
// them.
UOp file_buffer(const FileRegion& region, DimSpan shape, DType dtype);

// Where the elements of `value` lie in a file, all of them and row-major; nothing where it is
// anything but what a file holds, reshaped or brought to a device.
const FileRegion* region_of(const UOp& value);
// Returns where the elements of a storage lie in a file; null if it may be written to.
const FileRegion* region_of(const Storage& storage);

}  // namespace tinyshard
