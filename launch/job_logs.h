// A file for the output of each rank: rank-0.log, and rank-0.attempt-1.log when the job was started
// again. Those of the job before in the same folder are kept as rank-0.log.old.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace tinyshard {

class JobLogs {
 public:
  // Without a folder it writes nothing. `tell` gets a sentence about each file that cannot be written
  // on, once: a log stops no job. UserError where the logs of the first ranks cannot be begun.
  JobLogs(std::string folder, int ranks, int attempt, std::function<void(const std::string&)> tell);
  ~JobLogs();
  JobLogs(const JobLogs&) = delete;
  JobLogs& operator=(const JobLogs&) = delete;

  void write(int rank, std::string_view text, bool line_ends);
  void add_rank(int rank);  // started later; tells where its log cannot be begun

 private:
  struct Log {
    std::string path;
    int fd = -1;
  };
  bool open_log(int rank);

  std::string folder_;
  int attempt_;
  std::function<void(const std::string&)> tell_;
  std::map<int, Log> logs_;
};

}  // namespace tinyshard
