// The drawing functions of all pages of evenfall: formatted numbers, elements, scales, axes and
// curves. Plain JavaScript without libraries, because a page must open from a mail in ten years.
//
// Every chart is a function from data to a card. `drawn` counts the cards for the tests.
"use strict";

const errors = [];

/** Shows an error on the page and adds it to `data-errors`. The rest of the page stays. */
function complain(what) {
  errors.push(String(what));
  document.documentElement.dataset.errors = errors.join("; ");
  let alert = document.getElementById("alert");
  if (!alert) {
    alert = document.createElement("div");
    alert.id = "alert";
    alert.setAttribute("role", "alert");
    document.body.prepend(alert);
  }
  alert.textContent = "A part of this page could not be drawn; the figures that `evenfall report "
    + `--json\` prints are complete. Please report this: ${errors.join("; ")}`;
}

window.addEventListener("error", (event) => complain(event.message));

const run = JSON.parse(document.getElementById("run").textContent);
const tip = document.getElementById("tip");

/** The card that `make` returns. When `make` fails, a card with the error, so that other cards stay. */
function attempt(title, make) {
  try {
    return make();
  } catch (error) {
    complain(`${title}: ${error.message}`);
    return element("section", { class: "card wide" }, element("h3", {}, title),
      element("div", { class: "empty" }, `This picture could not be drawn: ${error.message}`));
  }
}

// ---- words and numbers -------------------------------------------------------------------------

// Of a negative zero the sign would be shown.
const whole = (n) => (Math.round(n) || 0).toLocaleString("en");

/** Three significant digits, never in exponents. */
function digits(x) {
  const size = Math.abs(x);
  if (size >= 100) return whole(x);
  return x.toFixed(size >= 10 ? 1 : 2).replace(/\.?0+$/, "") || "0";
}

// Arguments of a call are limited to some 100,000, so a list is never spread into `Math.max`.
const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

/** The unit for a number of microseconds, such as ms: [name, microseconds of the unit]. */
function unitOf(us) {
  const size = Math.abs(us);
  if (size >= 1e6) return ["s", 1e6];
  if (size >= 1e4) return ["ms", 1e3];
  return size > 0 && size < 0.1 ? ["ns", 1e-3] : ["µs", 1];
}

/** A number of microseconds in its unit: [number, unit]. A run may have no value. */
function spoken(us) {
  if (us === null) return ["–", ""];
  const [unit, size] = unitOf(us);
  return [digits(us / size), unit];
}

const duration = (us) => spoken(us).join(" ").trim();

/** Formats the ticks of one axis, all in the unit of the largest tick. */
function durationsOf(ticks) {
  const [unit, size] = unitOf(most(ticks.map(Math.abs)));
  const number = (us) => Number((us / size).toPrecision(6))
    .toLocaleString("en", { maximumFractionDigits: 6 });
  return (us) => (us === 0 ? "0" : `${number(us)} ${unit}`);
}

/** A share in percent with all of its nines, rounded down, so that 100 % means every message. */
function percent(share) {
  if (share === 1 || share === 0) return `${share * 100} %`;
  // A ratio beyond 0 to 1, such as "1.44 times above", has no nines.
  if (share > 1 || share < 0) return `${digits(share * 100)} %`;
  const missing = Math.min(share, 1 - share);
  const places = Math.min(5, Math.max(1, Math.ceil(-Math.log10(missing)) - 1));
  const scale = 10 ** (places + 2);
  return `${(Math.floor(share * scale + 1e-9 * scale) / scale * 100).toFixed(places)} %`;
}

/** A name in at most this many characters. The end stays, because numbers stand there. */
function shorten(name, most_characters) {
  if (name.length <= most_characters) return name;
  const end = Math.ceil((most_characters - 1) / 2);
  return `${name.slice(0, most_characters - 1 - end)}…${name.slice(-end)}`;
}

// ---- elements ----------------------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function shape(parent, tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

let drawn = 0;
/** Width of a window below which cards stand one below the other. */
const NARROW = 820;
/** Asking a window for its width makes the browser lay out all that has changed, so it is kept. */
let windowWidth = window.innerWidth;
window.addEventListener("resize", () => { windowWidth = window.innerWidth; });
const isNarrow = () => windowWidth <= NARROW;

