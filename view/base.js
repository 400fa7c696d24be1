"use strict";
// Elements are made of text nodes and attributes from a fixed list: data never becomes markup.
const SVG = "http://www.w3.org/2000/svg";
function fill(node, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else if (name === "class") node.setAttribute("class", value);
    else if (name === "value" || name === "checked") node[name] = value;
    else node.setAttribute(name, String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}
const el = (tag, props, ...children) => fill(document.createElement(tag), props, children);
const svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);
// Colors of the theme, which are asked of the style once: each question makes the browser compute styles anew.
const themeColors = new Map();
function color(name) {
  if (!themeColors.has(name)) themeColors.set(name, getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim() || "#888");
  return themeColors.get(name);
}

// Numbers for people.
// Formats of the browser's own take tens of milliseconds to be made.
function trim(x, digits) {
  const text = x.toFixed(digits);
  return (text.includes(".") ? text.replace(/\.?0+$/, "") : text).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}
function scaled(x, step, units) {
  let i = 0, sign = x < 0 ? "-" : "";
  for (x = Math.abs(x); x >= step && i + 1 < units.length; ++i) x /= step;
  return sign + trim(x, x < 10 && i > 0 ? 2 : x < 100 && i > 0 ? 1 : 0) + " " + units[i];
}
const bytes = x => scaled(x, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
const count = x => scaled(x, 1000, ["", "K", "M", "G", "T", "P"]).trim();
function time(us) {
  const a = Math.abs(us);
  if (a >= 1e6) return trim(us / 1e6, a < 1e7 ? 2 : 1) + " s";
  if (a >= 1e3) return trim(us / 1e3, a < 1e4 ? 2 : 1) + " ms";
  return trim(us, a < 10 ? 1 : 0) + " µs";
}
const percent = x => trim(100 * x, x < .1 ? 1 : 0) + " %";

function key(...pairs) {
  return el("div", {class: "tools", "aria-hidden": "true"}, pairs.map(([name, c]) =>
      el("span", {class: "key"}, el("i", {style: {background: color(c)}}), name)));
}
function tiles(...list) {
  return el("div", {class: "tiles"}, list.filter(Boolean).map(([name, value, title]) =>
      el("div", {class: "tile", title}, el("div", {class: "v"}, value), el("div", {class: "n"}, name))));
}
const facts = list => el("dl", {class: "facts"}, list.filter(f => f && f[1] !== "" && f[1] !== undefined)
    .map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));

// The tip beside the pointer.
const tip = {
  show(event, text) {
    const box = document.getElementById("tip");
    box.textContent = text;
    box.hidden = false;
    const x = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8);
    const y = event.clientY + 16 + box.offsetHeight > innerHeight ? event.clientY - box.offsetHeight - 10 : event.clientY + 16;
    Object.assign(box.style, {left: x + "px", top: y + "px"});
  },
  hide() { document.getElementById("tip").hidden = true; },
};

// A table that is sorted by a click on a heading and searched by a field above it.
//   columns: {name, of: row => value, show: value => text, num, bar, mono, wide}
function table({columns, rows, sort = -1, onpick, filter = true, label, limit = 200, tools = [], picked}) {
  let by = sort, down = true, words = "", shown = limit, selected = null;
  const body = el("tbody", {}), head = el("tr", {});
  const info = el("span", {class: "soft", role: "status"});
  const more = el("div", {class: "more"});
  const texts = new Map();
  const textOf = row => {
    if (!texts.has(row)) texts.set(row, columns.map(c => String(c.of(row) ?? "")).join(" ").toLowerCase());
    return texts.get(row);
  };
  const most = columns.map(c => c.bar ? Math.max(1e-12, ...rows.slice(0, 100000).map(r => +c.of(r) || 0)) : 0);
  function cell(c, row, i) {
    const value = c.of(row);
    const cls = [c.num && "num", c.mono && "mono", c.wide && "wide", c.num && !value && !c.zero && "zero"].filter(Boolean).join(" ");
    const shownText = c.show ? c.show(value, row) : String(value ?? "");
    return el("td", {class: cls}, c.num && !value && !c.zero ? "–" : shownText,
        c.bar && value > 0 && el("span", {class: "bar", style: {width: Math.max(1, 70 * value / most[i]) + "px", background: c.tint && color(c.tint)}}));
  }
  function draw() {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const list = rows.filter(r => wanted.every(w => textOf(r).includes(w)));
    if (by >= 0) {
      const of = columns[by].of;
      list.sort((a, b) => {
        const x = of(a), y = of(b);
        return (down ? -1 : 1) * (typeof x === "number" || typeof y === "number" ? (x || 0) - (y || 0) : String(x ?? "").localeCompare(String(y ?? "")));
      });
    }
    head.replaceChildren(...columns.map((c, i) => el("th", {class: c.num && "num", scope: "col", title: c.title,
      "aria-sort": i === by ? (down ? "descending" : "ascending") : null},
      el("button", {type: "button", onclick() { down = i === by ? !down : !!c.num; by = i; draw(); }},
          c.name, i === by ? (down ? " ↓" : " ↑") : ""))));
    body.replaceChildren(...list.slice(0, shown).map(row => {
      const pick = () => { selected = row; for (const tr of body.children) tr.setAttribute("aria-selected", tr === line); onpick(row); };
      const line = el("tr", onpick ? {tabindex: 0, "aria-selected": row === selected, onclick: pick,
        onkeydown(e) {
          if (e.key === "Enter" || e.key === " ") { e.preventDefault(); pick(); }
          const next = e.key === "ArrowDown" ? line.nextSibling : e.key === "ArrowUp" ? line.previousSibling : null;
          if (next) { e.preventDefault(); next.focus(); }
        }} : {}, columns.map((c, i) => cell(c, row, i)));
      return line;
    }));
    info.textContent = list.length === rows.length ? trim(rows.length, 0) + " rows" : trim(list.length, 0) + " of " + trim(rows.length, 0) + " rows";
    more.replaceChildren(...(list.length > shown ? [el("button", {type: "button", onclick() { shown *= 4; draw(); }},
        "Show more (" + trim(list.length - shown, 0) + ")")] : []));
    more.hidden = list.length <= shown;
  }
  const search = el("input", {type: "search", placeholder: "Search", "aria-label": "Search " + (label || "rows"),
    oninput(e) { words = e.target.value; shown = limit; draw(); }});
  if (picked !== undefined) selected = picked;
  draw();
  const box = el("div", {}, filter && el("div", {class: "tools"}, search, tools, info),
      el("div", {class: "tablebox"}, el("table", {"aria-label": label}, el("thead", {}, head), body), more));
  box.refresh = newRows => { rows = newRows; texts.clear(); shown = limit; draw(); };
  return box;
}

