"""The commands of README.md and of the book's Start and Guide pages, run as they stand there: a command that fails fails the page.

A page's fenced blocks run in order, in one shell, in a folder and namespaces of their own. A comment before a block says more of it:

    <!-- not run: REASON -->       this block cannot run here; the reason is for the reader of the page's source
    <!-- file: PATH -->            the block is this file
    <!-- needs: PROGRAM... -->     the page needs these programs
    <!-- setup: COMMANDS -->       commands that no reader needs, run at this place

`sh` blocks are commands. `console` blocks have commands behind `$ ` and what they print; `…` stands for anything there.
"""

import html.parser
import os
import re
import shutil
import subprocess
import urllib.parse

from lab import proc, tools
from lab.report import Failed, Skip, expect
from lab.target import Stag

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BOOK = os.path.join(ROOT, "docs/src")

# What every page begins with. A daemon runs in the background, and takes the place of the one before it.
PRELUDE = r"""
set -eEo pipefail
failed() { echo "at $AT: $BASH_COMMAND" >&2; }
trap failed ERR
# What is named in a way that `here` does not see must not reach the machine's own.
for place in /srv /etc/stag /var/lib/stag; do [ ! -d $place ] || mount -t tmpfs none $place; done
ip link set lo up
ip address add 192.0.2.1/24 dev lo && ip address add 198.51.100.1/24 dev lo
daemon() { command stag status --json 2>/dev/null | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -1; }
stag() {
  if [ "$1" != serve ]; then command stag "$@"; return; fi
  case " $* " in
    *" --takeover "*) ;;
    *) if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi ;;
  esac
  # Without what a shell's functions do with errors, which the daemon must not inherit.
  command stag "$@" >"$LAB/served" 2>"$LAB/served.log" & server=$!
  for _ in $(seq 300); do
    kill -0 "$server" 2>/dev/null || { cat "$LAB/served.log"; wait "$server"; return; }
    [ "$(daemon)" = "$server" ] && { cat "$LAB/served"; return; }
    sleep 0.1
  done
  echo "the daemon does not answer"; cat "$LAB/served.log"; return 1
}
"""

# Of `cargo run -p stag -- WORDS` the program is there already; nothing else of cargo is tried here.
CARGO = """#!/bin/sh
case "$1 $*" in "run "*" -p stag -- "*) ;; *) echo "cargo $*: not here"; exit 1 ;; esac
while [ "$1" != -- ]; do shift; done
shift
exec stag "$@"
"""


class Block:
    """A fenced block of a page, with the comments before it."""

    def __init__(self, line, language, notes):
        self.line, self.language, self.notes, self.text = line, language, notes, []


def blocks(text):
    """All fenced blocks of a page, and its comments as blocks of the language "note" where they stand alone."""
    found, notes, block = [], {}, None
    for number, line in enumerate(re.sub(r"<!--.*?-->", lambda m: m[0].replace("\n", "\x00"), text, flags=re.S).splitlines(), 1):
        if block:
            if line.strip() == "```":
                block = None
            else:
                block.text.append(line)
        elif line.startswith("```"):
            block = Block(number, line[3:].strip(), notes)
            found.append(block)
            notes = {}
        elif match := re.fullmatch(r"<!--\s*(not run|file|needs|setup):?\s*(.*?)\s*-->", line.strip(), re.S):
            kind, value = match[1], match[2].replace("\x00", "\n").strip()
            if kind in ("needs", "setup"):
                found.append(Block(number, kind, {}))
                found[-1].text = [value]
            else:
                notes[kind] = value
        elif line.strip():
            if notes:
                raise Failed(f"line {number}: a comment without its block: {notes}")
    return found


def here(text, folder):
    """A page's commands with this folder in the place of the machine's own, and this machine as the host."""
    text = re.sub(r"(?<![\w/.-])/(?=(?:srv|etc|var|usr/local|tmp)/)", f"{folder}/", text)
    return re.sub(r"\bHOST\b", "127.0.0.1", text)


