// Graph: the UOps after each pass. Nodes never change, so a pass is what it brought and what it did away with.
function graphsOf(plan) {
  let now = new Set();
  return plan.passes.map(pass => {
    now = new Set(now);
    for (const id of pass.removed) now.delete(id);
    for (const id of pass.added) now.add(id);
    return now;
  });
}

// Lays out a node with its sources above and its readers below, two levels each.
function drawNear(plan, nodes, readers, id, pick) {
  const levels = new Map([[0, [id]]]), seen = new Set([id]);
  for (const [sign, next] of [[-1, x => (plan.nodes.get(x) || {src: []}).src], [1, x => readers.get(x) || []]]) {
    let row = [id];
    for (let level = 1; level <= 2; ++level) {
      const more = [];
      for (const x of row) for (const s of next(x)) if (!seen.has(s) && nodes.has(s) && more.length < 7) { seen.add(s); more.push(s); }
      if (more.length) levels.set(sign * level, more);
      row = more;
    }
  }
  const order = [...levels.keys()].sort((a, b) => a - b), place = new Map(), W = 880, H = 62;
  order.forEach((level, r) => levels.get(level).forEach((x, i, all) => place.set(x, {x: W * (i + .5) / all.length, y: 26 + r * H, w: Math.min(250, W / all.length - 10)})));
  const node = svg("svg", {viewBox: `0 0 ${W} ${order.length * H}`, width: "100%", role: "img", "aria-label": "the node with its sources and readers"});
  for (const [x, p] of place) for (const s of (plan.nodes.get(x) || {src: []}).src) {
    const q = place.get(s);
    if (q) node.append(svg("path", {d: `M${q.x} ${q.y + 15}C${q.x} ${q.y + 38} ${p.x} ${p.y - 38} ${p.x} ${p.y - 15}`, fill: "none", stroke: color("soft"), opacity: .6}));
  }
  for (const [x, p] of place) {
    const n = plan.nodes.get(x), text = n ? n.text : "node " + x;
    node.append(svg("g", {tabindex: 0, role: "button", "aria-label": text, style: {cursor: "pointer"}, onclick: () => pick(x), onkeydown: e => { if (e.key === "Enter") pick(x); },
      onmousemove: e => tip.show(e, text + (n ? "\n" + originText(n.origin) : "")), onmouseleave: tip.hide},
      svg("rect", {x: p.x - p.w / 2, y: p.y - 15, width: p.w, height: 30, rx: 6, fill: color(x === id ? "accent-soft" : "panel"), stroke: color(x === id ? "accent" : "line")}),
      svg("text", {x: p.x, y: p.y + 4, "text-anchor": "middle"}, text.length > p.w / 6.3 ? text.slice(0, Math.floor(p.w / 6.3)) + "…" : text)));
  }
  return node;
}

