// Memory: what a device holds while a plan runs, by owner; what is alive at the peak; what was allocated.
const kOwners = ["parameter", "state", "input", "result", "gradient", "activation", "communication", "workspace"];

const peakOf = plan => plan.facts.held + plan.facts.arena + plan.facts.workspace;

function memoryOver(plan) {
  const n = plan.items.length, own = plan.buffers.filter(b => b.holder === b.index);
  // Library calls keep theirs for as long as the plan is there.
  if (plan.facts.workspace > 0) {
    const calls = plan.items.filter(i => i.workspace > 0);
    own.push({held: true, owner: "workspace", bytes: plan.facts.workspace, dtype: "bytes", shape: [plan.facts.workspace], label: calls.slice(0, 2).map(i => i.name).join(", ") + (calls.length > 2 ? " and " + (calls.length - 2) + " more" : ""), origin: calls.length ? calls[0].origin : {op: "", source: "", about: ""}, first: -1, last: -1});
  }
  const alive = Object.fromEntries(kOwners.map(o => [o, new Float64Array(n + 1)]));
  for (const b of own) {
    const list = kOwners.includes(b.owner) ? alive[b.owner] : alive.activation;
    if (b.held) { for (let i = 0; i <= n; ++i) list[i] += b.bytes; continue; }
    for (let i = Math.max(0, b.first); i <= Math.min(n, b.last) && b.first >= 0; ++i) list[i] += b.bytes;
  }
  let peak = 0, most = 0;
  for (let i = 0; i < n; ++i) {
    const sum = kOwners.reduce((s, o) => s + alive[o][i], 0);
    if (sum > most) { most = sum; peak = i; }
  }
  return {own, alive, peak, most, n};
}

const kOtherOwners = {temporaries: "activation", other: "input", workspaces: "workspace"};
// Stacked areas of what a rank holds after each allocation.
function allocatedBy(rank, ownerOf) {
  const names = [...new Set(rank.mem.map(m => ownerOf.get(m.name) || "other"))].sort(), held = new Map(names.map(n => [n, 0]));
  const series = names.map(name => ({name, color: color(kOtherOwners[name] || name), base: [], points: []}));
  for (const m of rank.mem) {
    const owner = ownerOf.get(m.name) || "other";
    held.set(owner, held.get(owner) + m.b);
    let below = 0;
    const x = (m.t + rank.shift) / 1e3;
    for (const s of series) { s.base.push([x, below]); below += Math.max(0, held.get(s.name)); s.points.push([x, below]); }
  }
  return series;
}

