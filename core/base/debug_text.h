// DEBUG's lines about passes, runs and items: an observer that writes to the log. DEBUG=1 times
// passes and runs, DEBUG=2 each item, too, as the device has done it, and tells of values that move
// to other placements and of what was timed to choose from; 4, 5 and 6 list generated code.
#pragma once

namespace tinyshard {

// Attaches it, or takes it away again, as the options of the process want it now.
void follow_debug_option();

}  // namespace tinyshard
