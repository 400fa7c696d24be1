// A text goes through five parts, each of which the file describes (tokenizers/):
//
//   "Hi there<|end|>"    added tokens are cut out        "Hi there", <|end|>
//   "Hi there"           a normalizer changes texts      "Hi there"
//   "Hi there"           a pre-tokenizer cuts words      "Hi", "Ġthere"
//   "Ġthere"             a model finds tokens            Ġthe re
//   Hi Ġthe re <|end|>   a template adds tokens          <|begin|> Hi Ġthe re <|end|>
//
// Added tokens that the file calls normalized are looked for behind the normalizer, in the texts that
// the others leave.
#include "io/tokenizer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/file.h"
#include "io/errors.h"
#include "io/tokenizers/added_tokens.h"
#include "io/tokenizers/decoder.h"
#include "io/tokenizers/file.h"
#include "io/tokenizers/model.h"
#include "io/tokenizers/normalizer.h"
#include "io/tokenizers/part.h"
#include "io/tokenizers/pre_tokenizer.h"
#include "io/tokenizers/unicode.h"

namespace tinyshard {

using tokenizers::Part;

namespace {

constexpr uint64_t kMaxFile = 1 << 30;

}  // namespace

struct Tokenizer::Data {
  std::string label;
  std::unique_ptr<tokenizers::Model> model;
  tokenizers::AddedTokens added, added_normalized;
  std::unordered_map<std::string, int32_t>
      beside_model;                   // added tokens that the model does not have
  std::vector<std::string> spelling;  // of each token, as the file has it
  std::vector<bool> special;
  tokenizers::Normalizer normalizer;
  tokenizers::PreTokenizer pre_tokenizer;
  tokenizers::Decoder decoder;
  std::vector<int32_t> before, after;  // what the template adds

  Data(tokenizers::TokenizerFile file, std::string_view name) : label(name) {
    const Part root(file.rest, label);
    normalizer = tokenizers::Normalizer(root["normalizer"]);
    pre_tokenizer = tokenizers::PreTokenizer(root["pre_tokenizer"]);
    decoder = tokenizers::Decoder(root["decoder"]);
    model = tokenizers::make_model(root["model"], std::move(file.tables));
    spell(root);
    read_added(root["added_tokens"]);
    read_template(root["post_processor"]);
  }

  std::optional<int32_t> id(const std::string& token) const {
    if (auto found = beside_model.find(token); found != beside_model.end()) return found->second;
    if (auto found = model->vocab().find(token); found != model->vocab().end())
      return found->second;
    return std::nullopt;
  }

  void spell(const Part& root) {
    int64_t largest = 0;
    size_t count = model->vocab().size();
    for (const auto& [token, number] : model->vocab()) largest = std::max<int64_t>(largest, number);
    for (const Part& token : root["added_tokens"].items()) {
      largest = std::max(largest, token.number("id", 0));
      ++count;
    }
    if (count == 0 || static_cast<size_t>(largest) > 16 * count + 1024)
      throw root.error(fmt::format("{} tokens have numbers up to {}", count, largest));
    spelling.resize(static_cast<size_t>(largest) + 1);
    special.resize(spelling.size());
    for (const auto& [token, number] : model->vocab())
      spelling[static_cast<size_t>(number)] = token;
  }

  void read_added(const Part& list) {
    if (!list.missing() && !list.json().is_array())
      throw list.error("its added_tokens are no list");
    for (const Part& token : list.items()) {
      tokenizers::AddedToken added_token{token.text("content")};
      const int64_t number = token.number("id", -1);
      if (added_token.content.empty() || number < 0 || number > INT32_MAX)
        throw token.error("an added token has no content or no number");
      added_token.single_word = token.flag("single_word", false);
      added_token.lstrip = token.flag("lstrip", false);
      added_token.rstrip = token.flag("rstrip", false);
      // An added token that the model's vocabulary has, too, keeps the number that it has there.
      if (const auto known = id(added_token.content)) {
        added_token.id = *known;
      } else {
        added_token.id = static_cast<int32_t>(number);
        beside_model.emplace(added_token.content, added_token.id);
        spelling[static_cast<size_t>(number)] = added_token.content;
      }
      special[static_cast<size_t>(added_token.id)] = token.flag("special", false);
      if (token.flag("normalized", false)) {
        added_token.content = normalizer(added_token.content);
        added_normalized.add(std::move(added_token));
      } else {
        added.add(std::move(added_token));
      }
    }
  }

