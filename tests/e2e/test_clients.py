"""Runs the scripts that drive the official OpenAI and Anthropic clients against a cluster.

The clients are installed once with npm into the folder MILLRACE_NODE_DIR (CTest sets it to one in the
build folder).
"""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from cluster import ROOT, SLOWNESS, ClusterTest

SOURCES = ROOT / "tests/e2e"
FILES = ("package.json", "client_tests.mjs", "openai_client.mjs", "anthropic_client.mjs")


def install():
    """Copies the scripts and installs the clients; a folder that has them already is used as it is."""
    folder = Path(os.environ.get("MILLRACE_NODE_DIR") or Path(tempfile.gettempdir(), "millrace-node"))
    folder.mkdir(parents=True, exist_ok=True)
    installed = folder / "node_modules/openai/package.json"
    package = (SOURCES / "package.json").read_text()
    is_current = (folder / "package.json").exists() and (folder / "package.json").read_text() == package
    for name in FILES:
        shutil.copy(SOURCES / name, folder)
    if not installed.exists() or not is_current:
        subprocess.run(["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"],
                       cwd=folder, check=True, timeout=300)
    return folder


class OfficialClients(ClusterTest):
    def check(self, script):
        finished = subprocess.run(
            ["node", script], cwd=install(), capture_output=True, text=True, timeout=300 * SLOWNESS,
            env={**os.environ, "BASE_URL": f"http://{self.cluster.entrypoint}", "NODE_NO_WARNINGS": "1"})
        print(finished.stdout)
        self.assertEqual(finished.returncode, 0, finished.stdout + finished.stderr)
        self.assertRegex(finished.stdout.splitlines()[-1], r"^[1-9]\d* passed, 0 failed$")

    def test_openais_client_is_content(self):
        self.check("openai_client.mjs")

    def test_anthropics_client_is_content(self):
        self.check("anthropic_client.mjs")


if __name__ == "__main__":
    unittest.main(verbosity=2)
