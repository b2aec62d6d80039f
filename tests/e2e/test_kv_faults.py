"""Stored KV under seeded faults of real processes: damaged and missing blocks, killed and frozen stores, killed and
restarted fetchers, windows whose slot was used anew. Whatever happens, an answer comes in time, and its text is the
cold one, or a replay with a cut-off window was counted.

    MILLRACE_KV_CASES=1000 /usr/bin/python3 -B tests/e2e/test_kv_faults.py     # as many cases
    MILLRACE_KV_FIRST_CASE=41 MILLRACE_KV_CASES=1 ...                          # the case with seed 41
    MILLRACE_KV_JOURNAL=FILE ...                # a line for each case; cases that have one are not run again
"""

import collections
import json
import os
import random
import signal
import threading
import time
import unittest
import urllib.request
from pathlib import Path

from cluster import SLOWNESS, Cluster, get_json, put_json, read_metrics, wait_until
from kv_policy import BLOCK, usable_hit

SLOT = 4096  # of a shard of nano's blocks, with its header
HEADER = 128
SHARDS, SPARE_SHARDS = 12, 2
WINDOW_BYTES = 84480
# What a fetch of stored KV may take: the entrypoint's two questions (50 and 20 ms), the worker's deadline and its
# grace (2,000 and 100 ms).
FETCH_SECONDS = 2.17
# On a machine with other work, and for as long as an engine shares the cores with restarting processes.
SLACK_SECONDS = 2.0

CASES = int(os.environ.get("MILLRACE_KV_CASES", "8"))
FIRST_CASE = int(os.environ.get("MILLRACE_KV_FIRST_CASE", "0"))
JOURNAL = os.environ.get("MILLRACE_KV_JOURNAL")

# Each with its share of the cases. "during" ones come at a random moment of the request.
FAULTS = {
    "none": 6,
    "few_shards_damaged": 14,
    "blocks_damaged": 20,
    "evicted": 3,
    "fetcher_killed": 8,
    "fetcher_killed_during": 8,
    "fetcher_killed_while_storing": 6,
    "fetcher_restarted": 8,
    "store_frozen": 9,
    "store_frozen_during": 8,
    "store_killed": 2,
    "store_killed_during": 2,
    "window_slots_used_anew": 12,
}
EXACT = ("cold", "window", "exact_replay")


