"""The classification head of a model: read, written, left out where it does not fit, and used on texts."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

import gemel
from gemel.checkpoint.folder import read_checkpoint
from gemel.checkpoint.head import (
    ClassificationHead,
    Dense,
    parse_concat,
    read_classification_head,
    write_classification_head,
)
from gemel.checkpoint.write import write_checkpoint
from gemel.cli.verbs import models
from gemel.encoder.head import classification_probabilities
from gemel.errors import InputError, ModelError
from gemel.texts.whitening import save_postprocessed
from tiny import tiny_bert

LABELS = ("entailment", "neutral", "contradiction")
LEFT = ["a man is playing a guitar", "hello world", "the cat is sleeping"]
RIGHT = ["a man is playing", "the stock market fell", "the cat is sleeping"]


def head(dim=32, concat="u,v,|u-v|", *, bias=False, labels=LABELS, seed=0):
    random = np.random.default_rng(seed)
    width = dim * len(parse_concat(concat))
    weight = random.normal(size=(len(labels), width)).astype(np.float32)
    return ClassificationHead(
        concat, weight, random.normal(size=len(labels)).astype(np.float32) if bias else None, labels
    )


def by_hand(kept, u, v):
    parts = {"u": u, "v": v, "|u-v|": abs(u - v), "u*v": u * v}
    joined = np.concatenate([parts[name] for name in parse_concat(kept.concat)], axis=1).astype(np.float64)
    raised = np.exp(joined @ kept.weight.T.astype(np.float64) + (0 if kept.bias is None else kept.bias))
    return raised / raised.sum(axis=1, keepdims=True)


def vectors(rows, dim=32, seed=1):
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


@pytest.fixture
def folder(tmp_path):
    """A tiny model with a classification head."""
    plain = read_checkpoint(tiny_bert(tmp_path / "plain"))
    return write_checkpoint(plain, tmp_path / "kept", relation=head(bias=True))


# Arithmetic


@pytest.mark.parametrize("concat", ["u,v,|u-v|", "|u-v|,u*v", "u,v", "|u-v|", "u, v, |u-v|, u*v"])
@pytest.mark.parametrize("bias", [True, False])
def test_probabilities_are_the_softmax_over_the_joined_parts(concat, bias):
    kept, u, v = head(8, concat, bias=bias), vectors(5, 8), vectors(5, 8, seed=2)
    result = classification_probabilities(kept, u, v)
    assert result.dtype == np.float32
    assert np.allclose(result, by_hand(kept, u, v), atol=1e-6)
    assert np.allclose(result.sum(axis=1), 1)


def test_a_pair_has_the_same_bits_alone_and_among_thousands():
    kept, u, v = head(48, bias=True), vectors(5000, 48), vectors(5000, 48, seed=2)
    together = classification_probabilities(kept, u, v)
    for row in (0, 2047, 2048, 4999):
        assert np.array_equal(
            classification_probabilities(kept, u[row : row + 1], v[row : row + 1])[0], together[row]
        )
    assert np.array_equal(classification_probabilities(kept, u[3:10], v[3:10]), together[3:10])


def test_large_numbers_do_not_overflow():
    result = classification_probabilities(head(4), 1e4 * vectors(3, 4), 1e4 * vectors(3, 4, seed=2))
    assert np.isfinite(result).all()


def test_no_pairs_have_no_rows():
    assert classification_probabilities(head(4), np.zeros((0, 4)), np.zeros((0, 4))).shape == (0, 3)


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (vectors(2, 8), vectors(3, 8), "left has 2 rows but right has 3"),
        (vectors(2, 8), vectors(2, 7), "have 8 dimensions but rows of right have 7"),
        (vectors(2, 7), vectors(2, 7), "have 7 dimensions, the classification head takes 8"),
        (np.full((1, 8), np.nan), vectors(1, 8), "left must be finite"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(left, right, message):
    with pytest.raises(InputError, match=message):
        classification_probabilities(head(8), left, right)


# In the folder of a model


@pytest.mark.parametrize("bias", [True, False])
def test_a_head_is_read_as_it_was_written(tmp_path, bias):
    kept = head(bias=bias, labels=("ja", "nein", "日本"))
    write_classification_head(kept, tmp_path)
    again = read_classification_head(tmp_path)
    assert (again.concat, again.labels, again.dim) == (kept.concat, kept.labels, 32)
    assert np.array_equal(again.weight, kept.weight)
    assert (again.bias is None) == (not bias)
    assert not bias or np.array_equal(again.bias, kept.bias)


def test_a_model_without_a_head_has_none(tmp_path):
    model = gemel.load(tiny_bert(tmp_path / "plain"))
    assert model.checkpoint.relation is None
    assert model.labels is None
    with pytest.raises(
        InputError, match=r"has no classification head. Train one with --objective classification"
    ):
        model.relation(LEFT, RIGHT)
    with pytest.raises(InputError, match="has no classification head"):
        model.relation_of(vectors(1), vectors(1))


def test_other_programs_do_not_see_the_head(folder, tmp_path):
    bare = write_checkpoint(read_checkpoint(tmp_path / "plain"), tmp_path / "bare")
    assert (folder / "modules.json").read_text() == (bare / "modules.json").read_text()
    assert sorted(path.name for path in (folder / "relation").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


def test_vectors_and_their_fingerprint_do_not_depend_on_the_head(folder, tmp_path):
    plain, kept = gemel.load(tmp_path / "plain"), gemel.load(folder)
    assert np.array_equal(plain.encode(LEFT), kept.encode(LEFT))
    assert plain.fingerprint == kept.fingerprint


def test_sentence_transformers_loads_a_model_that_keeps_a_head(folder):
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    theirs = library.SentenceTransformer(str(folder), device="cpu").encode(LEFT)
    assert np.allclose(theirs, gemel.load(folder).encode(LEFT), atol=1e-5)


def spoil_config(folder, **changes):
    path = folder / "relation" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def spoil_weights(folder, **tensors):
    save_file(tensors, folder / "relation" / "model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: spoil_config(folder, concat="u,w"), "unknown part 'w'"),
        (lambda folder: spoil_config(folder, concat=None), "unknown part 'None'"),
        (lambda folder: spoil_config(folder, labels="abc"), "'labels' must be a list of names"),
        (lambda folder: spoil_config(folder, labels=["a", "b", 3]), "'labels' must be a list of names"),
        (lambda folder: spoil_config(folder, labels=["a", "b", "b"]), "two or more different labels"),
        (lambda folder: spoil_config(folder, labels=["a", "b"]), "do not fit 2 labels"),
        (lambda folder: spoil_weights(folder, other=vectors(3)), "needs the tensor 'weight', found other"),
        (lambda folder: spoil_weights(folder, weight=vectors(3, 95)), "do not fit 3 labels"),
        (lambda folder: spoil_weights(folder, weight=np.zeros(3, np.float32)), "do not fit 3 labels"),
        (
            lambda folder: spoil_weights(folder, weight=vectors(3, 96), bias=np.zeros(2, np.float32)),
            "do not fit",
        ),
        (
            lambda folder: spoil_weights(folder, weight=np.full((3, 96), np.inf, np.float32)),
            "NaN or infinite",
        ),
        (lambda folder: (folder / "relation" / "model.safetensors").unlink(), "no weights in"),
        (lambda folder: (folder / "relation" / "config.json").write_text("{"), "is not valid JSON"),
        (lambda folder: (folder / "relation" / "model.safetensors").write_bytes(b"1"), "is not a complete"),
    ],
)
def test_a_damaged_head_is_refused_when_the_model_is_read(folder, spoil, message):
    spoil(folder)
    with pytest.raises(ModelError, match=message):
        read_checkpoint(folder)


def test_a_head_that_does_not_fit_together_is_not_written(tmp_path):
    with pytest.raises(InputError, match="do not fit 2 labels"):
        write_classification_head(replace(head(), labels=("a", "b")), tmp_path)
    assert not any(tmp_path.iterdir())
    checkpoint = read_checkpoint(tiny_bert(tmp_path / "one"))
    with pytest.raises(InputError, match="takes vectors of 16 numbers, the model's have 32"):
        write_checkpoint(checkpoint, tmp_path / "two", relation=head(16))
    assert not (tmp_path / "two").exists()


def test_a_head_for_vectors_of_another_size_is_left_out_with_a_note(tmp_path):
    folder = tiny_bert(tmp_path / "one")
    write_classification_head(head(16), folder)
    checkpoint = read_checkpoint(folder)
    assert checkpoint.relation is None
    assert checkpoint.notes == (
        "the classification head takes vectors of 16 numbers, the model's have 32: left out",
    )


# Kept or not


def test_saving_keeps_the_head(folder, tmp_path):
    gemel.load(folder).save(tmp_path / "again")
    assert gemel.load(tmp_path / "again").labels == LABELS
    assert np.array_equal(
        gemel.load(tmp_path / "again").relation(LEFT, RIGHT), gemel.load(folder).relation(LEFT, RIGHT)
    )


def test_a_new_head_replaces_the_old(folder, tmp_path):
    new = head(labels=("yes", "no"))
    write_checkpoint(read_checkpoint(folder), tmp_path / "two", relation=new)
    assert gemel.load(tmp_path / "two").labels == ("yes", "no")


def test_a_model_whose_vectors_change_drops_its_head(folder, tmp_path):
    checkpoint = read_checkpoint(folder)
    layer = Dense(np.eye(32, dtype=np.float32), None, "identity")
    changes = [
        {"dense": [layer]},
        {"normalize": False},
        {"weights": {name: np.array(tensor) for name, tensor in checkpoint.weights.items()}},
    ]
    for number, change in enumerate(changes):
        out = write_checkpoint(checkpoint, tmp_path / str(number), **change)
        assert read_checkpoint(out).relation is None
        assert not (out / "relation").exists()
    out = write_checkpoint(checkpoint, tmp_path / "same", normalize=True)
    assert read_checkpoint(out).relation.labels == LABELS


def test_post_processing_drops_the_head(folder, tmp_path):
    save_postprocessed(gemel.load(folder), [*LEFT, *RIGHT], tmp_path / "white", method="centering")
    assert gemel.load(tmp_path / "white").labels is None


def test_another_pooling_drops_the_head(folder):
    assert gemel.load(folder, pooling="mean").labels == LABELS
    assert gemel.load(folder, pooling="cls").labels is None


# On texts


def test_relation_is_the_head_on_what_encode_gives(folder):
    model = gemel.load(folder)
    assert model.labels == LABELS
    result = model.relation(LEFT, RIGHT)
    assert result.shape == (3, 3)
    assert np.array_equal(result, model.relation_of(model.encode(LEFT), model.encode(RIGHT)))
    kept = model.checkpoint.relation
    assert np.allclose(result, by_hand(kept, model.encode(LEFT), model.encode(RIGHT)), atol=1e-5)
    assert np.array_equal(model.relation(LEFT[1:2], RIGHT[1:2], threads=1)[0], result[1])
    assert model.relation([], []).shape == (0, 3)


def test_a_model_without_normalization_passes_plain_vectors_to_its_head(tmp_path):
    plain = read_checkpoint(tiny_bert(tmp_path / "plain", normalize=False))
    model = gemel.load(write_checkpoint(plain, tmp_path / "kept", relation=head()))
    u, v = model.encode(LEFT), model.encode(RIGHT)
    assert not np.allclose(np.linalg.norm(u, axis=1), 1)
    assert np.allclose(model.relation(LEFT, RIGHT), by_hand(head(), u, v), atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "changes", "message"),
    [
        ((LEFT, RIGHT), {"dim": 8}, "relation takes no dim"),
        ((LEFT, RIGHT), {"output": "int8"}, "relation takes no output"),
        ((LEFT, RIGHT), {"normalize": False}, "relation takes no normalize"),
        ((LEFT, RIGHT[:2]), {}, "left has 3 texts but right has 2"),
        ((LEFT[0], RIGHT[0]), {}, "one string"),
        ((LEFT, RIGHT), {"color": "red"}, "unknown option 'color'"),
    ],
)
def test_a_wrong_request_is_refused(folder, arguments, changes, message):
    with pytest.raises(InputError, match=message):
        gemel.load(folder).relation(*arguments, **changes)


def test_models_show_prints_the_labels(folder, monkeypatch):
    shown = CliRunner().invoke(models.command, ["show", str(folder)], catch_exceptions=False)
    assert json.loads(shown.stdout)["labels"] == list(LABELS)
    monkeypatch.setattr(models, "_wants_json", lambda as_json: as_json)
    shown = CliRunner().invoke(models.command, ["show", str(folder)], catch_exceptions=False)
    assert any(line.split(maxsplit=1) == ["labels", ", ".join(LABELS)] for line in shown.stdout.splitlines())
