"""The same requests through real workers and through the simulator.

    /usr/bin/python3 tests/bench/balance_live.py                                   # one prefill, one decode worker
    /usr/bin/python3 tests/bench/balance_live.py --prefill 2 --decode 2 --policies millrace,round_robin --rounds 5

Requests are the first rows of a Mooncake trace, their lengths divided so that they fit nano's context, as prompts of
random tokens without stored KV. They arrive spread over the 3 s that a time stamp of the trace stands for, at a speed
at which prefill should be busy for --load of the time. Prefill workers share one core and everything else another
(balance_cluster.py); with several policies the runs alternate.

What the simulator is told was measured beside the requests that are compared: the cost file of `millrace bench fit`
on the prefill core; delays of lone requests on an idle cluster; and before and after each run, how many times as long
as the cost file says prefill takes for a burst of other prompts of the same lengths: caches are colder than in the
fit, and a machine that others use is not equally fast all the time. The simulator's prefill ranks are slower by the
mean of the two. Two workers on a core are modelled as such: each gets on at its share of the core. Exit status 1: with
one worker of a role, a TTFT p50 is off by more than 25 %; or of two policies that the simulator separates by 20 % or
more in TTFT p50, live has the other first. 2: that cannot be said of a pair, because the machine was not equally fast
in the runs of both (5 %); repeat it on a quieter one.
"""

import argparse
import gzip
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import balance_cluster
from balance_cluster import OTHER_CORE, PREFILL_CORE, PinnedCluster, Request, cluster, load_average

TRACE = cluster.ROOT / "tests/data/mooncake_conversation_500.jsonl.gz"
TICK_S = 3  # requests of a time stamp came within so long after it
STEP_ROWS = 256
MOST_TOKENS = 4000  # of nano's context of 4,096
BLOCK_TOKENS = 128
TAIL_ROWS = 128
BURST = 60  # requests, about three seconds of prefill
P50_TOLERANCE = 0.25
SEPARATION = 0.20
SAME_SPEED = 0.05


def fit_costs(path, seconds):
    """Measures steps on the prefill core, with the threads that workers have."""
    command = ["taskset", "-c", PREFILL_CORE, cluster.BIN / "millrace", "bench", "fit", "--model", cluster.NANO,
               "--threads", 1, "--step-rows", STEP_ROWS, "--max-context", 4096, "--seconds", seconds, "--out", path]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)


def step_cost_s(prefill, rows, cached, tail):
    """As dataplane/cost/cost_model.h has it."""
    return 1e-9 * (prefill["quadratic"] * rows * rows + prefill["cross"] * rows * cached + prefill["linear"] * rows +
                   prefill["fixed"] + prefill["tail"] * tail + prefill["tail_cross"] * tail * (cached + rows))


def prompt_cost_s(prefill, tokens):
    total = 0
    for done in range(0, tokens, STEP_ROWS):
        rows = min(STEP_ROWS, tokens - done)
        total += step_cost_s(prefill, rows, done, max(0, rows - max(0, tokens - done - TAIL_ROWS)))
    return total


