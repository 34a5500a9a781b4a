"""Students of tiny teachers: what they learn, what is saved, what is refused."""

import json

import numpy as np
import pytest

import gemel
from gemel.checkpoint.folder import read_checkpoint
from gemel.cli.main import main
from gemel.errors import InputError
from gemel.texts.whitening import save_postprocessed
from gemel.training.distill.methods import chosen_layers, keep_layers, label_pairs
from gemel.training.distill.teacher import propose_pairs, split_rows
from gemel.training.journal import read_journal
from tiny import TEXT, tiny_bert, tiny_checkpoint
from tiny_cross import tiny_cross

pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("accelerate", reason="training needs accelerate")

WORDS = TEXT.split()
FAST = {"learning_rate": 2e-3, "batch_size": 32, "device": "cpu", "threads": 1}


def some_texts(count, seed=0):
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(2, 9))) for _ in range(count)]


def written(path, texts):
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distill")
    save_postprocessed(  # centered: to a random network all texts are similar
        gemel.load(tiny_bert(folder / "crowded", layers=3)),
        some_texts(200, 5),
        folder / "teacher",
        method="centering",
    )
    tiny_bert(folder / "shallow", layers=1)
    tiny_bert(folder / "student", layers=1, width=16, seed=1)
    tiny_cross(folder / "cross")
    written(folder / "texts.txt", some_texts(240))
    return folder


class FakeTeacher:
    """Scores a pair by the length of its texts, and counts the pairs."""

    name = identity = scale = "fake"
    files = ()

    def __init__(self):
        self.scored = 0

    def scores(self, left, right):
        self.scored += len(left)
        return np.array([1 / (1 + len(a) + len(b)) for a, b in zip(left, right, strict=True)], np.float32)


# Pairs.


@pytest.mark.parametrize("teacher", ["teacher", "cross"])
def test_a_student_learns_the_scores_of_pairs_that_a_teacher_labels(tmp_path, workspace, teacher):
    result = gemel.distill(
        workspace / teacher,
        workspace / "texts.txt",
        out=tmp_path / "out",
        how="pairs",
        student=workspace / "student",
        epochs=2,
        **FAST,
    )
    assert result.held_out
    if teacher == "teacher":  # no cosine can fit the scores of a random cross-encoder
        assert result.after.all > result.before.all + 5
    assert gemel.load(tmp_path / "out").dim == 16
    rows = [json.loads(line) for line in (tmp_path / "out/distillation/pairs.jsonl").read_text().splitlines()]
    assert f"{len(rows):,} pairs" == result.learnt_from
    scores = np.array([row["score"] for row in rows])
    assert scores.std() > 0.01
    assert result.teacher.unit == ("pairs" if teacher == "cross" else "texts")
    assert (
        json.loads((tmp_path / "out/distillation/result.json").read_text())["after"]["all"]
        == result.after.all
    )
    assert "## Distillation" in (tmp_path / "out/README.md").read_text()


def test_pairs_in_the_data_are_labeled(tmp_path, workspace):
    left, right = some_texts(60), some_texts(60, seed=1)
    result = gemel.distill(
        workspace / "teacher",
        {"sentence1": left, "sentence2": right, "score": [0.5] * 60},
        out=tmp_path / "out",
        how="pairs",
        objective="cosent",
        student=workspace / "student",
        max_steps=2,
        **FAST,
    )
    assert result.learnt_from == "60 pairs"
    assert not result.held_out
    rows = [json.loads(line) for line in (tmp_path / "out/distillation/pairs.jsonl").read_text().splitlines()]
    assert {(row["left"], row["right"]) for row in rows} == set(zip(left, right, strict=True))
    vectors = gemel.load(workspace / "teacher").encode([rows[0]["left"], rows[0]["right"]])
    assert rows[0]["score"] == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-5)


