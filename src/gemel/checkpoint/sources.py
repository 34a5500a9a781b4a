"""A model's name -> its folder.

What is written as a path is a folder. A name is looked for in the cache, in installed wheels, in the table of wheels
that carry a model, as a folder of the working folder, and on the Hub, in this order: a folder that somebody put
beside the data does not replace a model that gemel knows.

Models that installed wheels of `gemel models wheel` carry: found by their entry point, used where they lie.

Nothing of the package is imported. Only a name that is not in the cache is looked for here.

Models of the Hugging Face Hub, kept in the Hub's own cache (extra `hub`). Only data files are fetched.
"""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from gemel.checkpoint import cache, wheels
from gemel.errors import MissingExtra, ModelError
from gemel.files.isolation import disable_usage_reports, is_offline

_DEFAULT_ORGANISATION = "sentence-transformers"  # of a name without one, as everybody in the field writes it


@dataclass(frozen=True)
class CachedModel:
    """A model in gemel's own cache."""

    name: str
    folder: Path
    size: int
    """Bytes of all its files."""


def find_model(name: str | Path, *, revision: str | None = None, offline: bool = False) -> Path:
    """The folder of a model, fetched now if it is known but not here.

    `revision` names a branch, tag or commit on the Hub, so only the Hub is asked. `offline`, or
    GEMEL_OFFLINE=1 in the environment, never touches the network.
    """
    offline = offline or is_offline()
    folder = Path(name).expanduser()
    if isinstance(name, Path) or _is_path(name) or (revision is None and _is_folder_here(name, offline)):
        if revision is not None:
            raise ModelError(f"{str(name)!r} is a folder, which has no revision {revision!r}")
        if not folder.is_dir():
            raise ModelError(f"no model folder {folder}. Give an existing folder or the name of a model")
        return folder
    carried = wheels.find_carried(name)
    known = carried.name if carried else name
    cache.check_name(known)
    if revision is None and (cached := cache.find(known)):
        return cached
    installed = find_installed(known) if revision is None else None
    if installed is not None:
        return installed.folder
    if revision is None and carried is not None:
        return _install(carried, offline=offline)
    return _from_hub(name, revision=revision, offline=offline)


def given_name(model: str | Path, folder: Path) -> str | None:
    """The name by which `find_model` found `folder`; None: `model` is the folder itself."""
    return None if Path(model).expanduser() == folder else str(model)


def pull(name: str, *, revision: str | None = None) -> Path:
    """Fetch a model by its name, so that later loads need no network. A model that is here stays as it is."""
    if _is_path(name):
        raise ModelError(f"{name!r} is a path; pull takes the name of a model, such as 'all-MiniLM-L6-v2'")
    carried = wheels.find_carried(name)
    known = carried.name if carried else name
    cache.check_name(known)
    if revision is None and (cached := cache.find(known)):
        return cached
    if revision is None and (installed := find_installed(known)):
        return installed.folder
    if revision is None and carried is not None:
        return _install(carried)
    return _from_hub(name, revision=revision, offline=False)


def cached_models() -> list[CachedModel]:
    """The models in gemel's cache, by name. Models of the Hub are in the Hub's cache (`hf cache ls`)."""
    return [CachedModel(name, folder, folder_size(folder)) for name, folder in cache.cached_folders().items()]


def remove(name: str) -> Path:
    """Delete a model from gemel's cache; returns the folder that is gone."""
    carried = wheels.find_carried(name)
    known = carried.name if carried else name
    if not cache.place(known).is_dir() and (installed := find_installed(known)):
        raise ModelError(f"{name!r} comes with a package. Remove it with: pip uninstall {installed.package}")
    return cache.remove(known)


def folder_size(folder: Path) -> int:
    """Bytes of all files below `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _is_path(name: str | Path) -> bool:
    """True for what can only be meant as a path: ./model, model/, ~/model, /models/x, a/b/c, C:\\x."""
    text = str(name)
    marked = text.startswith((".", "~", "/")) or text.endswith("/")
    return marked or "\\" in text or text.count("/") > 1 or Path(text).is_absolute()


def _is_folder_here(name: str, offline: bool) -> bool:
    """True if a plain name means a model's folder of the working folder; warns where it could mean something else."""
    from gemel.checkpoint.folder import is_model_folder  # needs numpy

    if not is_model_folder(Path(name)):
        return False
    if _is_known(name):
        warn_of_folder(name)
        return False
    if cache.is_name(name) and hub_installed() and not offline:
        warnings.warn(
            f"{name!r} is read from the folder of that name here; the Hugging Face Hub is not asked. "
            f"To say so write {_as_path(name)!r}",
            stacklevel=3,
        )
    return True


def warn_of_folder(name: str) -> None:
    """Say that a model's folder of the working folder is not what a known name means."""
    warnings.warn(
        f"the folder {name!r} is here, but the model of that name is used. For the folder write {_as_path(name)!r}",
        stacklevel=4,
    )


def _is_known(name: str) -> bool:
    """True for a model that can be had by its name without asking the Hub."""
    if not cache.is_name(name):
        return False
    carried = wheels.find_carried(name)
    if carried is not None or cache.place(name).is_dir() or find_installed(name) is not None:
        return True
    return in_hub_cache(name if "/" in name else f"{_DEFAULT_ORGANISATION}/{name}")


def _as_path(name: str) -> str:
    return f"./{name}"


def _install(carried: wheels.Carried, *, offline: bool = False) -> Path:
    def fill(folder: Path, scratch: Path) -> None:
        if wheels.copy_installed(carried, folder):
            return
        if offline:
            raise ModelError(
                f"{carried.name!r} is not in the cache {cache.models_folder()}, and this is offline mode. "
                f"Fetch it once with a network: gemel models pull {carried.name}"
            )
        wheels.fetch(carried, folder, scratch)

    return cache.install(carried.name, fill)


def _from_hub(name: str, *, revision: str | None, offline: bool) -> Path:
    if "/" in name:
        return fetch_from_hub(name, revision=revision, offline=offline)
    if not hub_installed():
        raise ModelError(_unknown(name))
    try:
        return fetch_from_hub(f"{_DEFAULT_ORGANISATION}/{name}", revision=revision, offline=offline)
    except ModelError as error:
        raise ModelError(f"{_unknown(name)} The Hub was asked too: {error}") from error


def _why_no_model(folder: Path) -> str:
    from gemel.checkpoint.files import other_format  # needs numpy

    return other_format(folder) or "it is not a model"


def _unknown(name: str) -> str:
    known = sorted({*wheels.CARRIED, *cache.cached_folders(), *(m.name for m in installed_models())})
    close = get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    folder = f" The folder {name!r} is there, but {_why_no_model(Path(name))}." if Path(name).is_dir() else ""
    more = "" if hub_installed() else " For models of the Hugging Face Hub: pip install 'gemel[hub]'."
    return (
        f"no model {name!r} as a folder or in the cache {cache.models_folder()}.{hint}{folder} "
        f"Fetched by name: {', '.join(sorted(wheels.CARRIED))}.{more}"
    )


GROUP = "gemel.models"
"""The group of entry points: a model's name = the package whose folder `model` holds it."""

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
    """Every model that an installed wheel carries, by name."""
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
    """The installed model of this name; two of them are refused, since nobody could say which was meant."""
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
