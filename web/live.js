// The live page of a run, drawn with charts.js.
//
// The data comes from `/live?after=TICK` of `evenfall watch`, four times a second: the JSON of
// `RunPicture` in apps/cli/src/watch/picture.rs, the events, and the rows of `HistoryPoint` after
// the last tick. The page takes no orders, and every name is text and never markup.

/** Steps of a cell's colour between no delay and the hold. Cells with one class share one style, so that a
 * thousand of them are drawn at once. */
const LOADS = 12;
document.head.append(element("style", {}, `
  .two { font-size: 14px; color: var(--soft); margin: -6px 0 16px; max-width: 110ch; }
  .verdict.idle { border-left-color: var(--faint); } .verdict.warn { border-left-color: var(--raw); }
  .live h1 { margin-bottom: 10px; }
  .live .tiles { grid-template-columns: repeat(6, minmax(0, 1fr)); }
  .live .tile .value { font-size: 22px; white-space: nowrap; } .live .tile { padding: 10px 13px 8px; }
  .live .tile svg { width: 100%; height: 34px; display: block; margin-top: 4px; }
  .tile svg path { fill: none; stroke: var(--held); stroke-width: 1.6; vector-effect: non-scaling-stroke; }
  .tree { display: flex; flex-wrap: wrap; gap: 10px; align-items: flex-start; }
  .branch { border: 1px solid var(--line); border-radius: 9px; padding: 7px 8px; background: var(--page);
    max-width: 100%; font-size: 12.5px; }
  .branch .tree { gap: 7px; margin-top: 6px; }
  .leaves { display: flex; flex-wrap: wrap; gap: 3px; margin-top: 6px; max-width: 246px; }
  .leaves:empty { display: none; }
  .node { font: inherit; font-size: 12.5px; color: var(--ink); background: none; border: 0; padding: 0;
    cursor: pointer; text-align: left; font-variant-numeric: tabular-nums; }
  .leaf { width: 20px; height: 20px; border-radius: 4px; font-size: 12px; line-height: 20px;
    text-align: center; background: var(--cell); color: var(--cell-ink); }
  .many .leaf { width: 13px; height: 13px; line-height: 13px; font-size: 9px; border-radius: 3px; }
  .many .leaves { gap: 2px; max-width: 180px; }
  .many .branch { padding: 4px 6px; } .many .branch .branch { display: flex; padding: 2px 4px; }
  .many .branch .tree, .many .branch .branch .leaves { gap: 3px; margin-top: 0; }
  .many .branch .branch .inner { line-height: 13px; white-space: nowrap; }
  .many .branch .branch .inner::before { margin-right: 4px; }
  .named .leaf { width: auto; padding: 0 6px; }
  .named .leaves { max-width: 620px; }
  .inner::before { content: ""; display: inline-block; width: 10px; height: 10px; border-radius: 50%;
    margin-right: 6px; background: var(--cell); vertical-align: 0; }
  .node small { color: var(--soft); margin-left: 6px; }
  .node.at { outline: 2px solid var(--ink); outline-offset: 1px; }
  .node.aunt { outline: 2px dashed var(--held); outline-offset: 1px; }
  .good { --cell: color-mix(in srgb, var(--good) calc(18% + var(--load, 0) * .7%), var(--card));
    --cell-ink: var(--ink); }
  .warn { --cell: var(--raw); --cell-ink: #1b2430; } .bad { --cell: var(--bad); --cell-ink: #fff; }
  .idle { --cell: var(--line); --cell-ink: var(--soft); }
  ${Array.from({ length: LOADS + 1 }, (_, i) => `.load-${i} { --load: ${60 * i / LOADS}; }`).join(" ")}
  .keys { display: flex; flex-wrap: wrap; gap: 4px 14px; font-size: 12.5px; color: var(--soft);
    margin: 10px 0 0; padding: 0; list-style: none; }
  .keys i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 5px;
    background: var(--cell); vertical-align: -1px; }
  .chosen table { max-width: 560px; } .chosen h3 button { float: right; }
  .chosen { margin-top: 12px; }
  @media print { .node, .keys i, .inner::before { print-color-adjust: exact; } .branch { break-inside: avoid; } }
  @media (max-width: 1100px) { .live .tiles { grid-template-columns: repeat(3, minmax(0, 1fr)); } }
  @media (max-width: 820px) { .live .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); }
    .named .leaves { max-width: 290px; } .two { font-size: 13px; } .verdict { font-size: 15.5px; } }
`));