class Rig:
    """A cluster with room for few windows, asked one request at a time."""

    def __init__(self):
        self.cluster = Cluster("--kv-bytes", "128MiB").start()
        self.seeds = iter(range(10**9))
        self.desired = get_json(self.cluster.controller, "/api/v1/desired")
        self.addresses = {role: self.cluster.workers(role)[0]["metrics_address"] for role in ("prefill", "decode")}
        try:
            self.toggle_fetcher(8 * WINDOW_BYTES)
            self.heal()
        except BaseException:
            self.stop()
            raise

    def stop(self):
        self.cluster.stop()

    # ---- requests

    def complete(self, prompt, user, max_tokens=8):
        body = {"model": "nano", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "user": user,
                "ignore_eos": True, "return_token_ids": True}
        request = urllib.request.Request(f"http://{self.cluster.entrypoint}/v1/completions",
                                         json.dumps(body).encode(), {"Content-Type": "application/json"})
        begin = time.monotonic()
        with urllib.request.urlopen(request, timeout=60 * SLOWNESS) as answer:
            reply = json.load(answer)
        seconds = time.monotonic() - begin
        return (reply["choices"][0]["token_ids"], reply["usage"]["prompt_tokens_details"]["cached_tokens"], seconds)

    def metrics(self, role="prefill"):
        return read_metrics(self.addresses[role])

    def begun(self):
        metrics = self.metrics()
        return {kind: metrics[f'millrace_prefills_begun_total{{window="{kind}"}}'] for kind in
                (*EXACT, "truncated_replay")}

    def kept(self):
        """Blocks and windows that the prefill worker has had stored, and blocks that wait for it."""
        metrics = self.metrics()
        return (metrics['millrace_kv_sealed_blocks_total{result="stored"}'],
                metrics['millrace_kv_windows_kept_total{result="kept"}'], metrics["millrace_kv_seal_backlog"])

    def waits_until_stored(self, prompt_tokens):
        """Called before a prompt is asked; what it returns waits, and says whether blocks and window were stored."""
        blocks, windows, _ = self.kept()

        def wait(cached, seconds):
            deadline = time.monotonic() + seconds * SLOWNESS
            while time.monotonic() < deadline:
                now = self.kept()
                if now[0] >= blocks + (prompt_tokens - cached) // BLOCK - 1 and now[1] > windows and now[2] == 0:
                    return True
                time.sleep(0.02)
            return False
        return wait

    def heal(self):
        """Until new KV is stored and found again."""
        def is_well():
            prompt = tokens(random.Random(next(self.seeds) + 2**40), 420)
            wait = self.waits_until_stored(len(prompt))
            return wait(self.complete(prompt, "heal")[1], 2) and self.complete(prompt, "heal")[1] > 0
        wait_until(is_well, 90, "the cluster stores and finds KV again")

    # ---- faults

    def process(self, role):
        return self.cluster.workers(role)[0]["pid"]

    def toggle_fetcher(self, window_pool_bytes=None):
        """Asks for a fetcher with a little more or less memory, which restarts it; so one that was often killed is
        started without a pause, too."""
        storage = self.desired["storage"]
        if window_pool_bytes:
            storage["window_pool_bytes"] = window_pool_bytes
        storage["fetch_bytes"] = (16 << 20) + (17 << 20) - storage["fetch_bytes"] \
            if storage["fetch_bytes"] in (16 << 20, 17 << 20) else 16 << 20
        put_json(self.cluster.controller, "/api/v1/desired", self.desired)

    def evict(self, fraction):
        """Asks for it, and waits until storage nodes have heard: blocks that are asked for meanwhile stay."""
        request = urllib.request.Request(f"http://{self.cluster.controller}/api/v1/storage/evict",
                                         json.dumps({"to_fraction": fraction}).encode(),
                                         {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=10 * SLOWNESS).close()
        time.sleep(1.5 * SLOWNESS)

    def slot_files(self):
        return sorted(self.cluster.data_dir.rglob("target-*/slots*"))

    def shards_of(self, is_wanted):
        """By block key: depth, and where its shards lie."""
        found = collections.defaultdict(list)
        for path in self.slot_files():
            with open(path, "rb") as file:
                for slot in range(os.fstat(file.fileno()).st_size // SLOT):
                    file.seek(slot * SLOT)
                    header = file.read(HEADER)
                    if header[:4] != b"MRSH":
                        continue
                    key, depth = header[32:64], int.from_bytes(header[20:24], "little")
                    if is_wanted(key):
                        found[key].append((depth, path, slot))
        return found

    def damage(self, path, slot, rng):
        with open(path, "r+b") as file:
            for _ in range(rng.randint(1, 3)):
                # Of header and payload; what lies behind them in a slot is nobody's.
                at = slot * SLOT + rng.randrange(HEADER + 2000)
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ (1 << rng.randrange(8)) ^ (1 << rng.randrange(8)) or byte ^ 1]))
            file.flush()
            os.fsync(file.fileno())


def tokens(rng, count):
    """Ordinary tokens of nano's vocabulary."""
    return [rng.randrange(300, 2000) for _ in range(count)]


