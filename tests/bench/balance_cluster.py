"""A cluster whose processes are tied to cores, and requests that arrive at it at given times."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

import client  # noqa: E402
import cluster  # noqa: E402

PREFILL_CORE, OTHER_CORE = 0, 1


class Request(NamedTuple):
    at_s: float
    prompt: list
    output_tokens: int


class Timing(NamedTuple):
    ttft_s: float
    tpot_ms: float  # 0 for a single token
    gaps_ms: list  # between the events of the stream, in order


class PinnedCluster:
    """Controller, agent, entrypoint and decode workers on one core, prefill workers on the other; every engine has
    one thread. Runs from start() to stop(); also a context manager. Only its own processes are signalled, by pid."""

    def __init__(self, prefill, decode, balance=None, step_rows=256):
        self.desired = {"prefill": prefill, "decode": decode, "entrypoint": 1, "model_dir": str(cluster.NANO),
                        "model_id": "nano", "entrypoint_listen": "127.0.0.1:0", "step_rows": step_rows}
        self.balance = balance
        self.folder = Path(tempfile.mkdtemp(prefix="millrace-balance-"))
        self.processes = []
        self.controller = None
        self.entrypoint = None

    def start(self):
        try:
            self._write_programs()
            self.controller = self._spawn(
                "controller", cluster.BIN / "millrace-controller", "--data-dir", self.folder / "controller",
                "--listen", "127.0.0.1:0")
            self._spawn("agent", cluster.BIN / "millrace-agent", "--controller", f"http://{self.controller}",
                        "--node-id", "bench", "--listen", "127.0.0.1:0", "--data-dir", self.folder / "agent",
                        "--bin-dir", self.folder / "bin", "--worker-threads", 1)
            cluster.put_json(self.controller, "/api/v1/desired", self.desired)
            count = self.desired["prefill"] + self.desired["decode"] + 1
            cluster.wait_until(lambda: [w["state"] for w in self.workers()] == ["ready"] * count, 120,
                               "all processes are ready")
            self.entrypoint = self.workers("entrypoint")[0]["address"]
            cluster.wait_until(self._is_serving, 30, "the entrypoint serves")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(100)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes = []
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, error, traceback):
        self.stop()

    def workers(self, role=None):
        return [dict(worker, role=instance["role"])
                for instance in cluster.get_json(self.controller, "/api/v1/instances")["instances"]
                for worker in instance["workers"] if role in (None, instance["role"])]

    def steps(self, role):
        """How many engine steps the workers of a role have run, and the seconds that these took."""
        count = seconds = 0.0
        for worker in self.workers(role):
            samples = cluster.read_metrics(worker["metrics_address"])
            count += samples["millrace_step_seconds_count"]
            seconds += samples["millrace_step_seconds_sum"]
        return count, seconds

    def core_use(self):
        """Seconds that the prefill core has worked, and those that it worked for prefill workers."""
        line = next(line for line in Path("/proc/stat").read_text().splitlines()
                    if line.startswith(f"cpu{PREFILL_CORE} "))
        user, nice, system, _, _, irq, soft_irq, steal = map(int, line.split()[1:9])
        own = 0
        for worker in self.workers("prefill"):
            fields = Path(f"/proc/{worker['pid']}/stat").read_text().rsplit(")", 1)[1].split()
            own += int(fields[11]) + int(fields[12])  # utime and stime, fields 14 and 15 of proc(5)
        ticks = os.sysconf("SC_CLK_TCK")
        return (user + nice + system + irq + soft_irq + steal) / ticks, own / ticks

    def _write_programs(self):
        """What the agent runs in place of the programs: the same, tied to a core."""
        folder = self.folder / "bin"
        folder.mkdir()
        balance = f"--balance {self.balance}" if self.balance else ""
        scripts = {
            "millrace-worker": f'case " $* " in *" --role prefill "*) core={PREFILL_CORE};; *) core={OTHER_CORE};; '
                               f'esac\nexec taskset -c $core {cluster.BIN}/millrace-worker "$@"\n',
            "millrace-entrypoint": f'exec taskset -c {OTHER_CORE} {cluster.BIN}/millrace-entrypoint "$@" {balance}\n'}
        for name, text in scripts.items():
            path = folder / name
            path.write_text("#!/bin/sh\n" + text, encoding="ascii")
            path.chmod(0o755)

    def _spawn(self, name, program, *arguments):
        """Starts a server; its address once it serves."""
        ready, log = self.folder / f"{name}.ready", self.folder / f"{name}.log"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [str(part) for part in ("taskset", "-c", OTHER_CORE, program, *arguments, "--ready-file", ready)],
                stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        self.processes.append(process)

        def has_started():
            if process.poll() is not None:
                raise AssertionError(f"{name} ended: {log.read_text(errors='replace')}")
            return ready.exists()
        cluster.wait_until(has_started, 30, f"the {name} serves")
        return json.loads(ready.read_text())["address"]

    def _is_serving(self):
        try:
            return client.get_status(self.entrypoint, "/ready") == 200
        except OSError:
            return False


def ask(address, request):
    """One streamed answer."""
    body = {"model": "nano", "prompt": request.prompt, "max_tokens": request.output_tokens, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True}
    times, tokens = [], 0
    start = time.monotonic()
    for event in client.events(address, "/v1/completions", body):
        made = sum(len(choice.get("token_ids") or []) for choice in event["choices"])
        if made:
            times.append(time.monotonic())
            tokens += made
    if tokens != request.output_tokens:
        raise AssertionError(f"{tokens} tokens came, not {request.output_tokens}")
    gaps = [1000 * (b - a) for a, b in zip(times, times[1:])]
    return Timing(times[0] - start, sum(gaps) / max(1, tokens - 1), gaps)


def replay(address, requests):
    """Sends each request at its time; their timings in the same order."""
    timings, errors = [None] * len(requests), []

    def run(index):
        try:
            timings[index] = ask(address, requests[index])
        except Exception as error:  # told below, by the thread that joins
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(requests))]
    begin = time.monotonic()
    for request, thread in zip(requests, threads):
        time.sleep(max(0.0, begin + request.at_s - time.monotonic()))
        thread.start()
    for thread in threads:
        thread.join(client.TIMEOUT)
    if errors or None in timings:
        raise AssertionError(f"{len(errors)} requests failed: {errors[:1]}; "
                             f"{timings.count(None)} of {len(requests)} have no answer")
    return timings


def load_average():
    return os.getloadavg()[0]
