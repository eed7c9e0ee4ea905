// The page of a run. Plain JavaScript, no libraries: it must open from a mail in ten years.
//
// The data is the JSON of `evenfall_node::report::Report`; names of fields are its. Every chart is
// a function from data to a card; `draw` at the end puts them together and notes how many it drew,
// which the test reads.
"use strict";

const errors = [];
window.addEventListener("error", (event) => {
  errors.push(String(event.message));
  document.documentElement.dataset.errors = errors.join("; ");
});

const run = JSON.parse(document.getElementById("run").textContent);
const { info, outcome, logs, warnings } = run;
const { results, series } = outcome;
const nodeNames = new Map(info.nodes.map((node) => [node.id, node.name]));
const nameOf = (id) => nodeNames.get(id) || `n${id}`;
const tip = document.getElementById("tip");

// ---- words and numbers -------------------------------------------------------------------------

const whole = (n) => Math.round(n).toLocaleString("en");

/** Three significant digits, never in exponents. */
function digits(x) {
  const size = Math.abs(x);
  if (size >= 100) return whole(x);
  return x.toFixed(size >= 10 ? 1 : 2).replace(/\.?0+$/, "") || "0";
}

/** Microseconds as a person says them: [number, unit]. */
function spoken(us) {
  const size = Math.abs(us);
  if (size >= 1e6) return [digits(us / 1e6), "s"];
  if (size >= 1e4) return [digits(us / 1e3), "ms"];
  if (size > 0 && size < 0.1) return [digits(us * 1e3), "ns"];
  return [digits(us), "µs"];
}

const duration = (us) => spoken(us).join(" ");

