"""Who is let in: the name a request calls this server by, its API key, how often it asks."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gemel.serve.errors import RouteError
from gemel.serve.keys import Key, Keys, digest_of, given_key
from gemel.serve.limits import Overloaded

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
PUBLIC = frozenset({"/", "/health", "/health/live", "/health/ready", "/favicon.ico"})
PUBLIC_FOLDER = "/page/"  # the files of the page, which asks for the key itself

Headers = Iterable[tuple[bytes, bytes]]


def host_name(headers: Headers) -> str:
    """The Host header without its port."""
    for name, value in headers:
        if name == b"host":
            host = value.decode("latin-1").strip().lower()
            if host.startswith("["):
                return host[1:].partition("]")[0]
            return host.partition(":")[0]
    return ""


def check_host(headers: Headers, allowed: frozenset[str] | None) -> None:
    """A page of the web that had its name pointed at this machine calls us by that name: refuse it.

    `allowed` None: the server is meant to be reached by others, under names that are not known here.
    """
    if allowed is not None and host_name(headers) not in allowed:
        raise RouteError(
            403,
            "this server answers to localhost only. Start it with --allowed-host to let it answer to more names",
            code="wrong_host",
        )


def check_encoding(headers: Headers) -> None:
    """Refuse (415) a body that is compressed: a small one could become a very large one."""
    for name, value in headers:
        said = value.decode("latin-1").strip().lower()
        if name == b"content-encoding" and said not in ("", "identity"):
            raise RouteError(
                415,
                f"a body with content-encoding {said[:40]!r} is not read. Send it as it is, without compression",
                code="unsupported_content_encoding",
            )


def is_public(method: str, path: str) -> bool:
    return method in ("GET", "HEAD") and (path in PUBLIC or path.startswith(PUBLIC_FOLDER))


def check_key(headers: Headers, keys: Keys, address: str) -> Key | None:
    """The key; None where there are no keys.

    Raises 401 for a wrong one, `Overloaded` for one that asks too often and for an address with many wrong ones.
    """
    if not len(keys):
        return None
    given = given_key(headers)
    key = None
    if given is not None:
        digest = digest_of(given)
        if wait := keys.wrong.wait(address, digest):
            raise Overloaded(
                f"too many wrong API keys came from this address. Try again in {math.ceil(wait)} s", wait
            )
        key = keys.find(given)
        keys.wrong.note(address, digest, right=key is not None)
    if key is None:
        what = "no API key was sent" if given is None else "the API key is not known"
        raise RouteError(401, f"{what}. Send it as Authorization: Bearer KEY", code="invalid_api_key")
    if key.bucket is not None and (wait := key.bucket.take()):
        raise Overloaded(f"the key {key.name!r} asks more often than it may. Try again in {wait:.0f} s", wait)
    return key