// ---- what has come so far ------------------------------------------------------------------------

const COLUMNS = ["tick", "at_s", "rate", "share", "hold", "oml50", "oml99", "window50", "window99",
  "late50", "late99", "lost"];
/** Points that the page keeps. The watcher thins its own points by the same rule. */
const POINTS_MAX = 4096;
let points = [];
let tick = 0;
let seen = null;
let events = [];
/** The name of the chosen node's id; null when none is chosen. */
let chosen = null;
/** p99 of every node over time, one value a second: id to list. */
const lines = new Map();
let span = 60;

const worse = (a, b, pick) => (a === null ? b : b === null ? a : pick(a, b));

/** Two neighbouring points as one. Nothing bad disappears. */
function join(a, b) {
  const made = {};
  for (const key of COLUMNS) {
    made[key] = key === "tick" || key === "at_s" ? b[key] : key === "lost" ? a.lost + b.lost
      : worse(a[key], b[key], key === "share" ? Math.min : Math.max);
  }
  return made;
}

function addPoints(rows) {
  for (const row of rows) points.push(Object.fromEntries(COLUMNS.map((key, i) => [key, row[i]])));
  if (points.length <= POINTS_MAX) return;
  const half = Math.floor(points.length / 2);
  const old = [];
  for (let i = 0; i < half; i += 2) old.push(i + 1 < half ? join(points[i], points[i + 1]) : points[i]);
  points = old.concat(points.slice(half));
}

// ---- the parts of the page -----------------------------------------------------------------------

const WORDS = { good: "Fair", warn: "Take care", bad: "Trouble", idle: "" };
const verdict = element("p", { class: "verdict idle", role: "status" }, "Waiting for the first look.");
const total = element("p", { class: "two" });
const title = element("h1", {}, "A run of evenfall");
const tiles = element("div", { class: "tiles" });
const tree = element("section", { class: "card wide" });
const charts = element("div", { class: "grid" });
const happened = element("section", { class: "card wide" });

function setText(made, text) {
  if (made.textContent !== text) made.textContent = text;
}

/** The six figures: name, value of the last ten seconds, note, and the line of the last minute. */
function figures() {
  const { span: s, rate } = seen;
  const share = s.on_time_share;
  const bound = seen.clock === "same" ? "one clock" : seen.clock_bound === null
    ? "clock error unknown" : `clocks ±${duration(seen.clock_bound)}`;
  const held = seen.hold !== null;
  return [
    ["messages/s", rate === null ? ["–", ""] : [whole(rate), ""], `${whole(seen.messages)} sent`, "rate"],
    ["P(F), 10 s", share === null ? ["–", ""] : percent(share).split(" "),
      held ? `aim ${percent(seen.target)}` : "no message is held", "share"],
    ["hold", spoken(seen.hold), held ? `of ${duration(seen.hold_max)} at most`
      : `mode ${seen.mode}`, "hold"],
    ["latency (OML)", spoken(s.oml_us.p50), `p99 ${duration(s.oml_us.p99)}`, "oml50"],
    ["window", spoken(s.window_us.p50), `p99 ${duration(s.window_us.p99)}, ${bound}`, "window50"],
    ["release lateness", spoken(s.lateness_us.p50), `p99 ${duration(s.lateness_us.p99)}`, "late50"],
  ];
}

const tileParts = [];

/** A line of the last minute, without axes. */
function spark(svg, key, shown, end) {
  const values = shown.map((p) => p[key]).filter((v) => v !== null);
  const mark = svg.firstChild;
  if (values.length < 2) { mark.setAttribute("d", ""); return; }
  const [low, high] = [least(values), most(values)];
  const x = linear(end - 60, end, 0, 100);
  const y = linear(low === high ? low - 1 : low, low === high ? high + 1 : high, 31, 3);
  let open = false;
  let d = "";
  for (const p of shown) {
    if (p[key] === null) { open = false; continue; }
    d += `${open ? "L" : "M"}${x(p.at_s).toFixed(1)} ${y(p[key]).toFixed(1)}`;
    open = true;
  }
  mark.setAttribute("d", d);
}

