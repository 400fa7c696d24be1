// Schedule: the items of a plan in their order, what each depends on, and its code.
function codeOf(plan, item) {
  const parts = [];
  if (Number.isInteger(item.code) && plan.code[item.code]) parts.push(["UOps", plan.code[item.code]]);
  const name = (item.name.match(/^kernel (\S+)/) || [])[1];
  for (const listing of plan.listings) if (name && listing.name.endsWith(" of kernel " + name)) parts.push([listing.name.split(" of ")[0], listing.text]);
  return parts;
}

// The time that an item needs at least, by the speeds that plans are chosen by, and which of them it is.
function limitOf(plan, item) {
  if (!plan.speeds || (item.kind !== "kernel" && item.kind !== "library")) return {us: 0, by: ""};
  const memory = 1e6 * (item.read + item.written) / Math.max(plan.speeds[0], 1), arithmetic = 1e6 * item.ops / Math.max(plan.speeds[1], 1);
  return memory >= arithmetic ? {us: memory, by: "memory"} : {us: arithmetic, by: "arithmetic"};
}
const shareOf = (plan, item) => item.us > 0 ? limitOf(plan, item).us / (item.us / (item.count || 1)) : 0;

function scheduleSheet({plan}) {
  const details = el("div", {class: "stick"});
  const writers = new Map(), readers = new Map();
  plan.items.forEach(item => { for (const b of item.writes) { if (!writers.has(b)) writers.set(b, []); writers.get(b).push(item); }
    for (const b of item.reads) { if (!readers.has(b)) readers.set(b, []); readers.get(b).push(item); } });
  const link = item => el("button", {type: "button", class: "chip", onclick: () => show(item)}, item.index + " " + item.name.split(" ").slice(0, 2).join(" "));
  const bufferText = b => { const x = plan.buffers[b]; return x ? shapeText(x.dtype, x.shape) + (x.label ? " " + x.label : " #" + b) : "#" + b; };
  function show(item) {
    const before = [...new Set(item.reads.flatMap(b => (writers.get(b) || []).filter(w => w.index < item.index).slice(-1)))];
    const after = [...new Set(item.writes.flatMap(b => (readers.get(b) || []).filter(w => w.index > item.index)))];
    const per = item.us / (item.count || 1);
    const code = codeOf(plan, item), pre = el("pre", {tabindex: 0, "aria-label": "code"}, code.length ? code[0][1] : "");
    details.replaceChildren(el("h2", {}, item.index + " · " + item.name), el("div", {class: "panel"}, facts([
      ["for", item.purpose], ["line", item.source], ["reads", item.reads.map(bufferText).join(", ")], ["writes", item.writes.map(bufferText).join(", ")],
      ["bytes", bytes(item.read) + " read, " + bytes(item.written) + " written" + (item.workspace ? ", " + bytes(item.workspace) + " of workspace" : "")], ["operations", item.ops ? count(item.ops) : ""],
      ["time", per ? time(per) + " a run, at most " + time(item.longest) : ""], ["reached", per ? trim((item.read + item.written) / per / 1e3, 2) + " GB/s, " + trim(item.ops / per / 1e3, 2) + " GFLOPS" : ""],
      ["limit", limitOf(plan, item).us ? limitOf(plan, item).by + ", at least " + time(limitOf(plan, item).us) + (per ? ": " + percent(shareOf(plan, item)) + " of it reached" : "") : ""],
      ["sends", item.collective ? item.collective.op + " over " + item.collective.axis + ", " + bytes(item.collective.bytes) + ", planned " + time(item.collective.us) : ""],
      ["after", before.length ? before.map(link) : ""], ["before", after.length ? after.slice(0, 24).map(link) : ""]])),
      code.length ? el("div", {class: "panel"}, el("div", {class: "tools"}, code.map(([name, text]) => el("button", {type: "button", onclick() { pre.textContent = text; }}, name))), pre)
        : item.kind === "kernel" ? el("p", {class: "note"}, "The code of kernels is in the file of rank 0; VIZ=2 adds LLVM IR and assembly.") : "");
  }
  const first = plan.picked || plan.items[0];
  if (first) show(first);
  const f = plan.facts;
  return [tiles(["kernels", f.kernels], ["library calls", f.library_calls], ["collectives", f.collectives], ["copies", f.copies], ["arithmetic of a device", count(f.operations)], ["sent by a device", bytes(f.sent)]), measuredNote([plan]),
    el("div", {class: "split", style: {gridTemplateColumns: "minmax(0, 7fr) minmax(0, 5fr)"}}, table({label: "items", sort: plan.picked ? 2 : -1, rows: plan.items, onpick: show, picked: first, columns: [
      {name: "#", of: i => i.index, num: true, zero: true, show: String}, {name: "Item", of: i => i.name, wide: true, mono: true},
      {name: "Time", of: i => i.us / (i.count || 1), show: time, num: true, bar: true, title: "a run"},
      plan.speeds && {name: "Of limit", of: i => shareOf(plan, i), show: percent, num: true, title: "share reached of what the device's memory or arithmetic allows, by the speeds that plans are chosen by"}, {name: "Bytes", of: i => i.read + i.written, show: bytes, num: true, bar: true},
      {name: "Operations", of: i => i.ops, show: count, num: true}, {name: "For", of: i => i.purpose, wide: true}, {name: "Line", of: i => i.line, mono: true}].filter(Boolean)}), details)];
}
