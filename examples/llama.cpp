// Continues a text with a Llama from a folder as Hugging Face lays it out (config.json,
// tokenizer.json, safetensors) or from a GGUF file, its layers divided over every device given:
//
//   ./llama --model llama-1b --prompt "Once upon a time"
//   ./llama --model llama-1b --devices CPU:0,CPU:1 --temperature 0
//   mpirun -n 2 ./llama --model llama-1b-q8_0.gguf --dtype bf16
//
// One pass reads the prompt, and one captured step serves all positions behind it. The same seed
// gives the same text.
//
// Or trains one from scratch, on devices none of which could hold it:
//
//   ./llama train --tokens book.txt --save book
//   mpirun -n 8 ./llama train --tokens fineweb.bin --layers 32 --width 4096 --fsdp 2 --tp 2 --pp 2
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "examples/llama_gguf.h"
#include "examples/llama_model.h"
#include "examples/llama_sample.h"
#include "examples/llama_train.h"
#include "examples/training.h"

using namespace tinyshard;

constexpr int64_t kMostPositions = int64_t{1} << 30;

struct Flags {
  std::string model, tokenizer, prompt, dtype, scores;
  int64_t tokens = 128, cache = 0;
  llama::Sampling sampling;
  uint64_t seed = 1;
  bool check = false;
  training::DeviceFlags where;
};

struct Files {
  ModelConfig config;
  nn::StateDict tensors;  // under the names of llama::Model
  Tokenizer tokenizer;
  std::vector<double> slower;  // see llama::turns
};

Files open_files(const Flags& f) {
  if (!std::filesystem::is_regular_file(f.model)) {
    ModelConfig config = io::read_model_config(f.model);
    llama::check_config(config, f.model);
    nn::StateDict tensors = safe_load(f.model);
    llama::check_layers(config, tensors, f.model);
    return {std::move(config),
            std::move(tensors),
            Tokenizer(f.tokenizer.empty() ? f.model : f.tokenizer),
            {}};
  }
  const auto [kv, stored] = gguf_load(f.model);
  const llama::GgufKeys keys(kv, f.model);
  const ModelConfig config = llama::gguf_config(keys, stored);
  llama::check_config(config, f.model);
  std::vector<double> slower;
  if (const auto found = stored.find("rope_freqs.weight"); found != stored.end()) {
    slower = found->second.to_vector<double>();
    if (int64_t(slower.size()) != config.head_width / 2 ||
        !std::ranges::all_of(slower, [](double x) { return x > 0; }))
      keys.refuse(fmt::format("rope_freqs.weight is {}, not {} numbers above 0",
                              found->second.describe(), config.head_width / 2));
  }
  nn::StateDict tensors = llama::gguf_tensors(config, stored, keys);
  llama::check_layers(config, tensors, f.model);
  return {config, std::move(tensors),
          f.tokenizer.empty() ? llama::gguf_tokenizer(keys, f.model) : Tokenizer(f.tokenizer),
          slower};
}

