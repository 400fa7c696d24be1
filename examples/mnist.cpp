// Learns handwritten digits with a multi-layer perceptron or a convnet. --data is a folder with
// t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte (.gz is fine): trains on the first 8,000 of the
// 10,000 images and tells its accuracy on the other 2,000.
//
//   ./mnist --data DIR                        ./mnist --data DIR --model mlp
//   ./mnist --data DIR --devices CPU:0,CPU:1  mpirun -n 4 ./mnist --data DIR
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <tinyshard/tinyshard.h>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "examples/images.h"
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

template <class Net>
void train(const Flags& f, const images::Set& digits) {
  const Mesh mesh = Mesh::world({{"data", -1}});
  const bool first = world().rank == 0;
  constexpr int64_t kEvaluated = 500;
  const int64_t held_out = digits.count() - digits.training;
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
  std::vector<int64_t> order(size_t(digits.training));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(f.seed);
  const int64_t steps = digits.training / f.batch;
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
  for (int64_t from = digits.training; from < digits.count(); from += kEvaluated) {
    std::vector<int64_t> numbers(kEvaluated);
    std::iota(numbers.begin(), numbers.end(), from);
    auto [images, labels] = digits.pick(numbers);
    correct += right(images, labels).template item<int64_t>();
  }
  if (first) {
    std::cout << fmt::format("accuracy {:.2f} % on {} held-out images\n",
                             100.0 * double(correct) / held_out, held_out);
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
    const images::Set digits = images::digits(f.data);
    f.model == "mlp" ? train<mnist::Mlp>(f, digits) : train<mnist::Convnet>(f, digits);
  });
}
