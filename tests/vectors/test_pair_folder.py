"""Pairs streamed to a folder: the same files for any block size, and after any kill."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gemel.errors import InputError
from gemel.vectors import pairs as folder
from gemel.vectors.pairs import PairFolder, similar_pairs

CHILD = Path(__file__).parents[1] / "support" / "pairs_child.py"
FILES = ["left.npy", "pairs.json", "right.npy", "score.npy"]


def rows(n=300, dim=24):
    return np.random.default_rng(11).normal(size=(n, dim)).astype(np.float32)


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def as_set(pairs):
    return set(zip(pairs.score.tolist(), pairs.left.tolist(), pairs.right.tolist(), strict=True))


def test_a_folder_has_all_pairs_by_position(tmp_path):
    streamed = similar_pairs(rows(), min_score=0.2, out=tmp_path / "pairs")
    assert as_set(streamed) == as_set(similar_pairs(rows(), min_score=0.2))
    position = np.asarray(streamed.left) * 300 + streamed.right
    assert (np.diff(position) > 0).all()
    assert sorted(path.name for path in (tmp_path / "pairs").iterdir()) == FILES
    assert np.load(tmp_path / "pairs" / "score.npy").tolist() == streamed.score.tolist()
    assert streamed.compared == 300 * 299 // 2
    assert streamed.complete


def test_a_folder_of_the_best_pairs_has_the_best_first(tmp_path):
    streamed, kept = similar_pairs(rows(), k=50, out=tmp_path / "pairs"), similar_pairs(rows(), k=50)
    assert streamed.score.tolist() == kept.score.tolist()
    assert streamed.left.tolist() == kept.left.tolist()
    assert streamed.right.tolist() == kept.right.tolist()


def test_a_threshold_that_matches_everything_streams_with_little_memory(tmp_path):
    little = similar_pairs(rows(), min_score=-1, out=tmp_path / "little", memory=200_000)
    much = similar_pairs(rows(), min_score=-1, out=tmp_path / "much")
    assert len(little) == len(much) == 300 * 299 // 2
    assert content(tmp_path / "little") == content(tmp_path / "much")


def test_two_sets_stream_too(tmp_path):
    streamed = similar_pairs(rows(40), other=rows(90), min_score=0.1, out=tmp_path / "pairs")
    assert as_set(streamed) == as_set(similar_pairs(rows(40), other=rows(90), min_score=0.1))


@pytest.mark.parametrize("n", [0, 1, 20])
def test_no_pairs_are_a_finished_folder(tmp_path, n):
    for _ in range(2):
        pairs = similar_pairs(rows(n), min_score=1, out=tmp_path / "pairs")
        assert (len(pairs), pairs.compared, pairs.complete) == (0, n * (n - 1) // 2, True)


@pytest.mark.parametrize("mode", ["best", "every"])
@pytest.mark.parametrize(
    ("moment", "call"),
    [
        ("after-append", 1),
        ("after-append", 3),
        ("half-written", 5),
        ("after-journal", 1),
        ("after-journal", 3),
    ],
)
def test_a_killed_run_resumes_and_leaves_the_same_files(tmp_path, mode, moment, call):
    if mode == "best" and moment == "half-written":
        call = 4
    out, limit = tmp_path / "pairs", {"k": 500} if mode == "best" else {"min_score": 0.2}
    np.save(f"{out}.rows.npy", rows())
    child = subprocess.run([sys.executable, CHILD, out, mode, moment, str(call)], check=False)
    assert child.returncode == -signal.SIGKILL
    assert "pairs.json" not in content(out)
    similar_pairs(rows(), out=out, **limit)
    similar_pairs(rows(), out=tmp_path / "whole", **limit)
    assert content(out) == content(tmp_path / "whole")


def test_a_run_killed_before_its_first_journal_starts_again(tmp_path):
    (tmp_path / "progress.json.tmp").write_text("{")
    assert len(similar_pairs(rows(), k=5, out=tmp_path)) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_a_finished_folder_is_read_and_not_computed_again(tmp_path):
    similar_pairs(rows(), k=5, out=tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(similar_pairs(rows(), k=5, out=tmp_path)) == 5
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("change", "named"), [({"k": 6}, "k"), ({"metric": "dot"}, "metric"), ({"min_score": 0.5}, "min_score")]
)
def test_a_folder_of_another_request_is_refused(tmp_path, change, named):
    similar_pairs(rows(), k=5, out=tmp_path)
    with pytest.raises(InputError, match=f"another request: {named} differ"):
        similar_pairs(rows(), **{"k": 5, **change}, out=tmp_path)


def test_a_folder_of_other_vectors_is_refused(tmp_path):
    similar_pairs(rows(), k=5, out=tmp_path)
    with pytest.raises(InputError, match="another request: vectors differ"):
        similar_pairs(rows(299), k=5, out=tmp_path)


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty and has no pairs of gemel"):
        similar_pairs(rows(), k=5, out=tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def in_the_middle(monkeypatch, act):
    """`act` is done once, after the first block of a run was counted."""
    real, done = PairFolder.append, []

    def append(self, result, next_row):
        real(self, result, next_row)
        if not done:
            done.append(True)
            act()

    monkeypatch.setattr(PairFolder, "append", append)


def test_a_second_run_is_refused_and_spoils_nothing(tmp_path, monkeypatch):
    out, refused = tmp_path / "pairs", []

    def again():
        with pytest.raises(InputError, match=r"another run is writing pairs to .*Wait for it") as error:
            similar_pairs(rows(), min_score=0.2, out=out)
        refused.append(error)

    in_the_middle(monkeypatch, again)
    first = similar_pairs(rows(), min_score=0.2, out=out, memory=40_000)
    assert len(refused) == 1
    assert as_set(first) == as_set(similar_pairs(rows(), min_score=0.2))
    assert len(as_set(first)) == len(first)
    assert sorted(path.name for path in out.iterdir()) == FILES


def test_a_failed_run_releases_its_folder(tmp_path, monkeypatch):
    def fail():
        raise OSError("disk full")

    in_the_middle(monkeypatch, fail)
    with pytest.raises(OSError, match="disk full"):
        similar_pairs(rows(), min_score=0.2, out=tmp_path, memory=40_000)
    assert ".lock" not in content(tmp_path)
    assert len(similar_pairs(rows(), min_score=0.2, out=tmp_path))


def test_the_result_of_a_run_that_ends_meanwhile_is_read(tmp_path, monkeypatch):
    real = folder.lock_folder

    def late(path, busy):
        monkeypatch.setattr(folder, "lock_folder", real)
        similar_pairs(rows(), k=5, out=tmp_path)
        return real(path, busy)

    monkeypatch.setattr(folder, "lock_folder", late)
    assert len(similar_pairs(rows(), k=5, out=tmp_path)) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_leftovers_of_a_killed_run_are_removed_from_a_finished_folder(tmp_path):
    similar_pairs(rows(), k=5, out=tmp_path)
    for name in (".lock", "progress.json", "kept-16.npy"):
        (tmp_path / name).write_text((tmp_path / "pairs.json").read_text())
    assert len(similar_pairs(rows(), k=5, out=tmp_path)) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_a_lock_in_a_folder_of_others_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    (tmp_path / ".lock").write_text("mine too")
    with pytest.raises(InputError, match="is not empty and has no pairs of gemel"):
        similar_pairs(rows(), k=5, out=tmp_path)
    assert (tmp_path / ".lock").read_text() == "mine too"
