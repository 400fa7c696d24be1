// From the lines of files to runs of a program: ranks joined, plans found by their hashes, clocks aligned.
// Files may be cut off or damaged: each number and text is looked at before it is used.
// No time, size or id is larger, and sums of such numbers are numbers.
const kMostNumber = 1e18;
const num = (x, other = 0) => typeof x === "number" && isFinite(x) ? Math.max(-kMostNumber, Math.min(kMostNumber, x)) : other;
const str = x => typeof x === "string" ? x : typeof x === "number" || typeof x === "boolean" ? String(x) : "";
const arr = x => Array.isArray(x) ? x : [];
const obj = x => x && typeof x === "object" && !Array.isArray(x) ? x : {};
const triples = list => {
  const out = [];
  for (let i = 0; i + 2 < list.length; i += 3) out.push({item: num(list[i]), t: num(list[i + 1]), d: num(list[i + 2])});
  return out;
};

// A property that is made when somebody asks for it: most sheets are never opened.
function later(object, name, make) {
  Object.defineProperty(object, name, {configurable: true, get() {
    const value = make();
    Object.defineProperty(object, name, {value});
    return value;
  }});
}

function readPlan(line) {
  const origins = arr(line.origins).map(o => ({op: str(arr(o)[0]), source: str(arr(o)[1]), about: str(arr(o)[2])}));
  // Lists have other properties than numbers.
  const at = (list, i) => Number.isInteger(i) ? list[i] : undefined;
  const origin = i => at(origins, i) || {op: "", source: "", about: ""};
  const meshes = arr(line.meshes).map(m => ({
    axes: arr(obj(m).axes).map(a => ({name: str(arr(a)[0]), size: Math.max(1, num(arr(a)[1], 1))})),
    devices: arr(obj(m).devices).map(str)}));
  const mesh = i => at(meshes, i) || {axes: [], devices: [""]};
  const numbers = s => arr(s).map(x => num(x)), shape = numbers;
  const plan = {
    number: num(line.plan), hash: str(line.hash), title: str(line.for), meshes, origins,
    facts: Object.fromEntries(["kernels", "library_calls", "collectives", "copies", "devices", "sent", "operations", "held", "arena", "workspace"].map(k => [k, num(line[k])])),
    memory: arr(line.memory).map(m => ({device: str(arr(m)[0]), held: num(arr(m)[1]), arena: num(arr(m)[2]), workspace: num(arr(m)[3])})),
    speeds: arr(line.speeds).length === 2 ? numbers(line.speeds) : null,
    moves: arr(line.moves).map(obj).map(m => ({dtype: str(m.dtype), shape: shape(m.shape), mesh: mesh(m.mesh), from: arr(m.from), to: arr(m.to), bytes: num(m.bytes), us: 1e6 * num(m.s), origin: origin(m.o), reader: num(m.reader)})),
    left_out: num(line.nodes_left_out),
    passes: arr(line.passes).map(obj).map(p => ({name: str(p.name), count: num(p.nodes), added: arr(p.added), removed: arr(p.removed), roots: arr(p.roots), ms: 0})),
    rules_left_out: num(line.rules_left_out),
    buffers: arr(line.buffers).map(arr).map((b, i) => ({index: i, dtype: str(b[0]), shape: shape(b[1]), mesh: mesh(b[2]), bytes: num(b[3]), owner: str(b[4]), label: str(b[5]), origin: origin(b[6]), holder: num(b[7], i), first: num(b[8], -1), last: num(b[9], -1), offset: num(b[10], -1), held: num(b[11]) === 1})),
    items: arr(line.items).map(obj).map((x, i) => ({index: i, kind: str(x.kind), name: str(x.name), mesh: mesh(x.mesh), reads: numbers(x.reads), writes: numbers(x.writes), read: num(x.read), written: num(x.written), ops: num(x.ops), workspace: num(x.workspace), purpose: str(x.purpose), source: str(x.source), origin: origin(x.o), waits: arr(x.waits), code: x.code, us: 0, longest: 0, waited: 0, count: 0,
      collective: x.collective ? {op: str(x.collective.op), axis: str(x.collective.axis), bytes: num(x.collective.bytes), us: 1e6 * num(x.collective.s), number: num(x.collective.number), transfers: arr(x.collective.transfers)} : null})),
    code: arr(line.code).map(str), listings: [], runs: 0, us: 0, waited: 0, measured: false,
  };
  later(plan, "values", () => arr(line.values).map(arr).map(v => ({id: num(v[0]), dtype: str(v[1]), shape: shape(v[2]), mesh: mesh(v[3]), place: arr(v[4]), origin: origin(v[5]), label: str(v[6]),
      choices: arr(v[7]).map(arr).map(c => ({taken: num(c[0], -1), options: arr(c[1]).map(arr).map(o => ({label: str(o[0]), us: num(o[1])}))}))})));
  later(plan, "nodes", () => new Map(arr(line.nodes).map(arr).map(n => [num(n[0]), {id: num(n[0]), text: str(n[1]), src: arr(n[2]).map(x => num(x)), origin: origin(n[3])}])));
  later(plan, "rules", () => arr(line.rules).map(arr).map(r => ({pass: num(r[0], -1), rule: str(r[1]), id: num(r[2]), before: str(r[3]), after: str(r[4]), origin: origin(r[5]), count: num(r[6], 1)})));
  for (const item of plan.items) item.line = item.source.split(" and ")[0];
  if (!plan.title) {
    const times = new Map();
    for (const item of plan.items) if (item.line) times.set(item.line, (times.get(item.line) || 0) + 1);
    const line = [...times].sort((a, b) => b[1] - a[1])[0];
    plan.title = "plan " + plan.number + (line ? ", mostly " + line[0] : "");
  }
  return plan;
}