void run(const Flags& f) {
  Runtime::configure({.devices = f.where.devices, .devices_per_rank = f.where.devices_per_rank});
  const Mesh mesh = Mesh::world({{"model", -1}});
  const bool first = world().rank == 0;
  std::ostream out(first ? std::cout.rdbuf() : nullptr);

  const auto [config, tensors, tokenizer, slower] = open_files(f);
  std::vector<int32_t> text = tokenizer.encode(f.prompt);
  if (text.empty())
    throw UserError("--prompt is empty, and the tokenizer begins texts with nothing");
  const auto prompt = int64_t(text.size());
  const int64_t more = f.scores.empty() ? f.tokens : 0;
  const int64_t positions = f.cache > 0 ? f.cache : prompt + more;
  if (prompt + more > positions)
    throw UserError(fmt::format("a prompt of {} tokens and --tokens {} do not fit --cache {}",
                                prompt, more, positions));
  if (config.context > 0 && positions > config.context)
    throw UserError(fmt::format("{} positions are more than the {} that {} was trained for",
                                positions, config.context, f.model));
  for (int32_t token : text) {
    if (token >= config.vocabulary)
      throw UserError(fmt::format("token {} of the prompt is beyond the {} words of {}", token,
                                  config.vocabulary, f.model));
  }

  set_default_float(f.dtype.empty() ? config.dtype.value_or(DType::F32) : dtype_from_name(f.dtype));
  const llama::Model model(config);
  llama::place(model, config, mesh, "model");
  nn::load_state_dict(model, tensors);
  const llama::Turns turns = llama::turns(config, positions, mesh, slower);
  const std::vector<llama::Cache> caches = llama::caches(config, positions, mesh, "model");

  if (!f.scores.empty()) {  // every rank has its part in them, one writes
    const Tensor tokens(text);
    const Tensor all = model.all(tokens.shard(mesh), turns).cast(DType::F32);
    safe_save(nn::StateDict{{"tokens", tokens}, {"scores", all}}, f.scores);
    return;
  }
  llama::Sampling sampling = f.sampling;
  if (f.check) sampling.temperature = 0;
  Tensor::manual_seed(f.seed);
  auto draw = [&](const Tensor& scores) { return llama::drawn(scores, sampling).shard(mesh); };
  Variable pos("pos", 0, std::max<int64_t>(positions - 1, 1));
  Jit step = [&](Tensor word, Variable p) { return draw(model.next(word, p, turns, caches)); };
  auto check = [&](int32_t word) {
    const std::vector<int32_t> list =
        model.all(Tensor(text).shard(mesh), turns).argmax(-1).to_vector<int32_t>();
    if (list.back() != word)
      throw UserError(fmt::format("position {}: {} is not {}", text.size() - 1, word, list.back()));
  };
  out << f.prompt << std::flush;
  TokenStream words(tokenizer);
  for (const int32_t token : text) words.next(token);
  Tensor word = draw(model.begin(Tensor(text).shard(mesh), turns, caches));
  HostCopy made = word.copy_to_host();
  for (int64_t i = 1; i <= f.tokens; ++i) {
    // The devices make the next word before this one is known here; behind an end it is for nothing.
    HostCopy next;
    if (i < f.tokens) {
      word = step(word, pos.bind(prompt + i - 1));
      next = word.copy_to_host();
    }
    const auto now = made.item<int32_t>();
    if (f.check) check(now);
    if (std::ranges::find(config.end_tokens, now) != config.end_tokens.end()) break;
    text.push_back(now);
    if (now < tokenizer.vocab_size()) out << words.next(now) << std::flush;
    made = next;
  }
  out << '\n';
  if (f.check) out << "each token is that of a pass over all tokens\n";
}

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  Flags f;
  llama::TrainFlags t;
  CLI::App app("Continues a text with a Llama, or trains one.");
  training::set_defaults(app);
  CLI::App* train = app.add_subcommand("train", "Trains a Llama from scratch");
  llama::add_train_options(*train, t);
  t.arguments.assign(argv, argv + argc);
  app.add_option("--model", f.model,
                 "Folder with config.json, tokenizer.json and safetensors, or a GGUF file");
  app.add_option("--tokenizer", f.tokenizer,
                 "tokenizer.json or its folder [the model's folder, or what the GGUF file says]");
  app.add_option("--prompt", f.prompt, "What the text begins with");
  app.add_option("--tokens", f.tokens, "How many to make at most")
      ->check(CLI::Range(int64_t{1}, kMostPositions));
  app.add_option("--cache", f.cache, "Positions of the cache; 0: those of the text")
      ->check(CLI::Range(int64_t{0}, kMostPositions));
  app.add_option("--temperature", f.sampling.temperature, "0 takes the most likely token")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--top-k", f.sampling.top_k, "Of this many best tokens; 0: of all")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--top-p", f.sampling.top_p,
                 "Of the fewest tokens that have this probability together")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--seed", f.seed, "Of what is drawn");
  app.add_option("--dtype", f.dtype, "f32, f64, bf16 or f16 [as the folder says]");
  app.add_flag("--check", f.check,
               "Take the most likely tokens, and compare each with a pass over all tokens so far");
  app.add_option("--scores", f.scores,
                 "Only write the prompt's tokens and the scores of all words behind each of them "
                 "there, as safetensors");
  training::add_device_options(app, f.where);
  app.callback([&] {
    if (!train->parsed() && f.model.empty()) throw CLI::RequiredError("--model, or train,");
  });
  return training::run_main("llama", app, argc, argv,
                            [&] { train->parsed() ? llama::train(t) : run(f); });
}
