"""Bad input gets an error in OpenAI's shape that names the field; overload is told at once, never by a hang."""

import json
import subprocess
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from client import connect, get_status, model_of, post
from cluster import BIN, NANO, SLOWNESS, ClusterTest, get_json, put_json, wait_until

USER = [{"role": "user", "content": "Hi"}]

# (what is changed in a good request, the field that the error must name)
BAD_CHAT = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": ["Hi"]}, "messages[0]"),
    ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "wizard", "content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_p": -1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"stop_token_ids": [99999]}, "stop_token_ids"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"seed": "x"}, "seed"),
    ({"stop": 5}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"3": 101}}, "logit_bias"),
    ({"stream": "yes"}, "stream"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": []}, "tools"),
    ({"response_format": {"type": "json_object"}}, "messages"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"thinking": {"type": "maybe"}}, "thinking.type"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort"),
]

BAD_COMPLETION = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", 5]}, "prompt[1]"),
    ({"prompt": ["a"] * 65}, "prompt"),
    ({"prompt": [0, -1]}, "prompt[1]"),
    ({"prompt": [0, 10 ** 9]}, "prompt[1]"),
    ({"prompt": {"text": "a"}}, "prompt"),
    ({"suffix": "b"}, "suffix"),
    ({"best_of": 3}, "best_of"),
    ({"echo_ids": 1}, "echo_ids"),
    ({"logprobs": 1000}, "logprobs"),
]


class BadInput(ClusterTest):
    def setUp(self):
        self.address = self.cluster.entrypoint
        self.model = model_of(self.address)

    def assert_error(self, answer, status, param=None):
        got_status, headers, body = answer
        self.assertEqual(got_status, status, body)
        self.assertEqual(set(body), {"error"})
        self.assertEqual(set(body["error"]), {"message", "type", "param", "code"})
        self.assertTrue(body["error"]["message"])
        self.assertTrue(body["error"]["type"])
        if param:
            self.assertEqual(body["error"]["param"], param, body)
        return headers, body["error"]

    def test_fields_of_chat(self):
        good = {"model": self.model, "messages": USER, "max_tokens": 4}
        for change, param in BAD_CHAT:
            with self.subTest(change=change):
                self.assert_error(post(self.address, "/v1/chat/completions", {**good, **change}), 400, param)
        self.assertEqual(post(self.address, "/v1/chat/completions", good)[0], 200)

    def test_fields_of_completions(self):
        good = {"model": self.model, "prompt": [0, 300], "max_tokens": 4}
        for change, param in BAD_COMPLETION:
            with self.subTest(change=change):
                self.assert_error(post(self.address, "/v1/completions", {**good, **change}), 400, param)
        self.assertEqual(post(self.address, "/v1/completions", good)[0], 200)

    def test_what_is_no_json_object(self):
        for body in ("", "{", '{"model": ', "[]", "null", '"text"', b"\xff\xfe", '{"a":' * 200):
            with self.subTest(body=body[:20]):
                self.assert_error(post(self.address, "/v1/chat/completions", body), 400)

    def test_what_other_parsers_let_pass(self):
        text = json.dumps({"model": self.model, "messages": USER, "max_tokens": 4})
        twice = text[:-1] + ', "max_tokens": 5}'
        _, error = self.assert_error(post(self.address, "/v1/chat/completions", twice), 400)
        self.assertIn('"max_tokens" occurs twice', error["message"])
        _, error = self.assert_error(post(self.address, "/v1/chat/completions", text + "\0"), 400)
        self.assertIn("NUL", error["message"])

    def test_another_model(self):
        for change in ({"model": "no-such-model"}, {"model": None}, {"model": 5}):
            with self.subTest(change=change):
                status = 404 if change["model"] == "no-such-model" else 400
                self.assert_error(post(self.address, "/v1/chat/completions", {"messages": USER, **change}),
                                  status, "model")

    def test_an_over_long_prompt(self):
        prompt = [0] + [300] * 200_000
        self.assert_error(post(self.address, "/v1/completions", {"model": self.model, "prompt": prompt}), 400)

    def test_a_body_over_the_limit(self):
        body = json.dumps({"model": self.model, "prompt": "x" * (9 << 20)})
        self.assert_error(post(self.address, "/v1/completions", body), 413)

    def test_unknown_paths_and_methods(self):
        for method, path, status in (("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)):
            connection = connect(self.address)
            connection.request(method, path)
            answer = connection.getresponse()
            self.assertEqual(answer.status, status)
            self.assertTrue(json.load(answer)["error"]["message"])
            connection.close()


class Overload(ClusterTest):
    """Requests that cannot be taken are refused at once and told when to try again."""

    def setUp(self):
        self.body = {"model": model_of(self.cluster.entrypoint), "prompt": "The old mill turns. " * 200,
                     "max_tokens": 2}

    def assert_refusal(self, answer, status):
        got_status, headers, body = answer
        self.assertEqual(got_status, status, body)
        retry_after = {name.lower(): value for name, value in headers.items()}["retry-after"]
        self.assertGreater(int(retry_after), 0)
        self.assertTrue(body["error"]["message"])

    def test_without_an_engine(self):
        address = self.cluster.entrypoint
        desired = get_json(self.cluster.controller, "/api/v1/desired")
        for role in ("prefill", "decode"):
            with self.subTest(role=role):
                put_json(self.cluster.controller, "/api/v1/desired", {**desired, role: 0})
                # A request that is accepted before that would wait for an engine, as it should.
                wait_until(lambda: get_status(address, "/ready") == 503, 60, "no engine is left")
                start = time.monotonic()
                self.assert_refusal(post(address, "/v1/completions", self.body), 503)
                self.assertLess(time.monotonic() - start, 1.0 * SLOWNESS)
                put_json(self.cluster.controller, "/api/v1/desired", desired)
                wait_until(lambda: get_status(address, "/ready") == 200, 60, "it serves again")
                self.assertEqual(post(address, "/v1/completions", self.body)[0], 200)

    def test_a_full_queue(self):
        """A second entrypoint of the same cluster, with room for one waiting request."""
        ready = self.cluster.data_dir / "second.ready"
        with open(self.cluster.data_dir / "second.log", "wb") as log:
            entrypoint = subprocess.Popen(
                [BIN / "millrace-entrypoint", "--listen", "127.0.0.1:0", "--entrypoint-id", "second", "--model", NANO,
                 "--controller", f"http://{self.cluster.controller}", "--model-id", self.body["model"],
                 "--max-queue", "1", "--ready-file", ready], stdout=log, stderr=log)
        try:
            wait_until(ready.exists, 30, "the second entrypoint listens")
            address = json.loads(ready.read_text())["address"]
            wait_until(lambda: post(address, "/v1/completions", self.body)[0] == 200, 30, "it serves")
            with ThreadPoolExecutor(24) as pool:
                answers = list(pool.map(lambda _: post(address, "/v1/completions", self.body), range(24)))
            refused = [a for a in answers if a[0] != 200]
            self.assertGreater(len(refused), 0)
            self.assertLess(len(refused), len(answers))
            for answer in refused:
                self.assert_refusal(answer, 429)
        finally:
            entrypoint.terminate()
            self.assertEqual(entrypoint.wait(60 * SLOWNESS), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
