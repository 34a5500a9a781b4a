"""What the server says, as one of gemel's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gemel.errors import GemelError, InputError, WorkError
from gemel.index.postgres.address import Address

_TOLD = {
    "42P01": "its table is gone: the index was migrated or dropped by another process. Open the index again",
    "42703": "a column is gone or new: another process changed the fields. Open the index again",
    "42501": "this user may not do it: {why}. Ask the owner of the database for the right",
    "53100": "the disk of the server is full, so nothing was changed: {why}",
    "53200": "the server is out of memory, so nothing was changed: {why}",
    "25006": "the server or this connection is read-only, so nothing was changed",
    "57014": "the server stopped the request, so nothing was changed: {why}",
}
_WRONG = {
    "54000": "a value is too large for PostgreSQL, so nothing was written: {why}. Ids hold about 2,700 bytes",
    "23505": "an id is there twice, so nothing was written: {why}",
}


def explain(error: Any, address: Address) -> GemelError:  # noqa: ANN401 - psycopg is loaded late
    """The same trouble as a WorkError or InputError that names the index and never a password."""
    why = said(error, address)
    if error.sqlstate in _WRONG:
        return InputError(f"{address.shown}: {_WRONG[error.sqlstate].format(why=why)}")
    told = _TOLD.get(error.sqlstate, "{why}").format(why=why)
    return WorkError(f"{address.shown}: {told}")


def unreachable(error: Any, address: Address) -> WorkError:  # noqa: ANN401
    return WorkError(
        f"cannot reach the server of {address.shown}: {said(error, address)}. Nothing was changed. "
        "Is it running, and are host, user and password right?"
    )


def said(error: Any, address: Address) -> str:  # noqa: ANN401
    """The words of the server in one line, without secrets."""
    words = " ".join((getattr(error.diag, "message_primary", None) or str(error)).split())
    for secret in address.secrets:
        words = words.replace(secret, "***")
    return words.rstrip(".") or type(error).__name__


@contextmanager
def explained(address: Address) -> Iterator[None]:
    """Errors of psycopg that pass through become gemel's."""
    from psycopg import Error

    try:
        yield
    except Error as error:
        raise explain(error, address) from error
