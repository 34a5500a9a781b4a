"""`gemel bench`: what it measures and recommends."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from gemel.cli.main import main
from gemel.cli.verbs.bench import command
from gemel.encoder.engines import native
from gemel.encoder.engines.engine import arithmetic
from gemel.errors import InputError
from gemel.files.machine import core_limits
from gemel.texts.benchmark import BATCH_TOKENS, agreement, run_benchmark
from tiny import tiny_bert

PRECISIONS = {"float32", "int8", arithmetic("bfloat16")}
TEXTS = ["one text", "another text", "a third one that is longer"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMEL_CACHE", str(tmp_path / "cache"))
    return tiny_bert(tmp_path / "tiny")


def test_every_combination_is_measured_and_agrees(folder):
    trials = run_benchmark(folder, TEXTS, threads=1, repeats=1)
    combinations = 4 + (arithmetic("bfloat16") == "bfloat16") if native.levels() else 2
    assert len(trials.ran) == len(BATCH_TOKENS) * combinations
    assert any("bfloat16: this engine computes it in float32 here" in each for each in trials.skipped)
    assert all(trial.texts_per_second > 0 and trial.threads == 1 for trial in trials.ran)
    assert min(trial.agreement.cosine for trial in trials.ran) > 0.98
    assert {trial.precision for trial in trials.winners()} == PRECISIONS


def test_nothing_to_measure_is_refused(folder):
    with pytest.raises(InputError, match="there is no text to measure with"):
        run_benchmark(folder, [])


@pytest.mark.parametrize("flags", [["--json"], []])
def test_the_command_shows_all_and_highlights_the_fastest(folder, tmp_path, flags):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    shown = CliRunner().invoke(
        command, [str(texts), "-m", str(folder), "--repeats", "1", "--threads", "1", *flags]
    )
    assert shown.exit_code == 0, shown.output
    if flags:
        result = json.loads(shown.stdout)
        assert result["texts"] == 3 and set(result["fastest"]) == PRECISIONS
        assert all(trial in result["trials"] for trial in result["fastest"].values())
        assert {"total", "affinity", "quota", "used"} <= set(result["cores"])
    else:
        assert shown.stdout.count("  fastest") == len(PRECISIONS) and "3 texts, 1 thread," in shown.stdout
        assert f"cores: {core_limits().line()}" in shown.stdout


def test_agreement_has_bits_cosines_and_neighbors():
    reference = np.array([[1, 0, 0], [0.8, 0.6, 0], [0, 0, 1]], np.float32)
    same = agreement(reference, reference)
    assert (same.difference, same.same_nearest) == (0.0, 1.0)
    assert same.cosine == pytest.approx(1)
    turned = agreement(reference[[0, 2, 1]], reference)
    assert turned.difference == 1.0
    assert turned.cosine == 0.0
    assert turned.same_nearest == pytest.approx(2 / 3)


def test_the_advice_names_what_to_change(folder, tmp_path, capsys):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    assert main(["bench", str(texts), "-m", str(folder), "--repeats", "1", "--threads", "1"]) == 0
    shown = capsys.readouterr().out
    assert "fastest in int8 (" in shown and "--precision int8, or in Python: gemel.load(" in shown


def test_nothing_is_written(folder, tmp_path):
    run_benchmark(folder, TEXTS, threads=1, repeats=1)
    assert not (tmp_path / "cache").exists()
