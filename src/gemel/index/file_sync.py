"""`sync_files`: an index brought up to date with a folder of files. New and changed files are read, others are not.

What is stored of a file carries a digest of its content and the number of its documents (`file_digest`), so that an
unchanged file is not parsed, and one of which a run that was killed stored a part is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from gemel.errors import InputError
from gemel.files.document_files import (
    DOCUMENT_GLOB,
    DocumentFiles,
    FileDocument,
    SkippedFile,
    read_documents,
)
from gemel.index.index import Index
from gemel.index.ingest import WriteResult
from gemel.terminal import Progress, counted
from gemel.types import ShownResult

_PATHS = 200  # in one condition


@dataclass(frozen=True)
class FileSyncResult(ShownResult):
    """What became of the files of a folder, and of their pages and sections in the index."""

    files: int
    """That were found."""
    files_unchanged: int
    files_removed: int
    """Gone from the folder, and now from the index."""
    added: int
    """Documents: pages and sections."""
    replaced: int
    unchanged: int
    """Documents of files that were read again; those of unchanged files are not counted."""
    removed: int
    encoded: int
    """Passages that the model encoded."""
    truncated: int
    skipped: tuple[SkippedFile, ...]
    """Files and pages that could not be read; what is stored of them stays."""

    def summary(self) -> str:
        """One line for a person."""
        files = f"{counted(self.files, 'file')} ({self.files_unchanged:,} unchanged"
        files += f", {self.files_removed:,} gone)" if self.files_removed else ")"
        parts = [files, f"{self.added:,} added", f"{self.replaced:,} replaced", f"{self.removed:,} removed"]
        parts.append(f"{counted(self.encoded, 'passage')} encoded")
        if self.truncated:
            parts.append(f"{self.truncated:,} cut")
        if self.skipped:
            parts.append(f"{len(self.skipped):,} skipped")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """All of it as a JSON object."""
        return asdict(self) | {"skipped": [asdict(each) for each in self.skipped]}


def sync_files(
    index: Index,
    source: str | Path,
    *,
    glob: str = DOCUMENT_GLOB,
    max_size: int | str = "50MB",
    encoding: str | None = None,
    remove: bool = True,
    block: int = 2048,
    on_skip: Callable[[SkippedFile], None] | None = None,
    progress: bool = False,
) -> FileSyncResult:
    """Store the pages and sections of the files of a folder, or of one file, as `read_documents` gives them.

    Unchanged files are not read. Pages and sections that a changed file no longer has are deleted.
    remove: documents of files that are gone from the folder are deleted; files that exist but cannot be read, or that
    `glob` leaves out, stay as they are stored. Paths begin with the folder's name: an index should not hold two folders
    of the same name. block: documents per commit, at least whole files. The other arguments are those of
    `read_documents`. It is an error if no file can be read.
    """
    files = read_documents(source, glob=glob, max_size=max_size, encoding=encoding, on_skip=on_skip)
    if not files.files:
        raise InputError(
            f"no file of {source} matches {glob!r}. '**/*.md' also finds those in folders inside"
        )
    stored = _StoredFiles(index)
    unchanged = 0

    def is_unchanged(digest: str) -> bool:
        nonlocal unchanged
        same = stored.complete(digest)
        unchanged += same
        return same

    line = Progress(len(files.files), "files", shown=progress)
    total, removed = WriteResult(0, 0, 0, 0), 0
    for batch in _batches(files.by_file(is_unchanged), block, line):
        # Before the new ones are written: a run that is killed in between reads the file again.
        removed += stored.delete_others(batch)
        every = [document for documents in batch.values() for document in documents]
        if every:
            total += index.add(every, existing="replace", block=max(block, len(every)))
    line.close()
    if not files.read:
        raise InputError(f"none of {counted(len(files.files), 'file')} could be read. {files.skipped[0]}")
    gone = stored.gone(files) if remove else []
    removed += stored.delete(gone)
    return FileSyncResult(
        files=len(files.files),
        files_unchanged=unchanged,
        files_removed=len(gone),
        added=total.added,
        replaced=total.replaced,
        unchanged=total.unchanged,
        removed=removed,
        encoded=total.encoded,
        truncated=total.truncated,
        skipped=tuple(files.skipped),
    )


class _StoredFiles:
    """What the index has of files."""

    def __init__(self, index: Index) -> None:
        self._index = index
        names = index.fields
        digests = index.facets("file_digest") if "file_digest" in names else {}
        self._digests = {str(name): count for name, count in digests.items() if name is not None}
        self._counts = {name.rpartition("-")[0]: name.rpartition("-")[2] for name in self._digests}
        self._paths = {str(path) for path in index.facets("path") if path} if "path" in names else set()

    def complete(self, digest: str) -> bool:
        """Every document of the file is stored."""
        count = self._counts.get(digest, "")
        return self._digests.get(f"{digest}-{count}", -1) == (int(count) if count.isdecimal() else -2)

    def delete_others(self, batch: dict[str, list[FileDocument]]) -> int:
        """Delete what is stored of these files and is not among their documents now; how many there were."""
        now = {document.id for documents in batch.values() for document in documents}
        stale = [
            each.id
            for paths in _parts(path for path in batch if path in self._paths)
            for each in self._index.documents({"path": paths})
            if each.id not in now
        ]
        return self._index.delete(stale) if stale else 0

    def gone(self, files: DocumentFiles) -> list[str]:
        """Paths of files that are no longer in the folder."""
        if not files.source.is_dir():
            return []
        beside, found = files.source.resolve().parent, {each.path for each in files.files}
        inside = (path for path in self._paths - found if path.startswith(f"{files.root}/"))
        return sorted(path for path in inside if not (beside / path).exists())

    def delete(self, paths: Iterable[str]) -> int:
        return sum(self._index.delete(where={"path": some}) for some in _parts(paths))


def _batches(
    files: Iterable[tuple[str, list[FileDocument] | None]], size: int, line: Progress
) -> Iterator[dict[str, list[FileDocument]]]:
    """Files that were read, by path, of at least `size` documents together."""
    batch: dict[str, list[FileDocument]] = {}
    for path, documents in files:
        if documents is not None:
            batch[path] = documents
        line.add(1)
        if sum(map(len, batch.values())) >= size:
            yield batch
            batch = {}
    if batch:
        yield batch


def _parts(paths: Iterable[str]) -> Iterator[list[str]]:
    source = iter(paths)
    while part := list(islice(source, _PATHS)):
        yield part
