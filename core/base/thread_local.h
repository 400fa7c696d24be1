// Variables of a thread that the making of each node reads. In a shared library each such read would
// call the loader, which looks the variable up (__tls_get_addr); with the initial-exec model it is a
// fixed distance from a register. The loader has room for few of them (some hundred bytes) in a
// library that is opened late, so only small ones are declared so.
#pragma once

#ifdef __ELF__
#define TS_HOT_THREAD_LOCAL [[gnu::tls_model("initial-exec")]] constinit thread_local
#else
#define TS_HOT_THREAD_LOCAL constinit thread_local
#endif
