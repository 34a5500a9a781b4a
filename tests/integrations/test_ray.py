"""Jobs on Ray without Ray: a fake with random order and lost workers. The real one: test_ray_cluster.py."""

from __future__ import annotations

import filecmp
import json
import random
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gemel
from fake_ray import FakeRay
from gemel.cli.main import main
from gemel.errors import InputError, WorkError
from gemel.files.machine import CoreLimits
from gemel.files.rows import read_rows
from gemel.integrations.ray import cluster as cluster_module
from gemel.integrations.ray.cluster import RayCluster, address_of
from gemel.integrations.ray.encode import ModelOnRay, RowPrefetcher
from gemel.integrations.ray.pairs import (
    InFolder,
    Tile,
    TileStore,
    pairs_on_ray,
    search_on_ray,
    stripes,
    tile_side,
)
from gemel.options import EncodeOptions
from gemel.vectors.pair_scan import PairRequest
from gemel.vectors.pairs import PairFolder
from gemel.vectors.scan.compare import ScanResult
from tiny import tiny_bert

# The tests are about other things than prompts.
pytestmark = pytest.mark.filterwarnings("ignore::gemel.PromptWarning")

WORDS = (
    "the",
    "a",
    "man",
    "cat",
    "dog",
    "is",
    "was",
    "playing",
    "guitar",
    "rain",
    "stock",
    "fell",
    "rose",
    "hello",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("models") / "tiny", prompts={"query": "how do i "})


@pytest.fixture(scope="module")
def here(folder):
    return gemel.load(folder)


@pytest.fixture(scope="module")
def texts():
    chosen = random.Random(0)
    return [" ".join(chosen.choices(WORDS, k=chosen.randint(0, 12))) for _ in range(500)]


@pytest.fixture(scope="module")
def vectors():
    """Many near vectors, many equal ones."""
    rows = np.random.default_rng(0).integers(-2, 3, (1400, 6)).astype(np.float32)
    return rows + np.float32(0.25)


def every(number):
    """Every n-th result is lost with its worker."""
    return lambda ref, count: ref.method == "work" and count % number == 0


def on_fake(folder, ray, block_tokens=64, workers=3):
    checkpoint = gemel.load(folder).checkpoint
    return ModelOnRay(checkpoint, RayCluster(ray, workers, 1), block_tokens=block_tokens)


@pytest.mark.parametrize("dies", [lambda ref, count: False, every(7), every(3)])
def test_vectors_equal_those_of_one_machine_whichever_worker_dies(folder, here, texts, dies):
    ray = FakeRay(dies)
    model = on_fake(folder, ray)
    result, expected = model.encode_report(texts), here.encode_report(texts)
    assert np.array_equal(result.vectors, expected.vectors)
    assert np.array_equal(result.tokens, expected.tokens)
    assert result.duplicates == expected.duplicates
    assert ray.calls > 30


def test_lost_workers_are_replaced_and_counted(folder, texts):
    ray = FakeRay(every(10))
    model = on_fake(folder, ray)
    model.encode(texts)
    summary = model._cluster.summary("encode", len(texts))
    assert summary.workers_lost == ray.started - 3 > 0
    assert summary.retries >= summary.workers_lost
    assert summary.tasks == len(list(model.blocks(dict.fromkeys(texts))))
    assert f"{summary.retries} tasks done again ({summary.workers_lost} workers" in summary.line()
    assert json.loads(json.dumps(summary.to_json()))["rows"] == len(texts)


def test_a_block_that_kills_every_worker_ends_the_job(folder, texts):
    bad = texts[123]
    ray = FakeRay(lambda ref, count: ref.method == "work" and bad in ref.arguments[0])
    with pytest.raises(WorkError, match="lost its worker 4 times"):
        on_fake(folder, ray).encode(texts)


def test_workers_that_never_start_end_the_job(folder, texts):
    ray = FakeRay(lambda ref, count: ref.method == "ready")
    with pytest.raises(WorkError, match="11 workers in a row died before they were ready"):
        on_fake(folder, ray).encode(texts)