def script(name, text, folder):
    """The shell script of a page, and what its console blocks must print: of each its place, its file and its text."""
    lines, shown = [PRELUDE], []
    for block in blocks(text):
        place, code = f"{name}:{block.line}", here("\n".join(block.text), folder)
        lines.append(f"AT='{place}'")
        if "not run" in block.notes:
            expect(block.notes["not run"], f"{place}: why is it not run?")
        elif "file" in block.notes:
            path = here(block.notes["file"], folder)
            lines += [f"mkdir -p $(dirname {path}); cat >{path} <<'END_OF_FILE'", code, "END_OF_FILE", f"chmod 600 {path}"]
        elif block.language in ("sh", "setup"):
            lines.append(code)
        elif block.language == "console":
            for part in re.split(r"^\$ ", code, flags=re.M)[1:]:
                command, _, printed = part.partition("\n")
                path = f"{folder}/shown-{len(shown)}"
                # What fails on the way may be what is shown; the last status counts.
                lines.append(f"trap - ERR; set +e; {{ {command}\n}} >{path} 2>&1; code=$?; cat {path}; trap failed ERR; set -e; (exit $code)")
                shown.append((place, path, printed))
        elif block.language == "needs":
            proc.need(*block.text[0].split())
        elif block.language not in ("text", "toml"):
            raise Failed(f"{place}: say what this block is: sh, console, toml or text, not {block.language!r}")
    return "\n".join(lines) + "\n", shown


def prints(expected, got):
    """Whether a program printed what a page shows."""
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("…"))
    return re.fullmatch(pattern, got.strip(), re.S) is not None


def run_page(name, text, folder):
    """Runs the blocks of a page."""
    # All that it starts ends with the namespace.
    alone = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        alone += ["--user", "--map-root-user"]
    if proc.run(*alone, "true", ok=None).code != 0:
        raise Skip("namespaces of its own (unshare --net --pid --mount-proc) are not allowed")
    commands, shown = script(name, text, folder)
    for part in ("bin", "run", "home", "state", "work", "srv", "tmp"):
        os.makedirs(os.path.join(folder, part))
    os.symlink(os.path.abspath(Stag.binary), os.path.join(folder, "bin/stag"))
    with open(os.path.join(folder, "bin/cargo"), "w", opener=lambda path, flags: os.open(path, flags, 0o755)) as file:
        file.write(CARGO)
    path = os.path.join(folder, "page.sh")
    with open(path, "w", encoding="utf-8") as file:
        file.write(commands)
    said = proc.run(*alone, "bash", "-c", f"cd {folder}/work && exec bash {path}", timeout=180, ok=None, env={
        "PATH": f"{folder}/bin:{os.environ['PATH']}", "LAB": folder, "HOME": f"{folder}/home", "RUNTIME_DIRECTORY": f"{folder}/run",
        "STATE_DIRECTORY": f"{folder}/state", "STAG_LOG": "error", "CI": ""})
    if said.code != 0:
        raise Failed(f"exit code {said.code}\n{proc.tail(said, 25)}")
    for place, file, expected in shown:
        with open(file, encoding="utf-8", errors="replace") as printed:
            got = printed.read()
        expect(prints(expected, got), f"{place}: the page shows\n{expected}\nand it was\n{got}")


def page(name):
    """The case of one page."""
    def case(lab):
        if lab.kind != "stag":
            raise Skip("the pages are about stag")
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            run_page(name, file.read(), lab.new_folder("docs"))
    return case