def test_labeled_pairs_are_not_labeled_again(tmp_path):
    teacher, path = FakeTeacher(), tmp_path / "run" / "pairs.jsonl"
    pairs = [(a, b) for a in "abc" for b in "xyz"]
    first = label_pairs(teacher, pairs[:4], path)
    with path.open("a") as stream:
        stream.write('{"left": "a", "rig')  # a kill in the middle of a line
    again = label_pairs(teacher, pairs, path)
    assert (teacher.scored, again.reused) == (9, 4)
    np.testing.assert_array_equal(again.score[:4], first.score)
    assert len(path.read_text().splitlines()) == 9
    label_pairs(teacher, pairs, path)
    assert teacher.scored == 9


def test_labels_of_another_teacher_are_refused(tmp_path):
    label_pairs(FakeTeacher(), [("a", "b")], tmp_path / "pairs.jsonl")
    other = FakeTeacher()
    other.identity = "other"
    with pytest.raises(InputError, match="was labeled by fake"):
        label_pairs(other, [("a", "b")], tmp_path / "pairs.jsonl")


def test_proposed_pairs_are_near_and_random_ones_each_once():
    vectors = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    vectors[7] = vectors[3]
    result = propose_pairs(vectors, neighbors=2, random=2, seed=1)
    pairs = result.all
    assert (pairs[:, 0] < pairs[:, 1]).all()
    assert len(np.unique(pairs, axis=0)) == len(pairs)
    assert [3, 7] in result.near.tolist()
    cosines = [
        np.mean([gemel.search(vectors[[a]], vectors[[b]], k=1).score for a, b in part[:20]])
        for part in (result.near, result.random)
    ]
    assert cosines[0] > cosines[1] + 0.3
    np.testing.assert_array_equal(pairs, propose_pairs(vectors, neighbors=2, random=2, seed=1).all)
    assert len(propose_pairs(vectors[:1], neighbors=2, random=2).all) == 0


# Vectors.


def test_a_student_learns_vectors_of_a_larger_size_through_pca(tmp_path, workspace):
    result = gemel.distill(
        workspace / "teacher",
        workspace / "texts.txt",
        out=tmp_path / "out",
        student=workspace / "student",
        epochs=8,
        **{**FAST, "learning_rate": 1e-2},
    )
    assert (result.how, result.dim) == ("vectors", 16)
    assert result.after.all > result.before.all + 10
    lines = read_journal(tmp_path / "out/training/metrics.jsonl")
    losses = [line["loss"] for line in lines if line["kind"] == "step"]
    assert losses[-1] < 0.8 * losses[0]
    assert any("reduced to 16 by PCA" in note for note in result.notes)


def test_a_dense_layer_maps_the_student_to_the_size_of_the_teacher(tmp_path, workspace):
    out = tmp_path / "out"
    result = gemel.distill(
        workspace / "student",
        workspace / "texts.txt",
        out=out,
        how="vectors",
        student=workspace / "crowded",
        max_steps=3,
        **FAST,
    )
    assert result.dim == 16
    assert any("a dense layer" in note for note in result.notes)
    assert len(gemel.load(out).checkpoint.dense) == 1


def test_translations_get_the_vector_of_the_text(tmp_path, workspace):
    english = some_texts(200)
    german = [" ".join(reversed(text.split())) + " ß" for text in english]
    result = gemel.distill(
        workspace / "teacher",
        {"en": english, "de": german},
        out=tmp_path / "out",
        how="vectors",
        student=workspace / "teacher",
        epochs=4,
        **FAST,
    )
    assert result.learnt_from == "180 texts and 1 translations of each"
    assert result.after.all > result.before.all


def test_a_stopped_run_resumes_without_encoding_the_texts_again(tmp_path, workspace, monkeypatch):
    def make(out, **more):
        return gemel.distill(
            workspace / "teacher",
            workspace / "texts.txt",
            out=out,
            student=workspace / "student",
            max_steps=8,
            checkpoint_steps=2,
            **FAST,
            **more,
        )

    make(tmp_path / "whole")
    from gemel.training.loop import Snapshots

    write = Snapshots.write

    def stop(self, step, *rest):
        write(self, step, *rest)
        if step == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Snapshots, "write", stop)
        make(tmp_path / "out")
    with pytest.raises(InputError, match="--resume"):
        make(tmp_path / "out")
    make(tmp_path / "out", resume=True)
    assert [
        line["step"]
        for line in read_journal(tmp_path / "out/training/metrics.jsonl")
        if line["kind"] == "resume"
    ] == [4]
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "out"))
    assert one == two
    with pytest.raises(InputError, match="another distillation: bridge changed"):
        make(tmp_path / "out", resume=True, bridge="dense")