def test_the_job_continues_with_the_workers_that_started(folder, here, texts):
    ready = []

    def dies(ref, count):
        if ref.method == "ready":
            ready.append(ref)
        return ref.method == "ready" and len(ready) > 1

    ray = FakeRay(dies)
    assert np.array_equal(on_fake(folder, ray).encode(texts), here.encode(texts))
    assert ray.started <= 3 + 3 * 3


def test_a_machine_with_other_weights_is_refused(folder, texts, tmp_path, monkeypatch):
    other = tiny_bert(tmp_path / "other", seed=1)
    model = on_fake(folder, FakeRay())
    monkeypatch.setattr(model, "_source", on_fake(other, FakeRay())._source)
    with pytest.raises(WorkError, match="would compute other bits"):
        model.encode(texts)


def test_workers_are_told_how_many_cores_they_may_use(folder, texts):
    ray = FakeRay()
    checkpoint = gemel.load(folder).checkpoint
    ModelOnRay(checkpoint, RayCluster(ray, 2, 3), block_tokens=64).encode(texts)
    variables = ray.options["runtime_env"]["env_vars"]
    assert variables == {"GEMEL_THREADS": "3", "RAYON_NUM_THREADS": "3"}


def test_a_cluster_started_here_has_the_cores_that_this_process_may_use(monkeypatch):
    started = []

    def init(**settings):
        started.append(settings)
        if settings["address"] == "auto":
            raise ConnectionError("no cluster runs here")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster_module, "core_limits", lambda: CoreLimits(64, 8, 2.5, 1))
    cluster_module._connect(SimpleNamespace(init=init), None)
    assert [settings.get("num_cpus") for settings in started] == [None, 3]


def test_small_requests_run_locally(folder, here):
    ray = FakeRay()
    assert np.array_equal(on_fake(folder, ray).encode(["a man"]), here.encode(["a man"]))
    assert ray.started == 0


def test_prompts_outputs_and_dims_reach_the_workers(folder, here, texts):
    model = on_fake(folder, FakeRay(every(9)))
    settings = {"prompt_name": "query", "output": "int8", "dim": 16}
    assert np.array_equal(model.encode(texts, **settings), here.encode(texts, **settings))
    assert np.array_equal(model.encode_query(texts), here.encode_query(texts))


def test_long_texts_are_warned_of_or_refused_by_position(folder, texts):
    model = on_fake(folder, FakeRay())
    given = [*texts, "a man " * 100]
    with pytest.warns(gemel.TruncationWarning, match="1 of 501 texts are longer than 64 tokens"):
        model.encode(given)
    with pytest.raises(InputError, match=r"texts\[500\] has 202 tokens"):
        model.encode(given, on_long="error")


# The folder.


def lines(tmp_path, texts, name="in.txt"):
    path = tmp_path / name
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def encoded(model, path, out, rows=37, **options):
    ahead = RowPrefetcher(model, read_rows(path), EncodeOptions(**options))
    fingerprint = {**model.fingerprint.to_json(), "engine": model.kernel}
    gemel.encode_to_folder(ahead, ahead, out, fingerprint=fingerprint, checkpoint_rows=rows)


def same_files(one, two):
    names = sorted(path.name for path in Path(one).iterdir())
    assert names == sorted(path.name for path in Path(two).iterdir())
    _, differ, odd = filecmp.cmpfiles(one, two, names, shallow=False)
    assert (differ, odd) == ([], [])


@pytest.mark.parametrize("rows", [7, 90, 1000])
def test_a_folder_has_the_same_bytes_whichever_worker_dies(folder, here, texts, tmp_path, rows):
    path = lines(tmp_path, texts)
    fingerprint = {**here.fingerprint.to_json(), "engine": here.kernel}
    gemel.encode_to_folder(here, read_rows(path), tmp_path / "one", fingerprint=fingerprint)
    encoded(on_fake(folder, FakeRay(every(5))), path, tmp_path / "two", rows=rows)
    same_files(tmp_path / "one", tmp_path / "two")


