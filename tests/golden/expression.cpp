// Recursive descent over the text; the value of each part is computed at once, a lazy tensor or a
// constant. x.sum(axis=1) becomes the case {op: sum, inputs: [x], args: {axis: 1}}: positional
// arguments get their names from kSignatures, in which @ marks parameters that tensors are given
// to.
#include "tests/golden/expression.h"

#include <cctype>
#include <cmath>
#include <map>
#include <variant>

#include <fmt/format.h>

#include "tests/golden/calls.h"

namespace tinyshard::golden {
namespace {

const std::map<std::string, const char*> kSignatures = {
    {"add", "@x,reverse"},
    {"sub", "@x,reverse"},
    {"mul", "@x,reverse"},
    {"div", "@x,reverse,rounding_mode"},
    {"mod", "@x,reverse"},
    {"fmod", "@x"},
    {"pow", "@x,reverse"},
    {"eq", "@x"},
    {"ne", "@x"},
    {"lt", "@x"},
    {"gt", "@x"},
    {"le", "@x"},
    {"ge", "@x"},
    {"bitwise_and", "@x,reverse"},
    {"bitwise_or", "@x,reverse"},
    {"bitwise_xor", "@x,reverse"},
    {"lshift", "@x,reverse"},
    {"rshift", "@x,reverse"},
    {"maximum", "@x"},
    {"minimum", "@x"},
    {"copysign", "@other"},
    {"logaddexp", "@other"},
    {"where", "@x,@y"},
    {"masked_fill", "@mask,@value"},
    {"lerp", "@end,@weight"},
    {"isclose", "@other,rtol,atol,equal_nan"},
    {"clamp", "min_,max_"},
    {"clip", "min_,max_"},
    {"cast", "dtype"},
    {"bitcast", "dtype"},
    {"isinf", "detect_positive,detect_negative"},
    {"hardsigmoid", "alpha,beta"},
    {"hardtanh", "min_val,max_val"},
    {"leaky_relu", "neg_slope"},
    {"gelu", "approximate"},
    {"elu", "alpha"},
    {"celu", "alpha"},
    {"selu", "alpha,gamma"},
    {"softplus", "beta"},
    {"reshape", "*shape"},
    {"view", "*shape"},
    {"expand", "*shape"},
    {"permute", "*order"},
    {"flip", "*axis"},
    {"repeat", "*repeats"},
    {"shrink", "arg"},
    {"shrink_to", "*shape"},
    {"pad_to", "*shape"},
    {"pad", "padding,mode,value"},
    {"flatten", "start_dim,end_dim"},
    {"unflatten", "dim,sizes"},
    {"squeeze", "dim"},
    {"unsqueeze", "dim"},
    {"transpose", "dim0,dim1"},
    {"repeat_interleave", "repeats,dim"},
    {"roll", "shifts,dims"},
    {"split", "sizes,dim"},
    {"chunk", "chunks,dim"},
    {"cat", "@*,dim"},
    {"stack", "@*,dim"},
    {"meshgrid", "@*,indexing"},
    {"einsum", "formula,@*"},
    {"diagonal", "offset,dim1,dim2"},
    {"unfold", "dim,size,step"},
    {"rearrange", "formula"},
    {"triu", "diagonal"},
    {"tril", "diagonal"},
    {"sum", "axis,keepdim,dtype"},
    {"prod", "axis,keepdim,dtype"},
    {"max", "axis,keepdim"},
    {"min", "axis,keepdim"},
    {"any", "axis,keepdim"},
    {"all", "axis,keepdim"},
    {"mean", "axis,keepdim"},
    {"var", "axis,keepdim,correction"},
    {"std", "axis,keepdim,correction"},
    {"var_mean", "axis,keepdim,correction"},
    {"std_mean", "axis,keepdim,correction"},
    {"logsumexp", "axis,keepdim"},
    {"softmax", "axis,dtype"},
    {"log_softmax", "axis,dtype"},
    {"softmin", "axis,dtype"},
    {"normalize", "p,dim,eps"},
    {"argmax", "axis,keepdim"},
    {"argmin", "axis,keepdim"},
    {"cumsum", "axis"},
    {"cumprod", "axis"},
    {"cummax", "axis"},
    {"cummin", "axis"},
    {"logcumsumexp", "axis"},
    {"dot", "@w,dtype"},
    {"matmul", "@x,reverse,dtype"},
    {"linear", "@weight,@bias,dtype"},
    {"conv2d", "@weight,@bias,groups,stride,dilation,padding,dtype"},
    {"conv_transpose2d", "@weight,@bias,groups,stride,dilation,padding,output_padding"},
    {"avg_pool2d", "kernel_size,stride,dilation,padding,ceil_mode,count_include_pad"},
    {"max_pool2d", "kernel_size,stride,dilation,padding,ceil_mode,return_indices"},
    {"max_unpool2d", "@indices,kernel_size,stride,dilation,padding,output_size"},
    {"interpolate", "size,mode,align_corners"},
    {"gather", "dim,@index"},
    {"scatter", "dim,@index,@src,reduce"},
    {"scatter_reduce", "dim,@index,@src,reduce,include_self"},
    {"masked_select", "@mask,size,fill_value"},
    {"nonzero", "size,fill_value"},
    {"sort", "dim,descending"},
    {"argsort", "dim,descending"},
    {"topk", "k,dim,largest,sorted_"},
    {"one_hot", "num_classes"},
    {"layernorm", "axis,eps"},
    {"batchnorm", "@weight,@bias,@mean,@invstd,axis"},
    {"dropout", "p"},
    {"scaled_dot_product_attention", "@key,@value,@attn_mask,dropout_p,is_causal,enable_gqa"},
    {"binary_crossentropy", "@Y,reduction"},
    {"binary_crossentropy_logits", "@Y,reduction,@pos_weight"},
    {"sparse_categorical_crossentropy", "@Y,ignore_index,label_smoothing,reduction"},
    {"cross_entropy", "@Y,reduction,label_smoothing"},
    {"nll_loss", "@Y,@weight,ignore_index,reduction"},
    {"svd", "full_matrices"},
    {"arange", "start,stop,step,dtype"},
    {"linspace", "start,stop,steps,dtype"},
    {"eye", "n,m,dtype"},
    {"zeros", "*shape"},
    {"ones", "*shape"},
    {"full", "shape,fill_value,dtype"},
    {"full_like", "fill_value,dtype"},
    {"const_like", "b,dtype"},
    {"zeros_like", "dtype"},
    {"ones_like", "dtype"},
};

using Value = std::variant<json, Tensor, Tensors>;

bool is_tensor(const Value& v) { return std::holds_alternative<Tensor>(v); }

class Expression {
 public:
  Expression(std::string text, std::map<std::string, Tensor> names)
      : text_(std::move(text)), names_(std::move(names)) {}

