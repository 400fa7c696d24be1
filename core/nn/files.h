// Models in files of other programs: PyTorch, llama.cpp, NumPy. Values stay in the files until
// something uses them, as those of safe_load do; what is wrong with a file is a UserError
// (io::FormatError) that names the file, the offset and the tensor, when it is loaded. A tensor of a
// type that has no values here is refused when it is used, and keeps no other from loading.
//
//   nn::StateDict weights = torch_load("model.pth");
//   auto [settings, tensors] = gguf_load("model-q4_k.gguf");
//   nn::load_state_dict(model, npz_load("weights.npz"));
//
// Each takes the bytes of a whole file as well, which it copies: of memory, or of a tensor of u8.
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>
#include <utility>

#include "core/nn/state_dict.h"
#include "io/value.h"

namespace tinyshard::nn {

// The tensors of a file that torch.save wrote, in any of its formats: zip archive, sequence of
// pickles, tar. Tensors inside of dicts and lists are named by their path, "model.0.weight"; a
// single tensor is "". No code of a pickle is run: what a state dict does not need is refused, but
// for settings that training programs keep there (argparse.Namespace), which are left out.
StateDict torch_load(const std::filesystem::path& path, Caller caller = Caller::current());
StateDict torch_load(std::span<const std::byte> bytes, Caller caller = Caller::current());
StateDict torch_load(const Tensor& bytes, Caller caller = Caller::current());
// Loads the tensors, and puts what is no tensor into `other`: numbers, texts, bools and Nones by
// their path.
StateDict torch_load(const std::filesystem::path& path, io::ValueMap& other,
                     Caller caller = Caller::current());
StateDict torch_load(std::span<const std::byte> bytes, io::ValueMap& other,
                     Caller caller = Caller::current());
StateDict torch_load(const Tensor& bytes, io::ValueMap& other, Caller caller = Caller::current());

// The key/values and tensors of a GGUF file, or of all files of a split model by the path of one.
// Quantised tensors (core/nn/gguf_formats.cpp has their types) are f32, computed from the file's
// blocks where they are used; names and shapes are as in the file, outermost dim first.
std::pair<io::ValueMap, StateDict> gguf_load(const std::filesystem::path& path,
                                             Caller caller = Caller::current());
std::pair<io::ValueMap, StateDict> gguf_load(std::span<const std::byte> bytes,
                                             Caller caller = Caller::current());
std::pair<io::ValueMap, StateDict> gguf_load(const Tensor& bytes,
                                             Caller caller = Caller::current());

// Read an array of NumPy (.npy), and the arrays of a .npz archive by their names.
Tensor npy_load(const std::filesystem::path& path, Caller caller = Caller::current());
Tensor npy_load(std::span<const std::byte> bytes, Caller caller = Caller::current());
Tensor npy_load(const Tensor& bytes, Caller caller = Caller::current());
StateDict npz_load(const std::filesystem::path& path, Caller caller = Caller::current());
StateDict npz_load(std::span<const std::byte> bytes, Caller caller = Caller::current());
StateDict npz_load(const Tensor& bytes, Caller caller = Caller::current());
// Writes a .npy file, whole or not at all. In a job of several ranks all of them call it and rank 0
// writes. UserError for bf16, which NumPy does not have.
void npy_save(const Tensor& tensor, const std::filesystem::path& path,
              Caller caller = Caller::current());

}  // namespace tinyshard::nn

namespace tinyshard {
using nn::gguf_load;
using nn::npy_load;
using nn::npy_save;
using nn::npz_load;
using nn::torch_load;
}  // namespace tinyshard