def read_requests(options, prefill, factor):
    """The trace's first requests, at the speed that makes the load when steps take `factor` times their cost."""
    rng = random.Random(options.seed)
    rows = []
    with gzip.open(options.trace, "rt", encoding="ascii") as file:
        for line in itertools.islice(file, options.requests):
            row = json.loads(line)
            output = max(1, row["output_length"] // options.divide)
            tokens = max(1, min(row["input_length"] // options.divide, MOST_TOKENS - output))
            rows.append((row["timestamp"] / 1000 + TICK_S * rng.random(), tokens, output))
    rows.sort()
    work_s = factor * sum(prompt_cost_s(prefill, tokens) for _, tokens, _ in rows)
    speed = (rows[-1][0] - rows[0][0]) * options.load / work_s
    return [Request((at - rows[0][0]) / speed, [rng.randrange(300, 1500) for _ in range(tokens)], output)
            for at, tokens, output in rows]


def measure_delays(own):
    """What lone requests take beside engine steps, in ms; what a decode worker has room for."""
    rng = random.Random(7)

    def lone(tokens):
        before, decode_before = own.steps("prefill"), own.steps("decode")
        timing = balance_cluster.ask(own.entrypoint, Request(0, [rng.randrange(300, 1500) for _ in range(tokens)], 16))
        after, decode_after = own.steps("prefill"), own.steps("decode")
        decode_ms = 1000 * (decode_after[1] - decode_before[1]) / (decode_after[0] - decode_before[0])
        return (1000 * (timing.ttft_s - (after[1] - before[1])), timing.gaps_ms[0] - decode_ms,
                statistics.median(timing.gaps_ms[1:]) - decode_ms)

    for _ in range(5):  # memory that is touched for the first time
        lone(1024)
    outside, handover, decode_overhead = (statistics.median(values) for values in zip(*(lone(32) for _ in range(20))))
    blocks = cluster.read_metrics(own.workers("decode")[0]["metrics_address"])["millrace_kv_blocks_capacity"]
    return {"network_delay_ms": max(0.0, outside / 2), "handover_ms": max(0.0, handover),
            "decode_step_overhead_ms": max(0.0, decode_overhead), "kv_tokens": int(blocks) * BLOCK_TOKENS}


def quantile(values, share):
    """Nearest rank, as the simulator has it."""
    ordered = sorted(values)
    return ordered[max(1, math.ceil(share * len(ordered))) - 1] if ordered else 0.0


def summary_of(ttft_s, tpot_ms):
    return {"ttft_p50_ms": 1000 * quantile(ttft_s, 0.5), "ttft_p99_ms": 1000 * quantile(ttft_s, 0.99),
            "tpot_p50_ms": quantile(tpot_ms, 0.5)}


def slowness(own, requests, prefill):
    """How many times as long as the cost file says prefill takes for many prompts that come at once."""
    rng = random.Random(11)
    burst = [Request(0, [rng.randrange(300, 1500) for _ in request.prompt], request.output_tokens)
             for request in rng.sample(requests, min(BURST, len(requests)))]
    timings = balance_cluster.replay(own.entrypoint, burst)
    return max(timing.ttft_s for timing in timings) / sum(prompt_cost_s(prefill, len(r.prompt)) for r in burst)


def run_live(options, policy, requests, prefill):
    load = load_average()
    with PinnedCluster(options.prefill, options.decode, policy, STEP_ROWS) as own:
        for tokens in [2048] * (2 * options.prefill):  # memory that is touched for the first time
            balance_cluster.ask(own.entrypoint, Request(0, [400] * tokens, 4))
        factors = [slowness(own, requests, prefill)]
        before, use_before = own.steps("prefill"), own.core_use()
        begin = time.monotonic()
        timings = balance_cluster.replay(own.entrypoint, requests)
        seconds = time.monotonic() - begin
        after, use_after = own.steps("prefill"), own.core_use()
        factors.append(slowness(own, requests, prefill))
    result = summary_of([t.ttft_s for t in timings], [t.tpot_ms for t in timings if t.gaps_ms])
    used, own_use = (b - a for a, b in zip(use_before, use_after))
    result.update(prefill_steps=after[0] - before[0], prefill_busy_s=after[1] - before[1], load_before=load,
                  slowness=statistics.mean(factors), own_share=own_use / seconds,
                  others_share=max(0.0, used - own_use) / seconds)
    return result


def scenario_text(options, delays, factor, cost, trace, horizon_s):
    """Reports ride on every answer of a worker, so they are as old as a step is long, at most; a decode worker is
    chosen at hand-over."""
    return f"""name = "live"
horizon_s = {horizon_s}
[cost]
file = "{cost}"
[arrivals]
trace = "{trace}"
[entrypoints]
count = 1
report_period_ms = 5
report_delay_ms = {delays["network_delay_ms"]}
network_delay_ms = {delays["network_delay_ms"]}
[prefill]
instances = {options.prefill}
ranks = 1
per_core = {options.prefill}
chunk_rows = {STEP_ROWS}
max_rows = {STEP_ROWS}
step_overhead_ms = 0
[decode]
instances = {options.decode}
ranks = 1
per_core = {options.decode}
step_overhead_ms = {delays["decode_step_overhead_ms"]}
late_choice = 1
kv_tokens_per_rank = {delays["kv_tokens"]}
[handover]
latency_ms = {delays["handover_ms"]}
""" + "".join(f"""[[fault]]
at_s = 0
role = "prefill"
rank = {rank}
slow_factor = {factor}
""" for rank in range(options.prefill))


def simulate(options, folder, delays, factor, cost, requests, policies):
    trace, scenario, out = folder / "trace.jsonl", folder / "live.toml", folder / "simulated.json"
    trace.write_text("".join(
        json.dumps({"timestamp": 1000 * r.at_s, "input_length": len(r.prompt), "output_length": r.output_tokens,
                    "hash_ids": []}) + "\n" for r in requests))
    scenario.write_text(scenario_text(options, delays, factor, cost, trace, requests[-1].at_s + 1))
    command = [cluster.BIN / "millrace-simulate", "cluster", "--scenario", scenario, "--json", out, "--quiet"]
    for policy in policies:
        command += ["--policy", policy]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    return [{"ttft_p50_ms": 1000 * p["ttft_s"]["p50"], "ttft_p99_ms": 1000 * p["ttft_s"]["p99"],
             "tpot_p50_ms": p["tpot_ms"]["p50"], "prefill_share": options.prefill * p["prefill_utilisation"]}
            for p in json.loads(out.read_text())["policies"]]


def medians(runs):
    return {key: statistics.median(run[key] for run in runs) for key in runs[0] if key != "simulated"}


def deviation(runs):
    """Of the simulated TTFT p50 from the live one: the median of the runs, each at the machine's speed at its time."""
    return statistics.median(run["simulated"]["ttft_p50_ms"] / run["ttft_p50_ms"] for run in runs) - 1


def compare_pairs(policies, live, simulated):
    """Each pair: the first over the second in TTFT p50, simulated and live; whether the simulator separates them,
    whether the machine was as fast for one as for the other (medians of the runs), and whether the signs agree."""
    pairs = []
    for a, b in itertools.combinations(range(len(policies)), 2):
        sim = simulated[a]["ttft_p50_ms"] / simulated[b]["ttft_p50_ms"]
        real = live[a]["ttft_p50_ms"] / live[b]["ttft_p50_ms"]
        speeds = live[a]["slowness"] / live[b]["slowness"]
        pairs.append({"policies": [policies[a], policies[b]], "simulated": sim, "live": real,
                      "is_separated": max(sim, 1 / sim) >= 1 + SEPARATION,
                      "is_comparable": max(speeds, 1 / speeds) <= 1 + SAME_SPEED, "agrees": (sim > 1) == (real > 1)})
    return pairs


def verdict(pair):
    if not pair["is_separated"]:
        return "too close to count"
    if not pair["is_comparable"]:
        return "not comparable, the machine was not equally fast"
    return "agrees" if pair["agrees"] else "WRONG SIGN"


def report(result):
    print(f"{result['requests']} requests over {result['seconds']:.1f} s; load average before: fit "
          f"{result['load_before_fit']:.2f}, runs " +
          " ".join(f"{run['load_before']:.2f}" for runs in result["runs"].values() for run in runs))
    print("of the prefill core, others had: " + " ".join(
        f"{100 * run['others_share']:.0f} %" for runs in result["runs"].values() for run in runs))
    print("times the cost file, prefill took: " + " ".join(
        f"{run['slowness']:.2f}" for runs in result["runs"].values() for run in runs))
    print("measured: " + ", ".join(f"{key} {value:.3g}" for key, value in result["delays"].items()))
    print("\n| policy | TTFT p50 ms, live (each run, live/sim) | simulated | by cost file alone | p99 ms, live "
          "| simulated | TPOT p50 ms, live | simulated |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for policy, live, sim, by_file in zip(result["policies"], result["live"], result["simulated"],
                                          result["by_cost_file"]):
        each = " ".join(f"{run['ttft_p50_ms']:.0f}/{run['simulated']['ttft_p50_ms']:.0f}"
                        for run in result["runs"][policy])
        print(f"| {policy} | {live['ttft_p50_ms']:.1f} ({each}) | {sim['ttft_p50_ms']:.1f} "
              f"({100 * deviation(result['runs'][policy]):+.0f} %) | {by_file['ttft_p50_ms']:.1f} "
              f"| {live['ttft_p99_ms']:.0f} "
              f"| {sim['ttft_p99_ms']:.0f} | {live['tpot_p50_ms']:.2f} | {sim['tpot_p50_ms']:.2f} |")
    for pair in result["pairs"]:
        print(f"{pair['policies'][0]} / {pair['policies'][1]}: simulated {pair['simulated']:.2f}, "
              f"live {pair['live']:.2f}: {verdict(pair)}")
    for policy, live, sim in zip(result["policies"], result["live"], result["simulated"]):
        print(f"{policy}: prefill had {100 * live['own_share']:.0f} % of its core, simulated "
              f"{100 * sim['prefill_share']:.0f} %")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", default=TRACE)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--divide", type=int, default=32, help="lengths of the trace by this")
    parser.add_argument("--load", type=float, default=0.6, help="share of time that prefill is to be busy")
    parser.add_argument("--prefill", type=int, default=1)
    parser.add_argument("--decode", type=int, default=1)
    parser.add_argument("--policies", default="", help="comma-separated; default: what the entrypoint does by itself")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each policy, in turn")
    parser.add_argument("--cost", type=Path, help="a cost file, instead of measuring one")
    parser.add_argument("--fit-seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure(options, folder):
    os.sched_setaffinity(0, {OTHER_CORE})
    result = {"load_before_fit": load_average()}
    cost = options.cost.resolve() if options.cost else folder / "cost.json"
    if not options.cost:
        fit_costs(cost, options.fit_seconds)
    prefill = json.loads(cost.read_text())["prefill"]
    names = [name for name in options.policies.split(",") if name]
    with PinnedCluster(options.prefill, options.decode, names[0] if names else None, STEP_ROWS) as own:
        delays = measure_delays(own)
        factor = slowness(own, read_requests(options, prefill, 1.0), prefill)
    requests = read_requests(options, prefill, factor)
    policies = names or ["millrace"]
    runs = {policy: [] for policy in policies}
    for number in range(options.rounds):
        for policy in policies:
            runs[policy].append(run_live(options, policy if names else None, requests, prefill))
            print(f"round {number + 1}, {policy}: TTFT p50 {runs[policy][-1]['ttft_p50_ms']:.1f} ms", file=sys.stderr)
    live = [medians(runs[policy]) for policy in policies]
    for policy, each in runs.items():
        for run in each:
            run["simulated"] = simulate(options, folder, delays, run["slowness"], cost, requests, [policy])[0]
    # Policies are compared on a machine of one speed.
    factor = statistics.median(run["slowness"] for each in runs.values() for run in each)
    simulated = simulate(options, folder, delays, factor, cost, requests, policies)
    by_file = simulate(options, folder, delays, 1.0, cost, requests, policies)
    result.update(requests=len(requests), seconds=requests[-1].at_s, policies=policies, delays=delays,
                  cost=json.loads(cost.read_text()), runs=runs, live=live, simulated=simulated, by_cost_file=by_file,
                  pairs=compare_pairs(policies, live, simulated))
    return result


def main():
    options = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="millrace-balance-") as folder:
        result = measure(options, Path(folder))
    if options.json:
        print(json.dumps(result))
    else:
        report(result)
    is_off = max(options.prefill, options.decode) == 1 and any(
        abs(deviation(runs)) > P50_TOLERANCE for runs in result["runs"].values())
    separated = [pair for pair in result["pairs"] if pair["is_separated"]]
    is_wrong = any(pair["is_comparable"] and not pair["agrees"] for pair in separated)
    if is_off or is_wrong:
        sys.exit(1)
    sys.exit(0 if all(pair["is_comparable"] for pair in separated) else 2)


if __name__ == "__main__":
    main()
