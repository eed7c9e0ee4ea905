#!/usr/bin/env python3
"""Puts the static program among the scripts of a wheel, so that pip makes it a command.

maturin has a directory for this, but then no build works without the program, such as `pip install` in a clone.

    wheel_program.py WHEEL PROGRAM
"""

import base64
import hashlib
import os
import pathlib
import sys
import zipfile

# Read and executed by everybody, a file.
MODE_OF_PROGRAM = 0o100755


def add_program(wheel, program):
    """Writes the wheel anew, with the program among its scripts and in its list of files."""
    name, version = wheel.name.split("-")[:2]
    path, record = f"{name}-{version}.data/scripts/{program.name}", f"{name}-{version}.dist-info/RECORD"
    content = program.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    made = wheel.with_suffix(".new")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
        if path in old.namelist():
            raise SystemExit(f"{wheel} has the program already")
        for file in old.infolist():
            if file.filename != record:
                new.writestr(file, old.read(file), zipfile.ZIP_DEFLATED, 9)
        # The time of the list is the time of the build that maturin states, so that equal builds give equal wheels.
        listed = old.getinfo(record)
        script = zipfile.ZipInfo(path, listed.date_time)
        script.external_attr = MODE_OF_PROGRAM << 16
        new.writestr(script, content, zipfile.ZIP_DEFLATED, 9)
        lines = old.read(record).decode().splitlines()
        # The list is the last of its own lines, and of the files.
        lines.insert(len(lines) - 1, f"{path},sha256={digest},{len(content)}")
        new.writestr(listed, "\n".join(lines) + "\n", zipfile.ZIP_DEFLATED, 9)
    os.replace(made, wheel)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    add_program(*map(pathlib.Path, sys.argv[1:]))