/** A card with a heading, a sentence, a legend and a drawing surface. */
function card(title, sentence, { wide = false, legend = [], height = 250 } = {}) {
  drawn += 1;
  // A phone gets a drawing of its own width, in which words keep their size.
  const width = isNarrow() ? Math.max(260, windowWidth - 66) : wide ? 1160 : 570;
  const made = element("section", { class: wide ? "card wide" : "card" },
    element("h3", {}, title), element("p", {}, sentence));
  if (legend.length > 0) {
    made.append(element("ul", { class: "legend" }, ...legend.map(([colour, name, dot]) =>
      element("li", {}, element("i", { style: `background:var(--${colour})`,
        class: dot ? "dot" : "" }), name))));
  }
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  shape(svg, "title", { id: `t${drawn}` }, title);
  shape(svg, "desc", { id: `d${drawn}` }, sentence);
  svg.setAttribute("aria-labelledby", `t${drawn} d${drawn}`);
  svg.dataset.chart = title;
  made.append(saver(title, () => picture(svg, title, legend)));
  made.append(svg);
  return { card: made, svg, width, height };
}

// ---- pictures that leave the page --------------------------------------------------------------

/** Style properties that a picture outside of the page must carry itself. */
const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size",
  "font-family", "font-weight"];

/** A drawing for use outside of the page, with its title, its legend and its colours. */
function picture(svg, title, legend) {
  const copy = svg.cloneNode(true);
  const [inside, outside] = [svg, copy].map((root) => [...root.querySelectorAll("*")]);
  inside.forEach((mark, i) => {
    const style = getComputedStyle(mark);
    STYLES.forEach((name) => outside[i].setAttribute(name, style.getPropertyValue(name)));
  });
  copy.querySelectorAll(".cross").forEach((line) => line.remove());
  copy.removeAttribute("tabindex");
  const { width, height } = svg.viewBox.baseVal;
  const head = legend.length > 0 ? 52 : 32;
  const size = { width, height: height + head };
  copy.setAttribute("viewBox", `0 ${-head} ${size.width} ${size.height}`);
  Object.entries(size).forEach(([name, value]) => copy.setAttribute(name, value));
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
  const words = { "font-family": "sans-serif", "font-size": 12, fill: colour("ink") };
  copy.prepend(shape(copy, "rect", { y: -head, ...size, fill: colour("card") }));
  shape(copy, "text", { ...words, x: 12, y: 20 - head, "font-size": 15 }, title);
  let at = 12;
  for (const [of, name] of legend) {
    shape(copy, "rect", { x: at, y: 36 - head, width: 16, height: 3, fill: colour(of) });
    shape(copy, "text", { ...words, x: at + 22, y: 41 - head }, name);
    at += 22 + wordWidth(name);
  }
  return copy;
}

/** A link that saves a picture, made when it is asked for. */
function saver(title, make) {
  const link = element("a", { class: "save", href: "#", download: `${title}.svg`,
    "aria-label": `save "${title}" as SVG` }, "SVG");
  link.addEventListener("click", () => {
    const text = new XMLSerializer().serializeToString(make());
    link.href = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  });
  link.picture = make;
  return link;
}

// `report.html#picture=1` shows the first picture alone, so that a headless browser can save it.
window.addEventListener("load", () => {
  const [, number] = /^#picture=(\d+)$/.exec(location.hash) || [];
  const link = document.querySelectorAll("a.save")[number - 1];
  if (link) document.body.replaceChildren(link.picture());
});

/** A part of the page that scrolls by itself, by keyboard too. */
function scroller(label, kind, ...children) {
  return element("div", { class: kind, tabindex: 0, role: "region", "aria-label": label },
    ...children);
}

function nothing(title, sentence, wide = false) {
  drawn += 1;
  return element("section", { class: wide ? "card wide" : "card" },
    element("h3", {}, title), element("div", { class: "empty" }, sentence));
}

