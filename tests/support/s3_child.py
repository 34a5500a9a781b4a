"""A separate process that writes to an index in a bucket; it prints what is acknowledged."""

import sys
from collections.abc import Callable, Iterator

from gemel.errors import InputError, WorkError
from gemel.index.lance.store import LanceStore
from index_contract import rows_of


def write(table, name, count):
    for number in range(int(count)):
        ids = [f"{name}-{number}-{i}" for i in range(3)]
        table.write(rows_of(ids, seed=number), replace=False)
        yield from ids


def delete(table, count):
    for number in range(0, int(count), 4):
        yield table.delete([f"old-{number + i:03}" for i in range(4)])


def contend(table, name, count):
    for number in range(int(count)):
        try:
            table.write(rows_of([f"doc-{number}"], texts=[f"of {name}"]), replace=False)
            yield f"doc-{number}"
        except InputError:
            continue


def persist(table, count):
    """Retries each document until it is written."""
    for number in range(int(count)):
        while True:
            try:
                table.write(rows_of([f"doc-{number:03}"]), replace=False)
                break
            except WorkError:
                yield f"refused-{number}"
        yield f"doc-{number:03}"


if __name__ == "__main__":
    verb, url, *rest = sys.argv[1:]
    verbs: dict[str, Callable[..., Iterator[str]]] = {
        "write": write,
        "delete": delete,
        "contend": contend,
        "persist": persist,
    }
    for line in verbs[verb](LanceStore(url).open(), *rest):
        print(line, flush=True)
