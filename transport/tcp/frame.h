// The bytes between two ranks. Each message of a channel is one frame or, where it is large, three
// kinds of them:
//   Eager  (tag, bytes, payload)                    a small message, sent at once
//   Offer  (tag, bytes)                             a large one: its place in the order of its tag
//   Ready  (tag, bytes, handle)                     a receive for a large one has been posted
//   Data   (handle, offset, bytes, payload)         a piece of it, once that is known
// Of small ones that nobody has asked for, a rank has a limited credit with each other one. What goes
// beyond stays with its sender, so that a rank always reads all that comes: no message for which it
// waits is behind one for which it has no room.
//   Held   (tag, bytes, offset: a number)           a small one that stays for now: its place in the order
//   Pull   (offset: that number, handle)            a receive for it has been posted; Data brings it
//   Credit (bytes)                                  so much has been taken of what was sent at once
// and for what stands outside of that order:
//   News   (payload: a Notice)
//   Leave                                           nothing more will come
// A handle is a number that the receiver gave out: where it belongs to no receive of the sender's,
// the frame is malformed, and no address is ever sent. Frames of another epoch, of unknown kinds or
// of more than the limits end the connection.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tinyshard::tcp {

enum class Kind : uint32_t { Eager = 1, Offer, Ready, Data, News, Leave, Held, Pull, Credit };

struct Frame {
  Kind kind = Kind::Leave;
  uint32_t epoch = 0;
  uint32_t tag = 0;
  uint32_t handle = 0;
  uint64_t bytes = 0;   // of the message; of Data, News and Eager also those that follow
  uint64_t offset = 0;  // of Data: where in the message
};
static_assert(sizeof(Frame) == 32);

constexpr size_t kEagerBytes = 32 << 10;
// Within a host a copy costs less than it takes until the other rank has its turn on a core.
constexpr size_t kEagerBytesInMemory = 256 << 10;
// Bytes that a rank keeps of one other and nobody has asked for yet, and what each message takes of
// these beside its own.
constexpr size_t kUnexpectedBytes = 64 << 20;
constexpr size_t kMessageTakes = 1 << 10;
constexpr size_t kCreditStep = kUnexpectedBytes / 8;  // is given back at once
// Messages that are only told of. A rank that has as many under way to one other moves terabytes.
constexpr size_t kMostTold = 1 << 20;

}  // namespace tinyshard::tcp