def test_an_interrupted_folder_is_resumed_and_only_the_rest_is_encoded(folder, here, texts, tmp_path):
    path = lines(tmp_path, texts)
    fingerprint = {**here.fingerprint.to_json(), "engine": here.kernel}
    gemel.encode_to_folder(here, read_rows(path), tmp_path / "one", fingerprint=fingerprint)
    with pytest.raises(WorkError):
        encoded(on_fake(folder, FakeRay(lambda ref, count: count > 40)), path, tmp_path / "two")
    done = json.loads((tmp_path / "two" / "progress.json").read_text())["rows"]
    assert 0 < done < 500
    model = on_fake(folder, FakeRay())
    encoded(model, path, tmp_path / "two")
    same_files(tmp_path / "one", tmp_path / "two")
    blocks = len(list(model.blocks(texts[done:])))
    assert model._cluster.counts.tasks == blocks


def test_an_empty_file_and_a_bad_row_are_as_on_one_machine(folder, texts, tmp_path):
    model = on_fake(folder, FakeRay())
    with pytest.raises(InputError, match="is empty: there are no rows to read"):
        encoded(model, lines(tmp_path, []), tmp_path / "empty")
    bad = tmp_path / "bad.jsonl"
    bad.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts) + '{"text": 3}\n')
    with pytest.raises(InputError, match=r"bad.jsonl:501: 'text' must be a string"):
        encoded(model, bad, tmp_path / "out")


def test_a_refused_text_is_named_by_its_position_in_the_input(folder, texts, tmp_path):
    path = lines(tmp_path, [*texts[:100], "a man " * 100, *texts[100:]])
    with pytest.raises(InputError) as caught:
        encoded(on_fake(folder, FakeRay()), path, tmp_path / "out", rows=30, on_long="error")
    assert "texts[10] has 202 tokens" in str(caught.value)
    assert "positions count from row 90 of the input" in str(caught.value)


# Pairs.


@pytest.mark.parametrize(("lefts", "rights", "same"), [(1000, 1000, True), (700, 1300, False), (5, 5, True)])
@pytest.mark.parametrize("begin", [0, 3])
def test_tiles_cover_every_pair_once(lefts, rights, same, begin):
    seen = np.zeros((lefts, rights), dtype=int)
    for stripe in stripes(lefts, rights, 128, same=same, begin=begin):
        for tile in stripe:
            seen[tile.top : tile.bottom, tile.first : tile.last] += 1
            mask = np.triu(np.ones_like(seen), 1) if same else np.ones_like(seen)
            assert tile.pairs(same=same) == mask[tile.top : tile.bottom, tile.first : tile.last].sum()
    wanted = np.triu(np.ones_like(seen), 1) if same else np.ones_like(seen)
    assert (seen[begin:][wanted[begin:] == 1] == 1).all()


def test_sides_of_tiles_are_bounded():
    assert tile_side(100, None) == 512
    assert tile_side(100_000, None) == 6250
    assert tile_side(1_000_000, None) == 8192
    assert tile_side(10_000_000, None) == 78_125
    assert tile_side(1_000_000, 1_000_000) == 1000
    assert Tile(0, 5, 5, 10).name == "tile-0-5-5-10.npy"


QUESTIONS = [
    {"k": 1},
    {"k": 200},
    {"k": 50, "min_score": 0.95},
    {"min_score": 0.97},
    {"k": 100, "metric": "euclidean"},
    {"min_score": -2.0, "metric": "manhattan"},
    {"k": 10**9, "min_score": 0.99},
]


def same_pairs(result, expected):
    for name in ("score", "left", "right"):
        assert np.array_equal(getattr(result, name), getattr(expected, name))
    assert result.compared == expected.compared
    assert result.complete and expected.complete


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
@pytest.mark.parametrize("across", [False, True])
def test_pairs_are_those_of_one_machine_to_the_bit(vectors, question, across):
    question = {**question, "other": vectors[:900] + 1} if across else question
    if question.get("k") == 10**9:
        question = {**question, "k": 15_000_000}
    expected = gemel.similar_pairs(vectors, **question)
    result = pairs_on_ray(RayCluster(FakeRay(every(3)), 3, 1), vectors, **question)
    assert len(expected)
    same_pairs(result, expected)


