"""Runs as a user starts them: learning, resuming, stopping, and what is in the folder afterwards."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import gemel
from gemel.training.journal import read_journal, untimed
from gemel.training.loop import Snapshots, read_snapshot
from gemel.training.run import TrainingRun
from tiny import TEXT, tiny_bert

torch = pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("accelerate", reason="training needs accelerate")

WORDS = TEXT.split()
POINTS = [
    "none",
    "gemel.training.journal/MetricsJournal:write:8",  # between two snapshots
    "gemel.training.loop:sha256_of:2",  # inside the first snapshot
    "gemel.training.loop/Snapshots:write:1",  # right after it
    "gemel.training.bi_encoder/BiEncoderNetwork:write:1",  # after the first better model was written
    "gemel.training.run:publish:1",  # when all is done but the report
]


def table(path, header, rows):
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, delimiter="\t", quoting=csv.QUOTE_NONE, escapechar="\\").writerows([header, *rows])
    return path


def sentence(rng, words=6):
    return " ".join(rng.choice(WORDS, size=words))


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """A tiny model, NLI pairs whose label can be read off them, and scored pairs."""
    folder = tmp_path_factory.mktemp("training")
    rng = np.random.default_rng(0)
    nli, sts = [], []
    for number in range(90):
        left = sentence(rng)
        right = {0: left + " today", 1: left.split()[0] + " " + sentence(rng, 4), 2: sentence(rng)}[
            number % 3
        ]
        nli.append([left, right, ["entailment", "neutral", "contradiction"][number % 3]])
        sts.append([left, right, [5.0, 2.0, 0.0][number % 3]])
    return {
        "model": tiny_bert(folder / "m", normalize=False),
        "nli": table(folder / "nli.tsv", ["premise", "hypothesis", "label"], nli[:60]),
        "sts": table(folder / "sts.tsv", ["sentence1", "sentence2", "score"], sts[:60]),
        "dev": table(folder / "dev.tsv", ["sentence1", "sentence2", "score"], sts[60:]),
    }


def train(paths, out, data="sts", objective="regression", **changes):
    settings = {"max_steps": 8, "batch_size": 8, "learning_rate": 1e-3, "threads": 1, "device": "cpu"}
    return gemel.train(paths["model"], paths[data], objective=objective, out=out, **{**settings, **changes})


def test_training_raises_the_score_and_saves_the_best_model(paths, tmp_path):
    result = train(paths, tmp_path / "out", max_steps=40, eval_data=paths["dev"], eval_steps=10)
    assert result.score > result.untrained + 3
    scores = gemel.evaluate(tmp_path / "out", task="sts", data=paths["dev"])
    assert scores[0].values["spearman"].value == pytest.approx(result.score, abs=0.05)


def test_the_folder_has_the_model_its_card_and_the_run(paths, tmp_path):
    train(paths, tmp_path / "out", eval_data=paths["dev"])
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"modules.json", "model.safetensors", "README.md", "training"} <= files
    kinds = {line["kind"] for line in read_journal(tmp_path / "out" / "training" / "metrics.jsonl")}
    assert {"start", "step", "evaluation", "health", "similarities", "checkpoint", "end"} <= kinds
    report = (tmp_path / "out" / "training" / "report.html").read_text(encoding="utf-8")
    assert "http" not in report.replace("http://www.w3.org", "")
    assert "regression" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


def test_the_classification_head_is_saved_with_its_labels(paths, tmp_path):
    train(paths, tmp_path / "out", data="nli", objective="classification", max_steps=30)
    model = gemel.load(tmp_path / "out")
    assert model.labels == ("entailment", "neutral", "contradiction")
    reason = model.relation(["the cat is sleeping"], ["the cat is sleeping today"])
    assert reason.shape == (1, 3) and reason.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_a_head_has_a_bias_only_if_requested(paths, tmp_path, bias):
    train(paths, tmp_path / "out", data="nli", objective="classification", settings={"bias": bias})
    head = gemel.load(tmp_path / "out").checkpoint.relation
    assert (head.bias is not None) is bias
    assert gemel.load(tmp_path / "out").relation(["the cat"], ["a dog"]).shape == (1, 3)


def test_a_head_of_an_earlier_training_does_not_outlive_it(paths, tmp_path):
    train(paths, tmp_path / "nli", data="nli", objective="classification", max_steps=2)
    gemel.train(tmp_path / "nli", paths["sts"], objective="regression", out=tmp_path / "sts", max_steps=2)
    assert gemel.load(tmp_path / "sts").labels is None


def test_the_same_seed_gives_the_same_bytes(paths, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(paths, tmp_path / name, seed=seed, max_steps=4)
    same, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("b", "c"))
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == same != other


@pytest.fixture(scope="module")
def killed(paths, tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    child = Path(__file__).parents[1] / "support" / "train_child.py"
    arguments = [paths["model"], paths["nli"], paths["dev"], folder, *POINTS]
    ended = subprocess.run(
        [sys.executable, child, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return folder


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the children are forked")
@pytest.mark.parametrize("number", range(1, len(POINTS)), ids=POINTS[1:])
def test_a_killed_and_resumed_run_ends_with_the_same_bytes(killed, number):
    for file in ("model.safetensors", "relation/model.safetensors", "training/best/model.safetensors"):
        assert (killed / str(number) / file).read_bytes() == (killed / "0" / file).read_bytes()
    lines = [untimed(read_journal(killed / run / "training" / "metrics.jsonl")) for run in ("0", str(number))]
    assert lines[0] == lines[1]


def test_a_short_run_is_not_evaluated_after_every_step(paths, tmp_path):
    train(paths, tmp_path / "out", max_steps=30)
    lines = read_journal(tmp_path / "out" / "training" / "metrics.jsonl")
    assert [line["step"] for line in lines if line["kind"] == "health"] == [0, 25, 30]


def test_a_run_is_not_resumed_with_other_settings(paths, tmp_path):
    train(paths, tmp_path / "out", max_steps=4)
    with pytest.raises(gemel.InputError, match="another run: max_steps changed"):
        train(paths, tmp_path / "out", max_steps=6, resume=True)


def test_a_run_of_an_older_version_without_an_option_is_resumed_with_its_default(
    paths, tmp_path, monkeypatch
):
    current = TrainingRun._identity

    def older(self):
        identity = current(self)
        options = {k: v for k, v in identity["options"].items() if k != "encode_repeats"}
        return {**identity, "network": "twin", "options": options}

    with monkeypatch.context() as patch:
        patch.setattr(TrainingRun, "_identity", older)
        train(paths, tmp_path / "out", max_steps=2)
    assert train(paths, tmp_path / "out", max_steps=2, resume=True).steps == 2
    with pytest.raises(gemel.InputError, match="another run: encode_repeats changed"):
        train(paths, tmp_path / "out", max_steps=2, encode_repeats=True, resume=True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pooling": "cls"}, "pooling changed"),
        ({"kind": "cross-encoder"}, "network"),
        ({"eval_data": "sts", "force": True}, "evaluation changed"),
    ],
)
def test_a_run_is_not_resumed_as_another_model_or_evaluated_on_other_data(paths, tmp_path, changes, reason):
    given = {"max_steps": 2, "eval_data": paths["dev"]}
    train(paths, tmp_path / "out", **given)
    changes = {name: paths.get(value, value) for name, value in changes.items()}
    with pytest.raises(gemel.InputError, match=f"another run: {reason}"):
        train(paths, tmp_path / "out", **{**given, **changes}, resume=True)


def test_a_resumed_run_has_the_scores_before_training(paths, tmp_path):
    card = tmp_path / "out" / "README.md"
    for resume in (False, True):
        train(paths, tmp_path / "out", max_steps=4, eval_data=paths["dev"], resume=resume)
        lines = [line for line in card.read_text(encoding="utf-8").splitlines() if line.startswith("| sts")]
        cells = [line.split("|")[4].strip() for line in lines]
        assert cells and all(cell not in ("", "–") for cell in cells)


def test_the_steps_of_a_run_are_counted_once(paths, tmp_path, monkeypatch):
    from gemel.training.sampler import EpochSampler

    epochs, plan = [], EpochSampler.epoch

    def counted(self, number):
        epochs.append(number)
        return plan(self, number)

    monkeypatch.setattr(EpochSampler, "epoch", counted)
    train(paths, tmp_path / "out", max_steps=None, epochs=2)
    assert len(epochs) <= 6


def test_a_folder_that_is_not_empty_is_refused(paths, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(gemel.InputError, match="not empty"):
        train(paths, tmp_path / "out")


def test_a_damaged_snapshot_is_refused_and_the_older_one_still_works(paths, tmp_path):
    out = tmp_path / "out"
    train(paths, out, max_steps=6, checkpoint_steps=3)
    whole = (out / "model.safetensors").read_bytes()
    newest = Snapshots(out / "training" / "snapshots", 2).newest()
    file = newest / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(gemel.WorkError, match=r"damaged.*Remove"):
        train(paths, out, max_steps=6, checkpoint_steps=3, resume=True)
    for path in newest.iterdir():
        path.unlink()
    newest.rmdir()
    train(paths, out, max_steps=6, checkpoint_steps=3, resume=True)
    assert (out / "model.safetensors").read_bytes() == whole


def test_a_full_disk_leaves_the_older_snapshot(tmp_path, monkeypatch):
    snapshots = Snapshots(tmp_path, keep=1)
    snapshots.write(1, {"position": 1}, {"network": {"a": torch.ones(2)}})

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gemel.training.loop.sync_tree", full)
    with pytest.raises(gemel.WorkError, match=r"No space left.*step-00000001"):
        snapshots.write(2, {"position": 2}, {"network": {"a": torch.ones(2)}})
    assert read_snapshot(snapshots.newest()).state["position"] == 1


def test_a_collapse_stops_the_run_and_says_what_to_try(paths, tmp_path):
    with pytest.raises(gemel.WorkError, match="learning_rate") as error:
        train(paths, tmp_path / "out", max_steps=200, learning_rate=50.0, clip=0.0, eval_steps=10)
    assert "\n" not in str(error.value)
    assert (tmp_path / "out" / "training" / "report.html").exists()


def test_patience_ends_a_run_that_gets_no_better(paths, tmp_path):
    given = {
        "max_steps": 60,
        "learning_rate": 1e-9,
        "eval_data": paths["dev"],
        "eval_steps": 2,
        "patience": 2,
    }
    result = train(paths, tmp_path / "out", **given)
    assert result.steps < 60 and result.stopped
    assert train(paths, tmp_path / "out", **given, resume=True).steps == result.steps


def test_matryoshka_trains_short_vectors_too(paths, tmp_path):
    train(paths, tmp_path / "out", matryoshka=(8, 16), max_steps=3)
    assert gemel.load(tmp_path / "out").encode(["hello"], dim=8).shape == (1, 8)


@pytest.mark.parametrize(
    "changes",
    [
        {"accumulate": 2},
        {"cache_texts": 3},
        {"gradient_checkpointing": True},
        {"freeze_layers": 1},
        {"schedule": "cosine", "warmup": 0.5},
        {"pooling": "max"},
        {"weight_decay": 0.01},
        {"warmup_from_zero": True, "warmup": 0.5},
        {"clip_head": False},
        {"encode_repeats": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_every_option_trains(paths, tmp_path, changes):
    assert train(paths, tmp_path / "out", max_steps=3, **changes).steps == 3
    assert gemel.load(tmp_path / "out").encode(["hello"]).shape == (1, 32)


def test_the_head_has_its_own_learning_rate(paths, tmp_path):
    request = {"data": "nli", "objective": "classification", "max_steps": 2, "warmup": 0.0}
    heads = {}
    for rate in (None, 1e-3, 1e-1):
        train(paths, tmp_path / str(rate), head_learning_rate=rate, **request)
        network = gemel.load(tmp_path / str(rate)).encode(["hello"])
        heads[rate] = load_file(tmp_path / str(rate) / "relation" / "model.safetensors")["weight"], network
    np.testing.assert_array_equal(heads[None][0], heads[1e-3][0])
    np.testing.assert_array_equal(heads[None][1], heads[1e-3][1])
    assert np.abs(heads[1e-1][0] - heads[None][0]).max() > 1e-2


def test_a_learning_rate_of_a_head_that_is_not_there_is_refused(paths, tmp_path):
    with pytest.raises(gemel.InputError, match="head_learning_rate is for an objective with weights"):
        train(paths, tmp_path / "out", head_learning_rate=1e-3)


def test_lora_is_merged_when_saved(paths, tmp_path):
    pytest.importorskip("peft", reason="LoRA needs peft")
    train(paths, tmp_path / "out", lora_rank=2, max_steps=5)
    before, after = (gemel.load(path).encode(["the cat"]) for path in (paths["model"], tmp_path / "out"))
    assert np.abs(before - after).max() > 1e-5


def test_a_cross_encoder_is_trained_scored_and_loaded(paths, tmp_path):
    out = tmp_path / "out"
    result = train(paths, out, kind="cross-encoder", max_steps=30, eval_data=paths["dev"], eval_steps=10)
    assert result.score is not None
    assert gemel.load_cross(out).scores(["the cat"], ["the cat today"]).shape == (1,)
    scores = gemel.evaluate(out, task="sts", data=paths["dev"])
    assert scores[0].values["spearman"].value == pytest.approx(result.score, abs=0.05)


def test_a_cross_encoder_of_labels_is_trained_and_loaded(paths, tmp_path):
    train(paths, tmp_path / "out", data="nli", objective="classification", kind="cross-encoder", max_steps=4)
    model = gemel.load_cross(tmp_path / "out")
    assert model.labels == ("entailment", "neutral", "contradiction")
    assert model.probabilities(["the cat"], ["the cat today"]).shape == (1, 3)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "probabilities(" in card and "scores(" not in card


def test_an_unknown_option_is_refused_with_the_available_ones(paths, tmp_path):
    with pytest.raises(gemel.InputError, match="unknown option 'batchsize'"):
        train(paths, tmp_path / "out", batchsize=4)


def test_sentence_transformers_reads_what_was_trained(paths, tmp_path):
    st = pytest.importorskip("sentence_transformers", reason="compares with sentence-transformers")
    train(paths, tmp_path / "out", data="nli", objective="classification", max_steps=3)
    texts = ["the cat is sleeping", "hello world"]
    theirs = st.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(texts)
    np.testing.assert_allclose(gemel.load(tmp_path / "out").encode(texts), theirs, atol=1e-5)


def test_the_options_are_saved(paths, tmp_path):
    train(paths, tmp_path / "out", max_steps=2)
    written = json.loads((tmp_path / "out" / "training" / "options.json").read_text())
    assert written["options"]["max_steps"] == 2 and written["request"]["objective"] == "regression"


def test_data_in_memory_is_not_saved(paths, tmp_path):
    rows = [{"sentence1": "the cat", "sentence2": f"a dog {n}", "score": n / 10} for n in range(10)]
    gemel.train(paths["model"], rows, objective="regression", out=tmp_path / "out", max_steps=2, threads=1)
    written = json.loads((tmp_path / "out" / "training" / "options.json").read_text())
    assert written["request"]["data"] == "list in memory"


def test_a_guide_encodes_each_distinct_text_once_and_its_vectors_reach_the_objective(
    paths, tmp_path, monkeypatch
):
    from gemel.model import Model
    from gemel.training.objectives.in_batch_ranking import InBatchRanking

    encoded, labels = [], []
    encode, call = Model.encode, InBatchRanking.__call__
    monkeypatch.setattr(
        Model, "encode", lambda self, texts, **how: encoded.extend(texts) or encode(self, texts, **how)
    )
    monkeypatch.setattr(
        InBatchRanking,
        "__call__",
        lambda self, vectors, label, weights=None: labels.append(label) or call(self, vectors, label),
    )
    words = ("man", "cat", "dog", "rain")
    rows = [
        (f"the {word} is here", f"a {word}", "hello" if row < 2 else "today")
        for row, word in enumerate(words)
    ]
    settings = {"guide": str(paths["model"]), "guide_margin": 0.1}
    request = {
        "objective": "in-batch-ranking",
        "settings": settings,
        "batch_size": 2,
        "max_steps": 2,
        "threads": 1,
    }
    gemel.train(paths["model"], rows, out=tmp_path / "out", force=True, **request)
    assert sorted(encoded) == sorted({text for row in rows for text in row})
    assert [tuple(label.shape) for label in labels] == [(2, 3, 32)] * 2
    model = gemel.load(paths["model"])
    expected = encode(model, ["hello", "today"])
    negatives = labels[0][:, 2].numpy()  # a batch has no text twice
    np.testing.assert_allclose(np.sort(negatives, axis=0), np.sort(expected, axis=0), atol=1e-6)


def test_a_run_with_another_guide_is_not_resumed(paths, tmp_path):
    rows = [(f"the {word} is here", f"a {word}") for word in ("man", "cat", "dog", "rain")]
    request = {"objective": "in-batch-ranking", "batch_size": 2, "max_steps": 2, "threads": 1, "force": True}
    guides = [paths["model"], tiny_bert(tmp_path / "other", seed=5)]
    train = [{"settings": {"guide": str(guide)}, **request} for guide in guides]
    gemel.train(paths["model"], rows, out=tmp_path / "out", **train[0])
    with pytest.raises(gemel.InputError, match="settings, data changed"):
        gemel.train(paths["model"], rows, out=tmp_path / "out", resume=True, **train[1])