function graphSheet({plan}) {
  if (!plan.passes.length) return [el("p", {class: "empty"}, "This file has no graphs of this plan. Rank 0 of a run tells them.")];
  const graphs = graphsOf(plan);
  let at = Math.max(0, plan.passes.findIndex(p => p.name === "shard")), mode = "changed", folded = true;
  const nodesBox = el("div", {}), details = el("div", {}), modes = el("div", {class: "tools"});
  let readers = new Map();
  const rulesAt = (id, pass) => {
    const names = [...new Set(plan.rules.filter(r => r.id === id && r.pass === pass).map(r => r.rule))];
    return names.length ? ", rule " + names.join(", ") : "";
  };
  const pick = id => {
    const n = plan.nodes.get(id);
    if (!n) return;
    const madeBy = plan.passes.find(p => p.added.includes(id)), goneBy = plan.passes.find(p => p.removed.includes(id));
    details.replaceChildren(el("h2", {}, n.text), el("div", {class: "panel"}, drawNear(plan, graphs[at], readers, id, pick), facts([["from", originText(n.origin)], ["brought by", madeBy ? madeBy.name : ""], ["done away with by", goneBy ? goneBy.name + rulesAt(id, plan.passes.indexOf(goneBy)) : "no pass"], ["id", id]])));
  };
  // A rule is a small difference: the node that it found, and what it put there.
  const rulesOf = i => plan.rules.filter(r => r.pass === i);
  function drawRules(rules) {
    const show = r => details.replaceChildren(el("h2", {}, "Rule " + r.rule), el("div", {class: "panel"},
        el("pre", {"aria-label": "difference"}, el("span", {class: "removed"}, "− " + r.before + "\n"), el("span", {class: "added"}, "+ " + r.after)),
        facts([["pass", plan.passes[r.pass].name], ["applied", r.count + (r.count === 1 ? " time" : " times") + " like this"], ["line", originText(r.origin)]])));
    if (rules.length) show(rules[0]); else details.replaceChildren(el("p", {class: "note"}, "No rule applied in this pass; it rewrites in its own way, or changed nothing."));
    return table({label: "rules", limit: 80, sort: 1, rows: rules, onpick: show, picked: rules[0], columns: [{name: "Rule", of: r => r.rule}, {name: "Times", of: r => r.count, num: true},
      {name: "Before", of: r => r.before, mono: true, wide: true}, {name: "After", of: r => r.after, mono: true, wide: true}, {name: "From", of: r => originText(r.origin), wide: true}]});
  }
  function draw() {
    const pass = plan.passes[at], now = graphs[at], added = new Set(pass.added), removed = pass.removed;
    readers = new Map();
    for (const id of now) for (const s of (plan.nodes.get(id) || {src: []}).src) { if (!readers.has(s)) readers.set(s, []); readers.get(s).push(id); }
    const ids = mode === "all" ? [...now] : mode === "added" ? pass.added : mode === "removed" ? removed : [...pass.added, ...removed];
    const rows = [], groups = new Map();
    for (const id of ids) {
      const n = plan.nodes.get(id) || {id, text: "node " + id + " (left out of the file)", src: [], origin: {op: "", source: "", about: ""}};
      const sign = added.has(id) && mode !== "all" ? "+" : now.has(id) ? "" : "−", group = sign + n.text;
      // Equal layers are made of equal nodes: one row counts them.
      if (folded && groups.has(group)) { groups.get(group).count++; continue; }
      const row = {n, sign, count: 1};
      groups.set(group, row);
      rows.push(row);
    }
    modes.replaceChildren(...[["changed", "Changes"], ["added", "Brought"], ["removed", "Done away with"], ["rules", "Rules (" + total(rulesOf(at), r => r.count) + ")"], ["all", "Whole graph"]].map(([m, name]) => el("button", {type: "button", "aria-pressed": m === mode, onclick() { mode = m; draw(); }}, name)),
        el("button", {type: "button", "aria-pressed": folded, onclick() { folded = !folded; draw(); }}, "Fold equal nodes"));
    nodesBox.replaceChildren(el("h2", {}, "After " + pass.name + ": " + trim(pass.count, 0) + " nodes, ", el("span", {class: "added"}, "+" + pass.added.length), " ", el("span", {class: "removed"}, "−" + removed.length)), modes,
        mode === "rules" ? drawRules(rulesOf(at)) : table({label: "nodes", limit: 80, rows, onpick: r => pick(r.n.id), columns: [
          {name: "", of: r => r.sign}, {name: "Node", of: r => r.n.text, mono: true, wide: true}, {name: "Count", of: r => r.count, num: true}, {name: "From", of: r => originText(r.n.origin), wide: true}]}));
    const firstRow = rows[0];
    if (mode === "rules") return;
    if (firstRow) pick(firstRow.n.id); else details.replaceChildren(el("p", {class: "note"}, "This pass changed nothing."));
  }
  draw();
  return [plan.left_out ? el("p", {class: "note"}, trim(plan.left_out, 0) + " nodes are left out of the file.") : "",
    plan.rules_left_out ? el("p", {class: "note"}, trim(plan.rules_left_out, 0) + " applications of rules are left out of the file.") : "",
    el("div", {class: "split", style: {gridTemplateColumns: "minmax(250px, 1fr) minmax(0, 3fr)"}}, table({label: "passes", filter: false, rows: plan.passes, picked: plan.passes[at], onpick: p => { at = plan.passes.indexOf(p); draw(); }, columns: [
      {name: "Pass", of: p => p.name}, {name: "Nodes", of: p => p.count, num: true}, {name: "+", of: p => p.added.length, num: true}, {name: "−", of: p => p.removed.length, num: true}, {name: "Rules", of: p => total(rulesOf(plan.passes.indexOf(p)), r => r.count), num: true}, {name: "ms", of: p => p.ms, show: x => trim(x, 2), num: true}]}), el("div", {}, details, nodesBox))];
}
