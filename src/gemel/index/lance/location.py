"""Where an index is: a folder or a bucket, and index.json in it, which names the current table.

A bucket is read through Lance's own client, so there is one way to find keys and one set of settings. A pointer is
never overwritten there: `index.json` names the first table, `index-2.json` the second, and the highest number is
current. So a process that was stopped in the middle of a switch and resumes late cannot undo a later one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gemel.checkpoint.cache import cache_root
from gemel.errors import GemelError, InputError, WorkError
from gemel.files.atomic import write_atomic
from gemel.index.lance.recovery import first_line, versions_in
from gemel.index.lance.snapshot import drop_view
from gemel.index.port import FORMAT, PLAIN_FORMAT

_NAME = "index.json"

_OURS = ("rows-*.lance", "rows-*.readers", "lock", "*.lock", "cache", "damaged", f"{_NAME}*")

_TABLE = re.compile(r"rows-([1-9]\d{0,8})\.lance")


@dataclass(frozen=True)
class Pointer:
    """`current` counts from 1; the table that a migration builds has the next number."""

    current: int

    @property
    def table(self) -> str:
        return f"rows-{self.current}.lance"

    @property
    def next(self) -> Pointer:
        return Pointer(self.current + 1)

    @classmethod
    def of(cls, table: str) -> Pointer | None:
        """The pointer to a table of this name; None: no table of an index is called so."""
        found = _TABLE.fullmatch(table)
        return None if found is None else cls(int(found[1]))


class Folder:
    """An index on the local disk."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).expanduser().absolute()
        self.name = path
        self.cache = self.path / "cache"

    def read(self) -> Pointer | None:
        """None: nothing is there, or what a killed `create` left. Anything else is an error that says what."""
        if self.path.is_file():
            raise InputError(f"{self.name} is a file, an index is a folder. Name another location")
        content = self._content()
        if content is None:
            self._refuse_foreign()
            if not (tables := self.tables()):
                return None
            content = self._content()  # another process may have created it since the first read
            if content is None:
                raise without_pointer(self.name, tables, f"its {_NAME} is missing")
        return parsed(content, self.name, self.tables())

    def tables(self) -> list[str]:
        """Names of the tables that may hold something, oldest first; one that a killed `create` left is none."""
        found = [path for path in self.path.glob("rows-*.lance") if Pointer.of(path.name) and _begun(path)]
        return [path.name for path in sorted(found, key=lambda path: int(path.stem.removeprefix("rows-")))]

    def _content(self) -> bytes | None:
        with (
            _disk_errors(f"the index {self.name} cannot be read", "Check its rights"),
            suppress(FileNotFoundError),
        ):
            return (self.path / _NAME).read_bytes()
        return None

    def write(self, pointer: Pointer) -> None:
        with _disk_errors(f"could not write to {self.name}", "Nothing was changed"):
            write_atomic(self.path / _NAME, json.dumps(content(pointer), indent=1))

    def prepare(self) -> None:
        with _disk_errors(f"cannot make the folder {self.name}", "Check its rights"):
            self.path.mkdir(parents=True, exist_ok=True)

    def uri(self, table: str) -> str:
        return str(self.path / table)

    def has(self, table: str) -> bool:
        return (self.path / table).exists()

    def readers(self, table: str) -> Path:
        """The file that open handles to a table hold a shared lock of."""
        return self.path / f"{Path(table).stem}.readers"

    def drop(self, table: str) -> None:
        shutil.rmtree(self.path / table, ignore_errors=True)
        self.readers(table).unlink(missing_ok=True)
        drop_view(self.cache, Path(table).stem)
        stem = Path(table).stem
        for cache in (*self.cache.glob(f"{stem}-*"), *self.cache.glob(f"{stem}.*/")):
            shutil.rmtree(cache, ignore_errors=True)

    def remove(self) -> None:
        """Delete all tables and caches, then the pointer: if it is killed before, `read` still finds the index."""
        with _disk_errors(f"{self.name} cannot be deleted", "Check its rights, then try again"):
            for path in self.path.glob("rows-*.lance"):
                if Pointer.of(path.name) is not None:
                    self.drop(path.name)
            shutil.rmtree(self.cache, ignore_errors=True)
            for name in ("next.lock", "cache.lock", _NAME):
                (self.path / name).unlink(missing_ok=True)

    def set_aside(self, tables: Sequence[str]) -> list[str]:
        """These tables leave the index for its folder `damaged`; what was done."""
        kept = self.path / "damaged"
        for table in tables:
            kept.mkdir(exist_ok=True)
            (self.path / table).rename(kept / f"{table}.{os.urandom(4).hex()}")
        return [f"moved {table} to {kept}" for table in tables]

    def _refuse_foreign(self) -> None:
        there: set[Path] = set()
        with (
            _disk_errors(f"the folder {self.name} cannot be read", "Check its rights"),
            suppress(FileNotFoundError),
        ):
            there = set(self.path.iterdir())
        ours: Iterable[Path] = (path for pattern in _OURS for path in self.path.glob(pattern))
        if foreign := sorted(path.name for path in there - set(ours)):
            raise InputError(
                f"{self.name} is no index: it has no {_NAME} but holds {foreign[0]!r}. Name an empty or a new folder"
            )