function readRank(file) {
  const rank = {file: str(file.name), rank: 0, ranks: 1, program: "", host: "", start: 0, runs: [], sums: new Map(), plans: new Map(), passes: new Map(), spans: [], mem: [], codes: [], cut: [], left_out: num(file.left_out), shift: 0};
  const before = new Map();  // runs of each plan
  for (const line of arr(file.lines).map(obj)) {
    switch (line.k) {
      case "head":
        Object.assign(rank, {rank: num(line.rank), ranks: Math.max(1, num(line.ranks, 1)), program: str(line.program), host: str(line.host), pid: num(line.pid), start: num(line.start_us)});
        break;
      case "plan": rank.plans.set(num(line.plan), {number: num(line.plan), hash: str(line.hash), line}); break;
      case "passes": rank.passes.set(num(line.plan), arr(line.ms).map(arr).map(p => [str(p[0]), num(p[1])])); break;
      // Runs of plans that no other rank takes part in have no number of all ranks: they are counted by plan.
      case "run": before.set(num(line.plan), (before.get(num(line.plan)) || 0) + 1); rank.runs.push({plan: num(line.plan), run: num(line.run) || before.get(num(line.plan)), t: num(line.t), d: num(line.d), measured: line.measured === true, items: line.i ? triples(arr(line.i)) : null, waits: triples(arr(line.w))}); break;
      case "sum": rank.sums.set(num(line.plan), {runs: num(line.runs), measured: line.measured === true, items: arr(line.items).map(arr)}); break;
      case "span": rank.spans.push({kind: str(line.kind), name: str(line.name), after: str(line.after), t: num(line.t), d: num(line.d)}); break;
      case "mem": rank.mem.push({t: num(line.t), b: num(line.b), name: str(line.name)}); break;
      case "code": rank.codes.push({name: str(line.name), text: str(line.text)}); break;
      case "cut":
        for (const [key, what] of [["spans", "compilations"], ["allocations", "allocations"], ["code", "pieces of code"]])
          if (num(line[key]) > 0) rank.cut.push("The last " + num(line[key]) + " " + what + " of rank " + rank.rank + " are not in its file.");
        break;
    }
  }
  return rank;
}

