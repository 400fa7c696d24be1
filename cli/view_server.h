// Serves the page on the loopback, to whoever knows the key in its address.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tinyshard::cli {

// Prints the address and serves until the process is told to end. UserError where the port is taken.
int serve_view(const std::vector<std::string>& files, uint16_t port);

// Says what a request's first line is answered with: the status line's number. 200 for a GET of /KEY/
// alone, 403 without the key, 405 for another method, 400 for what is no request.
int answer_to(std::string_view request_line, std::string_view host, std::string_view key);

}  // namespace tinyshard::cli
