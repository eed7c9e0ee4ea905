// The page of an experiment, drawn with charts.js. The data is the JSON of
// `evenfall_placement_survey::experiment::report::Page`; the fields have the same names.

const { description, groups, failures } = run;
const COLOURS = ["held", "raw", "good", "bad", "violet", "teal", "rose", "olive"];
document.head.append(element("style", {}, `:root { --violet: #7a4fd0; --teal: #0c8f96;
  --rose: #c2408f; --olive: #7c7a14; }
  @media (prefers-color-scheme: dark) { :root { --violet: #b39bff; --teal: #4fd0d6;
  --rose: #ff8acb; --olive: #d0cc55; } }`));
groups.forEach((group, i) => { group.colour = COLOURS[i % COLOURS.length]; });
const legend = groups.map((group) => [group.colour, group.name]);

/** One measure of the worst leaf over the windows, a line for every group. */
function overTime(name, words, key) {
  const shown = groups.filter((group) => group.series.length > 0);
  if (shown.length === 0) return nothing(name, "No tree was measured.", true);
  const { card: made, svg, width, height } = card(name, words,
    { wide: true, height: 220, legend });
  const [top, bottom, left, right] = [10, height - 26, 66, width - 14];
  const all = shown.flatMap((group) => group.series);
  const x = linear(0, most(all.map((p) => p.at_s)), left, right);
  const values = all.map((p) => p[key]);
  const [low, high] = [least(values), most(values)];
  const wide = low > 0 && high / low > 12;
  const y = wide ? tailed(low * 0.8, high * 1.15, bottom, top, low / 4)
    : linear(0, high * 1.08, bottom, top);
  const seconds = (s) => `${digits(s)} s`;
  axisX(svg, x, roundTicks(0, x.back(right), 9), top, bottom, seconds);
  const ticks = wide ? tailTicks(y, low * 0.8, high * 1.15, 24) : roundTicks(0, high * 1.08, 4);
  axisY(svg, y, ticks, left, right, durationsOf(ticks));
  for (const group of shown) {
    timeLine(svg, (s) => x(s), (v) => y(v), group.series, (p) => p[key],
      { stroke: `var(--${group.colour})`, "stroke-width": 2 });
    for (const point of group.series) {
      const dot = shape(svg, "circle", { cx: x(point.at_s), cy: y(point[key]), r: 3.4,
        fill: `var(--${group.colour})` });
      explain(dot, `${group.name}, ${seconds(point.at_s)}: ${duration(point[key])}\n`
        + `median of ${whole(point.runs)} runs`);
    }
  }
  return made;
}

/** Worst leaves of all repetitions, by group. */
function spread() {
  const title = "Worst leaf of every run";
  const runs = groups.flatMap((group) => group.runs);
  if (runs.length === 0) return nothing(title, "No tree was measured.");
  const height = 40 + groups.length * 30;
  const { card: made, svg, width } = card(title,
    "90th percentile of the worst leaf, a dot for every repetition; the stroke is their median.",
    { height });
  const [top, bottom, left, right] = [6, height - 30, 150, width - 14];
  const values = runs.map((r) => r.p90_us);
  const [low, high] = [least(values) * 0.94, most(values) * 1.04];
  const x = linear(low, high, left, right);
  const ticks = roundTicks(low, high, 6);
  axisX(svg, x, ticks, top, bottom, durationsOf(ticks));
  groups.forEach((group, lane) => {
    const y = top + 16 + lane * 30;
    shape(svg, "text", { x: left - 10, y: y + 4, "text-anchor": "end", class: "strong" },
      shorten(group.name, 22));
    for (const r of group.runs) {
      const dot = shape(svg, "circle", { cx: x(r.p90_us), cy: y, r: 4.5, opacity: 0.6,
        fill: `var(--${group.colour})` });
      explain(dot, `${r.id}, seed ${r.seed}\nworst leaf ${r.worst_leaf}: `
        + `p90 ${duration(r.p90_us)}`);
    }
    if (group.runs.length > 0) {
      const at = x(group.worst.p90_us);
      shape(svg, "line", { x1: at, x2: at, y1: y - 10, y2: y + 10, stroke: "var(--ink)",
        "stroke-width": 1.6 });
    }
  });
  return made;
}

