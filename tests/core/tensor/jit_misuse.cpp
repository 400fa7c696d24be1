// Calls of a Jit that do not compile: CMakeLists.txt lists each with a part of what the compiler
// says.
#include "core/tensor/jit.h"

using namespace tinyshard;

int main() {
  Jit step = [](Tensor x, Variable) { return x; };
  Variable v("v", 0, 1);
  Tensor x{1.0};
#if defined(ARITY)
  step(x);
#elif defined(ORDER)
  step(v.bind(0), x);
#elif defined(TYPE)
  step(std::vector<Tensor>{x}, v.bind(0));
#elif defined(RESULT)
  Jit number = [](Tensor t) { return t.numel(); };
  number(x);
#else
  step(x, v.bind(0));
#endif
}
