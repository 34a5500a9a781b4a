"""A program for each extra that must run where nothing but gemel and that extra is installed.

A program finds a small model in the folder `model`. It starts in an empty folder and needs no network.
"""

from __future__ import annotations

START = (
    'import gemel\nmodel = gemel.load("./model")\ntexts = ["hello world", "a man is playing a guitar"] * 8\n'
)
DEVELOPERS = {"test", "test-scale", "docs"}
"""Extras for working on gemel, not for using it."""

VECTORS = """
import hashlib, json, os
from importlib.resources import files
import gemel
from gemel.encoder.engines import native

texts = files("gemel.texts").joinpath("sentences.txt").read_text(encoding="utf-8").splitlines()[:200]
found = {}
for level in native.levels() or ["none"]:
    os.environ["GEMEL_KERNEL"] = level if native.levels() else ""
    model = gemel.load("./model")
    found[level] = hashlib.sha256(model.encode(texts).astype("<f4").tobytes()).hexdigest()[:16]
print(json.dumps({"engine": model.engine_name, "levels": found}))
"""
"""Prints the engine and, for each processor level, a hash of the vectors of 200 texts."""

PROMISES = {
    "core": """
assert model.engine_name == "native", f"{model.engine_name}: were the kernels compiled?"
vectors = model.encode(texts)
assert len(gemel.similar_pairs(vectors, k=3)) == 3
assert gemel.search(vectors[:1], vectors, k=1).index.tolist() == [[0]]
""",
    "onnxruntime": """
assert gemel.load("./model", engine="onnxruntime").encode(texts).shape == (len(texts), model.dim)
from gemel.export import export
assert export(model, "m.onnx").agreement.difference < 1e-5
""",
    "hub": """
from gemel.checkpoint.sources import hub_installed
assert hub_installed()
""",
    "gguf": """
import gguf
from gemel.checkpoint.gguf_file import GgufFile
writer = gguf.GGUFWriter("m.gguf", "bert")
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.close()
assert GgufFile(__import__("pathlib").Path("m.gguf")).get("general.architecture") == "bert"
""",
    "files": """
open("notes.md", "w").write("# Title\\n\\nA text.\\n")
assert [each.heading for each in gemel.read_documents("notes.md")] == ["Title"]
import docx, pypdf, selectolax.lexbor
""",
    "parquet": """
import pyarrow, pyarrow.parquet
pyarrow.parquet.write_table(pyarrow.table({"text": texts}), "texts.parquet")
from gemel.cli.main import main
assert main(["encode", "texts.parquet", "--model", "model", "-o", "vectors"]) == 0
""",
    "pandas": """
assert len(gemel.similar_pairs(model.encode(texts), k=3).to_pandas()) == 3
""",
    "index": """
with gemel.open_index("tickets", model="model") as index:
    index.add(texts[:2], ids=["a", "b"])
    assert index.search("hello world", k=1)[0].id == "a"
""",
    "postgres": """
import psycopg, psycopg_pool
import gemel.index.postgres
""",
    "stemming": """
with gemel.open_index(":memory:", model="model", stemming="english") as index:
    index.add(["two connections", "a guitar"], ids=["a", "b"])
    assert index.search("connected", k=1, hybrid=True)[0].id == "a"
""",
    "serve": """
import orjson, prometheus_client, pydantic, starlette, uvicorn
import gemel.serve.app, gemel.serve.run
""",
    "ray": """
import ray, ray.data
import gemel.integrations.ray
""",
    "evaluate": """
rows = "".join(f"{left}\\t{right}\\t{n}\\n" for n, (left, right) in enumerate(zip(texts, texts[1:])))
open("sts.tsv", "w").write("sentence1\\tsentence2\\tscore\\n" + rows)
from gemel.cli.main import main
assert main(["evaluate", "model", "--task", "sts", "--data", "sts.tsv"]) == 0
""",
    "mteb": """
import mteb
from gemel.integrations.mteb import GemelEncoder
assert GemelEncoder(model).mteb_model_meta is not None
""",
    "langchain": """
from gemel.integrations.langchain import GemelEmbeddings
assert len(GemelEmbeddings("model").embed_query("hello")) == model.dim
""",
    "llama-index": """
from gemel.integrations.llama_index import GemelEmbedding
assert len(GemelEmbedding("model").get_query_embedding("hello")) == model.dim
""",
    "haystack": """
from gemel.integrations.haystack import GemelTextEmbedder
assert len(GemelTextEmbedder("model").run("hello")["embedding"]) == model.dim
""",
    "bertopic": """
import bertopic
from gemel.integrations.bertopic import GemelBackend
assert GemelBackend(model).embed(texts).shape == (len(texts), model.dim)
""",
    "train": """
rows = "".join(f"text number {n}\\tthe other text of {n}\\n" for n in range(16))
open("pairs.tsv", "w").write("anchor\\tpositive\\n" + rows)
from gemel.cli.main import main
words = "train pairs.tsv --model model --objective in-batch-ranking --epochs 1 -o out"
assert main(words.split()) == 0
assert gemel.load("out").dim == model.dim
""",
    "lora": """
import peft
import gemel.training.run
""",
}
"""Extra -> program; "core" is gemel without any."""


def program(extra: str) -> str:
    """The whole program of an extra."""
    return START + PROMISES[extra].lstrip("\n")
