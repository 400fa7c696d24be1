// Compare: two runs side by side, by the lines of the program and by items.
function compareSheet({model, trace}) {
  const others = model.traces.filter(t => t !== trace);
  if (!others.length) return [el("p", {class: "empty"}, "One run is on this page. `tinyshard view before.tsview after.tsview` puts two side by side.")];
  const box = el("div", {});
  const draw = other => {
    const runs = t => Math.max(1, ...t.plans.map(p => p.runs)), n = [runs(other), runs(trace)];
    const lines = new Map();
    [other, trace].forEach((t, side) => { for (const l of linesOf(t)) {
      if (!lines.has(l.source)) lines.set(l.source, {source: l.source, us: [0, 0], sent: [0, 0], traffic: [0, 0], items: [0, 0]});
      const row = lines.get(l.source);
      row.us[side] = l.us / n[side]; row.sent[side] = l.sent / n[side]; row.traffic[side] = l.traffic / n[side]; row.items[side] = l.items.length;
    } });
    const sum = (t, of) => total(t.plans, of);
    const peak = t => Math.max(0, ...t.plans.map(peakOf));
    const change = (a, b) => a ? (b >= a ? "+" : "") + percent(b / a - 1) : "–";
    const whole = [["time in runs", sum(other, p => p.us), sum(trace, p => p.us), time], ["exposed communication", sum(other, p => p.waited), sum(trace, p => p.waited), time],
      ["sent by a device, a run of each plan", sum(other, p => p.facts.sent), sum(trace, p => p.facts.sent), bytes], ["peak memory of a device", peak(other), peak(trace), bytes],
      ["items of all plans", sum(other, p => p.items.length), sum(trace, p => p.items.length), x => trim(x, 0)], ["runs of plans", sum(other, p => p.runs), sum(trace, p => p.runs), x => trim(x, 0)]];
    const items = t => { const m = new Map(); for (const p of t.plans) for (const i of p.items) { const id = i.name.replace(/^#\d+ /, "") + " · " + i.line; m.set(id, (m.get(id) || 0) + 1); } return m; };
    const a = items(other), b = items(trace), only = [];
    for (const id of new Set([...a.keys(), ...b.keys()])) if ((a.get(id) || 0) !== (b.get(id) || 0)) only.push({id, before: a.get(id) || 0, after: b.get(id) || 0});
    box.replaceChildren(el("h2", {}, "In all"), table({label: "sums", filter: false, rows: whole, columns: [{name: "", of: r => r[0]}, {name: "Before", of: r => r[1], show: (v, r) => r[3](v), num: true}, {name: "Now", of: r => r[2], show: (v, r) => r[3](v), num: true}, {name: "Change", of: r => r[2] - r[1], show: (v, r) => change(r[1], r[2]), num: true}]}),
      el("h2", {}, "Lines, a step"), table({label: "lines", sort: 3, rows: [...lines.values()], columns: [{name: "Line", of: r => r.source, mono: true}, {name: "Time before", of: r => r.us[0], show: time, num: true}, {name: "now", of: r => r.us[1], show: time, num: true},
        {name: "Difference", of: r => r.us[1] - r.us[0], show: time, num: true}, {name: "Sent before", of: r => r.sent[0], show: bytes, num: true}, {name: "now", of: r => r.sent[1], show: bytes, num: true}, {name: "Traffic before", of: r => r.traffic[0], show: bytes, num: true}, {name: "now", of: r => r.traffic[1], show: bytes, num: true}]}),
      el("h2", {}, "Items that differ"), only.length ? table({label: "items that differ", rows: only, columns: [{name: "Item", of: r => r.id, wide: true, mono: true}, {name: "Before", of: r => r.before, num: true}, {name: "Now", of: r => r.after, num: true}]}) : el("p", {class: "note"}, "Both ran the same items."));
  };
  draw(others[0]);
  return [el("div", {class: "tools"}, el("label", {}, "Before ", el("select", {"aria-label": "the run to compare with", onchange(e) { draw(others[+e.target.value]); }}, others.map((t, i) => el("option", {value: i}, t.name)))), el("span", {class: "soft"}, "against " + trace.name)), box];
}
