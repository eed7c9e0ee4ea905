#!/usr/bin/env python3
"""Prints what the program contains, as CycloneDX 1.5: every crate with version, source and licence.

    inventory.py FEATURES

The list is that of `cargo tree` for the package evenfall-cli with these features, without what only
builds or tests it. The same sources give the same bytes.
"""

import json
import subprocess
import sys

tree = subprocess.run(
    [
        "cargo", "tree", "--package", "evenfall-cli", "--features", sys.argv[1], "--edges", "normal",
        "--prefix", "none", "--format", "{p}|{l}",
    ],
    check=True, capture_output=True, text=True,
).stdout

components = {}
for line in tree.splitlines():
    package, _, licence = line.removesuffix(" (*)").rpartition("|")
    words = package.split()
    if len(words) < 2:
        continue
    name, version = words[0], words[1].removeprefix("v")
    components[name, version] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:cargo/{name}@{version}",
        "licenses": [{"expression": licence.replace("/", " OR ")}] if licence else [],
    }

program = next(found for (name, _), found in components.items() if name == "evenfall-cli")
inventory = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.5",
    "version": 1,
    "metadata": {"component": dict(program, type="application")},
    "components": [components[key] for key in sorted(components) if key[0] != "evenfall-cli"],
}
print(json.dumps(inventory, indent=1))
