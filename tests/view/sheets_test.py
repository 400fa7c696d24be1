#!/usr/bin/env python3
"""Opens the page of kept files in a headless Chromium and compares a picture of each sheet, dark and light, with a kept one
(pictures.py says how); then changes the style and the data, and sees that the comparison notices. The kept files are of four
ranks of view_program; their times never change, so the pictures need no tolerance but that for fonts.

    sheets_test.py --tinyshard build/release/cli/tinyshard --folder /tmp/sheets           compares
    sheets_test.py --tinyshard build/release/cli/tinyshard --folder /tmp/sheets --keep    makes the kept pictures anew
    sheets_test.py ... --keep --files build/release/tests/view/view_program               and the kept files as well
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

import chromium
import pictures

KEPT = pathlib.Path(__file__).resolve().parent / "kept"
SHEETS = ("Program", "Sharding", "Timeline", "Memory", "Schedule", "Graph", "Compare", "Training")


def picture_of(page, sheet, path):
    page.run(f"[...document.querySelectorAll('[role=tab]')].find(t => t.textContent === '{sheet}').click()")
    page.run("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
    page.picture(path)
    return pictures.read_png(path.read_bytes())


def first_run(browser, path, dark):
    page = browser.open(path.as_uri(), dark=dark)
    page.wait("document.documentElement.dataset.ready === 'yes'")
    page.run("(() => { const r = document.getElementById('run'); r.value = '0'; r.dispatchEvent(new Event('change')); })()")
    return page


def shortened(text):
    """The lines of the plan in which most moves and its first runs: what a picture needs."""
    lines = [json.loads(line) for line in text.splitlines()]
    step = max((l for l in lines if l["k"] == "plan"), key=lambda l: (len(l["moves"]), len(l["items"])))["plan"]
    kept, memory = [], 0
    for line in lines:
        if line["k"] == "head":
            line.update(host="host", pid=1)
        memory += line["k"] == "mem"
        if line["k"] in ("head", "code", "cut") or (line["k"] == "mem" and memory <= 120) or line.get("plan") == step:
            kept.append(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")
    return "".join(kept)


def make_files(options, folder):
    program = [options.files, "4", "-1"]
    for name, command in (("run", [options.tinyshard, "run", "-n", "4", "--", *program]), ("before", program)):
        devices = {"TS_DEVICES_PER_RANK": "4"} if name == "before" else {}
        subprocess.run(command, check=True, env=dict(os.environ, VIZ=str(folder / f"{name}.tsview"), **devices))
    KEPT.mkdir(exist_ok=True)
    for file in [*folder.glob("run.rank*.tsview"), folder / "before.tsview"]:
        (KEPT / file.name).write_text(shortened(file.read_text()))
    (KEPT / "losses.jsonl").write_text("".join(json.dumps({"step": i, "loss": round(4 / (1 + i), 4), "lr": 1e-3}) + "\n" for i in range(30)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tinyshard", type=pathlib.Path, required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--files", type=pathlib.Path)
    options = parser.parse_args()
    if not chromium.find():
        print("skipped: there is no Chromium")
        return 0
    folder = options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if options.files:
        make_files(options, folder)
    # Two runs, so that Compare has something to show: the ranks together, and one of them alone.
    run = folder / "sheets.html"
    subprocess.run([options.tinyshard, "view", "-o", run, *sorted(KEPT.glob("run.rank*.tsview")), KEPT / "before.tsview",
                    KEPT / "losses.jsonl"], check=True, stdout=subprocess.DEVNULL)
    wrong = []
    with chromium.Chromium() as browser:
        for dark in (False, True):
            page = first_run(browser, run, dark)
            for sheet in SHEETS if not dark else ("Sharding", "Timeline"):
                name = sheet.lower() + ("-dark" if dark else "")
                picture = picture_of(page, sheet, folder / f"{name}.png")
                kept = KEPT / f"{name}.png"
                if options.keep:
                    kept.write_bytes(pictures.write_png(pictures.small(picture)))
                share = pictures.difference(picture, pictures.read_png(kept.read_bytes()))
                print(f"{name}: {100 * share:.1f} % of the cells differ")
                if share > pictures.ALLOWED:
                    wrong.append(f"{name}: {100 * share:.1f} % of the cells differ from {kept}; see {folder / name}.png")
            if page.problems:
                wrong += page.problems
        # Changes that somebody would want to hear of are noticed.
        page = first_run(browser, run, False)
        kept = {s: pictures.read_png((KEPT / f"{s.lower()}.png").read_bytes()) for s in SHEETS}
        for sheet, change in (("Sharding", "document.querySelectorAll('main svg').forEach(s => s.remove())"),
                              ("Program", "document.querySelector('style').remove()"),
                              ("Timeline", "document.querySelector('canvas').getContext('2d').clearRect(0, 0, 3000, 3000)"),
                              ("Memory", "document.querySelector('main svg').remove()")):
            picture_of(page, sheet, folder / "changed.png")
            page.run(change)
            page.picture(folder / "changed.png")
            share = pictures.difference(pictures.read_png((folder / "changed.png").read_bytes()), kept[sheet])
            print(f"{sheet} after {change[:50]}: {100 * share:.1f} %")
            if share <= pictures.ALLOWED:
                wrong.append(f"a change of {sheet} is not noticed: {100 * share:.1f} %")
            if sheet == "Program":
                page = first_run(browser, run, False)
    for line in wrong:
        print(line)
    print("failed" if wrong else "passed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
