"""sentence-transformers with its three back ends: torch, onnx, openvino; and the exports they start from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from protocol import Answer, serve

ONNX_FILES = {"float32": "onnx/model.onnx", "int8": "onnx/model_int8.onnx"}
OPENVINO_FILES = {
    **dict.fromkeys(("float32", "bfloat16"), "openvino/openvino_model.xml"),
    "int8": "openvino/openvino_model_int8.xml",
}


class SentenceTransformers:
    def __init__(self, options: Answer) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        threads, backend, precision = options["threads"], options["backend"], options["precision"]
        torch.set_num_threads(threads)
        self.settings = {"backend": backend, "threads": threads, "torch_threads": torch.get_num_threads()}
        arguments: Answer = {"backend": backend}
        if backend == "torch" and precision == "bfloat16":
            arguments["model_kwargs"] = {"torch_dtype": torch.bfloat16}
        if backend == "onnx":
            import onnxruntime

            session = onnxruntime.SessionOptions()
            session.intra_op_num_threads = threads
            file = ONNX_FILES[precision]
            arguments["model_kwargs"] = {
                "file_name": file,
                "provider": "CPUExecutionProvider",
                "session_options": session,
            }
            self.settings |= {"file": file, "intra_op_num_threads": threads}
        if backend == "openvino":
            # encode() runs one batch at a time, so one stream with all threads: a second one would idle.
            config = {
                "INFERENCE_NUM_THREADS": str(threads),
                "PERFORMANCE_HINT": "LATENCY",
                "NUM_STREAMS": "1",
            }
            # optimum-intel compiles a float32 graph in bfloat16 where the processor supports it, unless configured
            config["INFERENCE_PRECISION_HINT"] = "bf16" if precision == "bfloat16" else "f32"
            file = OPENVINO_FILES[precision]
            arguments["model_kwargs"] = {"file_name": file, "ov_config": config}
            self.settings |= {"file": file, **config}
        folder = options["model"] if backend == "torch" else options["prepared"]
        self._model = SentenceTransformer(folder, device="cpu", **arguments)
        self._model.max_seq_length = options["max_length"]

    def encode(self, texts: list[str], batch: int | None) -> Any:  # noqa: ANN401 - a float32 array of numpy
        return self._model.encode(
            texts, batch_size=batch or 32, normalize_embeddings=True, show_progress_bar=False
        )


def prepare(request: Answer) -> None:
    """The export of one back end, both precisions, in a folder that sentence-transformers reads."""
    folder = Path(request["into"])
    shutil.copytree(request["model"], folder, dirs_exist_ok=True)
    if request["what"] == "onnx":
        _prepare_onnx(folder, request["flags"])
    else:
        _prepare_openvino(
            folder, json.loads(Path(request["texts"]).read_text(encoding="utf-8"))["calibration"]
        )
    _cut_at(folder, request["max_length"])


def _cut_at(folder: Path, max_length: int) -> None:
    # fastembed takes the smaller of the two from here. The checkpoint's tokenizer says 128 and the export
    # writes that down, but sentence-transformers (and so everyone else here) cuts at 256.
    config = folder / "tokenizer_config.json"
    limits = {"model_max_length": max_length, "max_length": max_length}
    fields = json.loads(config.read_text(encoding="utf-8")) | limits
    config.write_text(json.dumps(fields), encoding="utf-8")


def _prepare_onnx(folder: Path, flags: list[str]) -> None:
    from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

    arguments = {"provider": "CPUExecutionProvider", "export": True}
    model = SentenceTransformer(str(folder), device="cpu", backend="onnx", model_kwargs=arguments)
    model.save_pretrained(str(folder))
    kind = "avx512_vnni" if "avx512_vnni" in flags else "arm64" if "asimd" in flags else "avx2"
    export_dynamic_quantized_onnx_model(model, kind, str(folder), file_suffix="int8")


def _prepare_openvino(folder: Path, calibration: list[str]) -> None:
    """Static int8 by the call that `export_static_quantized_openvino_model` makes, with local texts.

    That function itself can only calibrate on a data set of the Hub.
    """
    import nncf
    from optimum.intel.openvino import OVConfig, OVQuantizationConfig, OVQuantizer
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(
        str(folder), device="cpu", backend="openvino", model_kwargs={"export": True, "ov_config": {}}
    )
    model.save_pretrained(str(folder))
    inner = getattr(model, "transformers_model", None) or model[0].auto_model
    rows = [dict(model.tokenizer([text], return_tensors="np", truncation=True)) for text in calibration]
    scratch = folder / "int8"
    OVQuantizer.from_pretrained(inner).quantize(
        calibration_dataset=nncf.Dataset(rows),
        save_directory=scratch,
        ov_config=OVConfig(quantization_config=OVQuantizationConfig(num_samples=len(rows))),
    )
    for file in scratch.rglob("openvino_model.*"):
        file.rename(folder / f"openvino/openvino_model_int8{file.suffix}")
    shutil.rmtree(scratch)


if __name__ == "__main__":
    serve(SentenceTransformers, prepare)
