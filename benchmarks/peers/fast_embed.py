"""fastembed with the exported ONNX graph as a custom local model."""

from __future__ import annotations

from typing import Any

from protocol import Answer, serve


class FastEmbed:
    def __init__(self, options: Answer) -> None:
        import numpy as np
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType

        TextEmbedding.add_custom_model(
            model="local/model",
            pooling=PoolingType.MEAN,
            normalization=True,
            sources=ModelSource(url="unused"),
            dim=options["dim"],
            model_file="onnx/model.onnx",
        )
        self._stack = np.array
        self._model = TextEmbedding(
            "local/model", threads=options["threads"], specific_model_path=options["prepared"]
        )
        self.settings = {"threads": options["threads"], "file": "onnx/model.onnx"}

    def encode(self, texts: list[str], batch: int | None) -> Any:  # noqa: ANN401 - a float32 array of numpy
        return self._stack(list(self._model.embed(texts, batch_size=batch or 32)), dtype="float32")


if __name__ == "__main__":
    serve(FastEmbed)
