// Values of files, read straight into the memory of the devices that shall hold them: each process
// reads the boxes of its own devices and nothing else, in large pieces, several at once.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "core/base/file_jobs.h"
#include "core/exec/file_buffer.h"
#include "core/exec/storage.h"
#include "multi/local_box.h"

namespace tinyshard {

// A part of a storage that this process has to fill from elsewhere, once. `replicas` are other
// local devices that hold the same box.
struct PartToFill {
  Storage* storage;
  size_t device;  // number in storage->devices()
  LocalBox box;
  std::vector<size_t> replicas;
  size_t bytes() const;  // without padding
};
std::vector<PartToFill> parts_to_fill(Storage& storage);

struct PartFill {
  Storage* storage;
  // Puts the elements of a box there, row-major. By several threads at once.
  std::function<void(const LocalBox&, std::span<std::byte>)> read;
};
// Calls read() once for each part that this process holds.
void fill_parts(std::span<const PartFill> fills, const ByteProgress& progress = {});

struct FileFill {
  Storage* storage;
  FileRegion region;  // of all its elements, row-major, in its type
};
// Rows of less than 2 KiB that lie close together are read with what is between them. IoError names
// the file.
void read_boxes(std::span<const FileFill> fills, const ByteProgress& progress = {});

}  // namespace tinyshard
