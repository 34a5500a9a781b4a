"""Show versions, engines, the processor, the cache and the settings."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, metadata, version
from typing import Any

import click

from gemel.cli import flags
from gemel.cli.output import echo, echo_json
from gemel.errors import InputError

PACKAGES = ("gemel", "numpy", "tokenizers", "safetensors", "click", "rich")

OPTIONAL = ("onnxruntime", "huggingface_hub", "pyarrow", "torch", "transformers")

# Instructions that kernels use, as Linux names them: x86 in the first two lines, ARM in the third.
FEATURES = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw"),
    *("avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "sve", "bf16"),
)


@click.command(epilog="\b\nExamples:\n  gemel info\n  gemel info --json")
@flags.json_option()
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Show versions, extras, engines, the processor, the cache, and the settings with their origins.

    Made for bug reports: keys and passwords are left out.
    """
    facts, settings = gather(), settings_report(ctx.find_root())
    if as_json:
        echo_json({**facts, "settings": settings})
        return
    for name, text in [*_rows(facts), *_settings_rows(settings)]:
        echo(f"{name:14} {text}".rstrip())


def gather() -> dict[str, Any]:
    """Facts as plain JSON values; nothing is downloaded and no model is loaded."""
    import platform

    from gemel.files.machine import core_limits, memory_limits

    return {
        "versions": {name: version_of(name) for name in PACKAGES + OPTIONAL},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": {"cores": core_limits().to_json(), "features": _features()},
        "memory": memory_limits().to_json(),
        "extras": extras(),
        "engines": _engines(),
        "cache": _cache(),
    }


def _features() -> list[str]:
    """Instructions that kernels use, as Linux lists them; empty elsewhere."""
    from pathlib import Path

    listing = Path("/proc/cpuinfo")
    if not listing.exists():
        return []
    for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in {"flags", "features"}:
            present = set(value.split())
            return [feature for feature in FEATURES if feature in present]
    return []


def _engines() -> dict[str, Any]:
    from gemel.encoder.engines import native
    from gemel.encoder.engines.engine import arithmetic, has_onnxruntime
    from gemel.encoder.engines.onnx import load_onnxruntime
    from gemel.vectors.scan import native_scanner

    return {
        "native": {
            "kernels": {level: {"bfloat16": native.runs_bfloat16(level)} for level in native.levels()},
            "bfloat16": arithmetic("bfloat16") == "bfloat16",
        },
        "onnxruntime": {
            "providers": load_onnxruntime().get_available_providers() if has_onnxruntime() else []
        },
        "scan": {"kernels": [level for level in native_scanner.levels() if level != "numpy"]},
    }


