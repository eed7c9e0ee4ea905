"""The simulation of the multicast, by the program `evenfall-lab`."""

import datetime
import json
import os
import subprocess
import tempfile
import time
import warnings
from typing import Any

from .errors import RunError, SettingsError

#: The program, and the variable that says where it is.
PROGRAM, VARIABLE = "evenfall-lab", "EVENFALL_LAB"


def sim(
    receivers: int = 100,
    *,
    depth: int | None = None,
    fanout: int | None = None,
    hedging: int | None = None,
    scheme: str | None = None,
    mode: str | None = None,
    rule: str | None = None,
    target: float | None = None,
    trees: int | None = None,
    rate: float | None = None,
    size: int | None = None,
    feed: str | os.PathLike[str] | None = None,
    speed: float | None = None,
    messages: int | None = None,
    duration: str | datetime.timedelta | None = None,
    model: str | os.PathLike[str] | None = None,
    stack: str | None = None,
    clock_error: str | datetime.timedelta | None = None,
    clock_mesh: bool = False,
    seed: int | None = None,
    seeds: int | None = None,
    cores: int | None = None,
    key: bool = False,
) -> dict[str, Any]:
    """Simulates the multicast in a cloud region, as `evenfall sim multicast` does, and gives the
    figures of its `--json`: `p_f` is the share of messages that came to every receiver in time, and
    keys that end in _us are microseconds. The same seed gives the same run on any machine.

    What is not given has the default of the command: `depth` hops, `fanout` children, `hedging`
    extra copies (1), `mode` unicast, tree, hedge, release (the default) or cloudex, `rate` messages a
    second (5000) of `size` bytes (40), `duration` ("2s") of simulated time, `target` share of
    messages in time everywhere, or a `feed` file's own times; `model` aws, gcp, quiet, namespaces or
    a file, `stack` sockets or kernel-bypass, `clock_error` ("10us") of every host, or a `clock_mesh`
    by which the hosts find their time. With `seeds`, means and 95 % intervals over so many runs.

    It starts the program `evenfall-lab`, which must be on the PATH, or where the variable
    EVENFALL_LAB says. A run in which receivers still lacked messages at its end gives a warning, and
    `finished` is False. Raises SettingsError with the sentence of the command."""
    options = dict(locals())
    command = [os.environ.get(VARIABLE) or PROGRAM, "sim", "multicast", "--json"]
    for name, value in options.items():
        if value is None or value is False:
            continue
        command.append("--" + name.replace("_", "-"))
        if value is not True:
            command.append(_words(value))
    code, told, said = _run(command)
    said = said.strip().removeprefix("error: ")
    try:
        figures: dict[str, Any] = json.loads(told)
    except ValueError:
        raise (RunError if code < 0 else SettingsError)(
            said or f"{PROGRAM} ended with code {code} and without figures"
        ) from None
    if code != 0:
        warnings.warn(said, RuntimeWarning, stacklevel=2)
    return figures


def _run(command: list[str]) -> tuple[int, str, str]:
    """Runs a program to its end. Gives its code, its output and its errors.

    The output goes into files, so that this thread only sleeps and Ctrl-C ends the program at once;
    `subprocess.run` would wait for it for a quarter of a second."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors
            )
        except OSError as error:
            raise RunError(
                f"a simulation needs the program {PROGRAM}, which cannot be started ({error}); get "
                f"it with `cargo install --path lab`, or say in the variable {VARIABLE} where it is"
            ) from None
        try:
            while process.poll() is None:
                time.sleep(0.02)
        except BaseException:
            process.kill()
            process.wait()
            raise
        out.seek(0)
        errors.seek(0)
        return process.returncode, out.read(), errors.read()


def _words(value: object) -> str:
    """A value as the command line takes it."""
    if isinstance(value, datetime.timedelta):
        return f"{value // datetime.timedelta(microseconds=1)}us"
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