function drawTiles() {
  const end = points.length > 0 ? points[points.length - 1].at_s : 0;
  const minute = points.filter((p) => p.at_s >= end - 60);
  figures().forEach(([name, [value, unit], note, key], i) => {
    if (!tileParts[i]) {
      const svg = document.createElementNS(SVG, "svg");
      svg.setAttribute("viewBox", "0 0 100 34");
      svg.setAttribute("preserveAspectRatio", "none");
      svg.setAttribute("aria-hidden", "true");
      shape(svg, "path", {});
      const part = { value: element("span", {}), unit: element("small", {}),
        note: element("div", { class: "note" }), svg };
      part.box = element("div", { class: "tile" }, element("div", { class: "name" }, name),
        element("div", { class: "value" }, part.value, part.unit), part.note, svg);
      tiles.append(part.box);
      tileParts[i] = part;
    }
    const part = tileParts[i];
    setText(part.value, value);
    setText(part.unit, unit || "");
    setText(part.note, note);
    if (key === "share") {
      const { on_time_share: share } = seen.span;
      part.box.className = `tile ${share === null ? "" : share >= seen.target ? "good"
        : share < 0.9 ? "bad" : ""}`;
    }
    spark(part.svg, key, minute, end);
  });
}

// ---- the tree ------------------------------------------------------------------------------------

/** Marks beside the colour, so that a state is seen without colours. */
const MARKS = { good: "", warn: "!", bad: "×", idle: "·" };
const MANY = 150;
const NAMED = 40;
let shapeOfTree = "";
const cells = new Map();
let byId = new Map();
/** Looks until every cell's colour follows its delay. A changed colour costs the browser a style, and a
 * thousand at once make a look late; a delay is that of ten seconds, so that its colour may be a second old. */
const SHADING = 4;

const nameOf = (id) => (byId.get(id) || { name: id === null ? "–" : `node ${id}` }).name;

/** Text of a node at the pointer. */
function say(node) {
  const clock = node.clock === "same" ? "the root's clock" : node.clock_bound === null
    ? "clock error unknown" : `clock within ${duration(node.clock_bound)}`;
  return [`${node.name}: ${node.state}`,
    node.p50 === null ? "no delay known" : `delay p50 ${duration(node.p50)}, p99 ${duration(node.p99)}`,
    node.role === "proxy" ? null : `${whole(node.late)} late, ${whole(node.lost)} lost`,
    clock, node.aunts.length > 0 ? `extra copies from ${node.aunts.map(nameOf).join(", ")}` : null]
    .filter((line) => line !== null).join("\n");
}

function markAunts(node, on) {
  for (const id of node.aunts) {
    const shown = cells.get(id);
    if (!shown || !byId.has(id)) continue;
    shown.isAunt = on;
    drawCell(byId.get(id), shown);
  }
}

function cellOf(node, inner) {
  const cell = element("button", { type: "button", class: `node ${inner ? "inner" : "leaf"}` });
  cell.nodeId = node.id;
  cells.set(node.id, { cell, inner, isAunt: false, load: null, kind: "", text: "", label: "" });
  return cell;
}

/** Listens for all cells at once: a thousand cells with five listeners each take long to build. */
function listen(place) {
  const at = (target) => {
    const cell = target instanceof Element ? target.closest(".node") : null;
    return cell ? byId.get(cell.nodeId) : undefined;
  };
  place.addEventListener("pointerover", (event) => {
    const node = at(event.target);
    if (node) markAunts(node, true);
  });
  place.addEventListener("pointermove", (event) => {
    const node = at(event.target);
    if (node) showTip(event, say(node));
  });
  place.addEventListener("pointerout", (event) => {
    const node = at(event.target);
    if (node) { hideTip(); markAunts(node, false); }
  });
  place.addEventListener("focusin", (event) => {
    const node = at(event.target);
    if (node) document.getElementById("said").textContent = say(node);
  });
  place.addEventListener("click", (event) => {
    const node = at(event.target);
    if (node) { chosen = chosen === node.id ? null : node.id; drawTree(); }
  });
}

