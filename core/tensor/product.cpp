// Matrix products, and the sums of products written as formulas.
#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "core/dtype/half.h"
#include "core/tensor/sizes_internal.h"

namespace tinyshard {
namespace value {
namespace {

// The Dot of two values of one type and of equal batch dims. Sums of narrow floats are f32 inside,
// whatever the type of the result.
Value dot(const Value& a, const Value& b, DType result) {
  return UOp::make(Op::Dot, result, {a.node(), b.node()}, Dims{a.rank() - 2});
}

Value with_batch(const Value& x, const Dims& batch) {
  Dims shape = batch;
  shape.insert(shape.end(), x.shape().end() - 2, x.shape().end());
  return broadcast_to(x, shape);
}

}  // namespace

// Vectors become matrices of one row or column. A right side without batch dims multiplies all rows
// of the left one as one matrix.
Value matmul(const Value& a, const Value& b, std::optional<DType> dtype) {
  DType type = promote(a.dtype(), b.dtype()), wide = dtype ? promote(type, *dtype) : type;
  DType accumulate = accumulator(wide), result = dtype.value_or(type);
  // Small integers and floats of 8 bits are widened before they are multiplied.
  if (!is_float(type) || is_float8(type)) type = accumulate;
  DType stored = result == type && is_float(type) ? type : accumulate;
  bool row = a.rank() == 1, column = b.rank() == 1;
  Value x = cast(row ? unsqueeze(a, 0) : a, type), y = cast(column ? unsqueeze(b, 1) : b, type);
  auto inner_x = size_along(x, x.rank() - 1), inner_y = size_along(y, y.rank() - 2);
  if (inner_x || inner_y) {
    if (!inner_x || !inner_y || !(inner_x->node == inner_y->node))
      fail(fmt::format("inner sizes differ: x is {}, w is {}", text_of(a), text_of(b)));
    x = filled(x, x.rank() - 1, 0), y = filled(y, y.rank() - 2, 0);
  }
  Dims batch_x(x.shape().begin(), x.shape().end() - 2),
      batch_y(y.shape().begin(), y.shape().end() - 2);
  int64_t m = x.size(x.rank() - 2), k = x.shape().back(), n = y.shape().back();
  Dims shape = broadcast_shape(batch_x, batch_y);
  Value out = x;
  const bool joins = product(batch_x) == 1 || !size_along(x, x.rank() - 2);
  if (product(batch_y) == 1 && shape == batch_x && joins) {
    out = dot(reshape(x, {product(batch_x) * m, k}), reshape(y, {k, n}), stored);
  } else {
    out = dot(with_batch(x, shape), with_batch(y, shape), stored);
  }
  if (!row) shape.push_back(m);
  if (!column) shape.push_back(n);
  return reshape(cast(out, result), shape);
}

}  // namespace value

using value::text_of;
using value::Value;

namespace {

// Multiplies operands that a caller gave: UserError where they do not fit.
Value multiplied(const Value& a, const Value& b, std::optional<DType> dtype) {
  if (a.rank() == 0 || b.rank() == 0) {
    fail(fmt::format("x is {}, w is {}: both need at least one dim", text_of(a), text_of(b)));
  }
  int64_t inner = b.size(std::max<int64_t>(0, b.rank() - 2));
  if (a.shape().back() != inner) {
    bool transposed = b.rank() == 2 && a.shape().back() == b.size(1);
    fail(fmt::format("inner sizes differ: x is {}, w is {}{}", text_of(a), text_of(b),
                     transposed ? "; did you mean w.T()?" : ""));
  }
  return value::matmul(a, b, dtype);
}

}  // namespace

Tensor Tensor::matmul(const Tensor& x, std::optional<DType> dtype, Caller caller) const {
  Call call("matmul", caller);
  return multiplied(*this, x, dtype);
}

Tensor Tensor::dot(const Tensor& x, std::optional<DType> dtype, Caller caller) const {
  Call call("dot", caller);
  return matmul(x, dtype, caller);
}

Tensor Tensor::linear(const Tensor& weight, const Tensor& bias, std::optional<DType> dtype,
                      Caller caller) const {
  Call call("linear", caller);
  auto typed = [&](const Tensor& t) { return dtype ? value::cast(t, *dtype) : Value(t); };
  const Value x = typed(*this), w = typed(weight);
  const DType type = promote(x.dtype(), w.dtype());
  auto product = [&](std::optional<DType> result) {
    if (w.rank() > 1) return multiplied(x, w, result);
    return result ? value::cast(x, *result) * value::cast(w, *result) : x * w;
  };
  if (!bias.defined()) return product({});
  // Sums of narrow products meet the bias before they are rounded.
  const Value b = typed(bias);
  const bool narrow = is_narrow(type) && promote(type, b.dtype()) == type;
  const Value out = product(narrow ? std::optional(DType::F32) : std::nullopt);
  const int64_t row = out.rank() > 0 ? out.shape().back() : 1;
  if (b.rank() > 1 || (b.node()->numel() != 1 && b.node()->numel() != row)) {
    fail(fmt::format("bias is {}, but the weight {} makes rows of {}", bias.describe(),
                     weight.describe(), row));
  }
  return narrow ? value::cast(out + value::cast(b, DType::F32), type) : out + b;
}

// --- einsum --------------------------------------------------------------------------------------

namespace {

// A dim of an operand: a letter, or a negative number that counts the dims of ... from the right.
using Labels = std::vector<int>;

struct Term {
  Value value;
  Labels labels;
};

bool contains(const Labels& labels, int label) {
  return std::ranges::find(labels, label) != labels.end();
}

Labels parse_labels(const std::string& text, int64_t ellipsis_dims, const std::string& formula) {
  Labels labels;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 3, "...") == 0) {
      for (int64_t d = ellipsis_dims; d > 0; --d) labels.push_back(static_cast<int>(-d));
      i += 2;
    } else if (std::isalpha(static_cast<unsigned char>(text[i]))) {
      labels.push_back(text[i]);
    } else {
      fail(fmt::format("\"{}\" is not a letter in formula \"{}\"", text[i], formula));
    }
  }
  return labels;
}

