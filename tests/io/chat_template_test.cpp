// Texts of chats against those of Jinja itself (tests/io/chat_templates/make.py).
#include "io/chat_template.h"

#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/file.h"
#include "io/errors.h"
#include "tests/io/temp_folder.h"
#include "tests/message_of.h"

namespace tinyshard::chat_template_test {
namespace {

using nlohmann::ordered_json;

TEST(ChatTemplate, IsJinja) {
  const auto cases = ordered_json::parse(read_file(CHAT_TEMPLATES "/cases.json", 1 << 24));
  ASSERT_GT(cases.size(), 90u);
  for (const auto& row : cases) {
    const std::string source = row.at("template");
    const ChatOptions options{.add_generation_prompt = row.at("prompt"),
                              .variables = row.at("variables").dump()};
    const auto text = [&] {
      return ChatTemplate::parse(source, "t").of_json(row.at("messages").dump(), options);
    };
    if (row.at("text").is_null())
      EXPECT_NE(test::message_of<UserError>([&] { text(); }), "") << source;
    else
      EXPECT_EQ(text(), row.at("text").get<std::string>()) << source;
  }
}

TEST(ChatTemplate, IsReadFromAModelsFolder) {
  test::TempFolder folder;
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder / name) << text;
  };
  const std::vector<ChatMessage> talk{{"user", "Hi"}};
  write("tokenizer_config.json",
        R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template":
            "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{% if add_generation_prompt %}>{% endif %}"})");
  EXPECT_EQ(ChatTemplate(folder.path())(talk), "<s>Hi</s>>");
  EXPECT_EQ(ChatTemplate(folder.path())(talk, {.add_generation_prompt = false}), "<s>Hi</s>");
  write("chat_template.jinja", "{{ bos_token }}{{ name }}: {{ messages[0]['content'] }}\n");
  EXPECT_EQ(ChatTemplate(folder.path())(talk, {.variables = R"({"name": "Ann"})"}), "<s>Ann: Hi");
  EXPECT_EQ(ChatTemplate(folder / "chat_template.jinja")(talk), ": Hi");
  write("several.json", R"({"chat_template": [{"name": "default", "template": "a"},
                                              {"name": "tool_use", "template": "b"}]})");
  EXPECT_EQ(ChatTemplate(folder / "several.json")(talk), "a");
  EXPECT_EQ(ChatTemplate(folder / "several.json", "tool_use")(talk), "b");
  const auto refusal = [&](const char* file, const char* name) {
    return test::message_of<UserError>([&] { ChatTemplate(folder / file, name); });
  };
  EXPECT_NE(refusal("several.json", "rag").find(R"(named "rag"; it has "default" "tool_use")"),
            std::string::npos);
  write("none.json", "{}");
  EXPECT_NE(refusal("none.json", "default").find("no chat_template"), std::string::npos);
  EXPECT_NE(refusal("missing.json", "default").find("missing.json"), std::string::npos);
}

TEST(ChatTemplate, SaysWhatIsWrong) {
  const auto error = [](const std::string& source) {
    return test::message_of<UserError>([&] { ChatTemplate::parse(source, "t.jinja")({}); });
  };
  EXPECT_EQ(error("{{ raise_exception('Roles must take turns') }}"),
            "t.jinja: its chat template, line 1: the template refuses: Roles must take turns");
  EXPECT_EQ(error("a\n{% if x %}\n"), "t.jinja: its chat template, line 2: {% endif %} is missing");
  EXPECT_EQ(error("\n\n{{ 1 + }}"),
            "t.jinja: its chat template, line 3: a value is missing before the end of the tag");
  EXPECT_NE(error("{{ missing.name }}").find("an undefined value has no name"), std::string::npos);
  EXPECT_NE(error("{% include 'x' %}").find("{% include %} is not known here"), std::string::npos);
  EXPECT_NE(test::message_of<UserError>([] {
              ChatTemplate::parse("", "t")({}, {.variables = "[1]"});
            }).find("no JSON object"),
            std::string::npos);
}

// Whatever a file holds, its text ends, and takes bounded memory and stack.
TEST(ChatTemplate, Ends) {
  const auto error = [](const std::string& source) {
    return test::message_of<UserError>([&] { ChatTemplate::parse(source, "t")({}); });
  };
  const std::string loop = "{% for i in range(99999) %}", end = "{% endfor %}";
  EXPECT_NE(error(loop + loop + loop + end + end + end).find("ten million steps"),
            std::string::npos);
  EXPECT_NE(error("{% set n = namespace(s='a') %}" + loop + "{% set n.s = n.s ~ n.s %}" + end)
                .find("too long"),
            std::string::npos);
  EXPECT_NE(error("{{ 'a' * 1000000000000 }}").find("too long"), std::string::npos);
  EXPECT_NE(error("{{ ('a' * 1000000).replace('a', 'a' * 1000000) }}").find("too long"),
            std::string::npos);
  EXPECT_NE(error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").find("without end"),
            std::string::npos);
  for (const char* deep : {"(", "[", "-", "not ", "{'a':"}) {
    std::string many;
    for (int i = 0; i < 100'000; ++i) many += deep;
    EXPECT_NE(error("{{ " + many).find(""), std::string::npos);
  }
  std::string blocks;
  for (int i = 0; i < 100'000; ++i) blocks += "{% if x %}";
  EXPECT_NE(error(blocks).find("nested more than"), std::string::npos);
  EXPECT_NE(error("{{ range(1000000000) }}").find("more than 100000"), std::string::npos);
}

}  // namespace
}  // namespace tinyshard::chat_template_test