@pytest.mark.parametrize("question", [{"k": 300}, {"min_score": 0.97}, {"k": 40, "min_score": 0.9}], ids=str)
def test_pairs_in_a_folder_are_resumed_after_any_stop_with_the_same_bytes(vectors, question, tmp_path):
    expected = gemel.similar_pairs(vectors, out=tmp_path / "one", **question)
    for stop in (1, 2, 4, 5):
        out = tmp_path / f"stopped-{stop}"
        with pytest.raises(WorkError):
            dies = lambda ref, count, stop=stop: count > 1 + stop  # noqa: E731
            pairs_on_ray(RayCluster(FakeRay(dies), 1, 1), vectors, out=out, **question)
        again = FakeRay()
        result = pairs_on_ray(RayCluster(again, 1, 1), vectors, out=out, **question)
        same_pairs(result, expected)
        same_files(tmp_path / "one", out)


def test_one_machine_resumes_the_folder_of_a_cluster(vectors, tmp_path):
    expected = gemel.similar_pairs(vectors, k=100, out=tmp_path / "one")
    with pytest.raises(WorkError):
        pairs_on_ray(
            RayCluster(FakeRay(lambda ref, count: count > 4), 1, 1), vectors, k=100, out=tmp_path / "two"
        )
    same_pairs(gemel.similar_pairs(vectors, k=100, out=tmp_path / "two"), expected)


def test_little_memory_makes_small_tiles_and_the_same_folder(vectors, tmp_path):
    gemel.similar_pairs(vectors, min_score=0.8, out=tmp_path / "one")
    ray = FakeRay(every(50))
    pairs_on_ray(RayCluster(ray, 2, 1), vectors, min_score=0.8, memory=64 * 5_000, out=tmp_path / "two")
    same_files(tmp_path / "one", tmp_path / "two")
    with pytest.raises(InputError, match="more than 5,000 pairs reach min_score"):
        pairs_on_ray(RayCluster(FakeRay(), 2, 1), vectors, min_score=0.8, memory=64 * 5_000)


def test_errors_are_the_same_as_on_one_machine(vectors):
    cluster = RayCluster(FakeRay(), 2, 1)
    with pytest.raises(InputError, match="similar_pairs needs k"):
        pairs_on_ray(cluster, vectors)
    bad = vectors.copy()
    bad[7, 2] = np.nan
    with pytest.raises(InputError, match="vectors must be finite, but row 7 has NaN"):
        pairs_on_ray(cluster, bad, k=3)
    assert len(pairs_on_ray(cluster, vectors[:1], k=3)) == 0


# Search.


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_hits_are_those_of_one_machine_to_the_bit(vectors, metric):
    ray = FakeRay(every(4))
    result = search_on_ray(RayCluster(ray, 3, 1), vectors, vectors[:800], 9, metric)
    expected = gemel.search(vectors, vectors[:800], 9, metric)
    assert np.array_equal(result.index, expected.index)
    assert np.array_equal(result.score, expected.score)
    assert ray.calls > 10


# The index.


def test_documents_are_encoded_by_workers_and_stored_locally(folder, here, texts, tmp_path):
    model = on_fake(folder, FakeRay(every(6)))
    distinct = list(dict.fromkeys(texts))
    with gemel.open_index(":memory:", model) as one, gemel.open_index(":memory:", here) as two:
        assert one.add(distinct, block=200) == two.add(distinct, block=200)
        answers = one.search_many(distinct[:20], k=3), two.search_many(distinct[:20], k=3)
        assert [[hit.score for hit in answer] for answer in answers[0]] == [
            [hit.score for hit in answer] for answer in answers[1]
        ]
    assert model._cluster.counts.tasks > 10


# The connection.


@pytest.mark.parametrize("wrong", ["dask", "ray:", "ray://", "ray://host", "ray://host:port", "rays://a:1"])
def test_invalid_addresses_are_refused(wrong):
    with pytest.raises(InputError, match="on must be 'ray' or 'ray://host:port'"):
        address_of(wrong)


