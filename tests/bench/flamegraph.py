"""Draws a flame graph as SVG from the output of `perf script`.

    perf record -e cpu-clock -F 997 -g PROGRAM ...
    perf script | /usr/bin/python3 tests/bench/flamegraph.py --title TITLE > docs/flame.svg

Width is the share of samples; the widest child comes first. Frames narrower than a pixel are left out. Each
frame's full name and share appear under the pointer. Time in the kernel counts to the function it interrupted.
"""

import argparse
import html
import re
import sys
import zlib

WIDTH = 1200
FRAME_HEIGHT = 17
CHARACTER_WIDTH = 6.6
LEAST_WIDTH = 1.0


class Frame:
    def __init__(self):
        self.samples = 0
        self.children = {}


def short_name(symbol):
    """A C++ symbol without namespaces of ours, arguments and template arguments."""
    symbol = re.sub(r"\+0x[0-9a-f]+$", "", symbol)
    symbol = symbol.replace("(anonymous namespace)::", "")
    symbol = re.sub(r"millrace::(\w+::)*?(?=[A-Z]|\w+(\(|$|<))", "", symbol)
    kept, depth = [], 0
    for character in symbol:
        if character in "<({":
            depth += 1
        if depth == 0:
            kept.append(character)
        if character in ">)}":
            depth = max(0, depth - 1)
    return "".join(kept).removeprefix("void ").split(" const")[0].strip() or symbol


def read_stacks(lines):
    """Yields the stacks of `perf script`, outermost frame first."""
    stack = []
    for line in lines:
        if not line.strip():
            if stack:
                yield stack[::-1]
            stack = []
        elif line[0] in " \t":
            match = re.match(r"\s*[0-9a-f]+ (.+) \((.*)\)$", line.rstrip())
            if match and match.group(2) != "[kernel.kallsyms]":
                stack.append(match.group(1))
    if stack:
        yield stack[::-1]


def build_tree(stacks, root_symbol):
    root = Frame()
    for stack in stacks:
        names = [short_name(symbol) for symbol in stack]
        if root_symbol:
            places = [i for i, name in enumerate(names) if root_symbol in name]
            if not places:
                continue
            names = names[places[0]:]
        root.samples += 1
        frame = root
        for name in names:
            frame = frame.children.setdefault(name, Frame())
            frame.samples += 1
    return root


def depth_of(frame):
    return 1 + max((depth_of(child) for child in frame.children.values()), default=0)


def colour(name):
    """Warm, and the same for a name in every picture."""
    value = zlib.crc32(name.encode())
    return f"rgb({205 + value % 50},{90 + value // 50 % 110},{40 + value // 5500 % 40})"


def draw(name, frame, total, left, depth, height, out):
    width = WIDTH * frame.samples / total
    if width < LEAST_WIDTH:
        return
    top = height - (depth + 1) * FRAME_HEIGHT
    room = int((width - 4) / CHARACTER_WIDTH)
    label = name if len(name) <= room else name[: room - 1] + "…" if room > 2 else ""
    out.append(f'<g><title>{html.escape(name)}: {100 * frame.samples / total:.1f} %</title>'
               f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{FRAME_HEIGHT - 1}" '
               f'fill="{colour(name)}"/>')
    if label:
        out.append(f'<text x="{left + 2:.1f}" y="{top + 12}">{html.escape(label)}</text>')
    out.append("</g>\n")
    for child_name, child in sorted(frame.children.items(), key=lambda item: (-item[1].samples, item[0])):
        draw(child_name, child, total, left, depth + 1, height, out)
        left += WIDTH * child.samples / total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--title", required=True)
    parser.add_argument("--root", default="", help="only what runs below a function of this name")
    arguments = parser.parse_args()
    root = build_tree(read_stacks(sys.stdin), arguments.root)
    if root.samples == 0:
        sys.exit("flamegraph: no stacks in the input")
    height = (depth_of(root) + 1) * FRAME_HEIGHT + 24
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
           'font-family="monospace" font-size="11">\n'
           f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>\n'
           f'<text x="4" y="14" font-size="13">{html.escape(arguments.title)} '
           f'({root.samples} samples)</text>\n']
    draw("all", root, root.samples, 0, 0, height, out)
    out.append("</svg>\n")
    sys.stdout.write("".join(out))


if __name__ == "__main__":
    main()
