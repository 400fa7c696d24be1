// Training: each number that runs wrote as JSON lines over the steps, several runs together.
function trainingSheet({model}) {
  if (!model.training.length) return [el("p", {class: "empty"}, "No file of a training is on this page. `tinyshard view run.tsview losses.jsonl` adds the JSON lines that a training writes.")];
  const keys = new Map();
  model.training.forEach((file, f) => file.rows.forEach((row, i) => {
    for (const [name, value] of Object.entries(row)) {
      if (name === "step" || typeof value !== "number" || !isFinite(value)) continue;
      if (!keys.has(name)) keys.set(name, model.training.map(() => []));
      keys.get(name)[f].push([num(row.step, i), value]);
    }
  }));
  const charts = [...keys].map(([name, lists]) => el("div", {class: "panel", "data-name": name}, el("h2", {}, name),
      chart({label: name + " over steps", height: 240, yShow: y => Math.abs(y) >= 1e4 || (y && Math.abs(y) < 1e-3) ? y.toExponential(1) : trim(y, 3), series: lists.map((points, f) => ({name: model.training[f].name, color: boxColor(f), points})).filter(s => s.points.length)})));
  const search = el("input", {type: "search", placeholder: "Search", "aria-label": "Search curves", oninput(e) { for (const c of charts) c.hidden = !c.dataset.name.toLowerCase().includes(e.target.value.toLowerCase()); }});
  return [el("div", {class: "tools"}, search, model.training.map((file, f) => el("span", {class: "key"}, el("i", {style: {background: boxColor(f)}}), file.name))), el("div", {class: "charts"}, charts)];
}