def test_an_address_is_host_and_port():
    assert address_of("ray") is None
    assert address_of("ray://head:6379") == "head:6379"
    with pytest.raises(InputError, match="is the port of Ray Client"):
        address_of("ray://head:10001")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["encode", "in.txt", "--on", "ray"], "--on ray writes a folder"),
        (
            ["encode", "in.txt", "-o", "out", "--workers", "3"],
            "--workers and --job-summary need a cluster",
        ),
        (["encode", "in.txt", "-o", "out", "--on", "spark"], "on must be 'ray' or"),
        (["pairs", "in.txt", "--on", "ray", "--fast", "5"], "--fast and --on are two ways"),
        (["search", "in.txt", "a", "--on", "ray", "--fast", "5"], "--on compares everything"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(arguments, message, tmp_path, monkeypatch, capfd, folder):
    monkeypatch.chdir(tmp_path)
    lines(tmp_path, ["a man", "a dog"])
    assert main([*arguments, "--model", str(folder)]) == 2
    assert message in capfd.readouterr().err


def test_a_folder_is_filled_by_one_run_at_a_time(vectors, tmp_path, monkeypatch):
    expected, refused = gemel.similar_pairs(vectors, min_score=0.97, out=tmp_path / "one"), []
    real = TileStore.save

    def save(self, tile, result):
        real(self, tile, result)
        for again in (gemel.similar_pairs, partial(pairs_on_ray, RayCluster(FakeRay(), 1, 1))):
            with pytest.raises(InputError, match="another run is writing pairs to") as error:
                again(vectors, min_score=0.97, out=tmp_path / "two")
            refused.append(error)

    monkeypatch.setattr(TileStore, "save", save)
    result = pairs_on_ray(RayCluster(FakeRay(), 1, 1), vectors, min_score=0.97, out=tmp_path / "two")
    assert refused
    same_pairs(result, expected)
    same_files(tmp_path / "one", tmp_path / "two")


def test_closing_a_stripe_loads_no_more_pairs_than_fit(tmp_path, monkeypatch):
    memory, lefts, rights = 64 * 2_000, 40, 600
    request = PairRequest(np.eye(2), None, None, -1.0, "cosine", memory, 1, True, False, tmp_path)
    tiles = stripes(lefts, rights, 40, same=False)[0]
    left, right = (grid.ravel().astype(np.int32) for grid in np.indices((lefts, rights)))
    loaded, real = [], TileStore.load

    def load(self, tile, top, bottom):
        result = real(self, tile, top, bottom)
        loaded.append((top, len(result)))
        return result

    monkeypatch.setattr(TileStore, "load", load)
    with PairFolder(tmp_path, {}) as folder:
        gather = InFolder(request, rights, folder, TileStore(tmp_path), [tiles])
        for tile in tiles:
            mine = (right >= tile.first) & (right < tile.last)
            gather.add(tile, ScanResult(np.zeros(mine.sum(), np.float32), left[mine], right[mine]))
        pairs = gather.pairs(lefts * rights)
    assert np.array_equal(pairs.left, left)
    assert np.array_equal(pairs.right, right)
    together = {top: sum(count for at, count in loaded if at == top) for top, _ in loaded}
    assert max(together.values()) <= request.most_pairs < len(pairs)


class StartedRay(FakeRay):
    """Also records in which folder it was started."""

    started_in = None

    def is_initialized(self):
        return False

    def init(self, **_):
        self.started_in = Path.cwd()
        assert self.started_in.is_dir()

    def shutdown(self):
        assert self.started_in.is_dir(), "workers use it until the end"


@pytest.mark.parametrize("imports_from_there", [False, True])
def test_workers_import_from_the_user_s_folder_only_if_the_program_does(
    tmp_path, monkeypatch, imports_from_there
):
    """Ray puts the folder in which it is started on the path of the workers."""
    ray = StartedRay()
    monkeypatch.setattr(cluster_module, "_ray", lambda: ray)
    monkeypatch.chdir(tmp_path)
    outside = [each for each in sys.path if Path(each).absolute() != tmp_path]
    monkeypatch.setattr(sys, "path", [*outside, *([str(tmp_path)] if imports_from_there else [])])
    with cluster_module.open_cluster():
        assert Path.cwd() == tmp_path
        assert (ray.started_in == tmp_path) == imports_from_there
    assert ray.started_in.is_dir() == imports_from_there


def test_a_cluster_that_cannot_be_joined_leaves_no_folder_behind(tmp_path, monkeypatch):
    ray = StartedRay()
    ray.init = lambda **_: (_ for _ in ()).throw(RuntimeError("no"))
    monkeypatch.setattr(cluster_module, "_ray", lambda: ray)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(WorkError, match="cannot connect to the Ray cluster"), cluster_module.open_cluster():
        pass
    assert list(tmp_path.iterdir()) == []
