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
  EXPECT_NE(changed("/normalizer", {{"type", "Lowercase"}}).find("normalizer, \"Lowercase\""),
            std::string::npos);
  EXPECT_NE(changed("/model/type", "Unigram").find("only BPE"), std::string::npos);
  EXPECT_NE(changed("/model/byte_fallback", true).find("byte_fallback"), std::string::npos);
  EXPECT_NE(changed("/model/merges", {"x nothing"}).find("not in its vocabulary"),
            std::string::npos);
  EXPECT_NE(changed("/model/merges", {"x"}).find("two tokens"), std::string::npos);
  EXPECT_NE(changed("/model/vocab", {{"a", 2147483647}}).find("numbers up to"), std::string::npos);
  EXPECT_NE(changed("/model/vocab", {{"a", -1}}).find("number -1"), std::string::npos);
  EXPECT_NE(changed("/pre_tokenizer", {{"type", "Whitespace"}}).find("Whitespace"),
            std::string::npos);
  EXPECT_NE(changed("/added_tokens/0/lstrip", true).find("lstrip"), std::string::npos);
  EXPECT_NE(changed("/decoder", nullptr).find("decoder"), std::string::npos);
  EXPECT_NE(test::message_of<UserError>([] { Tokenizer::parse("[1]", "tokenizer.json"); }), "");
  EXPECT_NE(
      test::message_of<UserError>([] { Tokenizer("/nowhere/tokenizer.json"); }).find("/nowhere"),
      std::string::npos);
}

}  // namespace
}  // namespace tinyshard::tokenizer_test
