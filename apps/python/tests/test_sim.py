"""A simulated run from Python has the figures of the command, and its sentences."""

import datetime
import json
import os
import subprocess

import evenfall as ev

from workplace import LAB, Case, interrupted, unless

RUN = ["sim", "multicast", "--json", "--receivers", "20", "--duration", "200ms", "--seed", "3"]


@unless(LAB.is_file(), f"no program {LAB}")
class Simulated(Case):
    def setUp(self):
        os.environ["EVENFALL_LAB"] = str(LAB)

    def test_the_figures_are_those_of_the_command(self):
        told = json.loads(subprocess.run([LAB, *RUN], capture_output=True, check=True).stdout)
        for duration in ("200ms", datetime.timedelta(milliseconds=200)):
            figures = ev.sim(20, duration=duration, seed=3)
            self.assertEqual(figures.keys(), told.keys())
            # The one figure that is of this machine and not of the run.
            self.assertEqual({**figures, "hops_per_s": told["hops_per_s"]}, told)
        self.assertTrue(figures["finished"])
        self.assertNotEqual(ev.sim(20, duration="200ms", seed=4)["digest"], told["digest"])
        flags = ev.sim(20, duration="100ms", mode="unicast", key=True, hedging=0)
        self.assertEqual(flags["messages"], 500)

    def test_a_mistake_has_the_sentence_of_the_command(self):
        for options, words in [
            ({"rate": 0}, "--rate 0: must be above 0"),
            ({"receivers": 0}, "--receivers 0"),
            ({"mode": "radio"}, "radio"),
            ({"duration": "soon"}, "soon"),
        ]:
            with self.assertRaises(ev.SettingsError, msg=words) as raised:
                ev.sim(**options)
            self.assertIn(words, str(raised.exception))
        with self.assertRaises(TypeError):
            ev.sim(recievers=4)

    def test_ctrl_c_ends_the_simulation(self):
        self.assertLess(interrupted(lambda: ev.sim(1_000, duration="60s")), 1.0)

    def test_without_the_program_the_error_says_how_to_get_it(self):
        os.environ["EVENFALL_LAB"] = "/nonexistent/evenfall-lab"
        with self.assertRaisesRegex(ev.RunError, "cargo install --path lab"):
            ev.sim(10)