  Value value() {
    Value out = comparison();
    if (!at_end()) fail("nothing more");
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& wanted) const {
    throw Mismatch(fmt::format("expression \"{}\": expected {} at {}", text_, wanted, at_));
  }
  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool at_end() { return skip(), at_ == text_.size(); }
  bool next_is(std::string_view token) {
    return skip(), text_.compare(at_, token.size(), token) == 0;
  }
  bool take(std::string_view token) {
    if (!next_is(token)) return false;
    at_ += token.size();
    return true;
  }
  void need(const char* token) {
    if (!take(token)) fail(token);
  }
  std::string word() {
    skip();
    const size_t begin = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_'))
      ++at_;
    if (begin == at_) fail("a name");
    return text_.substr(begin, at_ - begin);
  }

  // --- operators, from the weakest ---

  Value comparison() {
    Value a = bits();
    while (true) {
      if (take("<="))
        a = call("le", {a, bits()});
      else if (take(">="))
        a = call("ge", {a, bits()});
      else if (take("=="))
        a = call("eq", {a, bits()});
      else if (take("!="))
        a = call("ne", {a, bits()});
      else if (next_is("<<") || next_is(">>"))
        return a;
      else if (take("<"))
        a = call("lt", {a, bits()});
      else if (take(">"))
        a = call("gt", {a, bits()});
      else
        return a;
    }
  }
  Value bits() {
    Value a = shift();
    while (true) {
      if (take("&"))
        a = call("bitwise_and", {a, shift()});
      else if (take("|"))
        a = call("bitwise_or", {a, shift()});
      else if (take("^"))
        a = call("bitwise_xor", {a, shift()});
      else
        return a;
    }
  }
  Value shift() {
    Value a = sum();
    while (true) {
      if (take("<<"))
        a = call("lshift", {a, sum()});
      else if (take(">>"))
        a = call("rshift", {a, sum()});
      else
        return a;
    }
  }
  Value sum() {
    Value a = product();
    while (true) {
      if (take("+"))
        a = call("add", {a, product()});
      else if (take("-"))
        a = call("sub", {a, product()});
      else
        return a;
    }
  }
  Value product() {
    Value a = unary();
    while (true) {
      if (next_is("**")) return a;
      if (take("*"))
        a = call("mul", {a, unary()});
      else if (take("//"))
        a = call("div", {a, unary()}, {{"rounding_mode", json("floor")}});
      else if (take("/"))
        a = call("div", {a, unary()});
      else if (take("%"))
        a = call("mod", {a, unary()});
      else if (take("@"))
        a = call("matmul", {a, unary()});
      else
        return a;
    }
  }
  Value unary() {
    if (take("-")) {
      Value v = unary();
      if (is_tensor(v)) return call("neg", {v});
      const json& number = std::get<json>(v);
      return number.is_number_integer() ? json(-number.get<int64_t>())
                                        : json(-number.get<double>());
    }
    if (take("~")) return call("bitwise_not", {unary()});
    Value a = postfix();
    return take("**") ? call("pow", {a, unary()}) : a;
  }

