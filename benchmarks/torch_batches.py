"""Which batches of the torch engine give the bits of a row alone, and what they save.

    python benchmarks/torch_batches.py              # some minutes; writes results/torch_batches.json
    python benchmarks/torch_batches.py --quick      # does it work? nothing is written

Networks of random weights in common shapes, two layers each: the kernels are those of the whole network. Times
are processor seconds of this process, which other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from gemel.checkpoint.folder import read_checkpoint
from gemel.encoder.engines.torch import TorchEngine
from machine import describe

LENGTHS = (1, 3, 5, 9, 16, 24)
ROWS = (2, 4, 8, 16, 32)
COPIES = (1, 2, 4, 8, 16)
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "BERT, 384 wide": (
        "BertConfig",
        {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536},
    ),
    "Qwen3, 1024 wide": (
        "Qwen3Config",
        {
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3072,
        },
    ),
}


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a small part, nothing is written")
    quick = parser.parse_args().quick
    import torch

    actual = []
    for title, (kind, settings) in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            engine = _engine(Path(folder), kind, settings)
            for length in LENGTHS[:3] if quick else LENGTHS:
                actual.append({"network": title, "tokens": length, **_bits(engine, length)})
                print(actual[-1], flush=True)
            speed = _speed(engine, rounds=1 if quick else 5)
            actual.append({"network": title, **speed})
            print(actual[-1], flush=True)
    result = {
        "machine": describe(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "rows": actual,
    }
    if not quick:
        target = Path(__file__).parent / "results" / "torch_batches.json"
        target.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _engine(folder: Path, kind: str, settings: dict[str, Any]) -> TorchEngine:
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, kind)(vocab_size=1000, num_hidden_layers=2, **settings)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    return TorchEngine(read_checkpoint(folder))


def _bits(engine: TorchEngine, length: int) -> dict[str, Any]:
    """For each number of copies that a text alone is run as: the batch sizes that give its bits."""
    import torch

    ids = torch.from_numpy(np.random.default_rng(0).integers(5, 1000, (32, length)))
    same: dict[str, list[int]] = {}
    with torch.inference_mode():
        for copies in COPIES:
            alone = torch.cat([engine._forward(row.repeat(copies, 1))[:1] for row in ids[:16]])
            sizes = [rows for rows in ROWS if rows >= copies]
            same[str(copies)] = [rows for rows in sizes if torch.equal(_in_batches(engine, ids, rows), alone)]
    return {"copies": engine._copies(length), "same_bits": same}


def _in_batches(engine: TorchEngine, ids: Any, rows: int) -> Any:  # noqa: ANN401 - tensors
    import torch

    return torch.cat([engine._forward(ids[start : start + rows]) for start in range(0, 16, rows)])[:16]


def _speed(engine: TorchEngine, rounds: int) -> dict[str, Any]:
    """Processor seconds of 64 texts of 20 tokens, row by row and in batches, and of one text; best round."""
    ids = np.random.default_rng(1).integers(5, 1000, (64, 20)).astype(np.int32)
    engine.hidden(ids)  # compares the shape

    def seconds(work: Any) -> float:  # noqa: ANN401 - a function
        start = time.process_time()
        work()
        return time.process_time() - start

    best = {"row_by_row_s": 1e9, "batches_s": 1e9, "one_text_s": 1e9, "one_text_alone_s": 1e9}
    for _ in range(rounds):
        trials = {
            "row_by_row_s": lambda: [engine.hidden(row[None]) for row in ids],
            "batches_s": lambda: engine.hidden(ids),
            "one_text_s": lambda: [engine.hidden(ids[:1, :5]) for _ in range(10)],
            "one_text_alone_s": lambda: [_plain(engine, ids[:1, :5]) for _ in range(10)],
        }
        for name, work in trials.items():
            best[name] = min(best[name], seconds(work))
    return {name: round(value, 4) for name, value in best.items()}


def _plain(engine: TorchEngine, ids: Any) -> None:  # noqa: ANN401
    import torch

    with torch.inference_mode():
        engine._forward(torch.from_numpy(ids.astype(np.int64)))


if __name__ == "__main__":
    main()
