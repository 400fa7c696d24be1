// Serves the page on the loopback, to whoever knows the key in its address.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tinyshard::cli {

// Prints the address and serves until the process is told to end. UserError where the port is taken.
int serve_view(const std::vector<std::string>& files, uint16_t port);

struct Answer {
  int status = 0;                       // of the reply
  bool more = false;                    // asks for lines behind these positions, not for the page
  std::vector<int64_t> positions = {};  // in the files, in their order
};
// Says what a request's first line asks for. 200 for a GET of /KEY/ or of /KEY/more/12,400,0 alone; 403
// without the key, 405 for another method, 400 for what is no request.
Answer answer_to(std::string_view request_line, std::string_view host, std::string_view key);

}  // namespace tinyshard::cli
