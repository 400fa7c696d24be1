# Writes OUT: a header with a hash over the sources in FILES, so that kernels compiled by another
# version of the code generator are never taken from the disk.
set(all "")
foreach(file IN LISTS FILES)
  file(SHA256 ${file} hash)
  string(APPEND all ${hash})
endforeach()
string(SHA256 all "${all}${VERSION}")
string(SUBSTRING ${all} 0 32 all)
file(WRITE ${OUT} "#pragma once\ninline constexpr char kCodegenFingerprint[] = \"${all}\";\n")
