#!/usr/bin/env python3
"""Opens the page of `tinyshard view` in a headless Chromium: of a job of four ranks, of plans for 8 and 1,024
devices, of damaged files. Each sheet is drawn, searched and clicked; the console stays empty; nothing is requested.

    page_test.py --tinyshard build/release/cli/tinyshard --program build/release/tests/view/view_program --folder /tmp/pages
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

import chromium

SHEETS = ("Program", "Sharding", "Timeline", "Memory", "Schedule", "Graph", "Compare", "Training")


def check(holds, *what):
    if not holds:
        raise AssertionError(" ".join(map(str, what)))


def run(command, **environment):
    result = subprocess.run([str(c) for c in command], env=dict(os.environ, **environment), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240)
    check(result.returncode == 0, command, result.stdout)
    return result.stdout


def rows(page, table=0):
    return page.run(f"document.querySelectorAll('main table')[{table}].tBodies[0].rows.length")


def open_page(browser, path, dark=False):
    page = browser.open(path.as_uri(), dark=dark)
    page.wait("document.documentElement.dataset.ready === 'yes'")
    return page


def choose(page, sheet):
    page.run(f"[...document.querySelectorAll('[role=tab]')].find(t => t.textContent === '{sheet}').click()")
    check(page.run("document.querySelector('[role=tab][aria-selected=true]').textContent") == sheet, sheet)
    check(page.run("document.querySelector('[role=alert]') === null"), sheet,
          page.run("document.querySelector('main').textContent.slice(0, 300)"))


def type_into_search(page, text):
    page.run("(() => { const s = document.querySelector('main input[type=search]'); s.value = %s;"
             " s.dispatchEvent(new Event('input')); })()" % json.dumps(text))


def look_at_sheets(page, folder, name, runs):
    """Each sheet that has rows is searched and clicked."""
    for sheet in SHEETS:
        choose(page, sheet)
        page.picture(folder / f"{name}-{sheet.lower()}.png")
        check(page.run("document.querySelector('main').textContent.length") > 20, sheet, "is empty")
        if not page.run("document.querySelector('main input[type=search]') !== null") or sheet in ("Compare", "Training"):
            continue
        table = 1 if sheet == "Graph" else 0
        before = rows(page, table)
        check(before > 0, sheet, "has no rows")
        type_into_search(page, "no such words")
        check(rows(page, table) == 0, sheet, "is not searched")
        type_into_search(page, "")
        check(rows(page, table) == before, sheet)
        page.run(f"document.querySelectorAll('main table')[{table}].tHead.querySelector('th:last-child button').click()")
        if page.run(f"document.querySelectorAll('main table')[{table}].tBodies[0].rows[0].tabIndex") == 0:
            page.run(f"document.querySelectorAll('main table')[{table}].tBodies[0].rows[0].click()")
            check(page.run("document.querySelector('main tr[aria-selected=true]') !== null"), sheet, "is not clicked")
    if runs:
        choose(page, "Timeline")
        page.run("document.querySelector('canvas').focus()")
        for key in ("ArrowRight", "+", "-", "ArrowLeft"):
            page.press(key)
        check(page.run("document.querySelector('canvas').width") > 300, "the timeline is not drawn")


def drawn_after(page, seconds):
    """When the page was drawn first, by its own clock. The limit is three times what is promised: machines of tests are busy."""
    ready = page.run("performance.timeOrigin && Number(document.documentElement.dataset.readyAfter)") / 1e3
    check(0 < ready < 3 * seconds, "drawn after", ready, "s")
    return f"drawn after {ready:.2f} s"


def look_at_many_nodes(browser, options, folder):
    """A graph of 10,000 nodes: those of a plan, again and again."""
    lines = [json.loads(l) for l in (folder / "plan8.tsview").read_text().splitlines()]
    plan = max((l for l in lines if l["k"] == "plan"), key=lambda l: len(l["nodes"]))
    nodes, passes, most = plan["nodes"], plan["passes"], max(n[0] for n in plan["nodes"]) + 1
    for copy in range(1, 1 + 10000 // len(nodes)):
        shift = copy * most
        plan["nodes"] = plan["nodes"] + [[n[0] + shift, n[1], [s + shift for s in n[2]], n[3]] for n in nodes]
        for p in passes:
            for key in ("added", "removed", "roots"):
                p[key] = p[key] + [i + shift for i in p[key] if i < most]
            p["nodes"] = p["nodes"] + len([i for i in p["added"] if i < most])
    (folder / "many.tsview").write_text("".join(json.dumps(l) + "\n" for l in lines))
    run([options.tinyshard, "view", folder / "many.tsview"])
    page = browser.open((folder / "many.html").as_uri() + "#graph")
    page.wait("document.documentElement.dataset.ready === 'yes'")
    print(f"{len(plan['nodes'])} nodes, {drawn_after(page, 3)}")
    choose(page, "Graph")
    check(page.problems == [], page.problems)


def look_at_job(browser, options, folder):
    """A job of four ranks, of which rank 2 is slow."""
    print(run([options.tinyshard, "run", "-n", "4", "--view", folder / "job.tsview", "--", options.program, "100", "2"]))
    size = sum(f.stat().st_size for f in folder.glob("job.rank*.tsview"))
    check(size < 20 << 20, "the files take", size)
    page = open_page(browser, folder / "job.html")
    print(f"files {size} bytes, page {(folder / 'job.html').stat().st_size} bytes, {drawn_after(page, 1)}")
    look_at_sheets(page, folder, "job", runs=True)
    # A sentence leads to the sheet, the plan and the item that it speaks of.
    choose(page, "Program")
    sentence = page.run("[...document.querySelectorAll('.findings button')].map(b => b.textContent).find(t => t.startsWith('The slowest item is '))")
    page.run("[...document.querySelectorAll('.findings button')].find(b => b.textContent.startsWith('The slowest item is ')).click()")
    check(page.run("document.querySelector('[role=tab][aria-selected=true]').textContent") == "Schedule", "another sheet is shown")
    shown = page.run("document.querySelector('.stick h2').textContent").split(" · ", 1)[1]
    check(sentence.startswith("The slowest item is " + shown), sentence, "leads to", shown)
    choose(page, "Program")
    page.run("[...document.querySelectorAll('.findings button')].find(b => b.textContent.includes(' sends most, ')).click()")
    check(rows(page) > 0 and page.run("document.querySelector('main h2').textContent") == "What moves, and why", "a plan is shown in which nothing moves")
    choose(page, "Timeline")
    check("Rank 2 waits least" in page.run("document.querySelector('main').textContent"),
          page.run("document.querySelector('main').textContent"))
    choose(page, "Sharding")
    check("all_reduce" in page.run("document.querySelector('main').textContent"), "no movement is told")
    check("Choices of the planner" in page.run("document.querySelector('main').textContent"), "no choice is told")
    page.run("document.querySelector('table[aria-label=choices] tbody tr').click()")
    check(page.run("document.querySelectorAll('table[aria-label=\"ways of this op\"] tbody tr').length") >= 2, "no other way is told")
    choose(page, "Graph")
    page.run("[...document.querySelectorAll('table[aria-label=passes] tbody tr')].find(r => +r.cells[4].textContent > 0).click()")
    page.run("[...document.querySelectorAll('main button')].find(b => b.textContent.startsWith('Rules (')).click()")
    check(page.run("document.querySelectorAll('table[aria-label=rules] tbody tr').length") > 0, "no rule is told")
    check(page.run("document.querySelector('pre[aria-label=difference]').textContent.startsWith('− ')"), "no difference is told")
    choose(page, "Sharding")
    check("program.cpp:" in page.run("document.querySelector('main').textContent"), "no line is told")
    check(page.run("document.querySelectorAll('.move svg').length") >= 3, "the movement is not drawn")
    run([options.tinyshard, "view", "--perfetto", folder / "trace.json", *sorted(folder.glob("job.rank*.tsview"))])
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    check({e["pid"] for e in events} == {0, 1, 2, 3}, "ranks are missing in the trace")
    check(any(e["name"].startswith("waits for #") for e in events), "waits are missing in the trace")
    # A dim of 7 over two devices: 4 and 3 of 7 of its height.
    check(page.run("JSON.stringify(boxOf({axes: [{name: 'd', size: 2}], devices: []}, [0], [7, 5], 1))") == "[[4,7],[0,5]]")
    check(page.run("JSON.stringify([0, 1, 2, 3].map(i => boxOf({axes: [{size: 2}, {size: 2}], devices: []}, [0, 0], [5], i)))")
          == "[[[0,2]],[[2,3]],[[3,5]],[[5,5]]]")
    page.run("document.getElementById('theme').click()")
    check(page.run("document.documentElement.classList.contains('dark')"), "not dark")
    check(page.problems == [], page.problems)
    check([r for r in page.requests if not r.startswith("file:")] == [], page.requests)


def look_at_plan(browser, options, folder, devices):
    name = f"plan{devices}"
    run([options.program, "1"], VIZ=str(folder / f"{name}.tsview"), TS_DEVICES="NULL", TS_DEVICES_PER_RANK=str(devices))
    check(run([options.tinyshard, "view", folder / f"{name}.tsview"]).strip() == str(folder / f"{name}.html"))
    page = open_page(browser, folder / f"{name}.html", dark=True)
    look_at_sheets(page, folder, name, runs=False)
    check("planned only" in page.run("(location.hash = '#program', document.querySelector('main').textContent)")
          or page.run("document.querySelector('main').textContent.includes('planned')"), "says not that it is a plan")
    check(page.problems == [], page.problems)


def look_at_training(browser, options, folder):
    with open(folder / "losses.jsonl", "w") as file:
        for step in range(50):
            file.write(json.dumps({"step": step, "loss": 4 / (1 + step), "lr": 1e-3}) + "\n")
    run([options.tinyshard, "view", "-o", folder / "two.html", folder / "plan8.tsview", folder / "plan1024.tsview",
         folder / "losses.jsonl"])
    page = open_page(browser, folder / "two.html")
    choose(page, "Training")
    check(page.run("document.querySelectorAll('main .charts svg').length") == 2, "the curves are not drawn")
    choose(page, "Compare")
    check(rows(page) > 3, "nothing is compared")
    check(page.problems == [], page.problems)


def look_at_damaged_files(browser, options, folder):
    """Names that HTML would run, then bytes that nobody wrote."""
    text = (folder / "plan8.tsview").read_bytes()
    for hostile in (b"</script><script>window.pwned=1</script>", b"<img src=x onerror=window.pwned=1>", b"\\u003cscript>", b"\xff\xfe",
                    b"javascript:window.pwned=1"):
        text = text.replace(b"program.cpp", hostile, 40)
    random.seed(11)
    for n in range(12):
        damaged = bytearray(text)
        for _ in range(3 ** (n % 6)):
            at = random.randrange(len(damaged))
            damaged[at] = random.choice(b"<>\"'&{}[],:0123456789e-\\\x00\xff")
        (folder / "damaged.tsview").write_bytes(damaged)
        run([options.tinyshard, "view", folder / "damaged.tsview"])
        page = open_page(browser, folder / "damaged.html")
        for sheet in SHEETS:
            page.run(f"location.hash = '#{sheet.lower()}'")
            page.run("document.querySelectorAll('main tr[tabindex]').forEach((r, i) => { if (i < 5) r.click(); })")
        check(page.run("window.pwned") is None, "a script of the data ran")
        check([p for p in page.problems if "Content Security" in p or "dialog" in p] == [], page.problems)
        check([r for r in page.requests if not r.startswith("file:")] == [], page.requests)


def look_at_running_job(page, file):
    """Lines that come while the page is open are shown without a reload, but not while somebody uses the sheet."""
    lines = iter(file.with_suffix(".rest").read_text().splitlines(keepends=True))
    runs = lambda: page.run("+(document.getElementById('plan').selectedOptions[0].textContent.match(/(\\d+) run/) || [0, 0])[1]")
    page.run("window.is_the_same_page = true")
    choose(page, "Timeline")
    before = runs()

    def write(n):
        with open(file, "a") as out:
            for _ in range(n):
                line = next(lines)
                out.write(line[:10])
                out.flush()
                time.sleep(0.01)
                out.write(line[10:])

    write(40)
    page.wait(f"+(document.getElementById('plan').selectedOptions[0].textContent.match(/(\\d+) run/) || [0, 0])[1] > {before}")
    check(page.run("document.querySelector('[role=tab][aria-selected=true]').textContent") == "Timeline", "another sheet is shown")
    choose(page, "Schedule")
    page.run("document.querySelector('main tbody tr').dispatchEvent(new Event('pointerdown', {bubbles: true}))")
    page.run("document.querySelector('main table').dataset.mine = 'yes'")
    write(10)
    page.wait("!document.getElementById('live-show').hidden")
    check(page.run("document.querySelector('main table').dataset.mine") == "yes", "a sheet in use was drawn anew")
    page.run("document.getElementById('live-show').click()")
    page.wait("document.querySelector('main table').dataset.mine === undefined")
    # A run that begins anew takes the place of the one before.
    file.write_text(file.with_suffix(".begin").read_text())
    page.wait("document.getElementById('plan').selectedOptions[0] && !/(\\d+) run/.test(document.getElementById('plan').selectedOptions[0].textContent)")
    check(page.run("window.is_the_same_page") is True, "the page was loaded anew")


def look_at_server(browser, options, folder):
    everything = (folder / "job.rank0.tsview").read_text().splitlines(keepends=True)
    cut = next(i for i, line in enumerate(everything) if line.startswith('{"k":"run"'))
    (folder / "live.begin").write_text("".join(l for l in everything[:cut]))
    (folder / "live.rest").write_text("".join(l for l in everything[cut:]))
    shutil.copy(folder / "live.begin", folder / "live.tsview")
    server = subprocess.Popen([options.tinyshard, "view", "--port", "0", folder / "live.tsview"], stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip()
        page = browser.open(address)
        page.wait("document.documentElement.dataset.ready === 'yes'")
        check([p for p in page.problems if "favicon" not in p and "403" not in p] == [], page.problems)
        look_at_running_job(page, folder / "live.tsview")
        root = address.rsplit("/", 2)[0]
        for path in ("/", "/" + "0" * 64 + "/", "/../etc/passwd"):
            try:
                urllib.request.urlopen(root + path, timeout=10)
                check(False, path, "is served")
            except urllib.error.HTTPError as error:
                check(error.code == 403, path, error.code)
    finally:
        server.terminate()
        server.wait()


def main():
    parser = argparse.ArgumentParser()
    for name in ("tinyshard", "program", "folder"):
        parser.add_argument("--" + name, type=pathlib.Path, required=True)
    options = parser.parse_args()
    if not chromium.find():
        print("skipped: there is no Chromium")
        return
    folder = options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with chromium.Chromium() as browser:
        look_at_job(browser, options, folder)
        look_at_plan(browser, options, folder, 8)
        look_at_plan(browser, options, folder, 1024)
        look_at_many_nodes(browser, options, folder)
        look_at_training(browser, options, folder)
        look_at_damaged_files(browser, options, folder)
        look_at_server(browser, options, folder)
    print("passed")


if __name__ == "__main__":
    sys.exit(main())
