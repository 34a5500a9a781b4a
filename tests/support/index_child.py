"""A process that writes to an index in a folder until it is killed; run by test_index_crash.py.

    python index_child.py FOLDER SEED KINDS|read [beside]

beside: another process writes too, so only its own documents are changed.

Each change is announced on standard output before it is made ("try {...}") and once it is acknowledged ("ack {...}").
"""

import json
import os
import random
import sys
from dataclasses import replace

import numpy as np

from gemel.index.backup import write_snapshot
from gemel.index.kinds import pack
from gemel.index.lance.store import LanceStore
from gemel.index.port import Header, KindHeader, PassageRows
from gemel.vectors.maxsim import join_texts
from gemel.vectors.sparse import SparseVectors

DIM = 8
SIZES = {"large": 40, "many": 40}  # number of passages from which lists and words are built: immediately


def vector(text):
    seed = int.from_bytes(text.encode()[-8:], "little")
    numbers = np.random.default_rng(seed).normal(size=DIM).astype(np.float32)
    return numbers / np.linalg.norm(numbers)


KINDS = {"sparse": KindHeader(64, "float32", {}), "late": KindHeader(DIM, "float16", {})}


def terms(text):
    """A row of weights: its columns are some bytes of the text."""
    columns = np.array(sorted({byte % 64 for byte in text.encode()[-9:]}), np.int32)
    return columns, np.arange(1, len(columns) + 1, dtype=np.float32)


def tokens(text):
    """(tokens, DIM): a vector of each of the last words."""
    return np.array([vector(word) for word in text.split()[-3:]], np.float32)


def kinds_of(texts, names=tuple(KINDS)):
    made = {
        "sparse": pack("sparse", "float32", SparseVectors.of([terms(text) for text in texts], ())),
        "late": pack("late", "float16", join_texts([tokens(text) for text in texts], (), DIM)),
    }
    return {name: made[name] for name in names}


def rows_of(documents, *, kinds=()):
    """{id: digest} as rows; a digest "7x3" has three passages."""
    parts = [(each, digest, part) for each, digest in documents.items() for part in range(passages(digest))]
    texts = [text_of(*each) for each in parts]
    return PassageRows(
        id=[each for each, _, _ in parts],
        part=np.array([part for *_, part in parts], np.int32),
        text=texts,
        digest=[digest for _, digest, _ in parts],
        vector=np.array([vector(text) for text in texts], np.float32),
        kinds=kinds_of(texts, kinds),
    )


def passages(digest):
    return int(digest.split("x")[1])


def text_of(name, digest, part):
    return f"passage {part} of {name} as {digest}"


class Writer:
    """Changes at random, one after another."""

    def __init__(self, folder, seed, *, beside=False):
        self.chance = random.Random(seed)
        self.name = f"w{seed}"
        self.handle = LanceStore(folder, **SIZES)
        self.table = self.handle.open()
        there = [] if beside else self.table.scan()
        self.mine = [each for rows in there for each in dict.fromkeys(rows.id)]
        self.step = 0

    def run(self, kinds):
        while True:
            self.step += 1
            kind = self.chance.choice(kinds)
            say("try", kind=kind, **(change := getattr(self, f"plan_{kind}")()))
            getattr(self, kind)(**change)
            say("ack", kind=kind, **change)

    def plan_write(self):
        new = [f"{self.name}-{self.step}-{i}" for i in range(self.chance.randint(1, 12))]
        old = self.chance.sample(self.mine, min(len(self.mine), self.chance.randint(0, 5)))
        digest = f"{self.name}.{self.step}x"
        return {"documents": {each: digest + str(self.chance.randint(1, 4)) for each in new + old}}

    def write(self, documents):
        self.table.write(rows_of(documents, kinds=self.table.header.kinds), replace=True)
        self.mine = list(dict.fromkeys(self.mine + list(documents)))

    def plan_delete(self):
        return {"ids": self.chance.sample(self.mine, min(len(self.mine), self.chance.randint(1, 6)))}

    def delete(self, ids):
        self.table.delete(ids)
        self.mine = [each for each in self.mine if each not in set(ids)]

    def plan_compact(self):
        return {}

    def compact(self):
        self.table.compact()

    def plan_find(self):
        return {}

    def find(self):
        self.table.nearest(np.eye(DIM, dtype=np.float32)[:2], 5)
        self.table.by_words("passage 1", 5)
        for kind in self.table.header.kinds:
            query = terms("passage 1 of w1") if kind == "sparse" else tokens("passage 1 of w1")
            self.table.by_kind(kind, [query], 5)

    def plan_switch(self):
        return {"model": f"{self.name}-{self.step}"}

    def switch(self, model):
        following = self.handle.begin(Header(DIM, {}, {"model": model}, kinds=self.table.header.kinds))
        for rows in self.table.scan(block=50, kinds=True):
            following.write(rows, replace=True)
        with self.handle.writing():
            self.table = self.handle.switch()

    def plan_recode(self):
        """Other kinds of vectors, as `migrate(sparse=...)` and `migrate(late=False)` make them."""
        return {"kinds": self.chance.choice([[], ["sparse"], ["late"], ["sparse", "late"]])}

    def recode(self, kinds):
        old = self.table.header
        header = Header(DIM, {}, old.bound, kinds={name: KINDS[name] for name in kinds})
        following = self.handle.begin(header)
        for rows in self.table.scan(block=50, kinds=True):
            following.write(replace(rows, kinds=kinds_of(rows.text, kinds)), replace=True)
        with self.handle.writing():
            self.table = self.handle.switch()

    def plan_snapshot(self):
        return {"snapshot": f"{self.name}-{self.step}"}

    def snapshot(self, snapshot):
        write_snapshot(self.table, self.handle.folder.parent / "copies" / snapshot)


def say(word, **what):
    os.write(1, f"{word} {json.dumps(what)}\n".encode())


def read(folder, seed):
    """Reads until standard input ends; every answer must consist of complete documents."""
    table = LanceStore(folder, **SIZES).open()
    chance = np.random.default_rng(seed)
    os.set_blocking(0, False)
    while os.read(0, 1) if can_read() else True:
        for rows in table.scan():
            check_whole(rows)
        for result in table.nearest(chance.normal(size=(1, DIM)).astype(np.float32), 20):
            for name, part, text in zip(result.id, result.part, result.text, strict=True):
                assert text.startswith(f"passage {part} of {name} as "), text
        table.by_words("passage", 5)
        say("ack")


def can_read():
    import select

    return bool(select.select([0], [], [], 0)[0])


def check_whole(rows):
    """Each document has all of its passages, of one digest, once."""
    there = {}
    for name, digest, part, text in zip(rows.id, rows.digest, rows.part, rows.text, strict=True):
        assert text == text_of(name, digest, part)
        there.setdefault(name, []).append((digest, int(part)))
    for name, parts in there.items():
        digest = parts[0][0]
        assert parts == [(digest, part) for part in range(passages(digest))], (name, parts)


if __name__ == "__main__":
    handle, number, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if what == "read":
        read(handle, number)
    else:
        Writer(handle, number, beside="beside" in sys.argv).run(what.split(","))