def test_students_of_the_same_texts_share_the_vectors_of_their_teacher(tmp_path, workspace):
    def make(out, texts, **more):
        return gemel.distill(
            workspace / "teacher", texts, out=tmp_path / out, teacher_vectors=tmp_path / "shared", **more
        )

    make("first", workspace / "texts.txt")
    kept = (tmp_path / "shared" / "manifest.json").read_bytes()
    assert not (tmp_path / "first" / "distillation" / "vectors").exists()
    make("second", workspace / "texts.txt")
    assert (tmp_path / "shared" / "manifest.json").read_bytes() == kept
    one, two = (
        (tmp_path / name / "0_StaticEmbedding" / "model.safetensors").read_bytes()
        for name in ("first", "second")
    )
    assert one == two
    with pytest.raises(InputError, match="shared"):
        make("third", written(tmp_path / "other.txt", some_texts(100, seed=9)))
    with pytest.raises(InputError, match="teacher_vectors belongs to how=vectors or layers or static"):
        make("fourth", workspace / "texts.txt", how="pairs", student=workspace / "student")


# Layers.


@pytest.mark.parametrize(
    "model_type", ["bert", "roberta", "distilbert", "electra", "mpnet", "modernbert", "albert"]
)
def test_a_model_keeps_some_of_its_layers(tmp_path, model_type):
    import torch
    import transformers

    settings = {"n_layers": 4} if model_type == "distilbert" else {"num_hidden_layers": 4}
    if model_type == "albert":
        settings |= {"num_hidden_groups": 1}
    checkpoint = read_checkpoint(tiny_checkpoint(tmp_path / "m", model_type, **settings))
    folder = keep_layers(checkpoint, chosen_layers(checkpoint, 2, ()), tmp_path / "cut")
    vectors = gemel.load(folder).encode(["the cat is sleeping"], normalize=False)
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    ids = gemel.load(folder).prepare(["the cat is sleeping"], gemel.EncodeOptions()).windows[0].pieces
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(np.array(ids))).last_hidden_state.mean(dim=1).numpy()
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert (folder / "model.safetensors").stat().st_size <= (tmp_path / "m/model.safetensors").stat().st_size


def test_the_requested_layers_remain(tmp_path):
    checkpoint = read_checkpoint(tiny_bert(tmp_path / "m", layers=6))
    assert chosen_layers(checkpoint, 3, ()) == (0, 2, 5)
    folder = keep_layers(checkpoint, (1, 4), tmp_path / "cut")
    cut = read_checkpoint(folder)
    assert cut.config["num_hidden_layers"] == 2
    name = "encoder.layer.{}.output.dense.weight"
    np.testing.assert_array_equal(cut.weights[name.format(1)], checkpoint.weights[name.format(4)])
    assert name.format(2) not in cut.weights
    for layers, keep in ((6, ()), (None, ()), (2, (0, 1)), (None, (1, 0)), (None, (0, 6))):
        with pytest.raises(InputError):
            chosen_layers(checkpoint, layers, keep)


def test_a_teacher_with_fewer_layers_learns_to_agree_again(tmp_path, workspace):
    result = gemel.distill(
        workspace / "teacher", workspace / "texts.txt", out=tmp_path / "out", layers=1, epochs=4, **FAST
    )
    assert result.how == "layers"
    assert result.student.megabytes < result.teacher.megabytes
    assert result.after.all > result.before.all + 5


# Static.


def test_a_static_student_is_fitted_and_measured(tmp_path, workspace):
    texts = {"text": some_texts(800)}
    result = gemel.distill(workspace / "shallow", texts, out=tmp_path / "out", dim=16, threads=1)
    assert (result.how, result.dim, result.trained) == ("static", 16, None)
    assert result.after.all > result.before.all + 10
    assert gemel.load(tmp_path / "out").engine_name == "static"
    assert "before: near pairs" in result.summary()


