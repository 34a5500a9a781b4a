"""Models of the Hugging Face Hub, kept in the Hub's own cache (extra `hub`). Only data files are fetched."""

from __future__ import annotations

import os
from pathlib import Path

from gemel.errors import MissingExtra, ModelError
from gemel.network_use import disable_usage_reports

# Weights as safetensors, settings, vocabularies. No pickles, no code.
PATTERNS = ["*.safetensors", "*.json", "*.txt", "README.md"]
_OTHER_ENGINES = ["onnx/*", "openvino/*", "coreml/*", "flax/*", "tf/*"]


def hub_installed() -> bool:
    """True if the Hub's client can be imported."""
    from importlib.util import find_spec

    return find_spec("huggingface_hub") is not None


def in_hub_cache(name: str) -> bool:
    """True if a snapshot of the repository `name` is on this machine and the Hub's client could read it."""
    chosen = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{base}/huggingface"
    place = Path(chosen or f"{home}/hub").expanduser() / f"models--{name.replace('/', '--')}" / "snapshots"
    return place.is_dir() and any(place.iterdir()) and hub_installed()


def fetch_from_hub(name: str, *, revision: str | None = None, offline: bool = False) -> Path:
    """The folder of the repository `name` at `revision` (a branch, tag or commit; None: the newest).

    Offline, or with HF_HUB_OFFLINE set, only what was fetched before is found.
    """
    disable_usage_reports("huggingface_hub")
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtra(f"the model {name!r} of the Hugging Face Hub", "huggingface_hub", "hub") from error
    wanted = name if revision is None else f"{name}@{revision}"
    try:
        path = huggingface_hub.snapshot_download(
            name,
            revision=revision,
            allow_patterns=PATTERNS,
            ignore_patterns=_OTHER_ENGINES,
            local_files_only=offline,
        )
    # Its errors have no common root of their own, and some come straight from the HTTP client below it.
    except Exception as error:
        raise ModelError(_reason(error, wanted, offline)) from error
    folder = Path(path)
    if not any(folder.rglob("*.safetensors")):
        raise ModelError(
            f"{wanted!r} on the Hugging Face Hub has no safetensors weights. Fetch all its files with: "
            f"hf download {name} --local-dir FOLDER, then: gemel models convert FOLDER"
        )
    return folder


def _reason(error: Exception, wanted: str, offline: bool) -> str:
    """One line for each way in which the Hub says no, by the name of its error class."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    where = "on the Hugging Face Hub"
    if "GatedRepoError" in kinds:
        return f"{wanted!r} {where} asks for permission. Ask for it on its page, then run: hf auth login"
    if "RevisionNotFoundError" in kinds:
        return f"{wanted!r} {where}: the model exists, the revision does not"
    if "RepositoryNotFoundError" in kinds:
        return f"no model {wanted!r} {where} (or it is private: run hf auth login)"
    if kinds & {"LocalEntryNotFoundError", "OfflineModeIsEnabled"}:
        if offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
            return (
                f"{wanted!r} was not fetched before, and this is offline mode. Fetch it once with a network"
            )
        return f"{wanted!r} was not fetched before, and the Hub cannot be reached. Check the network"
    first = next(iter(str(error).splitlines()), "") or type(error).__name__
    return f"cannot fetch {wanted!r} from the Hugging Face Hub: {first}"
