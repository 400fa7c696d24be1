// A request is served if it names the address of the page with the key, and our host.
#include "cli/view_server.h"

#include <string>

#include <gtest/gtest.h>

namespace tinyshard::cli {
namespace {

constexpr const char* kKey = "0123abcd";
constexpr const char* kHost = "127.0.0.1:8000";

TEST(ViewServer, TheKeyOpensThePage) {
  EXPECT_EQ(answer_to("GET /0123abcd/ HTTP/1.1", kHost, kKey).status, 200);
  EXPECT_EQ(answer_to("GET /0123abcd/ HTTP/1.1", "localhost:8000", kKey).status, 200);
}

TEST(ViewServer, NobodyElseIsServed) {
  for (const char* path : {"/", "/0123abc/", "/0123abcd", "/0123abce/", "/0123abcd/x", "//",
                           "/0123abcd/?", "/../0123abcd/", "/%30123abcd/", "/0123ABCD/"})
    EXPECT_EQ(answer_to("GET " + std::string(path) + " HTTP/1.1", kHost, kKey).status, 403) << path;
  EXPECT_EQ(answer_to("GET /0123abcd/ HTTP/1.1", "evil.example:8000", kKey).status, 403);
  EXPECT_EQ(answer_to("GET /0123abcd/ HTTP/1.1", "", kKey).status, 403);
}

TEST(ViewServer, MoreLinesHavePositions) {
  const Answer answer = answer_to("GET /0123abcd/more/12,400,0 HTTP/1.1", kHost, kKey);
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.more);
  EXPECT_EQ(answer.positions, (std::vector<int64_t>{12, 400, 0}));
  EXPECT_EQ(answer_to("GET /0123abcd/more/ HTTP/1.1", kHost, kKey).status, 200);
  EXPECT_FALSE(answer_to("GET /0123abcd/ HTTP/1.1", kHost, kKey).more);
  for (const char* path : {"more", "more/-1", "more/1,", "more/,1", "more/1,,2", "more/1x",
                           "more/../../etc/passwd", "more/99999999999999999999", "more/1/2"})
    EXPECT_EQ(answer_to("GET /0123abcd/" + std::string(path) + " HTTP/1.1", kHost, kKey).status,
              403)
        << path;
  EXPECT_EQ(answer_to("GET /0123abce/more/1 HTTP/1.1", kHost, kKey).status, 403);
  EXPECT_EQ(answer_to("POST /0123abcd/more/1 HTTP/1.1", kHost, kKey).status, 405);
}

TEST(ViewServer, OtherRequests) {
  EXPECT_EQ(answer_to("POST /0123abcd/ HTTP/1.1", kHost, kKey).status, 405);
  EXPECT_EQ(answer_to("POST / HTTP/1.1", kHost, kKey).status, 403);
  for (const char* line : {"", "GET", "GET /0123abcd/", "GET /0123abcd/ FTP/1", "\r\n", "   "})
    EXPECT_EQ(answer_to(line, kHost, kKey).status, 400) << line;
}

}  // namespace
}  // namespace tinyshard::cli