@contextmanager
def _disk_errors(what: str, then: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WorkError(f"{what}: {error.strerror}. {then}") from error


def folders_below(folder: str) -> Iterator[str]:
    """The folders of indexes at this path and below it; hidden ones and what is in an index are left out."""
    with _disk_errors(f"the folder {folder} cannot be read", "Check its name and rights"):
        start = Path(folder).expanduser()
        if not start.is_dir():
            raise InputError(f"there is no folder {folder}. Give one that indexes are in")
        os.scandir(start).close()
    for path, folders, files in os.walk(start):
        if any(Pointer.of(name) is not None for name in folders):
            if _NAME in files or Folder(path).tables():  # else a killed `create` left it
                yield str(Path(folder, Path(path).relative_to(start)))
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def content(pointer: Pointer) -> dict[str, Any]:
    """What is written, in a folder and in a bucket."""
    return {"what": "a gemel index", "format": PLAIN_FORMAT, "current": pointer.current}


def parsed(content: bytes, name: str, tables: Sequence[str]) -> Pointer:
    """InputError for what gemel did not write, or a newer one did; `tables`: what lies beside it."""
    try:
        about = json.loads(content.decode("utf-8"))
        version, current = int(about["format"]), int(about["current"])
        if current < 1:
            raise ValueError(f"there is no table {current}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if tables:
            raise without_pointer(name, tables, f"its {_NAME} is damaged") from error
        raise InputError(
            f"{name} is no index: its {_NAME} is not one of gemel's. Name another location"
        ) from error
    if version > FORMAT:
        raise InputError(
            f"{name} is an index of format {version}, this gemel reads up to {FORMAT}. "
            "Upgrade it: pip install --upgrade gemel"
        )
    return Pointer(current)


def without_pointer(name: str, tables: Sequence[str], why: str) -> InputError:
    """The error for tables without the file that says which of them counts."""
    return NoPointer(
        f"the index {name} cannot be opened: {why}, but {', '.join(tables)} is there. Nothing was changed. "
        f"Rebuild it: gemel index repair {name}, or gemel.repair_index"
    )


class NoPointer(InputError):
    """Tables are there, and nothing says which of them is the current one."""


def _begun(table: Path) -> bool:
    """More than `create` makes: a second version, or a file of rows."""
    return bool(set(versions_in(table)) - {1}) or any((table / "data").glob("*"))


_POINTER = re.compile(r"index(?:-(\d+))?\.json")

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")

_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")


class Bucket:
    """`s3://bucket/path`. Keys come from the environment or the files where such tools keep them."""

    def __init__(self, url: str) -> None:
        refuse_secrets(url)
        self.name = url
        self._url = url.rstrip("/")
        self.options = storage_options(url, os.environ)

    @property
    def cache(self) -> Path:
        """Where this machine keeps what was built for search."""
        where = f"{self.options.get('aws_endpoint', '')} {self._url}"
        return cache_root() / "indexes" / hashlib.sha256(where.encode()).hexdigest()[:24]

    def below(self) -> Iterator[str]:
        """The addresses of the indexes at this path and below it."""
        with self._explained("cannot be read"):
            there = self._session().list_with_delimiter()
        folders = sorted(Path(str(each)).name for each in there.common_prefixes)
        pointers = any(_POINTER.fullmatch(Path(str(each)).name) for each in there.objects)
        if pointers and any(Pointer.of(name) is not None for name in folders):
            yield self._url
            return
        for name in folders:
            yield from Bucket(f"{self._url}/{name}").below()

    def read(self) -> Pointer | None:
        """None: nothing is there."""
        with self._explained("cannot be read"):
            there = self._session().list_with_delimiter()
            names = [Path(str(each)).name for each in there.objects]
            found = [name for name in names if _POINTER.fullmatch(name)]
            if found:
                pointers = [self._pointer(name, there) for name in found]
                return max(pointers, key=lambda each: each.current)
            tables = [Path(str(each)).name for each in there.common_prefixes]
        first = Pointer(1)
        if first.table in tables and self.has(first.table):
            return first  # whoever made it did not come to write its pointer
        if others := self._tables(there):
            raise without_pointer(self.name, others, "its index.json is missing")
        foreign = [*names, *(name for name in tables if not name.startswith("rows-"))]
        if foreign:
            raise InputError(
                f"{self.name} is no index: it has no index.json but holds {min(foreign)!r}. Name another path"
            )
        return None

    def write(self, pointer: Pointer) -> None:
        name = "index.json" if pointer.current == 1 else f"index-{pointer.current}.json"
        with (
            tempfile.TemporaryDirectory(prefix="gemel-") as folder,
            self._explained("could not be written to"),
        ):
            file = Path(folder, "index.json")
            file.write_text(json.dumps(content(pointer), indent=1), encoding="utf-8")
            self._session().upload_file(str(file), name)

    def tables(self) -> list[str]:
        """Names of the tables that are there, oldest first."""
        with self._explained("cannot be read"):
            return self._tables(self._session().list_with_delimiter())

    def _tables(self, there: Any) -> list[str]:  # noqa: ANN401 - lance has no types
        names = (Path(str(each)).name for each in there.common_prefixes)
        found = [(pointer.current, name) for name in names if (pointer := Pointer.of(name)) is not None]
        return [name for _, name in sorted(found) if self.has(name)]

    def prepare(self) -> None:
        """Folders are not made in a bucket."""

    def uri(self, table: str) -> str:
        return f"{self._url}/{table}"

    def has(self, table: str) -> bool:
        import lance

        try:
            lance.dataset(self.uri(table), storage_options=self.options)
        except (ValueError, OSError):
            return False
        return True

    def drop(self, table: str) -> None:
        """Every object of it; the manifests first, so that what is half gone is no table."""
        with self._explained("could not be written to"):
            session = self._session()
            names = [str(each) for each in session.list(table)]
            manifests = [name for name in names if "/_versions/" in name]

            def delete(name: str) -> None:
                with suppress(OSError):  # gone already; what could not be deleted is no table any more
                    session.delete_file(name)

            for chosen in (manifests, [name for name in names if name not in set(manifests)]):
                with ThreadPoolExecutor(8) as threads:
                    list(threads.map(delete, chosen))
        if self._url.startswith("file://"):  # the stand-in of tests has folders
            shutil.rmtree(Path(urlsplit(self.uri(table)).path), ignore_errors=True)

    def _pointer(self, name: str, there: Any) -> Pointer:  # noqa: ANN401
        with tempfile.TemporaryDirectory(prefix="gemel-") as folder:
            file = Path(folder, "index.json")
            self._session().download_file(name, str(file))
            content = file.read_bytes()
        return parsed(content, self.name, self._tables(there))

    def _session(self) -> Any:  # noqa: ANN401 - lance has no types
        from lance.file import LanceFileSession

        return LanceFileSession(self._url, storage_options=self.options)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except GemelError:
            raise
        except (OSError, ValueError, RuntimeError) as error:
            raise WorkError(
                f"the index {self.name} {what}: {first_line(error)}. Check AWS_ENDPOINT_URL, the keys and the bucket"
            ) from error


def refuse_secrets(url: str) -> None:
    """An error if an address has keys in it: it is shown in messages and logs."""
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InputError(
            f"the location {shown} was given with more than a bucket and a path. Keys belong into the environment "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or ~/.aws/credentials, the server into AWS_ENDPOINT_URL"
        )
    if parts.scheme not in ("s3", "file"):
        raise InputError(
            f"{shown} is no location for an index. Give a folder, s3://bucket/path or postgresql://"
        )
    if parts.scheme == "s3" and not parts.path.strip("/"):
        raise InputError(f"{shown} names a bucket without a path. Give s3://bucket/path")


def storage_options(url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Options for Lance beyond those that it finds itself; never a key."""
    if not url.startswith("s3://"):
        return {}
    out: dict[str, str] = {}
    endpoint = next((environ[name] for name in _ENDPOINTS if environ.get(name)), None)
    if endpoint is not None:
        out["aws_endpoint"] = endpoint
        if endpoint.startswith("http://"):
            out["allow_http"] = "true"
        # Servers other than Amazon's ask for no region, but requests are signed with one.
        out["aws_region"] = next((environ[name] for name in _REGIONS if environ.get(name)), "us-east-1")
    return out
