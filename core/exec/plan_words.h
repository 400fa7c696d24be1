// Spells parts of a plan's record (plan_record.h) for people.
#pragma once
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace tinyshard {

// Returns "data: Shard(0), model: P sum"; nothing where the mesh has one device. `mesh` is a number of
// the record's table, `placements` a list of it.
std::string placement_words(const nlohmann::json& record, const nlohmann::json& mesh,
                            const nlohmann::json& placements);

}  // namespace tinyshard
