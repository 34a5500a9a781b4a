"""Encoding to disk: formats, errors, and real kills at every step."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tracemalloc
from itertools import count
from pathlib import Path

import numpy as np
import pytest

import gemel
from encode_child import DIM, rows, vector
from gemel.errors import InputError, MissingExtra, WorkError
from gemel.files.rows import Row
from gemel.texts.encode_folder import encode_to_folder, read_folder
from gemel.texts.folder_files import lock_job
from tiny import tiny_bert

FORMATS = ["npy", "safetensors", "parquet", "jsonl"]
ROWS = 47  # shards of 20 rows, blocks of at most 7: 7 + 7 + 6, 7 + 7 + 6, 7
# The process is killed at every 7th step, which covers all three points of a step.
STRIDE = 1 if os.environ.get("GEMEL_SLOW") else 7


class Encoder:
    """The fake encoder of encode_child.py without its log; counts texts."""

    def __init__(self, dtype=np.float32):
        self.texts = 0
        self.dtype = dtype

    def encode(self, texts):
        self.texts += len(texts)
        return np.array([vector(text) for text in texts], self.dtype).reshape(len(texts), DIM)


def encode(out, source, *, encoder=None, fingerprint=None, **options):
    options = {"shard_rows": 20, "checkpoint_rows": 7, **options}
    return encode_to_folder(
        encoder or Encoder(), source, out, fingerprint=fingerprint or {"model": "fake"}, **options
    )


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def needs(format):
    if format == "parquet":
        pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """Syncing matters to a power cut, not to these tests."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="session")
def child():
    """Asks encode_child.py for a run in a separate process."""
    script = Path(__file__).parents[1] / "support" / "encode_child.py"
    process = subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def ask(out, format, **request):
        request = {"out": str(out), "log": f"{out}.log", "format": format, "rows": ROWS, **request}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield ask
    process.stdin.close()
    process.stdout.close()
    assert process.wait() == 0


def encoded(out):
    return [int(line) for line in Path(f"{out}.log").read_text().split()]


# ---- what is in the folder


def test_texts_and_a_model_are_enough(tmp_path):
    model = gemel.load(tiny_bert(tmp_path / "model"))
    texts = ["a man", "the rain", "a man"]
    gemel.encode_to_folder(model, texts, tmp_path / "out")
    folder = gemel.read_folder(tmp_path / "out")
    assert folder.ids == ["0", "1", "2"]
    assert np.array_equal(folder.vectors, model.encode(texts))
    named = [(f"id{position}", text) for position, text in enumerate(texts)]
    options = gemel.EncodeOptions(output="int8")
    gemel.encode_to_folder(model, named, tmp_path / "small", options=options)
    assert gemel.read_folder(tmp_path / "small").ids == ["id0", "id1", "id2"]
    assert np.array_equal(gemel.read_folder(tmp_path / "small").vectors, model.encode(texts, options))
    with pytest.raises(InputError, match=r"was made with other settings: fingerprint\.output is"):
        gemel.encode_to_folder(model, named, tmp_path / "small")


def test_an_encoder_without_a_fingerprint_needs_one(tmp_path):
    with pytest.raises(InputError, match="has no fingerprint: pass fingerprint="):
        encode_to_folder(Encoder(), ["a"], tmp_path / "out")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("number", [0, 1, 7, 20, 40, 47])
@pytest.mark.parametrize("keep_texts", [False, True])
def test_a_folder_gives_back_what_was_encoded(tmp_path, format, number, keep_texts):
    needs(format)
    result = encode(tmp_path / "out", rows(number), format=format, keep_texts=keep_texts)
    assert (result.rows, result.encoded_now, result.resumed) == (number, number, 0)
    folder = read_folder(tmp_path / "out")
    folder.verify()
    assert len(folder) == number
    assert folder.vectors.shape == (number, DIM)
    assert folder.vectors.dtype == np.float32
    assert np.array_equal(folder.vectors, Encoder().encode([row.text for row in rows(number)]))
    assert folder.ids == [row.id for row in rows(number)]
    if keep_texts:
        assert folder.texts == [row.text for row in rows(number)]
    else:
        with pytest.raises(InputError, match="has no texts"):
            _ = folder.texts
    assert not [name for name in contents(tmp_path / "out") if name.endswith((".part", ".tmp", ".lock"))]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint8])
