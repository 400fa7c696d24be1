// Sharding: each value as a grid of devices with its boxes to scale, each movement as an arrow between two.
const placeText = p => p === "R" ? "Replicate" : typeof p === "number" ? "Shard(" + p + ")" : typeof p === "string" ? "Partial(" + p.slice(2) + ")" : "Shard(" + num(obj(p).dim) + ", joined)";
const placesText = (mesh, places) => mesh.axes.map((a, i) => a.name + ": " + placeText(places[i])).join(", ") || "one device";
const dimOf = p => typeof p === "number" ? p : p && typeof p === "object" ? num(p.dim, -1) : -1;

// Names the kind of a movement by the placements of each axis that changes.
function moveKind(move) {
  const kinds = move.mesh.axes.map((axis, i) => {
    const from = move.from[i], to = move.to[i], same = JSON.stringify(from) === JSON.stringify(to);
    if (same) return "";
    const partial = p => typeof p === "string" && p[0] === "P", split = p => dimOf(p) >= 0;
    const kind = partial(from) ? (split(to) ? "reduce_scatter" : "all_reduce") : split(from) ? (split(to) ? "all_to_all" : partial(to) ? "keep as term" : "all_gather") : partial(to) ? "keep as term" : "slice";
    return kind + " over " + axis.name;
  });
  return kinds.filter(Boolean).join(", ") || "none";
}

function coordinates(mesh, position) {
  const out = [];
  for (let i = mesh.axes.length - 1; i >= 0; --i) { out[i] = position % mesh.axes[i].size; position = Math.floor(position / mesh.axes[i].size); }
  return out;
}

// The box of a device: [begin, end) of each dim, as multi/local_box.h says. Axes that split one dim nest, each rounds up.
function boxOf(mesh, places, shape, position) {
  const at = coordinates(mesh, position);
  const begin = shape.map(() => 0), part = shape.slice(), end = shape.slice();
  mesh.axes.forEach((axis, i) => {
    const d = typeof places[i] === "number" ? places[i] : -1;
    if (d < 0 || d >= shape.length) return;
    part[d] = Math.ceil(part[d] / axis.size);
    begin[d] += at[i] * part[d];
    end[d] = Math.min(end[d], begin[d] + part[d]);
  });
  return shape.map((n, d) => [Math.min(begin[d], n), Math.max(Math.min(begin[d], n), end[d])]);
}
// Returns the boxes that a device at this position holds: if two dims were joined, a piece of each of their parts.
function boxesOf(mesh, places, shape, position) {
  const joined = places.findIndex(p => p && typeof p === "object");
  const box = boxOf(mesh, places, shape, position);
  if (joined < 0) return [box];
  const dim = num(places[joined].dim), at = coordinates(mesh, position)[joined], n = mesh.axes[joined].size;
  let from = 0;
  return arr(places[joined].parts).map(size => {
    const piece = num(size) / n, own = box.map(b => b.slice());
    own[dim] = [from + at * piece, from + (at + 1) * piece];
    from += num(size);
    return own;
  });
}

// The two dims that are drawn, down and across: those that are split, else the last ones.
function drawnDims(shape, places) {
  const split = [...new Set(places.map(dimOf).filter(d => d >= 0 && d < shape.length))].slice(0, 2);
  for (let d = shape.length - 1; d >= 0 && split.length < Math.min(2, shape.length); --d) if (!split.includes(d)) split.push(d);
  return split.sort((a, b) => a - b);
}

const kHues = [212, 28, 152, 268, 48, 340, 186, 95, 10, 240, 70, 300];
const boxColor = i => `hsl(${kHues[i % kHues.length]} ${document.documentElement.classList.contains("dark") ? "45% 55%" : "52% 58%"})`;

