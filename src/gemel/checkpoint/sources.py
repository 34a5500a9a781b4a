"""Finds the folder of a model by its name, and downloads it if needed.

A path is a folder. A name is looked up in the cache, in installed wheels (by entry point; nothing is imported), in the
table of wheels with models, as a folder of the working directory, and on the Hugging Face Hub (extra `hub`, data files
only), in this order: a folder next to the data does not replace a known model.
"""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

from gemel.checkpoint import cache, wheels
from gemel.errors import MissingExtra, ModelError, did_you_mean
from gemel.files.machine import disable_usage_reports, is_offline

_DEFAULT_ORGANIZATION = "sentence-transformers"  # of a name without one


@dataclass(frozen=True)
class CachedModel:
    """A model in gemel's own cache."""

    name: str
    folder: Path
    size: int
    """Bytes of all its files."""


def find_model(name: str | Path, *, revision: str | None = None, offline: bool = False) -> Path:
    """The folder of a model, downloaded if needed.

    `revision`: a branch, tag or commit of the Hub, so only the Hub is used. `offline`, or GEMEL_OFFLINE=1 in the
    environment: nothing is downloaded.
    """
    offline = offline or is_offline()
    try:
        folder = _by_path(name, revision=revision, offline=offline)
    except (OSError, RuntimeError) as error:  # a path that is too long, or the home of nobody
        raise ModelError(
            f"{str(name)!r:.100} is neither a folder nor the name of a model: {error}"
        ) from error
    return folder or _by_name(str(name), revision=revision, offline=offline)


def _by_path(name: str | Path, *, revision: str | None, offline: bool) -> Path | None:
    """The folder or GGUF file at a path; None: it is not a path, but the name of a model."""
    folder = Path(name).expanduser()
    if not (
        isinstance(name, Path)
        or _is_path(name)
        or folder.suffix == ".gguf"
        or (revision is None and _is_folder_here(name, offline))
    ):
        return None
    if revision is not None:
        raise ModelError(f"{str(name)!r} is a folder, which has no revision {revision!r}")
    if folder.suffix == ".gguf" and folder.is_file():
        return folder
    if not folder.is_dir():
        raise ModelError(
            f"no model folder {folder}. Give an existing folder or the name of a model", code="GEM-202"
        )
    return folder


def _by_name(name: str, *, revision: str | None, offline: bool) -> Path:
    """The folder of a model that is not a path, downloaded if needed."""
    carried = wheels.find_carried(name)
    known = carried.name if carried else name
    cache.check_name(known)
    if revision is None:
        if cached := cache.find(known):
            return cached
        if installed := find_installed(known):
            return installed.folder
        if carried is not None:
            return _install(carried, offline=offline)
    return _from_hub(name, revision=revision, offline=offline)


def given_name(model: str | Path, folder: Path) -> str | None:
    """The name with which `find_model` found `folder`; None: `model` is the folder itself."""
    return None if Path(model).expanduser() == folder else str(model)


def pull(name: str, *, revision: str | None = None) -> Path:
    """Download a model by its name, so that later loads need no network. A model that exists is not changed."""
    if _is_path(name):
        raise ModelError(f"{name!r} is a path; pull takes the name of a model, such as 'all-MiniLM-L6-v2'")
    return _by_name(name, revision=revision, offline=False)


def cached_models() -> list[CachedModel]:
    """The models in gemel's cache, by name. Models of the Hub are in the Hub's cache (`hf cache ls`)."""
    return [CachedModel(name, folder, folder_size(folder)) for name, folder in cache.cached_folders().items()]


def remove(name: str) -> Path:
    """Delete a model from gemel's cache; returns its former folder."""
    carried = wheels.find_carried(name)
    known = carried.name if carried else name
    if not cache.location(known).is_dir() and (installed := find_installed(known)):
        raise ModelError(f"{name!r} comes with a package. Remove it with: pip uninstall {installed.package}")
    return cache.remove(known)


def folder_size(folder: Path) -> int:
    """Bytes of all files below `folder`, or of the one file."""
    paths = [folder] if folder.is_file() else folder.rglob("*")
    return sum(path.stat().st_size for path in paths if path.is_file())


def _is_path(name: str | Path) -> bool:
    """True for what can only be a path: ./model, model/, ~/model, /models/x, a/b/c, C:\\x."""
    text = str(name)
    explicit = text.startswith((".", "~", "/")) or text.endswith("/")
    return explicit or "\\" in text or text.count("/") > 1 or Path(text).is_absolute()


def _is_folder_here(name: str, offline: bool) -> bool:
    """True if a name is a model folder of the working directory; warns where it could be something else."""
    from gemel.checkpoint.folder import is_model_folder  # needs numpy

    if not is_model_folder(Path(name)):
        return False
    if _is_known(name):
        warn_of_folder(name)
        return False
    if cache.is_name(name) and hub_installed() and not offline:
        warnings.warn(
            f"{name!r} is read from the folder of that name here; the Hugging Face Hub is not used. "
            f"To be explicit, write './{name}'",
            stacklevel=3,
        )
    return True


def warn_of_folder(name: str) -> None:
    """Warn that a known name is not the folder of that name in the working directory."""
    warnings.warn(
        f"the folder {name!r} is here, but the model of that name is used. For the folder write './{name}'",
        stacklevel=4,
    )


def _is_known(name: str) -> bool:
    """True for a model that is available by its name without the Hub."""
    if not cache.is_name(name):
        return False
    carried = wheels.find_carried(name)
    if carried is not None or cache.location(name).is_dir() or find_installed(name) is not None:
        return True
    return in_hub_cache(name if "/" in name else f"{_DEFAULT_ORGANIZATION}/{name}")


