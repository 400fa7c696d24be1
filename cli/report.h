// The texts that the command prints; each function returns whole lines.
#pragma once
#include <string>

namespace tinyshard::cli {

std::string devices_report();
std::string environment_report();
std::string cache_report();
std::string clear_cache();

}  // namespace tinyshard::cli
