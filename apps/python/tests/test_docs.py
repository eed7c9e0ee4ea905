"""The page docs/python.md runs as it is written, and the stubs say what the module has."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import threading

import evenfall as ev

from workplace import QUERY, ROOT, Case, address, answers, program, unless, wait_until

PAGE = ROOT / "docs/python.md"


class Page(Case):
    """Each block runs after the blocks before it, with their names, in a directory of its own."""

    def test_every_example_of_the_page_runs(self):
        page = PAGE.read_text()
        settings = re.search(r"```toml evenfall.toml\n(.*?)```", page, re.S).group(1)
        ports = {old: address() for old in sorted(set(re.findall(r"127\.0\.0\.1:\d+", page)))}
        for old, new in ports.items():
            settings, page = settings.replace(old, new), page.replace(old, new)
        program("feed", "make", self.directory / "20191230.itch50", "--messages", 4000)
        (self.directory / "evenfall.toml").write_text(settings)
        home = pathlib.Path.cwd()
        os.chdir(self.directory)
        try:
            self.run_blocks(page)
        finally:
            os.chdir(home)

    def run_blocks(self, page):
        names = {"__name__": "page"}
        blocks = re.findall(r"```python( beside)?\n(.*?)```", page, re.S)
        self.assertGreater(len(blocks), 5)
        beside = []
        for mark, block in blocks:
            code = compile(block, str(PAGE), "exec")
            if mark:
                beside.append(threading.Thread(target=exec, args=(code, names)))
                beside[-1].start()
                continue
            if "ev.subscribe(\"evenfall.toml\"" in block:
                self.start("run", "root", "--config", "evenfall.toml")
            exec(code, names)
        for thread in beside:
            thread.join()


class LiveJoin(Case):
    """The join of a live feed in docs/query.md runs as it is written."""

    @unless(QUERY.is_file(), f"no program {QUERY}")
    def test_trades_of_a_served_store_come_with_their_quotes(self):
        page = (ROOT / "docs/query.md").read_text()
        [block] = re.findall(r"```python\n(import datetime.*?)```", page, re.S)
        feed, ticks, place = self.directory / "nasdaq_20261120.itch50", "ticks", address()
        program("feed", "make", feed, "--messages", 4000)
        program("store", "append", self.directory / ticks, "day", "--feed", feed)
        self.start("store", "serve", ticks, "--listen", place)
        wait_until(lambda: answers(place))
        script = subprocess.Popen(
            [sys.executable, "-u", "-c", block.replace("127.0.0.1:7410", place)],
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ, EVENFALL_QUERY=str(QUERY)),
        )
        self.processes.append(script)
        shape, _, columns = (script.stdout.readline() for _ in range(3))
        script.kill()
        script.stdout.close()
        self.assertRegex(shape, r"shape: \([1-9][0-9]*, 5\)")
        self.assertIn("bid", columns)


class Stubs(Case):
    @unless(importlib.util.find_spec("mypy"), "no mypy (make deps)")
    def test_stubs_agree_with_the_module(self):
        environment = dict(os.environ, MYPY_CACHE_DIR=str(self.directory))
        checked = subprocess.run(
            [sys.executable, "-m", "mypy.stubtest", "evenfall", "--concise"]
            + ["--ignore-disjoint-bases", "--allowlist", str(self.allowlist())],
            capture_output=True,
            text=True,
            env=environment,
        )
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    def allowlist(self):
        """The list of names that every native module has."""
        path = self.directory / "allowed"
        path.write_text("evenfall._evenfall.__all__\n")
        return path

    def test_everything_has_a_docstring(self):
        stubs = (pathlib.Path(ev.__file__).parent / "_evenfall.pyi").read_text()
        for name in ev.__all__:
            if name.startswith("__"):
                continue
            self.assertTrue(getattr(ev, name).__doc__, name)
            in_python = hasattr(ev.errors, name) or name in ("errors", "sim")
            self.assertTrue(name in stubs or in_python, name)
