"""gemel: no batch size to choose, so none is tuned."""

from __future__ import annotations

import os
from typing import Any

from protocol import Answer, serve


class Ours:
    def __init__(self, options: Answer) -> None:
        if options.get("level"):
            os.environ["GEMEL_KERNEL"] = options["level"]
        import gemel

        self._threads = options["threads"]
        engine = {"engine": options["engine"]} if options["engine"] else {}
        self._model = gemel.load(options["model"], precision=options["precision"], **engine)
        self.settings = {
            "engine": self._model.engine_name,
            "kernel": self._model.kernel,
            "precision": options["precision"],
            "threads": self._threads,
        }

    def encode(self, texts: list[str], batch: int | None) -> Any:  # noqa: ANN401 - a float32 array of numpy
        return self._model.encode(texts, threads=self._threads, on_long="truncate")


if __name__ == "__main__":
    serve(Ours)