class Case:
    """One seed: a prompt that is stored, a fault, and a request that would use it."""

    def __init__(self, rig, seed):
        self.rig, self.seed = rig, seed
        self.rng = random.Random(seed)
        self.fault = self.rng.choices(list(FAULTS), FAULTS.values())[0]
        self.user = f"case-{seed}"
        self.is_exact = True  # so far all KV of this user is what a cold run makes
        self.stored = tokens(self.rng, self.rng.randint(280, 1300))
        if self.rng.random() < 0.25:
            self.prompt = self.stored
        else:
            # The next turn of a conversation, or one that goes on from an earlier point.
            kept = len(self.stored) if self.rng.random() < 0.7 else self.rng.randint(140, len(self.stored))
            self.prompt = self.stored[:kept] + tokens(self.rng, self.rng.randint(1, 400))
        same = next((i for i, (a, b) in enumerate(zip(self.prompt, self.stored)) if a != b), len(self.stored))
        self.hit = usable_hit(len(self.prompt), same)
        # A window a block before the hit, with which a replay is exact.
        self.has_earlier_window = self.rng.random() < 0.5
        # An entrypoint that has just seen the blocks asks for none of them again: the fetcher finds what is wrong.
        self.is_asked_before = self.rng.random() < 0.4

    def run(self):
        """What came of it, as a line of the journal; AssertionError when it should not have."""
        rig, rng = self.rig, self.rng
        before = self.all_keys() if "damaged" in self.fault else set()
        if self.fault == "fetcher_killed_while_storing":
            killer = self.later(lambda: self.kill("kvfetch"), rng.uniform(0, 0.15))
            self.ask(self.stored)
            killer.join()
        else:
            if self.has_earlier_window and self.hit > BLOCK:
                self.store(self.stored[:self.hit - BLOCK + 1])
            self.store(self.stored)
        cold, cached, cold_seconds = rig.complete(self.prompt, self.user + "-cold")
        assert cached == 0, "another user's KV was found"
        if self.is_asked_before:
            self.ask(self.prompt)
        undo, during = self.cause(before, cold_seconds)
        text, cached, seconds, kinds = self.ask(self.prompt)
        if during:
            during.join()
        undo()
        limit = SLOWNESS * (FETCH_SECONDS + 3 * cold_seconds + SLACK_SECONDS)
        assert seconds <= limit, f"took {seconds:.2f} s, cold {cold_seconds:.2f} s, limit {limit:.2f} s"
        assert text == cold or not self.is_exact, f"another text than cold, begun as {kinds}, {cached} cached tokens"
        assert cached == 0 or "cold" not in kinds or len(kinds) > 1, f"{cached} cached tokens of a cold run"
        return {"seed": self.seed, "fault": self.fault, "kinds": kinds, "cached": cached, "hit": self.hit,
                "prompt": len(self.prompt), "is_equal": text == cold, "seconds": round(seconds, 3), "cold_seconds": round(cold_seconds, 3)}

    def ask(self, prompt):
        """The case's user asks. What a cut-off window was used for is stored, too, and makes later texts differ."""
        before = self.rig.begun()
        answer = self.rig.complete(prompt, self.user)

        def read():
            now = self.rig.begun()
            return [kind for kind in now for _ in range(int(now[kind] - before[kind]))]
        kinds = wait_until(read, 10, "the prefill is counted")
        self.is_exact = self.is_exact and all(kind in EXACT for kind in kinds)
        return (*answer, kinds)

    def store(self, prompt):
        """The same, and waits until it is stored, if it can be."""
        wait = self.rig.waits_until_stored(len(prompt))
        _, cached, _, _ = self.ask(prompt)
        if not wait(cached, 5):
            self.rig.heal()

    @staticmethod
    def later(action, seconds):
        thread = threading.Timer(seconds, action)
        thread.start()
        return thread

    def kill(self, role):
        os.kill(self.rig.process(role), signal.SIGKILL)

    def all_keys(self):
        return set(self.rig.shards_of(lambda key: True))

    def cause(self, before, cold_seconds):
        """Makes the fault happen, or will do so. Returns what ends it, and the thread that makes it happen, if any."""
        rig, rng = self.rig, self.rng
        moment = rng.uniform(0, 1.2 * cold_seconds)
        fetcher_back = (lambda: (rig.toggle_fetcher(), rig.heal()))
        if self.fault in ("few_shards_damaged", "blocks_damaged"):
            new = rig.shards_of(lambda key: key not in before)
            for shards in new.values():
                if self.fault == "few_shards_damaged":
                    count = rng.randint(0, SPARE_SHARDS)
                else:
                    count = rng.choice((0, 0, rng.randint(1, SHARDS)))
                for _, path, slot in rng.sample(shards, min(count, len(shards))):
                    rig.damage(path, slot, rng)
        elif self.fault == "evicted":
            rig.evict(rng.choice((0, 0.002 * rng.random())))
        elif self.fault == "fetcher_killed":
            self.kill("kvfetch")
            return fetcher_back, None
        elif self.fault == "fetcher_killed_during":
            return fetcher_back, self.later(lambda: self.kill("kvfetch"), moment)
        elif self.fault == "fetcher_killed_while_storing":
            fetcher_back()
        elif self.fault == "fetcher_restarted":
            pid = rig.process("kvfetch")
            rig.toggle_fetcher()
            wait_until(lambda: rig.process("kvfetch") not in (0, pid), 30, "another fetcher")
            rig.heal()
        elif self.fault.startswith("store_frozen"):
            pid = rig.process("storage")
            freeze = (lambda: os.kill(pid, signal.SIGSTOP))
            thaw = (lambda: (os.kill(pid, signal.SIGCONT), rig.heal()))
            if self.fault == "store_frozen":
                freeze()
                return thaw, None
            return thaw, self.later(freeze, moment)
        elif self.fault == "store_killed":
            self.kill("storage")
            return rig.heal, None
        elif self.fault == "store_killed_during":
            return rig.heal, self.later(lambda: self.kill("storage"), moment)
        elif self.fault == "window_slots_used_anew":
            for _ in range(rng.randint(1, 9)):
                rig.complete(tokens(rng, 140), self.user + "-other", 1)
        return (lambda: None), None