  Value postfix() {
    Value v = atom();
    while (true) {
      if (take(".")) {
        const std::string name = word();
        if (name == "T" && !next_is("("))
          v = call("T", {v});
        else
          v = arguments(name, {v});
      } else if (is_tensor(v) && take("[")) {
        v = index(std::get<Tensor>(v));
      } else if (std::holds_alternative<Tensors>(v) && take("[")) {
        const json number = std::get<json>(comparison());
        need("]");
        const Tensor chosen = std::get<Tensors>(v).at(number.get<size_t>());
        v = chosen;
      } else {
        return v;
      }
    }
  }

  Value atom() {
    if (take("(")) return list(")", true);
    if (take("[")) return list("]", false);
    skip();
    if (at_ == text_.size()) fail("a value");
    const char c = text_[at_];
    if (std::isdigit(static_cast<unsigned char>(c)) || c == '.') {
      size_t used = 0;
      const double real = std::stod(text_.substr(at_), &used);
      const std::string digits = text_.substr(at_, used);
      at_ += used;
      if (digits.find_first_of(".eE") == std::string::npos) return json(std::stoll(digits));
      return json(real);
    }
    if (c == '\'' || c == '"') {
      const size_t end = text_.find(c, at_ + 1);
      if (end == std::string::npos) fail("the end of a text");
      const std::string text = text_.substr(at_ + 1, end - at_ - 1);
      at_ = end + 1;
      return json(text);
    }
    const std::string name = word();
    if (name == "None") return json();
    if (name == "True" || name == "False") return json(name == "True");
    if (name == "dtypes") {
      need(".");
      return json(word());
    }
    if (name == "Tensor") {
      need(".");
      return arguments(word(), {});
    }
    if (auto found = names_.find(name); found != names_.end()) return found->second;
    fail("a value instead of " + name);
  }

  // The rest of (a), (a, b) or [a, b].
  Value list(const char* end, bool may_group) {
    json values = json::array();
    Tensors tensors;
    size_t count = 0;
    bool comma = false;
    while (!take(end)) {
      Value v = comparison();
      if (may_group && count == 0 && take(end)) return v;
      ++count;
      if (is_tensor(v))
        tensors.push_back(std::get<Tensor>(v));
      else
        values.push_back(std::get<json>(v));
      comma = take(",");
      if (!comma && !next_is(end)) fail("a comma");
    }
    if (tensors.empty()) return values;
    if (!values.empty()) fail("tensors or numbers");
    return tensors;
  }

  Value index(const Tensor& x) {
    Tensors inputs{x};
    json entries = json::array();
    while (!take("]")) {
      if (take("...")) {
        entries.push_back({{"ellipsis", true}});
      } else {
        json parts = json::array();
        bool slice = false;
        std::optional<Value> single;
        while (!next_is(",") && !next_is("]")) {
          if (take(":")) {
            slice = true;
            parts.push_back(single ? std::get<json>(*single) : json());
            single.reset();
          } else {
            single = comparison();
          }
        }
        if (slice) {
          parts.push_back(single ? std::get<json>(*single) : json());
          while (parts.size() < 3) parts.push_back(json());
          entries.push_back({{"slice", parts}});
        } else if (!single) {
          fail("an index");
        } else if (is_tensor(*single)) {
          entries.push_back({{"tensor", inputs.size()}});
          inputs.push_back(std::get<Tensor>(*single));
        } else if (std::get<json>(*single).is_null()) {
          entries.push_back({{"newaxis", true}});
        } else {
          entries.push_back({{"int", std::get<json>(*single)}});
        }
      }
      take(",");
    }
    return run("getitem", inputs, {{"index", entries}});
  }

