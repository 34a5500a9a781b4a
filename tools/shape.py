"""The shape of the package: its layers, and numbers such as how many modules there are and what they import.

    python tools/shape.py            print the table of numbers
    python tools/shape.py --write    put the map of layers and the table into ARCHITECTURE.md
    python tools/shape.py --json     the numbers for programs

`tests/project/test_layers.py` enforces the layers, `tests/project/test_shape.py` the limits of the numbers.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "gemel"
PAGE = ROOT / "ARCHITECTURE.md"
SMALL = 60  # lines
REGISTRIES = (
    "encoder/architectures",
    "training/objectives",
    "evaluation/tasks",
    "groups/methods",
    "serve/protocols",
    "cli/verbs",
)
"""Folders whose modules are entries of a registry: one file each, however short."""


LAYERS = [
    (("errors",), "the errors that callers see"),
    (("types", "registry", "options", "terminal"), "shared shapes; tables of named things; settings; output"),
    (
        ("files",),
        "readers and writers of rows; HTML; atomic files and locks; child processes, network use, cores and memory",
    ),
    (("checkpoint",), "model folders: read, write, find, fetch, convert, fingerprint"),
    (("vectors",), "arrays only: similarity, scan, search, pairs, BM25, quantization, calibration"),
    (("encoder",), "tokenizer, batches, network, architectures, engines, pooling, heads"),
    (("model", "cross_model"), "a bi-encoder; a cross-encoder"),
    (("index", "export"), "stored documents; one graph for other runtimes"),
    (("texts",), "a model applied to texts: folders of vectors, search, pairs, explanations, plans"),
    (("evaluation",), "tasks, comparisons and reports, for models of every kind"),
    (("groups", "training"), "clusters, duplicates, maps; training and distillation"),
    (("integrations", "compat"), "gemel in other programs, on Ray; the calls of sentence-transformers"),
    (("serve", "sklearn"), "the HTTP server; scikit-learn estimators"),
    (("cli",), "one verb, one file; the error policy in main.py"),
]
"""Low to high. A module imports from lower layers and from its own folder, not from its neighbors in a layer."""


@dataclass(frozen=True)
class Measure:
    name: str
    value: float
    limit: float
    before: str
    """Measured by this script on the commit before the package was put into this shape."""
    rearranged: str
    """Measured by this script when it was; features have been added since."""

    def cell(self) -> str:
        return f"{self.value:.1f} %" if "share" in self.name else f"{self.value:,.0f}"


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    lines: list[str]
    tree: ast.Module

    @property
    def folder(self) -> str:
        return self.path.parent.relative_to(PACKAGE).as_posix()


def modules() -> list[Module]:
    out = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        out.append(Module(name, path, text.splitlines(), ast.parse(text)))
    return out


def imports(module: Module, names: set[str], *, top: bool = False) -> Iterator[str]:
    """Modules of the package that this one imports; `top`: when it is loaded, not inside a function or for types."""
    nodes = _run_at_import(module.tree) if top else ast.walk(module.tree)
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in names:
                    yield inner
                elif node.module in names:
                    yield node.module


def _run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        lazy = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        if not lazy and not for_types:
            yield child
            yield from _run_at_import(child)


def measure() -> list[Measure]:
    every = modules()
    lines = sum(len(module.lines) for module in every)
    longest = max(len(module.lines) for module in every)
    share = 100 * _import_lines(every) / lines
    rows = [
        ("modules", len(every), "607", "264"),
        ("entries directly under the package", len(entries()), "48", "22"),
        ("modules in the largest folder", _largest_folder(every), "36", "20"),
        ("lines", lines, "62,536", "56,496"),
        ("share of lines that are imports", share, "9.9 %", "7.1 %"),
        ("modules with one importer and at most 60 lines", len(single_importer(every)), "56", "0"),
        ("class names defined twice or more", len(repeated_classes(every)), "49", "2"),
        ("lines of a function, 90th percentile", _long_function(every), "19", "19"),
        ("lines of the longest module", longest, "496", "566"),
        ("import cycles", len(cycles(every)), "0", "0"),
        ("files loaded by `import gemel.model`", loaded("gemel.model"), "65", "25"),
    ]
    return [Measure(name, value, LIMITS[name], before, after) for name, value, before, after in rows]


def entries() -> list[str]:
    """What is directly under the package, besides `__init__`, `__main__` and `py.typed`."""
    return sorted(
        path.name
        for path in PACKAGE.iterdir()
        if path.name not in {"__init__.py", "__main__.py", "py.typed", "__pycache__"}
    )


def single_importer(every: list[Module]) -> list[str]:
    """Small modules that one other module imports, and that are not entries of a registry."""
    names = {module.name for module in every}
    importers: dict[str, set[str]] = defaultdict(set)
    for module in every:
        for target in imports(module, names):
            importers[target].add(module.name)
    return sorted(
        module.name
        for module in every
        if len(module.lines) <= SMALL
        and len(importers[module.name]) == 1
        and module.path.name not in {"__init__.py", "__main__.py"}
        and module.folder not in REGISTRIES
    )


def repeated_classes(every: list[Module]) -> list[str]:
    count = Counter(
        node.name for module in every for node in module.tree.body if isinstance(node, ast.ClassDef)
    )
    return sorted(name for name, number in count.items() if number > 1)


def cycles(every: list[Module]) -> list[list[str]]:
    """Groups of modules that import one another when they are loaded (Tarjan)."""
    names = {module.name for module in every}
    graph = {module.name: set(imports(module, names, top=True)) - {module.name} for module in every}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    out: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in graph[name]:
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                out.append(stack[at:])
            del stack[at:]

    for name in graph:
        if name not in index:
            visit(name)
    return out


def loaded(name: str) -> int:
    """Files of the package that one import loads, in a fresh interpreter."""
    code = f"import sys, {name}; print(sum(m == 'gemel' or m.startswith('gemel.') for m in sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def _import_lines(every: list[Module]) -> int:
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for module in every
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def _long_function(every: list[Module]) -> int:
    lengths = sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for module in every
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return lengths[int(0.9 * len(lengths))]


def _largest_folder(every: list[Module]) -> int:
    return max(Counter(module.folder for module in every if module.path.name != "__init__.py").values())


def layer_map() -> str:
    """The layers as ARCHITECTURE.md shows them, the highest first."""
    rows = [f"   {'  '.join(names):32} {text}" for names, text in reversed(LAYERS)]
    return "\n".join(["```", *rows, "```"])


def table(measures: list[Measure]) -> str:
    rows = [f"| {each.name} | {each.before} | {each.rearranged} | {each.cell()} |" for each in measures]
    return "\n".join(["| | before | rearranged | now |", "|---|---|---|---|", *rows])


LIMITS = {
    "modules": 307,
    "entries directly under the package": 22,
    "modules in the largest folder": 23,
    "lines": 82_000,
    "share of lines that are imports": 7.2,
    "modules with one importer and at most 60 lines": 0,
    "class names defined twice or more": 2,
    "lines of a function, 90th percentile": 20,
    "lines of the longest module": 600,
    "import cycles": 0,
    "files loaded by `import gemel.model`": 25,
}


def main() -> None:
    measures = measure()
    if "--json" in sys.argv:
        print(json.dumps({each.name: each.value for each in measures}, indent=1))
        return
    print(table(measures))
    if "--write" in sys.argv:
        text = PAGE.read_text(encoding="utf-8")
        for name, block in (("layers", layer_map()), ("shape", table(measures))):
            marked = f"<!-- {name} -->\n{block}\n<!-- /{name} -->"
            text = re.sub(
                rf"<!-- {name} -->.*<!-- /{name} -->", lambda _, new=marked: new, text, flags=re.DOTALL
            )
        PAGE.write_text(text, encoding="utf-8")
    every = modules()
    for title, names in (
        ("one importer", single_importer(every)),
        ("class names", repeated_classes(every)),
        ("cycles", [" -> ".join(cycle) for cycle in cycles(every)]),
    ):
        if names:
            print(f"{title}: {', '.join(names)}", file=sys.stderr)


if __name__ == "__main__":
    main()