function memorySheet({trace, plan}) {
  const {own, alive, peak, most, n} = memoryOver(plan);
  const list = el("div", {});
  const at = i => own.filter(b => b.held || (b.first >= 0 && b.first <= i && b.last >= i));
  const show = i => {
    const groups = new Map();
    for (const b of at(i)) {
      const what = b.label || originText(b.origin) || "–", id = [b.owner, b.dtype, b.shape, b.label ? "" : b.origin.source].join("|");
      if (!groups.has(id)) groups.set(id, {owner: b.owner, value: shapeText(b.dtype, b.shape), what: "", names: new Set(), source: b.origin.source, count: 0, bytes: 0});
      const g = groups.get(id);
      g.count++; g.bytes += b.bytes; g.names.add(what);
    }
    for (const g of groups.values()) { const names = [...g.names]; g.what = names.slice(0, 2).join(", ") + (names.length > 2 ? " and " + (names.length - 2) + " more" : ""); }
    const item = plan.items[i];
    list.replaceChildren(el("h2", {}, (i === peak ? "At the peak, item " : "At item ") + i + (item ? ": " + item.name : "")),
        table({label: "what is alive", sort: 0, limit: 60, rows: [...groups.values()], columns: [
          {name: "Bytes", of: g => g.bytes, show: bytes, num: true, bar: true}, {name: "Count", of: g => g.count, num: true}, {name: "Owner", of: g => g.owner},
          {name: "Each", of: g => g.value, mono: true}, {name: "Of", of: g => g.what, wide: true}, {name: "Line", of: g => g.source, mono: true}]}));
  };
  show(peak);
  const series = [];
  let below = Array.from({length: n + 1}, (_, i) => [i, 0]);
  for (const owner of kOwners) {
    if (!alive[owner].some(x => x > 0)) continue;
    const points = below.map(([x, y]) => [x, y + alive[owner][x]]);
    series.push({name: owner, color: color(owner), base: below, points});
    below = points;
  }
  const temporaries = ["gradient", "activation", "communication"].reduce((s, o) => s + own.filter(b => !b.held && b.owner === o && b.first <= peak && b.last >= peak && b.first >= 0).reduce((t, b) => t + b.bytes, 0), 0);
  // The chart shows the memory that the first rank allocated, by the owner of the storage of that name; temporaries of a plan are one allocation.
  const ownerOf = new Map([["temporaries", "temporaries"], ["workspaces", "workspaces"]]);
  for (const p of trace.plans) for (const b of p.buffers) if (b.label && !ownerOf.has(b.label)) ownerOf.set(b.label, b.owner);
  const owned = trace.ranks.length ? allocatedBy(trace.ranks[0], ownerOf) : [];
  const measured = trace.ranks.map((rank, r) => {
    let sum = 0;
    const points = [];
    for (const m of rank.mem) { points.push([(m.t + rank.shift) / 1e3, sum]); sum += m.b; points.push([(m.t + rank.shift) / 1e3, sum]); }
    return {name: "rank " + rank.rank, color: boxColor(r), points};
  }).filter(s => s.points.length);
  return [tiles(["peak of a device", bytes(peakOf(plan))], ["held", bytes(plan.facts.held)], ["temporaries", bytes(plan.facts.arena)], plan.facts.workspace ? ["workspaces", bytes(plan.facts.workspace), "kept by library calls, as sorts"] : null,
      ["alive at the peak", bytes(most)], plan.facts.arena ? ["arena not used at the peak", percent(Math.max(0, 1 - temporaries / plan.facts.arena)), "gaps between temporaries, and room that lets items run side by side"] : null),
    series.length ? el("div", {class: "panel"}, el("div", {class: "soft"}, "Bytes of a device over the items of the plan; a click lists what is alive there"),
      chart({series, height: 260, yShow: bytes, xShow: x => "item " + Math.round(x), label: "memory over the items of the plan, by owner", onclick: x => show(Math.max(0, Math.min(n - 1, Math.round(x))))}),
      key(...kOwners.filter(o => alive[o].some(x => x > 0)).map(o => [o, o]))) : "",
    list,
    plan.memory.length ? [el("h2", {}, "Devices"), table({label: "devices", limit: 40, sort: 4, rows: plan.memory, columns: [
      {name: "Device", of: m => m.device, mono: true}, {name: "Held", of: m => m.held, show: bytes, num: true, bar: true}, {name: "Temporaries", of: m => m.arena, show: bytes, num: true, bar: true}, {name: "Workspaces", of: m => m.workspace, show: bytes, num: true}, {name: "Peak", of: m => m.held + m.arena + m.workspace, show: bytes, num: true, bar: true}]})] : "",
    owned.length ? [el("h2", {}, "Allocated by rank " + trace.ranks[0].rank + ", by owner"), el("div", {class: "panel"}, chart({series: owned, height: 180, yShow: bytes, xShow: x => trim(x, 0) + " ms", label: "memory allocated over time, by owner"}),
      key(...owned.map(s => [s.name, s.name in kOtherOwners ? kOtherOwners[s.name] : s.name])))] : "",
    measured.length > 1 ? [el("h2", {}, "Allocated by each rank"), el("div", {class: "panel"}, chart({series: measured, height: 180, yShow: bytes, xShow: x => trim(x, 0) + " ms", label: "memory allocated over time"}))] : ""];
}
