// Descriptors that belong to this process alone. What a library opens with O_CLOEXEC is closed in the
// programs that it starts; a child of fork() that starts none, such as a helper that loads data, would
// keep it open, and the other end of a connection would not see that this process has ended.
#pragma once

namespace tinyshard {

// From now on a child has /dev/null in its place: the number stays taken, so that whoever closes it
// there closes nothing else.
void keep_from_children(int fd);
// The descriptor is about to be closed, or handed on.
void share_with_children(int fd);

}  // namespace tinyshard
