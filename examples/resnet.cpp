// Trains a ResNet on images, on every device it is given:
//
//   ./resnet                                     a small one on images that it makes
//   ./resnet --data cifar-10-batches-bin --model 18 --dtype bf16 --augment 4 --steps 4000
//   ./resnet --data mnist --devices CPU:0,CPU:1  several devices of one process
//   mpirun -n 4 ./resnet                         a device for each rank
//   mpirun -n 8 ./resnet --model 50 --size 224 --space 2 --tp 2   large images, divided
//
// The same seed and batch give the same losses for all of these, and a run that was stopped goes on
// (--resume) as if it had not been.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <string>
#include <tinyshard/tinyshard.h>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "examples/images.h"
#include "examples/resnet_model.h"
#include "examples/training.h"
#include "examples/training_run.h"

using namespace tinyshard;

struct Flags : training::RunFlags {
  std::string model = "20", data;
  images::MadeOptions made;
  int64_t width = 0, batch = 128, augment = 0, eval_every = 50, space = 1, tp = 1;
  double momentum = 0.9, weight_decay = 5e-4;
  bool shard_optimizer = false;
};

// Settings that a run must have in common with the checkpoint that it goes on from.
training::Settings settings(const Flags& f) {
  return {{"model", f.model},
          {"width", std::to_string(f.width)},
          {"batch", std::to_string(f.batch)},
          {"augment", std::to_string(f.augment)},
          {"seed", std::to_string(f.seed)},
          {"dtype", f.dtype}};
}

// Devices: "data" x "space" x "model". Batches are divided over the first, the rows of an image over
// the second, channels over the third; "data" is what the others leave.
Mesh mesh_of(const Flags& f) {
  const auto devices = int64_t(world().devices.size());
  if (devices % (f.space * f.tp) != 0)
    throw UserError(
        fmt::format("--space {} x --tp {} does not divide {} devices", f.space, f.tp, devices));
  std::vector<MeshAxis> axes{{"data", -1}};
  if (f.space > 1) axes.push_back({"space", f.space});
  if (f.tp > 1) axes.push_back({"model", f.tp});
  return Mesh::world(axes);
}

// Every epoch has its order of the training images: the same for any number of devices, and for a
// run that goes on.
class Order {
 public:
  Order(int64_t images, int64_t batch, uint64_t seed)
      : batch_(batch), seed_(seed), numbers_(size_t(images)) {}

  std::vector<int64_t> batch(int64_t step) {
    const int64_t steps = int64_t(numbers_.size()) / batch_, epoch = step / steps,
                  from = step % steps * batch_;
    if (epoch != epoch_) {
      epoch_ = epoch;
      std::iota(numbers_.begin(), numbers_.end(), 0);
      for (size_t i = numbers_.size(); i > 1; --i)
        std::swap(numbers_[i - 1],
                  numbers_[training::random_number(seed_, uint64_t(epoch), i) % i]);
    }
    return {numbers_.begin() + from, numbers_.begin() + from + batch_};
  }

 private:
  int64_t batch_, epoch_ = -1;
  uint64_t seed_;
  std::vector<int64_t> numbers_;
};