/** A share in per cent, with as many nines as it has. */
function percent(share) {
  if (share === 1 || share === 0) return `${share * 100} %`;
  const missing = Math.min(share, 1 - share);
  const places = Math.min(5, Math.max(1, Math.ceil(-Math.log10(missing)) - 1));
  return `${(share * 100).toFixed(places)} %`;
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

/** A card with a heading, a sentence, a legend and a drawing surface. */
function card(title, sentence, { wide = false, legend = [], height = 250 } = {}) {
  drawn += 1;
  const width = wide ? 1160 : 570;
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
  made.append(svg);
  return { card: made, svg, width, height };
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

/** Hover text on a single mark. */
function explain(mark, text) {
  mark.addEventListener("pointermove", (event) => showTip(event, text));
  mark.addEventListener("pointerleave", hideTip);
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

/** Ticks of a tailed axis: 1, 2 and 5 of each decade, thinned until they do not touch. */
function tailTicks(place, from, to) {
  const kept = [];
  const add = (value) => {
    if (value < from || value > to) return;
    if (kept.every((other) => Math.abs(place(other) - place(value)) > 46)) kept.push(value);
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

function axisX(svg, place, ticks, top, bottom, format, label) {
  for (const tick of ticks) {
    const x = place(tick);
    shape(svg, "line", { x1: x, x2: x, y1: top, y2: bottom, class: "gridline" });
    shape(svg, "text", { x, y: bottom + 16, "text-anchor": "middle" }, format(tick));
  }
  const [left, right] = place.range;
  shape(svg, "line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" });
  if (label) {
    shape(svg, "text", { x: right, y: bottom + 31, "text-anchor": "end", class: "faint" }, label);
  }
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

/** Vertical scale of a CDF: shares, or the nines that the tail has. */
function shareScale(tail, bottom, top, curves) {
  if (!tail) {
    const place = linear(0, 1, bottom, top);
    place.ticks = [0, 0.25, 0.5, 0.75, 0.9, 1].map((s) => [s, `${s * 100} %`]);
    return place;
  }
  // The bad end is the high one, but for margins: there it is the low one.
  const low = curves.some((curve) => curve.low);
  const bad = (share) => (low ? share : 1 - share);
  const shares = curves.flatMap((curve) => curve.points.map(([, share]) => bad(share)));
  const finest = Math.min(0.1, ...shares.filter((share) => share > 1e-9));
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

/** Least share at or below a value. */
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
  let [from, to] = [Math.min(...values), Math.max(...values)];
  const pad = (to - from) * 0.02 || Math.abs(to) * 0.1 || 1;
  if (from > 20) from *= 0.94; else if (from >= 0) from = 0; else from -= pad;
  to += Math.abs(to) * 0.04 + pad * 0.2;
  const least = Math.min(...curves.map((curve) => Math.abs(valueAt(curve.points, 0.5))));
  const knee = from > 20 ? from / 4 : Math.max(0.05, least * (from < 0 ? 0.5 : 0.3));
  const x = tailed(from, to, left, right, knee);
  x.range = [left, right];
  return [from, to, x];
}

function distribution(title, sentence, curves, { tail, late = null }) {
  const shown = curves.filter((curve) => curve.points.length > 0);
  if (shown.length === 0) return nothing(title, "No message of this run was held.");
  const { card: made, svg, width, height } = card(title, sentence,
    { legend: shown.length > 1 ? shown.map((c) => [c.colour, c.name]) : [] });
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
  const ticks = near ? roundTicks(from, to, 7) : tailTicks(x, from, to);
  axisX(svg, x, ticks, top, bottom, duration, "");
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

/** A vertical line that follows the pointer, with a text for the value under it. */
function crosshair(svg, width, { x, top, bottom, left, right }, text) {
  const line = shape(svg, "line", { y1: top, y2: bottom, class: "cross", visibility: "hidden" });
  follow(svg, width, (at, event) => {
    if (at < left || at > right) { line.setAttribute("visibility", "hidden"); hideTip(); return; }
    line.setAttribute("x1", at);
    line.setAttribute("x2", at);
    line.setAttribute("visibility", "visible");
    showTip(event, text(x.back(at)));
  }, () => line.setAttribute("visibility", "hidden"));
}

function distributions(tail) {
  const error = results.clock_error_us;
  const known = error === 0 ? "All processes read one clock."
    : error === "unknown" ? "Nobody offers a bound on the clocks' error."
      : `The clocks agree within ${duration(error)}.`;
  return [
    distribution("Overall multicast latency",
      "Scheduled send time to the slowest receiver, per message. Dots: median and p99.",
      [{ name: "un-held (arrival)", colour: "raw", points: series.oml },
        { name: "held (release)", colour: "held", points: series.held_oml }], { tail }),
    distribution("Delivery window", `Last receiver minus first, per message. ${known}`,
      [{ name: "at arrival", colour: "raw", points: series.arrival_window },
        { name: "at release", colour: "held", points: series.window }], { tail }),
    distribution("Release lateness",
      "Release minus deadline, read at the release, of every frame at every receiver.",
      [{ name: "frames", colour: "held", points: series.release_late }], { tail }),
    distribution("Margin",
      "Deadline minus arrival of every frame at every receiver. Dots: median and p1.",
      [{ name: "frames", colour: "held", points: series.margin, low: true }], { tail, late: 0 }),
  ];
}

// ---- over time ---------------------------------------------------------------------------------

const eventTimes = info.events.map((event) => ({ ...event,
  at_s: (event.at_ns - series.origin_ns) / 1e9 }));

const endOfTime = Math.max(...series.time.map((point) => point.at_s),
  ...eventTimes.map((event) => event.at_s), 0.1);
const startOfTime = Math.min(0, ...eventTimes.map((event) => event.at_s));

function timeAxis(svg, width, top, bottom) {
  const x = linear(startOfTime, endOfTime, 66, width - 14);
  const seconds = (s) => `${digits(s)} s`;
  axisX(svg, x, roundTicks(startOfTime, endOfTime, 9), top, bottom, seconds, "");
  for (const event of eventTimes.slice(0, 200)) {
    const at = x(event.at_s);
    shape(svg, "line", { x1: at, x2: at, y1: top, y2: bottom, class: "mark" });
  }
  return x;
}

/** Text of the step under the pointer. */
function timeTips(svg, width, x, top, bottom, text) {
  const [left, right] = x.range;
  crosshair(svg, width, { x, top, bottom, left, right }, (at) => {
    let nearest = series.time[0];
    for (const point of series.time) {
      if (Math.abs(point.at_s - at) < Math.abs(nearest.at_s - at)) nearest = point;
    }
    return `${digits(nearest.at_s)} s, ${whole(nearest.messages)} messages\n${text(nearest)}`;
  });
}

/** A line through the points that have a value; a gap where there is none. */
function timeLine(svg, x, y, value, attributes) {
  let open = [];
  const close = () => {
    if (open.length === 1) open.push([open[0][0] + 0.1, open[0][1]]);
    if (open.length > 0) shape(svg, "path", { d: path(open), fill: "none", ...attributes });
    open = [];
  };
  for (const point of series.time) {
    if (value(point) === null) close(); else open.push([x(point.at_s), y(value(point))]);
  }
  close();
}

function latencyOverTime() {
  if (series.time.length === 0) return nothing("Hold over time", "No message was sent.", true);
  const { card: made, svg, width, height } = card("Hold and latency over time",
    "The hold that the root asked for, and the un-held latency that it has to cover. Dashed: events.",
    { wide: true, height: 250, legend: [["held", "hold asked for (mean)"],
      ["raw", "un-held OML, median to p99"]] });
  const [top, bottom] = [10, height - 26];
  const x = timeAxis(svg, width, top, bottom);
  const all = series.time.flatMap((p) =>
    [p.deadline_offset_us || p.oml_p50_us, p.oml_p50_us, p.oml_p99_us]);
  const [low, high] = [Math.max(1, Math.min(...all)), Math.max(...all)];
  const wide = high / low > 12;
  const y = wide ? tailed(low * 0.8, high * 1.15, bottom, top, low / 4)
    : linear(0, high * 1.08, bottom, top);
  const ticks = wide ? tailTicks(y, low * 0.8, high * 1.15) : roundTicks(0, high * 1.08, 5);
  axisY(svg, y, ticks, 66, width - 14, duration);
  const upper = series.time.map((p) => [x(p.at_s), y(p.oml_p99_us)]);
  const lower = series.time.map((p) => [x(p.at_s), y(p.oml_p50_us)]).reverse();
  shape(svg, "path", { d: `${path(upper.concat(lower))}Z`, fill: "var(--raw)", opacity: 0.16 });
  timeLine(svg, x, y, (p) => p.oml_p99_us,
    { stroke: "var(--raw)", "stroke-width": 1, opacity: 0.7 });
  timeLine(svg, x, y, (p) => p.oml_p50_us, { stroke: "var(--raw)", "stroke-width": 1.8 });
  timeLine(svg, x, y, (p) => p.deadline_offset_us, { stroke: "var(--held)", "stroke-width": 2.2 });
  timeTips(svg, width, x, top, bottom, (p) => [
    p.deadline_offset_us === null ? "not held" : `hold ${duration(p.deadline_offset_us)}`,
    `OML p50 ${duration(p.oml_p50_us)}, p99 ${duration(p.oml_p99_us)}`].join("\n"));
  return made;
}

function fairOverTime() {
  const held = series.time.filter((point) => point.p_f !== null);
  const lost = series.time.some((point) => point.missing > 0);
  if (held.length === 0 && !lost) {
    return nothing("P(F) over time", "No message of this run was held.", true);
  }
  const { card: made, svg, width, height } = card("P(F) and losses over time",
    "Share of messages that reached every receiver by their deadline. Bars: copies never released.",
    { wide: true, height: 200,
      legend: [["good", "P(F)"]].concat(lost ? [["bad", "copies lost", true]] : []) });
  const [top, bottom] = [10, height - 26];
  const x = timeAxis(svg, width, top, bottom);
  const least = Math.min(1, ...held.map((point) => point.p_f));
  const floor = least > 0.98 ? 0.98 : least > 0.9 ? 0.9 : least > 0.5 ? 0.5 : 0;
  const y = linear(floor, 1, bottom, top);
  axisY(svg, y, roundTicks(floor, 1, 4), 66, width - 14, (s) => `${digits(s * 100)} %`);
  const most = Math.max(1, ...series.time.map((point) => point.missing));
  for (const point of series.time.filter((p) => p.missing > 0)) {
    const tall = Math.max(3, point.missing / most * (bottom - top) * 0.6);
    shape(svg, "rect", { x: x(point.at_s) - 2, y: bottom - tall, width: 4, height: tall,
      fill: "var(--bad)", rx: 1 });
  }
  timeLine(svg, x, y, (p) => p.p_f, { stroke: "var(--good)", "stroke-width": 2 });
  timeTips(svg, width, x, top, bottom, (p) => [
    p.p_f === null ? "not held" : `P(F) ${percent(p.p_f)}`,
    `${whole(p.missing)} copies lost`].join("\n"));
  return made;
}

function memoryOverTime() {
  const { card: made, svg, width, height } = card("Memory over time",
    "Resident memory of every process, from its own start. A flat line is what it should be.",
    { wide: true, height: 200 });
  const [top, bottom, left, right] = [10, height - 26, 66, width - 14];
  const last = Math.max(1, ...run.memory.flatMap((curve) => curve.seconds));
  const most = Math.max(1, ...run.memory.flatMap((curve) => curve.resident_bytes)) / 2 ** 20;
  const x = linear(0, last, left, right);
  const y = linear(0, most * 1.08, bottom, top);
  axisX(svg, x, roundTicks(0, last, 9), top, bottom, (s) => `${digits(s)} s`, "");
  axisY(svg, y, roundTicks(0, most, 4), left, right, (mib) => `${digits(mib)} MiB`);
  for (const { name, seconds, resident_bytes: bytes } of run.memory) {
    const points = seconds.map((s, i) => [x(s), y(bytes[i] / 2 ** 20)]);
    if (points.length === 0) continue;
    const [first, end] = [bytes[0], bytes[bytes.length - 1]].map((b) => digits(b / 2 ** 20));
    const line = shape(svg, "path", { d: path(points), fill: "none", stroke: "var(--held)",
      "stroke-width": 1.6, opacity: 0.6 });
    explain(line, `${name}\n${first} MiB at first, ${end} MiB at the end`);
  }
  return made;
}

const BAD_EVENTS = new Set(["suspect", "evict", "fault", "crash", "lost", "kill", "pause"]);

function eventLanes() {
  if (eventTimes.length === 0) {
    return nothing("Events", "Nothing happened: nobody joined, left or failed.", true);
  }
  const kinds = [...new Set(eventTimes.map((event) => event.kind))];
  const height = kinds.length * 26 + 40;
  const { card: made, svg, width } = card("Events",
    "Joins, suspicions, view changes, replacements and evictions, by kind.", { wide: true, height });
  const [top, bottom] = [6, height - 26];
  const x = timeAxis(svg, width, top, bottom);
  kinds.forEach((kind, lane) => {
    const y = top + 18 + lane * 26;
    shape(svg, "text", { x: 58, y: y + 4, "text-anchor": "end", class: "strong" }, kind);
    shape(svg, "line", { x1: 66, x2: width - 14, y1: y, y2: y, class: "gridline" });
    for (const event of eventTimes.filter((e) => e.kind === kind)) {
      const who = event.node === null ? "" : ` ${nameOf(event.node)}`;
      const colour = BAD_EVENTS.has(kind) ? "bad" : "held";
      const dot = shape(svg, "circle", { cx: x(event.at_s), cy: y, r: 5.5, fill: `var(--${colour})`,
        stroke: "var(--card)", "stroke-width": 1.5 });
      explain(dot, `${digits(event.at_s)} s: ${kind}${who}\n${event.text}`);
    }
  });
  const rows = eventTimes.slice(0, 500).map((event) => [`${event.at_s.toFixed(3)} s`, event.kind,
    event.node === null ? "" : nameOf(event.node), event.text]);
  made.append(element("details", {},
    element("summary", {}, `${whole(eventTimes.length)} events as a table`),
    element("div", { class: "scroll" }, table(["at", "what", "who", "in words"], rows))));
  return made;
}

// ---- by receiver and edge ----------------------------------------------------------------------

function receiverDelays() {
  const lines = series.receivers.filter((line) => line.delivered > 0)
    .sort((a, b) => a.delay_p50_us - b.delay_p50_us || a.delay_p99_us - b.delay_p99_us);
  if (lines.length === 0) {
    return nothing("Delay by receiver", "No receiver released anything.", true);
  }
  const { card: made, svg, width, height } = card("Delay by receiver",
    "Sent to arrival, per frame; receivers by rising median. A long stroke is a receiver with a tail.",
    { wide: true, height: 270, legend: [["held", "median", true], ["raw", "p99", true]] });
  const [left, right, top, bottom] = [66, width - 14, 10, height - 50];
  const values = lines.flatMap((line) => [line.delay_p50_us, line.delay_p99_us]);
  const [low, high] = [Math.min(...values) * 0.92, Math.max(...values) * 1.08];
  const y = tailed(low, high, bottom, top, Math.max(0.05, Math.abs(low) / 4));
  const ticks = high / low > 3 ? tailTicks(y, low, high) : roundTicks(low, high, 5);
  axisY(svg, y, ticks, left, right, duration);
  const step = (right - left) / lines.length;
  const radius = Math.max(1.1, Math.min(4.5, step / 3));
  const labelled = step >= 26;
  lines.forEach((line, i) => {
    const x = left + (i + 0.5) * step;
    const group = shape(svg, "g", {});
    shape(group, "line", { x1: x, x2: x, y1: y(line.delay_p50_us), y2: y(line.delay_p99_us),
      stroke: "var(--faint)", "stroke-width": Math.min(2, radius), opacity: 0.65 });
    shape(group, "circle", { cx: x, cy: y(line.delay_p99_us), r: radius, fill: "var(--raw)" });
    shape(group, "circle", { cx: x, cy: y(line.delay_p50_us), r: radius, fill: "var(--held)" });
    shape(group, "rect", { x: x - step / 2, y: top, width: step, height: bottom - top, fill: "transparent" });
    explain(group, `${nameOf(line.receiver)}\nmedian ${duration(line.delay_p50_us)}, `
      + `p99 ${duration(line.delay_p99_us)}\n${whole(line.delivered)} copies, ${whole(line.lost)} lost, `
      + `${whole(line.repaired)} repaired`);
    if (labelled) {
      shape(svg, "text", { x: x + 3, y: bottom + 14, "text-anchor": "end",
        transform: `rotate(-38 ${x + 3} ${bottom + 14})` }, nameOf(line.receiver).slice(0, 9));
    }
  });
  shape(svg, "line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" });
  if (!labelled) {
    shape(svg, "text", { x: right, y: bottom + 18, "text-anchor": "end", class: "faint" },
      `${whole(lines.length)} receivers; names on hover`);
  }
  return made;
}

function hedgeWins() {
  const title = "Hedge wins by edge";
  const edges = series.edges.filter((edge) => edge.hedge_wins > 0).slice(0, 12);
  if (edges.length === 0) return nothing(title, "No hedge was faster than the receiver's own parent.");
  const share = results.frames > 0 ? percent(results.hedge_wins / results.frames) : "0 %";
  const { card: made, svg, width, height } = card(title,
    `Frames that a sibling's copy brought first: ${share} of all. The ${edges.length} busiest edges.`,
    { height: 20 + 12 * 21 });
  const most = edges[0].hedge_wins;
  const x = linear(0, most, 150, width - 66);
  edges.forEach((edge, i) => {
    const y = 14 + i * Math.min(34, (height - 20) / edges.length);
    const group = shape(svg, "g", {});
    shape(group, "text", { x: 142, y: y + 10, "text-anchor": "end", class: "strong" },
      `${nameOf(edge.via)} → ${nameOf(edge.receiver)}`.slice(0, 24));
    shape(group, "rect", { x: 150, y, width: Math.max(2, x(edge.hedge_wins) - 150), height: 13, rx: 3,
      fill: "var(--held)" });
    shape(group, "text", { x: x(edge.hedge_wins) + 6, y: y + 10.5 }, whole(edge.hedge_wins));
    explain(group, `${nameOf(edge.via)} to ${nameOf(edge.receiver)}: ${whole(edge.hedge_wins)} wins `
      + `in ${whole(edge.frames)} frames that came over this edge first`);
  });
  return made;
}

function losses() {
  const title = "Losses, repairs, duplicates";
  drawn += 1;
  const lines = [...series.receivers].sort((a, b) =>
    b.lost - a.lost || b.repaired - a.repaired || b.duplicates - a.duplicates);
  const rows = lines.slice(0, 200).map((line) => [nameOf(line.receiver), whole(line.delivered),
    whole(line.lost), whole(line.repaired), whole(line.duplicates)]);
  const sum = results.lost === 0 ? "No copy was lost." : `${whole(results.lost)} copies were lost, `
    + `${whole(results.lost_reported)} of them reported.`;
  return element("section", { class: "card" }, element("h3", {}, title),
    element("p", {}, `${sum} ${whole(results.repaired)} came by repair. Worst receivers first.`),
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title },
      table(["receiver", "released", "lost", "repaired", "duplicates"], rows, 1)));
}

function table(heads, rows, numbersFrom = heads.length) {
  const cell = (tag) => (text, i) => element(tag, i >= numbersFrom ? { class: "n" } : {}, text);
  return element("table", {}, element("thead", {}, element("tr", {}, ...heads.map(cell("th")))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell("td"))))));
}

