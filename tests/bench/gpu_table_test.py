"""gpu_table_test.py DRIVER BUILD: the driver of the GPU table with small sizes on CPU devices."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

DRIVER, BUILD = sys.argv[1:3]
del sys.argv[1:3]
sys.path.insert(0, str(pathlib.Path(DRIVER).parent))
from gpu_rows import PARTS  # noqa: E402


def run(*arguments):
    return subprocess.run([sys.executable, DRIVER, *arguments], text=True, capture_output=True)


def case(us, steps):
    return {"us": us, "p10": us / 2, "p90": us * 2, "n": 7, "steps": steps, "rate": 0, "unit": ""}


class FakeRuns:
    """Programs that print runs of several steps, as they do where devices record."""

    device, quick = "CUDA", True

    def __init__(self):
        self.asked = []

    def ours(self, program, *arguments, env=None):
        return {"mlp": case(100, 1), "mlp, in a row": case(300, 30)}

    def peer(self, script, *arguments):
        self.asked.append(list(arguments))
        return {"mlp": case(110, 1), "mlp, in a row": case(600, 30)}


class Rows(unittest.TestCase):
    def test_times_are_those_of_a_step(self):
        runs = FakeRuns()
        rows = {row["row"]: row for row in PARTS["mlp"](runs)}
        row = rows["mlp, in a row, TF32, BEAM=8"]
        self.assertEqual([row[key] for key in ("ours", "p10", "p90", "theirs", "steps")], [10, 5, 20, 20, 30])
        self.assertEqual(rows["mlp, f32"]["ours"], 100)
        for asked in runs.asked:  # the peer does as many in a row as we did
            self.assertEqual(asked[asked.index("--in-a-row") + 1], 30)


class GpuTable(unittest.TestCase):
    def test_every_part_gives_figures(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "table.json"
            done = run(BUILD, "--device", "CPU", "--gpus", "2", "--quick", "--no-peers", "--json", str(path))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            table = json.loads(path.read_text())
        figures = {}
        for row in table["rows"]:
            figures.setdefault(row["part"], []).append(row)
            self.assertTrue(row["ours"] or row["note"], row)
            self.assertIn(row["row"], done.stdout)
        parts = {"gpt2", "larger", "beam", "gpus", "kernels", "products", "attention", "all-reduce", "replay", "mlp"}
        self.assertEqual(set(figures), parts)
        for part, rows in figures.items():
            self.assertTrue(any(row["ours"] and row["ours"] > 0 for row in rows), part)
        softmax = next(row for row in figures["kernels"] if row["row"] == "softmax_f32")
        self.assertAlmostEqual(softmax["ratio"], softmax["ours"] / softmax["theirs"])
        exact = 1 + 1e-9  # rates are computed from times
        self.assertLessEqual(softmax["p10"], softmax["ours"] * exact)
        self.assertLessEqual(softmax["ours"], softmax["p90"] * exact)
        self.assertIn("not asked for", figures["mlp"][0]["note"])
        self.assertEqual([row["steps"] for row in figures["replay"]], [1000])
        self.assertTrue(any("CPU" in line for line in table["machine"]["found"]))

    def assert_stops(self, text, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn(text, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_mistakes_are_told_in_a_line(self):
        self.assert_stops('there is no "convolutions"', BUILD, "--rows", "mlp,convolutions")
        self.assert_stops("is no build of tinyshard", "/nowhere")
        self.assert_stops("no such folder", BUILD, "--json", "/nowhere/table.json")
        self.assert_stops("no device of kind TPU", BUILD, "--device", "TPU")
        self.assert_stops("--gpus 1025: there are 1024", BUILD, "--device", "CPU", "--gpus", "1025")

    def test_too_few_devices_are_no_failure(self):
        done = run(BUILD, "--device", "CPU", "--gpus", "1", "--rows", "gpus,all-reduce", "--quick", "--no-peers")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("takes two GPUs or more"), 2)

    def test_a_program_that_fails_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder)
            (build / "cli").mkdir()
            (build / "cli/tinyshard").symlink_to(pathlib.Path(BUILD).resolve() / "cli/tinyshard")
            done = run(folder, "--device", "CPU", "--rows", "mlp,replay", "--no-peers")
        self.assertEqual(done.returncode, 1)
        self.assertIn("steps_bench", done.stdout)


unittest.main()
