// The library's version, with C linkage so that any tool can ask a loaded libtinyshard for it.
extern "C" const char* tinyshard_version();

const char* tinyshard_version() { return TINYSHARD_VERSION; }