// ---- the page ----------------------------------------------------------------------------------

function tile(name, value, unit, note, mood = "") {
  return element("div", { class: `tile ${mood}` }, element("div", { class: "name" }, name),
    element("div", { class: "value" }, value, unit ? element("small", {}, unit) : null),
    element("div", { class: "note" }, note));
}

const timed = (name, summary, note, q = "p50") =>
  tile(name, ...spoken(summary[q]), `${note}p99 ${duration(summary.p99)}, max ${duration(summary.max)}`);

function tiles() {
  const error = results.clock_error_us;
  const clock = error === 0 ? "one clock, no error" : error === "unknown" ? "clock error unknown"
    : `clock error ±${duration(error)}`;
  const held = results.p_f !== null;
  const fair = held ? tile("P(F): on time everywhere", ...percent(results.p_f).split(" "),
    `${whole(results.late_messages)} of ${whole(results.messages)} messages late`,
    results.p_f >= 0.99 ? "good" : results.p_f < 0.9 ? "bad" : "")
    : tile("P(F): on time everywhere", "–", "", "no message was held");
  const window = tile("Delivery window, median", ...spoken(results.window_us.p50),
    `p99 ${duration(results.window_us.p99)}; ${clock}`);
  const lost = tile("Lost", whole(results.lost), "copies", `${whole(results.delivered)} released, `
    + `${whole(results.repaired)} repaired`, results.lost === 0 ? "good" : "bad");
  const hedges = results.frames > 0 ? percent(results.hedge_wins / results.frames) : "0 %";
  return element("div", { class: "tiles" }, fair, lost, window,
    timed("Held OML, median", results.held_oml_us, ""),
    timed("Un-held OML, median", results.oml_us, ""),
    timed("Release lateness, median", results.release_late_us, ""),
    timed("Hold, median", results.hold_us, ""),
    tile("Hedge wins", ...hedges.split(" "), `${whole(results.duplicates_dropped)} duplicates dropped`));
}

