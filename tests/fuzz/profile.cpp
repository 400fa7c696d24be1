// How often programs of each kind come up.
#include "tests/fuzz/profile.h"

namespace fuzz {
namespace {

std::vector<Type> choose_types(Choices& c, bool gradient) {
  if (gradient) return {c.chance(70) ? Type::F64 : Type::F32};
  int kind = c.pick(0, 9);
  if (kind <= 3) return {Type::F32};
  if (kind == 4) return {Type::F64};
  if (kind == 5) return {c.chance(50) ? Type::F16 : Type::BF16};
  if (kind == 6) return {Type(c.pick(1, 8))};
  std::vector<Type> types;
  for (int i = c.pick(2, 4); i > 0; --i) types.push_back(Type(c.pick(0, kTypes - 1)));
  return types;
}

// Programs on meshes are short and small: many of them are worth more than long ones.
void shorten_for_mesh(Choices& c, Profile& p) {
  if (p.sizes == Sizes::Large) p.sizes = Sizes::Small;
  p.length = std::min(p.length, c.chance(80) ? 12 : 40);
}

}  // namespace

Profile choose_profile(Choices& c) {
  Profile p;
  p.gradient = c.chance(20);
  bool mesh = c.chance(35);
  p.types = choose_types(c, p.gradient);
  int length = c.pick(0, 99);
  p.length = length < 60   ? c.pick(3, 12)
             : length < 92 ? c.pick(13, 40)
             : length < 99 ? c.pick(41, 120)
                           : c.pick(121, 300);
  if (p.gradient) p.length = std::min(p.length, c.chance(80) ? 10 : 25);
  int size = c.pick(0, 99);
  if (size < 65 || p.gradient || p.length > 60)
    p.sizes = Sizes::Small;
  else if (size < 95)
    p.sizes = Sizes::Tails;
  else
    p.sizes = Sizes::Large, p.length = std::min(p.length, 8);
  if (mesh) {
    static const std::vector<std::vector<int64_t>> kMeshes = {{2}, {3},    {4},   {2, 2},
                                                              {1}, {1, 2}, {3, 1}};
    p.mesh = c.one_of(kMeshes);
    shorten_for_mesh(c, p);
    p.meets_sums = c.chance(50);
  }
  p.limit = p.sizes == Sizes::Small ? 600 : p.sizes == Sizes::Tails ? 6000 : 150000;
  if (!p.gradient && c.chance(35)) {
    p.calls = c.pick(2, 4);
    p.stateful = c.chance(60);
  }
  p.assigns = !p.gradient && c.chance(25);
  p.style = c.chance(75) ? Style::Uniform : c.chance(80) ? Style::Whole : Style::Wild;
  if (p.gradient) p.style = Style::Uniform;
  for (int& w : p.weights) w = c.chance(30) ? 12 : c.pick(0, 4);
  p.weight(Kind::Unary) += 4, p.weight(Kind::Binary) += 4, p.weight(Kind::Movement) += 2;
  p.weight(Kind::Making) /= 2, p.weight(Kind::Selection) /= 2, p.weight(Kind::Decomposition) /= 4;
  if (p.meets_sums) {
    // Each op soon meets a sum that is still pending, and little is computed besides.
    p.weight(Kind::Unary) += 12, p.weight(Kind::Binary) += 6, p.weight(Kind::Reduction) = 6;
    p.length = c.pick(4, 10), p.sizes = Sizes::Small, p.limit = 600;
    if (c.chance(70)) p.calls = 1, p.stateful = p.assigns = false;
  }
  return p;
}

}  // namespace fuzz
