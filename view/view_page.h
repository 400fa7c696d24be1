// Makes the page of `tinyshard view`: one text of HTML with style, scripts and data inside, which a
// browser shows without a network. docs/view.md says what is on it.
//
//   const std::string page = view_page({{"run.tsview", text}, {"losses.jsonl", lines}});
//
// Data is never a part of a script: it is JSON in an element that browsers do not run, in which
// no character has a meaning for HTML. The page's policy forbids all scripts but its own, and all requests.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tinyshard {

struct ViewInput {
  std::string name;   // as it is shown
  std::string lines;  // of a .tsview file, or of JSON lines that a training wrote
  int64_t at = 0;     // up to which byte of its file these are, for a page that follows it
  bool anew = false;  // the file was begun anew: lines that the page has of it are of a former run
};
// Lines that are no JSON are left out and counted on the page. A page that follows asks its own server for
// more lines (ViewFollower), and for nothing else.
std::string view_page(const std::vector<ViewInput>& inputs, bool follows = false);
// Returns the JSON that the page has of these inputs, in which no character has a meaning for HTML.
std::string view_data(const std::vector<ViewInput>& inputs, bool follows = false);

// Reads the files, or those in folders that end with .tsview or .jsonl. UserError naming a path that cannot
// be read, or a folder without any.
std::vector<ViewInput> read_view_inputs(const std::vector<std::string>& paths);
// Returns the files that are meant, those of a folder in the order of their names. Errors as above.
std::vector<std::string> view_files(const std::vector<std::string>& paths);

}  // namespace tinyshard
