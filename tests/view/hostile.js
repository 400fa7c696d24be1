// Runs in the page: reads files that were changed at random places, and draws all sheets of them. Returns what went
// wrong. A trial changes some places, of two kinds: a character of a line's text, after which the line may be no JSON
// and is left out as view_page leaves it out; or a value of a line, which becomes one that nobody expects.
async function hostile({files, trials, places, seed}) {
  let state = seed >>> 0;
  const random = n => {  // xorshift: the same trials for the same seed
    state ^= state << 13; state >>>= 0; state ^= state >>> 17; state ^= state << 5; state >>>= 0;
    return state % n;
  };
  const script = ["<img src=x onerror=pwned()>", "</script><script>pwned()</script>", "javascript:pwned()", "\"><svg onload=pwned()>", "${pwned()}", "__proto__", "constructor", "toString", "' onclick='pwned()", "\u202e\ud800", "]]>", "&lt;b&gt;"];
  const odd = [null, true, false, -1, 0, 1e308, -1e308, 5e-324, 2 ** 53, 4294967296, 1e9, 0.5, "", "P", "P sum", "R", [], {}, [[]], [null], {dim: 1e9, parts: [1e9]}, {length: 1e9}, "x".repeat(5000)];
  const value = () => random(3) ? odd[random(odd.length)] : script[random(script.length)];
  const characters = "<>\"'&{}[],:0123456789eE+-\\/.\u0000\ufffdtrufalsn ";
  // Every place of a line's JSON is as likely: containers are gone through until one is hit.
  function change(root) {
    const at = [];
    const walk = x => { for (const k of Object.keys(x)) { at.push([x, k]); if (x[k] && typeof x[k] === "object" && at.length < 30000) walk(x[k]); } };
    walk(root);
    if (!at.length) return;
    const [x, k] = at[random(at.length)];
    switch (random(6)) {
      case 0: delete x[k]; break;
      case 1: if (Array.isArray(x)) x.length = random(x.length + 1); else x[script[random(script.length)]] = value(); break;
      case 2: if (Array.isArray(x)) x.splice(random(x.length + 1), 0, value()); else x[k] = value(); break;
      default: x[k] = typeof x[k] === "string" && random(2) ? x[k] + script[random(script.length)] : value();
    }
  }
  const problems = [], told = new Map();
  let done = 0, slowest = 0, now = 0;
  window.pwned = () => problems.push("a script of the data ran in trial " + now);
  const onerror = e => { problems.push("trial " + now + ": " + (e.error ? e.error.stack : e.message || e.reason)); };
  addEventListener("error", onerror);
  addEventListener("unhandledrejection", onerror);
  const main = document.getElementById("main");
  const kParsed = files.map(f => f.lines.map(l => JSON.parse(l)));
  for (let trial = 0; trial < trials && problems.length < 20; ++trial) {
    now = trial;
    const changed = new Map();  // file -> line -> object, or null where it is no JSON any more
    const data = {files: files.map((f, i) => ({name: f.name, left_out: 0, lines: kParsed[i].slice()}))};
    for (let p = 0; p < places; ++p, ++done) {
      const f = random(files.length), l = random(4) ? random(Math.min(6, files[f].lines.length)) : random(files[f].lines.length), key = f + "," + l;
      if (!changed.has(key)) changed.set(key, files[f].lines[l]);
      let text = changed.get(key);
      if (random(2)) {
        const c = random(text.length), many = random(4) ? 1 : random(40);
        text = text.slice(0, c) + characters[random(characters.length)].repeat(random(2)) + text.slice(c + many);
      } else {
        let object = null;
        try { object = JSON.parse(text); } catch (e) { object = JSON.parse(files[f].lines[l]); }
        if (object && typeof object === "object") change(object);
        text = JSON.stringify(object);
      }
      changed.set(key, text);
    }
    for (const [key, text] of changed) {
      const [f, l] = key.split(",").map(Number);
      let object = null;
      try { object = JSON.parse(text); } catch (e) { object = null; }
      if (object && typeof object === "object" && !Array.isArray(object)) data.files[f].lines[l] = object;
      else { data.files[f].lines[l] = null; data.files[f].left_out++; }
    }
    for (const f of data.files) f.lines = f.lines.filter(l => l !== null);
    const begun = performance.now();
    try {
      const model = readModel(data);
      const trace = model.traces[random(Math.max(1, model.traces.length))], plan = trace && (trace.plans[random(Math.max(1, trace.plans.length))] || null);
      for (const [name, sheet] of kSheets) {
        if (!trace && name !== "Training") continue;
        try {
          let content = plan ? sheet({model, trace, plan, go() {}}) : name === "Training" ? sheet({model, trace, plan}) : [];
          main.replaceChildren(...[content].flat(Infinity).filter(Boolean));
          // A click anywhere, as somebody would who looks.
          const rows = main.querySelectorAll("tr[tabindex]"), buttons = main.querySelectorAll("button");
          for (let i = 0; i < 3 && rows.length; ++i) rows[random(rows.length)].click();
          if (buttons.length) buttons[random(buttons.length)].click();
        } catch (error) {
          // The page says so in place of the sheet.
          const where = name + ": " + String(error.stack).split("\n").slice(0, 2).join(" ").replace(/file:\S*html/g, "");
          told.set(where, (told.get(where) || 0) + 1);
        }
        if (main.querySelector("script, img, iframe, object, embed, a, link, form, base, meta, foreignObject, [onload], [onerror], [onclick], [href], [src]"))
          problems.push("trial " + trial + ": " + name + " has an element that data made");
      }
    } catch (error) {
      const where = "model: " + String(error.stack).split("\n").slice(0, 2).join(" ").replace(/file:\S*html/g, "");
      told.set(where, (told.get(where) || 0) + 1);
    }
    const took = performance.now() - begun;
    slowest = Math.max(slowest, took);
    if (took > 5000) problems.push("trial " + trial + " took " + Math.round(took) + " ms");
    if (Object.prototype.pwned !== undefined || ({}).polluted !== undefined || Object.keys(Object.prototype).length) problems.push("trial " + trial + ": a prototype was changed");
    if (trial % 16 === 0) await new Promise(next => setTimeout(next, 0));  // animation frames and errors come between
  }
  removeEventListener("error", onerror);
  removeEventListener("unhandledrejection", onerror);
  return {done, problems, told: [...told].sort((a, b) => b[1] - a[1]), slowest};
}
