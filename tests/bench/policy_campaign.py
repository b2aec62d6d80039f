"""Every policy at 60, 80, 95 and 110 % of what least_tokens can serve, in the simulator, and the goodput of each.

    /usr/bin/python3 tests/bench/policy_campaign.py --trace TRACE --work FOLDER

TRACE is Mooncake's conversation trace; docs/balancing.md says where it comes from. Every run is kept in FOLDER, and
what is there is not run again, so that a campaign that was stopped goes on (half an hour altogether, on one core); a
FOLDER of another build, scenario or trace is refused. Prints Markdown tables: means of all seeds, ± half the span
between them where it shows. --csv writes the rows of each seed.
"""

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("MILLRACE_BIN", ROOT / "build" / "release" / "bin"))
SCENARIOS = ("conversation", "agents")
COSTS = ROOT / "deploy" / "config" / "costs" / "v41-flash-h800.json"  # the scenarios name it
PUSH_POLICIES = ("round_robin", "least_requests", "least_tokens", "power_of_two", "moving_buckets", "overlap_credit")
WITHOUT = tuple(f"millrace:{layer}" for layer in ("no_buckets", "no_pull", "no_rank_choice", "no_variable_chunk"))
LOADS = (60, 80, 95, 110)
OVERLOAD = 1.4  # of the scenario's own rate: what is served at it is the capacity

# (heading, where it is in a summary, factor, digits)
COLUMNS = (("TTFT p50 s", ("ttft_s", "p50"), 1, 3), ("p99 s", ("ttft_s", "p99"), 1, 2),
           ("TPOT p50 ms", ("tpot_ms", "p50"), 1, 1), ("p99 ms", ("tpot_ms", "p99"), 1, 1),
           ("in limits %", ("within_limits",), 100, 2), ("prefill max/mean", ("prefill_max_over_mean",), 1, 3),
           ("decode", ("decode_max_over_mean",), 1, 3), ("prefill busy %", ("prefill_utilisation",), 100, 1))


def scenario_file(name):
    return ROOT / "tests" / "sim" / "scenarios" / f"{name}.toml"


class Campaign:
    """Runs of the simulator that are kept in a folder."""

    def __init__(self, folder, trace):
        """Raises ValueError when the folder has runs of something else."""
        self.folder = folder
        self.trace = trace
        folder.mkdir(parents=True, exist_ok=True)
        made_of = hashlib.sha256()
        for path in (BIN / "millrace-simulate", COSTS, trace, *(scenario_file(name) for name in SCENARIOS)):
            made_of.update(hashlib.sha256(path.read_bytes()).digest())
        stamp = folder / "made_of"
        if stamp.exists() and stamp.read_text() != made_of.hexdigest():
            raise ValueError(f"{folder} has runs of another build, scenario, cost file or trace; name another folder")
        stamp.write_text(made_of.hexdigest())

    def run(self, scenario, policy, seed, load, *options):
        """The JSON of a run, or of a search with --goodput."""
        kind = "goodput" if "--goodput" in options else f"{load:.5f}"
        kept = self.folder / f"{scenario}-{policy.replace(':', '.')}-{seed}-{kind}.json"
        if not kept.exists():
            unfinished = kept.with_suffix(".part")
            command = [BIN / "millrace-simulate", "cluster", "--quiet", "--policy", policy, "--seed", str(seed),
                       "--scenario", scenario_file(scenario),
                       "--load", f"{load:.5f}", "--json", unfinished, *options]
            if scenario == "conversation":
                command += ["--set", f"arrivals.trace={self.trace}"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            unfinished.rename(kept)
            print(f"{scenario} {policy} seed {seed} {kind}", file=sys.stderr)
        return json.loads(kept.read_text())

    def summary(self, scenario, policy, seed, load):
        return self.run(scenario, policy, seed, load)["policies"][0]

    def capacity(self, scenario, seeds):
        """Requests a second that least_tokens serves when far more arrive, and that as a --load."""
        runs = [self.summary(scenario, "least_tokens", seed, OVERLOAD) for seed in seeds]
        served = sum(run["served_per_s"] for run in runs) / len(runs)
        offered = sum(run["offered_per_s"] for run in runs) / len(runs)
        return served, OVERLOAD * served / offered


def cell(values, digits):
    mean = sum(values) / len(values)
    half = (max(values) - min(values)) / 2
    return f"{mean:.{digits}f}" + (f" ± {half:.{digits}f}" if half >= 0.5 * 10 ** -digits else "")


def value(summary, path, factor):
    for key in path:
        summary = summary[key]
    return summary * factor


def compare(campaign, scenario, seeds, loads, rows):
    served, unit = campaign.capacity(scenario, seeds)
    print(f"\n{scenario}: least_tokens serves {served:.0f} requests/s\n")
    print("| load % | policy | " + " | ".join(name for name, *_ in COLUMNS) + " |")
    print("| ---: | --- |" + " ---: |" * len(COLUMNS))
    for load in loads:
        for policy in ("millrace", *PUSH_POLICIES, *WITHOUT):
            runs = [campaign.summary(scenario, policy, seed, unit * load / 100) for seed in seeds]
            cells = [[value(run, path, factor) for run in runs] for _, path, factor, _ in COLUMNS]
            print(f"| {load} | {policy} | " +
                  " | ".join(cell(values, digits) for values, (*_, digits) in zip(cells, COLUMNS)) + " |", flush=True)
            for i, seed in enumerate(seeds):
                rows.append([scenario, load, policy, seed, round(runs[i]["offered_per_s"], 1),
                             *(f"{values[i]:.4f}" for values in cells)])


def goodput(campaign, scenario, seeds):
    print(f"\n{scenario}: highest rate with 90 % of requests in the limits\n\n| policy | requests/s |\n| --- | ---: |")
    for policy in ("millrace", *PUSH_POLICIES):
        found = [campaign.run(scenario, policy, seed, 1, "--goodput")["goodput"][0]["offered_per_s"] for seed in seeds]
        print(f"| {policy} | {cell(found, 0)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True, help="the conversation trace, .jsonl or .jsonl.gz")
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--no-goodput", action="store_true", help="leave the search for the highest rates out")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=SCENARIOS)
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS, help="%% of the capacity of least_tokens")
    parser.add_argument("--csv", type=Path, help="the rows of each seed go here")
    options = parser.parse_args()
    if not options.trace.is_file():
        parser.error(f"{options.trace} is not there")
    try:
        campaign = Campaign(options.work, options.trace.resolve())
    except ValueError as error:
        parser.error(str(error))
    rows = []
    for scenario in options.scenarios:
        compare(campaign, scenario, options.seeds, options.loads, rows)
    for scenario in () if options.no_goodput else options.scenarios:
        goodput(campaign, scenario, options.seeds)
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["scenario", "load %", "policy", "seed", "offered/s", *(name for name, *_ in COLUMNS)])
            writer.writerows(rows)


if __name__ == "__main__":
    main()