function worstLeaves() {
  drawn += 1;
  const rows = groups.filter((group) => group.worst).map(({ name, runs, worst, timers }) => [name,
    whole(runs.length), ...[worst.p50_us, worst.p90_us, worst.p99_us, worst.mean_us,
      worst.stddev_us].map(duration), percent(worst.loss), `${digits(timers.measuring_s)} s`,
    `${digits(timers.deciding_s * 1e3)} ms`, whole(timers.probes)]);
  return element("section", { class: "card wide" }, element("h3", {}, "Worst leaves"),
    element("p", {}, "Medians over repetitions. Measuring: the time of the measurements, by the "
      + "clock of the field. Choosing: the time that this program computed."),
    table(["tree", "runs", "p50", "p90", "p99", "mean", "stddev", "lost", "measuring", "choosing",
      "probes"], rows, 1));
}

function everyRun() {
  const rows = groups.flatMap((group) => group.runs.map((r) => [r.id, String(r.seed),
    r.tree[0], r.worst_leaf, duration(r.p50_us), duration(r.p90_us), duration(r.stddev_us),
    r.bound_us === null ? "" : duration(r.bound_us), r.tree.join(" ")]));
  return element("details", {}, element("summary", {}, `${whole(rows.length)} runs as a table`),
    element("section", { class: "card", style: "margin-top:10px" },
      scroller("runs", "scroll",
        table(["run", "seed", "root", "worst leaf", "p50", "p90", "stddev", "bound", "tree"],
          rows))));
}

function leavesOfBest(group) {
  drawn += 1;
  const rows = group.leaves.map((leaf) => [leaf.host, ...[leaf.p50_us, leaf.p90_us, leaf.mean_us,
    leaf.stddev_us].map(duration)]);
  return element("section", { class: "card" }, element("h3", {}, group.name),
    element("p", {}, `Leaves of ${group.leaves_of}, the worst first.`),
    scroller(group.name, "scroll",
      table(["leaf", "p50", "p90", "mean", "stddev"], rows, 1)));
}

function best() {
  const known = groups.filter((group) => group.worst);
  known.sort((a, b) => a.worst.p90_us - b.worst.p90_us);
  return known;
}

function tilesOf() {
  return element("div", { class: "tiles" }, ...best().slice(0, 8).map((group, i, all) =>
    tile(group.name, ...spoken(group.worst.p90_us), i === 0 ? "least p90 of the worst leaf"
      : `${percent(group.worst.p90_us / all[0].worst.p90_us - 1)} above ${all[0].name}`,
    i === 0 ? "good" : "")));
}

function drawPlan() {
  const chips = [["seed", description.seed], ["field", run.field],
    ...Object.entries(description.pool || {}).map(([key, value]) => [`pool ${key}`, value])];
  const missing = description.runs.length - groups.reduce((sum, g) => sum + g.runs.length, 0);
  const notes = [...failures, ...(missing > failures.length
    ? [`${whole(missing - failures.length)} runs are missing: plan run goes on with them`] : [])];
  const curves = element("div", { class: "grid" },
    distribution("Delay of the worst leaf", "Root to the worst leaf, over all probes. Every tree is "
      + "shown by its middle repetition. Dots: median and p99.",
    groups.map((g) => ({ name: g.name, colour: g.colour, points: g.cdf })), { tail: false }),
    spread());
  document.getElementById("page").replaceChildren(wordmark(), element("h1", {}, description.title),
    element("p", { class: "lead" }, `${whole(description.runs.length)} runs of `
      + `${whole(groups.length)} kinds of trees.`),
    element("ul", { class: "chips", "aria-label": "settings" }, ...chips.map(([name, value]) =>
      element("li", {}, element("b", {}, name), String(value)))),
    notes.length === 0 ? "" : element("ul", { class: "warnings", "aria-label": "warnings" },
      ...notes.map((text) => element("li", {}, text))),
    tilesOf(),
    element("h2", {}, "How slow"), element("p", {}, "The worst leaf sets the deadline of all leaves."),
    curves,
    element("h2", {}, "Over time"),
    element("p", {}, "The worst leaf of every window; medians over repetitions."),
    element("div", { class: "grid" },
      overTime("Median over time", "50th percentile of the worst leaf.", "p50_us"),
      overTime("90th percentile over time",
        "90th percentile of the worst leaf, from which most deadlines are made.", "p90_us"),
      overTime("Standard deviation over time", "Standard deviation of the worst leaf.", "stddev_us")),
    element("h2", {}, "In numbers"), element("p", {}, "Worst leaves, then every leaf of one run."),
    element("div", { class: "grid" }, worstLeaves(),
      ...groups.filter((g) => g.worst).map(leavesOfBest)),
    everyRun(),
    element("footer", {}, "Delays are one-way and no better than the clocks that measured them. "
      + "Agents count delays in buckets an eighth of a doubling wide, in which percentiles are interpolated. "
      + "Written by evenfall."));
  document.documentElement.dataset.drawn = drawn;
}

drawPlan();
