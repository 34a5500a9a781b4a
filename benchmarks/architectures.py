"""Every architecture in every engine and precision: parity with transformers, batch invariance, speed against torch.

    python benchmarks/architectures.py                     all, a few minutes; writes results/architectures.json
    python benchmarks/architectures.py --only bert,qwen3   some of them, no results file

Parity and invariance are measured on the tiny random models of the tests, speed on random models 384 wide with 6
layers: 64 texts of 32 tokens, the same threads, in turns, best of several. docs/reference/models.md shows the table.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from gemel.encoder.engines.engine import Engine  # noqa: E402
from machine import describe  # noqa: E402
from tiny import ARCHITECTURES, reference_network, tiny_checkpoint  # noqa: E402

OUT = ROOT / "benchmarks" / "results" / "architectures.json"
LENGTHS = (1, 2, 9, 40)
# Settings of the tiny models that decide their size, and what they are in the models whose speed is measured.
LARGER = {
    **dict.fromkeys(("hidden_size", "dim", "d_model", "n_embd"), 384),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "d_ff", "n_inner"), 1536),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "num_layers", "n_layer"), 6),
    **dict.fromkeys(("num_attention_heads", "n_heads", "num_heads", "n_head"), 12),
    "num_key_value_heads": 4,
    "head_dim": 32,
    "global_head_dim": 64,
    "hidden_size_per_layer_input": 384,
    "embedding_dim": 384,
    "d_kv": 32,
}
DROPPED = ("layer_types", "max_window_layers")


def main() -> int:
    options = _arguments()
    import torch
    import transformers

    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    chosen = options.only.split(",") if options.only else sorted(ARCHITECTURES)
    rows = {}
    for model_type in chosen:
        with tempfile.TemporaryDirectory() as folder:
            rows[model_type] = measure(model_type, Path(folder), options)
        print(f"{model_type:20} {json.dumps(rows[model_type])}", flush=True)
    if not options.only:
        about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": describe()}
        packages = {"torch": torch.__version__, "transformers": transformers.__version__}
        result = {**about, "threads": options.threads, "packages": packages, "architectures": rows}
        OUT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {OUT.relative_to(ROOT)}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="model types, comma-separated; no results file is written")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def measure(model_type: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One row of the table."""
    import torch

    tiny = tiny_checkpoint(folder / "tiny", model_type)
    reference = reference_network(tiny)
    row: dict[str, Any] = {}
    with torch.inference_mode():
        for name, engine in engines(tiny).items():
            row[name] = {"invariant": is_invariant(engine)}
            row[name] |= agreement(engine, reference, exact=name.endswith("float32"))
        larger = {key: LARGER[key] for key in ARCHITECTURES[model_type][1] if key in LARGER}
        settings = {key: None for key in ARCHITECTURES[model_type][1] if key in DROPPED}
        made = tiny_checkpoint(folder / "larger", model_type, **larger, **settings)
        for name, ratio in speeds(made, options).items():
            row[name]["times_torch"] = ratio
    return row


def engines(folder: Path) -> dict[str, Engine]:
    from gemel.checkpoint.folder import read_checkpoint
    from gemel.encoder.engines.native import NativeEngine, why_not
    from gemel.encoder.engines.onnx import OnnxEngine
    from gemel.encoder.weights import read_network

    checkpoint = read_checkpoint(folder)
    network = read_network(checkpoint.config, checkpoint.weights)
    result: dict[str, Engine] = {}
    for precision in ("float32", "int8"):
        if why_not(network, precision) is None:
            result[f"native {precision}"] = NativeEngine(network, precision=precision)
        result[f"onnxruntime {precision}"] = OnnxEngine(network, precision=precision)
    return result


def some_ids(texts: int, tokens: int) -> np.ndarray:
    return np.random.default_rng(tokens).integers(4, 212, (texts, tokens)).astype(np.int32)


def is_invariant(engine: Engine) -> bool:
    """Whether every text has the same bits alone and in a batch."""
    for tokens in LENGTHS:
        ids = some_ids(9, tokens)
        together = engine.hidden(ids)
        if not all(np.array_equal(engine.hidden(ids[row : row + 1])[0], together[row]) for row in range(9)):
            return False
    return True


def agreement(engine: Engine, reference: Callable[..., Any], *, exact: bool) -> dict[str, float]:
    """The largest difference of hidden states in float32, the smallest cosine of mean vectors in int8."""
    differences, cosines = [], []
    for tokens in LENGTHS:
        ids = some_ids(4, tokens)
        ours, theirs = engine.hidden(ids), torch_hidden(reference, ids)
        differences.append(float(np.abs(ours - theirs).max()))
        left, right = ours.mean(axis=1), theirs.mean(axis=1)
        norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        cosines.append(float(((left * right).sum(axis=1) / norms).min()))
    return {"difference": max(differences)} if exact else {"cosine": min(cosines)}


def torch_hidden(model: Callable[..., Any], ids: np.ndarray) -> np.ndarray:
    import torch

    tokens = torch.from_numpy(ids.astype(np.int64))
    return model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state.float().numpy()


def speeds(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Texts per second of each engine divided by those of torch."""
    reference = reference_network(folder)
    ids = some_ids(64, 32)
    halves = np.array_split(ids, 2 * options.threads)
    opened = engines(folder)
    best: dict[str, float] = {}
    for _ in range(options.rounds):
        for name in ("torch", *opened):
            start = time.perf_counter()
            if name == "torch":
                torch_hidden(reference, ids)
            else:
                _in_threads(opened[name], halves, options.threads)
            seconds = time.perf_counter() - start
            best[name] = min(seconds, best.get(name, seconds))
    return {name: round(best["torch"] / best[name], 2) for name in opened}


def _in_threads(engine: Engine, parts: list[np.ndarray], threads: int) -> None:
    """As the model does it: each thread takes the next batch."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(engine.hidden, parts))


if __name__ == "__main__":
    sys.exit(main())
