#!/usr/bin/env python3
"""Runs what compares us with the papers, cheapest first, and prints the published values beside ours with a verdict.

    paper.py PROGRAM [--minutes 10] [--data ../shared/data] [--only TEXT]

PROGRAM is evenfall-lab. Each comparison is a command of the simulator that docs/results shows at its full length; here
it has fewer seeds. A comparison that does not fit into the rest of the minutes is named with its command, and not run.
A run is the same on any machine, and only its time is not.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import time

# A row agrees when ours differs by this share at most, as in docs/results/figures.md.
AGREES = 0.15
# Marks the label of a published value that is a lower bound.
MORE_THAN = "(more than)"
JASPER = "Jasper (arXiv 2402.09527)"
TREEBUILDER = "TreeBuilder (thesis, TU München)"
MILLISORT = "MilliSort and GRPF (thesis, Stanford)"
MAYFLOWER = "Mayflower, Canopus, Kawkab (thesis, Waterloo)"


@dataclasses.dataclass
class Comparison:
    """A table or figure of a paper, and the command that reproduces it."""

    source: str
    what: str
    page: str
    # The page of docs/results that says what agrees, what does not, and why.
    results: str
    command: str
    # Processor seconds of a release build.
    seconds: int
    # Pairs of a published value and ours out of the command's JSON: rows of (label, published, ours). Without it the
    # command's own tables are shown, whose page judges them.
    rows: object = None


def by_label(columns, published):
    """Rows of a table whose published values are here: by label, one a column of ours."""

    def rows(told):
        for label, values in told["rows"]:
            for column, value in zip(columns, published.get(label, ())):
                yield f"{label}, {told['columns'][column + 1]}", value, values[column]

    return rows


def by_columns(*pairs):
    """Rows of tables in which one column has the published value and another one ours."""

    def rows(told):
        for table in told if isinstance(told, list) else [told]:
            for label, values in table["rows"]:
                for published, ours in pairs:
                    if len(values) > max(published, ours):
                        yield f"{label}, {table['columns'][ours + 1]}", values[published], values[ours]

    return rows


def by_objects(told):
    """Rows of objects that have both `published` and `ours`, a number each or several."""
    if isinstance(told, list):
        for one in told:
            yield from by_objects(one)
    elif isinstance(told, dict) and {"published", "ours"} <= told.keys():
        label = " ".join(str(value) for key, value in told.items() if key not in ("published", "ours", "differs_percent"))
        pairs = [told["published"]], [told["ours"]]
        if isinstance(told["published"], list):
            pairs = told["published"], told["ours"]
        for place, (published, ours) in enumerate(zip(*pairs)):
            yield label + (f" [{place + 1}]" if len(pairs[0]) > 1 else ""), published, ours
    elif isinstance(told, dict):
        for value in told.values():
            yield from by_objects(value)


# Means and standard deviations of independent copies: depth, extra copies.
HEDGING = {
    "D1 H0": (0.5, 0.3), "D2 H0": (1.0, 0.4), "D3 H0": (1.5, 0.5), "D4 H0": (2.0, 0.6), "D5 H0": (2.5, 0.6),
    "D4 H1": (1.3, 0.4), "D4 H2": (0.9, 0.3), "D4 H3": (0.8, 0.2), "D1 H4": (0.5, 0.3), "D2 H4": (0.5, 0.2),
    "D3 H4": (0.6, 0.2), "D4 H4": (0.7, 0.2), "D5 H4": (0.7, 0.2),
}


def trading_rows(told):
    for place, share in enumerate((25.0, 24.97, 24.66, 25.36)):
        yield f"profit of participant {place + 1}, %", share, told["profit_share"][place]


def reads_by_policy(told):
    """What section 3.4.3 states of the figure in words: the 95th percentiles, and means over that of Mayflower-P."""
    [table] = told if isinstance(told, list) else [told]
    policies = {label: dict(zip(table["columns"][1:], values)) for label, values in table["rows"]}
    for policy, p95 in (("mayflower", 2.81), ("mayflower-b", 3.21), ("sinbad-mf", 3.82)):
        yield f"{policy}, p95, s", p95, policies[policy]["p95"]
    yield "mayflower over mayflower-b, mean", 0.86, 1 / policies["mayflower-b"]["over mayflower"]
    for policy, ratio in (("nearest", 2.3), ("sinbad", 1.3)):
        yield f"{policy} over mayflower, mean {MORE_THAN}", ratio, policies[policy]["over mayflower"]


COMPARISONS = [
    Comparison(JASPER, "Figure 5: hedging over random links", "7", "multicast.md", "sim study hedging", 2,
               by_label((0, 1), HEDGING)),
    Comparison(MILLISORT, "Table 2.2: the largest partition", "16", "sort.md", "sim sort --table 2.2 --runs 100", 8,
               by_objects),
    Comparison(MILLISORT, "Table 2.5: the phases of a sort", "24", "sort.md", "sim sort --table 2.5", 8, by_objects),
    Comparison(JASPER, "Table 2: profit of four participants", "11", "figures.md",
               "sim trading --mode release --seed 1", 8, trading_rows),
    Comparison(MILLISORT, "Table 2.6: records of a server and a core", "29", "sort.md", "sim sort --table 2.6", 20,
               by_objects),
    Comparison(JASPER, "Figures 4 and 6 to 11, Tables 1 and 3", "5 and 9 to 12", "figures.md",
               "sim study figures --effort quick --data {data}/onyx", 600, by_columns((0, 1), (2, 3), (4, 5))),
    Comparison(TREEBUILDER, "Tables 5.4 and 5.5: the worst leaf", "41 to 50", "placement.md",
               "sim study placement --table thesis --seeds 5", 4, by_columns((0, 4), (1, 6), (2, 7), (3, 8))),
    Comparison(TREEBUILDER, "The archived public run: its trees rebuilt from its pairs", "none", "placement.md",
               "sim study placement --table archived --pairs {data}/latency/gcp_pairs_owd_us.csv", 4,
               by_columns((0, 2), (1, 5))),
    Comparison(MAYFLOWER, "Figures 4.4 to 4.7: Canopus and its rivals", "69 to 76", "consensus.md",
               "sim study consensus --write-cost 270ns", 3600),
    Comparison(MILLISORT, "Figures 6.1 to 6.26: shuffles", "89 to 117", "shuffle.md",
               "sim study shuffle --runs 2 --budget 60min", 3600),
    Comparison(MAYFLOWER, "Figure 3.3: reads by policy", "41", "files.md", "sim study files --figure 3.3 --runs 5", 5,
               reads_by_policy),
]


def verdict_of(rows):
    """How many rows agree, and how far the middle row is off. A published bound is kept by all that is above it."""
    errors = [0 if MORE_THAN in label and ours > published else abs(ours / published - 1)
              for label, published, ours in rows if published]
    agreeing = sum(error <= AGREES for error in errors)
    return (f"{agreeing} of {len(errors)} values within {AGREES:.0%} of the published ones; "
            f"the middle one differs by {statistics.median(errors):.1%}")


def print_rows(rows):
    width = max(len(label) for label, _, _ in rows)
    print(f"  {'':{width}}  {'published':>10}  {'ours':>10}")
    for label, published, ours in rows:
        differs = f"{ours / published - 1:+8.1%}" if published else " " * 8
        print(f"  {label:{width}}  {published:10.5g}  {ours:10.5g}  {differs}")


def run_comparison(one, program, data):
    command = [word.format(data=data) for word in one.command.split()]
    print(f"\n{one.what}\n  {one.source}, page {one.page}; docs/results/{one.results}\n  evenfall {' '.join(command)}",
          flush=True)
    began = time.monotonic()
    if one.rows is None:
        return "see its tables" if subprocess.run([program, *command]).returncode == 0 else None
    said = subprocess.run([program, *command, "--json"], capture_output=True, text=True)
    took = time.monotonic() - began
    if said.returncode:
        print(f"  FAILED with code {said.returncode}: {said.stderr.strip()[-500:]}")
        return None
    rows = [(label, published, ours) for label, published, ours in one.rows(json.loads(said.stdout))
            if published is not None and ours is not None]
    if not rows:
        print("  FAILED: no published value stands beside ours")
        return None
    print_rows(rows)
    verdict = verdict_of(rows)
    print(f"  verdict: {verdict} ({took:.0f} s)", flush=True)
    return verdict


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("program", help="evenfall-lab")
    parser.add_argument("--minutes", type=float, default=10, help="begin nothing that would end later (default 10)")
    parser.add_argument("--data", default="../shared/data", help="the directory with the published series")
    parser.add_argument("--only", default="", help="only comparisons whose source or name has this text")
    options = parser.parse_args()
    until, told = time.monotonic() + 60 * options.minutes, []
    wanted = [one for one in COMPARISONS if options.only.lower() in f"{one.source} {one.what}".lower()]
    if not wanted:
        sys.exit(f"--only {options.only}: no comparison has this text; there are: "
                 + "; ".join(one.what for one in COMPARISONS))
    for one in sorted(wanted, key=lambda one: one.seconds):
        if "{data}" in one.command and not pathlib.Path(options.data).is_dir():
            told.append((one, f"skipped: no {options.data} (--data)"))
        elif time.monotonic() + one.seconds > until:
            command = one.command.format(data=options.data)
            length = f"{one.seconds} s" if one.seconds < 60 else f"{one.seconds / 60:.0f} min"
            told.append((one, f"not run, for it takes about {length} on a quiet machine (--minutes): evenfall {command}"))
        else:
            told.append((one, run_comparison(one, options.program, options.data) or "FAILED"))
    print("\nIn short:")
    for one, verdict in told:
        print(f"  {one.what}\n    {one.source}, page {one.page}: {verdict}")
    return any(verdict == "FAILED" for _, verdict in told)


if __name__ == "__main__":
    sys.exit(main())
