// Tokens against those of the reference library (tests/io/tokenizers/make.py), and what is said of
// files that ask for more than is known here.
#include "io/tokenizer.h"

#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/file.h"
#include "io/errors.h"
#include "tests/message_of.h"

namespace tinyshard::tokenizer_test {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

const std::string kFolder = TOKENIZERS;

TEST(Tokenizer, IsTheReferenceLibrary) {
  std::ifstream file(kFolder + "/vectors.json");
  const json vectors = json::parse(file);
  for (const char* name : {"gpt2", "llama3"}) {
    const Tokenizer tokenizer(kFolder + "/" + name + ".json");
    ASSERT_GT(vectors.at(name).size(), 100u);
    for (const json& row : vectors.at(name)) {
      const std::string text = row.at("text");
      EXPECT_EQ(tokenizer.encode(text), row.at("ids").get<Ids>()) << row.at("text");
      EXPECT_EQ(tokenizer.encode(text, false), row.at("plain").get<Ids>()) << row.at("text");
      EXPECT_EQ(tokenizer.decode(row.at("ids").get<Ids>()), row.at("decoded").get<std::string>())
          << row.at("text");
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false)), text);
    }
  }
}

// Patterns that other libraries read differently, added tokens that meet, spaces before pieces.
TEST(Tokenizer, IsTheReferenceLibraryOnVariants) {
  const json plain = json::parse(read_file(kFolder + "/gpt2.json", 1 << 20));
  const json variants = json::parse(read_file(kFolder + "/variants.json", 1 << 20));
  ASSERT_GT(variants.size(), 10u);
  for (const auto& [name, variant] : variants.items()) {
    json root = plain;
    root.merge_patch(variant.at("patch"));
    const Tokenizer tokenizer = Tokenizer::parse(root.dump(), name);
    for (const json& row : variant.at("texts"))
      EXPECT_EQ(tokenizer.encode(row.at(0).get<std::string>()), row.at(1).get<Ids>())
          << name << " " << row.at(0);
  }
}

// Other models than byte-level BPE: as Llama 2, Mistral, Gemma, BERT, T5 and CLIP have them, and drawn
// at random.
TEST(Tokenizer, IsTheReferenceLibraryOnOtherModels) {
  const json models = json::parse(read_file(kFolder + "/models.json", 1 << 24));
  ASSERT_GT(models.size(), 30u);
  for (const auto& [name, model] : models.items()) {
    const Tokenizer tokenizer = Tokenizer::parse(model.at("config").dump(), name);
    for (const json& row : model.at("texts")) {
      const Ids ids = row.at(1).get<Ids>();
      EXPECT_EQ(tokenizer.encode(row.at(0).get<std::string>()), ids) << name << " " << row.at(0);
      if (row.at(2).is_null()) continue;
      EXPECT_EQ(tokenizer.decode(ids, true), row.at(2).get<std::string>())
          << name << " " << ids.size();
    }
  }
}

// A token that is decoded behind others gives what it adds to their text.
TEST(Tokenizer, DecodesTokenByToken) {
  const json models = json::parse(read_file(kFolder + "/models.json", 1 << 24));
  for (const char* name : {"Llama 2", "Mistral", "Gemma", "T5", "BERT"}) {
    const Tokenizer tokenizer = Tokenizer::parse(models.at(name).at("config").dump(), name);
    for (const json& row : models.at(name).at("texts")) {
      Ids text;  // many times over, so that the window of the stream moves
      for (int i = 0; i < 5; ++i)
        for (const int32_t id : row.at(1).get<Ids>()) text.push_back(id);
      TokenStream stream(tokenizer);
      std::string all;
      for (const int32_t id : text) all += stream.next(id);
      EXPECT_EQ(all, tokenizer.decode(text)) << name << " " << row.at(0);
    }
  }
}

