// The first program: values are graphs until someone looks at them.
#include <tinyshard/tinyshard.h>

using namespace tinyshard;

int main() {
  Tensor x = Tensor::rand({2, 3});
  Tensor y = (x * 2 + 1).relu().sum();  // nothing has run
  std::cout << x << '\n' << y.item<float>() << '\n';

  Tensor w = Tensor::randn({3, 3}).is_param_();
  Tensor loss = x.matmul(w).tanh().square().mean().backward();
  std::cout << "loss " << loss.item<float>() << ", its gradient " << w.grad() << '\n';

  Mesh mesh = Mesh::of({"CPU:0", "CPU:1"});
  Tensor rows = x.shard(mesh, {{"data", Shard(0)}});
  std::cout << rows.sharding() << " @ w = " << rows.matmul(w) << '\n';
}
