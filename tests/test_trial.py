"""`gemel bench`: what it measures, what it keeps, and that `load` then takes it."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import gemel
from gemel.cli.bench import command
from gemel.encoder.engines import native
from gemel.encoder.tuning import Choice, recall, remember, tuning_file
from gemel.errors import InputError
from gemel.trial import BATCH_TOKENS, keep_winners, run_trials
from tiny import tiny_bert

TEXTS = ["one text", "another text", "a third one that is longer"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMEL_CACHE", str(tmp_path / "cache"))
    return tiny_bert(tmp_path / "tiny")


@pytest.fixture
def network(folder):
    from gemel.encoder.architectures import read_network
    from test_architectures import read_folder

    return read_network(*read_folder(folder))


def test_every_combination_is_measured_and_agrees(folder):
    trials = run_trials(folder, TEXTS, threads=1, rounds=1)
    engines = 2 if native.levels() else 1
    assert len(trials.ran) == len(BATCH_TOKENS) * 2 * engines
    assert all(trial.texts_per_second > 0 and trial.threads == 1 for trial in trials.ran)
    assert min(trial.cosine for trial in trials.ran) > 0.98
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
    trials = run_trials(folder, TEXTS, threads=1, rounds=1)
    for winner in keep_winners(folder, trials):
        choice = recall(network, winner.precision)
        assert choice is not None and choice.batch_tokens == winner.batch_tokens


def test_nothing_to_measure_is_refused(folder):
    with pytest.raises(InputError, match="there is no text to measure with"):
        run_trials(folder, [])


@pytest.mark.parametrize("flags", [["--json"], []])
def test_the_command_shows_all_and_keeps_the_winner(folder, tmp_path, flags):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    shown = CliRunner().invoke(
        command, [str(texts), "-m", str(folder), "--rounds", "1", "--threads", "1", *flags]
    )
    assert shown.exit_code == 0, shown.output
    if flags:
        result = json.loads(shown.stdout)
        assert result["texts"] == 3 and sum(trial["kept"] for trial in result["trials"]) == 2
    else:
        assert shown.stdout.count("kept") == 2 and "3 texts, 1 threads" in shown.stdout
    assert tuning_file().exists()
