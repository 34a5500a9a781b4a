"""CTranslate2: an engine only, so tokenization, order, pooling and normalization are done here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from protocol import Answer, serve


class CTranslate2:
    def __init__(self, options: Answer) -> None:
        import ctranslate2
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(Path(options["model"]) / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(options["max_length"])
        # Two workers of one thread were faster than one of two, for a single text as well.
        layout = {"inter_threads": options["threads"], "intra_threads": 1}
        self._encoder = ctranslate2.Encoder(options["prepared"], compute_type=options["precision"], **layout)
        self._pool = ThreadPoolExecutor(options["threads"])
        self.settings = {
            "compute_type": self._encoder.compute_type,
            **layout,
            "order": "by length",
        }

    def encode(self, texts: list[str], batch: int | None) -> Any:  # noqa: ANN401 - a float32 array of numpy
        import numpy as np

        ids = [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        size = batch or 64
        parts = [order[i : i + size] for i in range(0, len(order), size)]

        def pooled(part: list[int]) -> Any:  # noqa: ANN401 - a float32 array of numpy
            hidden = np.array(self._encoder.forward_batch([ids[i] for i in part]).last_hidden_state)
            lengths = np.array([len(ids[i]) for i in part])
            mask = (np.arange(hidden.shape[1]) < lengths[:, None]).astype(np.float32)  # (b, t)
            mean = (mask[:, None] @ hidden)[:, 0] / lengths[:, None]
            return mean / np.linalg.norm(mean, axis=1, keepdims=True)

        rows = np.concatenate(list(self._pool.map(pooled, parts)))
        vectors = np.empty(rows.shape, np.float32)
        vectors[order] = rows
        return vectors


def prepare(request: Answer) -> None:
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(request["model"]).convert(request["into"], force=True)


if __name__ == "__main__":
    serve(CTranslate2, prepare)
