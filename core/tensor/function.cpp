// The result is a Checkpoint of what forward() gave and of the inputs, whose payload holds the function
// (core/passes/own_gradient.h). Functions see the inputs as tensors of their own: one that is kept
// does not keep the gradient of the caller's tensor, which may hold the result in turn.
#include "core/tensor/function.h"

#include <algorithm>
#include <cstdlib>
#include <cxxabi.h>
#include <typeinfo>

#include <fmt/format.h>

#include "core/passes/own_gradient.h"
#include "core/tensor/value_internal.h"
#include "core/uop/user_code.h"

namespace tinyshard {
namespace {

// "StraightThrough", without the namespaces around it.
std::string name_of(const Function& function) {
  const std::type_info& type = typeid(function);
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> readable(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free);
  const std::string name = status == 0 ? readable.get() : type.name();
  const size_t scope = name.rfind("::");
  return scope == std::string::npos ? name : name.substr(scope + 2);
}

class GradientOfFunction : public OwnGradient {
 public:
  explicit GradientOfFunction(std::shared_ptr<Function> function)
      : function_(std::move(function)) {}

  std::vector<UOp> gradients(const UOp& node, const UOp& gradient) const override {
    const std::string name = name_of(*function_);
    const std::vector<Tensor> given = in_user_code(
        [&] { return function_->backward(Tensor(gradient)); },
        [&](const std::string& text) { return fmt::format("backward of {}: {}", name, text); });
    const std::span<const UOp> inputs = node->src().subspan(1);
    if (given.size() != inputs.size()) {
      throw UserError(fmt::format("backward of {}: {} gradients for {} inputs", name, given.size(),
                                  inputs.size()));
    }
    std::vector<UOp> gradients;
    for (size_t i = 0; i < inputs.size(); ++i) {
      gradients.push_back(given[i].defined() ? given[i].uop() : UOp());
      if (!given[i].defined()) continue;
      const UOp& g = gradients.back();
      if (g.dtype() == inputs[i].dtype() && std::ranges::equal(g.shape(), inputs[i].shape()))
        continue;
      throw UserError(
          fmt::format("backward of {}: the gradient of input {} is {}, but the input is {}", name,
                      i, value::text_of(g), value::text_of(inputs[i])));
    }
    return gradients;
  }

 private:
  std::shared_ptr<Function> function_;
};

}  // namespace

Tensor Function::apply(std::shared_ptr<Function> function, const Inputs& inputs) {
  const std::string name = name_of(*function);
  std::vector<Tensor> own;
  {
    const Call call("apply", inputs.caller);
    for (size_t i = 0; i < inputs.tensors.size(); ++i) {
      if (!inputs.tensors[i].defined())
        fail(fmt::format("input {} of {} was never given a value", i, name));
      own.emplace_back(inputs.tensors[i].uop());
    }
  }
  const Tensor result = function->forward(own);  // its mistakes are told in their own names
  const Call call("apply", inputs.caller);
  if (!result.defined()) fail(fmt::format("forward of {} returned no value", name));
  std::vector<UOp> sources{result.uop()};
  for (const Tensor& input : own) sources.push_back(input.uop());
  auto gradient = std::make_shared<const GradientOfFunction>(std::move(function));
  return Tensor(UOp::make(Op::Checkpoint, result.dtype(), sources, {}, gradient));
}

}  // namespace tinyshard
