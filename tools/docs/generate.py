"""Write the pages of docs/reference that come from the code; with `--check`, fail when they are stale instead.

command-line.md comes from the commands, options.md from the docstrings of `EncodeOptions`' fields, objectives.md from
the objectives: the columns they need, the first lines of their docstrings, and their settings; python-api.md from the
signatures and docstrings of all public names (api_page.py); errors.md from errors.toml.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import click
from api_page import python_api

from gemel.cli.flags import field_docs
from gemel.cli.main import cli
from gemel.cli.verbs.help import error_help
from gemel.training.objectives.base import OBJECTIVES, list_objectives

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
OPTIONS = ROOT / "src" / "gemel" / "options.py"
MARK = "written by tools/docs/generate.py; change the code and run `make docs`"
NOTE = "<!-- Written by tools/docs/generate.py; change the code and run `make docs`. -->"
OBJECTIVES_HEAD = "| objective | texts | label | in one line |"
SETTINGS_HEAD = "| objective | setting | default | meaning |"


def command_line() -> str:
    """The help of every command, as the program shows it at 100 columns."""
    parts = [
        "# The command line",
        NOTE,
        "`gemel VERB ...`, also `python -m gemel VERB ...`. Exit 0: done; 1: the work failed; 2: the request "
        "was wrong, with one line on standard error; 130: interrupted. `--debug` shows the traceback. "
        "Options can also be set in files and by environment variables: [configuration.md](configuration.md).",
        "Standard output contains the result and nothing else; messages go to standard error. `--json` prints one "
        "object, or JSON lines if the result has rows; the help of each verb says which. Colors are used on "
        "terminals only, and `NO_COLOR` turns them off. A pipe that closes early (`gemel ... | head`) is not an error.",
    ]
    for path, text in _helps(cli, "gemel", None):
        parts += [f"{'#' * (path.count(' ') + 2)} {path}", f"```text\n{text}\n```"]
    return "\n\n".join(parts) + "\n"


def _helps(command: click.Command, path: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    name = path.rsplit(maxsplit=1)[-1]
    settings = command.context_settings  # click merges these only when it runs a command
    context = click.Context(command, info_name=name, parent=parent, terminal_width=100, **settings)
    yield path, command.get_help(context)
    if isinstance(command, click.Group):
        for inner_name in command.list_commands(context):
            inner = command.get_command(context, inner_name)
            if inner is not None:
                yield from _helps(inner, f"{path} {inner_name}", context)


def options() -> str:
    """A row for each field of `EncodeOptions`."""
    rows = [f"| `{name}` | `{kind}` | `{default}` | {text} |" for name, kind, default, text in _fields()]
    head = [
        "# Options of encoding",
        "",
        NOTE,
        "",
        "One dataclass, `gemel.EncodeOptions`, is the keywords of `model.encode` and the flags of "
        "`gemel encode` (`on_long` is `--on-long`).",
        "",
        "| name | values | default | meaning |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


def _fields() -> Iterator[tuple[str, str, str, str]]:
    tree = ast.parse(OPTIONS.read_text(encoding="utf-8"))
    aliases = {
        node.targets[0].id: " or ".join(ast.unparse(value) for value in node.value.slice.elts)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Subscript)
        and isinstance(node.value.slice, ast.Tuple)
    }
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "EncodeOptions").body
    for field, text in pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        assert isinstance(text, ast.Expr), f"EncodeOptions.{field.target.id} has no docstring"
        assert isinstance(text.value, ast.Constant)
        kinds = [aliases.get(part, part) for part in ast.unparse(field.annotation).split(" | ")]
        default = ast.unparse(field.value) if field.value else "required"
        meaning = " ".join(str(text.value.value).split()).replace("|", "\\|")
        yield field.target.id, " or ".join(kinds), default, meaning


def objectives() -> str:
    """The page with its tables updated: one row per objective, and one per option of an objective."""
    rows, settings = [], []
    for row in list_objectives():
        flags = [f"--{name} {', '.join(values)}" for name, values in row.when.items()]
        cells = [f"`{' '.join([row.name, *flags])}`", row.columns, row.needs.label or "–", row.about]
        rows.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    for name in OBJECTIVES:
        cls = OBJECTIVES[name]
        docs = field_docs(cls)
        for field in fields(cls):
            cells = [name, f"`{field.name}`", f"`{field.default}`", docs[field.name]]
            settings.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    page = (REFERENCE / "objectives.md").read_text(encoding="utf-8")
    return _put(_put(page, "objectives", OBJECTIVES_HEAD, rows), "settings", SETTINGS_HEAD, settings)


def _put(page: str, name: str, head: str, rows: list[str]) -> str:
    """The page with this table between its two markers."""
    before, _, rest = page.partition(f"<!-- {name}: {MARK} -->")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    assert end, f"objectives.md has no markers for the table {name!r}"
    columns = head.count("|") - 1
    table = "\n".join([head, "|" + "---|" * columns, *rows])
    return f"{before}<!-- {name}: {MARK} -->\n{table}\n{end}{after}"


HUNDREDS = {
    "1": "Installation",
    "2": "Models",
    "3": "Texts and files",
    "4": "Indexes",
    "5": "Training",
    "6": "Server",
}


def errors() -> str:
    """The codes of errors.toml, by their hundreds."""
    parts = [
        "# Error codes",
        NOTE,
        "The situations that users meet most often have a code. The command line prints it after the message, a Python "
        "exception has it as `code` (`None` for all others), and the server sends it as `help` in JSON. "
        "`gemel help GEM-301` prints an entry of this page without a network, `gemel help errors` lists all. The texts "
        "of messages may change between versions; what a code stands for does not.",
    ]
    hundred = ""
    for entry in error_help().values():
        if entry.code[4] != hundred:
            hundred = entry.code[4]
            parts.append(f"## {HUNDREDS[hundred]}")
        parts += [
            f"### {entry.code}",
            f"**{entry.title}.** {entry.when}",
            f"{entry.do} More: [{Path(entry.page).stem}]({os.path.relpath(entry.page, 'reference')}).",
        ]
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _words(text: str) -> str:
    """The text without whitespace, because line breaks depend on the version of click."""
    return "".join(text.split())


PAGES = {
    "command-line.md": command_line,
    "options.md": options,
    "objectives.md": objectives,
    "python-api.md": lambda: python_api(NOTE),
    "errors.md": errors,
}


def main(arguments: list[str]) -> int:
    stale = []
    for name, make in PAGES.items():
        path, text = REFERENCE / name, make()
        if not path.exists() or _words(path.read_text(encoding="utf-8")) != _words(text):
            stale.append(name)
            if "--check" not in arguments:
                path.write_text(text, encoding="utf-8")
    if "--check" in arguments and stale:
        sys.stderr.write(f"stale: {', '.join(stale)}. Run: make docs\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