function gridOf(mesh, places, shape, dtype) {
  const n = Math.max(1, mesh.devices.length || mesh.axes.reduce((p, a) => p * a.size, 1));
  const shown = Math.min(n, 1024);
  let columns = mesh.axes.length > 1 ? mesh.axes[mesh.axes.length - 1].size : n;
  if (columns > 32 || (mesh.axes.length <= 1 && n > 4)) columns = n <= 16 ? Math.ceil(n / 2) : Math.min(32, Math.ceil(Math.sqrt(n)));
  // Long meshes of a short last axis stand in several columns of it.
  if (shown / columns > 16 && columns <= 16) columns *= Math.floor(32 / columns);
  const rows = Math.ceil(shown / columns);
  const dims = drawnDims(shape, places);
  const h = dims.length > 1 ? Math.max(1, shape[dims[0]]) : 1, w = Math.max(1, shape[dims[dims.length - 1]] || 1);
  const ratio = dims.length > 1 ? Math.min(1.3, Math.max(.4, h / w)) : .3;
  const W = 420, gap = columns > 12 ? 3 : 12, cell = Math.min(110, (W - gap * (columns - 1)) / columns);
  const labelled = columns <= 8 && shown <= 32, high = cell * ratio, step = high + gap + (labelled ? 17 : 0);
  const node = svg("svg", {viewBox: `0 0 ${columns * (cell + gap)} ${rows * step + 2}`, width: "100%", style: {maxWidth: columns * (cell + gap) + "px"}, role: "img",
    "aria-label": shapeText(dtype, shape) + " on " + n + " devices, " + placesText(mesh, places)});
  const colors = new Map();
  const partial = places.some(p => typeof p === "string" && p[0] === "P");
  // Of many devices the boxes of one color are one path: an element for each would take longer than all else.
  const many = shown > 64, filled = new Map(), hatched = new Map(), add = (paths, hue, d) => paths.set(hue, (paths.get(hue) || "") + d);
  const f = x => x.toFixed(2), rectPath = (x, y, w, h) => "M" + f(x) + " " + f(y) + "h" + f(w) + "v" + f(h) + "h" + f(-w) + "z";
  let frames = "";
  for (let i = 0; i < shown; ++i) {
    const x = (i % columns) * (cell + gap) + 1, y = Math.floor(i / columns) * step + 1;
    const group = many ? null : svg("g", {});
    const boxes = boxesOf(mesh, places, shape, i), id = JSON.stringify(boxes);
    if (!colors.has(id)) colors.set(id, colors.size);
    for (const box of boxes) {
      const [dx0, dx1] = dims.length ? box[dims[dims.length - 1]] : [0, 1], [dy0, dy1] = dims.length > 1 ? box[dims[0]] : [0, 1];
      const bw = cell * (dx1 - dx0) / w, bh = high * (dy1 - dy0) / h;
      if (bw <= 0 || bh <= 0) continue;
      const rect = {x: x + cell * dx0 / w, y: y + high * dy0 / h, width: bw, height: bh, rx: Math.min(2, cell / 20)};
      const hue = colors.get(id) % kHues.length;
      if (many) add(filled, hue, rectPath(rect.x, rect.y, bw, bh));
      else group.append(svg("rect", {...rect, fill: boxColor(hue), opacity: partial ? .42 : .95}));
      if (partial) for (let s = 6; s < bw + bh; s += 7) {
        const x0 = Math.max(0, s - bh), x1 = Math.min(bw, s);
        if (many) add(hatched, hue, "M" + f(rect.x + x0) + " " + f(rect.y + s - x0) + "L" + f(rect.x + x1) + " " + f(rect.y + s - x1));
        else group.append(svg("line", {x1: rect.x + x0, y1: rect.y + s - x0, x2: rect.x + x1, y2: rect.y + s - x1, stroke: boxColor(colors.get(id)), "stroke-width": 1.4}));
      }
    }
    if (many) { frames += rectPath(x, y, cell, high); continue; }
    group.append(svg("rect", {x, y, width: cell, height: high, class: "frame", rx: 2, style: {stroke: color("soft"), strokeWidth: columns > 12 ? .4 : .8}}));
    if (labelled) group.append(svg("text", {x: x + cell / 2, y: y + high + 13, "text-anchor": "middle", class: "soft"}, (mesh.devices[i] || "").slice(0, Math.max(6, cell / 6))));
    node.append(group);
  }
  for (const [hue, d] of filled) node.append(svg("path", {d, fill: boxColor(hue), opacity: partial ? .42 : .95}));
  for (const [hue, d] of hatched) node.append(svg("path", {d, fill: "none", stroke: boxColor(hue), "stroke-width": 1.4}));
  if (frames) node.append(svg("path", {d: frames, class: "frame", style: {stroke: color("soft"), strokeWidth: columns > 12 ? .4 : .8}}));
  node.addEventListener("mousemove", e => {
    const area = node.getBoundingClientRect(), scale = columns * (cell + gap) / area.width;
    const column = Math.floor((e.clientX - area.left) * scale / (cell + gap)), i = column + columns * Math.floor((e.clientY - area.top) * scale / step);
    if (column < 0 || column >= columns || !(i >= 0 && i < shown)) return tip.hide();
    const own = boxesOf(mesh, places, shape, i).map(box => "[" + box.map(([a, b]) => a + ":" + b).join(", ") + "]").join(" ");
    tip.show(e, (mesh.devices[i] || "device " + i) + "  (" + coordinates(mesh, i).map((c, a) => mesh.axes[a].name + " " + c).join(", ") + ")\n" + own + (partial ? "\na term of a sum that is not completed" : ""));
  });
  node.addEventListener("mouseleave", tip.hide);
  const size = shape.reduce((p, x) => p * x, 1);
  return el("div", {}, node, el("div", {class: "soft"}, placesText(mesh, places)),
      shape.length > 2 ? el("div", {class: "soft"}, "drawn: dim " + dims.join(" down, dim ") + " across") : "", n > shown ? el("div", {class: "soft"}, "the first " + shown + " of " + trim(n, 0) + " devices") : "",
      el("div", {class: "soft"}, colors.size + (colors.size === 1 ? " box" : " different boxes") + ", " + trim(size, 0) + " elements"));
}

