"""The page of the Python API: every public name with its signature and its docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import gemel
from gemel.cli.flags import field_docs

GROUPS = {
    "Models and encoding": (
        *("load", "Model", "ConfiguredModel", "EncodeOptions", "EncodeKeywords", "EncodeReport"),
        *("TokenEmbeddings", "TruncationWarning", "KernelWarning", "Encoder", "Fingerprint"),
    ),
    "Cross-encoders": ("load_cross", "CrossModel", "CrossOptions", "CrossKeywords", "Ranking"),
    "Sparse encoders": (
        "load_sparse",
        "SparseModel",
        "SparseVectors",
        "InvertedFile",
        "SparseOptions",
        "SparseKeywords",
        "SparseExplanation",
        "WordMatch",
    ),
    "Late interaction": (
        *(
            "load_late",
            "LateModel",
            "MultiVectors",
            "Codebook",
            "maxsim",
            "LateExplanation",
            "TokenMatch",
            "TokenIndex",
        ),
    ),
    "Encoding to disk": (
        *("encode_to_folder", "FolderResult", "FolderProgress", "read_folder", "EncodedFolder"),
    ),
    "Similarity, search and pairs over arrays": (
        *("cosine", "normalize", "search", "Hits", "similar_pairs", "Pairs", "quantize", "rescore"),
    ),
    "Search and pairs from texts": ("search_texts", "TextHits", "find_pairs", "TextPairs", "Relations"),
    "What a score means": ("calibrate", "Calibration", "explain", "Explanation"),
    "Clusters and duplicates": (
        *("cluster", "Clusters", "Cluster", "dedupe", "DedupeResult", "DuplicateGroup", "SparedPair"),
    ),
    "The index": (
        *("open_index", "Index", "Answer", "Hit", "Count", "IndexDocument", "IndexStats", "WriteResult"),
        "IndexExplanation",
        *("VerifyResult", "MigrateResult", "SnapshotResult", "restore_index", "list_indexes", "IndexSummary"),
        *("attach_index", "repair_index", "RepairResult", "drop_index", "Store"),
    ),
    "Training and evaluation": (
        *("train", "TrainResult", "TrainOptions", "distill", "DistillResult", "StudentAgreement"),
        *("mine_negatives", "NegativesResult", "evaluate", "Scores", "Score"),
    ),
    "Errors": ("GemelError", "InputError", "ModelError", "MissingExtra", "WorkError"),
}
SETTING = re.compile(r"^([a-z_]+(?:, [a-z_]+)*): ")
WIDTH = 100


def python_api(note: str) -> str:
    """The page; public names that are in no group go to the last section."""
    named = {name for group in GROUPS.values() for name in group}
    groups = {**GROUPS, "Other names": tuple(sorted(set(gemel.__all__) - named))}
    parts = ["# Python API", note, "The public names of `import gemel`. Each is loaded on first use."]
    for title, names in groups.items():
        result = [name for name in names if name in gemel.__all__]
        if result:
            parts.append(f"## {title}")
        for name in result:
            parts += _entry(name, getattr(gemel, name))
    return "\n\n".join(part for part in parts if part) + "\n"


def _entry(name: str, thing: Any) -> Iterator[str]:  # noqa: ANN401 - whatever is public
    yield f"### gemel.{name}"
    if not inspect.isclass(thing):
        yield from _callable(f"gemel.{name}", thing)
        return
    yield _prose(thing.__doc__ if _has_docstring(thing) else "")
    yield _fields(thing)
    for member, value in vars(thing).items():
        if member.startswith("_"):
            continue
        if isinstance(value, property):
            yield f"**`.{member}`** {_prose(value.__doc__)}".rstrip()
        elif isinstance(value, (classmethod, staticmethod)):
            yield from _callable(f"{name}.{member}", value.__func__, skip=isinstance(value, classmethod))
        elif inspect.isfunction(value):
            yield from _callable(f".{member}", value, skip=True)


def _has_docstring(cls: type) -> bool:
    """Whether the class has its own docstring: Python gives dataclasses without one their signature."""
    return bool(cls.__doc__) and not (cls.__doc__ or "").startswith(f"{cls.__name__}(")


def _callable(name: str, function: Any, *, skip: bool = False) -> Iterator[str]:  # noqa: ANN401
    yield f"```text\n{_signature(name, function, skip=skip)}\n```"
    if function.__doc__:
        yield _prose(function.__doc__)


def _signature(name: str, function: Any, *, skip: bool) -> str:  # noqa: ANN401
    """On one line if it fits, otherwise one line per parameter."""
    whole = inspect.signature(function)
    shown = list(whole.parameters.values())[1 if skip else 0 :]
    inside = [_plain(str(one)) for one in _with_star(shown)]
    line = f"{name}({', '.join(inside)}){_result(whole)}"
    if len(line) <= WIDTH:
        return line
    body = "".join(f"    {each},\n" for each in inside)
    return f"{name}(\n{body}){_result(whole)}"


def _with_star(shown: list[inspect.Parameter]) -> Iterator[inspect.Parameter | str]:
    """The parameters, with `*` before the first keyword-only parameter."""
    kinds = [one.kind for one in shown]
    first = kinds.index(inspect.Parameter.KEYWORD_ONLY) if inspect.Parameter.KEYWORD_ONLY in kinds else None
    for at, one in enumerate(shown):
        if at == first and inspect.Parameter.VAR_POSITIONAL not in kinds:
            yield "*"
        yield one


def _plain(parameter: str) -> str:
    """The parameter without the quotes of its annotation; a function as the default is shown as `...`."""
    name, colon, rest = parameter.partition(": ")
    kind, equals, default = rest.partition(" = ")
    shown = "..." if default.startswith("<") else default
    return f"{name}{colon}{kind.strip(chr(39))}{equals}{shown}"


def _result(whole: inspect.Signature) -> str:
    result = whole.return_annotation
    return "" if result is inspect.Signature.empty else f" -> {str(result).strip(chr(39))}"


def _fields(cls: type) -> str:
    """The fields of a dataclass as a table: name, type and docstring."""
    if not is_dataclass(cls):
        return ""
    docs = field_docs(cls)
    rows = ["| field | type | meaning |", "|---|---|---|"]
    for field in fields(cls):
        if not field.name.startswith("_"):
            kind = str(field.type).replace("|", "\\|")
            rows.append(
                f"| `{field.name}` | `{kind}` | {docs.get(field.name, '').replace('|', chr(92) + '|')} |"
            )
    return "\n".join(rows) if len(rows) > 2 else ""


def _prose(doc: str | None) -> str:
    """The docstring as Markdown; lines that begin with the name of a parameter become a list."""
    parts = []
    for paragraph in inspect.cleandoc(doc or "").split("\n\n"):
        items: list[str] = []
        for line in paragraph.splitlines():
            setting = SETTING.match(line)
            if setting:
                items.append(f"- `{setting[1]}`: {line[setting.end() :]}")
            elif items:
                items[-1] += " " + line.strip()
            else:
                items.append(line)
        parts.append("\n".join(items) if any(item.startswith("- `") for item in items) else paragraph)
    return "\n\n".join(parts)