// A chart of lines or of stacked areas with axes: series are {name, color, points: [[x, y]]}.
function chart({series, height = 220, yShow = count, xShow = x => trim(x, 0), label, log = false, onclick}) {
  const W = 900, H = height, L = 70, R = 12, T = 10, B = 24;
  const all = series.flatMap(s => s.points);
  const xs = all.map(p => p[0]), ys = all.map(p => p[1]);
  let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
  for (const x of xs) { x0 = Math.min(x0, x); x1 = Math.max(x1, x); }
  for (const y of ys) { y0 = Math.min(y0, y); y1 = Math.max(y1, y); }
  if (!all.length || !isFinite(y1 - y0)) return el("p", {class: "note"}, "Nothing to draw.");
  const zero = y0 >= 0 && (y0 < .5 * y1 || series.some(s => s.base));
  if (zero) y0 = 0;
  // Numbers may be the largest that there are: nothing is added to these, and shares are taken before they are scaled.
  if (y1 === y0) { if (y1 > 1e300) y0 = 0; else y1 += Math.abs(y1) || 1; }
  const X = x => L + (W - L - R) * ((x - x0) / Math.max(x1 - x0, 1e-12));
  const Y = y => H - B - (H - T - B) * ((y - y0) / (y1 - y0));
  const node = svg("svg", {viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label, width: "100%"});
  for (let i = 0; i <= 4; ++i) {
    const y = y0 + (y1 - y0) * (i / 4);
    node.append(svg("line", {x1: L, x2: W - R, y1: Y(y), y2: Y(y), stroke: color("line")}),
        svg("text", {x: L - 8, y: Y(y) + 4, "text-anchor": "end", class: "soft"}, yShow(y)));
  }
  for (let i = 0; i <= 5; ++i) {
    const x = x0 + (x1 - x0) * (i / 5);
    node.append(svg("text", {x: X(x), y: H - 6, "text-anchor": i === 0 ? "start" : i === 5 ? "end" : "middle", class: "soft"}, xShow(x)));
  }
  for (const s of series) {
    const d = s.points.map((p, i) => (i ? "L" : "M") + X(p[0]).toFixed(1) + " " + Y(p[1]).toFixed(1)).join("");
    if (s.base) {
      const back = s.base.slice().reverse().map(p => "L" + X(p[0]).toFixed(1) + " " + Y(p[1]).toFixed(1)).join("");
      node.append(svg("path", {d: d + back + "Z", fill: s.color, opacity: .88}));
    } else {
      node.append(svg("path", {d, fill: "none", stroke: s.color, "stroke-width": 1.6, "stroke-linejoin": "round"}));
    }
  }
  const cursor = svg("line", {y1: T, y2: H - B, stroke: color("soft"), "stroke-dasharray": "3 3", visibility: "hidden"});
  node.append(cursor);
  const at = event => {
    const box = node.getBoundingClientRect();
    return x0 + (x1 - x0) * ((event.clientX - box.left) * W / box.width - L) / (W - L - R);
  };
  node.addEventListener("mousemove", event => {
    const x = Math.min(x1, Math.max(x0, at(event)));
    cursor.setAttribute("x1", X(x)); cursor.setAttribute("x2", X(x)); cursor.setAttribute("visibility", "visible");
    const near = s => s.points.reduce((best, p) => Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best, s.points[0]);
    const lines = series.filter(s => s.points.length).map(s => {
      const p = near(s), below = s.base ? s.base.reduce((b, q) => Math.abs(q[0] - x) < Math.abs(b[0] - x) ? q : b, s.base[0])[1] : 0;
      return s.name + "  " + yShow(p[1] - below);
    });
    tip.show(event, xShow(x) + "\n" + lines.reverse().join("\n"));
  });
  node.addEventListener("mouseleave", () => { tip.hide(); cursor.setAttribute("visibility", "hidden"); });
  if (onclick) node.addEventListener("click", event => onclick(at(event)));
  return node;
}
