"""Accounts share no stored KV: neither tokens nor time tell one what another has asked. The keys that accounts come
from are read again at SIGHUP."""

import hashlib
import json
import math
import os
import random
import signal
import subprocess
import time
import unittest
import urllib.error
import urllib.request

from cluster import BIN, NANO, SLOWNESS, ClusterTest, read_metrics, wait_until

# Cold, nano takes more than twice as long for such a prompt as with its hit.
PROMPT_TOKENS = 1024
SAMPLES = 20


def tokens(seed, count=PROMPT_TOKENS):
    source = random.Random(seed)
    return [source.randrange(300, 2000) for _ in range(count)]


def rank_sum_z(first, second):
    """How many standard deviations the Mann-Whitney U of two samples is away from what it is for samples of one
    distribution (normal approximation; the times are floats, so ties do not matter)."""
    u = sum((a > b) + 0.5 * (a == b) for a in first for b in second)
    n, m = len(first), len(second)
    return (u - n * m / 2) / math.sqrt(n * m * (n + m + 1) / 12)


class Accounts(ClusterTest):
    """An entrypoint that takes keys, beside that of `millrace up`, which takes everybody."""

    UP_ARGUMENTS = ("--kv-bytes", "512MiB")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        data_dir = cls.cluster.data_dir
        cls.keys_file, ready, cls.log = data_dir / "keys.toml", data_dir / "keys.ready", data_dir / "keys.log"
        cls.write_keys({"key-a1": "acme", "key-a2": "acme", "key-b": "other"})
        with open(cls.log, "wb") as log:
            cls.process = subprocess.Popen(
                [BIN / "millrace-entrypoint", "--listen", "127.0.0.1:0", "--controller",
                 f"http://{cls.cluster.controller}", "--model", NANO, "--model-id", "nano", "--entrypoint-id",
                 "entrypoint-keys", "--cluster-secret", data_dir / "cluster.secret", "--api-keys", cls.keys_file,
                 "--ready-file", ready],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            wait_until(ready.exists, 30, "the entrypoint with keys listens")
            cls.address = json.loads(ready.read_text())["address"]
            seeds = iter(range(10**6, 10**7))
            wait_until(lambda: cls.can_store(next(seeds)), 60, "something is stored and found")
        except BaseException:
            cls.tearDownClass()
            raise

    @classmethod
    def tearDownClass(cls):
        cls.process.send_signal(signal.SIGTERM)
        cls.process.wait(60 * SLOWNESS)
        super().tearDownClass()

    @classmethod
    def write_keys(cls, keys):
        cls.keys_file.write_text("".join(
            f'[[key]]\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\naccount = "{account}"\n'
            for key, account in keys.items()))

    @classmethod
    def ask(cls, key, prompt):
        """How many tokens were cached, and how long the first token took; HTTPError when the key is nobody's."""
        body = {"model": "nano", "prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(
            f"http://{cls.address}/v1/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
        begin = time.monotonic()
        with urllib.request.urlopen(request, timeout=60 * SLOWNESS) as answer:
            usage = json.load(answer)["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"], time.monotonic() - begin

    @classmethod
    def can_store(cls, seed):
        prompt = tokens(seed, 500)
        try:
            cls.ask("key-b", prompt)
        except urllib.error.HTTPError:  # it has no engines yet
            return False
        time.sleep(0.2)
        return cls.ask("key-b", prompt)[0] > 0

    def stored(self):
        metrics = read_metrics(self.cluster.workers("prefill")[0]["metrics_address"])
        return (metrics['millrace_kv_sealed_blocks_total{result="stored"}'],
                metrics['millrace_kv_windows_kept_total{result="kept"}'])

    def store(self, key, prompts):
        """Asks each prompt and waits until all of it is stored."""
        blocks, windows = self.stored()
        for prompt in prompts:
            self.assertEqual(self.ask(key, prompt)[0], 0)
        blocks += sum(len(prompt) // 128 for prompt in prompts)

        def is_stored():
            now = self.stored()
            return now[0] >= blocks and now[1] >= windows + len(prompts)
        wait_until(is_stored, 30, "the prompts are stored")

    def status_of(self, key):
        try:
            self.ask(key, [5, 6, 7])
            return 200
        except urllib.error.HTTPError as error:
            return error.code

    def test_1_two_accounts_share_nothing_and_two_keys_of_one_share_all(self):
        prompt = tokens(1)
        self.store("key-a1", [prompt])
        wait_until(lambda: self.ask("key-a1", prompt)[0] > 0, 20, "its own key finds it")
        self.assertGreater(self.ask("key-a2", prompt)[0], 0, "the account's other key")
        self.assertEqual(self.ask("key-b", prompt)[0], 0, "another account")
        wait_until(lambda: self.ask("key-b", prompt)[0] > 0, 20, "what it has stored itself")
        self.assertEqual(self.status_of("key-c"), 401)
        self.assertEqual(self.status_of(""), 401)

    def times(self, key, prompts, are_hits):
        """Seconds to the first token of the prompts that another run has stored before, and of the others; asked in
        a random order."""
        order = list(enumerate(prompts))
        random.Random(7).shuffle(order)
        seconds = ([], [])
        for index, prompt in order:
            was_stored = index % 2 == 0
            cached, took = self.ask(key, prompt)
            if not (are_hits and was_stored):
                self.assertEqual(cached, 0)
            seconds[0 if was_stored else 1].append(took)
        return seconds

    def test_2_time_does_not_tell_what_another_account_has_asked(self):
        # Samples of one distribution are more than three deviations apart once in 370 tests: a second look.
        for attempt in range(2):
            prompts = [tokens(1000 * (attempt + 1) + i) for i in range(2 * SAMPLES)]
            self.store("key-a1", prompts[::2])
            other = rank_sum_z(*self.times("key-b", prompts, are_hits=False))
            if abs(other) < 3:
                break
        self.assertLess(abs(other), 3, "account b can tell what account a has asked")
        # The same test sees hits: those of account a itself.
        own = rank_sum_z(*self.times("key-a2", prompts, are_hits=True))
        self.assertLess(own, -3, "hits of one's own are faster")

    def test_3_keys_are_read_again_at_sighup(self):
        self.write_keys({"key-a1": "acme", "key-c": "acme"})
        os.kill(self.process.pid, signal.SIGHUP)
        wait_until(lambda: self.status_of("key-c") == 200, 20, "the new key is known")
        self.assertEqual((self.status_of("key-a1"), self.status_of("key-b")), (200, 401))
        self.keys_file.write_text('[[key]]\nsha256 = "none"\naccount = "acme"\n')
        os.kill(self.process.pid, signal.SIGHUP)
        wait_until(lambda: "api_keys_not_reloaded" in self.log.read_text(), 20, "the log says why not")
        self.assertIn("64 hexadecimal digits", self.log.read_text())
        self.assertEqual((self.status_of("key-c"), self.status_of("key-b")), (200, 401))


if __name__ == "__main__":
    unittest.main()