  // (a, b, name=c) behind the name of a method; `values` holds the tensor that it is called on.
  Value arguments(const std::string& op, std::vector<Value> values) {
    need("(");
    std::map<std::string, Value> named;
    while (!take(")")) {
      const size_t begin = at_;
      skip();
      if (at_ < text_.size() &&
          (std::isalpha(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) {
        const std::string name = word();
        if (take("=") && !next_is("=")) {
          named.insert_or_assign(name, comparison());
          take(",");
          continue;
        }
        at_ = begin;
      }
      values.push_back(comparison());
      if (!take(",") && !next_is(")")) fail("a comma");
    }
    return call(op, std::move(values), std::move(named));
  }

  Value call(const std::string& op, std::vector<Value> values,
             std::map<std::string, Value> named = {}) {
    json args = json::object();
    if (values.size() == 2 && !is_tensor(values[0]) && is_tensor(values[1])) {  // 2 - x
      std::swap(values[0], values[1]);
      args["reverse"] = true;
      static const std::map<std::string, const char*> kMirror = {
          {"lt", "gt"}, {"gt", "lt"}, {"le", "ge"}, {"ge", "le"}, {"eq", "eq"}, {"ne", "ne"}};
      if (auto mirrored = kMirror.find(op); mirrored != kMirror.end())
        return call(mirrored->second, {values[0], values[1]}, std::move(named));
    }
    Tensors inputs;
    size_t next = 0;
    if (!values.empty() && is_tensor(values[0])) inputs.push_back(std::get<Tensor>(values[next++]));
    std::string signature;
    if (auto found = kSignatures.find(op); found != kSignatures.end()) signature = found->second;
    auto give = [&](const Value& v, const std::string& name, bool tensors) {
      if (is_tensor(v)) {
        inputs.push_back(std::get<Tensor>(v));
      } else if (const auto* many = std::get_if<Tensors>(&v)) {
        inputs.insert(inputs.end(), many->begin(), many->end());
      } else {
        if (!std::get<json>(v).is_null()) args[name] = std::get<json>(v);
        if (tensors) inputs.emplace_back();
      }
    };
    while (!signature.empty()) {
      const size_t comma = std::min(signature.find(','), signature.size());
      std::string name = signature.substr(0, comma);
      signature.erase(0, comma + 1);
      const bool tensors = name.starts_with("@");
      if (tensors) name.erase(0, 1);
      if (tensors && name == "*") {
        while (next < values.size() && !std::holds_alternative<json>(values[next]))
          give(values[next++], name, true);
      } else if (name.starts_with("*")) {
        name.erase(0, 1);
        if (next + 1 == values.size() && std::get<json>(values[next]).is_array()) {
          args[name] = std::get<json>(values[next++]);
        } else {
          json all = json::array();
          while (next < values.size()) all.push_back(std::get<json>(values[next++]));
          if (auto found = named.find(name); found != named.end()) {
            args[name] = std::get<json>(found->second);
            named.erase(found);
          } else {
            args[name] = all;
          }
        }
      } else if (next < values.size()) {
        give(values[next++], name, tensors);
      } else if (auto found = named.find(name); found != named.end()) {
        give(found->second, name, tensors);
        named.erase(found);
      } else if (tensors) {
        inputs.emplace_back();  // not given
      }
    }
    if (next < values.size()) fail("fewer arguments of " + op);
    for (const auto& [name, v] : named) args[name] = std::get<json>(v);
    while (inputs.size() > 1 && !inputs.back().defined()) inputs.pop_back();
    return run(op, std::move(inputs), std::move(args));
  }

  Value run(const std::string& op, Tensors inputs, json args) {
    auto row = calls().find(op);
    if (row == calls().end()) fail("a known method instead of " + op);
    Case c(op, std::move(inputs), std::move(args));
    Tensors out = row->second(c);
    if (!c.unread().empty()) throw Mismatch(fmt::format("{} takes no {}", op, c.unread().front()));
    if (out.size() == 1) return out[0];
    return out;
  }

  std::string text_;
  std::map<std::string, Tensor> names_;
  size_t at_ = 0;
};

}  // namespace

Tensors evaluate(const Case& c) {
  std::vector<std::string> names{"x", "y", "z"};
  if (c.all().contains("input_names"))
    names = c.all().at("input_names").get<std::vector<std::string>>();
  if (c.has("input_names")) names = c.argument("input_names").get<std::vector<std::string>>();
  std::map<std::string, Tensor> inputs;
  for (size_t i = 0; i < c.inputs(); ++i) {
    if (i >= names.size()) throw Mismatch("more inputs than names");
    inputs.emplace(names[i], c.in(i));
  }
  const Value out = Expression(c.text("expr"), std::move(inputs)).value();
  if (const auto* tensors = std::get_if<Tensors>(&out)) return *tensors;
  if (!is_tensor(out)) throw Mismatch("the expression is no tensor");
  return {std::get<Tensor>(out)};
}

}  // namespace tinyshard::golden
