// The store in a folder that all ranks see. The folder belongs to this user alone; it is made where
// it is missing.
//
// What former jobs left there touches no later one. Rank 0 draws a number, the generation, and shows it
// in a file that it holds locked for as long as its store lives; the others take a generation from no
// file that nobody has locked. All names hold job, epoch and generation. The kernel gives up the lock
// of a process that is killed, on whichever host, so that the next rank 0 takes its place and removes
// what it finds.
//
// Rank 0 takes the values away that it has seen, and the folder where nothing else is in it, when its
// store goes: it is then the last to need them. Those by which a job agrees to go on without some of
// its ranks stay for as long as a rank of it lives.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "transport/rendezvous/store.h"

namespace tinyshard {

struct JobFolder {
  std::string path;
  std::string job = {};  // its name, which may be empty
  uint32_t epoch = 0;
};

enum class FolderRole : uint8_t {
  Leads,   // rank 0 of those that the launcher started
  Joins,   // another one of them: knows nothing before rank 0 has come
  Reforms  // any, later: of the generation that this process has met in
};

// `cleans`: takes the values away that it has seen. StoreError where the folder cannot be had, UserError
// where others may write to it.
std::unique_ptr<Store> open_file_store(const JobFolder& folder, FolderRole role, bool cleans);

}  // namespace tinyshard
