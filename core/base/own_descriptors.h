// Descriptors that belong to this process alone. What a library opens with O_CLOEXEC is closed in the
// programs that it starts; a child of fork() that starts none, such as a helper that loads data, would
// keep it open, and the other end of a connection would not see that this process has ended.
#pragma once

namespace tinyshard {

// Gives children of fork /dev/null in the place of this descriptor, from now on. The number stays
// taken there, so a child that closes it closes nothing else.
void keep_from_children(int fd);
// The descriptor is about to be closed, or handed on.
void share_with_children(int fd);

}  // namespace tinyshard
