// IDX files begin with 0 0, the type and the number of dims, then sizes; all numbers are
// big-endian. Deflate expands a byte to 1032 at most, so a gzipped file of a kilobyte cannot claim
// more than about a megabyte: that is compared before memory is taken.
#include "io/dataset.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <zlib.h>

#include "io/checked.h"

namespace tinyshard::io {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian, and so are we");

constexpr size_t kMaxRowDims = 16;
constexpr uint64_t kDeflateRatio = 1032;  // the most that deflate expands a byte to

// The bytes of an IDX file in order, whether they are compressed or not.
class Source {
 public:
  Source(std::span<const std::byte> bytes, std::string_view label) : bytes_(bytes), label_(label) {
    if (bytes.size() < 2 || bytes[0] != std::byte{0x1f} || bytes[1] != std::byte{0x8b}) return;
    stream_ = std::make_unique<z_stream>();
    constexpr int kGzip = 16 + MAX_WBITS;
    if (inflateInit2(stream_.get(), kGzip) != Z_OK) throw InternalError("zlib initialises");
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  ~Source() {
    if (stream_) inflateEnd(stream_.get());
  }

  FormatError fail(std::string_view why) const {
    return FormatError(label_, fmt::format("not a valid IDX file: {}", why));
  }

  // The most bytes that can still follow: what a header may claim.
  uint64_t most() const {
    const uint64_t left = bytes_.size() - at_;
    return stream_ ? checked_mul(left + 64, kDeflateRatio).value_or(UINT64_MAX) : left;
  }

  // Fills `out`; returns how much there was.
  size_t read(std::span<std::byte> out) {
    size_t done = 0;
    if (!stream_) {
      done = std::min(out.size(), bytes_.size() - at_);
      if (done != 0) std::memcpy(out.data(), bytes_.data() + at_, done);
      at_ += done;
      return done;
    }
    constexpr size_t kMost = 1 << 30;  // zlib counts in 32 bits
    while (done < out.size() && !ended_) {
      const size_t give = std::min(bytes_.size() - at_, kMost),
                   want = std::min(out.size() - done, kMost);
      stream_->next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes_.data() + at_));
      stream_->avail_in = static_cast<uInt>(give);
      stream_->next_out = reinterpret_cast<Bytef*>(out.data() + done);
      stream_->avail_out = static_cast<uInt>(want);
      const int status = inflate(stream_.get(), Z_NO_FLUSH);
      at_ += give - stream_->avail_in;
      done += want - stream_->avail_out;
      if (status == Z_STREAM_END) {
        ended_ = true;
        if (at_ != bytes_.size())
          throw fail(fmt::format("{} bytes follow the gzip data", bytes_.size() - at_));
      } else if (status == Z_BUF_ERROR ||
                 (status == Z_OK && at_ == bytes_.size() && stream_->avail_out != 0)) {
        throw fail(fmt::format("its gzip data end after {} bytes, before they are complete",
                               bytes_.size()));
      } else if (status != Z_OK) {
        throw fail(fmt::format("its gzip data are damaged at byte {}", at_));
      }
    }
    return done;
  }

  // Returns whether nothing is left. Reads the gzip trailer, too, with its checksum.
  bool at_end() {
    std::byte one;
    return read(std::span(&one, 1)) == 0;
  }

 private:
  std::span<const std::byte> bytes_;
  std::string_view label_;
  size_t at_ = 0;
  std::unique_ptr<z_stream> stream_;
  bool ended_ = false;
};

std::optional<DType> idx_type(std::byte code) {
  switch (static_cast<int>(code)) {
    case 0x08:
      return DType::U8;
    case 0x09:
      return DType::I8;
    case 0x0b:
      return DType::I16;
    case 0x0c:
      return DType::I32;
    case 0x0d:
      return DType::F32;
    case 0x0e:
      return DType::F64;
    default:
      return std::nullopt;
  }
}

}  // namespace

