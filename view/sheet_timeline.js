// Timeline: all ranks on one axis. A rank has three lanes: runs and compilations, its items with waits over
// them in a colour of their own, and collectives from their start to the end of the wait for them.
const kLanes = {runs: [0, 13], items: [15, 24], comm: [41, 13]}, kRankHeight = 66, kLeft = 84, kTop = 26;

function timelineEvents(trace) {
  return trace.ranks.map(rank => {
    const events = [];
    const planOf = new Map(trace.plans.map(p => [p.of_rank.get(rank), p]));
    for (const s of rank.spans) events.push({lane: "runs", t: s.t + rank.shift, d: s.d, color: "span", text: s.kind + ": " + (s.after || s.name)});
    for (const run of rank.runs) {
      const plan = planOf.get(run.plan), t = run.t + rank.shift;
      events.push({lane: "runs", t, d: run.d, color: "run", run, plan, text: "run " + run.run + (plan ? " of " + (plan.title || "plan " + plan.number) : "") + (run.measured ? ", measured: each item was waited for" : "")});
      const begun = new Map();
      for (const i of run.items || []) {
        const item = plan && plan.items[i.item], kind = item ? item.kind : "kernel";
        if (kind === "collective") begun.set(i.item, t + i.t);
        events.push({lane: "items", t: t + i.t, d: i.d, color: kind || "kernel", item, plan, run, text: item ? item.name : "item " + i.item});
      }
      const ended = new Map();
      for (const w of run.waits) {
        const item = plan && plan.items[w.item];
        ended.set(w.item, t + w.t + w.d);
        events.push({lane: "items", wait: true, t: t + w.t, d: w.d, color: "exposed", item, plan, run, text: "waits for " + (item ? item.name : "item " + w.item)});
      }
      for (const [index, from] of begun) {
        const item = plan && plan.items[index];
        if (ended.has(index)) events.push({lane: "comm", t: from, d: ended.get(index) - from, color: "collective", item, plan, run, text: item ? item.name : "collective"});
      }
    }
    return events;
  });
}

// Where a rank's time went, in runs whose items are known.
function rankShares(trace) {
  return trace.ranks.map(rank => {
    const all = total(rank.runs, r => r.d), waited = Math.min(all, total([...rank.sums.values()], s => total(s.items, i => num(i[4]))));
    const lengths = rank.runs.filter(r => r.plan === (trace.plans[0] && trace.plans[0].of_rank.get(rank))).map(r => r.d).sort((a, b) => a - b);
    return {rank, runs: rank.runs.length, all, waited, computed: Math.max(0, all - waited), median: lengths[lengths.length >> 1] || 0, longest: lengths[lengths.length - 1] || 0};
  });
}

// How often each rank came last to a collective, of those whose begin all ranks tell.
function comesLast(trace) {
  const begins = new Map(), last = new Map(trace.ranks.map(r => [r, 0]));
  for (const rank of trace.ranks) for (const plan of trace.plans) for (const run of rank.runs) {
    if (!run.items || run.plan !== plan.of_rank.get(rank)) continue;
    for (const i of run.items) {
      const item = plan.items[i.item];
      if (!item || item.kind !== "collective") continue;
      const id = plan.hash + " " + run.run + " " + i.item;
      if (!begins.has(id)) begins.set(id, []);
      begins.get(id).push({rank, t: run.t + rank.shift + i.t});
    }
  }
  let all = 0;
  for (const list of begins.values()) {
    if (list.length < trace.ranks.length || trace.ranks.length < 2) continue;
    const latest = list.reduce((a, b) => b.t > a.t ? b : a);
    ++all;
    last.set(latest.rank, last.get(latest.rank) + 1);
  }
  return {all, last};
}

// Says whether a rank holds the others up: it is the one that waits for nobody, or that comes last most often.
function rankSentence(shares, late) {
  const waits = shares.filter(s => s.all), of = s => s.waited / s.all;
  if (waits.length < 2) return {held: false, text: "Times are of the host: of a step that a device replays as one recording there is only the whole."};
  const culprit = waits.reduce((a, b) => of(b) < of(a) ? b : a), worst = Math.max(...waits.map(of));
  const [rank, times] = [...late.last].reduce((a, b) => b[1] > a[1] ? b : a);
  const often = late.all >= 10 && times / late.all > .35 + 1 / waits.length;
  if (worst - of(culprit) <= .05 && often) return {held: true, text: "Rank " + rank.rank + " comes last to " + percent(times / late.all) + " of the collectives that are told: the others wait for it."};
  if (worst - of(culprit) <= .05) return {held: false, text: "No rank holds the others up: all wait about as long."};
  return {held: true, text: "Rank " + culprit.rank.rank + " waits least (" + percent(of(culprit)) + " of its time, others up to " + percent(worst) + "): the others wait for it."};
}

