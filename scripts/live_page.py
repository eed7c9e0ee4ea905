#!/usr/bin/env python3
"""Measures what a look at the live page of a large run costs a browser.

    scripts/live_page.py [--nodes 1111] [--looks 80]

The page is that of `evenfall watch`, with answers made up here: one proxy in ten nodes, and p99 of each node that
either moves by 3 % from look to look or is anew at every look. A look is the script, style and layout, without the
painting. Prints JSON: milliseconds of the median, the ninth tenth and the slowest look, and of the first drawing.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

WEB = pathlib.Path(__file__).resolve().parent.parent / "web"

# Runs inside of the page, behind its script, in place of the loop that asks the watcher.
BENCH = """
let state = 7;
const chance = () => { state = (state * 1103515245 + 12345) % 2147483648; return state / 2147483648; };
const base = [];
function nodesOf(count, anew) {
  return Array.from({ length: count }, (_, i) => {
    // Ten proxies below the root, ten below each of them, and receivers below those.
    const proxies = Math.floor(count / 10);
    const isProxy = i < proxies;
    const parent = i < 10 ? 0 : isProxy ? 1 + (i - 10) % 10 : 11 + (i - proxies) % (proxies - 10);
    if (base[i] === undefined) base[i] = 40 + chance() * 100;
    const p99 = anew ? 40 + chance() * 100 : base[i] * (0.97 + 0.06 * chance());
    return { id: i + 1, name: `${isProxy ? "proxy" : "receiver"}-${i + 1}`, role: isProxy ? "proxy" : "receiver",
      parent, aunts: [], mood: "good", state: "sound", p50: p99 / 2, p99, released: 1000, late: 0, lost: 0,
      repaired: 0, hedge_wins: 0, clock: "same", clock_bound: null, recent_late: 0, recent_lost: 0, age_ms: 200 };
  });
}
const span_of = () => ({ on_time_share: 0.99 + chance() / 100, oml_us: { p50: 80 + chance(), p99: 120 },
  window_us: { p50: 3 + chance(), p99: 9 }, lateness_us: { p50: 1 + chance(), p99: 4 } });
function answer(tick, count, anew) {
  const span_now = span_of();
  const picture = { mood: "good", recent: `Fair: look ${tick}.`, total: "Since the start.", phase: "feed",
    mode: "release", root: "root-a", standbys: [], rate: 5000 + chance(), hold: 150, hold_max: 1000, target: 0.99,
    messages: 1000 * tick, lost: 0, late: 0, repaired: 0, hedge_wins: 0, released: 9, clock: "same",
    clock_bound: null, span: span_now, since_start: span_now, nodes: nodesOf(count, anew) };
  const point = [tick, tick / 4, 5000 + chance() * 50, 0.99, 150, 80, 120 + chance() * 9, 3, 9, 1, 4, 0];
  return { picture, events: [], tick, points: [point] };
}
function spread(times) {
  const sorted = [...times].sort((a, b) => a - b);
  const at = (share) => Number(sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))].toFixed(1));
  return { median: at(0.5), p90: at(0.9), slowest: at(1) };
}
function measure(count, looks_wanted, anew, from) {
  const [times, script] = [[], []];
  for (let i = 0; i < looks_wanted; i += 1) {
    const told = answer(from + i, count, anew);
    const began = performance.now();
    take(told);
    script.push(performance.now() - began);
    document.body.getBoundingClientRect();
    times.push(performance.now() - began);
  }
  return { first: times[0], looks: spread(times.slice(1)), script: spread(script.slice(1)) };
}
const [COUNT, LOOKS] = [NODES_WANTED, LOOKS_WANTED];
// The first minute of points makes the pictures as full as those of a running page.
measure(COUNT, 240, false, 1);
const told = { nodes: COUNT, looks: LOOKS };
for (const [name, anew] of [["drifting_ms", false], ["anew_ms", true], ["drifting_again_ms", false]]) {
  const { looks: whole_looks, script } = measure(COUNT, LOOKS, anew, 1000 + 10 * tick);
  told[name] = { ...whole_looks, script_median: script.median };
}
shapeOfTree = "";
const again = performance.now();
drawTree();
document.body.getBoundingClientRect();
told.build_ms = Number((performance.now() - again).toFixed(1));
document.documentElement.dataset.bench = JSON.stringify(told);
"""


def page(nodes, looks, web):
    html = (web / "report.html").read_text()
    live = (web / "live.js").read_text()
    live = re.sub(r"^follow_run\(\);$", "", live, flags=re.MULTILINE)
    bench = BENCH.replace("NODES_WANTED", str(nodes)).replace("LOOKS_WANTED", str(looks))
    script = (web / "charts.js").read_text() + live + bench
    html = html.replace('"run data"', "null").replace("<!-- title -->", "Live")
    return html.replace("/* script */", script)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1111, help="at least 110")
    parser.add_argument("--looks", type=int, default=80)
    parser.add_argument("--web", type=pathlib.Path, default=WEB, help="the directory of the page's scripts")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "live.html"
        path.write_text(page(wanted.nodes, wanted.looks, wanted.web))
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                   "--disable-background-networking", "--disable-component-update", "--disable-sync",
                   "--window-size=1280,900", f"--user-data-dir={scratch}/profile", "--dump-dom", path.as_uri()]
        try:
            dom = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
        except FileNotFoundError:
            sys.exit("skipped: no chromium (make deps)")
    found = re.search(r'data-bench="([^"]*)"', dom)
    if found is None:
        error = re.search(r'data-errors="([^"]*)"', dom)
        sys.exit(f"live_page: the page failed: {error.group(1) if error else dom[:2000]}")
    print(json.dumps(json.loads(found.group(1).replace("&quot;", '"'))))


if __name__ == "__main__":
    main()
