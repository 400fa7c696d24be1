// A stranger's program: compiles against the installed header alone, runs a kernel, and catches one
// of our errors by its type, which only works when type information is shared across the library's
// border.
#include <tinyshard/tinyshard.h>

extern "C" const char* tinyshard_version();

int main() {
  using namespace tinyshard;
  std::cout << "tinyshard " << tinyshard_version() << '\n';

  Tensor x = Tensor::arange(6).reshape({2, 3});
  std::cout << "sum " << x.sum().item<float>() << '\n';

  try {
    Tensor y = x.matmul(Tensor::ones({4, 4}));
    std::cout << "a wrong matmul went unnoticed: " << y.item<float>() << '\n';
    return 1;
  } catch (const UserError& error) {
    std::cout << "caught: " << error.what() << '\n';
  }
}
