// Keys end with the rank that sets them, so that a reader of "address/3"
// learns at once that rank 3 will set nothing more. The same value may
// be set again, another one is refused: all readers see one value.
#include "transport/rendezvous/stored_values.h"

#include <charconv>
#include <utility>

#include <fmt/format.h>

namespace tinyshard {
namespace {

// The number at the end of "address/3"; -1 where there is none.
int rank_of(const std::string& key) {
  const size_t slash = key.rfind('/');
  int rank = -1;
  if (slash != std::string::npos)
    std::from_chars(key.data() + slash + 1, key.data() + key.size(), rank);
  return rank;
}

}  // namespace

StoredValues::Status StoredValues::set(std::string key, std::string value) {
  const auto found = values_.find(key);
  if (found != values_.end()) return found->second == value ? Status::Good : Status::Differs;
  if (bytes_ + key.size() + value.size() > kMostBytes) return Status::Full;
  bytes_ += key.size() + value.size();
  values_.emplace(std::move(key), std::move(value));
  return Status::Good;
}

StoredValues::Status StoredValues::get(const std::string& key, std::string& value,
                                       int32_t& culprit) const {
  value.clear();
  if (const auto found = values_.find(key); found != values_.end()) {
    value = found->second;
    return Status::Good;
  }
  const auto lost = given_up_.find(rank_of(key));
  if (lost == given_up_.end()) return Status::Absent;
  culprit = lost->first;
  value = lost->second;
  return Status::GivenUp;
}

bool StoredValues::understand(Status status, const std::string& key, const std::string& answer,
                              int32_t culprit) {
  if (status == Status::Good || status == Status::Absent) return status == Status::Good;
  if (status == Status::GivenUp) throw StoreError(answer, culprit);
  throw StoreError(status == Status::Full ? "the store is full"
                                          : fmt::format("\"{}\" has another value already", key),
                   rank_of(key));
}

}  // namespace tinyshard
