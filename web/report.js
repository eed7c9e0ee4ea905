// The page of a run, drawn with charts.js.
//
// The data is the JSON of `evenfall_multicast_service::report::Report`; the fields have the same
// names. `draw` at the end puts the cards together and notes their number for the test.
const { info, outcome, logs, warnings } = run;
const { results, series } = outcome;
const nodeNames = new Map(info.nodes.map((node) => [node.id, node.name]));
const nameOf = (id) => nodeNames.get(id) || `n${id}`;

/** What all receivers' names begin with, such as `receiver-`. */
const sharedStart = (() => {
  const names = info.nodes.filter((node) => node.role === "receiver").map((node) => node.name);
  if (names.length < 2) return "";
  let shared = names[0];
  for (const name of names) {
    while (!name.startsWith(shared)) shared = shared.slice(0, -1);
  }
  // A number is not cut in two, and no name becomes empty.
  return shared.replace(/[^-_.]*$/, "");
})();
const shortName = (id) => nameOf(id).slice(nameOf(id).startsWith(sharedStart) ? sharedStart.length : 0);

/** The limits of the true window by the errors of the clocks. Empty where the limits are equal. */
function limits([from, to]) {
  if (from === to) return "";
  return to === null ? "at least " + duration(from) : `${duration(from)} to ${duration(to)}`;
}