def _cache() -> dict[str, Any]:
    from gemel.checkpoint.cache import cache_root
    from gemel.checkpoint.sources import cached_models, folder_size

    root = cache_root()
    models = [{"name": model.name, "size_mb": round(model.size / 10**6)} for model in cached_models()]
    size = folder_size(root) if root.is_dir() else 0
    return {"folder": str(root), "size_mb": round(size / 10**6), "models": models}


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and texts of lines for a person."""
    from gemel.encoder.engines.engine import without_kernel
    from gemel.files.machine import core_limits, memory_limits

    versions, engines, cache = facts["versions"], facts["engines"], facts["cache"]
    rows = {
        "gemel": versions["gemel"] or "not installed as a package",
        "python": f"{facts['python']}, {facts['system']}",
        "packages": ", ".join(f"{name} {versions[name]}" for name in PACKAGES[1:]),
        "optional": ", ".join(f"{name} {versions[name] or 'not installed'}" for name in OPTIONAL),
        "extras": ", ".join(each["name"] for each in facts["extras"] if each["installed"]) or "none",
        "not installed": _missing(facts["extras"]) or "-",
        "processor": " ".join(facts["processor"]["features"]) or "features unknown",
        "cores": core_limits().line(),
        "memory": memory_limits().line(),
        "native engine": " > ".join(engines["native"]["kernels"]) or f"not compiled: {without_kernel()}",
        "bfloat16": "in bfloat16"
        if engines["native"]["bfloat16"]
        else "computed in float32 on this processor",
        "vector scan": " > ".join(engines["scan"]["kernels"])
        or "not compiled: numpy compares vectors, more slowly",
        "onnxruntime": ", ".join(engines["onnxruntime"]["providers"]) or "not installed",
        "cache": f"{cache['folder']} ({cache['size_mb']:,} MB)",
        "models": ", ".join(f"{m['name']} ({m['size_mb']} MB)" for m in cache["models"]) or "none yet",
    }
    return list(rows.items())


def _missing(extras: list[dict[str, Any]]) -> str:
    return ", ".join(
        f"{each['name']} (needs {', '.join(each['missing'])})" for each in extras if not each["installed"]
    )


def settings_report(root: click.Context) -> dict[str, Any]:
    """Files of settings, each value with its origin, GEMEL_ variables, and the first mistake in any table, as JSON."""
    from gemel.cli import config

    group = root.command
    assert isinstance(group, click.Group), "the root of the program is a group"
    commands = {
        name: command for name in group.list_commands(root) if (command := group.get_command(root, name))
    }
    verbs = dict(leaf for name, command in commands.items() for leaf in config.verbs_below(command, (name,)))
    values: list[dict[str, Any]] = []
    error = None
    try:
        files = config.read_files(commands)
        for name, command in commands.items():
            if isinstance(command, click.Group):
                config.check_commands(command, name, files)
        for words, command in verbs.items():
            for each in config.settings_of(command, words, files):
                shadows = [name for name in config.variables_of(words, each.key) if os.environ.get(name)]
                value = {"verb": " ".join(words), "key": each.key, "value": without_passwords(each.value)}
                origin = {"file": str(each.file.path), "table": each.table}
                values.append({**value, **origin, "hidden_by": shadows[0] if shadows else None})
    except InputError as wrong:
        values, error = [], str(wrong)
    return {
        "files": [
            {"path": str(each.path), "kind": each.kind, "there": each.exists()}
            for each in config.config_files()
        ],
        "values": values,
        "environment": _variables(verbs),
        "error": error,
    }


def _variables(verbs: Mapping[tuple[str, ...], click.Command]) -> list[dict[str, str | None]]:
    """The GEMEL_ variables that are set, with what they mean; those that gemel does not know have a hint."""
    from gemel.cli import config

    meanings = {name: [text] for name, text in config.GENERAL.items()}
    for words, command in verbs.items():
        for key in config.options_by_key(command):
            for name in config.variables_of(words, key):
                meanings.setdefault(name, []).append(f"{' '.join(words)} --{key}")
    found: list[dict[str, str | None]] = []
    for name, value in sorted(os.environ.items()):
        if not name.startswith("GEMEL_") or not value:
            continue
        uses = meanings.get(name, [])
        several = f"--{uses[0].rpartition('--')[2]} of {len(uses)} verbs" if uses else None
        # An unknown variable may be anything, a secret too.
        shown = without_passwords(value) if uses and name != "GEMEL_API_KEYS" else "(hidden)"
        close = [] if uses else get_close_matches(name, meanings, n=1)
        hint = f"did you mean {close[0]}?" if close else None
        found.append(
            {"name": name, "value": shown, "means": uses[0] if len(uses) == 1 else several, "hint": hint}
        )
    return found


_PASSWORD = re.compile(r"(://[^:/@\s]*:)\S*(?=@)|(?i:(password=))[^&#\s]+")


def without_passwords(value: Any) -> Any:  # noqa: ANN401 - a value of TOML
    """The same value, with *** for the password of an address: the report is made to be shown to others."""
    if isinstance(value, list):
        return [without_passwords(each) for each in value]
    return (
        _PASSWORD.sub(lambda match: f"{match[1] or match[2]}***", value) if isinstance(value, str) else value
    )


def _settings_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and texts of lines for a person. A value that several verbs get is shown once."""
    files = [f"{file['path']}{'' if file['there'] else ' (not there)'}" for file in report["files"]]
    rows = [("settings", ", ".join(files) or "no files (GEMEL_CONFIG=none)")]
    if report["error"]:
        rows.append(("", f"wrong: {report['error']}"))
    lines: dict[str, list[dict[str, Any]]] = {}
    for each in report["values"]:
        lines.setdefault(f"[{each['table']}] {each['key']} = {each['value']!r}, {each['file']}", []).append(
            each
        )
    for line, uses in lines.items():
        winners = ""
        for name in dict.fromkeys(each["hidden_by"] for each in uses if each["hidden_by"]):
            verbs = [each["verb"] for each in uses if each["hidden_by"] == name]
            winners += f"; {name} wins" + ("" if len(verbs) == len(uses) else f" in {', '.join(verbs)}")
        rows.append(("", line + winners))
    for at, variable in enumerate(report["environment"]):
        meaning = variable["means"] or ", ".join(word for word in ("unknown", variable["hint"]) if word)
        rows.append(("" if at else "environment", f"{variable['name']}={variable['value']}: {meaning}"))
    return rows


_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")

_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")

_NOT_ON = re.compile(r"sys_platform\s*!=\s*['\"]([^'\"]+)['\"]")

_FOR_DEVELOPERS = "test"


def version_of(package: str) -> str | None:
    """None: it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def extras() -> list[dict[str, Any]]:
    """Every extra that users install, in the order of the package; empty if gemel runs without being installed."""
    try:
        facts = metadata("gemel")
    except PackageNotFoundError:
        return []
    needs = _needs(facts.get_all("Requires-Dist") or [])
    names = [name for name in facts.get_all("Provides-Extra") or [] if not name.startswith(_FOR_DEVELOPERS)]
    found = []
    for name in names:
        missing = [package for package in _packages(name, needs) if version_of(package) is None]
        found.append({"name": name, "missing": missing, "installed": not missing})
    return found


def _needs(lines: list[str]) -> dict[str, list[tuple[str, list[str]]]]:
    """Extra -> (package, extras of that package) of each of its requirements on this system."""
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for line in lines:
        requirement, _, marker = line.partition(";")
        package, extra = _REQUIREMENT.match(requirement), _EXTRA.search(marker)
        not_on = _NOT_ON.search(marker)
        if package and extra and not (not_on and not_on[1] == sys.platform):
            inner = [name.strip() for name in (package[2] or "").split(",") if name.strip()]
            found.setdefault(extra[1], []).append((package[1], inner))
    return found


def _packages(extra: str, needs: dict[str, list[tuple[str, list[str]]]]) -> list[str]:
    """Packages of an extra, those of gemel's own extras that it names among them, each once."""
    found: dict[str, None] = {}
    for package, inner in needs.get(extra, []):
        if package == "gemel":
            found |= dict.fromkeys(name for each in inner for name in _packages(each, needs))
        else:
            found[package] = None
    return list(found)
