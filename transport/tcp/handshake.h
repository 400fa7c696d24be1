// Who may join: both ends of a connection prove that they hold the job's key before either reads
// more of the other than fixed numbers of bytes.
//   connector                                acceptor
//   Hello      64: version, rank, nonce   ->
//                                         <- Challenge  64: nonce, proof over both nonces
//                                            or OtherVersion  64: version, rank, host; the end
//   Answer     96: claim, proof over it   ->
//                                         <- Verdict     4: what became of the claim
// Where the job's connections are encrypted (TS_SECURE), TLS follows (tls.h), by a key for this connection
// alone. That the two sides agree on it is part of the claim.
// Each side's nonce is new, so what was heard of one connection opens no other, and the two proofs
// are over different labels, so that neither can be sent back as the other. Pure values: who reads
// and writes them has the sockets (store.cpp, mesh.cpp).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launch/secret.h"

namespace tinyshard::tcp {

using Nonce = std::array<std::byte, 32>;

// Both ends must have the same version: of what is said after the handshake, and of the library
// that builds the graphs. Comes before any proof: nothing but messages is made of another one.
struct Version {
  uint32_t protocol = 0;  // in the byte order of the machine, which both ends must share
  std::array<char, 16> library = {};

  static Version own();
  bool operator==(const Version&) const = default;
  std::string text() const;  // "tinyshard 0.1.0 (protocol 4)", in characters that can be printed
};

struct Hello {
  std::array<char, 8> magic;
  Version version;
  int32_t rank;  // of the connector, -1: none; for messages
  Nonce nonce;
};
static_assert(sizeof(Hello) == 64);

struct Challenge {
  Nonce nonce;
  Proof proof;
};
static_assert(sizeof(Challenge) == 64);

// Answer to a connector of another version, in the place of a challenge. Its magic tells the two
// apart: a challenge begins with a random number, of which one in 2^64 looks alike.
struct OtherVersion {
  std::array<char, 8> magic;
  Version version;
  int32_t rank;  // of the acceptor, -1: none
  std::array<char, 32> host;

  std::string who() const;  // "rank 0 on node01", "a store on node01"
};
static_assert(sizeof(OtherVersion) == sizeof(Challenge));

enum class Purpose : uint32_t { Store = 1, Stream = 2 };

// The purpose of a connection. Says nothing until its proof has been checked.
struct Claim {
  Purpose purpose = Purpose::Store;
  uint32_t epoch = 0;
  int32_t from = -1, to = -1;  // ranks; of a store: from, if it is a rank's
  uint32_t stream = 0;         // number of the socket between the two
  uint32_t ranks = 0;          // of the job, as the connector knows it
  uint64_t meeting = 0;        // how often this process has met the others before
  // Drawn by the connector for all of one meeting: who asks again, as the verdict was lost on its way,
  // is no second rank of that number. The later attempt counts.
  std::array<std::byte, 16> who = {};
  uint64_t attempt = 0;
  uint32_t encrypts = 0;
  std::array<std::byte, 4> zero = {};
};
static_assert(sizeof(Claim) == 64);

struct Answer {
  Claim claim;
  Proof proof;
};
static_assert(sizeof(Answer) == 96);

// The acceptor's last word.
enum class Verdict : uint32_t {
  Welcome = 1,
  OtherEpoch,
  OtherJob,
  Duplicate,
  Unexpected,
  OtherEncryption
};
std::string_view text(Verdict verdict);  // "that rank is there already"
// "rank 1 has TS_SECURE=1, and rank 0 has not; ...": of two that differ, and whether the first encrypts.
std::string other_encryption(bool encrypts, std::string_view first, std::string_view second);
// "rank 0", or of -1 the store.
std::string rank_or_store(int rank);

class Connector {
 public:
  explicit Connector(const Secret& secret, int rank = -1);
  const Hello& hello() const { return hello_; }
  // Returns the acceptor's version if its answer was no challenge.
  static std::optional<OtherVersion> other_version(const Challenge& challenge);
  // Nothing when the acceptor does not hold the key.
  std::optional<Answer> answer(const Challenge& challenge, const Claim& claim) const;
  // Returns the key for what follows over this connection, the same on both sides.
  Proof connection_key(const Challenge& challenge) const;

 private:
  const Secret& secret_;
  Hello hello_;
};

class Acceptor {
 public:
  explicit Acceptor(const Secret& secret) : secret_(secret) {}
  // Returns whether that is a hello of a version, this one or another.
  static bool is_hello(const Hello& hello);
  // Nothing when that is no hello of this version.
  std::optional<Challenge> challenge(const Hello& hello);
  static OtherVersion other_version(int rank, std::string_view host);
  // Nothing when the connector does not hold the key.
  std::optional<Claim> claim(const Answer& answer) const;
  Proof connection_key() const;

 private:
  const Secret& secret_;
  Nonce theirs_ = {}, own_ = {};
};

}  // namespace tinyshard::tcp
