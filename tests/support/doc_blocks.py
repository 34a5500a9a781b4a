"""Read the code blocks of a page and run them in a folder.

The blocks of a page run in order, as one program: Python blocks share their variables, shell blocks the folder.
Comments in a page are instructions:

<!-- not run: REASON -->    the next block cannot run here
<!-- slow: REASON -->       it runs where GEMEL_SLOW_DOCS is set
<!-- given: NAME, ... -->   files and variables of tests/support/doc_samples.py that exist before the first block
<!-- output -->             the next block is the output of the last one; numbers may differ by 0.002

python tests/support/doc_blocks.py PAGE            run a page in the working folder and report the block that failed
python tests/support/doc_blocks.py PAGE --write    update the outputs in the page
"""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^```(\w*)\s*$")
COMMENT = re.compile(r"^<!-- (not run|slow|given|output)(?:: (.*?))? -->$")
NUMBER = re.compile(r"-?\d*\.\d+")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
OUTPUT = "<!-- output -->\n```text\n"
RUNNABLE = {"python", "sh", "bash"}


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    code: str
    not_run: str = ""
    slow: str = ""
    output: str | None = None

    @property
    def runs(self) -> bool:
        wanted = not self.slow or bool(os.environ.get("GEMEL_SLOW_DOCS"))
        return self.language in RUNNABLE and not self.not_run and wanted


@dataclass(frozen=True)
class Story:
    """A page: its blocks in order, and what is there before the first."""

    blocks: list[Block]
    given: list[str]


def read_story(page: Path) -> Story:
    blocks: list[Block] = []
    given: list[str] = []
    comments: dict[str, str] = {}
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), start=1))
    for number, line in lines:
        comment, fence = COMMENT.match(line), FENCE.match(line)
        if comment and comment[1] == "given":
            given += [name.strip() for name in (comment[2] or "").split(",")]
        elif comment:
            comments[comment[1]] = comment[2] or ""
        elif fence:
            code = "\n".join(_inside(lines)) + "\n"
            if "output" in comments:
                blocks[-1] = replace(blocks[-1], output=code)
            else:
                reasons = {"not_run": comments.get("not run", ""), "slow": comments.get("slow", "")}
                blocks.append(Block(number, fence[1], code, **reasons))
            comments = {}
    return Story(blocks, given)


def _inside(lines: Iterator[tuple[int, str]]) -> Iterator[str]:
    for _, line in lines:
        if line.startswith("```"):
            return
        yield line


def run_story(story: Story, page: str, names: dict[str, Any], *, compare: bool) -> str:
    """What failed, or nothing. Python blocks see `names`; shown output counts only with `compare`."""
    for block in story.blocks:
        if not block.runs:
            continue
        printed, wrong = run_block(block, page, names)
        if not wrong and compare and block.output is not None and not alike(printed, block.output):
            wrong = f"shown:\n{block.output}\nprinted:\n{printed}"
        if wrong:
            return f"{page}:{block.line}\n{block.code}\n{wrong}"
    return ""


def run_block(block: Block, page: str, names: dict[str, Any]) -> tuple[str, str]:
    """What it printed, and what went wrong. A shell block whose output is shown prints to a terminal."""
    if block.language == "python":
        return _python(block, page, names)
    return _shell(block.code) if block.output is None else _terminal(block.code)


def _python(block: Block, page: str, names: dict[str, Any]) -> tuple[str, str]:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            # In front of the code as many empty lines as make its lines those of the page.
            exec(compile("\n" * block.line + block.code, page, "exec"), names)
    except BaseException:  # a SystemExit is a failure too
        return printed.getvalue(), traceback.format_exc()
    return printed.getvalue(), ""


BASH = ["bash", "-euo", "pipefail", "-c"]


def _shell(code: str) -> tuple[str, str]:
    done = subprocess.run([*BASH, code], capture_output=True, text=True, encoding="utf-8", check=False)
    return done.stdout, _failed(done.returncode, done.stdout + done.stderr)


def _terminal(code: str) -> tuple[str, str]:
    """As a person sees it: tables instead of JSON lines; what comes on standard error is left out."""
    inner, outer = pty.openpty()
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [*BASH, code], stdout=outer, stderr=errors, env={**os.environ, "NO_COLOR": "1"}
        )
        os.close(outer)
        parts = []
        with contextlib.suppress(OSError):  # reading past the end of a terminal is an error
            while part := os.read(inner, 65536):
                parts.append(part)
        os.close(inner)
        code_of_exit = child.wait()
        errors.seek(0)
        message = errors.read().decode()
    printed = ESCAPE.sub("", b"".join(parts).decode()).replace("\r\n", "\n")
    return printed, _failed(code_of_exit, printed + message)


def _failed(code: int, message: str) -> str:
    return f"exit {code}\n{message}" if code else ""


def alike(one: str, other: str) -> bool:
    """The same words in the same order, and numbers that differ by at most 0.002; spaces do not count."""
    if NUMBER.sub("#", one).split() != NUMBER.sub("#", other).split():
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(abs(float(left) - float(right)) <= 0.002 for left, right in pairs)


def write_output(page: Path, story: Story, names: dict[str, Any]) -> str:
    """The page with the output of its blocks as it is now; returns what failed."""
    text = page.read_text(encoding="utf-8")
    for block in story.blocks:
        if block.runs:
            printed, wrong = run_block(block, page.name, names)
            if wrong:
                return wrong
            if block.output is not None:
                shown = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())
                at = text.index(f"{OUTPUT}{block.output}```", text.index(block.code)) + len(OUTPUT)
                text = f"{text[:at]}{shown}\n{text[at + len(block.output) :]}"
    page.write_text(text, encoding="utf-8")
    return ""


def main(page: Path, *, write: bool) -> int:
    import doc_samples

    story = read_story(page)
    names = doc_samples.give(story.given, Path.cwd())
    if write:
        wrong = write_output(page, story, names)
    else:
        wrong = run_story(story, page.name, names, compare=bool(os.environ.get("GEMEL_DOCS_REAL_MODEL")))
    sys.stderr.write(wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), write="--write" in sys.argv))