// Adds what ranks measured to the items of a plan, as means over them.
function addMeasures(trace, plan) {
  let ranks = 0;
  for (const rank of trace.ranks) {
    const own = [...rank.plans.values()].find(p => p.hash === plan.hash);
    if (!own) continue;
    plan.of_rank.set(rank, own.number);
    for (const [name, ms] of rank === trace.ranks[0] ? rank.passes.get(own.number) || [] : []) {
      const pass = plan.passes.find(p => p.name === name && !p.ms);
      if (pass) pass.ms = ms;
    }
    const sum = rank.sums.get(own.number);
    if (!sum) continue;
    ++ranks;
    plan.measured = plan.measured || sum.measured;
    plan.runs = Math.max(plan.runs, sum.runs);
    for (const [i, n, us, longest, waited] of sum.items) {
      const item = plan.items[num(i, -1)];
      if (!item) continue;
      // Of runs that are replayed one was measured: the others are taken to be like it.
      const like = sum.measured && num(n) >= 1 ? sum.runs / num(n) : 1;
      item.count = Math.max(item.count, like * num(n)); item.us += like * num(us); item.waited += like * num(waited);
      item.longest = Math.max(item.longest, num(longest));
    }
  }
  for (const item of plan.items) { item.us /= ranks || 1; item.waited /= ranks || 1; plan.waited += item.waited; }
  for (const rank of trace.ranks)
    for (const run of rank.runs) if (run.plan === plan.of_rank.get(rank)) plan.us += run.d / trace.ranks.length;
}

// Ranks of one host share a clock. Those of others are moved so that waits for a collective end together.
function alignClocks(trace) {
  const first = trace.ranks[0];
  for (const rank of trace.ranks) rank.shift = rank.start - first.start;
  for (const rank of trace.ranks.slice(1)) {
    if (rank.host === first.host) continue;
    const differences = [];
    for (const plan of trace.plans) {
      const of = r => r.runs.filter(x => x.plan === plan.of_rank.get(r));
      const mine = of(rank), other = of(first);
      for (let i = 0; i < Math.min(mine.length, other.length); ++i) {
        for (const w of mine[i].waits) {
          const same = other[i].waits.find(o => o.item === w.item);
          if (same) differences.push((other[i].t + same.t + same.d) - (mine[i].t + rank.shift + w.t + w.d));
        }
      }
    }
    differences.sort((a, b) => a - b);
    if (differences.length) { rank.shift += differences[differences.length >> 1]; trace.aligned = true; }
  }
}

function makeTrace(ranks) {
  ranks.sort((a, b) => a.rank - b.rank);
  const trace = {ranks, plans: [], name: "", program: ranks[0].program};
  trace.name = (ranks[0].program || "program") + (ranks.length > 1 ? " · " + ranks.length + " ranks" : "") + " · " + ranks[0].file;
  for (const rank of ranks) {
    for (const told of rank.plans.values()) {
      // Ranks mostly tell the same plans: each is read once.
      if (trace.plans.some(p => p.hash === told.hash)) continue;
      const plan = readPlan(told.line);
      plan.of_rank = new Map();
      plan.listings = rank.codes;
      trace.plans.push(plan);
    }
  }
  for (const plan of trace.plans) addMeasures(trace, plan);
  alignClocks(trace);
  trace.plans.sort((a, b) => b.us - a.us || b.facts.sent - a.facts.sent || b.items.length - a.items.length);
  return trace;
}

function readModel(data) {
  const traces = [], training = [], loose = [];
  for (const file of arr(data.files).map(obj)) {
    const lines = arr(file.lines);
    if (lines.some(l => obj(l).k === "head" || obj(l).k === "plan")) loose.push(readRank(file));
    else if (lines.length) training.push({name: str(file.name), rows: lines.map(obj)});
  }
  // A rank that is there already begins another run.
  let groups = [];
  for (const rank of loose) {
    const fits = g => g[0].ranks === rank.ranks && g[0].program === rank.program && g.every(r => r.rank !== rank.rank) && Math.abs(g[0].start - rank.start) < 600e6;
    const group = rank.ranks > 1 && groups.find(fits);
    if (group) group.push(rank); else groups.push([rank]);
  }
  for (const group of groups) traces.push(makeTrace(group));
  return {traces, training};
}

const planTitle = plan => (plan.title || "plan " + plan.number) + " · " + plan.items.length + (plan.items.length === 1 ? " item" : " items") + (plan.facts.collectives ? ", " + plan.facts.collectives + (plan.facts.collectives === 1 ? " collective" : " collectives") : "") + (plan.buffers.some(b => b.owner === "gradient") ? " · with gradients" : "") + (plan.runs ? " · " + plan.runs + (plan.runs === 1 ? " run" : " runs") : "") + (plan.us ? " · " + time(plan.us) : "");
const shapeText = (dtype, shape) => dtype + "[" + shape.join(", ") + "]";
const originText = o => [o.about, o.op, o.source].filter(Boolean).join(" · ");
