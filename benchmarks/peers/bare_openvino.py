"""Plain OpenVINO: two streams, length-sorted batches. A reference, not a peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protocol import Answer, serve
from sbert import OPENVINO_FILES


class BareOpenVINO:
    def __init__(self, options: Answer) -> None:
        import openvino
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(Path(options["model"]) / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(options["max_length"])
        threads = str(options["threads"])
        config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": threads}
        config["INFERENCE_PRECISION_HINT"] = "f32"
        graph = Path(options["prepared"]) / OPENVINO_FILES[options["precision"]]
        compiled = openvino.compile_model(str(graph), "CPU", config)
        self._queue = openvino.AsyncInferQueue(compiled, options["threads"])
        self._names = {name for port in compiled.inputs for name in port.names}
        self.settings = {**config, "file": graph.name, "order": "by length"}

    def encode(self, texts: list[str], batch: int | None) -> Any:  # noqa: ANN401 - a float32 array of numpy
        import numpy as np

        ids = [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        size = batch or 32
        result: dict[int, Any] = {}

        def pool(request: Any, job: tuple[list[int], Any]) -> None:  # noqa: ANN401 - an InferRequest, an array
            part, mask = job
            weights = mask.astype(np.float32)  # (b, t)
            mean = (weights[:, None] @ request.get_output_tensor(0).data)[:, 0]
            mean /= np.linalg.norm(mean, axis=1, keepdims=True)
            result.update(zip(part, mean, strict=True))

        self._queue.set_callback(pool)
        for start in range(0, len(order), size):
            part = order[start : start + size]
            lengths = np.array([len(ids[i]) for i in part])
            mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
            tokens = np.zeros(mask.shape, np.int64)
            for row, i in enumerate(part):
                tokens[row, : len(ids[i])] = ids[i]
            inputs = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}
            self._queue.start_async({k: v for k, v in inputs.items() if k in self._names}, (part, mask))
        self._queue.wait_all()
        return np.array([result[i] for i in range(len(texts))], dtype=np.float32)


if __name__ == "__main__":
    serve(BareOpenVINO)
