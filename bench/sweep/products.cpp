// Matrix products, alone, batched and with what follows them, einsums of several operands, attention.
#include <map>

#include "bench/sweep/kind.h"

namespace tinyshard::sweep {
namespace {

// Doubles and halves sizes until the largest of these products of sizes is near `elements`.
Dims fit(Draw& draw, Dims sizes, int64_t elements,
         const std::vector<std::vector<size_t>>& operands) {
  const auto largest = [&] {
    double most = 0;
    for (const auto& dims : operands) {
      double n = 1;
      for (size_t dim : dims) n *= double(sizes[dim]);
      most = std::max(most, n);
    }
    return most;
  };
  while (largest() > double(elements)) {
    const auto most = std::ranges::max_element(sizes);
    if (*most == 1) break;
    *most = (*most + 1) / 2;
  }
  for (int tries = 0; tries < 64 && largest() < double(elements) / 4; ++tries) {
    int64_t& size = sizes[size_t(draw.below(std::ssize(sizes)))];
    size *= 2;
    if (largest() > double(elements)) size /= 2;
  }
  return sizes;
}
int64_t side(Draw& draw) {
  return draw.pick<int64_t>({1, 8, 64, 100, 197, 384, 512, 768, 1000, 1024, 2048, 3072, 4096, 4097,
                             5120, 8192, 11008, 32000});
}

// [rows, terms, columns], and for each operand whether it lies transposed.
Sizes draw_matmul(Draw& draw, int64_t elements) {
  const Dims sizes = {side(draw), side(draw), side(draw)};
  return {fit(draw, sizes, elements, {{0, 1}, {1, 2}, {0, 2}}), {draw.below(2), draw.below(2)}};
}
Sizes draw_batched(Draw& draw, int64_t elements) {
  const auto small = [&] { return draw.pick<int64_t>({16, 32, 64, 77, 128, 197, 512}); };
  const Dims sizes = {draw.pick<int64_t>({4, 12, 64, 96, 384}), small(), small(), small()};
  return {fit(draw, sizes, elements, {{0, 1, 2}, {0, 2, 3}, {0, 1, 3}}),
          {draw.below(2), draw.below(2)}};
}
Step matmul(const Case& of) {
  const size_t dims = of.sizes.size();
  const Dims batch(of.sizes.begin(), of.sizes.end() - 3);
  const bool turned[] = {of.numbers.at(0) != 0, of.numbers.at(1) != 0};
  const auto operand = [&](size_t which) {
    Dims matrix = {of.sizes[dims - 3 + which], of.sizes[dims - 2 + which]};
    if (turned[which]) std::swap(matrix[0], matrix[1]);
    Dims shape = batch;
    shape.insert(shape.end(), matrix.begin(), matrix.end());
    return numbers(shape, of.dtype);
  };
  return step_of({operand(0), operand(1)}, [a = turned[0], b = turned[1]](const Tensors& v) {
    const auto as_is = [](const Tensor& x, bool t) { return t ? x.transpose(-2, -1) : x; };
    return as_is(v[0], a).matmul(as_is(v[1], b));
  });
}
double product_of(const Dims& sizes) {
  double n = 1;
  for (int64_t size : sizes) n *= double(size);
  return n;
}
template <int kProducts>
Work multiplied(const Case& of, const Step& step) {
  return {.bytes = moved(of, step).bytes, .operations = 2 * kProducts * product_of(of.sizes)};
}

Step linear_gelu(const Case& of) {
  const auto rows = of.sizes[0], in = of.sizes[1], out = of.sizes[2];
  return step_of(
      {numbers({rows, in}, of.dtype), numbers({in, out}, of.dtype), numbers({out}, of.dtype)},
      [](const Tensors& v) { return v[0].linear(v[1], v[2]).gelu(); });
}

// A size for each letter, in the order in which the letters first come.
const std::vector<std::string> kFormulas = {
    "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "bi,ij,bj->b",   "ij,jk,kl->il",  "abc,bd,cd->ad",
    "bic,cd,bjd->bij", "ab,bc,cd,de->ae", "bi,bj,bk->ijk", "i,j,k,l->ijkl", "abc,ad,bd,cd->d",
};
std::string letters_of(const std::string& formula) {
  std::string letters;
  for (char c : formula)
    if (std::isalpha(static_cast<unsigned char>(c)) && letters.find(c) == std::string::npos)
      letters += c;
  return letters;
}
// Texts between the commas, then the result.
std::vector<std::string> terms_of(const std::string& formula) {
  std::vector<std::string> terms(1);
  for (char c : formula) {
    if (c == '>') continue;
    if (c == ',' || c == '-')
      terms.emplace_back();
    else
      terms.back() += c;
  }
  return terms;
}
Sizes draw_einsum(Draw& draw, int64_t elements) {
  const int64_t which = draw.below(std::ssize(kFormulas));
  const std::string letters = letters_of(kFormulas[size_t(which)]);
  Dims sizes;
  for (size_t i = 0; i < letters.size(); ++i)
    sizes.push_back(draw.pick<int64_t>({2, 8, 12, 17, 32, 64, 64, 100, 128, 256}));
  std::vector<std::vector<size_t>> operands;
  for (const std::string& term : terms_of(kFormulas[size_t(which)])) {
    operands.emplace_back();
    for (char c : term) operands.back().push_back(letters.find(c));
  }
  return {fit(draw, sizes, elements, operands), {which}};
}
struct Einsum {
  explicit Einsum(const Case& of) : formula(kFormulas.at(size_t(of.numbers.at(0)))) {
    const std::string letters = letters_of(formula);
    for (size_t i = 0; i < letters.size(); ++i) size[letters[i]] = of.sizes.at(i);
    terms = terms_of(formula);
    result = terms.back();
    terms.pop_back();
  }
  Dims shape(const std::string& term) const {
    Dims sizes;
    for (char c : term) sizes.push_back(size.at(c));
    return sizes;
  }
  std::string formula, result;
  std::vector<std::string> terms;
  std::map<char, int64_t> size;
};
Step einsum(const Case& of) {
  const Einsum e(of);
  Tensors inputs;
  for (const std::string& term : e.terms) inputs.push_back(numbers(e.shape(term), of.dtype));
  return step_of(inputs,
                 [formula = e.formula](const Tensors& v) { return Tensor::einsum(formula, v); });
}

// Counts the operations of the best order of products of two.
double least_operations(const Einsum& e, const std::vector<std::string>& terms) {
  if (terms.size() < 2) return 0;
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < terms.size(); ++i) {
    for (size_t j = i + 1; j < terms.size(); ++j) {
      std::vector<std::string> rest;
      std::string others = e.result, kept;
      for (size_t k = 0; k < terms.size(); ++k) {
        if (k == i || k == j) continue;
        rest.push_back(terms[k]);
        others += terms[k];
      }
      const std::string both = letters_of(terms[i] + terms[j]);
      for (char c : both)
        if (others.find(c) != std::string::npos) kept += c;
      rest.push_back(kept);
      least = std::min(least, 2 * product_of(e.shape(both)) + least_operations(e, rest));
    }
  }
  return least;
}
Work contracted(const Case& of, const Step& step) {
  const Einsum e(of);
  return {.bytes = moved(of, step).bytes, .operations = least_operations(e, e.terms)};
}

// [batch, heads, time, width], and whether it is causal.
Sizes draw_attention(Draw& draw, int64_t elements) {
  const int64_t width = draw.pick<int64_t>({32, 64, 64, 80, 128});
  int64_t heads = draw.pick<int64_t>({1, 4, 12, 16, 32}),
          time = draw.pick<int64_t>({64, 197, 256, 1024, 2048, 4096});
  while (heads * time * width > elements && time > 16) time /= 2;
  while (heads * time * width > elements && heads > 1) heads /= 2;
  const int64_t batch = std::max<int64_t>(1, elements / (heads * time * width));
  return {{batch, heads, time, width}, {draw.below(2)}};
}
Step attention(const Case& of) {
  return step_of(
      {numbers(of.sizes, of.dtype), numbers(of.sizes, of.dtype), numbers(of.sizes, of.dtype)},
      [causal = of.numbers.at(0) != 0](const Tensors& v) {
        return v[0].scaled_dot_product_attention(v[1], v[2], {}, {.is_causal = causal});
      });
}
// A product of queries by keys and another one by values, each the half of it where it is causal.
template <int kProducts>
Work attended(const Case& of, const Step& step) {
  const double scores = product_of(of.sizes) * double(of.sizes[2]);
  return {.bytes = moved(of, step).bytes,
          .operations = 2 * kProducts * scores / (of.numbers[0] != 0 ? 2 : 1)};
}

}  // namespace

Kinds product_kinds() {
  return {
      {"matmul", kMore, draw_matmul, matmul, multiplied<1>},
      {"matmul_grad", kFloats, draw_matmul, [](const Case& c) { return gradient_of(matmul(c), 2); },
       multiplied<2>},
      {"integer_matmul", {DType::I32, DType::I64}, draw_matmul, matmul, multiplied<1>},
      {"batched_matmul", kMore, draw_batched, matmul, multiplied<1>},
      {"batched_matmul_grad", kFloats, draw_batched,
       [](const Case& c) { return gradient_of(matmul(c), 2); }, multiplied<2>},
      {"linear_gelu", kFloats, draw_matmul, linear_gelu, multiplied<1>},
      {"linear_gelu_grad", kFloats, draw_matmul,
       [](const Case& c) { return gradient_of(linear_gelu(c), 3); }, multiplied<3>},
      {"einsum", kFloats, draw_einsum, einsum, contracted},
      {"attention", kFloats, draw_attention, attention, attended<2>},
      {"attention_grad", kFloats, draw_attention,
       [](const Case& c) { return gradient_of(attention(c), 3); }, attended<5>},
  };
}

}  // namespace tinyshard::sweep
