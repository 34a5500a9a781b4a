"""`gemel bench`: what it measures, what it keeps, and that `load` then takes it."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import gemel
from gemel.cli.main import main
from gemel.cli.verbs.bench import command
from gemel.encoder.engines import native
from gemel.encoder.tuning import Choice, precision_file, recall, remember, tuning_file
from gemel.errors import InputError
from gemel.texts.benchmark import (
    BATCH_TOKENS,
    agreement,
    forget_choices,
    keep_winners,
    run_benchmark,
    saved_choices,
    saved_precision,
)
from tiny import tiny_bert

TEXTS = ["one text", "another text", "a third one that is longer"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMEL_CACHE", str(tmp_path / "cache"))
    return tiny_bert(tmp_path / "tiny")


@pytest.fixture
def network(folder):
    from tests.encoder.test_architectures import read_folder

    from gemel.encoder.weights import read_network

    return read_network(*read_folder(folder))


def test_every_combination_is_measured_and_agrees(folder):
    trials = run_benchmark(folder, TEXTS, threads=1, repeats=1)
    engines = 2 if native.levels() else 1
    assert len(trials.ran) == len(BATCH_TOKENS) * 2 * engines
    assert all(trial.texts_per_second > 0 and trial.threads == 1 for trial in trials.ran)
    assert min(trial.agreement.cosine for trial in trials.ran) > 0.98
    assert {trial.precision for trial in trials.winners()} == {"float32", "int8"}


def test_load_takes_the_winner_from_then_on(folder, network):
    before = gemel.load(folder).encode(TEXTS)
    remember(network, "float32", Choice("onnxruntime", 333, 2, 1.0))
    model = gemel.load(folder)
    assert model.engine_name == "onnxruntime" and model.engine.batch_tokens == 333
    np.testing.assert_allclose(model.encode(TEXTS), before, atol=1e-5)
    assert gemel.load(folder, precision="int8").engine.batch_tokens != 333


def test_a_damaged_tuning_file_is_no_harm(folder, network):
    for content in ("not json", "[]", json.dumps({"x": 1})):
        tuning_file().parent.mkdir(parents=True, exist_ok=True)
        tuning_file().write_text(content)
        assert recall(network, "float32") is None
        assert gemel.load(folder).encode(TEXTS).shape == (3, 32)


def test_winners_are_kept_per_precision(folder, network):
    trials = run_benchmark(folder, TEXTS, threads=1, repeats=1)
    for winner in keep_winners(folder, trials):
        choice = recall(network, winner.precision)
        assert choice is not None and choice.batch_tokens == winner.batch_tokens


def test_nothing_to_measure_is_refused(folder):
    with pytest.raises(InputError, match="there is no text to measure with"):
        run_benchmark(folder, [])


@pytest.mark.parametrize("flags", [["--json"], []])
def test_the_command_shows_all_and_keeps_the_winner(folder, tmp_path, flags):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    shown = CliRunner().invoke(
        command, [str(texts), "-m", str(folder), "--repeats", "1", "--threads", "1", *flags]
    )
    assert shown.exit_code == 0, shown.output
    if flags:
        result = json.loads(shown.stdout)
        assert result["texts"] == 3 and sum(trial["kept"] for trial in result["trials"]) == 2
    else:
        assert shown.stdout.count("kept") == 2 and "3 texts, 1 threads" in shown.stdout
    assert tuning_file().exists()


def test_agreement_says_bits_cosines_and_neighbours():
    reference = np.array([[1, 0, 0], [0.8, 0.6, 0], [0, 0, 1]], np.float32)
    same = agreement(reference, reference)
    assert (same.difference, same.same_nearest) == (0.0, 1.0)
    assert same.cosine == pytest.approx(1)
    turned = agreement(reference[[0, 2, 1]], reference)
    assert turned.difference == 1.0
    assert turned.cosine == 0.0
    assert turned.same_nearest == pytest.approx(2 / 3)


def bench(folder, tmp_path, *flags):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    return main(["bench", str(texts), "-m", str(folder), "--repeats", "1", "--threads", "1", *flags])


@pytest.fixture
def one_size(monkeypatch):
    monkeypatch.setattr("gemel.texts.benchmark.BATCH_TOKENS", (256,))


def precision_of_vectors(folder, texts, capsys, *flags):
    assert main(["encode", str(texts), "-m", str(folder), "--threads", "1", *flags]) == 0
    shown = capsys.readouterr()
    vectors = np.array([json.loads(line)["vector"] for line in shown.out.splitlines()], np.float32)
    found = [
        precision
        for precision in ("float32", "int8")
        if np.array_equal(gemel.load(folder, precision=precision).encode(TEXTS), vectors)
    ]
    return found, shown.err


@pytest.mark.usefixtures("one_size")
def test_a_precision_changes_only_when_somebody_said_so(folder, tmp_path, capsys):
    assert bench(folder, tmp_path) == 0
    assert saved_precision(folder) is None
    assert not precision_file().exists()
    assert bench(folder, tmp_path, "--save", "int8") == 0
    assert "compute" in capsys.readouterr().err
    assert saved_precision(folder) == "int8"
    found, said = precision_of_vectors(folder, tmp_path / "texts.txt", capsys)
    assert found == ["int8"]
    assert "in int8, as gemel bench was told to save" in said
    # A flag wins; what is not a command for texts keeps its own.
    assert precision_of_vectors(folder, tmp_path / "texts.txt", capsys, "--precision", "float32")[0] == [
        "float32"
    ]
    assert gemel.load(folder).precision == "float32"
    assert bench(folder, tmp_path, "--save", "float32") == 0
    capsys.readouterr()
    assert precision_of_vectors(folder, tmp_path / "texts.txt", capsys)[0] == ["float32"]


@pytest.mark.usefixtures("one_size")
def test_a_saved_precision_is_of_these_weights_wherever_they_are(folder, tmp_path):
    from shutil import copytree

    assert bench(folder, tmp_path, "--save", "int8") == 0
    assert saved_precision(copytree(folder, tmp_path / "moved")) == "int8"
    assert saved_precision(tiny_bert(tmp_path / "other", seed=1)) is None


@pytest.mark.usefixtures("one_size")
def test_an_index_keeps_the_precision_that_it_was_made_with(folder, tmp_path, capsys):
    place = str(tmp_path / "notes")
    assert main(["index", "create", place, "-m", str(folder)]) == 0
    assert bench(folder, tmp_path, "--save", "int8") == 0
    assert main(["index", "add", place, str(tmp_path / "texts.txt")]) == 0
    assert main(["index", "verify", place]) == 0
    with gemel.open_index(place, create=False, read_only=True) as index:
        assert index.model.precision == "float32"
    assert main(["index", "create", str(tmp_path / "later"), "-m", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["precision"] == "float32"


@pytest.mark.usefixtures("one_size")
def test_a_folder_of_vectors_is_not_continued_in_another_precision(folder, tmp_path, capsys):
    line = ["encode", str(tmp_path / "texts.txt"), "-m", str(folder), "-o", str(tmp_path / "vectors")]
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    assert main(line) == 0
    assert bench(folder, tmp_path, "--save", "int8") == 0
    capsys.readouterr()
    assert main(line) == 2
    assert "precision" in capsys.readouterr().err


@pytest.mark.usefixtures("one_size")
def test_nothing_is_kept_if_that_was_asked_for(folder, tmp_path):
    assert bench(folder, tmp_path, "--save", "none") == 0
    assert not tuning_file().exists()
    assert saved_choices().lines() == []


@pytest.mark.usefixtures("one_size")
def test_what_was_kept_is_shown_and_forgotten(folder, tmp_path, capsys):
    assert bench(folder, tmp_path, "--save", "int8") == 0
    other = tiny_bert(tmp_path / "other", layers=1)
    assert bench(other, tmp_path) == 0
    capsys.readouterr()
    assert main(["bench", "--show"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5  # two precisions of two shapes, and one choice
    assert main(["bench", "--show", "-m", str(other), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["here"] for row in shown["engines"]] == [True, True]
    assert shown["precisions"] == []
    assert main(["bench", "--forget", "-m", str(folder)]) == 0
    assert capsys.readouterr().out.count("forgotten: ") == 3
    assert saved_precision(folder) is None
    assert {row.model for row in saved_choices().engines} == {"other"}
    forget_choices()
    assert saved_choices().lines() == []
    assert main(["bench", "--show"]) == 0
    assert capsys.readouterr().err == "nothing was kept\n"


def test_choices_of_another_machine_are_shown_as_such_and_not_used(folder, network):
    remember(network, "float32", Choice("onnxruntime", 333, 2, 1.0))
    content = tuning_file().read_text()
    key = next(iter(json.loads(content)))
    tuning_file().write_text(content.replace(key, "Another; " + key.partition("; ")[2]))
    assert [row.here for row in saved_choices().engines] == [False]
    assert ", on Another; " in saved_choices().lines()[0]
    assert recall(network, "float32") is None


@pytest.mark.parametrize("content", ["not json", "[]", '{"x": 1}', '{"a; b; c": {"precision": "int3"}}'])
def test_a_damaged_precision_file_is_no_harm(folder, content):
    precision_file().parent.mkdir(parents=True, exist_ok=True)
    precision_file().write_text(content)
    assert saved_precision(folder) is None
    assert saved_choices().precisions == ()


def test_show_and_forget_stand_alone(folder, capsys):
    for flags in (["--show", "--forget"], ["texts.txt", "--show"]):
        assert main(["bench", *flags]) == 2
        assert "stand alone" in capsys.readouterr().err
