"""Two machines, played by two network namespaces: a controller in one, an agent in each with a host id of its
own, so that nothing but the network connects them. Needs root."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

from cluster import BIN, NANO, SLOWNESS, parse_metrics, wait_until

PREFIX = f"mr{os.getpid() % 100000}"
NEAR, FAR = f"{PREFIX}a", f"{PREFIX}b"
NEAR_IP, FAR_IP = "10.203.0.1", "10.203.0.2"
CONTROLLER = f"http://{NEAR_IP}:8080"


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def in_namespace(name, *command):
    return ["ip", "netns", "exec", name, *map(str, command)]


@unittest.skipIf(os.geteuid() != 0, "making network namespaces needs root")
class TwoMachinesTest(unittest.TestCase):
    """Controller and node a-near at NEAR_IP, node b-far at FAR_IP. The controller spreads workers over nodes and
    breaks ties by name: a single prefill worker goes to a-near, a single decode worker to b-far."""

    def setUp(self):
        self.dir = Path(tempfile.mkdtemp(prefix="millrace-e2e-"))
        self.processes = []
        for name in (NEAR, FAR):
            ip("netns", "add", name)
            self.addCleanup(ip, "netns", "del", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", f"{PREFIX}x", "netns", NEAR, "type", "veth", "peer", "name", f"{PREFIX}y", "netns", FAR)
        for name, link, address in ((NEAR, f"{PREFIX}x", NEAR_IP), (FAR, f"{PREFIX}y", FAR_IP)):
            ip("-n", name, "address", "add", f"{address}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")

    def tearDown(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(60 * SLOWNESS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def start(self, namespace, name, program, *arguments):
        """Starts a server in a namespace and waits until it serves."""
        ready = self.dir / f"{name}.ready"
        with open(self.dir / f"{name}.log", "wb") as log:
            self.processes.append(subprocess.Popen(
                in_namespace(namespace, BIN / program, *arguments, "--ready-file", ready),
                stdout=log, stderr=log, stdin=subprocess.DEVNULL))
        process = self.processes[-1]

        def has_started():
            if process.poll() is not None:
                self.fail(f"{name} ended: " + (self.dir / f"{name}.log").read_text())
            return ready.exists()
        wait_until(has_started, 30, f"{name} serves")
        return json.loads(ready.read_text())

    def start_machines(self, *agent_arguments):
        self.start(NEAR, "controller", "millrace-controller", "--listen", f"{NEAR_IP}:8080",
                   "--data-dir", self.dir / "controller")
        for namespace, node, address in ((NEAR, "a-near", NEAR_IP), (FAR, "b-far", FAR_IP)):
            self.start(namespace, node, "millrace-agent", "--controller", CONTROLLER, "--node-id", node,
                       "--listen", f"{address}:0", "--data-dir", self.dir / node, *agent_arguments)

    def want(self, workers, **desired):
        """Asks for a cluster that serves nano, and waits until so many workers are ready and entrypoints reach them."""
        self.request(f"{CONTROLLER}/api/v1/desired",
                     {"model_dir": str(NANO), "model_id": "nano", **desired}, "PUT")
        try:
            wait_until(lambda: [w["state"] for w in self.workers()] == ["ready"] * workers, 90, "all workers are ready")
        except AssertionError:
            print(json.dumps(self.workers(), indent=2))
            raise
        for entrypoint in self.workers("entrypoint"):
            wait_until(lambda: self.answers(f"http://{entrypoint['address']}/ready"), 30, "the entrypoint has engines")

    def answers(self, path):
        try:
            self.request(path)
        except AssertionError:
            return False
        return True

    def request(self, path, body=None, method=None):
        """The body of an HTTP answer, asked for from inside the near namespace."""
        code = ("import sys,urllib.request as u;"
                "d=sys.stdin.buffer.read() or None;"
                "r=u.Request(sys.argv[1],d,{'Content-Type':'application/json'},method=sys.argv[2] or None);"
                "sys.stdout.buffer.write(u.urlopen(r,timeout=100).read())")
        finished = subprocess.run(
            in_namespace(NEAR, "/usr/bin/python3", "-c", code, path, method or ""),
            input=b"" if body is None else json.dumps(body).encode(), capture_output=True, timeout=120 * SLOWNESS)
        if finished.returncode != 0:
            raise AssertionError(finished.stderr.decode()[-500:])
        return finished.stdout.decode()

    def worker(self, worker_id):
        return next(w for w in self.workers() if w["worker_id"] == worker_id)

    def metrics_of(self, worker_id):
        """As read_metrics() gives them."""
        return parse_metrics(self.request(f"http://{self.worker(worker_id)['metrics_address']}/metrics"))

    def workers(self, role=None):
        """All, or those of a role."""
        instances = json.loads(self.request(f"{CONTROLLER}/api/v1/instances"))["instances"]
        return [w for i in instances if role in (None, i["role"]) for w in i["workers"]]
