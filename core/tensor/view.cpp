// A view leads up to the tensor that it is of, and writes go there. See view_internal.h.
#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "core/base/sizes.h"
#include "core/exec/capture.h"
#include "core/exec/state.h"
#include "core/tensor/jit.h"
#include "core/tensor/sizes_internal.h"
#include "core/tensor/view_internal.h"

namespace tinyshard {
namespace {

using Link = std::shared_ptr<const ViewOf>;

// Links of any number go one after the other, and not each inside of the one below it.
void drop(ViewOf* link) {
  Link next = std::move(link->whole_view);
  delete link;
  while (next && next.use_count() == 1) next = Link(next->whole_view);
}

Link link_of(ViewOf link) { return {new ViewOf(std::move(link)), drop}; }

// Tells whether somebody has a tensor on the way up.
bool leads_somewhere(Link link) {
  while (link && link->whole.expired()) link = link->whole_view;
  return link != nullptr;
}

}  // namespace

namespace value {

Tensor view_of(const Tensor& whole, ViewStep step, bool is_copy) {
  Tensor view = step.take(whole);
  const Link& above = whole.state()->view_of;
  const bool goes_on = above && !above->is_copy && leads_somewhere(above);
  view.state()->view_of = link_of({whole.state(), goes_on ? above : nullptr,
                                   std::make_shared<const ViewStep>(std::move(step)), is_copy});
  return view;
}

Tensor moved(const Tensor& whole, std::function<Value(const Value&)> take) {
  return view_of(whole, {std::move(take), nullptr});
}

// --- ways ----------------------------------------------------------------------------------------

Way way_to(const Tensor& written, bool is_temporary) {
  if (!written.defined()) fail("a tensor that was never given a value");
  Way way{written.state(), {}, {}};
  Link link = way.whole->view_of;
  size_t known = 0;  // steps from the last tensor on that somebody has
  for (StatePtr part = way.whole; link && (is_temporary || !link->is_copy);) {
    way.steps.push_back(link->step);
    way.views.push_back(part);
    part = link->whole.lock();
    if (part) {
      way.whole = part;
      known = way.steps.size();
    }
    // A tensor that somebody has may be a view no more: a parameter, or another value.
    link = part && link->whole_view ? part->view_of : link->whole_view;
  }
  way.steps.resize(known);
  way.views.resize(known);
  std::ranges::reverse(way.steps);
  std::ranges::reverse(way.views);
  return way;
}

Way way_to_temporary(const Tensor& written) {
  const long handles = written.state().use_count();
  Way way = way_to(written, true);
  if (way.steps.empty() && handles == 1) {
    fail(
        fmt::format("the left side, {}, is a value that was computed here and that nothing else "
                    "names, so nobody would see what is written to it: give it a name first",
                    written.describe()));
  }
  return way;
}

Value at_end_of(const Way& way) {
  Value out = Tensor(way.whole);
  for (const auto& step : way.steps) out = step->take(out);
  return out;
}

// --- elements back in their places ---------------------------------------------------------------

namespace {

Dims dims_of(DimSpan shape) { return {shape.begin(), shape.end()}; }

Dims inverse(DimSpan order) {
  Dims out(order.size());
  for (size_t i = 0; i < order.size(); ++i) out[size_t(order[i])] = static_cast<int64_t>(i);
  return out;
}

// The elements of a part where they are in the Iota below `shown`, of which that shows the part;
// zeros elsewhere.
Value moved_back(Value part, const UOp& shown) {
  for (UOp x = shown; x.op() != Op::Iota; x = x.src(0)) {
    const DimSpan arg = x->arg(), shape = x.src(0).shape();
    Pairs pairs;
    switch (x.op()) {
      case Op::Reshape:
        part = reshape(part, dims_of(shape));
        break;
      case Op::Permute:
        part = permute(part, inverse(arg));
        break;
      case Op::Flip:
        part = flip(part, dims_of(arg));
        break;
      case Op::Shrink:
        for (size_t d = 0; d < shape.size(); ++d)
          pairs.emplace_back(arg[2 * d], shape[d] - arg[2 * d + 1]);
        part = pad(part, pairs);
        break;
      case Op::Pad:
        for (size_t d = 0; d < shape.size(); ++d)
          pairs.emplace_back(arg[2 * d], arg[2 * d] + shape[d]);
        part = shrink(part, pairs);
        break;
      case Op::Detach:
      case Op::Identity:
        break;
      default:
        fail(fmt::format(
            "the left side, of shape {}, shows an element of its tensor at several places, so "
            "there "
            "is none to write to: write to the tensor itself, or to a clone() of this view",
            shape_text(shown.shape())));
    }
  }
  return part;
}

bool shows_all(const UOp& shown) {
  for (UOp x = shown; x.op() != Op::Iota; x = x.src(0)) {
    if (x.op() == Op::Shrink || x.op() == Op::Pad) return false;
  }
  return true;
}

// Steps that only move elements, put together.
Placed put_moved(const Value& whole, std::span<const std::shared_ptr<const ViewStep>> steps,
                 const Placed& part) {
  const int64_t numel = product(whole.shape());
  if (numel == 0) return {whole, {}};
  // Each element's number stands for it: unlike a constant's, its way shows in the graph.
  Value shown = reshape(iota(numel, DType::I64), whole.dims());
  for (const auto& step : steps) shown = step->take(shown);
  auto back = [&](const Value& x) {
    return reshape(moved_back(broadcast_to(x, shown.shape()), shown.node()), whole.dims());
  };
  Placed out{back(part.value), {}};
  if (!part.inside && shows_all(shown.node())) return out;
  if (symbolic_shape(whole.node()))
    fail(fmt::format("{} is no storage: write into what it is a slice of", text_of(whole)));
  out.inside = back(part.inside.value_or(constant(DType::Bool, true)));
  return out;
}

// The same for values of any type, by a step that only places them.
Placed put_alone(const ViewStep& step, const Value& whole, const Placed& part) {
  auto put = [&](const Value& x) { return step.put(constant(x.dtype(), 0, whole.shape()), x); };
  Placed out = put(part.value);
  if (part.inside) {
    const Placed inside = put(*part.inside);
    out.inside = *inside.inside & inside.value;
  }
  return out;
}

bool moves(const std::shared_ptr<const ViewStep>& step) { return !step->put; }

// Returns what each step takes its part of.
std::vector<Value> wholes_of(const Way& way) {
  std::vector<Value> wholes{Tensor(way.whole)};
  for (size_t i = 0; i + 1 < way.steps.size(); ++i)
    wholes.push_back(way.steps[i]->take(wholes.back()));
  return wholes;
}

Placed put(const Way& way, const std::vector<Value>& wholes, const Value& part) {
  Placed out{part, {}};
  for (size_t end = way.steps.size(); end > 0;) {
    size_t begin = end - 1;
    const ViewStep& step = *way.steps[begin];
    if (step.only_places) {
      out = put_alone(step, wholes[begin], out);
    } else if (step.put) {
      out = step.put(wholes[begin], out.inside ? over(out, step.take(wholes[begin])) : out.value);
    } else {
      while (begin > 0 && moves(way.steps[begin - 1])) --begin;
      out = put_moved(wholes[begin], std::span(way.steps).subspan(begin, end - begin), out);
    }
    end = begin;
  }
  return out;
}

// --- writing -------------------------------------------------------------------------------------

void write_over(const StatePtr& state, const Value& value) {
  const UOp& target = Tensor(state).uop();
  if (value.node() == target) return;
  // A target that is not stored and will not be gets a storage; the value to come does not need its
  // old contents. So do data that a trace gave to a new tensor: every replay begins with them.
  const Capture* capture = current_capture();
  const bool is_constant = capture && target.op() == Op::Buffer && !capture->is_from_before(*state);
  UOp storage = has_storage(target) && !is_constant
                    ? target
                    : empty_buffer(target.shape(), target.dtype(), sharding_of(target));
  replace_value(*state, UOp::make(Op::Assign, target.dtype(), {storage, value.node()}));
}

// A step knows a view from before it by its storage, which it gives the new value at each call.
void renew(const StatePtr& view, const Value& value) {
  const Capture* capture = current_capture();
  if (has_storage(view->value) || (capture && capture->is_from_before(*view)))
    write_over(view, value);
  else
    replace_value(*view, Tensor(value.node()).state()->value);
}

}  // namespace

Value over(const Placed& part, const Value& rest) {
  return part.inside ? where(*part.inside, part.value, rest) : part.value;
}

std::optional<Placed> placed(const Way& way, const Value& part) {
  auto places = [](const auto& step) { return moves(step) || step->only_places; };
  if (!std::ranges::all_of(way.steps, places)) return std::nullopt;
  return put(way, wholes_of(way), part);
}

void write(const Way& way, const Value& part) {
  const std::vector<Value> wholes = wholes_of(way);
  write_whole(way, over(put(way, wholes, part), wholes[0]));
}

void write_whole(const Way& way, const Value& whole) {
  write_over(way.whole, broadcast_to(whole, Tensor(way.whole).shape()));
  Value now = Tensor(way.whole);
  for (size_t i = 0; i < way.steps.size(); ++i) {
    now = way.steps[i]->take(now);
    if (way.views[i]) renew(way.views[i], now);
  }
}

}  // namespace value

void detail::write_back(std::span<const size_t> assigned, const CapturedStep::States& inputs) {
  for (size_t i : assigned) {
    if (i >= inputs.size()) continue;  // a gradient from before, which is no argument
    const Tensor input(inputs[i]);
    value::Way way = value::way_to(input, false);
    if (way.steps.empty()) continue;
    Call call("captured step");
    way.views.back() = nullptr;  // the step has written there
    value::write(way, input);
  }
}

// --- temporaries ---------------------------------------------------------------------------------

namespace {

// The same links from a view to a temporary, and on to what that is a view or a copy of.
Link through(const ViewOf& link, const StatePtr& temporary) {
  Link above =
      link.whole.lock() == temporary ? temporary->view_of : through(*link.whole_view, temporary);
  return link_of({link.whole, leads_somewhere(above) ? above : nullptr, link.step, link.is_copy});
}

}  // namespace

// The view of a temporary is what that is a view of, or a value of its own.
Tensor Tensor::of_temporary(Tensor view) const {
  const bool has_no_place = state_.use_count() == 1 && value::way_to(*this, true).steps.empty();
  Link& link = view.state_->view_of;
  link = has_no_place ? nullptr : through(*link, state_);
  return view;
}

std::vector<Tensor> Tensor::of_temporary(std::vector<Tensor> views) const {
  for (Tensor& view : views) view = of_temporary(std::move(view));
  return views;
}

}  // namespace tinyshard