function distributions(tail) {
  const error = results.clock_error_us;
  const known = error === 0 ? "All processes read one clock."
    : error === "unknown" ? "At least one process states no bound on its clock's error."
      : `The clocks agree within ${duration(error)}.`;
  const between = limits(results.window_between_us.p50);
  const median = between === "" ? "" : ` So the median at release is ${between}.`;
  return [
    distribution("Overall multicast latency",
      "Scheduled send time to the slowest receiver, per message. Dots: median and p99.",
      [{ name: "un-held (arrival)", colour: "raw", points: series.oml },
        { name: "held (release)", colour: "held", points: series.held_oml }], { tail }),
    distribution("Delivery window", `Last receiver minus first, per message. ${known}${median}`,
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

const times = series.time.concat(eventTimes).map((point) => point.at_s);
const endOfTime = Math.max(0.1, most(times));
// The feed begins at zero. The rehearsal before it has only events, which stand at the left edge.
const startOfTime = series.time.length === 0 ? Math.min(0, least(times))
  : Math.max(Math.min(0, least(times)), -0.04 * endOfTime);
const timePlace = (x, at_s) => x(Math.max(startOfTime, at_s));

function timeAxis(svg, width, top, bottom) {
  const x = linear(startOfTime, endOfTime, 66, width - 14);
  const seconds = (s) => `${digits(s)} s`;
  axisX(svg, x, roundTicks(startOfTime, endOfTime, width > 800 ? 9 : 4), top, bottom, seconds);
  for (const at of together(eventTimes, x).keys()) {
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

function latencyOverTime() {
  if (series.time.length === 0) return nothing("Hold over time", "No message was sent.", true);
  const { card: made, svg, width, height } = card("Hold and latency over time",
    "The hold that the root asked for, and the un-held latency that it has to cover. Dashed: events.",
    { wide: true, height: 250, legend: [["held", "hold asked for (mean)"],
      ["raw", "un-held OML, median to p99"]] });
  const [top, bottom] = [10, height - 26];
  const x = timeAxis(svg, width, top, bottom);
  const all = series.time.flatMap((p) =>
    [p.hold_us || p.oml_p50_us, p.oml_p50_us, p.oml_p99_us]);
  const [low, high] = [Math.max(1, least(all)), most(all)];
  const wide = high / low > 12;
  const y = wide ? tailed(low * 0.8, high * 1.15, bottom, top, low / 4)
    : linear(0, high * 1.08, bottom, top);
  const ticks = wide ? tailTicks(y, low * 0.8, high * 1.15, 24) : roundTicks(0, high * 1.08, 5);
  axisY(svg, y, ticks, 66, width - 14, durationsOf(ticks));
  const upper = series.time.map((p) => [x(p.at_s), y(p.oml_p99_us)]);
  const lower = series.time.map((p) => [x(p.at_s), y(p.oml_p50_us)]).reverse();
  shape(svg, "path", { d: `${path(upper.concat(lower))}Z`, fill: "var(--raw)", opacity: 0.16 });
  timeLine(svg, x, y, series.time, (p) => p.oml_p99_us,
    { stroke: "var(--raw)", "stroke-width": 1, opacity: 0.7 });
  timeLine(svg, x, y, series.time, (p) => p.oml_p50_us, { stroke: "var(--raw)", "stroke-width": 1.8 });
  timeLine(svg, x, y, series.time, (p) => p.hold_us, { stroke: "var(--held)", "stroke-width": 2.2 });
  timeTips(svg, width, x, top, bottom, (p) => [
    p.hold_us === null ? "not held" : `hold ${duration(p.hold_us)}`,
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
  const worst = Math.min(1, least(held.map((point) => point.p_f)));
  const floor = worst > 0.98 ? 0.98 : worst > 0.9 ? 0.9 : worst > 0.5 ? 0.5 : 0;
  const y = linear(floor, 1, bottom, top);
  axisY(svg, y, roundTicks(floor, 1, 4), 66, width - 14, (s) => `${digits(s * 100)} %`);
  const highest = most(series.time.map((point) => point.missing));
  for (const point of series.time.filter((p) => p.missing > 0)) {
    const tall = Math.max(3, point.missing / highest * (bottom - top) * 0.6);
    shape(svg, "rect", { x: x(point.at_s) - 2, y: bottom - tall, width: 4, height: tall,
      fill: "var(--bad)", rx: 1 });
  }
  timeLine(svg, x, y, series.time, (p) => p.p_f, { stroke: "var(--good)", "stroke-width": 2 });
  timeTips(svg, width, x, top, bottom, (p) => [
    p.p_f === null ? "not held" : `P(F) ${percent(p.p_f)}`,
    `${whole(p.missing)} copies lost`].join("\n"));
  return made;
}

/** Lines that are named at their right end. More names would overlap. */
const NAMED_LINES_MAX = 8;

function memoryOverTime() {
  const curves = run.memory.filter((curve) => curve.seconds.length > 0)
    .map(({ name, seconds, resident_bytes: bytes }) =>
      ({ name, seconds, mib: bytes.map((b) => b / 2 ** 20) }));
  const grown = (curve) => curve.mib[curve.mib.length - 1] - curve.mib[0];
  const [most_grown] = [...curves].sort((a, b) => grown(b) - grown(a));
  const those = logs.length > curves.length
    ? `${curves.length} of ${whole(logs.length)} processes, the largest` : "Every process";
  const { card: made, svg, width, height } = card("Memory over time",
    `${those}: resident memory from its own start. `
    + `${most_grown.name} grew most: from ${digits(most_grown.mib[0])} MiB by `
    + `${digits(grown(most_grown))} MiB.`, { wide: true, height: 220 });
  const [top, bottom, left, right] = [10, height - 26, 66, width - 110];
  const last = Math.max(1, most(curves.flatMap((curve) => curve.seconds)));
  const highest = Math.max(1, most(curves.flatMap((curve) => curve.mib)));
  const x = linear(0, last, left, right);
  const y = linear(0, highest * 1.08, bottom, top);
  axisX(svg, x, roundTicks(0, last, 9), top, bottom, (s) => `${digits(s)} s`);
  axisY(svg, y, roundTicks(0, highest, 4), left, right, (mib) => `${digits(mib)} MiB`);
  let free = -Infinity;
  let named = 0;
  const ends = [...curves].sort((a, b) => b.mib[b.mib.length - 1] - a.mib[a.mib.length - 1]);
  for (const { name, seconds, mib } of ends) {
    const line = shape(svg, "path", { d: path(seconds.map((s, i) => [x(s), y(mib[i])])),
      fill: "none", stroke: "var(--held)", "stroke-width": 1.6, opacity: 0.6 });
    const end = mib.length - 1;
    explain(line, `${name}\n${digits(mib[0])} MiB at first, ${digits(mib[end])} MiB at the end`);
    const at = y(mib[end]);
    if (at < free || named === NAMED_LINES_MAX) continue;
    [free, named] = [at + 14, named + 1];
    shape(svg, "text", { x: x(seconds[end]) + 6, y: at + 4 }, shorten(name, 15));
  }
  return made;
}

/** The offset that each process added to its local clock, and the bound that it stated. */
function clocksOverTime() {
  const curves = run.clocks.map(({ name, at_ns: at, moved_us: moved, bound_us: bounds }) => ({ name,
    points: at.map((ns, i) => ({ at_s: (ns - series.origin_ns) / 1e9, moved: moved[i], bound: bounds[i] })) }));
  const points = curves.flatMap((curve) => curve.points);
  const { card: made, svg, width, height } = card("Clocks over time",
    "Above: the offset that each process added to its local clock, less its first offset. "
    + "Below: the bound on the clock's error that the process stated. A gap: no bound. "
    + "Of more than 32 processes, those with the widest bounds are shown.",
    { wide: true, height: 320, legend: [["held", "offset"], ["raw", "bound"]] });
  const [top, middle, bottom] = [10, 140, height - 26];
  const ends = points.map((point) => point.at_s);
  const x = linear(least(ends), Math.max(least(ends) + 0.1, most(ends)), 66, width - 14);
  axisX(svg, x, roundTicks(least(ends), most(ends), 9), top, bottom, (s) => `${digits(s)} s`);
  const part = (value, colour, from, to, low, high) => {
    const y = linear(low, high, to, from);
    const ticks = roundTicks(low, high, 4);
    axisY(svg, y, ticks, 66, width - 14, durationsOf(ticks));
    for (const curve of curves) {
      timeLine(svg, x, y, curve.points, value,
        { stroke: `var(--${colour})`, "stroke-width": 1.4, opacity: 0.6 });
    }
  };
  const moved = points.map((point) => point.moved);
  const [low, high] = [Math.min(0, least(moved)), Math.max(0, most(moved))];
  part((point) => point.moved, "held", top, middle, low, high > low ? high : low + 1);
  const bounds = points.map((point) => point.bound).filter((bound) => bound !== null);
  part((point) => point.bound, "raw", middle + 24, bottom, 0, Math.max(0.001, most(bounds)) * 1.08);
  const [left, right] = [66, width - 14];
  crosshair(svg, width, { x, top, bottom, left, right }, (at) => {
    const away = (point) => Math.abs(point.at_s - at);
    const lines = curves.slice(0, NAMED_LINES_MAX).map(({ name, points: own }) => {
      const nearest = own.reduce((a, b) => (away(b) < away(a) ? b : a));
      const bound = nearest.bound === null ? "no bound" : `within ${duration(nearest.bound)}`;
      return `${name}: ${duration(nearest.moved)}, ${bound}`;
    });
    return [`${digits(at)} s`, ...lines].join("\n");
  });
  return made;
}

const BAD_EVENTS = new Set(["suspect", "evict", "fault", "crash", "lost", "kill", "pause"]);

/** Events that fall on one place of the drawing: [x, events]. Five thousand joins are one dot. */
function together(events, x) {
  const places = new Map();
  for (const event of events) {
    const at = Math.round(timePlace(x, event.at_s) / 4) * 4;
    if (!places.has(at)) places.set(at, []);
    places.get(at).push(event);
  }
  return places;
}

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
    const colour = BAD_EVENTS.has(kind) ? "bad" : "held";
    for (const [at, events] of together(eventTimes.filter((e) => e.kind === kind), x)) {
      const dot = shape(svg, "circle", { cx: at, cy: y, r: Math.min(9, 5 + Math.log2(events.length)),
        fill: `var(--${colour})`, stroke: "var(--card)", "stroke-width": 1.5 });
      const more = events.length > 3 ? `\nand ${whole(events.length - 3)} more` : "";
      explain(dot, events.slice(0, 3).map((event) => `${digits(event.at_s)} s: ${kind}`
        + `${event.node === null ? "" : ` ${nameOf(event.node)}`} ${event.text}`).join("\n") + more);
    }
  });
  const rows = eventTimes.slice(0, ROWS_MAX).map((event) => [`${event.at_s.toFixed(3)} s`, event.kind,
    event.node === null ? "" : nameOf(event.node), event.text]);
  made.append(element("details", {},
    element("summary", {}, `${firstOf(rows.length, eventTimes.length)} events as a table`),
    scroller("events", "scroll", table(["at", "what", "who", "in words"], rows))));
  return made;
}

/** Most rows of a table: more than a person reads, and few enough for a browser to lay out fast. */
const ROWS_MAX = 200;
/** The number of rows of a table as text, such as "200 of 5,000" when it shows only some. */
const firstOf = (shown, all) => (shown < all ? `${whole(shown)} of ${whole(all)}` : whole(all));

// ---- by receiver and edge ----------------------------------------------------------------------

function receiverDelays() {
  const lines = series.receivers.filter((line) => line.delivered > 0)
    .sort((a, b) => a.delay_p50_us - b.delay_p50_us || a.delay_p99_us - b.delay_p99_us);
  if (lines.length === 0) {
    return nothing("Delay by receiver", "No receiver released anything.", true);
  }
  const { card: made, svg, width, height } = card("Delay by receiver",
    "Sent to arrival, per frame; receivers by rising median. A long stroke is a receiver with a tail."
    + (sharedStart === "" ? "" : ` Names without "${sharedStart}".`),
    { wide: true, height: 270, legend: [["held", "median", true], ["raw", "p99", true]] });
  const [left, right, top, bottom] = [66, width - 14, 10, height - 50];
  const values = lines.flatMap((line) => [line.delay_p50_us, line.delay_p99_us]);
  const [low, high] = [least(values) * 0.92, most(values) * 1.08];
  const y = tailed(low, high, bottom, top, Math.max(0.05, Math.abs(low) / 4));
  const ticks = high / low > 8 ? tailTicks(y, low, high, 24) : roundTicks(low, high, 5);
  axisY(svg, y, ticks, left, right, durationsOf(ticks));
  const step = (right - left) / lines.length;
  const size = Math.max(1.6, Math.min(9, step * 0.7));
  const places = lines.map((line, i) =>
    [left + (i + 0.5) * step, y(line.delay_p50_us), y(line.delay_p99_us)]);
  // Three paths draw all receivers. With three elements each, 5,000 receivers would need 15,000.
  const all = (d, colour, attributes) => shape(svg, "path", { d: places.map(d).join(""),
    stroke: `var(--${colour})`, fill: "none", "stroke-linecap": "round", ...attributes });
  const dot = (at, height) => `M${at.toFixed(2)} ${height.toFixed(2)}h0.01`;
  all(([at, p50, p99]) => `M${at.toFixed(2)} ${p50.toFixed(2)}V${p99.toFixed(2)}`, "faint",
    { "stroke-width": Math.min(2, size / 2), opacity: 0.65 });
  all(([at, , p99]) => dot(at, p99), "raw", { "stroke-width": size });
  all(([at, p50]) => dot(at, p50), "held", { "stroke-width": size });
  const x = linear(0, lines.length, left, right);
  x.range = [left, right];
  crosshair(svg, width, { x, top, bottom, left, right }, (place) => {
    const line = lines[Math.min(lines.length - 1, Math.max(0, Math.floor(place)))];
    return `${nameOf(line.receiver)}\nmedian ${duration(line.delay_p50_us)}, `
      + `p99 ${duration(line.delay_p99_us)}\n${whole(line.delivered)} copies, `
      + `${whole(line.lost)} lost, ${whole(line.repaired)} repaired`;
  });
  if (step >= 26) {
    lines.forEach((line, i) => {
      const at = places[i][0] + 3;
      shape(svg, "text", { x: at, y: bottom + 14, "text-anchor": "end",
        transform: `rotate(-38 ${at} ${bottom + 14})` }, shorten(shortName(line.receiver), 9));
    });
  } else {
    shape(svg, "text", { x: right, y: bottom + 18, "text-anchor": "end", class: "faint" },
      `${whole(lines.length)} receivers; the pointer and the arrow keys name them`);
  }
  shape(svg, "line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" });
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
  const x = linear(0, edges[0].hedge_wins, 150, width - 66);
  edges.forEach((edge, i) => {
    const y = 14 + i * Math.min(34, (height - 20) / edges.length);
    const group = shape(svg, "g", {});
    shape(group, "text", { x: 142, y: y + 10, "text-anchor": "end", class: "strong" },
      `${shorten(nameOf(edge.via), 11)} → ${shorten(nameOf(edge.receiver), 11)}`);
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
  const rows = lines.slice(0, ROWS_MAX).map((line) => [nameOf(line.receiver), whole(line.delivered),
    whole(line.lost), whole(line.repaired), whole(line.duplicates)]);
  const sum = results.lost === 0 ? "No copy was lost." : `${whole(results.lost)} copies were lost, `
    + `${whole(results.lost_reported)} of them reported.`;
  return element("section", { class: "card" }, element("h3", {}, title),
    element("p", {}, `${sum} ${whole(results.repaired)} came by repair. ${firstOf(rows.length, lines.length)} receivers, `
      + "the worst first."),
    scroller(title, "scroll",
      table(["receiver", "released", "lost", "repaired", "duplicates"], rows, 1)));
}

// ---- the page ----------------------------------------------------------------------------------

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
  const between = limits(results.window_between_us.p50);
  const window = tile("Delivery window, median", ...spoken(results.window_us.p50),
    `${between === "" ? "" : `in truth ${between}; `}p99 ${duration(results.window_us.p99)}; ${clock}`);
  const lost = tile("Lost", whole(results.lost), "copies", `${whole(results.delivered)} released, `
    + `${whole(results.repaired)} repaired`, results.lost === 0 ? "good" : "bad");
  const hedges = results.frames > 0 ? percent(results.hedge_wins / results.frames) : "0 %";
  return element("div", { class: "tiles" }, fair, lost, window,
    timed("Held OML, median", results.held_oml_us, ""),
    timed("Un-held OML, median", results.oml_us, ""),
    timed("Release lateness, median", results.release_late_us, ""),
    timed("Wait, median", results.wait_us, ""),
    tile("Hedge wins", ...hedges.split(" "), `${whole(results.duplicates_dropped)} duplicates dropped`));
}

function heading() {
  const settings = Object.entries(info.settings).map(([name, value]) => element("li", {},
    element("b", {}, name), typeof value === "object" ? JSON.stringify(value) : String(value)));
  const when = info.started_unix_s > 0 ? `${new Date(info.started_unix_s * 1e3).toISOString()
    .replace("T", " ").slice(0, 19)} UTC. ` : "";
  const lead = `${when}${whole(results.messages)} messages to ${whole(results.receivers)} receivers.`;
  return [wordmark(), element("h1", {}, info.title), element("p", { class: "lead" }, lead),
    element("p", { class: `verdict ${run.mood}` }, run.verdict),
    element("ul", { class: "chips", "aria-label": "settings" }, ...settings)];
}

function numbers() {
  const keys = Object.entries(results).filter(([, v]) => typeof v === "object" && v !== null);
  const cell = (value) => (Array.isArray(value) ? limits(value) || duration(value[0])
    : duration(value));
  const rows = keys.map(([key, s]) => [key.replace(/_us$/, "").replaceAll("_", " "),
    ...[s.p50, s.p90, s.p99, s.max].map(cell)]);
  const files = logs.slice(0, ROWS_MAX).map((log) => [log.file, log.name, log.role, whole(log.records), log.tail]);
  return element("details", {}, element("summary", {}, "All numbers, and the logs behind them"),
    element("section", { class: "card", style: "margin-top:10px" },
      table(["", "p50", "p90", "p99", "max"], rows, 1)),
    files.length === 0 ? null : element("section", { class: "card", style: "margin-top:10px" },
      element("p", {}, `${firstOf(files.length, logs.length)} logs.`),
      scroller("logs", "scroll", table(["file", "name", "role", "records", "end"], files))));
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

/** Warnings above the figures. The rest of a long list opens when the reader asks for it. */
const WARNINGS_MAX = 6;

function notes() {
  if (warnings.length === 0) return "";
  const items = (texts) => texts.map((text) => element("li", {}, text));
  const list = element("ul", { class: "warnings", "aria-label": "warnings" },
    ...items(warnings.slice(0, WARNINGS_MAX)));
  const rest = warnings.slice(WARNINGS_MAX);
  if (rest.length > 0) {
    const shown = rest.slice(0, ROWS_MAX);
    list.append(element("li", {}, element("details", {},
      element("summary", {}, `and ${firstOf(shown.length, rest.length)} more`),
      scroller("more warnings", "scroll", element("ul", {}, ...items(shown))))));
  }
  return list;
}

/** Cards beside each other. A card that fails does not keep the others from being drawn. */
const grid = (...cards) => element("div", { class: "grid" },
  ...cards.filter((card) => card).map(([title, make]) => attempt(title, make)));

function draw() {
  const curves = element("div", { class: "grid" });
  const page = document.getElementById("page");
  page.replaceChildren(...heading(), notes(),
    attempt("Figures", tiles),
    element("h2", {}, "How even"),
    element("p", {}, "Distributions over messages and frames. The horizontal axis is logarithmic away from zero; "
      + "switch to tails to see the nines."),
    attempt("Distributions", () => tailSwitch(curves)), curves,
    element("h2", {}, "Over time"),
    element("p", {}, "The holds that the root set, and the latencies that followed."),
    grid(["Hold over time", latencyOverTime], ["P(F) over time", fairOverTime],
      ["Events", eventLanes],
      run.clocks.length > 0 && ["Clocks over time", clocksOverTime],
      run.memory.some((curve) => curve.seconds.length > 0) && ["Memory over time", memoryOverTime]),
    element("h2", {}, "Who"), element("p", {}, "Receivers and edges by name."),
    grid(["Delay by receiver", receiverDelays], ["Hedge wins by edge", hedgeWins],
      ["Losses, repairs, duplicates", losses]),
    attempt("All numbers", numbers),
    element("footer", {}, "Times are measured at the release itself, on the synchronised clock, and are "
      + "no better than this clock. Written by evenfall."));
  document.documentElement.dataset.drawn = drawn;
}

draw();
