// Makes the page of `tinyshard view`: one text of HTML with style, scripts and data inside, which a
// browser shows without a network. docs/view.md says what is on it.
//
//   const std::string page = view_page({{"run.tsview", text}, {"losses.jsonl", lines}});
//
// Data is never a part of a script: it is JSON in an element that browsers do not run, in which
// no character has a meaning for HTML. The page's policy forbids all scripts but its own, and all requests.
#pragma once
#include <string>
#include <vector>

namespace tinyshard {

struct ViewInput {
  std::string name;   // as it is shown
  std::string lines;  // of a .tsview file, or of JSON lines that a training wrote
};
// Lines that are no JSON are left out and counted on the page.
std::string view_page(const std::vector<ViewInput>& inputs);

// Reads the files, or those in folders that end with .tsview or .jsonl. UserError naming a path that cannot
// be read, or a folder without any.
std::vector<ViewInput> read_view_inputs(const std::vector<std::string>& paths);

}  // namespace tinyshard
