"""Imports point down the layers: checks every import of the package."""

import ast
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from tools.shape import LAYERS

PACKAGE = Path(__file__).parents[2] / "src" / "gemel"

ROOTS = {"__init__", "__main__"}  # they may import from anywhere in the package

# Who may import what, as path prefixes below src/gemel. A package that is not here may not be imported.
HOMES = {
    "scipy": ["evaluation/", "groups/methods/", "vectors/sparse.py"],
    "sklearn": ["evaluation/", "sklearn.py", "groups/methods/", "groups/map.py"],
    "threadpoolctl": ["evaluation/probe.py"],
    "mteb": ["integrations/mteb.py"],
    "langchain_core": ["integrations/langchain.py"],
    "llama_index": ["integrations/llama_index.py"],
    "haystack": ["integrations/haystack.py"],
    "numpy": [""],
    "gguf": ["checkpoint/gguf_file.py"],
    "pypdf": ["files/document_formats.py"],
    "selectolax": ["files/document_formats.py"],
    "docx": ["files/document_formats.py"],
    "markdown_it": ["files/document_formats.py"],
    "tokenizers": [
        "export/",
        "checkpoint/gguf_file.py",
        "checkpoint/tokenizer.py",
        "encoder/cross.py",
        "encoder/tokenizer.py",
        "encoder/wordpiece.py",
    ],
    "safetensors": [
        "checkpoint/convert.py",
        "checkpoint/cross.py",
        "checkpoint/head.py",
        "checkpoint/write.py",
        "encoder/int8.py",
        "sklearn.py",
        "training/distill/static_table.py",
        "training/loop.py",
    ],
    "onnxruntime": ["encoder/engines/onnx.py"],
    "torch": [
        "training/",
        "checkpoint/convert.py",
        "compat/util.py",
        "encoder/engines/torch.py",
        "encoder/pooling.py",
        "texts/whitening.py",
    ],
    "transformers": ["training/", "checkpoint/convert.py", "encoder/engines/torch.py"],
    "accelerate": ["training/"],
    "peft": ["training/"],
    "huggingface_hub": ["checkpoint/sources.py"],
    "pyarrow": [
        "index/lance/",
        "files/records.py",
        "files/rows.py",
        "integrations/tables.py",
        "texts/folder_files.py",
        "vectors/pair_scan.py",
    ],
    "pandas": ["groups/cluster.py", "groups/dedupe.py", "integrations/tables.py", "vectors/pair_scan.py"],
    "polars": ["integrations/tables.py"],
    "bertopic": ["integrations/bertopic.py"],
    "llm": ["integrations/llm.py"],
    "pluggy": ["integrations/llm.py"],
    "faiss": ["index/lance/"],
    "Stemmer": ["vectors/bm25.py"],
    "lance": ["index/lance/"],
    "psycopg": ["index/postgres/"],
    "ray": ["integrations/ray/"],
    "psycopg_pool": ["index/postgres/"],
    "starlette": ["serve/"],
    "uvicorn": ["serve/"],
    "orjson": ["serve/"],
    "prometheus_client": ["serve/"],
    "pydantic": ["serve/"],
    "pydantic_core": ["serve/"],
    "opentelemetry": ["serve/"],
    "click": ["cli/"],
    "rich": ["cli/"],
}
# Too slow to load for a program that does not use them: only inside the function that does.
HEAVY = {
    "scipy",
    "sklearn",
    "threadpoolctl",
    "mteb",
    "onnxruntime",
    "torch",
    "transformers",
    "huggingface_hub",
    "pyarrow",
    "pandas",
    "polars",
    "bertopic",
    "llm",
    "faiss",
    "lance",
    "psycopg",
    "psycopg_pool",
    "pypdf",
    "selectolax",
    "docx",
    "markdown_it",
    "ray",
    "rich",
}
# A class that derives from theirs needs the package at the top; these are imported only by those who use them.
DERIVED = {
    "sklearn.py",
    "integrations/bertopic.py",
}
WITHOUT_NUMPY = {"__init__.py", "__main__.py", "errors.py", "registry.py", "options.py", "cli/"}


class Import(NamedTuple):
    file: str
    line: int
    name: str
    top: bool
    """Runs when the module is imported."""

    def __str__(self):
        return f"src/gemel/{self.file}:{self.line} imports {self.name}"


