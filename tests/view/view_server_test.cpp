// A request is served if it names the address of the page with the key, and our host.
#include "cli/view_server.h"

#include <string>

#include <gtest/gtest.h>

namespace tinyshard::cli {
namespace {

constexpr const char* kKey = "0123abcd";
constexpr const char* kHost = "127.0.0.1:8000";

TEST(ViewServer, TheKeyOpensThePage) {
  EXPECT_EQ(answer_to("GET /0123abcd/ HTTP/1.1", kHost, kKey), 200);
  EXPECT_EQ(answer_to("GET /0123abcd/ HTTP/1.1", "localhost:8000", kKey), 200);
}

TEST(ViewServer, NobodyElseIsServed) {
  for (const char* path : {"/", "/0123abc/", "/0123abcd", "/0123abce/", "/0123abcd/x", "//",
                           "/0123abcd/?", "/../0123abcd/", "/%30123abcd/", "/0123ABCD/"})
    EXPECT_EQ(answer_to("GET " + std::string(path) + " HTTP/1.1", kHost, kKey), 403) << path;
  EXPECT_EQ(answer_to("GET /0123abcd/ HTTP/1.1", "evil.example:8000", kKey), 403);
  EXPECT_EQ(answer_to("GET /0123abcd/ HTTP/1.1", "", kKey), 403);
}

TEST(ViewServer, OtherRequests) {
  EXPECT_EQ(answer_to("POST /0123abcd/ HTTP/1.1", kHost, kKey), 405);
  EXPECT_EQ(answer_to("POST / HTTP/1.1", kHost, kKey), 403);
  for (const char* line : {"", "GET", "GET /0123abcd/", "GET /0123abcd/ FTP/1", "\r\n", "   "})
    EXPECT_EQ(answer_to(line, kHost, kKey), 400) << line;
}

}  // namespace
}  // namespace tinyshard::cli