class KvFaults(unittest.TestCase):
    def test_an_answer_is_right_and_in_time_whatever_fails(self):
        lines = self.journal()
        done = {line["seed"] for line in lines}
        rig = None
        try:
            for seed in range(FIRST_CASE, FIRST_CASE + CASES):
                if seed in done:
                    continue
                rig = rig or Rig()
                case = Case(rig, seed)
                try:
                    lines.append(case.run())
                except Exception as error:
                    print(rig.cluster.logs())
                    raise AssertionError(f"seed {seed}, {case.fault}: {error}\n  MILLRACE_KV_FIRST_CASE={seed} "
                                         f"MILLRACE_KV_CASES=1 /usr/bin/python3 -B {__file__}") from error
                if JOURNAL:
                    with open(JOURNAL, "a", encoding="ascii") as file:
                        file.write(json.dumps(lines[-1]) + "\n")
        finally:
            if rig:
                rig.stop()
        report(lines)
        whole = [line for line in lines if line["fault"] in ("none", "few_shards_damaged") and line["hit"] > BLOCK]
        self.assertGreaterEqual(sum(line["cached"] > 0 for line in whole), 0.8 * len(whole),
                                "hits of blocks that two lost shards leave whole")

    @staticmethod
    def journal():
        if not JOURNAL or not Path(JOURNAL).exists():
            return []
        return [json.loads(line) for line in Path(JOURNAL).read_text().splitlines()]


def report(lines):
    kinds = (*EXACT, "truncated_replay")
    print(f"{'fault':30}{'cases':>6}" + "".join(f"{kind:>18}" for kind in kinds) + f"{'most s':>9}{'other text':>12}")
    for fault in FAULTS:
        own = [line for line in lines if line["fault"] == fault]
        if not own:
            continue
        counts = [sum(line["kinds"][-1] == kind for line in own) for kind in kinds]
        print(f"{fault:30}{len(own):6}" + "".join(f"{count:18}" for count in counts)
              + f"{max(line['seconds'] for line in own):9.2f}{sum(not line['is_equal'] for line in own):12}")


if __name__ == "__main__":
    unittest.main()