def finds_failures(lab):
    """A command that fails, a wrong output, a block that does not say what it is: each is found."""
    if lab.kind != "stag":
        raise Skip("the pages are about stag")
    for path in ("/srv/a", "osd:/srv/a", "'/srv/a'", "/tmp/a", "iscsi://HOST/etc/a"):
        expect(here(path, "/folder").replace("127.0.0.1", "HOST") == path.replace("/srv", "/folder/srv").replace("/tmp", "/folder/tmp"), path)
    fence = "```"
    right = f"""{fence}sh\nstag serve mem:1M\nstag status >status\n{fence}\n{fence}console\n$ echo one; echo two\none\n…\n{fence}\n"""
    run_page("right", right, lab.new_folder("right"))
    for wrong, said in ((f"{fence}sh\ntrue\nstag ls 127.0.0.1:1\ntrue\n{fence}", "at wrong:1: command stag"),
                        (f"{fence}sh\nstag serve /no/such/file\n{fence}", "exit code"),
                        (f"{fence}console\n$ echo one\ntwo\n{fence}", "the page shows"),
                        (f"{fence}\ntrue\n{fence}", "say what this block is"),
                        (f"<!-- not run: -->\n{fence}sh\ntrue\n{fence}", "why is it not run"),
                        ("<!-- not run: a reason -->\ntext", "without its block")):
        try:
            run_page("wrong", wrong, lab.new_folder("wrong"))
        except Failed as reason:
            expect(said in str(reason), f"{said!r} is not in: {reason}")
        else:
            raise Failed(f"passed: {wrong}")


def pages():
    """README.md, and the book's pages for users that have commands."""
    found = ["README.md"]
    for part in ("start", "guide"):
        names = sorted(name for name in os.listdir(os.path.join(BOOK, part)) if name.endswith(".md"))
        found += [f"docs/src/{part}/{name}" for name in names]
    return found + ["docs/src/objects/objects.md"]


class Links(html.parser.HTMLParser):
    """What a page links to, and what can be linked to on it."""

    def __init__(self, path):
        super().__init__()
        self.targets, self.names = [], {""}
        with open(path, encoding="utf-8") as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attributes):
        for key, value in attributes:
            if key == "id" or (tag == "a" and key == "name"):
                self.names.add(value)
            elif key in ("href", "src") and value:
                self.targets.append(value)


def dead_links(site):
    """Links of the site's pages that lead to no file of it, or to no place of a page."""
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(site) for name in names if name.endswith(".html")]
    pages = {path: Links(path) for path in paths}
    dead = []
    for path, page in pages.items():
        # 404.html is shown at any place, and toc.html in a frame.
        if os.path.basename(path) in ("404.html", "toc.html"):
            continue
        for target in page.targets:
            where, fragment = urllib.parse.urldefrag(target)
            parts = urllib.parse.urlsplit(where)
            if parts.scheme or parts.netloc:
                continue
            to = os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(parts.path))) if parts.path else path
            if not os.path.exists(to) or (to in pages and urllib.parse.unquote(fragment) not in pages[to].names):
                dead.append(f"{os.path.relpath(path, site)}: {target}")
    return dead


def book(lab):
    """mdBook makes the site without a warning, and its links lead somewhere; a spoiled copy's do not."""
    copy = os.path.join(lab.new_folder("book"), "docs")
    shutil.copytree(os.path.join(ROOT, "docs"), copy, ignore=shutil.ignore_patterns("book"))
    command, env = tools.python("mdbook", "build", copy)
    said = proc.run(*command, env=env)
    expect("WARN" not in said and "ERROR" not in said, said)
    dead = dead_links(os.path.join(copy, "book"))
    expect(not dead, "dead links:\n" + "\n".join(dead))
    with open(os.path.join(copy, "src/README.md"), "a", encoding="utf-8") as file:
        file.write("\n[gone](start/gone.md) [nowhere](start/install.md#nowhere)\n")
    proc.run(*command, env=env)
    dead = "\n".join(dead_links(os.path.join(copy, "book")))
    expect("gone" in dead and "#nowhere" in dead, f"dead links are not found, but:\n{dead}")


CASES = [("what fails on a page is found", finds_failures), ("mdBook builds the site without a warning, and its links are alive", book)] + [(name, page(name)) for name in pages()]