/** The step of a cell's colour. A delay near the border of two steps keeps the step that is shown. */
function loadOf(node, shown) {
  const wanted = seen.hold && node.p99 ? Math.min(1, node.p99 / seen.hold) * LOADS : LOADS / 3;
  const isDue = (node.id + looks) % SHADING === 0 && Math.abs(wanted - shown.load) > 0.75;
  if (shown.load === null || isDue) shown.load = Math.round(wanted);
  return shown.load;
}

/** What a cell shows now. What it shows already is in `shown`, since a thousand looks into the document
 * take longer than all the rest of a drawing. */
function drawCell(node, shown) {
  const { cell, inner } = shown;
  const kind = `node ${inner ? "inner" : "leaf"} ${node.mood} load-${loadOf(node, shown)}`
    + `${chosen === node.id ? " at" : ""}${shown.isAunt ? " aunt" : ""}`;
  if (shown.kind !== kind) cell.className = shown.kind = kind;
  const isNamed = inner ? !isCrowded(node) : seen.nodes.length <= NAMED;
  // Figures are put into words only where they are shown, since words take longer than the rest.
  const words = !isNamed ? "" : inner && node.p99 !== null ? `${node.name} ${duration(node.p99)}` : node.name;
  const text = `${MARKS[node.mood]} ${words}`.trim();
  if (shown.text !== text) cell.textContent = shown.text = text;
  const label = `${node.name}, ${node.state}`;
  if (shown.label !== label) {
    shown.label = label;
    cell.setAttribute("aria-label", label);
  }
}

/** Whether an inner node of a large tree has no room for its name: a proxy below a proxy. */
function isCrowded(node) {
  return seen.nodes.length > MANY && byId.has(node.parent);
}

/** A node with all below it: inner nodes as boxes, leaves as cells. */
function branchOf(node, children, depth) {
  const below = children.get(node.id) || [];
  const leaves = below.filter((child) => !children.has(child.id) && child.role !== "proxy");
  const inner = below.filter((child) => !leaves.includes(child));
  return element("div", { class: "branch" }, cellOf(node, true),
    element("div", { class: "leaves" }, ...leaves.map((leaf) => cellOf(leaf, false))),
    inner.length === 0 || depth > 6 ? null : element("div", { class: "tree" },
      ...inner.map((child) => branchOf(child, children, depth + 1))));
}

/** Builds the boxes and cells, when who is below whom has changed. */
function buildTree() {
  cells.clear();
  const { nodes } = seen;
  const children = new Map();
  const ids = new Set(nodes.map((node) => node.id));
  const placed = nodes.filter((node) => node.parent !== null);
  for (const node of placed) {
    if (!children.has(node.parent)) children.set(node.parent, []);
    children.get(node.parent).push(node);
  }
  // The root is no member of its own list.
  const rootId = [...children.keys()].find((id) => !ids.has(id));
  const top = (rootId === undefined ? [] : children.get(rootId));
  const direct = top.filter((node) => node.role !== "proxy");
  const loose = nodes.filter((node) => node.parent === null);
  const boxes = top.filter((node) => node.role === "proxy")
    .map((node) => branchOf(node, children, 1));
  if (direct.length > 0) {
    boxes.push(element("div", { class: "branch" }, "below the root itself",
      element("div", { class: "leaves" }, ...direct.map((leaf) => cellOf(leaf, false)))));
  }
  if (loose.length > 0) {
    boxes.push(element("div", { class: "branch" }, "without a place",
      element("div", { class: "leaves" }, ...loose.map((leaf) => cellOf(leaf, false)))));
  }
  const size = nodes.length > MANY ? "many" : nodes.length <= NAMED ? "named" : "";
  const kinds = [["good", "sound (stronger: p99 nearer the hold)"], ["warn", "! late, slow or without news"],
    ["bad", "× gone, silent or losing"], ["idle", "· waits, spare or left"]];
  treeBody.replaceChildren(element("div", { class: `tree ${size}` }, ...boxes));
  keys.replaceChildren(...kinds.map(([mood, words]) =>
    element("li", { class: mood }, element("i", {}), words)));
}

