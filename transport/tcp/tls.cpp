// OpenSSL reads from the socket and writes into memory, which is sent on as the socket takes it: a write
// that OpenSSL has begun to send must be repeated with the same bytes, and who writes here may have
// taken back its own by then. Example: 100 KiB are written and the socket takes 60. All 100 KiB are
// taken, 40 are held, and write() says kBlocked until a later one has sent these.
#include "transport/tcp/tls.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <vector>

#include <boost/asio/ssl/context.hpp>

#include "core/base/error.h"

namespace tinyshard::tcp {
namespace {

using Context = boost::asio::ssl::context;

constexpr const char* kCiphers = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
constexpr unsigned char kCipherOfKey[] = {0x13,
                                          0x01};  // names the hash that the key is for: SHA-256
constexpr std::string_view kIdentity = "tinyshard";
constexpr size_t kRecord = SSL3_RT_MAX_PLAIN_LENGTH;
constexpr size_t kMostHeld = 8 * kRecord;  // before the socket is asked to take it
constexpr size_t kReadsAtOnce = 64 << 10;
// A key encrypts 2^24.5 records safely (RFC 8446, 5.5): long before that it gives way to the next.
constexpr uint64_t kRecordsOfAKey = 1 << 22;

// The key as a session that is resumed, which is how OpenSSL takes it. Null where memory is short.
SSL_SESSION* session_of(SSL* ssl, const Proof& key) {
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipherOfKey);
  if (session != nullptr && cipher != nullptr &&
      SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key.data()),
                                  key.size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
    return session;
  SSL_SESSION_free(session);
  return nullptr;
}

const Proof& key_of(SSL* ssl) { return *static_cast<const Proof*>(SSL_get_app_data(ssl)); }

int use_key(SSL* ssl, const EVP_MD*, const unsigned char** identity, size_t* length,
            SSL_SESSION** session) {
  *session = session_of(ssl, key_of(ssl));
  *identity = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *length = kIdentity.size();
  return *session != nullptr ? 1 : 0;
}

int find_key(SSL* ssl, const unsigned char* identity, size_t length, SSL_SESSION** session) {
  const bool known = std::string_view(reinterpret_cast<const char*>(identity), length) == kIdentity;
  *session = known ? session_of(ssl, key_of(ssl)) : nullptr;
  return 1;
}

// Lives on when the process exits, as connections do.
SSL_CTX* context(TlsSession::Side side) {
  const auto make = [](TlsSession::Side of) -> Context& {
    const bool connects = of == TlsSession::Side::Connector;
    auto& context = *new Context(connects ? Context::tlsv13_client : Context::tlsv13_server);
    SSL_CTX* const made = context.native_handle();
    SSL_CTX_set_ciphersuites(made, kCiphers);
    SSL_CTX_set_num_tickets(made, 0);  // nothing may come that nobody reads
    SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
    // A connection that ends without a TLS farewell is no error of TLS: a process that dies looks
    // so. A rank that leaves says so in a message.
    SSL_CTX_set_options(made, SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_read_ahead(made, 1);
    SSL_CTX_set_default_read_buffer_len(made, kReadsAtOnce);
    // A peer without the key has no certificate to offer in its stead.
    if (connects) SSL_CTX_set_verify(made, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_psk_use_session_callback(made, use_key);
    SSL_CTX_set_psk_find_session_callback(made, find_key);
    return context;
  };
  static Context& connector = make(TlsSession::Side::Connector);
  static Context& acceptor = make(TlsSession::Side::Acceptor);
  return (side == TlsSession::Side::Connector ? connector : acceptor).native_handle();
}

// Holds the bytes that OpenSSL writes, until the socket takes them.
struct Outbox {
  std::vector<char> bytes;
  size_t gone = 0;
  std::span<const char> left() const { return std::span(bytes).subspan(gone); }
};

int put_into_outbox(BIO* bio, const char* data, size_t size, size_t* written) {
  auto& bytes = static_cast<Outbox*>(BIO_get_data(bio))->bytes;
  bytes.insert(bytes.end(), data, data + size);
  *written = size;
  return 1;
}

// Null where memory is short.
BIO* bio_into(Outbox& outbox) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "outbox");
    BIO_meth_set_write_ex(made, put_into_outbox);
    BIO_meth_set_ctrl(made,
                      [](BIO*, int what, long, void*) { return what == BIO_CTRL_FLUSH ? 1L : 0L; });
    return made;
  }();
  BIO* bio = BIO_new(method);
  if (bio == nullptr) return nullptr;
  BIO_set_data(bio, &outbox);
  BIO_set_init(bio, 1);
  return bio;
}

}  // namespace

struct TlsSession::State {
  int fd;
  Proof key;
  SSL* ssl = nullptr;
  Outbox outbox = {};
  bool wants = true;  // more may be had at once
  bool ended = false, reset = false;
  uint64_t records = 0;  // since the last key
  std::string problem;
  std::vector<std::byte> plain;  // of a record to come

  ~State() { SSL_free(ssl); }