IdxArray read_idx(const std::filesystem::path& path) {
  const MappedFile map(path);
  const std::string& label = path.native();
  Source source(map.bytes(), label);
  std::byte magic[4];
  if (source.read(magic) != 4) throw source.fail("it ends inside of its 4-byte magic number");
  const auto dtype = idx_type(magic[2]);
  if (magic[0] != std::byte{0} || magic[1] != std::byte{0} || !dtype) {
    throw source.fail(fmt::format("it begins with {:02x} {:02x} {:02x} {:02x}",
                                  static_cast<int>(magic[0]), static_cast<int>(magic[1]),
                                  static_cast<int>(magic[2]), static_cast<int>(magic[3])));
  }
  IdxArray array{*dtype, {}, {}};
  const auto dims = static_cast<size_t>(magic[3]);
  if (dims > kMaxRowDims)
    throw source.fail(fmt::format("it has {} dimensions, the limit is {}", dims, kMaxRowDims));
  for (size_t d = 0; d < dims; ++d) {
    std::byte big_endian[4];
    if (source.read(big_endian) != 4)
      throw source.fail(fmt::format("it ends inside of its {} dimensions", dims));
    uint32_t size = 0;
    for (std::byte b : big_endian) size = size << 8 | static_cast<uint32_t>(b);
    array.shape.push_back(size);
  }
  const auto shape = [&] { return fmt::format("{}", fmt::join(array.shape, "x")); };
  const auto bytes = checked_bytes(array.shape, itemsize(*dtype));
  if (!bytes || *bytes > source.most()) {
    throw source.fail(fmt::format("{} elements of {} are more than its {} bytes can hold", shape(),
                                  name(*dtype), map.bytes().size()));
  }
  array.bytes.resize(static_cast<size_t>(*bytes));
  if (const size_t got = source.read(array.bytes); got != array.bytes.size()) {
    throw source.fail(fmt::format("{} elements of {} take {} bytes, {} are there", shape(),
                                  name(*dtype), *bytes, got));
  }
  if (!source.at_end()) throw source.fail(fmt::format("bytes follow its {} elements", shape()));
  const size_t width = itemsize(*dtype);
  for (size_t i = 0; width > 1 && i < array.bytes.size(); i += width) {
    std::reverse(array.bytes.begin() + static_cast<ptrdiff_t>(i),
                 array.bytes.begin() + static_cast<ptrdiff_t>(i + width));
  }
  return array;
}

CifarBatch read_cifar10(const std::filesystem::path& path) {
  constexpr size_t kImage = 3 * 32 * 32, kRecord = 1 + kImage;
  constexpr int kClasses = 10;
  const MappedFile map(path);
  const std::span<const std::byte> data = map.bytes();
  const auto fail = [&](std::string_view why) {
    return FormatError(path.native(), fmt::format("not a valid CIFAR-10 batch: {}", why));
  };
  if (data.empty() || data.size() % kRecord != 0) {
    throw fail(fmt::format("its {} bytes are no whole number of images, which take {} each",
                           data.size(), kRecord));
  }
  CifarBatch batch;
  batch.images.reserve(data.size() / kRecord * kImage);
  for (size_t at = 0; at < data.size(); at += kRecord) {
    if (const int label = static_cast<int>(data[at]); label >= kClasses)
      throw fail(fmt::format("image {} has the label {}, of {}", at / kRecord, label, kClasses));
    const std::span<const std::byte> image = data.subspan(at + 1, kImage);
    batch.images.insert(batch.images.end(), image.begin(), image.end());
    batch.labels.push_back(data[at]);
  }
  return batch;
}

TokenFile::TokenFile(const std::filesystem::path& path) : map_(path) {
  constexpr int32_t kMagic = 20240520, kVersion = 1;
  constexpr size_t kHeaderBytes = 256 * sizeof(int32_t);
  std::span<const std::byte> data = map_.bytes();
  const auto fail = [&](std::string_view why) {
    return FormatError(path.native(), fmt::format("not a valid token file: {}", why));
  };
  int32_t header[3] = {};
  if (!data.empty()) std::memcpy(header, data.data(), std::min(data.size(), sizeof header));
  if (header[0] == kMagic) {
    if (data.size() < kHeaderBytes)
      throw fail(fmt::format("it has {} bytes, its header takes {}", data.size(), kHeaderBytes));
    if (header[1] != kVersion)
      throw fail(fmt::format("its version is {}, version {} (16-bit tokens) can be read", header[1],
                             kVersion));
    data = data.subspan(kHeaderBytes);
    if (header[2] < 0 || static_cast<uint64_t>(header[2]) * sizeof(uint16_t) != data.size()) {
      throw fail(
          fmt::format("it announces {} tokens and has {} bytes of them", header[2], data.size()));
    }
  } else if (data.size() % sizeof(uint16_t) != 0) {
    throw fail(fmt::format("it has no header, and {} bytes are no whole number of 16-bit tokens",
                           data.size()));
  }
  // A page-aligned map and a header of 1024 bytes: the tokens are aligned.
  tokens_ = {reinterpret_cast<const uint16_t*>(data.data()), data.size() / sizeof(uint16_t)};
}

}  // namespace tinyshard::io
