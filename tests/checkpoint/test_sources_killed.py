"""Pulls that are killed at every step, and pulls that run at the same time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.checkpoint.test_sources import KEPT, kept, make_wheel

from gemel.checkpoint import cache, sources, wheels

pytestmark = pytest.mark.skipif(os.name == "nt", reason="SIGKILL is of POSIX")

POINTS = ("downloading", "first file", "third file", "half a file", "synced", "moving", "moved")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def child(folder: str, point: str) -> None:
    """In a separate process: pull the tiny model and be killed at `point`."""
    wheel, row = make_wheel(Path(folder))
    wheels.CARRIED.clear()
    wheels.CARRIED["tiny"] = row
    copy, move, seen = wheels._copy_checked, cache._move, []

    def download(_row: wheels.Carried, scratch: Path) -> Path:
        target = scratch / wheel.name
        target.write_bytes(wheel.read_bytes()[: 1000 if point == "downloading" else None])
        if point == "downloading":
            die()
        return target

    def copying(source, target, file, label):  # type: ignore[no-untyped-def]
        seen.append(label)
        if point == "half a file" and len(seen) == 2:
            target.write_bytes(source.read(file.size // 2))
            die()
        copy(source, target, file, label)
        if (point, len(seen)) in (("first file", 1), ("third file", 3)):
            die()

    def moving(source: Path, target: Path) -> None:
        if point == "synced":
            die()
        if point == "moving":
            source.rename(target)
            die()
        move(source, target)
        if point == "moved":
            die()

    wheels.download, wheels._copy_checked, cache._move = download, copying, moving  # type: ignore[assignment]
    print(sources.pull("tiny"))


def start(folder: Path, home: Path, point: str) -> subprocess.Popen[str]:
    here = Path(__file__).parents[1]
    paths = [str(here.parent), str(here.parent / "src"), str(here / "support")]
    code = f"from tests.checkpoint.test_sources_killed import child; child({str(folder)!r}, {point!r})"
    environment = {**os.environ, "GEMEL_CACHE": str(home), "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_pull_killed_at_any_point_leaves_no_partial_model_and_the_next_one_works(tmp_path):
    runs = [
        (point, tmp_path / f"{n}", start(tmp_path / f"{n}", tmp_path / f"{n}" / "cache", point))
        for n, point in enumerate(POINTS)
    ]
    for point, folder, process in runs:
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, point
        models = folder / "cache" / "models"
        visible = [path for path in models.iterdir() if not path.name.startswith(".")]
        assert bool(visible) == (point in ("moving", "moved")), point
        for path in visible:
            assert kept(path) == sorted(KEPT), point
    again = [(point, start(folder, folder / "cache", "")) for point, folder, _ in runs]
    for point, process in again:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, f"{point}: {err}"
        assert kept(Path(out.strip())) == sorted(KEPT), point


def test_leftovers_of_a_killed_pull_are_gone_a_day_later(tmp_path, monkeypatch):
    process = start(tmp_path, tmp_path / "cache", "third file")
    process.communicate(timeout=60)
    monkeypatch.setenv("GEMEL_CACHE", str(tmp_path / "cache"))
    (left,) = cache.models_folder().iterdir()
    cache.clean_leftovers()
    assert left.exists()
    os.utime(left, (0, 0))
    cache.clean_leftovers()
    assert not left.exists()


@pytest.mark.slow
def test_concurrent_pulls_all_succeed(tmp_path):
    home = tmp_path / "cache"
    processes = [start(tmp_path / str(number), home, "") for number in range(4)]
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert out.strip() == str(home / "models" / "tiny")
    assert kept(home / "models" / "tiny") == sorted(KEPT)
    assert [path.name for path in (home / "models").iterdir()] == ["tiny"]
