// Readers of small dataset formats: IDX (MNIST), plain or gzipped, the binary batches of CIFAR-10, and
// the token files of llm.c.
// Files are untrusted: sizes in headers are compared with the bytes that are there before anything
// is allocated. FormatError says what does not fit.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "core/base/file.h"
#include "core/dtype/dtype.h"
#include "io/errors.h"

namespace tinyshard::io {

struct IdxArray {
  DType dtype = DType::U8;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;  // row-major, in this machine's byte order
};

// train-images-idx3-ubyte, ...-ubyte.gz (told by content, not by name). Types u8 i8 i16 i32 f32
// f64.
IdxArray read_idx(const std::filesystem::path& path);

struct CifarBatch {
  std::vector<std::byte> images;  // 3 x 32 x 32 each: red, green, blue
  std::vector<std::byte> labels;  // 0 to 9
};

// data_batch_1.bin, test_batch.bin: a byte of label and 3072 of image, again and again.
CifarBatch read_cifar10(const std::filesystem::path& path);

// A token file: 256 int32 (20240520, 1, number of tokens, zeros), then the tokens as u16; or the
// tokens alone. Mapped: the tokens are read when they are touched, and live as long as this object.
class TokenFile {
 public:
  explicit TokenFile(const std::filesystem::path& path);
  std::span<const uint16_t> tokens() const { return tokens_; }

 private:
  MappedFile map_;
  std::span<const uint16_t> tokens_;
};

}  // namespace tinyshard::io
