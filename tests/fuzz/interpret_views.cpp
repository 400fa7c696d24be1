// Writes through views: the elements that are left are picked, changed and put back.
#include "tests/fuzz/interpreter.h"
#include "tests/fuzz/views.h"

namespace fuzz {

Part whole(const Shape& shape) {
  Part part{shape, std::vector<size_t>(size_t(count(shape)))};
  for (size_t i = 0; i < part.at.size(); ++i) part.at[i] = i;
  return part;
}

Part next(const Part& part, std::span<const int64_t> link) {
  const auto kind = Link(link[0]);
  Shape shape = part.shape;
  const auto rank = int64_t(shape.size());
  if (kind == Link::Flatten) return {{count(shape)}, part.at};
  const int64_t axis = link[1];
  need(axis >= 0 && axis < rank + (kind == Link::Unsqueeze), "axis");
  const auto dim = size_t(axis);
  if (kind == Link::Unsqueeze) {
    shape.insert(shape.begin() + axis, 1);
    return {shape, part.at};
  }
  // Where an element of the new part lies in the old one.
  std::function<void(Shape&)> move;
  need(kind != Link::Variable, "a number");
  if (kind == Link::Number) {
    const int64_t i = resolved(link[2], shape[dim]);
    shape.erase(shape.begin() + axis);
    move = [=](Shape& place) { place.insert(place.begin() + axis, i); };
  } else if (kind == Link::Slice) {
    const int64_t low = link[2], high = link[3], step = link[4];
    need(0 <= low && low <= high && high <= shape[dim] && step > 0, "slice");
    shape[dim] = (high - low + step - 1) / step;
    move = [=](Shape& place) { place[dim] = low + place[dim] * step; };
  } else if (kind == Link::Flip) {
    move = [dim, n = shape[dim]](Shape& place) { place[dim] = n - 1 - place[dim]; };
  } else {
    need(kind == Link::Transpose && link[2] >= 0 && link[2] < rank, "axis");
    const auto other = size_t(link[2]);
    std::swap(shape[dim], shape[other]);
    move = [=](Shape& place) { std::swap(place[dim], place[other]); };
  }
  Part out{shape, std::vector<size_t>(size_t(count(shape)))};
  each_place(shape, [&](const Shape& place, size_t i) {
    Shape from = place;
    move(from);
    out.at[i] = part.at[linear(from, part.shape)];
  });
  return out;
}

Part last(const Shape& shape, const Step& step) {
  need(step.n.size() % kLinkSize == 0, "links");
  Part part = whole(shape);
  for (size_t i = 0; i < step.n.size(); i += kLinkSize)
    part = next(part, std::span(step.n).subspan(i, kLinkSize));
  return part;
}

Step with_number(Step step, int64_t variable) {
  for (size_t i = 0; i + kLinkSize <= step.n.size(); i += kLinkSize) {
    if (Link(step.n[i]) == Link::Variable)
      step.n[i] = int64_t(Link::Number), step.n[i + 2] = variable;
  }
  return step;
}

std::string views_text(const Step& step, const std::string& variable) {
  std::string out;
  auto text = [](int64_t n) { return std::to_string(n); };
  for (size_t i = 0; i + kLinkSize <= step.n.size(); i += kLinkSize) {
    const int64_t* n = &step.n[i];
    std::string before;
    for (int64_t d = 0; d < n[1]; ++d) before += "Slice(), ";
    switch (Link(n[0])) {
      case Link::Number:
        out += "[{" + before + text(n[2]) + "}]";
        break;
      case Link::Variable:
        out += "[{" + before + variable + "}]";
        break;
      case Link::Slice:
        out +=
            "[{" + before + "Slice(" + text(n[2]) + ", " + text(n[3]) + ", " + text(n[4]) + ")}]";
        break;
      case Link::Flip:
        out += ".flip(" + text(n[1]) + ")";
        break;
      case Link::Transpose:
        out += ".transpose(" + text(n[1]) + ", " + text(n[2]) + ")";
        break;
      case Link::Flatten:
        out += ".reshape({-1})";
        break;
      case Link::Unsqueeze:
        out += ".unsqueeze(" + text(n[1]) + ")";
        break;
    }
  }
  return out;
}

void add_view_rules(std::map<std::string, Rule>& rules) {
  for (const char* op : {"view_assign", "view_add_assign", "view_sub_assign", "view_mul_assign"}) {
    rules[op] = [](const Step& step, const Operands& in) {
      const bool at_variable = in.size() > 2;
      if (at_variable) need(in[2]->type == Type::I64 && in[2]->rank() == 0, "a variable");
      const Part part = last(in[0]->shape, at_variable ? with_number(step, in[2]->at[0].n) : step);
      Array out = *in[0], picked(out.type, part.shape);
      for (size_t i = 0; i < part.at.size(); ++i) picked.at[i] = out.at[part.at[i]];
      Step of_part;
      of_part.op = step.op.substr(5);
      const Array changed = interpret(of_part, {&picked, in[1]});
      for (size_t i = 0; i < part.at.size(); ++i) out.at[part.at[i]] = changed.at[i];
      return out;
    };
  }
}

}  // namespace fuzz
