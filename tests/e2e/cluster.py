"""A real cluster for a test: `millrace up` on free ports, with a data folder of its own.

The programs are taken from the folder in MILLRACE_BIN (CTest sets it), else from the release build.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("MILLRACE_BIN", ROOT / "build/release/bin"))
# A copy can stand in for nano while a training run replaces its weights.
NANO = Path(os.environ.get("MILLRACE_TEST_MODEL", ROOT / "deploy/models/nano"))
# Sanitizer builds are slow; MILLRACE_TEST_SLOWNESS stretches every limit of time.
SLOWNESS = float(os.environ.get("MILLRACE_TEST_SLOWNESS", "1"))


def millrace(*arguments, data_dir, timeout=180, **options):
    """Runs `millrace` to its end with --data-dir; returns the finished process with its output as text."""
    command, rest = list(arguments[:1]), list(arguments[1:])
    if command[0] in ("bench", "kv", "storage"):
        command, rest = command + rest[:1], rest[1:]
    return subprocess.run(
        [str(BIN / "millrace"), *command, "--data-dir", str(data_dir), *map(str, rest)],
        capture_output=True, text=True, timeout=timeout * SLOWNESS, stdin=subprocess.DEVNULL, **options)


def wait_until(condition, seconds, what):
    """Polls condition until it returns something true, and returns that; fails after so many seconds."""
    deadline = time.monotonic() + seconds * SLOWNESS
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds * SLOWNESS:.0f} s: {what}")
        time.sleep(0.05)


def get_json(address, path):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10 * SLOWNESS) as answer:
        return json.load(answer)


def put_json(address, path, value):
    request = urllib.request.Request(f"http://{address}{path}", json.dumps(value).encode(),
                                     {"Content-Type": "application/json"}, method="PUT")
    with urllib.request.urlopen(request, timeout=10 * SLOWNESS) as answer:
        return json.load(answer)


def read_metrics(address):
    """The samples of GET /metrics as a dict from name with labels to value."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10 * SLOWNESS) as answer:
        return parse_metrics(answer.read().decode())


def parse_metrics(text):
    samples = {}
    for line in text.splitlines():
        match = re.fullmatch(r"([a-zA-Z_:][\w:]*(?:\{.*\})?) (\S+)(?: \d+)?", line)
        if match:
            samples[match.group(1)] = float(match.group(2))
    return samples


class Cluster:
    """Runs from start() to stop(); also a context manager. Only processes of this cluster are ever
    signalled, by pid. Without --kv-bytes it stores no KV: most tests are about something else."""

    def __init__(self, *arguments, model=NANO):
        if "--kv-bytes" not in arguments:
            arguments = ("--kv-bytes", "0", *arguments)
        self.data_dir = Path(tempfile.mkdtemp(prefix="millrace-e2e-"))
        self.arguments = ["--model", str(model), *arguments]
        self.record = None

    def start(self):
        finished = millrace(
            "up", "--detach", "--json", "--entrypoint", "127.0.0.1:0", "--controller", "127.0.0.1:0",
            "--wait-s", str(int(120 * SLOWNESS)), *self.arguments, data_dir=self.data_dir)
        if finished.returncode != 0:
            logs = self.logs()
            self.remove_files()
            raise AssertionError(f"millrace up failed: {finished.stderr}\n{logs}")
        self.record = json.loads(finished.stdout)
        return self

    def stop(self):
        try:
            if self.record:
                finished = millrace("down", data_dir=self.data_dir)
                if finished.returncode != 0:
                    raise AssertionError(f"millrace down failed: {finished.stderr}")
        finally:
            self.record = None
            self.remove_files()

    def remove_files(self):
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, error, traceback):
        if error is not None:
            print(self.logs())
        self.stop()

    @property
    def entrypoint(self):
        return self.record["entrypoint"]

    @property
    def controller(self):
        return self.record["controller"]

    def workers(self, role=None):
        """The workers that the controller lists, entrypoints included."""
        return [
            dict(worker, role=instance["role"])
            for instance in get_json(self.controller, "/api/v1/instances")["instances"]
            for worker in instance["workers"]
            if role in (None, instance["role"])
        ]

    def kill(self, role):
        """kill -9 of the first worker of that role; returns its pid."""
        pid = self.workers(role)[0]["pid"]
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_for_restart(self, role, old_pid, seconds=60):
        return wait_until(
            lambda: [w for w in self.workers(role) if w["state"] == "ready" and w["pid"] not in (0, old_pid)],
            seconds, f"another {role} worker after pid {old_pid} was killed")[0]

    def gauge(self, name, roles=("prefill", "decode")):
        """Sum of a gauge over the workers of these roles."""
        return sum(read_metrics(w["metrics_address"])[name] for role in roles for w in self.workers(role))

    def logs(self):
        """The end of every log, for a failed test."""
        parts = []
        for path in sorted(self.data_dir.rglob("*.log")):
            parts.append(f"---- {path.name}\n" + path.read_text(errors="replace")[-3000:])
        return "\n".join(parts)


class ClusterTest(unittest.TestCase):
    """Tests that share one cluster, started before the first and stopped after the last."""

    UP_ARGUMENTS = ()

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(*cls.UP_ARGUMENTS).start()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()

    def run(self, result=None):
        before = len(result.failures) + len(result.errors) if result else 0
        super().run(result)
        if result and len(result.failures) + len(result.errors) > before:
            print(self.cluster.logs())
