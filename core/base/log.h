// The library's voice: lines for DEBUG, sent to a sink that the program may replace.
#pragma once
#include <functional>
#include <string_view>

namespace tinyshard {

using LogSink = std::function<void(std::string_view line)>;

// Replaces where lines go; the default writes to stderr, prefixed with the rank when there are
// several. An empty function restores the default. Call it before other threads log.
void set_log_sink(LogSink sink);

void log_line(std::string_view line);
// Lines begin with "[rank] " from now on; set when the world is known.
void set_log_rank(int rank);

}  // namespace tinyshard