function showTip(event, text) {
  tip.textContent = text;
  tip.style.opacity = 1;
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, window.innerWidth - box.width - 8);
  const above = event.clientY - box.height - 12;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${above < 4 ? event.clientY + 18 : above}px`;
}

const hideTip = () => { tip.style.opacity = 0; };

/** Shows a text at a mark of the drawing and says it to a screen reader: for the keyboard only,
 * since a reader would otherwise talk as long as the pointer moves. */
function sayAt(mark, text) {
  const box = mark.getBoundingClientRect();
  showTip({ clientX: box.left + box.width / 2, clientY: box.top + Math.min(20, box.height) }, text);
  document.getElementById("said").textContent = text;
}

/** Lets the keyboard walk over a drawing: `step(place)` shows place 0 to `count() - 1`. */
function walk(svg, count, step, out) {
  if (svg.hasAttribute("tabindex")) return;
  svg.setAttribute("tabindex", "0");
  let place = -1;
  const moves = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10,
    Home: -Infinity, End: Infinity };
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { out(); hideTip(); return; }
    if (!(event.key in moves)) return;
    event.preventDefault();
    place = Math.max(0, Math.min(count() - 1, place + moves[event.key]));
    step(place);
  });
  svg.addEventListener("blur", () => { out(); hideTip(); });
}

/** Text on a single mark, for the pointer and for the arrow keys. */
function explain(mark, text) {
  mark.addEventListener("pointermove", (event) => showTip(event, text));
  mark.addEventListener("pointerleave", hideTip);
  const svg = mark.ownerSVGElement;
  svg.explained = svg.explained || [];
  svg.explained.push([mark, text]);
  const leave = () => svg.explained.forEach(([other]) => other.classList.remove("at"));
  walk(svg, () => svg.explained.length, (place) => {
    leave();
    const [at, words] = svg.explained[place];
    at.classList.add("at");
    sayAt(at, words);
  }, leave);
}

/** Calls `at(x in drawing units, event)` while the pointer is over the plot, then `out`. */
function follow(svg, width, at, out) {
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    at((event.clientX - box.left) * width / box.width, event);
  });
  svg.addEventListener("pointerleave", () => { out(); hideTip(); });
}

// ---- scales ------------------------------------------------------------------------------------

function linear(from, to, low, high) {
  const span = to - from || 1;
  const place = (value) => low + (value - from) / span * (high - low);
  place.back = (at) => from + (at - low) / (high - low) * span;
  place.range = [low, high];
  return place;
}

/** Logarithmic above about `knee`, linear around zero, so that it takes negative values too. */
function tailed(from, to, low, high, knee) {
  const bend = (value) => Math.asinh(value / knee);
  const inner = linear(bend(from), bend(to), low, high);
  const place = (value) => inner(bend(value));
  place.back = (at) => Math.sinh(inner.back(at)) * knee;
  return place;
}

/** Round values of a linear axis. */
function roundTicks(from, to, wanted) {
  const raw = (to - from) / wanted || 1;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = size * ([1, 2, 2.5, 5, 10].find((times) => times * size >= raw) || 10);
  const ticks = [];
  for (let at = Math.ceil(from / step - 1e-9); at * step <= to + step * 1e-6; at += 1) {
    ticks.push(at * step);
  }
  return ticks;
}

/** Ticks of a tailed axis: 1, 2 and 5 of each decade, thinned until they are `gap` apart. */
function tailTicks(place, from, to, gap) {
  const kept = [];
  const add = (value) => {
    if (value < from || value > to) return;
    if (kept.every((other) => Math.abs(place(other) - place(value)) > gap)) kept.push(value);
  };
  add(0);
  for (const steps of [[1], [2, 5]]) {
    for (let decade = -2; decade < 9; decade += 1) {
      for (const step of steps) {
        add(step * 10 ** decade);
        add(-step * 10 ** decade);
      }
    }
  }
  return kept;
}

/** Units of width that a label takes with the space after it; a character is 6.5 wide. */
const wordWidth = (word) => word.length * 6.5 + 12;

function axisX(svg, place, ticks, top, bottom, format) {
  let free = -Infinity;
  for (const tick of [...ticks].sort((a, b) => a - b)) {
    const [x, words] = [place(tick), format(tick)];
    shape(svg, "line", { x1: x, x2: x, y1: top, y2: bottom, class: "gridline" });
    // A label that would touch the label before it is left out. Its line is drawn.
    if (x - wordWidth(words) / 2 < free) continue;
    free = x + wordWidth(words) / 2;
    shape(svg, "text", { x, y: bottom + 16, "text-anchor": "middle" }, words);
  }
  const [left, right] = place.range;
  shape(svg, "line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" });
}

function axisY(svg, place, ticks, left, right, format) {
  for (const tick of ticks) {
    const y = place(tick);
    shape(svg, "line", { x1: left, x2: right, y1: y, y2: y, class: "gridline" });
    shape(svg, "text", { x: left - 8, y: y + 4, "text-anchor": "end" }, format(tick));
  }
}

const path = (points) => points
  .map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");

// ---- distributions -----------------------------------------------------------------------------

/** Vertical scale of a CDF: shares, or the number of nines for a tail. */
function shareScale(tail, bottom, top, curves) {
  if (!tail) {
    const place = linear(0, 1, bottom, top);
    place.ticks = [0, 0.25, 0.5, 0.75, 0.9, 1].map((s) => [s, `${s * 100} %`]);
    return place;
  }
  // The bad end is the high end, except for margins, whose bad end is the low end.
  const low = curves.some((curve) => curve.low);
  const bad = (share) => (low ? share : 1 - share);
  const shares = curves.flatMap((curve) => curve.points.map(([, share]) => bad(share)));
  const finest = Math.min(0.1, least(shares.filter((share) => share > 1e-9)));
  const nines = 0.3 - Math.log10(finest);
  const [start, end] = low ? [top, bottom] : [bottom, top];
  const inner = linear(0, nines, start, end);
  const place = (share) => inner(Math.min(nines, -Math.log10(Math.max(1e-12, bad(share)))));
  place.ticks = [1, 0.5, 0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7]
    .filter((share) => -Math.log10(share) <= nines)
    .map((share) => [bad(share), `${Number(((low ? share : 1 - share) * 100).toFixed(6))} %`]);
  return place;
}

/** Value of a CDF at a share. */
function valueAt(points, share) {
  const found = points.find(([, s]) => s >= share - 1e-12);
  return (found || points[points.length - 1])[0];
}

/** The share of a CDF at or below a value. */
function shareAt(points, value) {
  let share = 0;
  for (const [v, s] of points) {
    if (v > value) break;
    share = s;
  }
  return share;
}

/** Horizontal scale of a CDF: [from, to, place]. Logarithmic where all values are well above zero;
 * else straight through zero and up to the median, and logarithmic beyond. */
function valueScale(values, curves, left, right) {
  let [from, to] = [least(values), most(values)];
  const pad = (to - from) * 0.02 || Math.abs(to) * 0.1 || 1;
  if (from > 20) from *= 0.94; else if (from >= 0) from = 0; else from -= pad;
  to += Math.abs(to) * 0.04 + pad * 0.2;
  const middle = least(curves.map((curve) => Math.abs(valueAt(curve.points, 0.5))));
  const knee = from > 20 ? from / 4 : Math.max(0.05, middle * (from < 0 ? 0.5 : 0.3));
  const x = tailed(from, to, left, right, knee);
  x.range = [left, right];
  return [from, to, x];
}

function distribution(title, sentence, curves, { tail, late = null, ...size }) {
  const shown = curves.filter((curve) => curve.points.length > 0);
  if (shown.length === 0) return nothing(title, "No message of this run was held.");
  const { card: made, svg, width, height } = card(title, sentence,
    { ...size, legend: shown.length > 1 ? shown.map((c) => [c.colour, c.name]) : [] });
  const [left, right, top, bottom] = [62, width - 12, 12, height - 36];
  const values = shown.flatMap((curve) => curve.points.map(([value]) => value));
  const [from, to, x] = valueScale(values, shown, left, right);
  const y = shareScale(tail, bottom, top, shown);
  if (late !== null && from < late) {
    const edge = Math.min(right, x(late));
    shape(svg, "rect", { x: left, y: top, width: edge - left, height: bottom - top,
      fill: "var(--shade)" });
    shape(svg, "text", { x: edge - 6, y: top + 13, "text-anchor": "end" }, "late");
  }
  const near = from > 0 && to / from < 6;
  const ticks = near ? roundTicks(from, to, 6) : tailTicks(x, from, to, 46);
  axisX(svg, x, ticks, top, bottom, durationsOf(ticks));
  for (const [share, text] of y.ticks) {
    shape(svg, "line", { x1: left, x2: right, y1: y(share), y2: y(share), class: "gridline" });
    shape(svg, "text", { x: left - 8, y: y(share) + 4, "text-anchor": "end" }, text);
  }
  for (const curve of shown) {
    const points = curve.points.map(([value, share]) => [x(value), y(share)]);
    const start = [[points[0][0], y(0)]];
    const stroke = `var(--${curve.colour})`;
    shape(svg, "path", { d: path(start.concat(points)), fill: "none", stroke, "stroke-width": 2,
      "stroke-linejoin": "round" });
    for (const share of [0.5, curve.low ? 0.01 : 0.99]) {
      const value = valueAt(curve.points, share);
      shape(svg, "circle", { cx: x(value), cy: y(share), r: 3.2, fill: `var(--${curve.colour})` });
    }
  }
  crosshair(svg, width, { x, top, bottom, left, right }, (value) =>
    [`at most ${duration(value)}:`].concat(shown.map((curve) =>
      `${percent(shareAt(curve.points, value))} ${curve.name}`)).join("\n"));
  return made;
}

/** A vertical line that follows the pointer or the arrow keys, with a text for its value. */
function crosshair(svg, width, { x, top, bottom, left, right }, text) {
  const line = shape(svg, "line", { y1: top, y2: bottom, class: "cross", visibility: "hidden" });
  const hide = () => line.setAttribute("visibility", "hidden");
  const show = (at) => {
    line.setAttribute("x1", at);
    line.setAttribute("x2", at);
    line.setAttribute("visibility", "visible");
  };
  follow(svg, width, (at, event) => {
    if (at < left || at > right) { hide(); hideTip(); return; }
    show(at);
    showTip(event, text(x.back(at)));
  }, hide);
  // A hundred presses of an arrow key, or ten of a page key, cross the drawing.
  walk(svg, () => 101, (place) => {
    const at = left + place / 100 * (right - left);
    show(at);
    sayAt(line, text(x.back(at)));
  }, hide);
}

/** A line through the points that have a value, with a gap at every other point. */
function timeLine(svg, x, y, points, value, attributes) {
  let open = [];
  const close = () => {
    if (open.length === 1) open.push([open[0][0] + 0.1, open[0][1]]);
    if (open.length > 0) shape(svg, "path",
      { d: path(open), fill: "none", "stroke-linecap": "round", ...attributes });
    open = [];
  };
  for (const point of points) {
    if (value(point) === null) close(); else open.push([x(point.at_s), y(value(point))]);
  }
  close();
}

// ---- tables and tiles ---------------------------------------------------------------------------

function table(heads, rows, numbersFrom = heads.length) {
  const cell = (tag) => (text, i) => element(tag, i >= numbersFrom ? { class: "n" } : {}, text);
  return element("table", {}, element("thead", {}, element("tr", {}, ...heads.map(cell("th")))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell("td"))))));
}

function tile(name, value, unit, note, mood = "") {
  return element("div", { class: `tile ${mood}` }, element("div", { class: "name" }, name),
    element("div", { class: "value" }, value, unit ? element("small", {}, unit) : null),
    element("div", { class: "note" }, note));
}

/** The name of the program above a page. */
function wordmark() {
  const mark = `<svg width="18" height="18" viewBox="0 0 18 18" aria-hidden="true"><g fill="none"
    stroke="currentColor" stroke-width="1.8" stroke-linecap="round"><path d="M3 2v9M9 5v6M15 1v10"/>
    <path d="M1.5 15.5h15" stroke="var(--held)"/></g></svg>`;
  const word = element("div", { class: "wordmark" });
  word.innerHTML = mark;
  word.append("evenfall");
  return word;
}