def imports_of(path):
    file = path.relative_to(PACKAGE).as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [
        n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    ]
    lazy = {id(node) for function in functions for node in ast.walk(function)}
    lazy |= {id(n) for guard in ast.walk(tree) if is_typing_guard(guard) for n in ast.walk(guard)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"src/gemel/{file}:{node.lineno}: write the full name of the module"
            # `from gemel import x` may mean the module gemel.x
            names = [f"gemel.{a.name}" if node.module == "gemel" else node.module for a in node.names]
        else:
            continue
        yield from (Import(file, node.lineno, name, id(node) not in lazy) for name in names)


def is_typing_guard(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


FILES = sorted(PACKAGE.rglob("*.py"))
IMPORTS = [result for path in FILES for result in imports_of(path)]


def unit(file):
    return file.split("/")[0].removesuffix(".py")


def rank(name):
    return next((height for height, (names, _) in enumerate(LAYERS) if name in names), None)


def test_every_module_has_a_layer():
    layered = {name for names, _ in LAYERS for name in names}
    unknown = {unit(path.relative_to(PACKAGE).as_posix()) for path in FILES} - layered - ROOTS
    assert not unknown, f"add to LAYERS in tools/shape.py: {sorted(unknown)}"


def test_imports_point_down():
    wrong = []
    for result in IMPORTS:
        here, parts = unit(result.file), result.name.split(".")
        if parts[0] != "gemel" or len(parts) < 2 or here in ROOTS or here == parts[1]:
            continue
        there = rank(parts[1])
        if there is None and here == "cli":  # `from gemel import load`: a command uses the public names
            continue
        if there is None or there >= rank(here):
            wrong.append(str(result))
    assert not wrong, "imports point down, from a layer to a lower one:\n" + "\n".join(wrong)


def test_only_commands_import_the_package_root():
    wrong = [
        str(result)
        for result in IMPORTS
        if not result.file.startswith("cli/")
        and (
            result.name == "gemel"
            or (result.name.startswith("gemel.") and rank(result.name.split(".")[1]) is None)
        )
    ]
    assert not wrong, "import the module that defines it, not the package:\n" + "\n".join(wrong)


def test_third_party_packages_are_imported_only_where_allowed():
    wrong = []
    for result in IMPORTS:
        package = result.name.split(".")[0]
        if package == "gemel" or package in sys.stdlib_module_names:
            continue
        if not any(result.file.startswith(home) for home in HOMES.get(package, [])):
            wrong.append(f"{result}; its homes: {HOMES.get(package, 'none')}")
    assert not wrong, "\n".join(wrong)


def test_heavy_packages_are_imported_where_they_are_used():
    wrong = [
        str(result)
        for result in IMPORTS
        if result.top and result.name.split(".")[0] in HEAVY and result.file not in DERIVED
    ]
    assert not wrong, "import these inside the function that needs them:\n" + "\n".join(wrong)


def test_modules_that_help_loads_do_not_import_numpy():
    wrong = [
        str(result)
        for result in IMPORTS
        if result.top
        and result.name.split(".")[0] == "numpy"
        and result.file.startswith(tuple(WITHOUT_NUMPY))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_reads_pickles():
    wrong = [
        str(result) for result in IMPORTS if result.name.split(".")[0] in {"pickle", "marshal", "shelve"}
    ]
    assert not wrong, "\n".join(wrong)


def test_homes_and_layers_name_things_that_exist():
    units = {unit(path.relative_to(PACKAGE).as_posix()) for path in FILES}
    assert {name for names, _ in LAYERS for name in names} <= units
    used = {result.name.split(".")[0] for result in IMPORTS}
    assert set(HOMES) <= used, f"no longer imported: {sorted(set(HOMES) - used)}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch", [("torch", True)]),
        ("def f():\n    import torch", [("torch", False)]),
        ("class A:\n    import torch.nn", [("torch.nn", True)]),
        ("if TYPE_CHECKING:\n    from torch import nn", [("torch", False)]),
        ("from gemel import search", [("gemel.search", True)]),
    ],
)
def test_the_walk_sees_what_it_should(tmp_path, monkeypatch, source, expected):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "a.py").write_text(source)
    assert [(result.name, result.top) for result in imports_of(tmp_path / "a.py")] == expected