def test_every_output_of_the_encoder_comes_back_as_the_same_bits(tmp_path, format, dtype):
    needs(format)

    class Random:
        def encode(self, texts):
            bits = np.random.default_rng(len(texts)).integers(0, 2**16, (len(texts), 9))
            return (bits / 777 - 20).astype(dtype) if np.dtype(dtype).kind == "f" else bits.astype(dtype)

    encode(tmp_path / "out", rows(40), encoder=Random(), format=format, checkpoint_rows=40, shard_rows=40)
    vectors = read_folder(tmp_path / "out").vectors
    assert vectors.dtype == dtype
    assert np.array_equal(vectors, Random().encode(range(40)))


def test_npy_is_the_file_that_numpy_itself_would_write(tmp_path):
    encode(tmp_path / "out", rows(ROWS))
    path = tmp_path / "out" / "vectors.npy"
    mapped = np.load(path, mmap_mode="r")
    assert isinstance(mapped, np.memmap)
    np.save(tmp_path / "numpy.npy", mapped)
    assert path.read_bytes() == (tmp_path / "numpy.npy").read_bytes()
    assert isinstance(read_folder(tmp_path / "out").vectors, np.memmap)


def test_safetensors_shards_are_read_by_the_safetensors_package(tmp_path):
    from safetensors.numpy import load_file

    encode(tmp_path / "out", rows(ROWS), format="safetensors")
    shards = [load_file(tmp_path / "out" / f"vectors-{n:05d}.safetensors")["vectors"] for n in range(3)]
    assert [len(shard) for shard in shards] == [20, 20, 7]
    assert np.array_equal(np.concatenate(shards), read_folder(tmp_path / "out").vectors)
    assert [len(block) for block in read_folder(tmp_path / "out").blocks()] == [20, 20, 7]


