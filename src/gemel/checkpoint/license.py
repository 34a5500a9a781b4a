"""The model card of a checkpoint: what the front matter of its README.md says about the license.

The front matter is YAML between two lines of dashes; only `key: value` lines of its top level are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_LONGEST = 100_000  # characters of a README.md that are looked at

_LINE = re.compile(r"^([A-Za-z_]+):[ \t]*(\S.*?)[ \t]*$", flags=re.MULTILINE)

_NON_COMMERCIAL = re.compile(r"\bnc\b|non[-_ ]?commercial|research[-_ ]only|academic", flags=re.IGNORECASE)


@dataclass(frozen=True)
class License:
    """The license of a model as its card names it."""

    name: str
    """Such as apache-2.0; the license's own name where the card says "other"."""
    link: str | None

    @property
    def non_commercial(self) -> bool:
        """True if the name says that commercial use is not allowed."""
        return _NON_COMMERCIAL.search(self.name.replace("_", "-")) is not None


def read_license(folder: Path) -> License | None:
    """The license in the front matter of README.md or in a GGUF file; None: it names none, or there is no card."""
    if folder.suffix == ".gguf":
        from gemel.checkpoint.gguf_file import GgufFile

        file = GgufFile(folder)
        named, link = (file.get(f"general.license{part}") for part in ("", ".link"))
        return License(str(named), None if link is None else str(link)) if named else None
    card = folder / "README.md"
    try:
        text = card.read_text(encoding="utf-8", errors="replace")[:_LONGEST] if card.is_file() else ""
    except OSError:
        return None
    parts = re.split(r"^---[ \t]*$", text.lstrip("\ufeff"), maxsplit=2, flags=re.MULTILINE)
    if len(parts) < 3 or parts[0].strip():
        return None
    values = {key: value.strip("\"'[] ") for key, value in _LINE.findall(parts[1])}
    named = values.get("license") or values.get("license_name")
    if not named:
        return None
    own = values.get("license_name") if named == "other" else None
    return License(own or named, values.get("license_link"))