const treeHead = element("p", {});
const treeBody = element("div", {});
const keys = element("ul", { class: "keys", "aria-label": "colours" });
const panel = element("div", { class: "chosen" });
listen(treeBody);
tree.append(element("h3", {}, "Every node, below its proxy"), treeHead, treeBody, keys, panel);

function drawTree() {
  if (!seen) return;
  const { nodes } = seen;
  byId = new Map(nodes.map((node) => [node.id, node]));
  const now = nodes.map((node) => `${node.id}<${node.parent}`).join() + seen.root;
  if (now !== shapeOfTree) {
    shapeOfTree = now;
    buildTree();
  }
  const count = (mood) => nodes.filter((node) => node.mood === mood).length;
  const receivers = nodes.filter((node) => node.role === "receiver").length;
  const troubled = count("bad") + count("warn");
  setText(treeHead, `${seen.root || "no root"} leads${seen.standbys.length > 0
    ? ` (${seen.standbys.join(", ")} vote${seen.standbys.length > 1 ? "" : "s"})` : ""}; `
    + `${whole(receivers)} receivers, ${whole(nodes.length - receivers)} other nodes; `
    + (troubled === 0 ? "none in trouble." : `${whole(count("bad"))} in trouble, `
      + `${whole(count("warn"))} to watch.`));
  for (const node of nodes) {
    const shown = cells.get(node.id);
    if (shown) drawCell(node, shown);
  }
  drawChosen();
}

function drawChosen() {
  const node = byId.get(chosen);
  if (!node) { if (panel.firstChild) panel.replaceChildren(); return; }
  const line = (lines.get(node.id) || []).filter((v) => v > 0);
  const clock = node.clock === "same" ? "the root's own" : node.clock_bound === null
    ? node.clock || "unknown" : `within ${duration(node.clock_bound)}`;
  const rows = [["state", node.state], ["role", node.role], ["parent", node.parent === null ? "–"
    : byId.has(node.parent) ? nameOf(node.parent) : seen.root || "the root"],
  ["extra copies from", node.aunts.map(nameOf).join(", ") || "–"],
  ["delay p50, p99", `${duration(node.p50)}, ${duration(node.p99)}`],
  ["p99 of this page's time", line.length === 0 ? "–"
    : `${duration(least(line))} to ${duration(most(line))}`],
  ["late, of the last 10 s", `${whole(node.late)}, ${whole(node.recent_late)}`],
  ["lost, of the last 10 s", `${whole(node.lost)}, ${whole(node.recent_lost)}`],
  ["released, repaired", `${whole(node.released)}, ${whole(node.repaired)} frames`],
  ["hedge wins", whole(node.hedge_wins)], ["clock", clock],
  ["age of these figures", node.age_ms === null ? "–" : duration(node.age_ms * 1e3)]];
  const close = element("button", { type: "button", class: "node" }, "close");
  close.addEventListener("click", () => { chosen = null; drawTree(); });
  panel.replaceChildren(element("h3", {}, node.name, close), table(["", ""], rows, 1));
}

// ---- over time -----------------------------------------------------------------------------------

/** The points of the chosen span. A line of more points than pixels is thinned. */
function shownPoints() {
  const end = points.length > 0 ? points[points.length - 1].at_s : 0;
  let shown = span === Infinity ? points : points.filter((p) => p.at_s >= end - span);
  while (shown.length > 1200) {
    shown = shown.reduce((made, p, i) => {
      if (i % 2 === 0) made.push(p); else made[made.length - 1] = join(made[made.length - 1], p);
      return made;
    }, []);
  }
  return shown;
}