  void flush() {
    for (auto left = outbox.left(); !left.empty(); left = outbox.left()) {
      const ssize_t n = send(fd, left.data(), left.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return;
      if (n < 0) {
        end_by(errno);
        return;
      }
      outbox.gone += static_cast<size_t>(n);
    }
    outbox.bytes.clear();
    outbox.gone = 0;
  }

  void end_by(int error) {
    ended = true;
    reset = error == ECONNRESET;
  }

  // Called after a call that failed. Returns whether it may succeed once more bytes have come;
  // otherwise the session ends.
  bool goes_on(int result) {
    const int cause = errno, error = SSL_get_error(ssl, result);
    if (error == SSL_ERROR_WANT_READ) return true;
    if (error == SSL_ERROR_SSL) {
      const char* reason = ERR_reason_error_string(ERR_peek_error());
      problem = reason != nullptr ? reason : "an error of TLS";
    }
    end_by(error == SSL_ERROR_SYSCALL ? cause : 0);
    return false;
  }
};

TlsSession::TlsSession(int fd, Side side, const Proof& key)
    : state_(std::make_unique<State>(State{.fd = fd, .key = key, .problem = {}, .plain = {}})) {
  State& s = *state_;
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  s.ssl = SSL_new(context(side));
  BIO *socket = BIO_new_socket(fd, BIO_NOCLOSE), *outbox = bio_into(s.outbox);
  if (s.ssl == nullptr || socket == nullptr || outbox == nullptr)
    throw InternalError("OpenSSL has memory for a session");
  SSL_set_bio(s.ssl, socket, outbox);
  SSL_set_app_data(s.ssl, &s.key);
  if (side == Side::Connector)
    SSL_set_connect_state(s.ssl);
  else
    SSL_set_accept_state(s.ssl);
}

TlsSession::~TlsSession() = default;

bool TlsSession::holds() const { return !state_->ended && !state_->outbox.left().empty(); }
bool TlsSession::has_input() const { return state_->wants && !state_->ended; }
const std::string& TlsSession::problem() const { return state_->problem; }
bool TlsSession::was_reset() const { return state_->reset; }

TlsSession::Step TlsSession::handshake() {
  State& s = *state_;
  ERR_clear_error();
  const int result = SSL_do_handshake(s.ssl);
  const bool goes_on = result == 1 || s.goes_on(result);
  s.flush();
  if (!goes_on || s.ended) return Step::Failed;
  if (result == 1 && SSL_session_reused(s.ssl) != 1) {
    s.problem = "the other side did not use the key";
    return Step::Failed;
  }
  if (holds()) return Step::WantsOutput;
  return result == 1 ? Step::Done : Step::WantsInput;
}

ssize_t TlsSession::write(std::span<const iovec> parts) {
  State& s = *state_;
  s.flush();
  if (s.ended) return Pipe::kEnded;
  if (holds()) return Pipe::kBlocked;
  size_t taken = 0;
  bool full = false;  // the socket takes no more
  const auto seal = [&] {
    if (s.plain.empty()) return;
    ERR_clear_error();
    if (++s.records % kRecordsOfAKey == 0) SSL_key_update(s.ssl, SSL_KEY_UPDATE_NOT_REQUESTED);
    const int n = SSL_write(s.ssl, s.plain.data(), static_cast<int>(s.plain.size()));
    if (n <= 0 && !s.goes_on(n)) s.ended = true;
    s.plain.clear();
    if (s.outbox.left().size() < kMostHeld) return;
    s.flush();
    full = s.ended || holds();
  };
  s.plain.reserve(kRecord);
  for (const iovec& part : parts) {
    const auto* data = static_cast<const std::byte*>(part.iov_base);
    for (size_t at = 0; at < part.iov_len && !full;) {
      const size_t n = std::min(part.iov_len - at, kRecord - s.plain.size());
      s.plain.insert(s.plain.end(), data + at, data + at + n);
      at += n;
      taken += n;
      if (s.plain.size() == kRecord) seal();
    }
  }
  seal();
  s.flush();
  return s.ended ? Pipe::kEnded : static_cast<ssize_t>(taken);
}

ssize_t TlsSession::read(std::span<const iovec> parts) {
  State& s = *state_;
  size_t got = 0;
  s.wants = true;
  for (const iovec& part : parts) {
    for (size_t at = 0; at < part.iov_len && s.wants && !s.ended;) {
      const size_t most = std::min<size_t>(part.iov_len - at, kMostHeld);
      ERR_clear_error();
      errno = 0;
      const int n =
          SSL_read(s.ssl, static_cast<std::byte*>(part.iov_base) + at, static_cast<int>(most));
      if (n > 0) {
        at += static_cast<size_t>(n);
        got += static_cast<size_t>(n);
      } else {
        s.goes_on(n);
        s.wants = false;
        s.flush();  // what TLS itself has to say of it
      }
    }
  }
  if (got != 0) return static_cast<ssize_t>(got);
  return s.ended ? Pipe::kEnded : Pipe::kBlocked;
}

}  // namespace tinyshard::tcp
