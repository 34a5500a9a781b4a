"""Where an index on a server is: `postgresql://user:password@host:port/db#name`. Secrets stay in here.

What is not in the address libpq takes from its own places: PGHOST, PGPASSWORD, ~/.pgpass, a service file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from gemel.errors import InputError, MissingExtra

SCHEMES = ("postgresql", "postgres")
_NAME = re.compile(r"[a-z0-9_-]{1,40}")
_SECRET = {"password", "sslpassword", "passfile", "oauth_client_secret"}
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?")
_FORM = "postgresql://user:password@host:port/db#name"
_UNREADABLE = (
    f"PostgreSQL cannot read this address; its form is {_FORM}, and in user and password "
    "the characters : / ? # [ ] @ % are written as %3A %2F %3F %23 %5B %5D %40 %25"
)


@dataclass(frozen=True)
class Address:
    """A server, a database in it, and the name of an index in that."""

    name: str
    shown: str
    """The whole address without secrets, for people."""
    conninfo: str = field(repr=False)
    """For libpq, secrets included: never shown."""
    secrets: tuple[str, ...] = field(repr=False)


def parse_address(place: str) -> Address:
    """Checks the form only; no connection is made. No part of a wrong address is quoted: it may hold a password."""
    url, _, name = place.rpartition("#") if "#" in place else (place, "", "")
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise InputError(f"not an address of PostgreSQL: it begins with {SCHEMES[0]}:// as in {_FORM}")
    hosts = parts.netloc.rpartition("@")[2].split(",")
    if (
        "@" in parts.fragment + parts.path
        or parts.netloc.count("@") > 1
        or not all(map(_HOST.fullmatch, hosts))
    ):
        raise InputError(_UNREADABLE)
    options = parse_qsl(parts.query, keep_blank_values=True)
    shown = _without_secrets(parts.netloc, parts.path, options)
    if not name:
        raise InputError(f"{shown} names no index: write its name behind a #, as in {_FORM}")
    if not _NAME.fullmatch(name):
        raise InputError(
            f"the name behind the # of {shown} is not one: 1 to 40 of the characters a-z, 0-9, _ and -"
        )
    secrets = [value for key, value in options if key in _SECRET]
    return Address(name, f"{shown}#{name}", url, tuple(filter(None, [*secrets, _password(url)])))


def _without_secrets(netloc: str, path: str, options: list[tuple[str, str]]) -> str:
    user, at, host = netloc.rpartition("@")
    kept = urlencode(
        [(key, value) for key, value in options if key not in _SECRET], quote_via=quote, safe="/"
    )
    return f"postgresql://{user.partition(':')[0]}{at}{host}{path}{'?' if kept else ''}{kept}"


def _password(url: str) -> str | None:
    """As libpq reads it; a form that libpq refuses is refused here, without its words: they quote the address."""
    psycopg = load_psycopg()
    try:
        settings = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise InputError(_UNREADABLE) from None
    password = settings.get("password")
    return None if password is None else str(password)


def load_psycopg() -> Any:  # noqa: ANN401 - the module; it has no stubs here
    """With all that an index needs of it, or the line that installs it."""
    try:
        import psycopg
        import psycopg.conninfo
        import psycopg_pool  # noqa: F401
    except ImportError as error:
        raise MissingExtra("an index on PostgreSQL", "psycopg", "postgres") from error
    return psycopg