def test_parquet_is_one_table_with_a_fixed_size_list(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    encode(tmp_path / "out", rows(ROWS), format="parquet", keep_texts=True)
    table = pq.read_table(tmp_path / "out" / "vectors-00001.parquet")
    assert table.column_names == ["id", "text", "vector"]
    assert str(table.schema.field("vector").type) == f"fixed_size_list<element: float>[{DIM}]"
    assert table.num_rows == 20
    dataset = pytest.importorskip("pyarrow.dataset")
    files = sorted((tmp_path / "out").glob("*.parquet"))
    table = dataset.dataset(files).to_table()
    vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
    assert np.array_equal(vectors, read_folder(tmp_path / "out").vectors)


def test_jsonl_lines_are_objects_with_id_and_vector(tmp_path):
    encode(tmp_path / "out", [Row("7", "a"), Row("\ud800 \u2028", "b")], format="jsonl")
    lines = (tmp_path / "out" / "vectors.jsonl").read_text(encoding="utf-8").split("\n")
    first, second = json.loads(lines[0]), json.loads(lines[1])
    assert list(first) == ["id", "vector"]
    assert np.float32(first["vector"]).tolist() == vector("a").tolist()
    assert second["id"] == "\ud800 \u2028"
    assert read_folder(tmp_path / "out").ids == ["7", "\ud800 \u2028"]


@pytest.mark.parametrize("format", FORMATS)
def test_the_size_of_blocks_does_not_change_a_byte(tmp_path, format):
    needs(format)
    for size in (1, 7, 100):
        encode(tmp_path / str(size), rows(ROWS), format=format, checkpoint_rows=size)
    assert contents(tmp_path / "1") == contents(tmp_path / "7") == contents(tmp_path / "100")


def test_the_manifest_says_what_made_the_folder_and_nothing_about_the_run(tmp_path):
    encode(tmp_path / "out", rows(3), fingerprint={"model": "m", "pooling": ["mean", "cls"]})
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    shard, ids = manifest.pop("shards"), manifest.pop("files")
    assert manifest == {
        "kind": "gemel-vectors",
        "version": 1,
        "complete": True,
        "rows": 3,
        "dim": DIM,
        "dtype": "float32",
        "format": "npy",
        "keep_texts": False,
        "shard_rows": None,
        "input": {"rows": 3, "sha256": input_hash(rows(3))},
        "fingerprint": {"model": "m", "pooling": ["mean", "cls"]},
    }
    assert shard == [
        {"file": "vectors.npy", "rows": 3, "sha256": file_hash(tmp_path / "out" / "vectors.npy")}
    ]
    assert ids == [{"file": "ids.jsonl", "sha256": file_hash(tmp_path / "out" / "ids.jsonl")}]


def input_hash(source):
    """As docs/reference/encode-to-disk.md describes it."""
    fields = [value.encode() for row in source for value in (row.id, row.text)]
    return hashlib.sha256(b"".join(b"%d:%b," % (len(field), field) for field in fields)).hexdigest()


def file_hash(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---- kills


@pytest.mark.parametrize("format", FORMATS)
def test_a_kill_at_any_step_of_writing_loses_nothing(tmp_path, child, format):
    needs(format)
    whole = child(tmp_path / "whole", format, keep_texts=True)
    expected = contents(tmp_path / "whole")
    assert whole["encoded"] == ROWS
    assert whole["steps"] > 40
    # Before the step, after it, before it with unsynced bytes lost.
    moments = [(False, 0), (True, 0), (False, 3)]
    for step in range(1, whole["steps"] + 1, STRIDE):
        after, tear = moments[step % 3]
        out = tmp_path / f"{step}"
        first = child(out, format, keep_texts=True, step=step, after=after, tear=tear)
        assert first["killed"], first
        second = child(out, format, keep_texts=True)
        assert second.get("error") is None
        assert contents(out) == expected, f"killed at step {step}"
        log = encoded(out)
        assert len(log) <= ROWS + 7, "more than the block in flight was encoded again"
        assert set(log) == set(range(ROWS))
        assert (
            log[-second["encoded"] :] == list(range(second["resumed"], ROWS)) if second["encoded"] else True
        )
        shutil.rmtree(out)


@pytest.mark.parametrize("format", FORMATS)
def test_a_run_that_is_killed_repeatedly_still_completes(tmp_path, child, format):
    needs(format)
    child(tmp_path / "whole", format)
    out, dice, kills, done = tmp_path / "out", random.Random(5), 0, False
    while not done:  # each run lives slightly longer than a block, so that every run makes progress
        answer = child(
            out, format, step=dice.randint(6, 14), after=dice.random() < 0.5, tear=dice.choice([0, 2])
        )
        kills += answer["killed"]
        done = "encoded" in answer
    assert kills >= 5
    assert contents(out) == contents(tmp_path / "whole")
    assert len(encoded(out)) <= ROWS + 7 * kills


@pytest.mark.parametrize("format", ["npy", "safetensors"])
def test_a_kill_from_outside_while_encoding_costs_at_most_one_block(tmp_path, child, format):
    child(tmp_path / "whole", format)
    for dots in (1, 2, 6, 7, 8, 13, 14, 15, 20, 21, 26, 27, 34, 39, 40, 41, 45, 46, 47):
        out = tmp_path / str(dots)
        first = child(out, format, dots=dots)
        assert (
            first["killed"] or first["encoded"] == ROWS
        )  # after the last dot it may be too late for the kill
        second = child(out, format)
        assert second["resumed"] >= dots - 7
        assert contents(out) == contents(tmp_path / "whole")
        assert len(encoded(out)) <= ROWS + 7


def test_a_kill_in_the_middle_of_a_block_keeps_all_blocks_before_it(tmp_path, child):
    for text, safe in [(0, 0), (6, 0), (7, 7), (20, 14), (41, 35), (46, 42)]:
        out = tmp_path / str(text)
        assert child(out, "npy", text=text)["killed"]
        answer = child(out, "npy")
        assert (answer["resumed"], answer["encoded"]) == (safe, ROWS - safe)


def test_a_killed_overwrite_starts_from_the_beginning(tmp_path, child):
    child(tmp_path / "whole", "safetensors", rows=30)
    for step in count(1, 2):
        out = tmp_path / f"o{step}"
        child(out, "npy")
        if not child(out, "safetensors", rows=30, overwrite=True, step=step, after=True)["killed"]:
            break
        answer = child(out, "safetensors", rows=30)
        if "error" in answer:  # killed before the new job was recorded: the old folder is still complete
            assert "format is 'npy' there and 'safetensors' here" in answer["error"]
            read_folder(out).verify()
        else:
            assert contents(out) == contents(tmp_path / "whole")
        shutil.rmtree(out)
    assert step > 40


# ---- resuming, or refusing to


def stop_after(out, blocks, **options):
    """A run that ends with an error of the encoder after some blocks."""

    class Tired(Encoder):
        def encode(self, texts):
            if self.texts >= 7 * blocks:
                raise KeyboardInterrupt
            return super().encode(texts)

    with pytest.raises(KeyboardInterrupt):
        encode(out, rows(ROWS), encoder=Tired(), **options)


def test_a_second_run_resumes_where_the_first_stopped(tmp_path):
    stop_after(tmp_path / "out", 2)
    with pytest.raises(InputError, match="is not finished: run the same"):
        read_folder(tmp_path / "out")
    encoder, seen = Encoder(), []
    result = encode(tmp_path / "out", rows(ROWS), encoder=encoder, progress=seen.append)
    assert (result.rows, result.resumed, result.encoded_now, encoder.texts) == (ROWS, 14, 33, 33)
    assert [(step.rows, step.encoded_now) for step in seen][:2] == [(21, 7), (28, 14)]


def test_a_complete_folder_is_left_alone(tmp_path):
    encode(tmp_path / "out", rows(ROWS))
    before, encoder = contents(tmp_path / "out"), Encoder()
    result = encode(tmp_path / "out", rows(ROWS), encoder=encoder)
    assert (result.rows, result.resumed, result.encoded_now, encoder.texts) == (ROWS, ROWS, 0, 0)
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fingerprint": {"model": "other"}}, r"fingerprint\.model is 'fake' there and 'other' here"),
        ({"fingerprint": {"model": "fake", "dim": 3}}, r"fingerprint\.dim is 'nothing' there and 3 here"),
        ({"format": "jsonl"}, "format is 'npy' there and 'jsonl' here"),
        ({"keep_texts": True}, "keep_texts is False there and True here"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused_by_name(tmp_path, finished, options, message):
    encode(tmp_path / "out", rows(ROWS)) if finished else stop_after(tmp_path / "out", 2)
    before = contents(tmp_path / "out")
    with pytest.raises(InputError, match=message + r".*--overwrite"):
        encode(tmp_path / "out", rows(ROWS), **options)
    assert contents(tmp_path / "out") == before
    encode(tmp_path / "out", rows(ROWS), **options, overwrite=True)
    encode(tmp_path / "fresh", rows(ROWS), **options)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("finished", [False, True])
def test_a_changed_input_is_refused(tmp_path, finished):
    encode(tmp_path / "out", rows(ROWS)) if finished else stop_after(tmp_path / "out", 2)
    changed = [*rows(5), Row("id-5", "another text"), *rows(ROWS)[6:]]
    renamed = [Row("zero", rows(1)[0].text), *rows(ROWS)[1:]]
    for source in (changed, renamed, rows(10)):
        with pytest.raises(InputError, match="the input has changed"):
            encode(tmp_path / "out", source)
    assert encode(tmp_path / "out", rows(ROWS)).rows == ROWS


def test_an_input_that_only_grew_is_resumed(tmp_path):
    stop_after(tmp_path / "out", 2)
    encode(tmp_path / "out", rows(60))
    encode(tmp_path / "fresh", rows(60))
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("keep_texts", [False, True])
def test_an_input_that_grew_after_its_folder_was_complete_is_resumed(tmp_path, format, keep_texts):
    needs(format)
    options = {"format": format, "keep_texts": keep_texts}
    done = 0
    for number in (0, 13, 20, 40, 41, 67):  # none, part of a shard, whole ones, one row more
        encoder = Encoder()
        result = encode(tmp_path / "out", iter(rows(number)), encoder=encoder, **options)
        assert (result.rows, result.resumed, result.encoded_now) == (number, done, number - done)
        assert encoder.texts == number - done
        encode(tmp_path / "fresh", rows(number), overwrite=True, **options)
        assert contents(tmp_path / "out") == contents(tmp_path / "fresh")
        done = number
    read_folder(tmp_path / "out").verify()


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.uint8])
def test_a_folder_of_small_numbers_grows_too(tmp_path, dtype):
    needs("parquet")
    for number in (13, 30):
        encode(tmp_path / "out", rows(number), encoder=Encoder(dtype), format="parquet")
    encode(tmp_path / "fresh", rows(30), encoder=Encoder(dtype), format="parquet")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("format", FORMATS)
def test_a_kill_while_a_complete_folder_grows_loses_nothing(tmp_path, child, format):
    needs(format)
    child(tmp_path / "small", format, rows=30, keep_texts=True)
    child(tmp_path / "whole", format, keep_texts=True)
    moments = [(False, 0), (True, 0), (False, 3)]
    for step in count(1, STRIDE):
        after, tear = moments[step % 3]
        out = shutil.copytree(tmp_path / "small", tmp_path / f"{step}")
        if not child(out, format, keep_texts=True, step=step, after=after, tear=tear)["killed"]:
            break
        assert child(out, format, keep_texts=True).get("error") is None
        assert contents(out) == contents(tmp_path / "whole"), f"killed at step {step}"
        log = encoded(out)
        assert len(log) <= 17 + 7
        assert set(log) == set(range(30, ROWS))
        shutil.rmtree(out)
    assert step > 20


def test_a_complete_folder_that_was_changed_does_not_grow(tmp_path):
    encode(tmp_path / "out", rows(30), format="safetensors")
    whole = contents(tmp_path / "out")
    for name in ("vectors-00001.safetensors", "ids.jsonl"):
        (tmp_path / "out" / name).write_bytes(whole[name][:-1] + b"?")
        with pytest.raises(InputError, match=f"{name} is missing or has changed"):
            encode(tmp_path / "out", rows(31), format="safetensors")
        (tmp_path / "out" / name).write_bytes(whole[name])
    assert contents(tmp_path / "out") == whole
    (tmp_path / "out" / "vectors-00000.safetensors").unlink()
    with pytest.raises(InputError, match=r"is damaged: vectors-00000\.safetensors is missing"):
        encode(tmp_path / "out", rows(31), format="safetensors")
    assert contents(tmp_path / "out").keys() == whole.keys() - {"vectors-00000.safetensors"}


def test_two_processes_do_not_share_a_folder(tmp_path):
    stop_after(tmp_path / "out", 2)
    with lock_job(tmp_path / "out"), pytest.raises(InputError, match="another process is encoding to"):
        encode(tmp_path / "out", rows(ROWS))
    encode(tmp_path / "out", rows(ROWS))


def test_unrelated_files_are_never_touched(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    encode(tmp_path, rows(3))
    encode(tmp_path, rows(3), format="jsonl", overwrite=True)
    assert sorted(contents(tmp_path)) == ["manifest.json", "notes.txt", "vectors.jsonl"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "vectors.npy").write_bytes(b"precious")
    for overwrite in (False, True):
        with pytest.raises(InputError, match=r"holds vectors\.npy but no manifest"):
            encode(tmp_path / "other", rows(3), overwrite=overwrite)
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match="was not made by gemel"):
        encode(tmp_path / "strange", rows(3), overwrite=True)
    with pytest.raises(InputError, match="is a file; the vectors need a folder"):
        encode(tmp_path / "notes.txt", rows(3))


def test_a_damaged_folder_is_refused(tmp_path):
    stop_after(tmp_path / "out", 2)
    saved = shutil.copytree(tmp_path / "out", tmp_path / "saved")
    os.truncate(tmp_path / "out" / "vectors.npy.part", 100)
    with pytest.raises(InputError, match="shorter than recorded"):
        encode(tmp_path / "out", rows(ROWS))
    (saved / "ids.jsonl.part").unlink()
    with pytest.raises(InputError, match=r"is damaged: ids\.jsonl\.part is missing"):
        encode(saved, rows(ROWS))
    encode(saved, rows(ROWS), overwrite=True)
    (saved / "vectors.npy").write_bytes(b"x")
    with pytest.raises(InputError, match=r"vectors\.npy is missing or has changed"):
        read_folder(saved).verify()


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk_is_a_work_error_and_the_job_resumes_later(tmp_path, monkeypatch, format):
    needs(format)
    encode(tmp_path / "whole", rows(ROWS), format=format)
    real, left = os.fsync, [12]

    def full(handle):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WorkError, match=r"No space left on device.*run the same command again"):
        encode(tmp_path / "out", rows(ROWS), format=format)
    monkeypatch.undo()
    assert encode(tmp_path / "out", rows(ROWS), format=format).resumed > 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.full((3, 2), np.nan, np.float32), "NaN or infinity for row 0"),
        (np.zeros((2, 2), np.float32), r"gave float32 \(2, 2\) for 3 texts"),
        (np.zeros((3, 2), np.float64), "gave float64"),
        (np.zeros(3, np.float32), r"gave float32 \(3,\)"),
    ],
)
def test_an_encoder_that_misbehaves_is_stopped_before_anything_is_written(tmp_path, vectors, message):
    class Wrong:
        def encode(self, texts):
            return vectors

    with pytest.raises(WorkError, match=message):
        encode(tmp_path / "out", rows(3), encoder=Wrong())