function drawMove(move) {
  return el("div", {class: "panel"},
      el("div", {class: "move"}, gridOf(move.mesh, move.from, move.shape, move.dtype),
          el("div", {class: "arrow"}, el("b", {}, moveKind(move)),
              svg("svg", {viewBox: "0 0 160 22", "aria-hidden": "true"}, svg("path", {d: "M4 11H148M138 4l12 7-12 7", fill: "none", stroke: color(move.bytes ? "exposed" : "soft"), "stroke-width": 2})),
              el("div", {}, move.bytes ? bytes(move.bytes) + " · about " + time(move.us) : "nothing is sent"),
              el("div", {class: "soft mono"}, move.origin.source)),
          gridOf(move.mesh, move.to, move.shape, move.dtype)),
      facts([["value", shapeText(move.dtype, move.shape)], ["why", reasonOf(move)], ["line", move.origin.source]]));
}

function reasonOf(move) {
  const reader = move.readerNode ? move.readerNode.text.split(" ")[0] : "";
  const partial = move.from.some(p => typeof p === "string" && p[0] === "P");
  const what = move.origin.about || (move.origin.op ? "the value of " + move.origin.op : "a value");
  const line = reader && move.readerNode.origin.source ? " at " + move.readerNode.origin.source : "";
  const who = reader === "redistribute" ? "as the program asks" : reader === "assign" ? "for what is stored" : reader;
  return what + (partial ? ": terms of a sum are added up" : "") + (who ? (partial ? ", " : ": wanted so, ") + (who === reader ? "for " : "") + who + line : "");
}

// The ways that the planner had at an op. Costs are those that the op knows; the whole graph may be cheaper by another.
const ruledOut = us => us >= 1e15;
const costText = us => ruledOut(us) ? "ruled out" : time(us);
function drawChoice(choice) {
  return table({label: "ways of this op", filter: false, limit: 24, rows: choice.options.map((o, i) => ({...o, i})).sort((a, b) => a.us - b.us), columns: [
    {name: "", of: o => o.i === choice.taken ? "taken" : ""}, {name: "Way", of: o => o.label || "way " + (o.i + 1), wide: true}, {name: "Costs", of: o => o.us, show: costText, num: true, zero: true}]});
}
// A row for each choice: the way that was taken, and the cheapest other one.
function choicesOf(plan) {
  return plan.values.flatMap(v => v.choices.map(choice => {
    const taken = choice.options[choice.taken], others = choice.options.filter(o => o !== taken && !ruledOut(o.us)), node = plan.nodes.get(v.id);
    const other = others.length ? others.reduce((a, b) => b.us < a.us ? b : a) : null;
    return {v, choice, op: node ? node.text : shapeText(v.dtype, v.shape), taken: taken ? taken.label || "way " + (choice.taken + 1) : "", us: taken ? taken.us : 0, other: other ? other.us : 0, source: v.origin.source};
  }));
}

