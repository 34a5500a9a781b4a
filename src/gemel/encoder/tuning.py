"""What was measured and chosen on this machine, kept in the cache.

tuning.json has the fastest engine and batch for a network's shape: `gemel bench` writes it, `gemel.load` reads it.
Nothing in it changes a vector of one engine; between engines vectors agree to about 1e-6. precision.json has the
precision that somebody chose for the weights of one model: commands read it, `gemel.load` does not, since its vectors
differ.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from gemel.checkpoint.cache import cache_root, make_folder
from gemel.checkpoint.fingerprint import weights_hash
from gemel.checkpoint.folder import Checkpoint
from gemel.encoder.network import Network
from gemel.errors import WorkError
from gemel.files.atomic import write_atomic
from gemel.options import Precision


@dataclass(frozen=True)
class Choice:
    """The winner of one comparison."""

    engine: str
    batch_tokens: int
    threads: int
    texts_per_second: float
    mean_tokens: float | None = None
    """Of the texts that it was measured with; `gemel plan` needs it. None: an older gemel measured."""
    model: str | None = None
    """The model that it was measured with; others of its shape use it too."""


@dataclass(frozen=True)
class PrecisionChoice:
    """What somebody said for one model."""

    precision: Precision
    model: str
    """The name it was asked for by; what counts is the hash of its weights."""


def tuning_file() -> Path:
    return cache_root() / "tuning.json"


def precision_file() -> Path:
    return cache_root() / "precision.json"


def recall(network: Network, precision: Precision) -> Choice | None:
    """The choice measured before for this processor, shape and precision; None: nothing was, or it is unreadable."""
    return _choice(_read(tuning_file()).get(choice_key(network, precision)))


def remember(network: Network, precision: Precision, choice: Choice) -> Path:
    """Keeps the choice; the file is replaced whole."""
    path = tuning_file()
    return _write(path, {**_read(path), choice_key(network, precision): asdict(choice)})


def recall_precision(checkpoint: Checkpoint) -> Precision | None:
    """What was chosen for these weights on this processor; they are hashed only if anything was chosen here."""
    content = _read(precision_file())
    if not any(key.startswith(here()) for key in content):
        return None
    found = _precision(content.get(precision_key(checkpoint)))
    return None if found is None else found.precision


def remember_precision(checkpoint: Checkpoint, precision: Precision) -> Path:
    """Keeps the precision for these weights on this processor."""
    path = precision_file()
    chosen = asdict(PrecisionChoice(precision, checkpoint.name))
    return _write(path, {**_read(path), precision_key(checkpoint): chosen})


def all_choices() -> dict[str, Choice]:
    """Every readable row of tuning.json by its key."""
    rows = {key: _choice(row) for key, row in _read(tuning_file()).items() if key.count("; ") >= 3}
    return {key: row for key, row in rows.items() if row is not None}


def all_precisions() -> dict[str, PrecisionChoice]:
    """Every readable row of precision.json by its key."""
    rows = {key: _precision(row) for key, row in _read(precision_file()).items()}
    return {key: row for key, row in rows.items() if row is not None}


def forget(path: Path, keys: Iterable[str]) -> None:
    """Takes rows out of one of the two files."""
    gone = set(keys)
    if gone:
        _write(path, {key: row for key, row in _read(path).items() if key not in gone})


def choice_key(network: Network, precision: Precision) -> str:
    """What a speed depends on."""
    return f"{here()}; {shape_of(network)}; {precision}"


def precision_key(checkpoint: Checkpoint) -> str:
    """What a precision was chosen for: exactly these weights, wherever their folder is."""
    return f"{here()}; {weights_hash(checkpoint)}"


def shape_of(network: Network) -> str:
    """What makes two networks equally fast."""
    ffn = network.blocks[0].up.weight.shape[0]
    return f"{len(network.blocks)} layers, {network.width} wide, {ffn} inner, {network.heads} heads"


def here() -> str:
    """This machine, as keys begin."""
    return f"{processor()}; {os.cpu_count()} cores"


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _choice(row: object) -> Choice | None:
    try:
        return Choice(**row) if isinstance(row, dict) else None
    except TypeError:
        return None


def _precision(row: object) -> PrecisionChoice | None:
    if not isinstance(row, dict) or row.get("precision") not in get_args(Precision):
        return None
    return PrecisionChoice(row["precision"], str(row.get("model", "")))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(path: Path, content: dict[str, Any]) -> Path:
    try:
        make_folder(path.parent)
        write_atomic(path, json.dumps(content, indent=1, sort_keys=True))
    except OSError as error:
        raise WorkError(f"cannot keep the choice in {path}: {error}") from error
    return path
