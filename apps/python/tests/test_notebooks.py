"""The notebooks of docs/notebooks run from their first cell to their last, and keep no outputs."""

import importlib.util
import json
import os
import pathlib
import re

from workplace import PROGRAM, ROOT, Case, address, unless

NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


class Notebooks(Case):
    """Each notebook runs in a directory of its own, with the program on the PATH."""

    def run_notebook(self, name):
        path = ROOT / "docs/notebooks" / name
        cells = [cell for cell in json.loads(path.read_text())["cells"]]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        self.assertGreater(len(code), 3)
        ports = {old: address() for old in sorted(set(re.findall(r"127\.0\.0\.1:\d+", "".join(code))))}
        directory, home = self.directory / path.stem, pathlib.Path.cwd()
        directory.mkdir()
        before = os.environ["PATH"]
        os.environ["PATH"] = f"{PROGRAM.parent}{os.pathsep}{before}"
        os.chdir(directory)
        names = {"__name__": path.stem}
        try:
            for number, cell in enumerate(code):
                for old, new in ports.items():
                    cell = cell.replace(old, new)
                exec(compile(cell, f"{name}, cell {number}", "exec"), names)
        finally:
            os.chdir(home)
            os.environ["PATH"] = before

    def test_a_day_becomes_bars_that_equal_those_of_sql(self):
        self.run_notebook("bars.ipynb")

    def test_a_live_feed_stands_beside_its_quotes(self):
        self.run_notebook("live.ipynb")

    def test_a_tree_is_planned_from_a_matrix(self):
        self.run_notebook("planning.ipynb")

    def test_no_notebook_keeps_an_output_that_could_grow_old(self):
        self.assertEqual(len(NOTEBOOKS), 3)
        for path in NOTEBOOKS:
            notebook = json.loads(path.read_text())
            self.assertEqual((notebook["nbformat"], notebook["nbformat_minor"]), (4, 5))
            ids = [cell["id"] for cell in notebook["cells"]]
            self.assertEqual(len(set(ids)), len(ids))
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    self.assertEqual((cell["outputs"], cell["execution_count"]), ([], None), path)

    @unless(importlib.util.find_spec("nbformat"), "no nbformat (make deps)")
    def test_notebooks_are_valid_by_their_schema(self):
        import nbformat

        for path in NOTEBOOKS:
            nbformat.validate(nbformat.read(path, as_version=4))
