"""API keys: who may ask, and how often. Only hashes are kept, and a wrong key takes as long as a right one."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import monotonic

from gemel.errors import InputError

SHORTEST = 16  # characters of a key; a shorter one can be guessed
BURST = 1 / 6  # part of a minute's requests that may come at once


class Bucket:
    """So many requests a minute, a part of them at once."""

    def __init__(self, per_minute: float) -> None:
        self._rate = per_minute / 60
        self._most = max(1.0, per_minute * BURST)
        self._level, self._seen = self._most, monotonic()

    def take(self, now: float | None = None) -> float:
        """0: go on. Else the seconds until there is room."""
        now = monotonic() if now is None else now
        self._level = min(self._most, self._level + (now - self._seen) * self._rate)
        self._seen = now
        if self._level >= 1:
            self._level -= 1
            return 0.0
        return (1 - self._level) / self._rate


@dataclass(frozen=True, eq=False)
class Key:
    name: str
    digest: bytes
    bucket: Bucket | None


class Keys:
    """The keys of one server."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, given: str) -> Key | None:
        """The key that was given; all are compared, so that time tells nothing."""
        digest, found = sha256(given.encode("utf-8", "surrogatepass")).digest(), None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def given_key(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Of `Authorization: Bearer KEY` or `x-api-key: KEY`."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.decode("latin-1").partition(" ")
            if scheme.lower() == "bearer" and key.strip():
                return key.strip()
        elif name == b"x-api-key" and value.strip():
            return value.decode("latin-1").strip()
    return None


def read_keys(file: Path | None, environment: str | None, per_minute: float | None) -> Keys:
    """The keys of a file, one a line, and of GEMEL_API_KEYS, with commas or spaces between; `#` begins a comment."""
    lines: list[tuple[str, str]] = []
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file}: the API keys cannot be read ({type(error).__name__})") from None
        for number, line in enumerate(text.splitlines(), 1):
            lines.append((f"{file}:{number}", line.partition("#")[0].strip()))
    for number, word in enumerate((environment or "").replace(",", " ").split(), 1):
        lines.append((f"GEMEL_API_KEYS, key {number}", word))
    keys: dict[str, Key] = {}
    for place, line in lines:
        if line:
            key = _key(place, line, f"key-{len(keys) + 1}", per_minute)
            if key.name in keys:
                raise InputError(
                    f"{place}: a key named {key.name!r} is there already. Give each its own name"
                )
            keys[key.name] = key
    if file is not None and not keys:
        raise InputError(f"{file}: no API key in it. Write one a line, as NAME:KEY")
    return Keys(keys.values())


def _key(place: str, line: str, name: str, per_minute: float | None) -> Key:
    parts = [part.strip() for part in line.split(":")]
    if len(parts) > 3 or not all(parts):
        raise InputError(f"{place}: not an API key. Write KEY, NAME:KEY or NAME:KEY:REQUESTS_PER_MINUTE")
    if len(parts) == 1:
        parts = [name, *parts]
    if len(parts) == 3:
        try:
            per_minute = float(parts[2])
        except ValueError:
            per_minute = 0.0
    if per_minute is not None and not per_minute > 0:
        raise InputError(f"{place}: the requests per minute must be a number over 0")
    if len(parts[1]) < SHORTEST:
        raise InputError(
            f"{place}: a key of {len(parts[1])} characters can be guessed, at least {SHORTEST} are needed. "
            "Make one with: openssl rand -hex 24"
        )
    bucket = None if per_minute is None else Bucket(per_minute)
    return Key(parts[0], sha256(parts[1].encode()).digest(), bucket)
