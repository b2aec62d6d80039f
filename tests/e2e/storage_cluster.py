"""Twelve storage processes with one target each, and a controller: the smallest cluster that two nodes may leave."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from cluster import BIN, SLOWNESS, get_json, put_json, wait_until

BLOCK_BYTES = 113920  # of the official model


class StorageCluster:
    """Runs from start() to stop(); also a context manager. Only its own processes are signalled, by pid."""

    def __init__(self, nodes=12, target_bytes=64 << 20, block_bytes=BLOCK_BYTES, node_flags=()):
        self.folder = Path(tempfile.mkdtemp(prefix="millrace-storage-"))
        self.count = nodes
        self.target_bytes = target_bytes
        self.block_bytes = block_bytes
        self.node_flags = node_flags
        self.controller_process = None
        self.controller = None
        self.nodes = [None] * nodes

    def start(self):
        self.controller_process = self._spawn(
            "controller", "millrace-controller", "--data-dir", self.folder / "controller",
            "--listen", "127.0.0.1:0", "--heartbeat-ms", int(200 * SLOWNESS),
            "--node-timeout-ms", int(1500 * SLOWNESS))
        self.controller = self._ready("controller", self.controller_process)["address"]
        put_json(self.controller, "/api/v1/desired", {
            "prefill": 0, "decode": 0, "entrypoint": 0, "model_dir": "/none", "model_id": "none",
            "storage": {"nodes": self.count, "targets_per_node": 1, "target_bytes": self.target_bytes,
                        "block_bytes": self.block_bytes}})
        for index in range(self.count):
            self.start_node(index)
        for index in range(self.count):
            self._ready(f"storage-{index}", self.nodes[index])
        self.wait_until_whole(30)
        return self

    def start_node(self, index):
        name = f"storage-{index}"
        self.nodes[index] = self._spawn(
            name, "millrace-storaged", "--node-id", name, "--controller", f"http://{self.controller}",
            "--data-dir", self.folder / name, "--targets", 1, "--target-bytes", self.target_bytes,
            "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", *self.node_flags)

    def signal_node(self, index, number):
        os.kill(self.nodes[index].pid, number)
        if number == signal.SIGKILL:
            self.nodes[index].wait()

    def status(self):
        return json.loads(self.command("kv", "status", "--json").stdout)

    def wait_until_whole(self, seconds):
        """All targets are up, and every node goes by the map that says so: before, it refuses what it is sent."""
        def is_whole():
            storage = get_json(self.controller, "/api/v1/storage")
            return (self.status()["targets_up"] == self.count and
                    all(node["map_epoch"] >= storage["map_epoch"] for node in storage["nodes"]))
        wait_until(is_whole, seconds, "all targets are up, and every node knows")

    def wait_until_down(self, count, seconds=30):
        wait_until(lambda: self.status()["targets_down"] == count, seconds, f"{count} targets are down")

    def _millrace(self, arguments):
        return [str(BIN / "millrace"), *map(str, arguments), "--controller", self.controller]

    def command(self, *arguments, timeout=180):
        """Runs `millrace` with these arguments to its end."""
        return subprocess.run(self._millrace(arguments), capture_output=True, text=True,
                              timeout=timeout * SLOWNESS, stdin=subprocess.DEVNULL)

    def begin(self, *arguments):
        """Starts `millrace` with these arguments."""
        return subprocess.Popen(self._millrace(arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, stdin=subprocess.DEVNULL)

    def _spawn(self, name, program, *arguments):
        ready = self.folder / f"{name}.ready"
        ready.unlink(missing_ok=True)
        with open(self.folder / f"{name}.log", "ab") as log:
            return subprocess.Popen(
                [str(BIN / program), *map(str, arguments), "--ready-file", str(ready)],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _ready(self, name, process):
        path = self.folder / f"{name}.ready"

        def is_ready():
            if process.poll() is not None:
                raise AssertionError(f"{name} ended with {process.returncode}\n{self.logs()}")
            return path.exists()

        wait_until(is_ready, 60, f"{name} is ready")
        return json.loads(path.read_text())

    def logs(self):
        return "\n".join(f"---- {path.name}\n{path.read_text(errors='replace')[-1500:]}"
                         for path in sorted(self.folder.glob("*.log")))

    def stop(self):
        for process in [*self.nodes, self.controller_process]:
            if process is None or process.poll() is not None:
                continue
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 30 * SLOWNESS
        for process in [*self.nodes, self.controller_process]:
            if process is None:
                continue
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, error, traceback):
        if error is not None:
            print(self.logs())
        self.stop()


def report_of(process):
    """What a finished `millrace kv bench --json` printed, and its exit status."""
    output, errors = process.communicate(timeout=300 * SLOWNESS)
    if not output:
        raise AssertionError(f"kv bench ended with {process.returncode}: {errors}")
    return json.loads(output), process.returncode


def describe_cluster(cluster):
    return get_json(cluster.controller, "/api/v1/storage")