// The lengths of a plan's runs over their numbers, and where they change for good: the split that leaves least of the
// differences from the medians of both sides, if these are more than a tenth apart.
function lengthsOf(trace, plan) {
  return trace.ranks.map((rank, r) => ({name: "rank " + rank.rank, color: boxColor(r), points: rank.runs.filter(x => x.plan === plan.of_rank.get(rank)).map(x => [x.run, x.d])}));
}
const medianOf = list => { const s = list.slice().sort((a, b) => a - b); return s[s.length >> 1] || 0; };
function changeOf(series) {
  let points = series.reduce((a, b) => b.points.length > a.length ? b.points : a, []).slice(3);
  // Of many runs the medians of blocks are compared: each split looks at all points.
  const block = Math.ceil(points.length / 250);
  if (block > 1) points = points.flatMap((p, i) => i % block ? [] : [[p[0], medianOf(points.slice(i, i + block).map(q => q[1]))]]);
  if (points.length < 10) return null;
  let best = null;
  for (let i = 5; i <= points.length - 5; ++i) {
    const a = medianOf(points.slice(0, i).map(p => p[1])), b = medianOf(points.slice(i).map(p => p[1]));
    const rest = total(points.slice(0, i), p => Math.abs(p[1] - a)) + total(points.slice(i), p => Math.abs(p[1] - b));
    if (!best || rest < best.rest) best = {rest, run: points[i][0], before: a, after: b};
  }
  return best && Math.abs(best.after / (best.before || 1) - 1) > .1 ? best : null;
}
function stepsOver(trace, plan) {
  const series = lengthsOf(trace, plan).filter(s => s.points.length > 1);
  if (!series.length) return "";
  const change = changeOf(series);
  return [el("h2", {}, "Length of each run"), change ? el("p", {class: "note"}, "From run " + change.run + " on a run takes " + time(change.after) + ", before " + time(change.before) + " (" + (change.after > change.before ? "+" : "") + percent(change.after / (change.before || 1) - 1) + "). A click on the curve goes there.") : "",
    series];
}