TEST(Tokenizer, TakesBytesThatAreNoText) {
  const json models = json::parse(read_file(kFolder + "/models.json", 1 << 24));
  for (const auto& [name, model] : models.items()) {
    const Tokenizer tokenizer = Tokenizer::parse(model.at("config").dump(), name);
    std::string all = "the ";
    for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
    EXPECT_FALSE(tokenizer.encode(all).empty()) << name;
    const std::string longest(1 << 18, 'a');  // quadratic work would take minutes
    tokenizer.decode(tokenizer.encode(longest));
  }
}

// The spelling of a byte may be an added token as well: decoding takes it for the byte.
TEST(Tokenizer, AnAddedTokenMayBeALetterOfBytes) {
  json root = json::parse(read_file(kFolder + "/gpt2.json", 1 << 20));
  root["added_tokens"].push_back({{"id", 330}, {"content", "\u00c5"}});
  const Tokenizer tokenizer = Tokenizer::parse(root.dump(), "tokenizer.json");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("\u0151")), "\u0151");
}

TEST(Tokenizer, ManyAddedTokensCostNothing) {
  json root = json::parse(read_file(kFolder + "/gpt2.json", 1 << 20));
  for (int i = 0; i < 5000; ++i)
    root["added_tokens"].push_back({{"id", 400 + i}, {"content", fmt::format("<|{}|>", i)}});
  const Tokenizer tokenizer = Tokenizer::parse(root.dump(), "tokenizer.json");
  EXPECT_EQ(tokenizer.encode("<|4999|>"), Ids{5399});
  const std::string longest(1 << 20, 'a');  // to compare each token at each letter takes minutes
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(longest)), longest);
}

// A tokenizer that cuts by these patterns, one after the other.
Tokenizer cutting_by(const std::vector<std::string>& patterns) {
  json root = json::parse(read_file(kFolder + "/gpt2.json", 1 << 20));
  json cuts = json::array();
  for (const std::string& pattern : patterns)
    cuts.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}});
  cuts.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  root["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", cuts}};
  return Tokenizer::parse(root.dump(), "tokenizer.json");
}

TEST(Tokenizer, RefusesWhatIsNoPattern) {
  const auto refusal = [](const std::vector<std::string>& patterns) {
    return test::message_of<io::FormatError>([&] { cutting_by(patterns); });
  };
  EXPECT_EQ(refusal({"a{2}{b"}), "");
  EXPECT_EQ(refusal({"\\\\g[p:punct:\\]]"}), "");
  EXPECT_EQ(refusal({"("}),
            "tokenizer.json: its pattern \"(\" is no regular expression: end pattern with "
            "unmatched parenthesis");
  for (const auto& [pattern, what] : std::vector<std::pair<std::string, std::string>>{
           {"[a", "premature end of char-class"},
           {"\\", "end pattern at escape"},
           {"\\u12", "invalid code point value"},
           {"\\xe9", "too short multibyte code string"},
           {"\\p{\x1b}", "invalid character property name {}"},
           {"a{100001}", "too big number for repeat range"},
           {"(?<a>a\\g<a>?)", "has a call of a group"},
           {"(?L)a|ab", "undefined group option"},
           {std::string(300, '(') + std::string(300, ')'), "parse depth limit over"},
           {std::string(16385, 'a'), "more than 100 patterns or 16384 bytes of them"}})
    EXPECT_NE(refusal({pattern}).find(what), std::string::npos) << refusal({pattern});
  EXPECT_EQ(refusal(std::vector<std::string>(100, "a")), "");
  EXPECT_NE(refusal(std::vector<std::string>(101, "a")).find("more than 100"), std::string::npos);
}

