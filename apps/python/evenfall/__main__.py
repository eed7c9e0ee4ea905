"""The command line: `python -m evenfall demo` runs the program `evenfall` that the wheel has brought."""

import os
import pathlib
import shutil
import sys
import sysconfig

PROGRAM = "evenfall"


def find_program() -> str | None:
    """The program of the wheel, or else one on the PATH.

    pip puts the programs of a wheel into the directory of scripts of an environment or of a user,
    or into `bin` beside the packages with `--target`."""
    user = sysconfig.get_preferred_scheme("user")
    beside = pathlib.Path(__file__).parent.parent / "bin"
    scripts = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", user)]
    for place in [beside, *map(pathlib.Path, scripts)]:
        program = place / PROGRAM
        if program.is_file() and os.access(program, os.X_OK):
            return str(program)
    return shutil.which(PROGRAM)


def run_program() -> None:
    """Becomes the program, which so has this process's terminal, signals and exit code."""
    program = find_program()
    if program is None:
        sys.exit(
            f"the program {PROGRAM} is not here: this package was built without it; install a wheel "
            "of `make dist`, or the program by `cargo install --path apps/cli`"
        )
    os.execv(program, [PROGRAM, *sys.argv[1:]])


if __name__ == "__main__":
    run_program()
