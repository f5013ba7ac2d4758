"""A program on a terminal of its own: keys go in, and the screen that comes out is kept as text."""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

from . import proc
from .report import Failed

# What is taken out of the output: a control sequence, or a character.
PART = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[78=>]|.", re.DOTALL)


class Terminal:
    """As much of a terminal as full-screen programs use that place each part of what they write."""

    def __init__(self, *command, columns=80, lines=24, env=None):
        self.columns, self.lines = columns, lines
        self.master, self.slave = pty.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self.slave)
        # Of a character or a control sequence, the beginning may come first.
        self.decoder, self.raw, self.left = codecs.getincrementaldecoder("utf-8")(), "", ""
        environment = {**os.environ, "TERM": "xterm-256color", **(env or {})}
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=self.slave, stdout=self.slave, stderr=self.slave, env=environment,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def resize(self, columns, lines):
        self.columns, self.lines = columns, lines
        self.cells, self.at = [[" "] * columns for _ in range(lines)], (0, 0)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys):
        os.write(self.master, keys.encode())

    def look(self, seconds=0.05):
        """Takes what the program has written, and returns the screen."""
        while select.select([self.master], [], [], seconds)[0]:
            self.left += self.decoder.decode(os.read(self.master, 1 << 16))
            seconds = 0
        whole = re.sub(r"\x1b[\[?0-9;]*$", "", self.left)
        self.left = self.left[len(whole):]
        self.raw += whole
        for part in PART.finditer(whole):
            self.take(part)
        return "\n".join("".join(line).rstrip() for line in self.cells)

    def take(self, part):
        line, column = self.at
        if part[2] == "H":
            numbers = [int(number or 1) for number in (part[1] or "1;1").split(";")]
            self.at = (numbers[0] - 1, numbers[1] - 1)
        elif part[2] == "J":
            self.cells = [[" "] * self.columns for _ in range(self.lines)]
        elif part[0] == "\r":
            self.at = (line, 0)
        elif part[0] == "\n":
            self.at = (line + 1, column)
        elif len(part[0]) == 1 and part[0] != "\x1b":
            if line < self.lines and column < self.columns:
                self.cells[line][column] = part[0]
            self.at = (line, column + 1)

    def see(self, pattern, timeout=60):
        """Waits until the screen has something that matches."""
        end = time.monotonic() + timeout
        while not (found := re.search(pattern, screen := self.look())):
            if time.monotonic() > end or self.process.poll() is not None:
                raise Failed(f"{pattern} is not seen; exit code {self.process.poll()}:\n{screen}")
        return found

    def ended(self, timeout=60):
        """Waits for the end. Returns the exit code, and whether the terminal is as it was before: its modes, and no other screen."""
        proc.wait_until(lambda: self.look() is not None and self.process.poll() is not None, timeout, "the program ends")
        self.look()
        modes = termios.tcgetattr(self.slave) == self.before
        opened, closed = self.raw.count("\x1b[?1049h"), self.raw.count("\x1b[?1049l")
        cursor = self.raw.rfind("\x1b[?25h") >= self.raw.rfind("\x1b[?25l")
        return self.process.returncode, modes and closed >= opened and cursor

    def hang_up(self):
        """Closes the terminal, as when its window is closed."""
        for end in (self.master, self.slave):
            os.close(end)
        self.master = None

    def close(self):
        proc.end(self.process)
        if self.master is not None:
            self.hang_up()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
