"""A static student of any model, made without torch."""

import subprocess
import sys

import numpy as np
import pytest

import gemel
from gemel.errors import InputError
from gemel.evaluation.metrics import spearman
from gemel.training.distill.methods import widest_directions
from gemel.training.distill.static_table import fit_table, make_static, token_weights
from gemel.vectors.similarity import scores
from tiny import TEXT, tiny_bert, tiny_checkpoint


def some_texts(count, seed=0):
    random, words = np.random.default_rng(seed), TEXT.split()
    return [" ".join(random.choice(words, random.integers(2, 9))) for _ in range(count)]


def agreement(teacher, student, texts):
    upper = np.triu_indices(len(texts), 1)
    return spearman(
        *(scores(model.encode(texts), model.encode(texts))[upper] for model in (teacher, student))
    )


@pytest.fixture
def teacher(tmp_path):
    return gemel.load(tiny_bert(tmp_path / "teacher"))


def test_a_static_student_is_a_model_that_agrees_with_its_teacher(tmp_path, teacher):
    student = gemel.load(make_static(teacher, dim=16, out=tmp_path / "student"))
    assert (student.engine_name, student.dim, student.max_length) == ("static", 16, None)
    np.testing.assert_allclose(np.linalg.norm(student.encode(["the cat"]), axis=1), 1, atol=1e-6)
    assert agreement(teacher, student, some_texts(60)) > 0.2


def test_fitting_to_texts_makes_it_agree_more_on_other_texts(tmp_path, teacher):
    plain = gemel.load(make_static(teacher, dim=32, out=tmp_path / "plain"))
    fitted = gemel.load(make_static(teacher, some_texts(400), dim=32, out=tmp_path / "fitted"))
    texts = some_texts(60, seed=1)
    assert agreement(teacher, fitted, texts) > agreement(teacher, plain, texts) + 0.1


def test_two_runs_give_the_same_bytes(tmp_path, teacher):
    texts = some_texts(50)
    one, two = (make_static(teacher, texts, dim=8, out=tmp_path / name) for name in "ab")
    read = [(path / "0_StaticEmbedding" / "model.safetensors").read_bytes() for path in (one, two)]
    assert read[0] == read[1]


def test_dimensions_are_limited_to_those_of_the_teacher(tmp_path, teacher):
    assert gemel.load(make_static(teacher, dim=4096, out=tmp_path / "s")).dim == teacher.dim


def test_pieces_inside_a_word_get_vectors_of_their_own(tmp_path, teacher):
    student = gemel.load(make_static(teacher, dim=16, out=tmp_path / "s"))
    states = student.tokens(["playing playing"])[0]
    assert "playing" in states.tokens
    inner = student.tokens(["guitars"])[0]
    assert inner.tokens[-1] == "##s"
    assert np.abs(inner.vectors[-1]).max() > 0


def test_a_student_without_a_folder_is_made_once_and_cached(tmp_path, teacher, monkeypatch):
    monkeypatch.setenv("GEMEL_CACHE", str(tmp_path / "cache"))
    first = make_static(teacher, dim=8)
    changed = (first / "modules.json").stat().st_mtime_ns
    assert make_static(teacher, dim=8) == first
    assert (first / "modules.json").stat().st_mtime_ns == changed
    assert len({first, make_static(teacher, dim=4), make_static(teacher, ["the cat"], dim=8)}) == 3
    assert gemel.load(first).dim == 8


@pytest.mark.parametrize("model_type", ["roberta", "distilbert", "modernbert"])
def test_other_architectures_have_students_too(tmp_path, model_type):
    pytest.importorskip("transformers", reason="makes the tiny model")
    teacher = gemel.load(tiny_checkpoint(tmp_path / "t", model_type))
    assert (
        agreement(teacher, gemel.load(make_static(teacher, dim=16, out=tmp_path / "s")), some_texts(40)) > 0
    )


def test_invalid_requests_for_a_student_are_refused(tmp_path, teacher):
    static = make_static(teacher, dim=8, out=tmp_path / "s")
    with pytest.raises(InputError, match="is a static model already"):
        make_static(static, dim=4, out=tmp_path / "again")
    with pytest.raises(InputError, match="is not empty"):
        make_static(teacher, dim=4, out=static)
    with pytest.raises(InputError, match="dim must be a whole number"):
        make_static(teacher, dim=0, out=tmp_path / "x")
    with pytest.raises(InputError, match="no texts to fit"):
        make_static(teacher, [], out=tmp_path / "x")


def test_torch_is_not_loaded(tmp_path, teacher):
    code = (
        "import sys; sys.modules['torch'] = None; from gemel.training.distill.static_table import make_static; "
        f"make_static({str(teacher.checkpoint.folder)!r}, ['the cat', 'a dog'], dim=4, out={str(tmp_path / 's')!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_student_is_the_same_in_sentence_transformers(tmp_path, teacher):
    theirs = pytest.importorskip(
        "sentence_transformers", reason="sentence-transformers, which would read the folder, is not installed"
    )
    folder = make_static(teacher, some_texts(50), dim=16, out=tmp_path / "s")
    texts = ["the cat is sleeping", "guitars", "a man"]
    model = theirs.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(model.encode(texts), gemel.load(folder).encode(texts), atol=1e-6)


def test_a_fitted_table_is_the_ridge_solution():
    random = np.random.default_rng(0)
    texts = [random.integers(0, 30, random.integers(0, 60)).astype(np.int32) for _ in range(80)]
    table = random.normal(size=(31, 3)).astype(np.float32)
    targets = random.normal(size=(80, 3)).astype(np.float32)
    means = np.array([np.bincount(ids, minlength=31) / max(len(ids), 1) for ids in texts])
    filled = means.sum(axis=1) > 0
    design, wanted = means[filled], targets[filled]
    expected = table + np.linalg.solve(
        design.T @ design + 0.5 * np.eye(31), design.T @ (wanted - design @ table)
    )
    np.testing.assert_allclose(fit_table(table, texts, targets, ridge=0.5, rounds=200), expected, atol=5e-3)
    np.testing.assert_array_equal(fit_table(table, [np.empty(0, np.int32)], targets[:1]), table)


def test_a_projection_keeps_the_cosines_of_vectors_that_lie_in_a_plane():
    random = np.random.default_rng(0)
    flat = (random.normal(size=(20, 2)) @ random.normal(size=(2, 9))).astype(np.float32)
    result = widest_directions(flat, 2)
    np.testing.assert_allclose(scores(result.apply(flat), result.apply(flat)), scores(flat, flat), atol=1e-5)
    assert result.kept == pytest.approx(1)


def test_frequent_tokens_count_less():
    assert (np.diff(token_weights(50)) > 0).all()
    counted = token_weights(3, np.array([0, 0, 1000]))
    assert counted[2] < counted[1]