function heading() {
  const mark = `<svg width="18" height="18" viewBox="0 0 18 18" aria-hidden="true"><g fill="none"
    stroke="currentColor" stroke-width="1.8" stroke-linecap="round"><path d="M3 2v9M9 5v6M15 1v10"/>
    <path d="M1.5 15.5h15" stroke="var(--held)"/></g></svg>`;
  const word = element("div", { class: "wordmark" });
  word.innerHTML = mark;
  word.append("evenfall");
  const settings = Object.entries(info.settings).map(([name, value]) => element("li", {},
    element("b", {}, name), typeof value === "object" ? JSON.stringify(value) : String(value)));
  const when = series.origin_ns > 1e18 ? `${new Date(series.origin_ns / 1e6).toISOString()
    .replace("T", " ").slice(0, 19)} UTC. ` : "";
  const lead = `${when}${whole(results.messages)} messages to ${whole(results.receivers)} receivers.`;
  return [word, element("h1", {}, info.title), element("p", { class: "lead" }, lead),
    element("ul", { class: "chips", "aria-label": "settings" }, ...settings)];
}

function numbers() {
  const keys = Object.entries(results).filter(([, v]) => typeof v === "object" && v !== null);
  const rows = keys.map(([key, s]) => [key.replace(/_us$/, "").replaceAll("_", " "),
    ...[s.p50, s.p90, s.p99, s.max].map(duration)]);
  const files = logs.map((log) => [log.file, log.name, log.role, whole(log.records), log.tail]);
  return element("details", {}, element("summary", {}, "All numbers, and what they were read from"),
    element("section", { class: "card", style: "margin-top:10px" },
      table(["", "p50", "p90", "p99", "max"], rows, 1)),
    files.length === 0 ? null : element("section", { class: "card scroll", style: "margin-top:10px" },
      table(["file", "name", "role", "records", "end"], files)));
}