TEST(Tokenizer, PatternsEnd) {
  const std::string words = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx 12";
  const auto error = [&](const std::string& pattern, const std::string& text) {
    const Tokenizer tokenizer = cutting_by({pattern});
    return test::message_of<UserError>([&] { tokenizer.encode(text); });
  };
  EXPECT_EQ(error("(x+x+)+y", words),
            "tokenizer.json: its pattern cannot be matched: retry-limit-in-match over");
  // It never goes back, and remembers all the ways that it could go.
  EXPECT_EQ(error("(?:(?=(?:x|y)*)x)*", std::string(4000, 'x')),
            "tokenizer.json: its pattern cannot be matched: match-stack limit over");
  // The second match would be the first one again.
  EXPECT_NE(error("(?<=\\Kx)", words).find("it matches from byte 0 to byte 1"), std::string::npos);
  EXPECT_NE(error("(*ERROR{-5})", words).find("fail to memory allocation"), std::string::npos);
  EXPECT_EQ(error("\\b|", words), "");
  EXPECT_EQ(error("(?:x|\\d|\\s)+", std::string(1 << 20, 'x')), "");
}

TEST(Tokenizer, TakesAnyBytes) {
  const Tokenizer tokenizer(kFolder + "/llama3.json");
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  for (const std::string& text : {all, std::string("\xff\xc3"), std::string("\xed\xa0\x80 x"),
                                  std::string("\xf4\x90\x80\x80")})
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false)), text);
  const std::string longest(1 << 20, 'a');  // one word: quadratic work would take hours
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(longest, false)), longest);
}

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer tokenizer(kFolder + "/llama3.json");
  EXPECT_EQ(tokenizer.id("<|end|>"), 1);
  EXPECT_EQ(tokenizer.id("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.vocab_size(), 330);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("hi"), true), "hi");
  const Ids beyond{330};
  EXPECT_NE(test::message_of<UserError>([&] { tokenizer.decode(beyond); }).find("no token 330"),
            std::string::npos);
}

TEST(Tokenizer, RefusesWhatItDoesNotKnow) {
  const json good = json::parse(read_file(kFolder + "/gpt2.json", 1 << 20));
  const auto refusal = [](const json& root) {
    return test::message_of<io::FormatError>(
        [&] { Tokenizer::parse(root.dump(), "tokenizer.json"); });
  };
  EXPECT_EQ(refusal(good), "");
  const auto changed = [&](const char* pointer, const json& value) {
    json copy = good;
    copy[json::json_pointer(pointer)] = value;
    return refusal(copy);
  };
  const auto refused = [&](const char* pointer, const json& value, const char* why) {
    const std::string said = changed(pointer, value);
    EXPECT_NE(said.find(why), std::string::npos) << pointer << ": " << said;
  };
  refused("/normalizer", {{"type", "Uppercase"}}, "normalizer, \"Uppercase\"");
  refused("/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}}, "no table");
  refused("/model/type", "Trigram", "BPE, Unigram, WordPiece and WordLevel");
  refused("/model/type", "WordPiece", "unk_token");
  refused("/model/dropout", 0.5, "dropout");
  refused("/model/merges", {"x nothing"}, "not in its vocabulary");
  refused("/model/merges", {"x"}, "two tokens");
  refused("/model/vocab", {{"a", -1}}, "number -1");
  refused("/model/vocab", json::array({json::array({"a"})}), "without a score");
  refused("/model/vocab", json::array({json::array({1.0})}), "without a token");
  refused("/pre_tokenizer", {{"type", "UnicodeScripts"}}, "UnicodeScripts");
  refused("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}, "not one character");
  refused("/added_tokens/0/id", 2147483647, "numbers up to");
  refused("/added_tokens/0/content", "", "no content");
  refused("/decoder", {{"type", "CTC"}}, "CTC");
  EXPECT_NE(test::message_of<UserError>([] { Tokenizer::parse("[1]", "tokenizer.json"); }), "");
  EXPECT_NE(
      test::message_of<UserError>([] { Tokenizer("/nowhere/tokenizer.json"); }).find("/nowhere"),
      std::string::npos);
}

}  // namespace
}  // namespace tinyshard::tokenizer_test