void train(const Flags& f) {
  Runtime::configure({.devices = f.where.devices, .devices_per_rank = f.where.devices_per_rank});
  const DType compute = dtype_from_name(f.dtype);
  set_default_float(promote(compute, DType::F32));
  const Mesh mesh = mesh_of(f);
  if (const int64_t parts = mesh.size() / f.space / f.tp; f.batch % parts != 0)
    throw UserError(fmt::format("--batch {} does not divide among {} devices", f.batch, parts));
  const images::Set set = f.data.empty() ? images::made(f.made) : images::of_folder(f.data);
  const int64_t held_out = set.count() - set.training;
  if (f.batch > set.training)
    throw UserError(fmt::format("--batch {} is more than the {} images of {}", f.batch,
                                set.training, set.name));

  Tensor::manual_seed(f.seed);
  resnet::Config config;
  for (const auto& [name, known] : resnet::sizes()) {
    if (name == f.model) config = known;
  }
  config.width = f.width > 0 ? f.width : config.width;
  config.channels = set.channels;
  config.classes = set.classes;
  config.large_images = set.rows >= 96;
  const resnet::Model model(config);
  resnet::place(model, mesh);
  nn::optim::SGD optim(nn::parameters(model), {.lr = f.lr,
                                               .momentum = f.momentum,
                                               .weight_decay = f.weight_decay,
                                               .nesterov = true,
                                               .shard_axis = f.shard_optimizer ? "data" : ""});

  nn::StateDict state = nn::state_dict(model, "model");
  state.merge(nn::state_dict(optim, "optimizer"));
  training::Run run("resnet", f, std::move(state), settings(f));

  auto scores = [&](const Tensor& pixels) {
    std::vector<AxisPlacement> parts{{"data", Shard(0)}};
    if (f.space > 1) parts.emplace_back("space", Shard(2));
    Tensor x = pixels.shard(mesh, parts).cast(default_float()) / 64.0 - 2.0;
    return model(x.cast(compute)).cast(default_float());
  };
  Jit step = [&](Tensor pixels, Tensor labels) {
    TrainingMode on;
    optim.zero_grad();
    Tensor target = labels.shard(mesh, {{"data", Shard(0)}});
    Tensor loss = scores(pixels).sparse_categorical_crossentropy(target).backward();
    optim.step();
    return loss;
  };
  // The sum of the losses, and how many are right.
  Jit evaluate = [&](Tensor pixels, Tensor labels) {
    Tensor target = labels.shard(mesh, {{"data", Shard(0)}}), all = scores(pixels);
    Tensor loss = all.sparse_categorical_crossentropy(
        target, {.ignore_index = images::kNoClass, .reduction = Reduction::Sum});
    return stack({loss, (all.argmax(-1) == target).sum().cast(loss.dtype())});
  };
  auto report = [&] {
    double loss = 0, right = 0;
    for (int64_t from = set.training; from < set.count(); from += f.batch) {
      std::vector<int64_t> numbers(size_t(f.batch), -1);
      std::iota(numbers.begin(), numbers.begin() + std::min(f.batch, set.count() - from), from);
      const auto [pixels, labels] = set.pick(numbers);
      const std::vector<double> sums = evaluate(pixels, labels).to_vector<double>();
      loss += sums[0], right += sums[1];
    }
    return fmt::format("held out loss {:.4f}, accuracy {:.2f} %", loss / double(held_out),
                       100 * right / double(held_out));
  };

  int64_t parameters = 0;
  for (const Tensor& p : optim.params()) parameters += p.numel();
  run.out() << fmt::format("devices     {}\n", training::device_names(mesh))
            << fmt::format("model       ResNet-{}, {} wide: {} parameters, {}\n", f.model,
                           config.width, parameters, f.dtype)
            << fmt::format("images      {}: {} and {} held out, {} x {} x {}\n", set.name,
                           set.training, held_out, set.channels, set.rows, set.columns)
            << fmt::format("step        {} images\n", f.batch);
  Order order(set.training, f.batch, f.seed);
  run.train("images", f.batch, [&](int64_t i, double lr) {
    optim.set_lr(lr);
    const auto [pixels, labels] =
        set.pick(order.batch(i), {.pixels = f.augment, .seed = f.seed, .step = uint64_t(i)});
    const double loss = step(pixels, labels).item<double>();
    if (held_out > 0 && f.eval_every > 0 && (i + 1) % f.eval_every == 0 && i + 1 < f.steps)
      run.print(fmt::format("step {}: {}", i + 1, report()));
    return loss;
  });
  if (held_out > 0 && !run.was_told_to_end()) run.out() << report() << "\n";
  run.say_how_to_go_on();
}

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  Flags f;
  CLI::App app("Trains a ResNet on images.");
  training::set_defaults(app);
  std::vector<std::string> models;
  for (const auto& [name, config] : resnet::sizes()) models.push_back(name);
  auto group = [&](const char* name) { app.option_defaults()->group(name); };
  group("Model");
  app.add_option("--model", f.model, "Layers; 8 and 20 are for images of 32 x 32")
      ->check(CLI::IsMember(models));
  app.add_option("--width", f.width, "Channels of the first stage; 0: the model's")
      ->check(CLI::NonNegativeNumber);
  group("Images");
  app.add_option("--data", f.data,
                 "Folder with data_batch_1.bin and test_batch.bin (CIFAR-10), or with "
                 "t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte (MNIST) [makes images itself]");
  app.add_option("--images", f.made.training, "How many to make")->check(CLI::PositiveNumber);
  app.add_option("--held-out", f.made.held_out, "How many more, to tell the accuracy on")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--size", f.made.size, "Rows and columns of those")->check(CLI::Range(4, 1024));
  app.add_option("--augment", f.augment,
                 "Move images by up to so many pixels and mirror every second one")
      ->check(CLI::NonNegativeNumber);
  group("Training");
  app.add_option("--batch", f.batch, "Images a step, over all devices")->check(CLI::PositiveNumber);
  app.add_option("--momentum", f.momentum, "Of SGD")->check(CLI::Range(0.0, 1.0));
  app.add_option("--weight-decay", f.weight_decay, "Of all weights")->check(CLI::NonNegativeNumber);
  app.add_option("--eval-every", f.eval_every, "Steps between accuracies; 0: only at the end")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--space", f.space, "Devices among which the rows of an image are divided")
      ->check(CLI::PositiveNumber);
  app.add_option("--tp", f.tp, "Devices among which the channels of a block are divided")
      ->check(CLI::PositiveNumber);
  app.add_flag("--shard-optimizer", f.shard_optimizer,
               "Keep each device's part of the optimizer state only");
  group("Run");
  training::add_run_options(app, f, "resnet");
  f.arguments.assign(argv, argv + argc);
  return training::run_main("resnet", app, argc, argv, [&] { train(f); });
}
