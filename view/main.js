// Tabs, the choice of run and plan, dark and light. A sheet that fails says so and leaves the others alone.
const kSheets = [["Program", programSheet], ["Sharding", shardingSheet], ["Timeline", timelineSheet], ["Memory", memorySheet], ["Schedule", scheduleSheet], ["Graph", graphSheet], ["Compare", compareSheet], ["Training", trainingSheet]];

function start() {
  const main = document.getElementById("main"), tabs = document.getElementById("tabs");
  const runs = document.getElementById("run"), plans = document.getElementById("plan");
  const root = document.documentElement, theme = document.getElementById("theme");
  const setTheme = dark => { root.classList.toggle("dark", dark); themeColors.clear(); theme.textContent = dark ? "Light" : "Dark"; };
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
  let model, data;
  try {
    data = obj(JSON.parse(document.getElementById("data").textContent));
    data.files = arr(data.files).map(obj);
    model = readModel(data);
  } catch (error) {
    main.append(el("p", {class: "empty", role: "alert"}, "The data of this page cannot be read: " + error.message));
    return;
  }
  const noPlan = readPlan({});
  noPlan.of_rank = new Map();
  const noTrace = {ranks: [], plans: [], name: "no run"};
  let trace = model.traces[model.traces.length - 1] || noTrace, plan = trace.plans[0] || noPlan, sheet = trace.ranks.length || !model.training.length ? "Program" : "Training";
  const wanted = () => decodeURIComponent(location.hash.slice(1)).toLowerCase();
  const fromAddress = () => { const found = kSheets.find(([name]) => name.toLowerCase() === wanted()); if (found) sheet = found[0]; };
  fromAddress();
  function draw() {
    tip.hide();
    for (const tab of tabs.children) {
      const on = tab.textContent === sheet;
      tab.setAttribute("aria-selected", on);
      tab.tabIndex = on ? 0 : -1;
    }
    let content;
    try {
      if (!trace.ranks.length && sheet !== "Training") content = [el("p", {class: "empty"}, "No file of a run is on this page.")];
      else content = kSheets.find(([name]) => name === sheet)[1]({model, trace, plan, go});
    } catch (error) {
      content = [el("p", {class: "empty", role: "alert"}, "This sheet cannot be drawn from what the file has: " + error.message)];
    }
    const lost = total(trace.ranks, r => r.left_out);
    const cut = trace.ranks.flatMap(r => r.cut).map(text => el("p", {class: "note"}, text));
    main.replaceChildren(...[content, cut, lost ? el("p", {class: "note"}, lost + " lines of the files could not be read and are left out.") : ""].flat(Infinity).filter(Boolean));
    main.setAttribute("aria-label", sheet);
  }
  let drawnAnew = () => {};
  const choose = name => { drawnAnew(); sheet = name; history.replaceState(null, "", "#" + name.toLowerCase()); draw(); };
  tabs.append(...kSheets.map(([name]) => el("button", {type: "button", role: "tab", onclick: () => choose(name), onkeydown(e) {
    const by = {ArrowRight: 1, ArrowLeft: -1}[e.key];
    if (!by) return;
    const i = (kSheets.findIndex(s => s[0] === name) + by + kSheets.length) % kSheets.length;
    choose(kSheets[i][0]);
    tabs.children[i].focus();
  }}, name)));
  // To a sheet of another plan, and an item of it.
  const go = (name, of, item) => {
    plan = of || plan;
    plan.picked = item || plan.picked;
    plans.value = String(Math.max(0, trace.plans.indexOf(plan)));
    choose(kSheets.find(s => s[0].toLowerCase() === name)[0]);
    tabs.children[kSheets.findIndex(s => s[0].toLowerCase() === name)].focus();
  };
  const listPlans = () => plans.replaceChildren(...trace.plans.map((p, i) => el("option", {value: i}, planTitle(p))));
  function listRuns() {
    runs.replaceChildren(...model.traces.map((t, i) => el("option", {value: i}, t.name)));
    runs.value = String(model.traces.indexOf(trace));
    document.getElementById("run-label").hidden = model.traces.length < 2;
  }
  // More lines make the model anew; the run and the plan that are looked at stay.
  function renew() {
    const last = model.traces.length - 1, at = model.traces.indexOf(trace), hash = plan.hash, y = scrollY;
    model = readModel(data);
    trace = model.traces[at < 0 || at === last ? model.traces.length - 1 : at] || noTrace;
    plan = trace.plans.find(p => p.hash === hash) || trace.plans[0] || noPlan;
    listRuns();
    listPlans();
    plans.value = String(Math.max(0, trace.plans.indexOf(plan)));
    draw();
    scrollTo(0, y);
  }
  runs.addEventListener("change", () => { trace = model.traces[+runs.value]; plan = trace.plans[0] || noPlan; listPlans(); draw(); });
  plans.addEventListener("change", () => { plan = trace.plans[+plans.value] || noPlan; draw(); });
  theme.addEventListener("click", () => { setTheme(!root.classList.contains("dark")); draw(); });
  addEventListener("hashchange", () => { fromAddress(); draw(); });
  listRuns();
  listPlans();
  draw();
  if (data.follows === true) drawnAnew = follow(data.files, renew);
  document.title = "tinyshard view · " + trace.name;
  requestAnimationFrame(() => { root.dataset.readyAfter = String(performance.now()); root.dataset.ready = "yes"; });
}
start();
