// Keys from libcrypto's random numbers and HMAC, and from files. Example: a user starts two jobs by
// srun, without any setting. The first process to come makes ~/.config/tinyshard/job.key under
// another name and links it into place; whoever loses that race reads the winner's. Both jobs
// derive their own keys from it, by their names, so that a rank of one is refused by the other.
#include "launch/secret.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

// Connections live, and say farewell, until the process is no more: libcrypto, which would take itself
// apart at exit, must not go before them. It hears that only before its first use.
[[maybe_unused]] const int kStays = OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);

const unsigned char* octets(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

struct File {
  int fd = -1;
  ~File() {
    if (fd >= 0) close(fd);
  }
};

// The key that stands in `path`. Its owner is asked of the open file, which nobody can exchange. To
// open a FIFO would wait for a writer.
Secret read_key(const std::string& path) {
  const File file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
  if (file.fd < 0) throw UserError(fmt::format("the job's key {}: {}", path, std::strerror(errno)));
  struct stat about{};
  if (fstat(file.fd, &about) != 0 || !S_ISREG(about.st_mode))
    throw UserError(fmt::format("the job's key {} is no regular file", path));
  if ((about.st_uid != geteuid() && about.st_uid != 0) || (about.st_mode & 077) != 0) {
    throw UserError(fmt::format(
        "the job's key {} can be read or written by others: chown it to yourself and chmod 600",
        path));
  }
  std::array<char, 256> content{};
  const ssize_t bytes = read(file.fd, content.data(), content.size());
  return Secret::parse(std::string_view(content.data(), bytes > 0 ? size_t(bytes) : 0), path);
}

void make_folders(const std::string& path) {
  for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1))
    mkdir(path.substr(0, at).c_str(), 0700);
}

// Under its name it is either absent or complete, whoever else makes it at the same time.
void make_key(const std::string& path) {
  make_folders(path);
  const std::string draft = fmt::format("{}.{}", path, Secret::random().text().substr(0, 16));
  const std::string text = Secret::random().text() + "\n";
  const File file{open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600)};
  const bool written =
      file.fd >= 0 && write(file.fd, text.data(), text.size()) == ssize_t(text.size());
  const int problem = errno;
  const bool placed = written && (link(draft.c_str(), path.c_str()) == 0 || errno == EEXIST);
  unlink(draft.c_str());
  if (!placed)
    throw UserError(fmt::format("the job's key cannot be written to {}: {}; set TS_JOB_KEY_FILE",
                                path, std::strerror(problem)));
}

std::string users_key_path(const VariableLookup& lookup) {
  const auto folder = [&](const char* variable) -> std::string {
    const char* value = lookup(variable);
    return value != nullptr && *value == '/' ? value : "";
  };
  if (const std::string config = folder("XDG_CONFIG_HOME"); !config.empty())
    return config + "/tinyshard/job.key";
  if (const std::string home = folder("HOME"); !home.empty())
    return home + "/.config/tinyshard/job.key";
  throw UserError(
      "there is no place for the job's key: set HOME, XDG_CONFIG_HOME, TS_JOB_KEY_FILE or "
      "TS_JOB_KEY");
}

}  // namespace

void fill_random(std::span<std::byte> bytes) {
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), int(bytes.size())) != 1)
    throw InternalError("libcrypto has random numbers");
}

Secret Secret::random() {
  Secret secret;
  fill_random(secret.key_);
  return secret;
}

Secret Secret::parse(std::string_view text, std::string_view source) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = std::min(text.find_first_not_of(kSpace), text.size());
  text = text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
  Secret secret;
  bool good = text.size() == 2 * secret.key_.size();
  for (size_t i = 0; good && i < text.size(); ++i) {
    const char lower = text[i] >= 'A' && text[i] <= 'F' ? char(text[i] - 'A' + 'a') : text[i];
    const size_t digit = kDigits.find(lower);
    good = digit != std::string_view::npos;
    secret.key_[i / 2] = secret.key_[i / 2] << 4 | std::byte(digit & 15);
  }
  if (!good)
    throw UserError(fmt::format("the job's key in {} is not {} hexadecimal digits", source,
                                2 * secret.key_.size()));
  return secret;
}

std::string Secret::text() const {
  std::string text;
  for (std::byte b : key_) {
    text += kDigits[size_t(b >> 4)];
    text += kDigits[size_t(b & std::byte{15})];
  }
  return text;
}

Proof Secret::sign(std::initializer_list<std::span<const std::byte>> parts) const {
  std::string message;
  for (std::span<const std::byte> part : parts)
    message.append(reinterpret_cast<const char*>(part.data()), part.size());
  Proof proof{};
  unsigned int length = 0;
  if (HMAC(EVP_sha256(), key_.data(), int(key_.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(proof.data()), &length) == nullptr ||
      length != proof.size())
    throw InternalError("libcrypto has HMAC-SHA256");
  return proof;
}

Secret Secret::for_job(std::string_view job) const {
  constexpr std::string_view kLabel = "tinyshard job ";
  Secret derived;
  derived.key_ = sign({std::as_bytes(std::span(kLabel)), std::as_bytes(std::span(job))});
  derived.encrypts_ = encrypts_;
  return derived;
}

bool same(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(octets(a.data()), octets(b.data()), a.size()) == 0;
}

namespace {

Secret read_job_secret(std::string_view job, const VariableLookup& lookup) {
  if (const char* text = lookup("TS_JOB_KEY"); text != nullptr && *text != '\0')
    return Secret::parse(text, "TS_JOB_KEY");
  if (const char* path = lookup("TS_JOB_KEY_FILE"); path != nullptr && *path != '\0')
    return read_key(path).for_job(job);
  const std::string path = users_key_path(lookup);
  if (access(path.c_str(), F_OK) != 0) make_key(path);
  return read_key(path).for_job(job);
}

const char* own_variable(const char* name) { return std::getenv(name); }

}  // namespace

Secret job_secret(std::string_view job, const VariableLookup& lookup) {
  Secret secret = read_job_secret(job, lookup);
  secret.set_encrypts(wants_encryption(lookup));
  return secret;
}
Secret job_secret(std::string_view job) { return job_secret(job, own_variable); }

bool wants_encryption(const VariableLookup& lookup) {
  const char* value = lookup("TS_SECURE");
  const std::string_view text = value == nullptr ? "" : value;
  if (text != "" && text != "0" && text != "1")
    throw UserError(fmt::format("environment variable TS_SECURE=\"{}\" must be 0 or 1", text));
  return text == "1";
}
bool wants_encryption() { return wants_encryption(own_variable); }

}  // namespace tinyshard
