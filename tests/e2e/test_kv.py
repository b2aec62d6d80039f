"""Stored KV under a real cluster with nano: what a later request is spared, and that its text stays what it was.

Prompts go as token ids, so that their lengths are known; the text of a prompt that finds nothing is that of
another user of the same cluster, since users share no KV.
"""

import json
import random
import unittest
import urllib.error
import urllib.request

from cluster import SLOWNESS, ClusterTest, get_json, millrace, read_metrics, wait_until
from kv_policy import BLOCK, anchor_after, usable_hit


def tokens(count, seed):
    """Ordinary tokens of nano's vocabulary."""
    source = random.Random(seed)
    return [source.randrange(300, 2000) for _ in range(count)]


def complete(address, prompt, max_tokens=8, user="a"):
    """The answer's token ids, and how many tokens of the prompt were cached."""
    body = {"model": "nano", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "user": user,
            "ignore_eos": True, "return_token_ids": True}
    request = urllib.request.Request(f"http://{address}/v1/completions",
                                     json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60 * SLOWNESS) as answer:
        reply = json.load(answer)
    return reply["choices"][0]["token_ids"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]


class StoredKv(ClusterTest):
    UP_ARGUMENTS = ("--kv-bytes", "256MiB")
    is_warm = False

    def setUp(self):
        """A cluster that has just started serves before each of its processes knows the storage map."""
        if not StoredKv.is_warm:
            seeds = iter(range(10_000, 20_000))
            wait_until(lambda: self.complete(tokens(300, next(seeds)), user="warm-up") and self.stored() > 0, 60,
                       "something is stored")
            StoredKv.is_warm = True

    def complete(self, prompt, max_tokens=8, user="a"):
        return complete(self.cluster.entrypoint, prompt, max_tokens, user)

    def is_ready(self):
        try:
            return get_json(self.cluster.entrypoint, "/ready")
        except urllib.error.HTTPError:
            return False

    def metric(self, role, name):
        return sum(read_metrics(w["metrics_address"]).get(name, 0) for w in self.cluster.workers(role))

    def stored(self):
        """Blocks that this cluster's workers have had stored since they started, those that were there included."""
        return sum(self.metric(role, f'millrace_kv_sealed_blocks_total{{result="{result}"}}')
                   for role in ("prefill", "decode") for result in ("stored", "already_there"))

    def windows(self):
        return sum(self.metric(role, 'millrace_kv_windows_kept_total{result="kept"}')
                   for role in ("prefill", "decode"))

    def store(self, prompt, user="a", max_tokens=8):
        """Runs a prompt and waits until its full blocks and its window are stored."""
        blocks, windows = self.stored(), self.windows()
        text, cached = self.complete(prompt, max_tokens, user)
        new = (len(prompt) + max_tokens - 1) // BLOCK - max(cached, 0) // BLOCK
        if new > 0:
            wait_until(lambda: self.stored() > blocks, 20, "its blocks are stored")
        if len(prompt) > BLOCK:
            # The prefill leaves one, and so does the decode worker if it came past another boundary.
            left = 1 + (anchor_after(len(prompt) + max_tokens - 1) > anchor_after(len(prompt)))
            wait_until(lambda: self.windows() >= windows + left, 20, "its windows are stored")
        wait_until(lambda: self.metric("prefill", "millrace_kv_seal_backlog") == 0, 20, "nothing waits to be stored")
        return text, cached

    def hit(self, prompt, expected, user="a", max_tokens=8):
        """Asks until the hit is as long as expected: storing goes on for a moment behind an answer."""
        seen = []

        def asked():
            seen.append(self.complete(prompt, max_tokens, user))
            return seen[-1][1] == expected and seen[-1]
        try:
            return wait_until(asked, 20, f"{expected} cached tokens")[0]
        except AssertionError:
            self.fail(f"cached tokens {[s[1] for s in seen]}, expected {expected}")

    def test_1_an_exact_repeat_runs_its_last_blocks_again(self):
        prompt = tokens(700, 1)
        cold, cached = self.store(prompt)
        self.assertEqual(cached, 0)
        # Its own window ends behind the hit, so the block before the hit runs again for the window.
        self.hit(prompt, usable_hit(700, 640) - BLOCK)

    def test_2_a_prompt_that_goes_on_from_an_anchor_is_exact(self):
        shared = tokens(513, 2)
        self.store(shared)  # leaves its window at 512
        for more in (134, 200, 400):
            prompt = shared[:512] + tokens(more, 1000 + more)
            cold, cached = self.complete(prompt, 16, user=f"nobody-{more}")
            self.assertEqual(cached, 0, "another user's blocks are not found")
            warm = self.hit(prompt, 512, max_tokens=16)
            self.assertEqual(warm, cold)

    def test_3_turns_of_a_conversation_start_where_the_last_one_ended(self):
        conversation = tokens(300, 3)
        reused = 0
        for turn in range(6):
            answer, cached = self.store(conversation, max_tokens=60)
            cold, _ = self.complete(conversation, 60, user=f"cold-{turn}")
            self.assertEqual(answer, cold, f"turn {turn}")
            reused += cached
            conversation = conversation + answer + tokens(140, 300 + turn)
        self.assertGreater(reused, 1500, "of some 3,900 tokens of six prompts")

    def test_4_blocks_that_decoding_filled_are_reused(self):
        prompt = tokens(200, 4)
        answer, _ = self.store(prompt, max_tokens=200)
        longer = prompt + answer + tokens(140, 41)
        # 399 positions were run: the block from 256 to 384 was filled while decoding.
        cold, _ = self.complete(longer, user="cold-4")
        warm = self.hit(longer, 384)
        self.assertEqual(warm, cold)

    def test_5_killed_engines_find_what_others_stored(self):
        prompt = tokens(700, 5)
        self.store(prompt)
        for role in ("prefill", "decode"):
            pid = self.cluster.kill(role)
            self.cluster.wait_for_restart(role, pid)
        wait_until(self.is_ready, 20, "the entrypoint has streams to them")
        longer = prompt[:640] + tokens(150, 51)
        cold, _ = self.complete(longer, user="cold-5")
        wait_until(lambda: self.metric("prefill", "millrace_kv_fetcher_connected") == 1, 20, "the fetcher is found")
        self.assertEqual(self.hit(longer, 640), cold)

    def test_6_a_killed_fetcher_costs_nothing_but_the_hit(self):
        prompt = tokens(600, 6)
        cold, _ = self.store(prompt)
        pid = self.cluster.kill("kvfetch")
        self.assertEqual(self.complete(prompt)[0], cold)
        self.cluster.wait_for_restart("kvfetch", pid)
        wait_until(lambda: self.metric("prefill", "millrace_kv_fetcher_connected") == 1, 20, "the fetcher is found")
        self.hit(prompt, usable_hit(600, 512) - BLOCK)

    def test_7_a_killed_store_costs_nothing_but_the_hit(self):
        prompt = tokens(600, 7)
        cold, _ = self.store(prompt)
        pid = self.cluster.kill("storage")
        self.assertEqual(self.complete(prompt)[0], cold)
        self.cluster.wait_for_restart("storage", pid)
        self.hit(prompt, usable_hit(600, 512) - BLOCK)

    def test_8_short_prompts_are_left_alone(self):
        for length in (1, 127, 128, 133, 261):
            prompt = tokens(length, 80 + length)
            first, cached = self.complete(prompt)
            again, cached_again = self.complete(prompt)
            self.assertEqual((again, cached, cached_again), (first, 0, 0), length)

    def windows_begun(self):
        return self.metric("prefill", 'millrace_prefills_begun_total{window="window"}')

    def test_9_a_tool_loop_with_short_results_begins_with_windows(self):
        prompt, anchors, stored, source = tokens(600, 9), set(), 0, random.Random(90)
        for turn in range(10):
            call = source.randint(20, 60)
            hit = usable_hit(len(prompt), stored)
            is_possible = hit > 0 and hit in anchors
            self.assertEqual(is_possible, turn > 0, "a call and its result are rarely longer than a block")
            windows = self.windows_begun()
            answer, cached = self.store(prompt, max_tokens=call)
            self.assertEqual((cached, self.windows_begun() - windows), (hit, is_possible), f"turn {turn}")
            self.assertEqual(answer, self.complete(prompt, call, user=f"cold-9-{turn}")[0], f"turn {turn}")
            end = len(prompt) + call - 1  # the last token is not run
            anchors |= {anchor_after(len(prompt)), anchor_after(end)}
            stored = end // BLOCK * BLOCK
            prompt = prompt + answer + tokens(source.randint(5, 90), 900 + turn)

    def test_9b_an_eviction_ends_though_blocks_are_about_to_be_read(self):
        prompt = tokens(700, 11)
        self.store(prompt)
        self.hit(prompt, usable_hit(700, 640) - BLOCK)  # storage nodes keep what was asked for, for 30 s
        finished = millrace("kv", "evict", data_dir=self.cluster.data_dir, timeout=20)
        self.assertEqual(finished.returncode, 0, finished.stderr)
        self.assertIn("shards evicted", finished.stdout)
        self.assertGreater(self.complete(prompt)[1], 0, "leased blocks are still there")


class OtherLayout(ClusterTest):
    """Engines without rounding lay KV out in another way, and tell entrypoints so."""

    UP_ARGUMENTS = ("--kv-bytes", "256MiB", "--engine", "rounding=off")

    def test_what_was_stored_is_found(self):
        prompt, address = tokens(700, 10), self.cluster.entrypoint
        wait_until(lambda: complete(address, prompt)[1] > 0, 60, "a hit")


if __name__ == "__main__":
    unittest.main()
