"""Reads every #include and every CMake link list and compares them with the tables in rules.py.

    /usr/bin/python3 tests/layering/check_layering.py [ROOT]

prints one line per violation and exits with 1 when there is any.
"""

import os
import re
import sys
from pathlib import Path

import rules

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
CMAKE_CALL = re.compile(r"^\s*([A-Za-z_]+)\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)", re.MULTILINE)
CMAKE_KEYWORDS = {
    "HEADERS", "SOURCES", "TESTS", "TEST_DEPS", "PUBLIC", "PRIVATE", "INTERFACE", "DEPS", "TIMEOUT",
    "STATIC", "SHARED", "OBJECT", "SYSTEM", "EXCLUDE_FROM_ALL",
}
FILE_KEYWORDS = {"HEADERS", "SOURCES", "TESTS"}
CODE_SUFFIXES = {".cc", ".h", ".cu", ".cuh"}


class Target:
    """One CMake target of ours: its files (paths from the root) and the targets it links."""

    def __init__(self, name, folder):
        self.name = name
        self.folder = folder
        self.files = set()
        self.links = set()


def list_files(root):
    """Every file below root, as sorted paths from root; folders without our sources are left out."""
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(s for s in subfolders if s not in rules.SKIPPED_FOLDERS)
        for name in sorted(names):
            found.append(str(Path(folder, name).relative_to(root)))
    return found


def matches(path, prefix):
    """True when path is the folder or file named prefix, or lies below it."""
    return prefix == "" or path == prefix or path.startswith(prefix + "/")


def layer_of(path):
    """The index of the path's layer; None when no folder of the table holds it."""
    best = None
    for index, prefixes in enumerate(rules.LAYERS):
        for prefix in prefixes:
            if matches(path, prefix) and (best is None or len(prefix) > best[0]):
                best = (len(prefix), index)
    return None if best is None else best[1]


def parse_cmake(text, folder):
    """The targets that one CMakeLists.txt defines, by name."""
    text = re.sub(r"#[^\n]*", "", text)
    targets = {}
    for command, body in CMAKE_CALL.findall(text):
        words = re.findall(r'"[^"]*"|\S+', body)
        words = [w.strip('"') for w in words]
        command = command.lower()
        if not words:
            continue
        name = words[0]
        if command in ("millrace_module", "millrace_program", "millrace_test", "millrace_fuzz",
                       "millrace_proto", "add_library", "add_executable"):
            sections = split_sections(words[1:], default="SOURCES")
            target = targets.setdefault(name, Target(name, folder))
            if command == "millrace_module":
                target.links |= set(sections.get("PUBLIC", [])) | set(sections.get("PRIVATE", []))
                if sections.get("TESTS"):
                    test = targets.setdefault(name + "_test", Target(name + "_test", folder))
                    test.links |= {name} | set(sections.get("TEST_DEPS", []))
                    test.files |= own_files(sections["TESTS"], folder)
                sections.pop("TESTS", None)
            elif command == "millrace_proto":
                target.files.add(f"{folder}/{words[1]}.proto")
            else:
                target.links |= set(sections.get("DEPS", []))
            for keyword in FILE_KEYWORDS:
                target.files |= own_files(sections.get(keyword, []), folder)
        elif command == "target_link_libraries":
            sections = split_sections(words[1:], default="PUBLIC")
            target = targets.setdefault(name, Target(name, folder))
            for names in sections.values():
                target.links |= set(names)
        elif command == "target_sources":
            sections = split_sections(words[1:], default="SOURCES")
            target = targets.setdefault(name, Target(name, folder))
            for names in sections.values():
                target.files |= own_files(names, folder)
    return targets


def split_sections(words, default):
    sections = {}
    keyword = default
    for word in words:
        if word in CMAKE_KEYWORDS:
            keyword = word
            sections.setdefault(keyword, [])
        else:
            sections.setdefault(keyword, []).append(word)
    return sections


