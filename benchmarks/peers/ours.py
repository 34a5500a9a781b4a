"""gemel: no batch size to choose, so none is tuned."""

from __future__ import annotations

from typing import Any

from protocol import Answer, serve


class Ours:
    def __init__(self, options: Answer) -> None:
        import gemel

        self._threads = options["threads"]
        chosen = {"precision": options["precision"], "engine": options["engine"]}
        self._model = gemel.load(options["model"], **{k: v for k, v in chosen.items() if v})
        self.settings = {**chosen, "threads": self._threads}
        engine = getattr(self._model, "engine", None)
        if engine is not None:
            self.settings["engine"] = getattr(engine, "name", str(engine))

    def encode(self, texts: list[str], batch: int | None) -> Any:  # noqa: ANN401 - a float32 array of numpy
        return self._model.encode(texts, threads=self._threads, on_long="truncate")


if __name__ == "__main__":
    serve(Ours)