function timelineSheet({trace, plan}) {
  const lanes = timelineEvents(trace), details = el("div", {class: "panel"}, el("span", {class: "soft"}, "Choose a bar to see its line, bytes and rate."));
  const all = lanes.flat();
  if (!all.length) return [el("p", {class: "empty"}, "Nothing was run: the file is of a plan (NULL devices plan and compute nothing).")];
  let first = Infinity, last = -Infinity, chosen = null;
  for (const e of all) { first = Math.min(first, e.t); last = Math.max(last, e.t + e.d); }
  let from = first, to = last;
  const canvas = el("canvas", {tabindex: 0, role: "img", "aria-label": "Timeline of " + trace.ranks.length + " ranks; arrow keys move, plus and minus zoom, the table below has the sums"});
  const context = canvas.getContext("2d");
  const height = kTop + kRankHeight * trace.ranks.length + 4;
  const X = t => kLeft + (canvas.clientWidth - kLeft - 8) * (t - from) / (to - from);
  const T = x => from + (to - from) * (x - kLeft) / (canvas.clientWidth - kLeft - 8);

  function ticks() {
    const span = to - from, power = Math.pow(10, Math.floor(Math.log10(span / 6)));
    const step = [1, 2, 5, 10].map(m => m * power).find(s => span / s <= 8) || power * 10;
    context.fillStyle = color("soft"); context.strokeStyle = color("line"); context.lineWidth = 1;
    for (let t = Math.ceil((from - first) / step) * step + 0; t <= to - first; t += step) {
      const x = Math.round(X(t + first)) + .5;
      context.beginPath(); context.moveTo(x, kTop - 4); context.lineTo(x, height); context.stroke();
      const [unit, name] = step >= 1e5 ? [1e6, " s"] : step >= 100 ? [1e3, " ms"] : [1, " µs"];
      context.fillText(trim(t / unit, 2) + name, x + 3, 13);
    }
  }
  function draw() {
    const ratio = devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.width = width * ratio; canvas.height = height * ratio; canvas.style.height = height + "px";
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "11.5px system-ui, sans-serif";
    ticks();
    const colors = Object.fromEntries(["kernel", "library", "collective", "copy", "run", "span", "exposed", "ink", "soft", "line", "panel"].map(c => [c, color(c)]));
    lanes.forEach((events, r) => {
      const top = kTop + r * kRankHeight;
      context.fillStyle = colors.line; context.fillRect(0, top - 4, width, 1);
      context.save(); context.beginPath(); context.rect(kLeft, top, width - kLeft, kRankHeight); context.clip();
      let lastX = {runs: -1, items: -1, comm: -1};
      for (const e of events) {
        if (e.t > to || e.t + e.d < from) continue;
        const [y, h] = kLanes[e.lane], x = X(e.t), w = Math.max(X(e.t + e.d) - x, .6);
        if (w < 1 && !e.wait && x - lastX[e.lane] < .5) continue;
        lastX[e.lane] = x;
        context.fillStyle = colors[e.color] || colors.kernel;
        context.fillRect(x, top + y, Math.max(w - (w > 3 ? .7 : 0), .6), h);
        if (e === chosen) { context.strokeStyle = colors.ink; context.lineWidth = 2; context.strokeRect(x, top + y, w, h); }
        if (w > 46) {
          context.save(); context.beginPath(); context.rect(x, top + y, w - 4, h); context.clip();
          context.fillStyle = e.color === "run" ? colors.ink : "#fff";
          context.fillText(e.text, Math.max(x, kLeft) + 4, top + y + h / 2 + 4);
          context.restore();
        }
      }
      context.restore();
      context.fillStyle = colors.ink; context.fillText("rank " + trace.ranks[r].rank, 4, top + 31);
      context.fillStyle = colors.soft; context.fillText("runs", 52, top + 10); context.fillText("sent", 52, top + 52);
    });
  }
  const find = event => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top - kTop;
    const rank = Math.floor(y / kRankHeight), inRank = y - rank * kRankHeight, t = T(x), slack = (to - from) / 600;
    let best = null;
    for (const e of lanes[rank] || []) {
      const [top, h] = kLanes[e.lane];
      if (inRank < top || inRank > top + h || t < e.t - slack || t > e.t + e.d + slack) continue;
      if (!best || e.wait || (!best.wait && e.d <= best.d)) best = e;
    }
    return best && {event: best, rank};
  };
  const describe = e => e.text + "\n" + time(e.d) + (e.wait ? " exposed" : "") + (e.item && e.item.line ? " · " + e.item.line : "") + (e.item && e.item.purpose ? "\n" + e.item.purpose : "");
  const show = (e, rank) => {
    chosen = e;
    details.replaceChildren(facts([["what", e.text], ["rank", trace.ranks[rank].rank], ["began", time(e.t - first)], ["took", time(e.d)],
      ["line", e.item ? e.item.source : ""], ["for", e.item ? e.item.purpose : ""], ["reads and writes", e.item ? bytes(e.item.read + e.item.written) : ""],
      ["rate", e.item && !e.wait && e.d ? trim((e.item.read + e.item.written) / e.d / 1e3, 2) + " GB/s" : ""],
      ["arithmetic", e.item && e.item.ops && e.d ? count(e.item.ops) + " operations, " + trim(e.item.ops / e.d / 1e3, 2) + " GFLOPS" : ""],
      ["sends", e.item && e.item.collective ? bytes(e.item.collective.bytes) + ", planned " + time(e.item.collective.us) : ""]]));
    draw();
  };
  const go = (a, b) => { from = a; to = Math.max(b, a + 1); draw(); };
  const zoom = (factor, t) => go(t - (t - from) * factor, t + (to - t) * factor);
  canvas.addEventListener("wheel", e => { e.preventDefault(); zoom(Math.exp(Math.sign(e.deltaY) * .18), T(e.clientX - canvas.getBoundingClientRect().left)); }, {passive: false});
  let drag = null;
  canvas.addEventListener("pointerdown", e => { drag = {x: e.clientX, from, to, moved: false}; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointermove", e => {
    if (!drag) { const f = find(e); if (f) tip.show(e, describe(f.event)); else tip.hide(); return; }
    const by = (drag.x - e.clientX) * (drag.to - drag.from) / (canvas.clientWidth - kLeft);
    if (Math.abs(drag.x - e.clientX) > 3) drag.moved = true;
    if (drag.moved) go(drag.from + by, drag.to + by);
  });
  canvas.addEventListener("pointerup", e => { const f = drag && !drag.moved && find(e); drag = null; if (f) show(f.event, f.rank); });
  canvas.addEventListener("pointerleave", tip.hide);
  canvas.addEventListener("keydown", e => {
    const move = (to - from) / 8, middle = (from + to) / 2;
    const act = {ArrowLeft: () => go(from - move, to - move), ArrowRight: () => go(from + move, to + move), "+": () => zoom(.7, middle), "=": () => zoom(.7, middle), "-": () => zoom(1.4, middle), 0: () => go(first, last)}[e.key];
    if (act) { e.preventDefault(); act(); }
  });
  const step = pick => {
    const runs = trace.ranks.flatMap(rank => rank.runs.filter(r => r.items && r.items.length && r.plan === plan.of_rank.get(rank)).map(r => ({rank, r})));
    if (!runs.length) return go(first, last);
    // The step that is shown first is one whose items most ranks tell.
    const told = x => runs.filter(y => y.r.run === x.r.run).length, most = Math.max(...runs.map(told));
    const one = pick(runs.filter(x => told(x) === most)).r.run;
    const same = runs.filter(x => x.r.run === one), a = Math.min(...same.map(x => x.r.t + x.rank.shift)), b = Math.max(...same.map(x => x.r.t + x.r.d + x.rank.shift));
    go(a - (b - a) * .02, b + (b - a) * .02);
  };
  const lastStep = () => step(runs => runs.reduce((x, y) => y.r.run > x.r.run ? y : x));
  const slowest = () => step(runs => runs.slice(runs.length > 2 ? 1 : 0).reduce((x, y) => y.r.d > x.r.d ? y : x));
  const button = (name, act) => el("button", {type: "button", onclick: act}, name);
  const shares = rankShares(trace), late = comesLast(trace);
  const over = stepsOver(trace, plan), steps = over && [over[0], over[1], el("div", {class: "panel"}, chart({series: over[2], height: 170, yShow: time, xShow: x => "run " + Math.round(x), label: "length of each run",
    onclick: x => { const near = trace.ranks.flatMap(rank => rank.runs.filter(r => r.plan === plan.of_rank.get(rank)).map(r => ({rank, r}))).reduce((a, b) => Math.abs(b.r.run - x) < Math.abs(a.r.run - x) ? b : a);
      go(near.r.t + near.rank.shift - near.r.d * .1, near.r.t + near.rank.shift + near.r.d * 1.1); canvas.scrollIntoView({block: "nearest"}); }}))];
  requestAnimationFrame(lastStep);
  addEventListener("resize", () => canvas.isConnected && draw());
  canvas.redraw = draw;
  return [el("div", {class: "tools"}, button("Last step", lastStep), button("Slowest step", slowest), button("Everything", () => go(first, last)), button("Zoom in", () => zoom(.6, (from + to) / 2)), button("Zoom out", () => zoom(1.7, (from + to) / 2)),
      el("span", {class: "soft"}, "wheel zooms, drag moves, a click tells more" + (trace.aligned ? " · clocks of hosts aligned by collectives" : ""))),
    el("div", {class: "panel"}, canvas, key(["kernel", "kernel"], ["library call", "library"], ["copy", "copy"], ["collective", "collective"], ["exposed communication: waits for others", "exposed"], ["run", "run"], ["compilation", "span"])),
    details, steps, el("h2", {}, "Ranks"),
    el("p", {class: "note"}, rankSentence(shares, late).text),
    table({label: "ranks", filter: false, rows: shares, columns: [
      {name: "Rank", of: s => s.rank.rank, num: true, zero: true, show: String}, {name: "Host", of: s => s.rank.host}, {name: "Runs", of: s => s.runs, num: true},
      {name: "Median step", of: s => s.median, show: time, num: true}, {name: "Longest step", of: s => s.longest, show: time, num: true},
      {name: "Comes last", of: s => late.all ? late.last.get(s.rank) / late.all : 0, show: percent, num: true, title: "share of the collectives whose begin all ranks tell"},
      {name: "Computes", of: s => s.computed, show: time, num: true, bar: true}, {name: "Waits for others", of: s => s.waited, show: (v, s) => time(v) + " (" + percent(v / (s.all || 1)) + ")", num: true, bar: true, tint: "exposed"}]})];
}
