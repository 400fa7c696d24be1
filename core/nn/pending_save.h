// The save that is under way beside the training, of which there is at most one.
#pragma once
#include <filesystem>
#include <functional>

namespace tinyshard::nn {

// Runs `save` on a thread of its own, of the least priority, so that it takes the processor time
// that training leaves. The last one has been waited for.
void save_beside(std::function<void()> save);
bool is_saving();  // since save_beside() and until end_of_save()
// Waits for the save and throws what it threw; returns at once where there is none.
void end_of_save();

}  // namespace tinyshard::nn
