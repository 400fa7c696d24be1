// Rings as their readers see them: checked, decoded, in the order of the calls.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/runtime/communicator.h"
#include "transport/recorder/ring_file.h"

namespace tinyshard::recorder {

struct RecordedCall {
  RecordKind kind = RecordKind::Call;
  uint64_t serial = 0, group = 0, sequence = 0, counts_hash = 0;
  Collective call;  // without counts; `site` as far as it was recorded
  std::string group_name;
  std::vector<int> ranks;  // of the group
  int64_t started_ns = 0;  // wall clock, as all times here
  std::optional<int64_t> completed_ns;

  bool under_way() const { return kind == RecordKind::Call && !completed_ns; }
};
// "all_reduce sum f32 x 64 on mesh axis "data" (call 15 of group "world"; train.cpp:21)".
std::string describe(const RecordedCall& call);

enum class ProcessState { Runs, Stopped, Ended, OutOfSight };

struct RankRing {
  Origin origin;
  uint64_t started = 0;
  int64_t beat_ns = 0;
  Ending ending = Ending::Running;
  int exit_status = 0;
  struct Failure {
    FailureCause cause = FailureCause::Unknown;
    int culprit = -1;
    int64_t at_ns = 0;
    std::string text;
  };
  std::optional<Failure> failure;
  std::vector<RecordedCall> calls;                  // the oldest first
  ProcessState process = ProcessState::OutOfSight;  // at the time of reading

  int rank() const { return origin.rank; }
  uint32_t formation() const { return origin.epoch >> 16; }
  // When this rank last showed that it runs.
  int64_t last_sign_ns() const;
  std::string who()
      const;  // "rank 2 (process 812 on node02)", "rank 1, launched as 2, (process..."
};

// Returns who wrote this file; nothing where it is no ring of this version.
std::optional<Origin> read_origin(const std::filesystem::path& path);
ProcessState look_at(const Origin& origin);
// Returns a name of the job and its start; all rings of one start have the same.
std::string start_of(const Origin& origin);

// UserError or IoError that names the path and what is wrong with it, where the file is no ring, of
// another version, shorter than it says, or changed after it was written.
RankRing read_ring(const std::filesystem::path& path);

// The rings of one job, by rank.
struct JobRings {
  std::vector<RankRing> rings;
  // Earlier formations of a job that went on without some of its ranks, or with new ones: their
  // rings, the oldest first.
  std::vector<std::vector<RankRing>> earlier;
  std::vector<std::string> problems;  // a sentence for each file that could not be used

  const Origin& origin() const { return rings.front().origin; }
  bool runs() const;  // as far as the processes are in sight
};
// Reads the rings of the job that began last in this folder, or of the job of this name.
JobRings read_rings(const std::filesystem::path& folder, std::string_view job = {});
// Reads those of all jobs there, each by its last start: the job that began last comes first, and has
// the problems.
std::vector<JobRings> read_jobs(const std::filesystem::path& folder);

}  // namespace tinyshard::recorder