def own_files(words, folder):
    """Paths from the root of the words that name files of this folder (generated ones are not)."""
    return {
        os.path.normpath(os.path.join(folder, w))
        for w in words
        if "$" not in w and Path(w).suffix in CODE_SUFFIXES
    }


class Checker:
    def __init__(self, root):
        self.root = Path(root)
        self.paths = list_files(self.root)
        self.targets = {}
        self.includes = {}  # path -> [(kind, included)]
        self.problems = []
        for path in self.paths:
            if Path(path).name == "CMakeLists.txt" and path != "CMakeLists.txt":
                folder = str(Path(path).parent)
                for name, target in parse_cmake(self.read(path), folder).items():
                    self.targets[name] = target
            if Path(path).suffix in CODE_SUFFIXES:
                self.includes[path] = INCLUDE.findall(self.read(path))
        self.target_of = {f: t for t in self.targets.values() for f in t.files}
        self.includers = {}  # path -> the files that include it
        for path, includes in self.includes.items():
            for _, included in includes:
                self.includers.setdefault(included, []).append(path)
        self.adopt_unlisted_headers()

    def adopt_unlisted_headers(self):
        """Gives a header that no target lists, as tests have them, to the target that includes it."""
        todo = [h for h in self.includes if h.endswith(".h") and h not in self.target_of]
        for _ in range(len(todo)):  # as often as headers can include one another
            for header in todo:
                for includer in self.includers.get(header, []):
                    if header not in self.target_of and includer in self.target_of:
                        self.target_of[header] = self.target_of[includer]

    def read(self, path):
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    def report(self, path, message):
        self.problems.append(f"{path}: {message}")

    def run(self):
        """All violations, as sorted sentences."""
        for path, includes in self.includes.items():
            for kind, included in includes:
                if kind == "<":
                    self.check_package(path, included)
                else:
                    self.check_own_include(path, included)
            self.check_file(path)
        self.check_links()
        self.check_cycles()
        self.check_lengths()
        return sorted(set(self.problems))

    def check_own_include(self, path, included):
        if ".." in included or (Path(path).parent / included) in map(Path, self.includes) and "/" not in included:
            self.report(path, f'"{included}" is not written from the repository root')
            return
        generated = re.sub(r"(\.grpc)?\.pb\.h$", ".proto", included)
        if included not in self.includes and generated not in self.paths:
            if layer_of(included) is not None:
                self.report(path, f'includes "{included}", which does not exist')
            else:
                self.check_package(path, included)  # a package's header in quotes
            return
        self.check_direction(path, included, f'includes "{included}"')
        self.check_heavy(path, included in rules.HEAVY_OWN_HEADERS, included)
        self.check_linked(path, included if included in self.includes else generated)

    def check_direction(self, path, other, what):
        """path depends on other; both are paths from the root."""
        mine, theirs = layer_of(path), layer_of(other)
        if mine is None or theirs is None:
            missing = path if mine is None else other
            self.report(path, f"{what}: {missing} is in no layer; add its folder to rules.LAYERS")
        elif theirs > mine:
            self.report(path, f"{what}, which is in a higher layer")
        for includer, forbidden in rules.FORBIDDEN:
            if matches(path, includer) and matches(other, forbidden):
                self.report(path, f"{what}, and {includer} must not know {forbidden}")

    def check_linked(self, path, included):
        """What a file includes, its target must link, directly or through what it links."""
        mine = self.target_of.get(path)
        theirs = self.target_of.get(included)
        if mine is None or theirs is None or mine is theirs:
            return
        if theirs.name not in self.reachable(mine):
            self.report(path, f'includes "{included}", but {mine.name} does not link {theirs.name}')

    def reachable(self, target):
        seen, todo = set(), [target.name]
        while todo:
            for link in self.targets[todo.pop()].links:
                if link in self.targets and link not in seen:
                    seen.add(link)
                    todo.append(link)
        return seen

    def check_package(self, path, included):
        is_test = path.endswith("_test.cc") or matches(path, "tests")
        if any(included.startswith(p) for p in rules.TEST_PACKAGES):
            if not is_test:
                self.report(path, f"<{included}> is for tests alone")
            return
        for prefix, (package, homes) in rules.HOMES.items():
            if included.startswith(prefix):
                at_home = any(matches(path, home) or Path(path).name == home for home in homes)
                if not at_home and not matches(path, "tests"):
                    self.report(path, f"<{included}>: {package} has its home in {', '.join(homes)}")
                self.check_heavy(path, any(included.startswith(p) for p in rules.HEAVY_PREFIXES), included)
                return
        is_system = included in rules.SYSTEM_HEADERS or included.startswith(tuple(rules.SYSTEM_PREFIXES))
        is_cxx = "/" not in included and "." not in included
        if not is_system and not is_cxx:
            self.report(path, f"<{included}> belongs to no known package; give it a home in rules.HOMES")

    def check_heavy(self, path, is_heavy, included):
        if not is_heavy or not path.endswith(".h") or path in rules.HEAVY_HEADER_HOMES:
            return
        folder = str(Path(path).parent)
        others = [i for i in self.includers.get(path, []) if not matches(i, folder)]
        if others:
            self.report(path, f"includes {included}, which is slow to compile, and {others[0]} includes it")

    def check_file(self, path):
        if path.endswith(".h") and not re.search(r"^#pragma once$", self.read(path), re.MULTILINE):
            self.report(path, "has no #pragma once")
        if path not in self.target_of:
            self.report(path, "is in no CMake target")

    def check_links(self):
        for target in self.targets.values():
            place = f"{target.folder}/CMakeLists.txt"
            for link in target.links:
                if link in self.targets:
                    what = f"{target.name} links {link}"
                    other = self.targets[link].folder
                    self.check_direction(target.folder, other, what)
                elif re.fullmatch(r"[a-z_]+", link) and layer_of(link.replace("_", "/")) is not None:
                    self.report(place, f"{target.name} links {link}, which no folder defines")
            for name in self.reachable(target):
                for includer, forbidden in rules.FORBIDDEN:
                    if matches(target.folder, includer) and matches(self.targets[name].folder, forbidden):
                        self.report(place, f"{target.name} reaches {name}, and {includer} must not know {forbidden}")
            for path in target.files:
                if path not in self.paths:
                    self.report(place, f"{target.name} lists {path}, which does not exist")

    def check_cycles(self):
        """Circles between targets, by links and by includes together."""
        edges = {name: {l for l in t.links if l in self.targets} for name, t in self.targets.items()}
        for path, includes in self.includes.items():
            mine = self.target_of.get(path)
            for kind, included in includes:
                theirs = self.target_of.get(included)
                if kind == '"' and mine and theirs and mine is not theirs:
                    edges[mine.name].add(theirs.name)
        state = {}

        def visit(name, trail):
            state[name] = "open"
            for other in sorted(edges[name]):
                if state.get(other) == "open":
                    circle = trail[trail.index(other):] + [other]
                    self.report("CMake targets", "circle: " + " -> ".join(circle))
                elif other not in state:
                    visit(other, trail + [other])
            state[name] = "closed"

        for name in sorted(edges):
            if name not in state:
                visit(name, [name])

    def check_lengths(self):
        for path in self.paths:
            if Path(path).suffix not in rules.SOURCE_SUFFIXES or path in rules.NOT_SOURCES:
                continue
            lines = self.read(path).count("\n")
            if lines > rules.MAX_LINES and path not in rules.LONG_FILES:
                self.report(path, f"has {lines} lines, more than {rules.MAX_LINES}: probably two responsibilities")


def main(arguments):
    root = arguments[0] if arguments else Path(__file__).resolve().parents[2]
    checker = Checker(root)
    problems = checker.run()
    for problem in problems:
        print(problem)
    print(f"layering: {len(checker.includes)} files, {len(checker.targets)} targets, {len(problems)} violations")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