/** A picture over time: `curves` has colour, name and key of each line. */
function overTime(name, words, curves, format, { share = false, bars = null } = {}) {
  const wide = !isNarrow();
  const { card: made, svg, width, height } = card(name, words, { height: 210,
    legend: curves.map(([colour, of]) => [colour, of]).concat(bars ? [["bad", bars, true]] : []) });
  made.dataset.picture = name;
  const shown = shownPoints();
  const [top, bottom, left, right] = [10, height - 26, 62, width - 12];
  const values = shown.flatMap((p) => curves.map(([, , key]) => p[key])).filter((v) => v !== null);
  if (values.length === 0) {
    shape(svg, "text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "nothing yet");
    return made;
  }
  const end = shown[shown.length - 1].at_s;
  const begin = span === Infinity ? Math.min(shown[0].at_s, end - 1) : end - span;
  const x = linear(begin, end, left, right);
  const ago = (s) => (Math.abs(end - s) < 1e-6 ? "now"
    : end - s >= 120 ? `-${digits((end - s) / 60)} min` : `-${digits(end - s)} s`);
  const step = roundTicks(0, end - begin, wide ? 6 : 4).map((t) => end - t);
  axisX(svg, x, step, top, bottom, ago);
  const [low, high] = [least(values), most(values)];
  let y;
  if (share) {
    const floor = [0.99, 0.98, 0.95, 0.9, 0.5].find((share_low) => low > share_low) || 0;
    y = linear(floor, 1, bottom, top);
    axisY(svg, y, roundTicks(floor, 1, 4), left, right, (v) => `${digits(v * 100)} %`);
  } else if (low > 0 && high / low > 12) {
    y = tailed(low * 0.8, high * 1.15, bottom, top, low / 4);
    const ticks = tailTicks(y, low * 0.8, high * 1.15, 24);
    axisY(svg, y, ticks, left, right, format === duration ? durationsOf(ticks) : format);
  } else {
    y = linear(0, high * 1.08 || 1, bottom, top);
    const ticks = roundTicks(0, high * 1.08 || 1, 4);
    axisY(svg, y, ticks, left, right, format === duration ? durationsOf(ticks) : format);
  }
  if (bars) {
    const tallest = most(shown.map((p) => p.lost));
    for (const p of shown.filter((one) => one.lost > 0)) {
      const tall = Math.max(3, p.lost / tallest * (bottom - top) * 0.6);
      shape(svg, "rect", { x: x(p.at_s) - 1.5, y: bottom - tall, width: 3, height: tall, rx: 1,
        fill: "var(--bad)" });
    }
  }
  for (const [colour, , key, thin] of curves) {
    timeLine(svg, x, y, shown, (p) => p[key], { stroke: `var(--${colour})`,
      "stroke-width": thin ? 1 : 2, opacity: thin ? 0.75 : 1 });
  }
  crosshair(svg, width, { x, top, bottom, left, right }, (at) => {
    const near = shown.reduce((a, b) => (Math.abs(b.at_s - at) < Math.abs(a.at_s - at) ? b : a));
    const said = curves.map(([, of, key]) => `${of}: ${near[key] === null ? "–"
      : share ? percent(near[key]) : format(near[key])}`);
    if (bars) said.push(`${whole(near.lost)} copies lost`);
    return [ago(near.at_s), ...said].join("\n");
  });
  return made;
}

const PICTURES = [
  ["Hold and latency", "The hold, and the time until the last receiver has a frame (OML).",
    [["held", "hold", "hold"], ["raw", "OML median", "oml50"], ["raw", "p99", "oml99", true]], duration],
  ["P(F) and losses", "Share of messages in time at every receiver, each second.",
    [["good", "P(F)", "share"]], percent, { share: true, bars: "copies lost" }],
  ["Delivery window", "First to last release of a frame, over all receivers.",
    [["held", "median", "window50"], ["held", "p99", "window99", true]], duration],
  ["Messages a second", "What the root sends.", [["held", "messages/s", "rate"]], whole]];

function drawChart(place) {
  // A picture under the pointer or the keyboard stays as it is while somebody reads it.
  if (charts.matches(":hover") || charts.contains(document.activeElement)) return;
  drawn = place;
  const made = attempt(PICTURES[place][0], () => overTime(...PICTURES[place]));
  if (charts.children[place]) charts.children[place].replaceWith(made); else charts.append(made);
}

function drawCharts() {
  PICTURES.forEach((_, place) => drawChart(place));
  document.documentElement.dataset.drawn = drawn;
}

function spanSwitch() {
  const all = [["1 minute", 60], ["10 minutes", 600], ["all", Infinity]];
  const buttons = all.map(([name, seconds]) => {
    const button = element("button", { type: "button", "aria-pressed": String(seconds === span) }, name);
    button.addEventListener("click", () => {
      span = seconds;
      buttons.forEach((b) => b.setAttribute("aria-pressed", String(b === button)));
      button.blur();
      drawCharts();
    });
    return button;
  });
  return element("div", { class: "switch", role: "group", "aria-label": "time shown" }, ...buttons);
}

// ---- events --------------------------------------------------------------------------------------

const eventRows = element("div", {});
happened.append(element("h3", {}, "Events"),
  element("p", {}, "Joins, suspicions, views, replacements and takeovers, the latest first."),
  scroller("events", "scroll", eventRows));
let lastEvent = -1;

function drawEvents() {
  const latest = events.length > 0 ? events[events.length - 1].number : 0;
  if (latest === lastEvent) return;
  lastEvent = latest;
  const rows = [...events].reverse().map((event) => [
    new Date(event.at_ms).toLocaleTimeString([], { hour12: false }), event.kind, event.text]);
  eventRows.replaceChildren(rows.length === 0 ? element("div", { class: "empty" }, "Nothing yet.")
    : table(["at", "what", "in words"], rows));
}

// ---- the loop ------------------------------------------------------------------------------------

function drawVerdict() {
  const { mood, recent } = seen;
  const kind = `verdict ${mood}`;
  if (verdict.className !== kind) verdict.className = kind;
  setText(verdict, recent);
  setText(total, seen.total);
  setText(title, seen.root ? `${seen.root}, mode ${seen.mode}` : "A run of evenfall");
  const words = WORDS[mood];
  const heading = `${words ? `${words} · ` : ""}evenfall live`;
  if (document.title !== heading) document.title = heading;
}

let looks = 0;

function take(told) {
  ({ picture: seen, events } = told);
  if (told.tick < tick) points = [];
  addPoints(told.points);
  tick = told.tick;
  if (looks % 4 === 0) {
    for (const node of seen.nodes) {
      const line = lines.get(node.id) || [];
      line.push(node.p99 || 0);
      if (line.length > 600) line.shift();
      lines.set(node.id, line);
    }
  }
  drawVerdict();
  drawTiles();
  drawTree();
  drawEvents();
  // Each look draws one of the pictures again, so that no look takes as long as all four.
  if (charts.childElementCount === 0) drawCharts(); else drawChart(looks % PICTURES.length);
  looks += 1;
  document.documentElement.dataset.looks = looks;
}

/** Asks for what is new, four times a second, and says so when the watcher does not answer. */
async function follow_run() {
  for (;;) {
    const began = performance.now();
    try {
      const answer = await fetch(`live?after=${tick}`, { cache: "no-store" });
      if (answer.ok) take(await answer.json());
    } catch (error) {
      if (!(error instanceof TypeError)) complain(error.message);
      verdict.className = "verdict idle";
      setText(verdict, "The watcher does not answer: evenfall watch has ended, or the line is cut. "
        + "The figures below are the last that came.");
    }
    // A hidden page asks less often. The points that it misses come with the next answer.
    const pause = document.hidden ? 2000 : Math.max(50, 250 - (performance.now() - began));
    await new Promise((resume) => setTimeout(resume, pause));
  }
}

document.getElementById("page").replaceChildren(element("div", { class: "live" },
  wordmark(), title, verdict, total, tiles,
  element("h2", {}, "Who"), element("p", {}, "Hover for figures and extra copies, click for more."), tree,
  element("h2", {}, "Over time"), element("p", {}, "As the root knows it from sampled frames."),
  spanSwitch(), charts,
  element("h2", {}, "What happened"), element("p", {}, ""), happened,
  element("footer", {}, "Times are measured at the receivers, on the synchronised clock. "
    + "The page is read only. Written by evenfall.")));
follow_run();
