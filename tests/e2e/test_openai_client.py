"""Runs openai_client.mjs, which drives the official OpenAI client, against a cluster.

The client is installed once with npm into the folder MILLRACE_NODE_DIR (CTest sets it to one in the
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
FILES = ("package.json", "openai_client.mjs")


def install():
    """Copies the script and installs its dependency; a folder that has both already is used as it is."""
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


class OpenAiClient(ClusterTest):
    def test_the_official_client_is_content(self):
        folder = install()
        finished = subprocess.run(
            ["node", "openai_client.mjs"], cwd=folder, capture_output=True, text=True, timeout=300 * SLOWNESS,
            env={**os.environ, "BASE_URL": f"http://{self.cluster.entrypoint}", "NODE_NO_WARNINGS": "1"})
        print(finished.stdout)
        self.assertEqual(finished.returncode, 0, finished.stdout + finished.stderr)
        self.assertRegex(finished.stdout.splitlines()[-1], r"^[1-9]\d* passed, 0 failed$")


if __name__ == "__main__":
    unittest.main(verbosity=2)