// Keeps the diagonal where a label is repeated.
Term distinct(Term term) {
  for (size_t i = 0; i < term.labels.size(); ++i) {
    for (size_t j = i + 1; j < term.labels.size(); ++j) {
      if (term.labels[i] != term.labels[j]) continue;
      Tensor diagonal =
          term.value.tensor().diagonal(0, static_cast<int64_t>(i), static_cast<int64_t>(j));
      int label = term.labels[i];
      term.labels.erase(term.labels.begin() + static_cast<int64_t>(j));
      term.labels.erase(term.labels.begin() + static_cast<int64_t>(i));
      term.labels.push_back(label);
      return distinct({diagonal, term.labels});
    }
  }
  return term;
}

Term ordered(const Term& term, const Labels& order) {
  Dims axes;
  for (int label : order)
    axes.push_back(std::ranges::find(term.labels, label) - term.labels.begin());
  return {value::permute(term.value, axes), order};
}

// Sums over the labels that nobody else needs, in the type of the result if that was given.
Term summed(const Term& term, const Labels& needed, std::optional<DType> dtype) {
  Dims axes;
  Labels kept;
  for (size_t i = 0; i < term.labels.size(); ++i) {
    if (contains(needed, term.labels[i])) {
      kept.push_back(term.labels[i]);
    } else {
      axes.push_back(static_cast<int64_t>(i));
    }
  }
  if (axes.empty()) return {term.value, kept};
  if (!dtype) return {value::sum(term.value, axes), kept};
  return {value::cast(value::sum(value::cast(term.value, accumulator(*dtype)), axes), *dtype),
          kept};
}

// `result`: the type of the product, where that of its operands is not the one.
Term contracted(const Term& first, const Term& second, const Labels& needed,
                std::optional<DType> dtype, std::optional<DType> result) {
  Labels for_a = needed, for_b = needed;
  for_a.insert(for_a.end(), second.labels.begin(), second.labels.end());
  for_b.insert(for_b.end(), first.labels.begin(), first.labels.end());
  Term a = summed(first, for_a, dtype), b = summed(second, for_b, dtype);
  Labels batch, inner, only_a, only_b;
  for (int label : a.labels) {
    (!contains(b.labels, label) ? only_a
     : contains(needed, label)  ? batch
                                : inner)
        .push_back(label);
  }
  for (int label : b.labels) {
    if (!contains(a.labels, label)) only_b.push_back(label);
  }
  auto joined = [](Labels x, const Labels& y, const Labels& z) {
    x.insert(x.end(), y.begin(), y.end());
    x.insert(x.end(), z.begin(), z.end());
    return x;
  };
  a = ordered(a, joined(batch, only_a, inner)), b = ordered(b, joined(batch, inner, only_b));
  auto sizes = [](const Term& term, size_t from, size_t count) {
    return Dims(term.value.shape().begin() + from, term.value.shape().begin() + from + count);
  };
  Dims batch_sizes = sizes(a, 0, batch.size()), rows = sizes(a, batch.size(), only_a.size());
  Dims columns = sizes(b, batch.size() + inner.size(), only_b.size());
  int64_t m = product(rows), n = product(columns),
          k = product(sizes(b, batch.size(), inner.size()));
  Value x = value::reshape(a.value, {product(batch_sizes), m, k}),
        y = value::reshape(b.value, {product(batch_sizes), k, n});
  // Without a sum it is no product of matrices: a kernel writes it, at the rate of memory.
  const auto multiplied = [&] {
    if (!result) return x * y;
    const DType wide = promote(promote(x.dtype(), y.dtype()), *result);
    return value::cast(value::cast(x, wide) * value::cast(y, wide), *result);
  };
  Value out = inner.empty() ? multiplied() : value::matmul(x, y, result);
  Dims shape = batch_sizes;
  shape.insert(shape.end(), rows.begin(), rows.end());
  shape.insert(shape.end(), columns.begin(), columns.end());
  return {value::reshape(out, shape), joined(batch, only_a, only_b)};
}