def test_bad_requests_are_refused_before_any_work(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"unknown format 'nyp'\. Did you mean 'npy'"):
        encode(tmp_path / "out", rows(3), format="nyp")
    with pytest.raises(InputError, match="must be at least 1"):
        encode(tmp_path / "out", rows(3), checkpoint_rows=0)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"gemel\[parquet\]"):
        encode(tmp_path / "out", rows(3), format="parquet")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="no folder at"):
        read_folder(tmp_path / "out")
    with pytest.raises(InputError, match="has no manifest"):
        read_folder(tmp_path)


def test_parquet_refuses_lone_surrogates_immediately(tmp_path):
    needs("parquet")
    with pytest.raises(InputError, match="parquet cannot store"):
        encode(tmp_path / "out", [Row("\ud800", "x")], format="parquet")


@pytest.mark.parametrize("format", FORMATS)
def test_memory_does_not_grow_with_the_number_of_rows(tmp_path, format):
    needs(format)

    class Wide:
        def encode(self, texts):
            return np.ones((len(texts), 64), np.float32)

    def peak(count):
        source = (Row(str(n), f"text {n}") for n in range(count))
        tracemalloc.start()
        encode(
            tmp_path / f"{format}{count}",
            source,
            encoder=Wide(),
            format=format,
            checkpoint_rows=500,
            shard_rows=1000,
        )
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    peak(500)  # modules are loaded
    assert peak(12_000) < 1.1 * peak(4_000)  # 3.1 MB of vectors against 1 MB


