"""`python -m evenfall` runs the program of the wheel, or one on the PATH."""

import os
import pathlib
import subprocess
import sys
import sysconfig

import evenfall as ev

from workplace import PROGRAM, Case

#: The program that a wheel of `make dist` has brought, if this package came by one.
BROUGHT = pathlib.Path(sysconfig.get_path("scripts"), "evenfall")


class CommandLine(Case):
    def run_module(self, *arguments, path):
        return subprocess.run(
            [sys.executable, "-m", "evenfall", *arguments],
            capture_output=True,
            text=True,
            env=dict(os.environ, PATH=str(path)),
        )

    def test_the_module_becomes_the_program_with_its_output_and_exit_code(self):
        places = self.directory / "bin"
        places.mkdir()
        (places / "evenfall").symlink_to(PROGRAM.resolve())
        said = self.run_module("--version", path=places)
        self.assertEqual((said.returncode, said.stdout), (0, f"evenfall {ev.__version__}\n"))
        said = self.run_module("demo", "--receivers", "0", path=places)
        self.assertNotEqual(said.returncode, 0)
        self.assertIn("error", said.stderr)

    def test_a_package_without_the_program_says_how_to_get_it(self):
        said = self.run_module("--version", path=self.directory)
        if BROUGHT.is_file():
            return self.assertEqual(said.returncode, 0)
        self.assertEqual(said.returncode, 1)
        self.assertIn("cargo install --path apps/cli", said.stderr)
