// The proofs. Example: an eavesdropper sends again, byte by byte, the hello and the answer that it
// saw. The acceptor's nonce is another one this time, so the proof in the answer is over other
// bytes than the acceptor signs, and the claim is never looked at.
#include "transport/tcp/handshake.h"

#include <bit>
#include <cctype>
#include <span>

#include <fmt/format.h>

#include "transport/text_field.h"

namespace tinyshard::tcp {
namespace {

constexpr std::array<char, 8> kMagic = {'t', 's', 'h', 'a', 'r', 'd', '\r', '\n'};
constexpr uint32_t kProtocol = 4;
constexpr std::string_view kAcceptor = "tinyshard acceptor", kConnector = "tinyshard connector",
                           kConnection = "tinyshard connection";

std::span<const std::byte> bytes(std::string_view label) { return std::as_bytes(std::span(label)); }

template <class Value>
std::span<const std::byte> bytes(const Value& value) {
  return std::as_bytes(std::span(&value, 1));
}

// Makes text printable that comes from somebody who has proven nothing.
template <size_t n>
std::string printable(const std::array<char, n>& from) {
  std::string text(text_in(from));
  for (char& c : text) {
    if (std::isprint(static_cast<unsigned char>(c)) == 0) c = '?';
  }
  return text;
}

}  // namespace

Version Version::own() {
  Version version{.protocol = kProtocol};
  std::string_view(TINYSHARD_VERSION).copy(version.library.data(), version.library.size() - 1);
  return version;
}

std::string Version::text() const {
  return fmt::format("tinyshard {} (protocol {})", printable(library), protocol);
}

std::string OtherVersion::who() const {
  return rank < 0 ? fmt::format("a store on {}", printable(host))
                  : fmt::format("rank {} on {}", rank, printable(host));
}

std::string_view text(Verdict verdict) {
  switch (verdict) {
    case Verdict::Welcome:
      return "welcome";
    case Verdict::OtherEpoch:
      return "it belongs to another start of the job";
    case Verdict::OtherJob:
      return "it belongs to a job of another number of ranks, or to another meeting";
    case Verdict::Duplicate:
      return "that rank is there already";
    case Verdict::Unexpected:
      return "nobody of that number is expected here";
    case Verdict::OtherEncryption:
      return "one of the two has TS_SECURE=1, and the other has not";
  }
  return "the answer makes no sense";
}

std::string other_encryption(bool encrypts, std::string_view first, std::string_view second) {
  return fmt::format(
      "{} has TS_SECURE=1, and {} has not: all of a job encrypt their connections, or none does",
      encrypts ? first : second, encrypts ? second : first);
}

std::string rank_or_store(int rank) {
  return rank < 0 ? "the job's store" : fmt::format("rank {}", rank);
}

Connector::Connector(const Secret& secret, int rank) : secret_(secret), hello_() {
  hello_.magic = kMagic;
  hello_.version = Version::own();
  hello_.rank = rank;
  fill_random(hello_.nonce);
}

std::optional<OtherVersion> Connector::other_version(const Challenge& challenge) {
  const auto other = std::bit_cast<OtherVersion>(challenge);
  if (other.magic != kMagic) return std::nullopt;
  return other;
}

std::optional<Answer> Connector::answer(const Challenge& challenge, const Claim& claim) const {
  const Proof expected =
      secret_.sign({bytes(kAcceptor), bytes(hello_.nonce), bytes(challenge.nonce)});
  if (!same(expected, challenge.proof)) return std::nullopt;
  return Answer{claim, secret_.sign({bytes(kConnector), bytes(challenge.nonce), bytes(hello_.nonce),
                                     bytes(claim)})};
}

Proof Connector::connection_key(const Challenge& challenge) const {
  return secret_.sign({bytes(kConnection), bytes(hello_.nonce), bytes(challenge.nonce)});
}

bool Acceptor::is_hello(const Hello& hello) { return hello.magic == kMagic; }

OtherVersion Acceptor::other_version(int rank, std::string_view host) {
  OtherVersion own{.magic = kMagic, .version = Version::own(), .rank = rank, .host = {}};
  host.copy(own.host.data(), own.host.size() - 1);
  return own;
}

std::optional<Challenge> Acceptor::challenge(const Hello& hello) {
  if (!is_hello(hello) || hello.version != Version::own()) return std::nullopt;
  theirs_ = hello.nonce;
  fill_random(own_);
  return Challenge{own_, secret_.sign({bytes(kAcceptor), bytes(theirs_), bytes(own_)})};
}

std::optional<Claim> Acceptor::claim(const Answer& answer) const {
  const Proof expected =
      secret_.sign({bytes(kConnector), bytes(own_), bytes(theirs_), bytes(answer.claim)});
  if (!same(expected, answer.proof)) return std::nullopt;
  return answer.claim;
}

Proof Acceptor::connection_key() const {
  return secret_.sign({bytes(kConnection), bytes(theirs_), bytes(own_)});
}

}  // namespace tinyshard::tcp
