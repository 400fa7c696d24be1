// `tinyshard view` puts files that VIZ wrote into one page, and writes, opens or serves it. Example:
//   VIZ=run.tsview tinyshard run -n 4 -- ./train
//   tinyshard view run.rank*.tsview
// writes run.html, which a browser opens as it is.
#include "cli/view.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <spawn.h>
#include <sys/wait.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/view_server.h"
#include "core/base/error.h"
#include "view/perfetto.h"
#include "view/view_page.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace tinyshard::cli {
namespace {

struct ViewOptions {
  std::vector<std::string> files;
  std::string output, perfetto;
  int port = -1;
  bool open = false;
};

// run.tsview and run.rank0.tsview become run.html; a folder becomes view.html in it.
std::string page_of(const std::string& input) {
  std::filesystem::path path = input;
  if (std::filesystem::is_directory(path)) return (path / "view.html").string();
  path.replace_extension();
  if (path.extension().string().starts_with(".rank")) path.replace_extension();
  path += ".html";
  return path.string();
}

// The desktop's own program finds the browser; without one the path is all that there is.
void open_page(const std::string& path) {
  std::string program = "xdg-open", argument = path;
  char* const words[] = {program.data(), argument.data(), nullptr};
  pid_t child = 0;
  if (posix_spawnp(&child, program.c_str(), nullptr, nullptr, words, environ) != 0) return;
  int status = 0;
  waitpid(child, &status, 0);
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file)
    throw UserError(fmt::format("view: {} cannot be written: {}", path, std::strerror(errno)));
}

}  // namespace

std::string write_view(const std::vector<std::string>& paths, const std::string& output) {
  const std::string page = view_page(read_view_inputs(paths));
  std::string path = output.empty() ? page_of(paths.front()) : output;
  write_file(path, page);
  return path;
}

std::string write_job_view(const std::string& file) {
  const std::filesystem::path path = file;
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  const std::string begin = path.stem().string() + ".rank", end = path.extension().string();
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(begin) && name.ends_with(end)) found.push_back(entry.path().string());
  }
  std::ranges::sort(found);
  if (found.empty() && std::filesystem::exists(path)) found.push_back(file);
  if (found.empty()) return fmt::format("no rank of this host wrote {}", file);
  return "the page of the job is " + write_view(found, "");
}

void add_view(CLI::App& app, int& status) {
  auto options = std::make_shared<ViewOptions>();
  CLI::App* command =
      app.add_subcommand("view", "one page of what a program did, from the files that VIZ wrote");
  command
      ->add_option("files", options->files,
                   "Files of ranks (.tsview) and of trainings (JSON lines), or folders of them")
      ->required();
  command->add_option("-o,--output", options->output, "The page; by default beside the first file");
  command->add_option("--perfetto", options->perfetto,
                      "Writes all ranks into one file for ui.perfetto.dev instead of a page");
  command->add_flag("--open", options->open, "Opens it in the browser of the desktop");
  command
      ->add_option("--port", options->port,
                   "Serves the page, read anew for each look, at this port of the loopback instead "
                   "of writing it; 0: any. The address that is printed has the key")
      ->check(CLI::Range(0, 65535));
  command->callback([options, &status] {
    if (options->port >= 0) {
      status = serve_view(options->files, uint16_t(options->port));
      return;
    }
    if (!options->perfetto.empty()) {
      write_file(options->perfetto, perfetto_trace(read_view_inputs(options->files)));
      return;
    }
    const std::string path = write_view(options->files, options->output);
    std::cout << path << '\n';
    if (options->open) open_page(path);
  });
}

}  // namespace tinyshard::cli
