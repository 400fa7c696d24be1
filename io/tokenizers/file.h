// Reads a tokenizer.json: vocabulary and merges piece by piece into tables, since they are long, and
// the rest, which is short, as a tree.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/json.h"
#include "io/tokenizers/model.h"

namespace tinyshard::tokenizers {

struct TokenizerFile {
  ModelTables tables;
  nlohmann::json rest;
};

// FormatError with `label` where the text is no tokenizer.json.
TokenizerFile read_tokenizer_file(std::string_view text, std::string_view label);

}  // namespace tinyshard::tokenizers
