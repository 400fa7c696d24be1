// Learns handwritten digits with a multi-layer perceptron or a convnet. --data is a folder with
// t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte (.gz is fine): trains on the first 8,000 of the
// 10,000 images and tells its accuracy on the other 2,000.
//
//   ./mnist --data DIR                        ./mnist --data DIR --model mlp
//   ./mnist --data DIR --devices CPU:0,CPU:1  mpirun -n 4 ./mnist --data DIR
#include <filesystem>
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <tinyshard/tinyshard.h>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "examples/mnist_model.h"
#include "examples/training.h"

using namespace tinyshard;

struct Flags {
  std::string data, model = "convnet";
  int64_t epochs = 2, batch = 128;
  double lr = 1e-3;
  uint64_t seed = 1;
  training::DeviceFlags where;
};

// The images and labels of a folder.
class Digits {
 public:
  static constexpr int64_t kCount = 10000, kTraining = 8000, kPixels = 28 * 28;

  explicit Digits(const std::filesystem::path& folder) {
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
    images_ = std::move(images.bytes);
    labels_ = std::move(labels.bytes);
  }

  // The images and labels of these numbers, as bytes.
  std::pair<Tensor, Tensor> pick(const std::vector<int64_t>& numbers) const {
    std::vector<std::byte> images, labels;
    for (int64_t n : numbers) {
      images.insert(images.end(), images_.begin() + n * kPixels,
                    images_.begin() + (n + 1) * kPixels);
      labels.push_back(labels_[size_t(n)]);
    }
    int64_t count = int64_t(numbers.size());
    return {Tensor(images, {count, 1, 28, 28}, DType::U8), Tensor(labels, count, DType::U8)};
  }

 private:
  std::vector<std::byte> images_, labels_;
};

template <class Net>
void train(const Flags& f, const Digits& digits) {
  const Mesh mesh = Mesh::world({{"data", -1}});
  const bool first = world().rank == 0;
  constexpr int64_t kHeldOut = Digits::kCount - Digits::kTraining, kEvaluated = 500;
  for (int64_t batch : {f.batch, kEvaluated}) {
    if (batch % mesh.size() == 0) continue;
    throw UserError(
        fmt::format("a batch of {} images does not divide among {} devices", batch, mesh.size()));
  }

  Tensor::manual_seed(f.seed);
  Net net;
  nn::data_parallel(net, mesh, "data");
  nn::optim::Adam optim(nn::parameters(net), {.lr = f.lr});

  auto pixels = [&](const Tensor& images) {
    return images.shard(mesh, {{"data", Shard(0)}}).cast(default_float()) / 255.0;
  };
  Jit step = [&](Tensor images, Tensor labels) {
    TrainingMode on;
    optim.zero_grad();
    Tensor target = labels.shard(mesh, {{"data", Shard(0)}});
    Tensor loss = net(pixels(images)).sparse_categorical_crossentropy(target).backward();
    optim.step();
    return loss;
  };
  Jit right = [&](Tensor images, Tensor labels) {
    Tensor guess = net(pixels(images)).argmax(-1);
    return (guess == labels.shard(mesh, {{"data", Shard(0)}})).sum();
  };

  // Every epoch has its order of the training images: the same for any number of devices.
  std::vector<int64_t> order(Digits::kTraining);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(f.seed);
  const int64_t steps = Digits::kTraining / f.batch;
  for (int64_t epoch = 0; epoch < f.epochs; ++epoch) {
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    auto bar =
        progress(steps, fmt::format("epoch {}", epoch + 1), {.enabled = first, .unit = "step"});
    for (int64_t i : bar) {
      auto [images, labels] =
          digits.pick({order.begin() + i * f.batch, order.begin() + (i + 1) * f.batch});
      bar.show("loss", step(images, labels).template item<double>());
    }
  }

  int64_t correct = 0;
  for (int64_t from = Digits::kTraining; from < Digits::kCount; from += kEvaluated) {
    std::vector<int64_t> numbers(kEvaluated);
    std::iota(numbers.begin(), numbers.end(), from);
    auto [images, labels] = digits.pick(numbers);
    correct += right(images, labels).template item<int64_t>();
  }
  if (first) {
    std::cout << fmt::format("accuracy {:.2f} % on {} held-out images\n",
                             100.0 * double(correct) / kHeldOut, kHeldOut);
  }
}

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  Flags f;
  CLI::App app("Learns handwritten digits.");
  training::set_defaults(app);
  app.add_option("--data", f.data,
                 "Folder with t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, or .gz")
      ->required();
  app.add_option("--model", f.model, "mlp or convnet")->check(CLI::IsMember({"mlp", "convnet"}));
  app.add_option("--epochs", f.epochs, "Times that each image is seen")->check(CLI::PositiveNumber);
  app.add_option("--batch", f.batch, "Images a step, over all devices")->check(CLI::Range(1, 8000));
  app.add_option("--lr", f.lr, "Learning rate")->check(CLI::PositiveNumber);
  app.add_option("--seed", f.seed, "Of the weights and of the order of images");
  training::add_device_options(app, f.where);
  return training::run_main("mnist", app, argc, argv, [&] {
    Runtime::configure({.devices = f.where.devices, .devices_per_rank = f.where.devices_per_rank});
    Digits digits(f.data);
    f.model == "mlp" ? train<mnist::Mlp>(f, digits) : train<mnist::Convnet>(f, digits);
  });
}
