"""Prefill over a real cluster whose buckets have edges that nano's prompts reach: the split follows demand, over killed
workers and a killed controller, and every answer is what a single worker gives."""

import itertools
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

from client import events, get_status, post
from cluster import BIN, NANO, SLOWNESS, get_json, put_json, read_metrics, wait_until

EDGES = [256, 512, 1024]
NAMES = ["<256", "256-512", "512-1K", ">=1K"]
ROUND_MS = int(1000 * SLOWNESS)
SHORT_TOKENS, LONG_TOKENS = 64, 1100  # of prompts: the first bucket, the last
OUTPUT_TOKENS = 4
SETTLE_S = 60  # a few rounds take a few seconds; only a bound for a broken cluster


class BalancedCluster:
    """A controller with edges of its own and an agent; its desired state is set by want(). Only its own processes are
    signalled, by pid."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="millrace-balance-"))
        self.processes = {}
        self.controller = "127.0.0.1:0"
        self.entrypoint = None

    def start(self):
        self.start_controller()
        self._spawn("agent", "millrace-agent", "--controller", f"http://{self.controller}", "--node-id", "balance",
                    "--listen", "127.0.0.1:0", "--data-dir", self.folder / "agent", "--worker-threads", 1)
        return self

    def start_controller(self):
        self.controller = self._spawn(
            "controller", "millrace-controller", "--listen", self.controller, "--data-dir", self.folder / "controller",
            "--bucket-edges", ",".join(map(str, EDGES)), "--balance-round-ms", ROUND_MS)

    def kill(self, name):
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def stop(self):
        for process in reversed(self.processes.values()):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(100 * SLOWNESS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def want(self, prefill):
        """Asks for so many prefill workers, one decode worker and one entrypoint, and waits for them."""
        put_json(self.controller, "/api/v1/desired", {
            "prefill": prefill, "decode": 1, "entrypoint": 1, "model_dir": str(NANO), "model_id": "nano",
            "entrypoint_listen": "127.0.0.1:0"})
        wait_until(lambda: self.is_whole(prefill), 60, "all processes are ready")

    def is_whole(self, prefill):
        workers = [w for i in self.instances() for w in i["workers"]]
        if [w["state"] for w in workers] != ["ready"] * (prefill + 2):
            return False
        self.entrypoint = next(i for i in self.instances() if i["role"] == "entrypoint")["workers"][0]["address"]
        return self._is_serving(prefill)

    def _is_serving(self, prefill):
        try:
            return (get_status(self.entrypoint, "/ready") == 200 and
                    read_metrics(self.entrypoint)['millrace_engine_workers{role="prefill"}'] == prefill)
        except OSError:
            return False

    def instances(self):
        return get_json(self.controller, "/api/v1/instances")["instances"]

    def prefill_workers(self):
        return [i["workers"][0] for i in self.instances() if i["role"] == "prefill"]

    def view(self):
        return get_json(self.controller, "/api/v1/view")

    def buckets(self):
        """Of the prefill workers of the view that are ready, by name."""
        return {w["worker_id"]: w.get("bucket") for w in self.view()["workers"]
                if w["role"] == "prefill" and w["state"] == "ready"}

    def split(self):
        """How many workers each bucket has."""
        buckets = list(self.buckets().values())
        return [buckets.count(b) for b in range(len(NAMES))]

    def wait_for_split(self, split):
        wait_until(lambda: self.split() == split, SETTLE_S, f"workers are split {split}")

    def logs(self):
        return "\n".join(f"---- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
                         for path in sorted(self.folder.rglob("*.log")))

    def _spawn(self, name, program, *arguments):
        """Starts a server; its address once it serves."""
        ready, log = self.folder / f"{name}.ready", self.folder / f"{name}.log"
        ready.unlink(missing_ok=True)
        with open(log, "ab") as output:
            process = subprocess.Popen([str(part) for part in (BIN / program, *arguments, "--ready-file", ready)],
                                       stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        self.processes[name] = process

        def has_started():
            if process.poll() is not None:
                raise AssertionError(f"{name} ended: {log.read_text(errors='replace')}")
            return ready.exists()
        wait_until(has_started, 30, f"{name} serves")
        return json.loads(ready.read_text())["address"]


def prompts(tokens, count):
    rng = random.Random(tokens)
    return [tuple(rng.randrange(300, 1500) for _ in range(tokens)) for _ in range(count)]


SHORT, LONG = prompts(SHORT_TOKENS, 8), prompts(LONG_TOKENS, 4)
# Compute by length, roughly: of three workers one is for short prompts, two for long ones.
MIXED = [*SHORT[:4], LONG[0], *SHORT[4:], LONG[1], *SHORT[:4], LONG[2], *SHORT[4:], LONG[3]]


def ask(address, prompt):
    """The tokens of a greedy answer, and the time to the first of them in seconds."""
    start, first, ids = time.monotonic(), None, []
    body = {"model": "nano", "prompt": list(prompt), "max_tokens": OUTPUT_TOKENS, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True}
    for event in events(address, "/v1/completions", body):
        made = [token for choice in event["choices"] for token in choice.get("token_ids") or []]
        if made and first is None:
            first = time.monotonic() - start
        ids += made
    return ids, first


class Traffic:
    """Requests for prompts in turn, a few at any time, until the block ends; then all must have been answered, and as
    expected."""

    def __init__(self, address, cycle, expected, at_once=5):
        self._address = address
        self._prompts = itertools.cycle(cycle)
        self._expected = expected
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(at_once)]
        self.answered = 0
        self.wrong = []

    def _run(self):
        while not self._is_over.is_set():
            with self._lock:
                prompt = next(self._prompts)
            try:
                ids, _ = ask(self._address, prompt)
                problem = None if ids == self._expected[prompt] else f"{len(prompt)} tokens: {ids}"
            except Exception as error:  # told by the thread that joins
                problem = error
            with self._lock:
                self.answered += 1
                if problem is not None:
                    self.wrong.append(problem)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind, error, traceback):
        self._is_over.set()
        for thread in self._threads:
            thread.join(120 * SLOWNESS)
        if kind is None and (self.wrong or any(thread.is_alive() for thread in self._threads)):
            raise AssertionError(f"of {self.answered} requests these went wrong: {self.wrong}")


class BalanceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = BalancedCluster()
        cls.addClassCleanup(cls.cluster.stop)
        cls.cluster.start().want(prefill=1)
        # A single worker serves all buckets: what it answers is right for any split.
        cls.expected = {prompt: ask(cls.cluster.entrypoint, prompt)[0] for prompt in SHORT + LONG}

    def run(self, result=None):
        before = len(result.failures) + len(result.errors)
        super().run(result)
        if len(result.failures) + len(result.errors) > before:
            print(self.cluster.logs())

    def traffic(self, cycle):
        return Traffic(self.cluster.entrypoint, cycle, self.expected)

    def worked_rounds(self):
        """Rounds of the split in which there was demand."""
        samples = read_metrics(self.cluster.controller)
        return sum(value for name, value in samples.items()
                   if name.startswith("millrace_bucket_rounds_total") and "no_t" not in name)

    def claims(self):
        """Claims that were granted as the entrypoint counts them and as workers do, and prefills that began."""
        granted = read_metrics(self.cluster.entrypoint)['millrace_prefill_claims_answered_total{answer="granted"}']
        workers = [read_metrics(worker["metrics_address"]) for worker in self.cluster.prefill_workers()]
        claimed = sum(w["millrace_prefill_claims_total"] - w["millrace_prefill_claims_gone_total"] for w in workers)
        begun = sum(value for w in workers for name, value in w.items()
                    if name.startswith("millrace_prefills_begun_total"))
        return granted, claimed, begun

    def test_the_split_follows_demand(self):
        cluster = self.cluster
        cluster.want(prefill=3)
        before = self.claims()
        with self.traffic(SHORT) as first:
            cluster.wait_for_split([3, 0, 0, 0])
        with self.traffic(MIXED) as mixed:
            cluster.wait_for_split([1, 0, 0, 2])
        self.assert_who_serves_what_is_shown()
        turn = self.worked_rounds()
        with self.traffic(SHORT) as short:
            cluster.wait_for_split([3, 0, 0, 0])
        # One round may have seen both kinds of traffic, two must agree, and each of them makes up to two moves.
        rounds = self.worked_rounds() - turn
        self.assertLessEqual(rounds, 10)
        samples = read_metrics(cluster.controller)
        self.assertEqual([samples[f'millrace_bucket_instances{{bucket="{b}"}}'] for b in range(4)], [3, 0, 0, 0])
        self.assertGreaterEqual(samples["millrace_bucket_moves_total"], 2)

        answered = first.answered + mixed.answered + short.answered
        wait_until(lambda: self.claims() == tuple(count + answered for count in before), 10,
                   f"{answered} more claims than {before} are granted and begun")
        print(f"{answered} requests; short prompts had all workers after {rounds:.0f} rounds")

    def assert_who_serves_what_is_shown(self):
        view = self.cluster.view()
        self.assertEqual(view["bucket_edges"], EDGES)
        # Without traffic nothing moves, but for what the last round saw.
        buckets = wait_until(self.resting_buckets, 30, "two rounds show the same")
        status = [str(BIN / "millrace"), "status", "--controller", self.cluster.controller]
        shown = json.loads(subprocess.run([*status, "--json"], capture_output=True, check=True, text=True).stdout)
        self.assertEqual({w["worker_id"]: w["input_lengths"] for w in shown["workers"] if w["role"] == "prefill"},
                         {worker: NAMES[bucket] for worker, bucket in buckets.items()})
        table = subprocess.run(status, capture_output=True, check=True, text=True).stdout
        for worker, bucket in buckets.items():
            line = next(line for line in table.splitlines() if line.startswith(worker))
            self.assertIn(NAMES[bucket], line.split())

    def resting_buckets(self):
        """The buckets by instance, once they stay over a round without traffic; the list and the view agree."""
        before = self.cluster.buckets()
        time.sleep(1.5 * ROUND_MS / 1000)
        listed = {i["instance_id"]: i["bucket"] for i in self.cluster.instances() if i["role"] == "prefill"}
        return listed if listed == before == self.cluster.buckets() else None

    def test_a_killed_worker_costs_no_answer_and_the_split_goes_on(self):
        cluster = self.cluster
        cluster.want(prefill=3)
        with self.traffic(MIXED) as traffic:
            cluster.wait_for_split([1, 0, 0, 2])
            victim = cluster.prefill_workers()[0]
            os.kill(victim["pid"], signal.SIGKILL)
            answered = traffic.answered
            wait_until(lambda: traffic.answered > answered + 20, 60, "others answer")
            wait_until(lambda: cluster.is_whole(3) and cluster.prefill_workers()[0]["pid"] != victim["pid"], 60,
                       "the worker runs again")
            wait_until(lambda: read_metrics(cluster.prefill_workers()[0]["metrics_address"]).get(
                "millrace_prefill_claims_total", 0) > 0, 60, "the new process claims requests")
        with self.traffic(SHORT):
            cluster.wait_for_split([3, 0, 0, 0])
        with self.traffic(MIXED):
            cluster.wait_for_split([1, 0, 0, 2])
            cost = wait_until(lambda: cluster.view().get("prefill_cost"), 60, "a measured cost is published")
        self.assertGreaterEqual(cost["version"], 1)
        self.assertGreater(sum(cost["cost"].values()), 0)

    def test_a_killed_controller_finds_the_split_again(self):
        cluster = self.cluster
        cluster.want(prefill=3)
        with self.traffic(MIXED):
            cluster.wait_for_split([1, 0, 0, 2])
            cluster.kill("controller")
        # Without traffic nothing moves: the first view after the start shows what was stored.
        cluster.start_controller()
        self.assertEqual(cluster.split(), [1, 0, 0, 2])
        self.assertEqual(cluster.view()["bucket_edges"], EDGES)
        wait_until(lambda: cluster.is_whole(3), 60, "the agent is heard of again")
        self.assertEqual(cluster.split(), [1, 0, 0, 2])
        with self.traffic(SHORT):
            cluster.wait_for_split([3, 0, 0, 0])

    def test_a_flood_of_long_prompts_does_not_hold_up_short_ones(self):
        cluster = self.cluster
        cluster.want(prefill=2)
        with self.traffic(MIXED):
            cluster.wait_for_split([1, 0, 0, 1])
        times = {SHORT_TOKENS: [], LONG_TOKENS: []}

        def run(prompt):
            times[len(prompt)].append(ask(cluster.entrypoint, prompt)[1])
        flood = [threading.Thread(target=run, args=(prompt,), daemon=True) for prompt in LONG * 5 + SHORT]
        for thread in flood:  # the short ones come last
            thread.start()
        for thread in flood:
            thread.join(120 * SLOWNESS)
        self.assertEqual([len(times[SHORT_TOKENS]), len(times[LONG_TOKENS])], [8, 20])
        short, long = (statistics.median(times[tokens]) for tokens in (SHORT_TOKENS, LONG_TOKENS))
        print(f"median TTFT in the flood: short {short:.2f} s, long {long:.2f} s")
        self.assertLess(short, long)

    def test_a_bad_report_is_refused_by_name(self):
        self.cluster.want(prefill=1)
        entrypoint = next(i for i in self.cluster.instances() if i["role"] == "entrypoint")["instance_id"]
        path = f"/api/v1/entrypoints/{entrypoint}/report"
        report = {"incarnation": 1, "sequence": 1, "demand_ns": [1, 2, 3], "costs": []}
        status, _, answer = post(self.cluster.controller, path, report)
        self.assertEqual(status, 400)
        self.assertIn("is of 3 buckets", json.dumps(answer))
        status, _, answer = post(self.cluster.controller, path, dict(report, demand_ns=[0, 0, 0, -1]))
        self.assertEqual(status, 400)
        self.assertIn("demand_ns[3]", json.dumps(answer))


class BadFlags(unittest.TestCase):
    def test_wrong_edges_are_refused_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            for edges in ("1024", "256,512", "512,256,1024", "0,256,512", "256,512,x", "1,2,3,4"):
                finished = subprocess.run(
                    [str(BIN / "millrace-controller"), "--data-dir", folder, "--listen", "127.0.0.1:0",
                     f"--bucket-edges={edges}"], capture_output=True, text=True, timeout=30 * SLOWNESS)
                self.assertEqual(finished.returncode, 1, edges)
                self.assertIn("--bucket-edges", finished.stderr)
                self.assertIn("bucket edges", finished.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