  // A post-processor puts special tokens around the text: <s> $A </s>.
  void read_template(const Part& part) {
    const std::string type = part.type();
    if (type.empty() || type == "ByteLevel") return;
    if (type == "Sequence") {
      for (const Part& inner : part["processors"].items()) read_template(inner);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      before.push_back(token_and_number(part["cls"]));
      after.push_back(token_and_number(part["sep"]));
    } else if (type == "TemplateProcessing") {
      bool behind = false;
      for (const Part& piece : part["single"].items()) {
        behind |= !piece["Sequence"].missing();
        if (!piece["Sequence"].missing()) continue;
        auto& out = behind ? after : before;
        for (const int32_t token : of_template(part, piece["SpecialToken"].text("id")))
          out.push_back(token);
      }
    } else {
      throw part.error(fmt::format("its post_processor is {}", io::in_quotes(type)));
    }
  }

  int32_t known(const Part& part, const nlohmann::json& number) const {
    if (!number.is_number_integer() || number < 0 ||
        number.get<int64_t>() >= static_cast<int64_t>(spelling.size()))
      throw part.error("its template names a token that is not there");
    return number.get<int32_t>();
  }

  // ["[CLS]", 101]
  int32_t token_and_number(const Part& part) const {
    const auto items = part.items();
    if (items.size() != 2) throw part.error("its template names a token that is not there");
    return known(part, items[1].json());
  }

  // The tokens that a name of the template stands for; mostly one, of that name.
  std::vector<int32_t> of_template(const Part& part, const std::string& name) const {
    std::vector<int32_t> out;
    for (const Part& number : part["special_tokens"][name.c_str()]["ids"].items())
      out.push_back(known(part, number.json()));
    if (!out.empty()) return out;
    const auto found = id(name);
    if (!found) throw part.error("its template names a token that is not there");
    return {*found};
  }

  // Bytes that are no UTF-8 are words of one byte.
  void encode_plain(std::string_view text, bool first, std::vector<int32_t>& out) const {
    const auto word = [&](std::string_view w) { model->encode(w, out); };
    while (!text.empty()) {
      const size_t good = tokenizers::valid_utf8(text);
      pre_tokenizer.cut(text.substr(0, good), first, word);
      if (good == text.size()) break;
      const std::string_view byte = text.substr(good, 1);
      word(pre_tokenizer.is_byte_level() ? tokenizers::in_byte_letters(byte) : std::string(byte));
      text.remove_prefix(good + 1);
      first = false;
    }
  }

  void encode(std::string_view text, std::vector<int32_t>& out) const {
    const auto token = [&](int32_t id) { out.push_back(id); };
    added.cut(
        text,
        [&](std::string_view rest, size_t begin) {
          bool cut = begin > 0;
          const std::string normalized = normalizer(rest, cut);
          added_normalized.cut(
              normalized,
              [&](std::string_view plain, size_t at) { encode_plain(plain, !cut && at == 0, out); },
              token);
        },
        token);
  }
};

Tokenizer::Tokenizer(std::unique_ptr<Data> data) : data_(std::move(data)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::parse(std::string_view text, std::string_view label) {
  return Tokenizer(std::make_unique<Data>(tokenizers::read_tokenizer_file(text, label), label));
}

Tokenizer::Tokenizer(const std::filesystem::path& path)
    : Tokenizer([&] {
        std::error_code ignored;
        const auto file =
            std::filesystem::is_directory(path, ignored) ? path / "tokenizer.json" : path;
        return parse(read_file(file, kMaxFile), file.native());
      }()) {}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  std::vector<int32_t> out;
  if (add_special) out = data_->before;
  data_->encode(text, out);
  if (add_special) out.insert(out.end(), data_->after.begin(), data_->after.end());
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> tokens, bool skip_special) const {
  std::vector<std::string> spelled;
  for (const int32_t token : tokens) {
    if (token < 0 || static_cast<size_t>(token) >= data_->spelling.size())
      throw UserError(fmt::format("{} has no token {}: its numbers end at {}", data_->label, token,
                                  vocab_size() - 1));
    if (!skip_special || !data_->special[static_cast<size_t>(token)])
      spelled.push_back(data_->spelling[static_cast<size_t>(token)]);
  }
  return data_->decoder(std::move(spelled));
}

std::optional<int32_t> Tokenizer::id(std::string_view token) const {
  return data_->id(std::string(token));
}

std::string TokenStream::next(int32_t token) {
  // A token's text depends on whether it is the first, and on bytes of a character before it.
  constexpr size_t kWindow = 16;
  window_.push_back(token);
  const std::string text = tokenizer_->decode(window_, skip_special_);
  std::string out = text.substr(std::min(text_, text.size()));
  text_ = text.size();
  if (window_.size() > 2 * kWindow) {
    window_.erase(window_.begin(), window_.end() - kWindow);
    text_ = tokenizer_->decode(window_, skip_special_).size();
  }
  return out;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(data_->spelling.size()); }

}  // namespace tinyshard
