"""The tree keeps the rules of rules.py, and the checker notices when one is broken."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import check_layering  # noqa: E402
import rules  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
HEADER = "#pragma once\n"


def problems_of(files):
    """Writes files (path -> text) into a new tree and returns what the checker says about it."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        return check_layering.Checker(folder).run()


def module(name, headers="", sources="", links=""):
    return f"millrace_module({name}\n  HEADERS {headers}\n  SOURCES {sources}\n  PUBLIC {links})\n"


class TreeKeepsTheRules(unittest.TestCase):
    def test_the_tree_has_no_violation(self):
        self.assertEqual(check_layering.Checker(ROOT).run(), [])

    def test_the_tree_was_really_read(self):
        checker = check_layering.Checker(ROOT)
        self.assertIn("common/json.h", checker.includes)
        self.assertIn("common", checker.targets)
        self.assertIn("common/json.cc", checker.targets["common"].files)

    def test_every_listed_long_file_is_still_long(self):
        for path in rules.LONG_FILES:
            self.assertGreater((ROOT / path).read_text().count("\n"), rules.MAX_LINES, path)


class CheckerNotices(unittest.TestCase):
    """Each test breaks one rule in a small tree of its own."""

    def assert_one(self, files, *parts):
        problems = problems_of(files)
        self.assertEqual(len(problems), 1, problems)
        for part in parts:
            self.assertIn(part, problems[0])

    def test_a_correct_tree_passes(self):
        self.assertEqual(
            problems_of({
                "common/a.h": HEADER + "#include <vector>\n#include <sys/stat.h>\n",
                "common/CMakeLists.txt": module("common", "a.h"),
                "dataplane/kv/b.h": HEADER + '#include "absl/status/status.h"\n#include "common/a.h"\n',
                "dataplane/kv/CMakeLists.txt": module("dataplane_kv", "b.h", "", "common"),
            }), [])

    def test_an_include_of_a_higher_layer(self):
        self.assert_one({
            "common/a.h": HEADER + '#include "dataplane/b.h"\n',
            "common/CMakeLists.txt": "add_library(common a.h ../dataplane/b.h)\n",
            "dataplane/b.h": HEADER,
        }, "common/a.h", "higher layer")

    def test_a_link_to_a_higher_layer(self):
        problems = problems_of({
            "common/a.h": HEADER,
            "common/CMakeLists.txt": module("common", "a.h", "", "dataplane_kv"),
            "dataplane/kv/b.h": HEADER,
            "dataplane/kv/CMakeLists.txt": module("dataplane_kv", "b.h"),
        })
        self.assertEqual(len(problems), 1, problems)
        self.assertIn("common links dataplane_kv", problems[0])

    def test_the_controller_reaching_an_engine_through_another_target(self):
        self.assert_one({
            "controller/CMakeLists.txt": module("controller", links="dataplane_routing"),
            "dataplane/routing/CMakeLists.txt": module("dataplane_routing", links="dataplane_engine"),
            "dataplane/engine/CMakeLists.txt": module("dataplane_engine"),
        }, "controller reaches dataplane_engine", "must not know dataplane/engine")

    def test_agent_and_controller_meeting(self):
        problems = problems_of({
            "agent/a.h": HEADER + '#include "controller/c.h"\n',
            "agent/CMakeLists.txt": module("agent", "a.h", "", "controller"),
            "controller/c.h": HEADER,
            "controller/CMakeLists.txt": module("controller", "c.h"),
        })
        self.assertTrue(any("agent must not know controller" in p for p in problems), problems)

    def test_product_code_including_tests(self):
        self.assert_one({
            "agent/a.h": HEADER + '#include "tests/t.h"\n',
            "agent/CMakeLists.txt": "add_library(agent a.h ../tests/t.h)\n",
            "tests/t.h": HEADER,
        }, "higher layer")

    def test_a_circle_between_targets(self):
        self.assert_one({
            "dataplane/a/CMakeLists.txt": module("dataplane_a", links="dataplane_b"),
            "dataplane/b/CMakeLists.txt": module("dataplane_b", links="dataplane_a"),
        }, "circle: dataplane_a -> dataplane_b -> dataplane_a")

    def test_an_include_that_is_not_linked(self):
        self.assert_one({
            "common/a.h": HEADER,
            "common/CMakeLists.txt": module("common", "a.h"),
            "agent/a.cc": '#include "common/a.h"\n',
            "agent/CMakeLists.txt": module("agent", "", "a.cc"),
        }, "agent does not link common")

    def test_a_package_outside_its_home(self):
        self.assert_one({
            "agent/a.cc": "#include <openssl/sha.h>\n",
            "agent/CMakeLists.txt": module("agent", "", "a.cc"),
        }, "OpenSSL has its home in common/crypto")

    def test_an_unknown_package(self):
        self.assert_one({
            "agent/a.cc": "#include <left_pad/pad.h>\n",
            "agent/CMakeLists.txt": module("agent", "", "a.cc"),
        }, "belongs to no known package")

    def test_a_heavy_header_that_leaves_its_module(self):
        files = {
            "common/http/a.h": HEADER + "#include <boost/asio.hpp>\n",
            "common/http/a.cc": '#include "common/http/a.h"\n',
            "common/http/CMakeLists.txt": module("common_http", "a.h", "a.cc"),
        }
        self.assertEqual(problems_of(files), [])
        files["agent/b.cc"] = '#include "common/http/a.h"\n'
        files["agent/CMakeLists.txt"] = module("agent", "", "b.cc", "common_http")
        self.assert_one(files, "boost/asio.hpp, which is slow to compile, and agent/b.cc includes it")

    def test_an_unlisted_header_belongs_to_the_test_that_includes_it(self):
        files = {
            "agent/support.h": HEADER,
            "agent/a_test.cc": '#include "agent/support.h"\n',
            "agent/CMakeLists.txt": "millrace_test(agent_test\n  SOURCES a_test.cc)\n",
        }
        self.assertEqual(problems_of(files), [])
        files["agent/a_test.cc"] = ""
        self.assert_one(files, "agent/support.h", "in no CMake target")

    def test_gtest_outside_tests(self):
        self.assert_one({
            "agent/a.cc": "#include <gtest/gtest.h>\n",
            "agent/CMakeLists.txt": module("agent", "", "a.cc"),
        }, "for tests alone")

    def test_a_relative_include(self):
        self.assert_one({
            "agent/a.h": HEADER,
            "agent/a.cc": '#include "a.h"\n',
            "agent/CMakeLists.txt": module("agent", "a.h", "a.cc"),
        }, "not written from the repository root")

    def test_a_source_that_no_target_builds(self):
        self.assert_one({
            "agent/forgotten_test.cc": "",
            "agent/CMakeLists.txt": module("agent"),
        }, "forgotten_test.cc", "in no CMake target")

    def test_a_listed_file_that_does_not_exist(self):
        self.assert_one({"agent/CMakeLists.txt": module("agent", "", "gone.cc")}, "does not exist")

    def test_a_missing_pragma_once(self):
        self.assert_one({"agent/a.h": "", "agent/CMakeLists.txt": module("agent", "a.h")}, "no #pragma once")

    def test_a_folder_without_a_layer(self):
        problems = problems_of({
            "common/a.h": HEADER,
            "common/CMakeLists.txt": module("common", "a.h"),
            "attic/a.cc": '#include "common/a.h"\n',
            "attic/CMakeLists.txt": module("attic", "", "a.cc", "common"),
        })
        self.assertTrue(all("attic" in p and "no layer" in p for p in problems), problems)
        self.assertTrue(problems)

    def test_a_file_that_is_too_long(self):
        self.assert_one({"agent/long.py": "\n" * (rules.MAX_LINES + 1)}, "has 601 lines")


if __name__ == "__main__":
    unittest.main()