// Tells whether two operands make a product of matrices, which has rows, columns and a sum of its own.
bool multiplies_matrices(const Labels& first, const Labels& second, const Labels& needed) {
  bool rows = false, columns = false, sum = false;
  for (int label : first) {
    if (contains(second, label))
      sum = sum || !contains(needed, label);
    else
      rows = rows || contains(needed, label);
  }
  for (int label : second)
    columns = columns || (!contains(first, label) && contains(needed, label));
  return rows && columns && sum;
}

std::string without_spaces(std::string text) {
  std::erase(text, ' ');
  return text;
}

}  // namespace

Tensor Tensor::einsum(const std::string& formula, const std::vector<Tensor>& operands,
                      std::optional<DType> dtype, Caller caller) {
  Call call("einsum", caller);
  std::string text = without_spaces(formula);
  size_t arrow = text.find("->");
  std::string left = text.substr(0, arrow);
  std::vector<std::string> inputs(1);
  for (char c : left) {
    if (c == ',') {
      inputs.emplace_back();
    } else {
      inputs.back() += c;
    }
  }
  if (inputs.size() != operands.size()) {
    fail(fmt::format("formula \"{}\" has {} operands, {} given", formula, inputs.size(),
                     operands.size()));
  }

  std::vector<Term> terms;
  std::map<int, int64_t> size_of;
  int64_t ellipsis_dims = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Value x(operands[i]);
    bool has_ellipsis = inputs[i].find("...") != std::string::npos;
    int64_t letters = static_cast<int64_t>(inputs[i].size()) - (has_ellipsis ? 3 : 0);
    int64_t rest = has_ellipsis ? x.rank() - letters : 0;
    if (rest < 0 || letters + rest != x.rank()) {
      fail(fmt::format("\"{}\" does not name the {} dims of {}", inputs[i], x.rank(), text_of(x)));
    }
    ellipsis_dims = std::max(ellipsis_dims, rest);
    Labels labels = parse_labels(inputs[i], rest, formula);
    for (size_t d = 0; d < labels.size(); ++d) {
      int64_t& size = size_of.try_emplace(labels[d], 1).first->second;
      int64_t mine = x.size(static_cast<int64_t>(d));
      if (size != mine && size != 1 && mine != 1) {
        fail(fmt::format("dim {} of {} is {} where another operand has {}", d, text_of(x), mine,
                         size));
      }
      size = size == 1 ? mine : size;
    }
    terms.push_back({x, labels});
  }
  for (Term& term : terms) {
    Dims shape;
    for (int label : term.labels) shape.push_back(size_of[label]);
    term = distinct({value::broadcast_to(term.value, shape), term.labels});
  }

  Labels output;
  if (arrow != std::string::npos) {
    output = parse_labels(text.substr(arrow + 2), ellipsis_dims, formula);
  } else {
    for (int64_t d = ellipsis_dims; d > 0; --d) output.push_back(static_cast<int>(-d));
    for (auto [label, size] : size_of) {
      if (label > 0 && std::ranges::count(left, static_cast<char>(label)) == 1)
        output.push_back(label);
    }
  }
  for (size_t i = 0; i < output.size(); ++i) {
    if (!size_of.contains(output[i]) || std::ranges::count(output, output[i]) > 1) {
      fail(fmt::format("output letter \"{}\" of \"{}\" must occur once, and in an input",
                       static_cast<char>(output[i]), formula));
    }
  }

  // Narrow operands meet in f32 and the result is rounded once, by the last product if that is what
  // makes it. A product of matrices reads narrow ones, as it would if both were calls of matmul(): one
  // of f32 takes a GPU fifteen times as long, and memory twice.
  DType type = terms[0].value.dtype();
  for (const Term& term : terms) type = promote(type, term.value.dtype());
  // It is a sum of products, so small integers become what sum() makes of them.
  if (!dtype && sum_type(type) != type) dtype = sum_type(type);
  const bool narrow = !dtype && is_narrow(type);
  const std::optional<DType> inside = narrow ? DType::F32 : dtype;
  Term result = terms[0];
  for (size_t i = 1; i < terms.size(); ++i) {
    Labels needed = output;
    for (size_t j = i + 1; j < terms.size(); ++j) {
      needed.insert(needed.end(), terms[j].labels.begin(), terms[j].labels.end());
    }
    bool last = i + 1 == terms.size();
    if (narrow && multiplies_matrices(result.labels, terms[i].labels, needed))
      result.value = value::cast(result.value, type);
    result = contracted(result, terms[i], needed, inside, narrow && last ? type : inside);
  }
  result = ordered(summed(result, output, inside), output);
  return dtype || narrow ? value::cast(result.value, dtype.value_or(type)) : result.value;
}

}  // namespace tinyshard
