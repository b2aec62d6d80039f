"""The KV hand-over between two machines, played by two network namespaces: controller, entrypoint and
prefill worker in one, decode worker in the other with a host id of its own, so that nothing but the
network connects them. Needs root.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

from cluster import BIN, NANO, SLOWNESS, wait_until

PREFIX = f"mr{os.getpid() % 100000}"
NEAR, FAR = f"{PREFIX}a", f"{PREFIX}b"
NEAR_IP, FAR_IP = "10.203.0.1", "10.203.0.2"


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def in_namespace(name, *command):
    return ["ip", "netns", "exec", name, *map(str, command)]


@unittest.skipIf(os.geteuid() != 0, "making network namespaces needs root")
class TwoMachines(unittest.TestCase):
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

    def metrics_of(self, worker_id):
        worker = next(w for w in self.workers() if w["worker_id"] == worker_id)
        return self.request(f"http://{worker['metrics_address']}/metrics")

    def workers(self):
        instances = json.loads(self.request(f"http://{NEAR_IP}:8080/api/v1/instances"))["instances"]
        return [w for i in instances for w in i["workers"]]

    def test_kv_is_handed_over_by_stream(self):
        controller = f"http://{NEAR_IP}:8080"
        self.start(NEAR, "controller", "millrace-controller", "--listen", f"{NEAR_IP}:8080",
                   "--data-dir", self.dir / "controller")
        # The controller spreads workers over nodes and breaks ties by name: prefill and entrypoint go to
        # a-near, decode to b-far.
        for namespace, node, address in ((NEAR, "a-near", NEAR_IP), (FAR, "b-far", FAR_IP)):
            self.start(namespace, node, "millrace-agent", "--controller", controller, "--node-id", node,
                       "--listen", f"{address}:0", "--data-dir", self.dir / node)
        self.request(f"{controller}/api/v1/desired", {
            "prefill": 1, "decode": 1, "entrypoint": 1, "model_dir": str(NANO), "model_id": "nano",
            "entrypoint_listen": f"{NEAR_IP}:8000"}, "PUT")
        try:
            wait_until(lambda: [w["state"] for w in self.workers()] == ["ready"] * 3, 90, "all workers are ready")
        except AssertionError:
            print(json.dumps(self.workers(), indent=2))
            raise
        nodes = {w["worker_id"]: w["node_id"] for w in self.workers()}
        self.assertNotEqual(nodes["prefill-0"], nodes["decode-0"], "the two engines are on one node")

        body = {"model": "nano", "prompt": "The river turns the old mill. " * 30, "max_tokens": 40,
                "ignore_eos": True, "temperature": 0, "echo_ids": True}
        answer = json.loads(self.request(f"http://{NEAR_IP}:8000/v1/completions", body))
        self.assertEqual(answer["usage"]["completion_tokens"], 40)
        self.assertEqual(len(answer["choices"][0]["token_ids"]), 40)

        imports = [line for line in self.metrics_of("decode-0").splitlines()
                   if line.startswith("millrace_kv_imports_total")]
        self.assertEqual({line.split()[0]: float(line.split()[1]) for line in imports},
                         {'millrace_kv_imports_total{path="stream"}': 1.0,
                          'millrace_kv_imports_total{path="shared_memory"}': 0.0})


if __name__ == "__main__":
    unittest.main(verbosity=2)
