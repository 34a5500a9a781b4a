"""bf16 on processors that report AMX but crash on it: only a child process dies."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import gemel
from gemel.files import machine
from gemel.training import devices
from gemel.training.devices import SAFE_SETTING, prepare_low_precision
from gemel.training.options import TrainOptions
from tiny import TEXT, tiny_bert

torch = pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("accelerate", reason="training needs accelerate")

TRAIN = """
import os, sys
import gemel
from gemel.training import devices

if sys.argv[4] == "broken":  # as on a processor that survives only with the safe setting
    devices._child_survives = lambda precision, safe: safe
gemel.train(
    sys.argv[1], sys.argv[2], objective="regression", out=sys.argv[3],
    mixed_precision="bf16", max_steps=3, batch_size=8, threads=1, device="cpu",
)
print(os.environ.get("ONEDNN_MAX_CPU_ISA", "as it is"))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("low-precision")
    words = TEXT.split()
    rows = [f"{words[n % 9]} {words[n % 7]}\t{words[n % 5]} {words[9 + n % 3]}\t{n % 6}" for n in range(40)]
    file = folder / "sts.tsv"
    file.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n", encoding="utf-8")
    return tiny_bert(folder / "model", normalize=False), file


@pytest.mark.parametrize(
    ("processor", "setting"), [("as it is", None), ("broken", SAFE_SETTING["ONEDNN_MAX_CPU_ISA"])]
)
def test_bf16_trains_on_any_processor(data, tmp_path, processor, setting):
    """The variable that avoids the fault is set by training itself, before torch is imported."""
    model, file = data
    environment = {name: value for name, value in os.environ.items() if name not in SAFE_SETTING}
    command = [sys.executable, "-c", TRAIN, str(model), str(file), str(tmp_path / "out"), processor]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if setting is not None:
        assert done.stdout.split()[-1] == setting
    assert gemel.load(tmp_path / "out").encode(["hello"]).shape == (1, 32)


@pytest.mark.parametrize(("variable", "threads"), [(None, 3), ("4", 4)])
def test_processes_of_a_launcher_divide_the_quota_unless_the_variable_says_their_cores(
    monkeypatch, variable, threads
):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(
        machine, "core_limits", lambda: machine.CoreLimits(64, 64, 6.0, variable and int(variable))
    )
    set_to = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    devices.open_accelerator(TrainOptions(device="cpu"))
    assert set_to == [threads]


def test_a_probe_that_dies_is_noticed_and_a_python_error_is_not_mistaken_for_it(monkeypatch):
    for program, survived in (
        (f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})", False),
        ("raise ImportError('no torch')", True),
    ):
        monkeypatch.setattr(devices, "_PROGRAM", program)
        devices._child_survives.cache_clear()
        assert devices._child_survives("bf16", False) is survived
    devices._child_survives.cache_clear()


def test_training_is_refused_where_torch_was_imported_too_early(data, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "_child_survives", lambda precision, safe: safe)
    model, file = data
    with pytest.raises(
        gemel.WorkError, match=r"ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16.*before torch is imported"
    ):
        gemel.train(
            model, file, objective="regression", out=tmp_path / "out", mixed_precision="bf16", device="cpu"
        )
    assert not Path(tmp_path / "out").exists()


def test_training_is_refused_where_no_setting_helps():
    with pytest.raises(gemel.WorkError, match="Train with mixed_precision='no'"):
        prepare_low_precision("bf16", device="cpu", probe=lambda precision, safe: False)


def test_a_gpu_and_full_precision_are_never_refused():
    prepare_low_precision("bf16", device="cuda:0", probe=lambda precision, safe: False)
    prepare_low_precision("no", device="cpu", probe=lambda precision, safe: False)
