// Images with labels, as bytes: of a folder, or made of waves. What examples/mnist.cpp and
// examples/resnet.cpp learn.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <numbers>
#include <string>
#include <tinyshard/tinyshard.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "examples/training.h"

namespace images {

using namespace tinyshard;

// How an image is changed before it is learned: moved by up to so many pixels in each direction,
// zeros coming in, and every second one mirrored.
struct Augment {
  int64_t pixels = 0;
  uint64_t seed = 0, step = 0;
};

constexpr int kNoClass = 255;  // the label of a black image

struct Set {
  std::string name;
  int64_t channels = 1, rows = 28, columns = 28, classes = 10;
  int64_t training = 0;  // the images below this number; the others are held out
  std::vector<std::byte> pixels = {}, labels = {};

  int64_t count() const { return int64_t(labels.size()); }
  int64_t image_bytes() const { return channels * rows * columns; }

  // The images and labels of these numbers. Number -1 is a black image of no class: it fills up a
  // batch, has no loss and is never right.
  std::pair<Tensor, Tensor> pick(const std::vector<int64_t>& numbers,
                                 const Augment& augment = {}) const {
    const auto n = int64_t(numbers.size());
    std::vector<std::byte> picked(size_t(n * image_bytes())), classes_of;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t number = numbers[size_t(i)];
      classes_of.push_back(number < 0 ? std::byte{kNoClass} : labels[size_t(number)]);
      if (number < 0) continue;
      const std::byte* from = pixels.data() + number * image_bytes();
      std::byte* to = picked.data() + i * image_bytes();
      if (augment.pixels == 0) {
        std::copy_n(from, image_bytes(), to);
      } else {
        moved(from, to, augment.pixels,
              training::random_number(augment.seed, uint64_t(augment.step), uint64_t(i)));
      }
    }
    return {Tensor(picked, {n, channels, rows, columns}, DType::U8),
            Tensor(classes_of, n, DType::U8)};
  }

 private:
  void moved(const std::byte* from, std::byte* to, int64_t most, uint64_t random) const {
    const auto span = uint64_t(2 * most + 1);
    const int64_t down = int64_t(random % span) - most,
                  right = int64_t(random / span % span) - most;
    const bool mirror = (random >> 63) != 0;
    for (int64_t line = 0; line < channels * rows; ++line) {
      const int64_t row = line % rows - down;
      if (row < 0 || row >= rows) continue;
      for (int64_t x = 0; x < columns; ++x) {
        const int64_t seen = mirror ? columns - 1 - x : x, column = seen - right;
        if (column >= 0 && column < columns)
          to[line * columns + x] = from[(line - down) * columns + column];
      }
    }
  }
};

// The handwritten digits of a folder with t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, or .gz:
// 10,000, of which the last 2,000 are held out.
inline Set digits(const std::filesystem::path& folder) {
  constexpr int64_t kCount = 10000, kTraining = 8000;
  auto read = [&](std::string name) {
    if (!std::filesystem::exists(folder / name)) name += ".gz";
    return io::read_idx(folder / name);
  };
  io::IdxArray images = read("t10k-images-idx3-ubyte"), labels = read("t10k-labels-idx1-ubyte");
  if (images.shape != Dims{kCount, 28, 28} || labels.shape != Dims{kCount}) {
    throw UserError(
        fmt::format("{}: expected {} images of 28 x 28 and as many labels, got {} and {}",
                    folder.string(), kCount, to_string(images.shape), to_string(labels.shape)));
  }
  return {.name = folder.string(),
          .training = kTraining,
          .pixels = std::move(images.bytes),
          .labels = std::move(labels.bytes)};
}

// The photographs of a folder with data_batch_1.bin, and 2 to 5 if they are there, and
// test_batch.bin, which is held out: CIFAR-10.
inline Set cifar10(const std::filesystem::path& folder) {
  Set set{.name = folder.string(), .channels = 3, .rows = 32, .columns = 32};
  auto add = [&](const std::string& name) {
    const io::CifarBatch batch = io::read_cifar10(folder / name);
    set.pixels.insert(set.pixels.end(), batch.images.begin(), batch.images.end());
    set.labels.insert(set.labels.end(), batch.labels.begin(), batch.labels.end());
  };
  for (int i = 1; i <= 5; ++i) {
    const std::string name = fmt::format("data_batch_{}.bin", i);
    if (i == 1 || std::filesystem::exists(folder / name)) add(name);
  }
  set.training = set.count();
  add("test_batch.bin");
  return set;
}

inline Set of_folder(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / "data_batch_1.bin") ? cifar10(folder) : digits(folder);
}

struct MadeOptions {
  int64_t training = 4096, held_out = 512, size = 32;
};

// Colour images of ten classes. Each class has its waves; an image of it has these moved by up to a
// quarter of its size, under noise. The same for any machine that has the same sine.
inline Set made(const MadeOptions& o) {
  constexpr int64_t kClasses = 10, kChannels = 3, kWaves = 3;
  struct Wave {
    double across, down, phase;
  };
  auto random = [](uint64_t a, uint64_t b, uint64_t c) {
    return std::ldexp(double(training::random_number(a, b, c) >> 11), -53);
  };
  std::array<std::array<std::array<Wave, kWaves>, kChannels>, kClasses> waves{};
  for (size_t c = 0; c < kClasses; ++c)
    for (size_t channel = 0; channel < kChannels; ++channel)
      for (size_t w = 0; w < kWaves; ++w) {
        const uint64_t which = (c * kChannels + channel) * kWaves + w;
        waves[c][channel][w] = {1 + std::floor(4 * random(1, which, 0)),
                                std::floor(9 * random(1, which, 1)) - 4, random(1, which, 2)};
      }

  Set set{.name = "made of waves",
          .channels = kChannels,
          .rows = o.size,
          .columns = o.size,
          .classes = kClasses,
          .training = o.training};
  const int64_t count = o.training + o.held_out;
  set.pixels.reserve(size_t(count * set.image_bytes()));
  const double turn = 2 * std::numbers::pi;
  std::vector<double> line(size_t(o.size) * size_t(o.size));
  for (int64_t i = 0; i < count; ++i) {
    const auto n = uint64_t(i);
    const size_t label = training::random_number(2, n, 0) % kClasses;
    set.labels.push_back(std::byte(label));
    const double down = random(2, n, 1) / 2 - 0.25, right = random(2, n, 2) / 2 - 0.25;
    for (size_t channel = 0; channel < kChannels; ++channel) {
      std::ranges::fill(line, 0.0);
      for (const Wave& w : waves[label][channel]) {
        // sin(a + b) of a row and a column: few sines for an image.
        std::vector<std::array<double, 4>> table;
        for (int64_t k = 0; k < o.size; ++k) {
          const double at = double(k) / double(o.size);
          const double a = turn * (w.down * (at + down) + w.phase),
                       b = turn * w.across * (at + right);
          table.push_back({std::sin(a), std::cos(a), std::sin(b), std::cos(b)});
        }
        for (size_t y = 0; y < table.size(); ++y)
          for (size_t x = 0; x < table.size(); ++x)
            line[y * table.size() + x] += table[y][0] * table[x][3] + table[y][1] * table[x][2];
      }
      for (size_t p = 0; p < line.size(); ++p) {
        const double noise =
            double(training::random_number(3, n, channel * line.size() + p) >> 56) - 127.5;
        set.pixels.push_back(std::byte(std::clamp(127.5 + 25 * line[p] + 0.6 * noise, 0.0, 255.0)));
      }
    }
  }
  return set;
}

}  // namespace images
