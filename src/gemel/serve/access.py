"""Access control: the host name of a request, its API key, and how often a key may be used.

Only hashes of keys are stored, and a wrong key takes as long as a right one.
"""

from __future__ import annotations

import hmac
import ipaddress
import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from gemel.errors import InputError
from gemel.serve.errors import RouteError
from gemel.serve.options import Overloaded

if TYPE_CHECKING:
    from starlette.datastructures import Headers

SHORTEST = 16  # characters of a key; a shorter one can be guessed
BURST = 1 / 6  # part of the requests of a minute that may come at once
READ_ONLY = "read-only"  # after a key: it may not change an index
WRONG_PER_MINUTE = 60.0  # wrong keys from one address, a sixth of them at once
MOST_ADDRESSES = 10_000  # remembered
REMEMBERED = 3600.0  # seconds for which a right key still works from an address that also sends wrong ones
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
PUBLIC = frozenset({"/", "/health", "/health/live", "/health/ready", "/favicon.ico"})
PUBLIC_FOLDER = "/page/"  # the files of the page, which asks the user for the key


def check_host(headers: Headers, allowed: frozenset[str] | None) -> None:
    """Refuse (403) a host name that is not allowed: DNS rebinding lets web pages reach this machine by their own name.

    `allowed` None: any name, for a server that other machines may reach.
    """
    if allowed is not None and host_name(headers) not in allowed:
        raise RouteError(
            403,
            "this server answers to localhost only. Start it with --allowed-host to let it answer to more names",
            code="wrong_host",
        )


def host_name(headers: Headers) -> str:
    """The Host header without its port."""
    host = headers.get("host", "").strip().lower()
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def check_encoding(headers: Headers) -> None:
    """Refuse (415) a body that is compressed: a small one could become a very large one."""
    for value in headers.getlist("content-encoding"):
        encoding = value.strip().lower()
        if encoding not in ("", "identity"):
            raise RouteError(
                415,
                f"a body with content-encoding {encoding[:40]!r} is not read. Send it as it is, without compression",
                code="unsupported_content_encoding",
            )


def is_public(method: str, path: str) -> bool:
    return method in ("GET", "HEAD") and (path in PUBLIC or path.startswith(PUBLIC_FOLDER))


def check_key(headers: Headers, keys: Keys, address: str) -> Key | None:
    """The key of the request; None where the server has no keys.

    Raises 401 for a wrong key, `Overloaded` for one over its rate and for an address that sent many wrong keys.
    """
    if not len(keys):
        return None
    given = given_key(headers)
    key = None
    if given is not None:
        digest = digest_of(given)
        if wait := keys.failed.wait(address, digest):
            raise Overloaded(
                f"too many wrong API keys came from this address. Try again in {math.ceil(wait)} s", wait
            )
        key = keys.find(given)
        keys.failed.record(address, digest, right=key is not None)
    if key is None:
        reason = "no API key was sent" if given is None else "the API key is not known"
        raise RouteError(401, f"{reason}. Send it as Authorization: Bearer KEY", code="invalid_api_key")
    if key.bucket is not None and (wait := key.bucket.take()):
        raise Overloaded(f"the key {key.name!r} asks more often than it may. Try again in {wait:.0f} s", wait)
    return key


class TokenBucket:
    """Allows `per_minute` requests per minute, a part of them at once."""

    def __init__(self, per_minute: float, now: float | None = None) -> None:
        self._rate = per_minute / 60
        self._most = max(1.0, per_minute * BURST)
        self._level, self._seen = self._most, monotonic() if now is None else now

    def take(self, now: float | None = None) -> float:
        """0: allowed. Else the seconds until the next request is."""
        wait = self.missing(now)
        if not wait:
            self._level -= 1
        return wait

    def missing(self, now: float | None = None) -> float:
        """As `take`, without counting a request."""
        now = monotonic() if now is None else now
        self._level = min(self._most, self._level + (now - self._seen) * self._rate)
        self._seen = now
        return 0.0 if self._level >= 1 else (1 - self._level) / self._rate


@dataclass(frozen=True, eq=False)
class Key:
    name: str
    digest: bytes
    bucket: TokenBucket | None
    read_only: bool = False
    """It may search and encode, but not change an index."""