function shardingSheet({plan}) {
  for (const move of plan.moves) move.readerNode = plan.nodes.get(move.reader);
  const onMesh = plan.values.filter(v => v.mesh.devices.length > 1);
  const details = el("div", {class: "stick"});
  const showMove = move => details.replaceChildren(el("h2", {}, "Movement"), drawMove(move));
  const movesOf = v => plan.moves.filter(m => m.dtype === v.dtype && String(m.shape) === String(v.shape) && JSON.stringify(m.from) === JSON.stringify(v.place) && m.origin.source === v.origin.source);
  const showValue = v => {
    const node = plan.nodes.get(v.id);
    details.replaceChildren(el("h2", {}, v.label || shapeText(v.dtype, v.shape)), el("div", {class: "panel"}, gridOf(v.mesh, v.place, v.shape, v.dtype)),
        el("div", {class: "panel"}, facts([["value", shapeText(v.dtype, v.shape)], ["name", v.label], ["made by", node ? node.text : ""], ["from", originText(v.origin)],
          ["mesh", v.mesh.axes.map(a => a.name + "=" + a.size).join(", ")]])), ...v.choices.map(c => el("div", {class: "panel"}, el("div", {class: "soft"}, "Ways that this op had"), drawChoice(c))), ...movesOf(v).slice(0, 8).map(drawMove));
  };
  const sent = total(plan.moves, m => m.bytes);
  const moves = plan.moves.slice().sort((a, b) => b.bytes - a.bytes);
  if (moves.length) showMove(moves[0]); else if (onMesh.length) showValue(onMesh[0]);
  if (!onMesh.length && !moves.length) return [el("p", {class: "empty"}, plan.values.length ? "All values of this plan live on one device each. Choose another plan above, or shard a tensor over a mesh." : "This file has no placements of this plan's values.")];
  const collectives = plan.items.filter(i => i.collective), choices = choicesOf(plan);
  return [tiles(["values on meshes", trim(onMesh.length, 0)], ["movements", trim(moves.filter(m => m.bytes).length, 0)], ["moved, before merging", bytes(sent)], ["sent by a device in a run", bytes(plan.facts.sent)], ["collectives in a run", trim(collectives.length, 0)]),
    el("div", {class: "split"}, el("div", {},
      moves.length ? [el("h2", {}, "What moves, and why"), table({label: "movements", sort: 2, limit: 40, rows: moves, onpick: showMove, picked: moves[0], columns: [
        {name: "Value", of: m => shapeText(m.dtype, m.shape), mono: true}, {name: "Movement", of: moveKind},
        {name: "Bytes", of: m => m.bytes, show: bytes, num: true, bar: true, tint: "collective"}, {name: "Why", of: reasonOf, wide: true}, {name: "Line", of: m => m.origin.source, mono: true}]})] : "",
      el("h2", {}, "Values"), table({label: "values", limit: 60, rows: onMesh, onpick: showValue, columns: [
        {name: "Value", of: v => shapeText(v.dtype, v.shape), mono: true}, {name: "Lies", of: v => placesText(v.mesh, v.place)},
        {name: "Of", of: v => v.label || v.origin.about || v.origin.op, wide: true}, {name: "Line", of: v => v.origin.source, mono: true}]}),
      choices.length ? [el("h2", {}, "Choices of the planner"), table({label: "choices", limit: 40, sort: 2, rows: choices, onpick: c => showValue(c.v), columns: [
        {name: "Op", of: c => c.op, mono: true}, {name: "Taken", of: c => c.taken, wide: true}, {name: "Costs", of: c => c.us, show: costText, num: true, zero: true}, {name: "Next best", of: c => c.other, show: costText, num: true},
        {name: "Ways", of: c => c.choice.options.length, num: true}, {name: "Line", of: c => c.source, mono: true}]})] : "",
      collectives.length ? [el("h2", {}, "Collectives of the schedule"), table({label: "collectives", sort: 2, limit: 40, rows: collectives, columns: [
        {name: "#", of: i => i.collective.number, num: true}, {name: "Operation", of: i => i.collective.op + " over " + i.collective.axis},
        {name: "Bytes", of: i => i.collective.bytes, show: bytes, num: true, bar: true, tint: "collective"},
        {name: "Planned", of: i => i.collective.us, show: time, num: true}, {name: "Waited", of: i => i.waited / (plan.runs || 1), show: time, num: true, bar: true, tint: "exposed", title: "a run, mean of the ranks"},
        {name: "For", of: i => i.purpose, wide: true}, {name: "Line", of: i => i.line, mono: true}]})] : ""), details)];
}
