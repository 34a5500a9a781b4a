"""Two processes train the model that one process trains, on the same global batch."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tiny import TEXT, tiny_bert

pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("accelerate", reason="training needs accelerate")

WORDS = TEXT.split()


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    rng = np.random.default_rng(0)
    rows = [[" ".join(rng.choice(WORDS, size=int(rng.integers(3, 9)))) for _ in range(3)] for _ in range(23)]
    data = folder / "triplets.tsv"
    lines = ["anchor\tpositive\tnegative", *("\t".join(row) for row in rows)]
    data.write_text("\n".join(lines) + "\n")
    return tiny_bert(folder / "m"), data, folder


SETTINGS = {
    "max-steps": 4,
    "batch-size": 7,
    "dropout": 0,
    "learning-rate": 1e-3,
    "device": "cpu",
    "threads": 1,
}
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "train-on-several-machines.md"


def start(paths, name, *launcher, extra=()):
    model, data, folder = paths
    arguments = ["train", data, "--model", model, "--objective", "in-batch-ranking", "-o", folder / name]
    arguments += [word for setting, value in SETTINGS.items() for word in (f"--{setting}", value)]
    arguments += extra
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "gemel", *map(str, arguments), "--json"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(paths, name, *processes):
    try:
        for process in processes:
            _, output = process.communicate(timeout=200)
            assert process.returncode == 0, output[-3000:]
    finally:
        for process in processes:
            process.kill()
    return load_file(paths[2] / name / "model.safetensors")


def train(paths, name, *launcher):
    return finish(paths, name, start(paths, name, *launcher))


@pytest.fixture(scope="module")
def one(paths):
    return train(paths, "one")


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, weight in one.items():
        if "key.bias" in name:  # moves no score, so its gradient is rounding alone, which Adam makes large
            continue
        np.testing.assert_allclose(other[name], weight, atol=2e-5, err_msg=name)


@pytest.mark.slow
def test_two_processes_give_the_weights_of_one(paths, one):
    two = train(paths, "two", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    start = load_file(paths[0] / "model.safetensors")
    assert_same(one, two)
    assert max(np.abs(one[name] - start[name]).max() for name in one) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sparse", "late"])
def test_two_processes_give_the_weights_of_one_for_other_kinds_of_models(paths, kind):
    extra = ["--kind", kind, *(["--no-query-expansion", "--token-dim", "8"] if kind == "late" else [])]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    one = finish(paths, f"{kind}-one", start(paths, f"{kind}-one", extra=extra))
    two = finish(paths, f"{kind}-two", start(paths, f"{kind}-two", *launcher, extra=extra))
    assert_same(one, two)


@pytest.mark.slow
def test_two_launchers_as_on_two_machines_give_the_weights_of_one(paths, one):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    launcher = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    launcher += ["--master-addr", "127.0.0.1", "--master-port", str(port), "--node-rank"]
    both = [start(paths, "machines", *launcher, rank) for rank in ("0", "1")]
    assert_same(one, finish(paths, "machines", *both))


@pytest.mark.skipif(not os.environ.get("GEMEL_SLOW"), reason="starts a Ray cluster: set GEMEL_SLOW=1")
def test_ray_train_as_the_docs_write_it_gives_the_weights_of_one(paths, one):
    pytest.importorskip("ray", reason="needs ray")
    model, data, folder = paths
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    settings = {**SETTINGS, "dropout": 0.0}
    given = ", ".join(f"{name.replace('-', '_')}={value!r}" for name, value in settings.items())
    for old, new in {
        "/shared/bert": str(model),
        "/shared/pairs.tsv.gz": str(data),
        "/shared/my-model": str(folder / "ray"),
        "/shared/ray-runs": str(folder / "ray-runs"),
        'batch_size=128,\n        device="cpu"': given,
    }.items():
        assert old in code
        code = code.replace(old, new)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "RAY_ADDRESS": "local",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    script = folder / "on_ray.py"
    script.write_text(code)
    ended = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert_same(one, load_file(folder / "ray" / "model.safetensors"))