def test_a_static_student_can_be_trained(tmp_path, workspace):
    result = gemel.distill(
        workspace / "teacher",
        workspace / "texts.txt",
        out=tmp_path / "out",
        dim=16,
        train=True,
        epochs=2,
        batch_size=32,
        device="cpu",
        threads=1,
    )
    assert result.trained.steps > 0
    assert any("learning_rate 0.001" in note for note in result.notes)
    assert result.after.all >= result.before.all - 1


# What is refused, and the command.


def test_a_teacher_that_finds_all_texts_similar_gives_a_warning(tmp_path, workspace):
    output = []
    gemel.distill(
        workspace / "crowded",
        workspace / "texts.txt",
        out=tmp_path / "out",
        layers=1,
        max_steps=1,
        say=output.append,
        **FAST,
    )
    assert any("see gemel postprocess" in line for line in output)


def test_arguments_that_contradict_each_other_are_refused(tmp_path, workspace):
    def ask(teacher="teacher", data="texts.txt", **more):
        given = None if data is None else workspace / data
        return gemel.distill(workspace / teacher, given, out=tmp_path / "out", **more)

    for words, more in (
        ("trains a student", {"how": "pairs"}),
        ("needs texts", {"how": "layers", "layers": 1, "data": None}),
        ("layers belongs to how=layers", {"how": "static", "layers": 1}),
        ("is a cross-encoder", {"how": "static", "teacher": "cross"}),
        ("give the number of layers", {"how": "layers"}),
        ("how must be one of", {"how": "magic"}),
        ("unknown option 'epoch'", {"epoch": 1}),
        ("nothing to reduce", {"teacher": "student", "student": workspace / "teacher", "bridge": "pca"}),
    ):
        with pytest.raises(InputError, match=words):
            ask(**more)
    with pytest.raises(InputError, match="at least 2 different texts"):
        gemel.distill(workspace / "teacher", {"text": ["one", "one", " "]}, out=tmp_path / "x", how="static")


def test_a_cross_encoder_with_labels_needs_a_label_for_similar_texts(tmp_path, workspace):
    with pytest.raises(InputError, match="none of which means that two texts are similar"):
        gemel.distill(tiny_cross(tmp_path / "c", labels=3), {"text": ["a", "b"]}, out=tmp_path / "out")


def test_held_out_rows_are_not_trained_on():
    split = split_rows(200, seed=0)
    assert (len(split.test), len(split.train)) == (20, 180)
    assert not set(split.test.tolist()) & set(split.train.tolist())
    assert not split_rows(30, seed=0).held_out


def test_the_command_makes_a_static_student(tmp_path, workspace, capsys):
    out = tmp_path / "out"
    line = ["distill", str(workspace / "teacher"), "--how", "static", "--dim", "8", "-o", str(out)]
    assert main([*line, "--data", str(workspace / "texts.txt"), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["dim"], output["how"], output["folder"]) == (8, "static", str(out))
    assert output["after"]["all"] > 0
    assert main(line) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*line[:2], "--keep", "a,b", "-o", str(tmp_path / "x")]) == 2


def test_the_command_cuts_layers_without_training(tmp_path, workspace, capsys):
    line = ["distill", str(workspace / "teacher"), "--keep", "0,2", "--no-train", "-o", str(tmp_path / "out")]
    assert main(line) == 0
    assert "layers 0, 2 of 3 remain" in capsys.readouterr().err
    assert gemel.load(tmp_path / "out").checkpoint.config["num_hidden_layers"] == 2


def test_a_missing_file_leaves_no_folder(workspace, tmp_path):
    with pytest.raises(InputError, match="no file at"):
        gemel.distill(workspace / "teacher", tmp_path / "none.txt", out=tmp_path / "x", how="static")
    assert not (tmp_path / "x").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="no file at"):
        gemel.distill(workspace / "teacher", tmp_path / "none.txt", out=tmp_path / "mine", how="static")
    assert (tmp_path / "mine").is_dir()