def test_a_block_of_long_texts_ends_early(tmp_path):
    sizes = []

    class Sizes(Encoder):
        def encode(self, texts):
            sizes.append(len(texts))
            return super().encode(texts)

    encode(tmp_path / "out", [Row(str(n), "x" * 900_000) for n in range(7)], encoder=Sizes())
    assert sizes == [3, 3, 1]


def damaged_by(path, how):
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "a line less":
        path.write_bytes(b"".join(content.splitlines(keepends=True)[:-1]))
    else:
        path.write_bytes(bytes(len(content)))


@pytest.mark.parametrize("how", ["gone", "cut", "zeros"])
@pytest.mark.parametrize("format", FORMATS)
def test_a_damaged_folder_is_neither_complete_nor_read(tmp_path, format, how):
    needs(format)
    encode(tmp_path / "out", rows(ROWS), format=format)
    for path in list((tmp_path / "out").glob("vectors*")):
        damaged_by(path, how)
    with pytest.raises(InputError, match=r"damaged.*--overwrite"):
        encode(tmp_path / "out", rows(ROWS), format=format)
    if (format, how) not in {
        ("npy", "zeros")
    }:  # zeros after a rebuilt header are valid numbers: see `verify`
        with pytest.raises(InputError, match=r"damaged.*--overwrite"):
            _ = read_folder(tmp_path / "out").vectors
    with pytest.raises(InputError, match="damaged"):
        read_folder(tmp_path / "out").verify()
    encode(tmp_path / "out", rows(ROWS), format=format, overwrite=True)
    read_folder(tmp_path / "out").verify()


def test_a_file_of_fewer_lines_is_not_read_as_numbers(tmp_path):
    """Regression: missing rows at the end were read as uninitialized memory."""
    encode(tmp_path / "out", rows(ROWS), format="jsonl")
    damaged_by(tmp_path / "out" / "vectors.jsonl", "a line less")
    with pytest.raises(InputError, match=r"damaged: it has \(46, "):
        _ = read_folder(tmp_path / "out").vectors
    with pytest.raises(InputError, match="damaged: it has 46 values"):
        _ = read_folder(tmp_path / "out").ids


@pytest.mark.parametrize(
    "change", [{"rows": None}, {"shards": None}, {"shards": [{"file": "x"}]}, {"input": 3}]
)
def test_a_manifest_with_other_content_is_an_error(tmp_path, change):
    encode(tmp_path / "out", rows(ROWS))
    path = tmp_path / "out" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    for act in (lambda: read_folder(tmp_path / "out"), lambda: encode(tmp_path / "out", rows(ROWS))):
        with pytest.raises(InputError, match=r"manifest\.json is damaged"):
            act()