def _install(carried: wheels.Carried, *, offline: bool) -> Path:
    def fill(folder: Path, scratch: Path) -> None:
        if wheels.copy_installed(carried, folder):
            return
        if offline:
            raise ModelError(
                f"{carried.name!r} is not in the cache {cache.models_folder()}, and this is offline mode. "
                f"Fetch it once with a network: gemel models pull {carried.name}",
                code="GEM-203",
            )
        wheels.unpack(wheels.download(carried, scratch), carried, folder)

    return cache.install(carried.name, fill)


def _from_hub(name: str, *, revision: str | None, offline: bool) -> Path:
    if "/" in name:
        return fetch_from_hub(name, revision=revision, offline=offline)
    if not hub_installed():
        raise ModelError(_unknown(name), code="GEM-201")
    try:
        return fetch_from_hub(f"{_DEFAULT_ORGANIZATION}/{name}", revision=revision, offline=offline)
    except ModelError as error:
        # The causes of a wrong name are dozens of lines of the Hub's client; an unknown failure keeps its cause.
        raise ModelError(
            f"{_unknown(name)} The Hub was tried too: {error}", code="GEM-201"
        ) from error.__cause__


def _unknown(name: str) -> str:
    from gemel.checkpoint.files import other_format  # needs numpy

    known = sorted({*wheels.CARRIED, *cache.cached_folders(), *(m.name for m in installed_models())})
    hint = did_you_mean(name, known)
    reason = (other_format(Path(name)) or "it is not a model") if Path(name).is_dir() else None
    folder = "" if reason is None else f" The folder {name!r} is there, but {reason}."
    more = "" if hub_installed() else " For models of the Hugging Face Hub: pip install 'gemel[hub]'."
    return (
        f"no model {name!r} as a folder or in the cache {cache.models_folder()}.{hint}{folder} "
        f"Fetched by name: {', '.join(sorted(wheels.CARRIED))}.{more}"
    )


GROUP = "gemel.models"
"""The group of entry points: the name of a model = the package with the folder `model`."""

INSIDE = "model"


@dataclass(frozen=True)
class InstalledModel:
    """A model in site-packages."""

    name: str
    folder: Path
    package: str
    """What pip calls the wheel."""
    version: str


def installed_models() -> list[InstalledModel]:
    """The models of installed wheels, by name."""
    from importlib.metadata import entry_points

    found = []
    for point in entry_points(group=GROUP):
        home = point.dist
        if home is None or not re.fullmatch(r"[A-Za-z_]\w*", point.value):
            continue
        folder = Path(str(home.locate_file(f"{point.value}/{INSIDE}")))
        if folder.is_dir():
            found.append(InstalledModel(point.name, folder, home.name, home.version))
    return sorted(found, key=lambda model: (model.name, model.package))


def find_installed(name: str) -> InstalledModel | None:
    """The installed model of this name; two of them are an error."""
    found = [model for model in installed_models() if model.name == name]
    if len(found) > 1:
        packages = ", ".join(model.package for model in found)
        raise ModelError(f"{name!r} is carried by {len(found)} packages: {packages}. Uninstall all but one")
    return found[0] if found else None


# Weights as safetensors, settings, vocabularies. No pickles, no code.
PATTERNS = ["*.safetensors", "*.json", "*.txt", "README.md"]

_OTHER_ENGINES = ["onnx/*", "openvino/*", "coreml/*", "flax/*", "tf/*"]


def hub_installed() -> bool:
    """True if the Hub's client can be imported."""
    from importlib.util import find_spec

    return find_spec("huggingface_hub") is not None


def in_hub_cache(name: str) -> bool:
    """True if a snapshot of the repository `name` is on this machine and the Hub's client is installed."""
    chosen = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{base}/huggingface"
    snapshots = (
        Path(chosen or f"{home}/hub").expanduser() / f"models--{name.replace('/', '--')}" / "snapshots"
    )
    return snapshots.is_dir() and any(snapshots.iterdir()) and hub_installed()


def fetch_from_hub(name: str, *, revision: str | None = None, offline: bool = False) -> Path:
    """The folder of the repository `name` at `revision` (a branch, tag or commit; None: the newest).

    Offline, or with HF_HUB_OFFLINE set, only earlier downloads are used.
    """
    disable_usage_reports("huggingface_hub")
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtra(f"the model {name!r} of the Hugging Face Hub", "huggingface_hub", "hub") from None
    wanted = name if revision is None else f"{name}@{revision}"
    try:
        path = huggingface_hub.snapshot_download(
            name,
            revision=revision,
            allow_patterns=PATTERNS,
            ignore_patterns=_OTHER_ENGINES,
            local_files_only=offline,
        )
    # Its errors have no common base class, and some come from its HTTP client.
    except Exception as error:
        reason = _reason(error, wanted, offline)
        if reason is not None:
            raise ModelError(reason, code="GEM-206") from None
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ModelError(
            f"cannot fetch {wanted!r} from the Hugging Face Hub: {first}", code="GEM-206"
        ) from error
    folder = Path(path)
    if not any(folder.rglob("*.safetensors")):
        raise ModelError(
            f"{wanted!r} on the Hugging Face Hub has no safetensors weights. Fetch all its files with: "
            f"hf download {name} --local-dir FOLDER, then: gemel models convert FOLDER",
            code="GEM-206",
        )
    return folder


def _reason(error: Exception, wanted: str, offline: bool) -> str | None:
    """One line for each kind of error of the Hub's client, by the name of its class; None: another kind."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    where = "on the Hugging Face Hub"
    if "GatedRepoError" in kinds:
        return f"{wanted!r} {where} needs permission. Request it on its page, then run: hf auth login"
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
    return None
