"""A tree from a matrix is the tree of `evenfall plan tree`, and mistakes have its words."""

import json

import numpy
import pandas

import evenfall as ev

from workplace import Case, program


class Planned(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.matrix = 40.0 + numpy.random.default_rng(7).gamma(3.0, 6.0, (20, 20)).round(3)
        numpy.fill_diagonal(cls.matrix, 0.0)
        cls.file = cls.directory / "delays.csv"
        numpy.savetxt(cls.file, cls.matrix, delimiter=",")

    def command(self, *arguments):
        told = program("plan", "tree", "--owd", self.file, "--json", *arguments)
        return json.loads(told)

    def test_the_tree_is_that_of_the_command(self):
        for options in [
            {"depth": 1, "fanout": 4},
            {"depth": 2, "fanout": 3, "hedging": 0, "seed": 5, "method": "lemondrop 3"},
            {"depth": 1, "fanout": 6, "hedging": 0, "percentile": 75.0},
            {"depth": 2, "fanout": 2, "hedging": 0, "method": "weighted", "candidates": 5},
            {"depth": 2, "fanout": 2, "hedging": 0, "correct_clocks": True},
        ]:
            words = [
                [f"--{name.replace('_', '-')}"] + ([str(value)] if value is not True else [])
                for name, value in options.items()
            ]
            told, plan = self.command(*sum(words, [])), ev.plan(self.matrix, **options)
            # Files without names number their hosts from 1, Python numbers rows from 0.
            self.assertEqual([str(host + 1) for host in plan.tree], told["tree"], options)
            for name in ("worst_leaf_us", "bound_us", "gap"):
                self.assertEqual(getattr(plan, name), told[name], options)
            places = [None, *((place - 1) // options["fanout"] for place in range(1, len(plan.tree)))]
            parents = [None if place is None else plan.tree[place] for place in places]
            self.assertEqual(plan.parents, dict(zip(plan.tree, parents)))
            worst = None if plan.worst_leaf is None else str(plan.worst_leaf + 1)
            self.assertEqual(worst, told["worst_leaf"])

    def test_predicted_delays_add_up_along_the_parents(self):
        plan = ev.plan(self.matrix, depth=2, fanout=3, hedging=0)
        self.assertEqual((len(plan.tree), plan.parents[plan.root], plan.delays_us[plan.root]), (13, None, 0))
        for host, parent in plan.parents.items():
            if parent is not None:
                way = plan.delays_us[parent] + self.matrix[parent][host]
                self.assertAlmostEqual(plan.delays_us[host], way, places=2)
        self.assertEqual(max(plan.delays_us.values()), plan.worst_leaf_us)
        self.assertEqual(plan.delays_us[plan.worst_leaf], plan.worst_leaf_us)
        self.assertIn("worst leaf", repr(plan))

    def test_every_form_of_the_matrix_gives_the_same_tree(self):
        wanted = ev.plan(self.matrix, depth=2, fanout=3, hedging=0).tree
        single = self.matrix.astype("float32")
        for form in [
            self.matrix.tolist(),
            numpy.asfortranarray(self.matrix),
            numpy.repeat(self.matrix, 2, axis=1)[:, ::2],
            pandas.DataFrame(self.matrix),
            [tuple(row) for row in self.matrix],
        ]:
            self.assertEqual(ev.plan(form, depth=2, fanout=3, hedging=0).tree, wanted)
        self.assertEqual(ev.plan(single, depth=2, fanout=3, hedging=0).tree, ev.plan(single.tolist(), depth=2, fanout=3, hedging=0).tree)
        whole = self.matrix.round().astype(int)
        self.assertEqual(len(ev.plan(whole, depth=2, fanout=3, hedging=0).tree), 13)
        names = [f"host-{number}" for number in range(20)]
        named = ev.plan(self.matrix, depth=2, fanout=3, hedging=0, names=names)
        self.assertEqual(named.tree, [names[host] for host in wanted])
        self.assertEqual(ev.plan(self.matrix, depth=1, fanout=3, hedging=0, names=names, root="host-4").root, "host-4")
        self.assertEqual(ev.plan(self.matrix, depth=1, fanout=3, hedging=0, root=4).root, 4)

    def test_mistakes_say_what_is_wrong_and_where(self):
        hole = self.matrix.copy()
        hole[2, 5] = numpy.nan
        for matrix, options, words in [
            (hole, {}, "row 3 (3), column 6 (6): NaN, but a delay is above 0"),
            (-self.matrix, {}, "row 1 (1), column 2 (2): -"),
            (self.matrix[:, :19], {}, "row 1: 19 cells for 20 hosts"),
            (self.matrix[0], {}, "an array of 1 dimensions"),
            ("delays.csv", {}, "is no matrix"),
            ([[0.0]], {}, "two hosts at least"),
            (self.matrix, {"names": ["a", "b"]}, "2 names for 20 hosts"),
            (self.matrix, {"names": ["a"] * 20}, 'two hosts are named "a"'),
            (self.matrix, {"root": 20}, "root = 20: the matrix has no such host"),
            (self.matrix, {"root": "x"}, 'root = "x": the matrix has no such host'),
            (self.matrix, {"method": "best"}, "allowed: minmax, greedy"),
            (self.matrix, {"hedging": 17}, "hedging = 17: must be 0 to 16"),
            (self.matrix, {"hedging": -1}, "hedging = -1: must be a whole number"),
            (self.matrix, {"roots": 0}, "roots = 0: must be 1 to 1000"),
            (self.matrix, {"percentile": 10.0}, "percentile"),
            (self.matrix, {"depth": 4}, "missing"),
        ]:
            with self.assertRaises(ev.SettingsError, msg=words) as raised:
                ev.plan(matrix, **{"depth": 2, "fanout": 3, **options})
            self.assertIn(words, str(raised.exception))
        with self.assertRaisesRegex(TypeError, "no argument seeds; it has names, root"):
            ev.plan(self.matrix, depth=2, fanout=3, seeds=4)
