// Program: the user's lines, with what each takes.
function linesOf(trace) {
  const lines = new Map();
  for (const plan of trace.plans) {
    const times = plan.runs || 1;
    for (const item of plan.items) {
      const source = item.line || "no line known";
      if (!lines.has(source)) lines.set(source, {source, ops: new Set(), items: [], us: 0, waited: 0, traffic: 0, arithmetic: 0, sent: 0, collectives: 0, moves: []});
      const line = lines.get(source);
      line.items.push({plan, item});
      if (item.origin.op) line.ops.add(item.origin.op);
      line.us += item.us; line.waited += item.waited;
      line.traffic += times * (item.read + item.written); line.arithmetic += times * item.ops;
      if (item.collective) { line.sent += times * item.collective.bytes; line.collectives += times; }
    }
    for (const move of plan.moves) {
      const line = lines.get(move.origin.source);
      if (line) line.moves.push(move);
    }
  }
  return [...lines.values()];
}

const total = (list, of) => list.reduce((sum, x) => sum + of(x), 0);

// Sentences that say where to look, each a button that goes there.
function findings(trace, lines, go) {
  const sentIn = r => r.item.collective ? (r.plan.runs || 1) * r.item.collective.bytes : 0;
  const out = [], plan = trace.plans[0], all = total(lines, l => l.sent);
  const line = lines.reduce((a, b) => b.sent > a.sent ? b : a, {sent: 0});
  if (line.sent) {
    const why = [...new Set(line.items.filter(r => r.item.collective).map(r => r.item.purpose).filter(Boolean))];
    out.push(["sharding", line.items.reduce((a, b) => sentIn(b) > sentIn(a) ? b : a).plan, line.source + " sends most, " + percent(line.sent / all) + " of the bytes that a device sends" + (why.length ? ": " + why.slice(0, 2).join(", ") + (why.length > 2 ? " and " + (why.length - 2) + " more" : "") : "")]);
  }
  const slowest = lines.flatMap(l => l.items).reduce((a, b) => b.item.us > (a ? a.item.us : 0) ? b : a, null), us = total(lines, l => l.us);
  if (slowest) out.push(["schedule", slowest.plan, "The slowest item is " + slowest.item.name + (slowest.item.line ? " at " + slowest.item.line : "") + ": " + time(slowest.item.us / (slowest.item.count || 1)) + " a run, " + percent(slowest.item.us / us) + " of the time of all items", slowest.item]);
  const ranks = rankSentence(rankShares(trace), comesLast(trace));
  if (ranks.held) out.push(["timeline", plan, ranks.text]);
  const change = plan && changeOf(lengthsOf(trace, plan));
  if (change) out.push(["timeline", plan, "From run " + change.run + " on a run takes " + time(change.after) + ", before " + time(change.before)]);
  const fullest = trace.plans.reduce((a, b) => peakOf(b) > peakOf(a) ? b : a, plan);
  if (fullest && fullest.items.length) {
    const memory = memoryOver(fullest), owner = kOwners.reduce((a, b) => memory.alive[b][memory.peak] > memory.alive[a][memory.peak] ? b : a);
    if (memory.most) out.push(["memory", fullest, bytes(memory.most) + " are alive at the peak, most of it (" + percent(memory.alive[owner][memory.peak] / memory.most) + ") " + owner + "s, at item " + memory.peak + " of " + (fullest === plan ? "the plan that takes most time" : fullest.title)]);
  }
  return out.length ? el("ul", {class: "findings", "aria-label": "where to look"}, out.map(([sheet, of, text, item]) => el("li", {}, el("button", {type: "button", onclick() { go(sheet, of, item); }}, text)))) : "";
}

const measuredNote = plans => plans.some(p => p.measured) ? el("p", {class: "note"}, "Steps that a device replays as one recording have no times of items. Those that are shown are of one run in which each item was waited for, times the number of runs.") : "";

function programSheet({trace, go = () => {}}) {
  const lines = linesOf(trace), details = el("div", {class: "stick"});
  const us = total(trace.plans, p => p.us), waited = total(lines, l => l.waited);
  const peak = Math.max(0, ...trace.plans.map(peakOf));
  const planned = !us;
  const show = line => details.replaceChildren(el("h2", {}, line.source),
      el("div", {class: "panel"}, facts([
        ["methods", [...line.ops].join(", ")],
        ["time", planned ? "" : time(line.us) + " on each rank, in all runs"],
        ["waited for others", line.waited ? time(line.waited) : ""],
        ["memory traffic", bytes(line.traffic)], ["arithmetic", count(line.arithmetic) + " operations"],
        ["sent by a device", line.sent ? bytes(line.sent) : ""]])),
      line.moves.length ? el("div", {}, el("h2", {}, "Values that move"), table({label: "movements of this line", filter: false, limit: 12, sort: 2, rows: line.moves, columns: [
        {name: "Value", of: m => shapeText(m.dtype, m.shape), mono: true}, {name: "Movement", of: m => moveKind(m)},
        {name: "Bytes", of: m => m.bytes, show: bytes, num: true}, {name: "For", of: m => m.origin.about, wide: true}]})) : "",
      el("h2", {}, "Items"), table({label: "items of this line", filter: false, limit: 12, sort: planned ? 2 : 1, rows: line.items, columns: [
        {name: "Item", of: r => r.item.name, wide: true, mono: true},
        {name: "Time a run", of: r => r.item.us / (r.item.count || 1), show: time, num: true},
        {name: "Traffic", of: r => r.item.read + r.item.written, show: bytes, num: true},
        {name: "For", of: r => r.item.purpose, wide: true}]}));
  const byTime = lines.slice().sort((a, b) => planned ? b.traffic - a.traffic : b.us - a.us);
  if (byTime.length) show(byTime[0]);
  const devices = Math.max(1, ...trace.plans.map(p => p.facts.devices));
  return [tiles(["ranks", trace.ranks.length], ["devices of the largest mesh", trim(devices, 0)], ["plans", trace.plans.length],
      ["runs of plans", trim(total(trace.plans, p => p.runs), 0)],
      planned ? ["planned only", "not run"] : ["time in runs", time(us)],
      planned ? null : ["exposed communication", us ? percent(waited / us) : "–", "time in which a rank waits for others and computes nothing"],
      ["sent by a device", bytes(total(lines, l => l.sent))], ["peak memory of a device", bytes(peak)]),
    findings(trace, lines, go), measuredNote(trace.plans),
    el("div", {class: "split", style: {gridTemplateColumns: "minmax(0, 8fr) minmax(0, 5fr)"}}, table({label: "lines of the program", sort: planned ? 3 : 2, picked: byTime[0], rows: lines, onpick: show, columns: [
      {name: "Line", of: l => l.source, mono: true}, {name: "Methods", of: l => [...l.ops].slice(0, 4).join(", "), wide: true},
      !planned && {name: "Time", of: l => l.us, show: time, num: true, bar: true},
      !planned && {name: "Waited", of: l => l.waited, show: time, num: true, bar: true, tint: "exposed", title: "for other ranks, with nothing else to do"},
      {name: "Sent", of: l => l.sent, show: bytes, num: true, bar: true, tint: "collective", title: "by a device, in all runs"},
      {name: "Traffic", of: l => l.traffic, show: bytes, num: true, bar: true, title: "read and written by a device"},
      {name: "Operations", of: l => l.arithmetic, show: count, num: true},
      {name: "Items", of: l => l.items.length, num: true}].filter(Boolean)}), details)];
}