function tailSwitch(grid) {
  const fill = (tail) => grid.replaceChildren(...distributions(tail));
  const buttons = [["shares", false], ["tails", true]].map(([name, tail]) => {
    const button = element("button", { type: "button", "aria-pressed": String(!tail) }, name);
    button.addEventListener("click", () => {
      buttons.forEach((b) => b.setAttribute("aria-pressed", String(b === button)));
      fill(tail);
    });
    return button;
  });
  fill(false);
  return element("div", { class: "switch", role: "group", "aria-label": "vertical axis" }, ...buttons);
}

function draw() {
  const curves = element("div", { class: "grid" });
  const toggle = tailSwitch(curves);
  const page = document.getElementById("page");
  page.replaceChildren(...heading(),
    warnings.length === 0 ? "" : element("ul", { class: "warnings", "aria-label": "warnings" },
      ...warnings.map((text) => element("li", {}, text))),
    tiles(),
    element("h2", {}, "How even"),
    element("p", {}, "Distributions over messages and frames. The horizontal axis is logarithmic away from zero; "
      + "switch to tails to see the nines."),
    toggle, curves,
    element("h2", {}, "Over time"), element("p", {}, "What the root asked for, and what came of it."),
    element("div", { class: "grid" }, latencyOverTime(), fairOverTime(), eventLanes(),
      ...(run.memory?.length > 0 ? [memoryOverTime()] : [])),
    element("h2", {}, "Who"), element("p", {}, "Receivers and edges by name."),
    element("div", { class: "grid" }, receiverDelays(), hedgeWins(), losses()),
    numbers(),
    element("footer", {}, "Times are measured on the synchronised clock at the release itself, and are "
      + "no better than it. Written by evenfall."));
  document.documentElement.dataset.drawn = drawn;
}

draw();