class FailedKeys:
    """Limits how often an address may send a wrong key. Over the limit its keys are refused unchecked for a while.

    A key that was right from the same address within the last hour still works: several people may share an address.
    """

    def __init__(self, per_minute: float = WRONG_PER_MINUTE) -> None:
        self._per_minute = per_minute
        self._addresses: OrderedDict[str, TokenBucket] = OrderedDict()
        self._right: OrderedDict[tuple[str, bytes], float] = OrderedDict()

    def wait(self, address: str, digest: bytes, now: float | None = None) -> float:
        """0: check the key. Else the seconds until keys of this address are checked again."""
        now = monotonic() if now is None else now
        address = network_of(address)
        bucket = self._addresses.get(address)
        seconds = 0.0 if bucket is None else bucket.missing(now)
        if seconds and now - self._right.get((address, digest), -REMEMBERED) < REMEMBERED:
            return 0.0
        return seconds

    def record(self, address: str, digest: bytes, *, right: bool, now: float | None = None) -> None:
        """Remember whether a key of this address was right."""
        now = monotonic() if now is None else now
        address = network_of(address)
        if right:
            self._right[address, digest] = now
            self._right.move_to_end((address, digest))
            _forget_oldest(self._right)
        else:
            self._addresses.setdefault(address, TokenBucket(self._per_minute, now)).take(now)
            self._addresses.move_to_end(address)
            _forget_oldest(self._addresses)


def network_of(address: str) -> str:
    """The address that one client controls: an IPv4 address, or the 2^64 IPv6 addresses of a network."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4 or parsed.ipv4_mapped is not None:
        return str(getattr(parsed, "ipv4_mapped", None) or parsed)
    return str(ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))


def _forget_oldest(entries: OrderedDict[Any, Any]) -> None:
    while len(entries) > MOST_ADDRESSES:
        entries.popitem(last=False)


class Keys:
    """The keys of one server."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = tuple(keys)
        self.failed = FailedKeys()

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, given: str) -> Key | None:
        """The key with this value; all are compared, so that the time reveals nothing."""
        digest, match = digest_of(given), None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                match = key
        return match


def digest_of(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogatepass")).digest()


def given_key(headers: Headers) -> str | None:
    """The key of `Authorization: Bearer KEY`, `x-api-key: KEY` or, from clients of Azure, `api-key: KEY`."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    bearer = key.strip() if scheme.lower() == "bearer" else ""
    return bearer or headers.get("x-api-key", "").strip() or headers.get("api-key", "").strip() or None


def read_keys(file: Path | None, environment: str | None, per_minute: float | None) -> Keys:
    """The keys of a file, one per line, and of GEMEL_API_KEYS, separated by commas or spaces; `#` begins a comment."""
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
    for source, line in lines:
        if line:
            key = _key(source, line, f"key-{len(keys) + 1}", per_minute)
            if key.name in keys:
                raise InputError(
                    f"{source}: a key named {key.name!r} is there already. Give each its own name"
                )
            keys[key.name] = key
    if file is not None and not keys:
        raise InputError(f"{file}: no API key in it. Write one per line, as NAME:KEY")
    return Keys(keys.values())


def _key(source: str, line: str, name: str, per_minute: float | None) -> Key:
    parts = [part.strip() for part in line.split(":")]
    rest = parts[2:]
    read_only = READ_ONLY in rest
    if read_only:
        rest.remove(READ_ONLY)
    if len(rest) > 1 or not all(parts):
        raise InputError(
            f"{source}: not an API key. Write KEY, NAME:KEY or NAME:KEY:REQUESTS_PER_MINUTE, each with "
            f":{READ_ONLY} after it for a key that may not change an index"
        )
    if len(parts) == 1:
        parts = [name, *parts]
    if parts[1] == READ_ONLY:  # the key itself must not be taken for a name
        raise InputError(f"{source}: a {READ_ONLY} key needs a name. Write NAME:KEY:{READ_ONLY}")
    if rest:
        try:
            per_minute = float(rest[0])
        except ValueError:
            per_minute = 0.0
    if per_minute is not None and not per_minute > 0:
        raise InputError(
            f"{source}: the requests per minute must be a number over 0, and the only word after a key is {READ_ONLY}"
        )
    if len(parts[1]) < SHORTEST:
        raise InputError(
            f"{source}: a key of {len(parts[1])} characters can be guessed, at least {SHORTEST} are needed. "
            "Make one with: openssl rand -hex 24"
        )
    bucket = None if per_minute is None else TokenBucket(per_minute)
    return Key(parts[0], sha256(parts[1].encode()).digest(), bucket, read_only)
