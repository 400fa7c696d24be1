"""What the peers have in common: rows printed as bench/measure.h prints them."""
import json
import statistics


def print_row(case, us, work=0.0, unit="", steps=1):
    """us: microseconds of each run; work: what one run does, in `unit` times a second; steps: how many are in a run."""
    us = sorted(us)
    median = statistics.median(us)
    row = {"case": case, "us": median, "p10": us[(len(us) - 1) // 10], "p90": us[(len(us) - 1) * 9 // 10],
           "n": len(us), "steps": steps, "rate": work / median * 1e6 if work else 0, "unit": unit}
    print(json.dumps(row), flush=True)
