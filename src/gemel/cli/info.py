"""`gemel info`: what is installed and what this machine offers, for a bug report or a puzzled user."""

from __future__ import annotations

from typing import Any

import click

PACKAGES = ("gemel", "numpy", "tokenizers", "safetensors", "onnx", "onnxruntime", "click", "rich")
EXTRAS = ("huggingface_hub", "pyarrow", "torch", "transformers")
# What kernels care about, as Linux names it: x86 in the first two lines, ARM in the third.
FEATURES = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw"),
    *("avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "sve", "bf16"),
)


@click.command(epilog="\b\nExamples:\n  gemel info\n  gemel info --json")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(as_json: bool) -> None:
    """Show versions, engines, the processor and the cache."""
    facts = gather()
    if as_json:
        import json

        click.echo(json.dumps(facts))
    else:
        click.echo("\n".join(_lines(facts)))


def gather() -> dict[str, Any]:
    """Facts as plain JSON values; nothing is downloaded and no model is loaded."""
    import os
    import platform

    return {
        "versions": {name: _version(name) for name in PACKAGES + EXTRAS},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": {"cores": len(_cores()) or os.cpu_count(), "features": _features()},
        "engines": _engines(),
        "cache": _cache(),
    }


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cores() -> list[int]:
    """The cores this process may use; empty where the system does not say."""
    import os

    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _features() -> list[str]:
    """Instructions that kernels care about, as Linux lists them; empty elsewhere."""
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
    import onnxruntime

    from gemel.encoder.engines import native

    return {
        "native": {"kernels": {level: {"int8_bits": native.int8_bits(level)} for level in native.levels()}},
        "onnxruntime": {"providers": onnxruntime.get_available_providers()},
    }


def _cache() -> dict[str, Any]:
    from gemel.checkpoint.cache import cache_root
    from gemel.checkpoint.sources import cached_models

    models = [{"name": model.name, "size_mb": round(model.size / 10**6)} for model in cached_models()]
    return {"folder": str(cache_root()), "models": models}


def _lines(facts: dict[str, Any]) -> list[str]:
    versions, kernels = facts["versions"], facts["engines"]["native"]["kernels"]
    cache, processor = facts["cache"], facts["processor"]
    rows = {
        "gemel": versions["gemel"] or "not installed as a package",
        "python": f"{facts['python']}, {facts['system']}",
        "packages": ", ".join(f"{name} {versions[name]}" for name in PACKAGES[1:]),
        "extras": ", ".join(f"{name} {versions[name] or 'not installed'}" for name in EXTRAS),
        "processor": f"{processor['cores']} cores: {' '.join(processor['features']) or 'features unknown'}",
        "native engine": " > ".join(kernels) or "not compiled (needs GCC or Clang at install)",
        "onnxruntime": ", ".join(facts["engines"]["onnxruntime"]["providers"]),
        "cache": cache["folder"],
        "models": ", ".join(f"{m['name']} ({m['size_mb']} MB)" for m in cache["models"]) or "none yet",
    }
    return [f"{name:14} {value}" for name, value in rows.items()]
