// The store in a folder that all ranks see. The folder belongs to this user alone; it is made where
// it is missing. Rank 0 takes the values away that it has seen, and the folder where nothing else
// is in it, when its store goes: it is then the last to need them. A job that was killed leaves its
// values, which another job in the same folder refuses.
#pragma once
#include <memory>
#include <string>

#include "transport/rendezvous/store.h"

namespace tinyshard {

std::unique_ptr<Store> open_file_store(const std::string& folder, bool cleans);

}  // namespace tinyshard
