"""A model as one graph: every architecture, every pooling, padding, int8, static tables, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

import gemel
from gemel.checkpoint.architecture import model_types
from gemel.cli.verbs import export as cli
from gemel.encoder.engines.onnx import MultiplyInt8
from gemel.encoder.engines.onnx_graph import add_network
from gemel.encoder.pooling import POOLINGS
from gemel.encoder.weights import read_network
from gemel.errors import InputError, ModelError, WorkError
from gemel.export import export
from gemel.export import write as run
from gemel.export.graph import PortableNodes
from gemel.export.write import feed as feed_of
from gemel.export.write import onnx_run, ready_tokenizer, write_onnx
from tiny import tiny_bert, tiny_checkpoint, tiny_tokenizer, tiny_vocabulary

TEXTS = ["a man is playing a guitar", "hello", "", "the stock market fell sharply today", "rain " * 90]


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def vectors(folder, texts=TEXTS, name="model.onnx"):
    """As a user without gemel would do it."""
    opened, tokenizer = session(folder / name), Tokenizer.from_file(str(folder / "tokenizer.json"))
    feed = feed_of(tokenizer, texts, [each.name for each in opened.get_inputs()])
    return opened.run(None, feed)[0]


def own(folder, **options):
    return gemel.load(folder).encode(TEXTS, on_long="truncate", **options)


@pytest.mark.parametrize("kind", model_types())
def test_every_architecture_is_exported_in_both_precisions(tmp_path, kind):
    pytest.importorskip("transformers", reason="the tiny models are made by transformers")
    source = tiny_checkpoint(tmp_path / "model", kind)
    done = export(source, tmp_path / "out")
    assert done.agreement.difference < 1e-5
    np.testing.assert_allclose(vectors(tmp_path / "out"), own(source), rtol=0, atol=1e-5)
    assert ("token_type_ids" in done.inputs) == (
        kind in ("albert", "bert", "deberta", "electra", "nomic_bert")
    )
    small = export(source, tmp_path / "small", precision="int8")
    assert small.agreement.cosine > 0.99
    assert small.size < 0.8 * done.size


def test_a_convolution_sees_no_padding(tmp_path):
    pytest.importorskip("transformers", reason="the tiny model is made by transformers")
    source = tiny_checkpoint(tmp_path / "model", "deberta-v2", conv_kernel_size=5, conv_act="gelu")
    export(source, tmp_path / "out")
    np.testing.assert_allclose(vectors(tmp_path / "out"), own(source), rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", [*sorted(POOLINGS), ("cls", "mean", "max")], ids=str)
@pytest.mark.parametrize("dense", [None, 8])
def test_poolings_dense_layers_and_lengths(tmp_path, pooling, dense):
    source = tiny_bert(tmp_path / "model", pooling=pooling, dense=dense, normalize=dense is None)
    export(source, tmp_path / "out")
    np.testing.assert_allclose(vectors(tmp_path / "out"), own(source), rtol=0, atol=2e-5)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    home = tmp_path_factory.mktemp("bert")
    export(tiny_bert(home / "model", prompts={"query": "q: "}), home / "float32")
    export(home / "model", home / "int8", precision="int8")
    return home


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_padding_changes_nothing(exported, precision):
    together = vectors(exported / precision)
    for row, text in zip(together, TEXTS, strict=True):
        np.testing.assert_allclose(vectors(exported / precision, [text])[0], row, rtol=0, atol=1e-6)


def test_the_padding_s_ids_do_not_matter(exported):
    opened = session(exported / "float32" / "model.onnx")
    ids = np.array([[2, 50, 60, 3, 0, 0]])
    mask = np.array([[1, 1, 1, 1, 0, 0]])
    zeros = np.zeros_like(ids)
    one = opened.run(None, {"input_ids": ids, "attention_mask": mask, "token_type_ids": zeros})[0]
    ids[0, 4:] = 77
    two = opened.run(None, {"input_ids": ids, "attention_mask": mask, "token_type_ids": zeros})[0]
    assert np.array_equal(one, two)


def test_token_types_are_those_of_the_reference(exported):
    torch = pytest.importorskip("torch", reason="the reference is in the train extra")
    from transformers import BertModel

    ids, mask = np.array([[2, 50, 60, 3, 70, 3]]), np.ones((1, 6), dtype=np.int64)
    types = np.array([[0, 0, 0, 0, 1, 1]])
    feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    given = session(exported / "float32" / "model.onnx").run(None, feed)[0][0]
    reference = BertModel.from_pretrained(exported / "model", add_pooling_layer=False).eval()
    with torch.no_grad():
        states = reference(**{name: torch.from_numpy(array) for name, array in feed.items()})
    wanted = states.last_hidden_state.numpy()[0].mean(axis=0)
    np.testing.assert_allclose(given, wanted / np.linalg.norm(wanted), rtol=0, atol=1e-5)


def test_only_standard_operators_are_used(exported):
    import onnx

    for precision in ("float32", "int8"):
        model = onnx.load(exported / precision / "model.onnx")
        assert {node.domain for node in model.graph.node} == {""}
        onnx.checker.check_model(model, full_check=True)


def test_the_folder_says_what_it_is(exported):
    facts = json.loads((exported / "int8" / "gemel_export.json").read_text())
    assert (facts["precision"], facts["pooling"], facts["dim"], facts["to"]) == ("int8", "mean", "32", "onnx")
    assert facts["weights_hash"] == gemel.load(exported / "model").weights_hash
    metadata = session(exported / "int8" / "model.onnx").get_modelmeta().custom_metadata_map
    assert metadata["max_length"] == "64"
    prompts = json.loads((exported / "int8" / "config_sentence_transformers.json").read_text())
    assert prompts["prompts"] == {"query": "q: "}


def test_transformers_reads_the_tokenizer(exported):
    transformers = pytest.importorskip("transformers", reason="in the train extra")
    folder = exported / "float32"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    actual = tokenizer(TEXTS, padding=True, truncation=True)
    ours = Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch(TEXTS)
    assert actual["input_ids"] == [encoding.ids for encoding in ours]
    assert max(map(len, actual["input_ids"])) == 64


def static_folder(folder, *, model2vec):
    folder.mkdir()
    tiny_tokenizer(folder / "tokenizer.json")
    table = np.random.default_rng(0).normal(size=(len(tiny_vocabulary()), 12)).astype(np.float32)
    save_file({"embeddings" if model2vec else "embedding.weight": table}, folder / "model.safetensors")
    if model2vec:
        content, name = {"model_type": "model2vec", "normalize": True}, "config.json"
    else:
        kind = "sentence_transformers.models.StaticEmbedding"
        content, name = [{"idx": 0, "name": "0", "path": "", "type": kind}], "modules.json"
    (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("model2vec", [False, True])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_static_tables(tmp_path, model2vec, precision):
    source = static_folder(tmp_path / "model", model2vec=model2vec)
    export(source, tmp_path / "out", precision=precision)
    # A vocabulary without these characters: unknown tokens, which model2vec ignores.
    texts = ["a cat is ⚑ sleeping", "⚑ ⚑", "", "⚑ rain " * 300 + "guitar " * 300]
    wanted = gemel.load(source).encode(texts, on_long="truncate")
    near = 1e-5 if precision == "float32" else 0.03
    np.testing.assert_allclose(vectors(tmp_path / "out", texts), wanted, rtol=0, atol=near)


def test_a_flow_and_fewer_dimensions(tmp_path):
    pytest.importorskip("torch", reason="a flow is trained with torch")
    from gemel.texts.whitening import Settings, save_postprocessed

    model = gemel.load(tiny_bert(tmp_path / "model", dense=9))
    texts = [f"{word} {other}" for word in tiny_vocabulary()[-30:] for other in ("cat", "rain", "in my sofa")]
    save_postprocessed(model, texts, tmp_path / "flow", method="flow", settings=Settings(epochs=1))
    done = export(tmp_path / "flow", tmp_path / "out", dim=4, normalize=False)
    assert done.dim == 4
    wanted = own(tmp_path / "flow", dim=4, normalize=False)
    np.testing.assert_allclose(vectors(tmp_path / "out"), wanted, rtol=1e-5, atol=1e-5)


def test_a_file_is_the_graph_alone(tmp_path):
    source = tiny_bert(tmp_path / "model")
    done = export(source, tmp_path / "out" / "tiny.onnx")
    assert done.files == ("tiny.onnx",)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tiny.onnx"]
    with pytest.raises(InputError, match="exists"):
        export(source, tmp_path / "out" / "tiny.onnx")
    export(source, tmp_path / "out" / "tiny.onnx", overwrite=True, precision="int8")


def test_weights_too_large_for_a_protobuf_go_to_a_second_file(tmp_path, monkeypatch):
    def outside(graph, path, facts):
        return write_onnx(graph, path, facts, most_inside=1000)

    monkeypatch.setattr(run, "write_onnx", outside)
    source = tiny_bert(tmp_path / "model")
    done = export(source, tmp_path / "out")
    assert {"model.onnx", "model.onnx_data"} <= set(done.files)
    np.testing.assert_allclose(vectors(tmp_path / "out"), own(source), rtol=0, atol=1e-5)
    assert export(source, tmp_path / "a.onnx").files == ("a.onnx", "a.onnx_data")
    assert session(tmp_path / "a.onnx").get_outputs()[0].name == "sentence_embedding"


def test_a_graph_with_other_results_is_not_written(tmp_path, monkeypatch):
    def wrong(path):
        return lambda feed: np.ones((len(feed["input_ids"]), 32), dtype=np.float32)

    monkeypatch.setattr(run, "onnx_run", wrong)
    source = tiny_bert(tmp_path / "model")
    for out in ("folder", "file.onnx"):
        with pytest.raises(WorkError, match="does not agree with model"):
            export(source, tmp_path / out)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_only_an_export_is_overwritten(tmp_path):
    source, out = tiny_bert(tmp_path / "model"), tmp_path / "out"
    export(source, out)
    with pytest.raises(InputError, match="not empty"):
        export(source, out)
    export(source, out, precision="int8", overwrite=True)
    assert json.loads((out / "gemel_export.json").read_text())["precision"] == "int8"
    with pytest.raises(InputError, match="only an export is overwritten"):
        export(source, source, overwrite=True)


def test_licenses_are_copied(tmp_path):
    source = tiny_bert(tmp_path / "model")
    (source / "LICENSE").write_text("free")
    assert "LICENSE" in export(source, tmp_path / "out").files


def test_models_that_cannot_be_exported_are_refused_with_a_reason(tmp_path):
    source = tiny_bert(tmp_path / "model", prompts={"query": "q: "})
    with pytest.raises(InputError, match="dim must be at most 32"):
        export(source, tmp_path / "out", dim=33)
    with pytest.raises(InputError, match="to must be one of onnx, openvino"):
        export(source, tmp_path / "out", to="tflite")
    with pytest.raises(InputError, match="a folder in float32"):
        export(source, tmp_path / "out", to="openvino", precision="int8")
    config = source / "1_Pooling" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "include_prompt": False}))
    with pytest.raises(ModelError, match="out of the pooling"):
        export(source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_openvino_is_requested_by_name(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(InputError, match="pip install openvino"):
        export(tiny_bert(tmp_path / "model"), tmp_path / "out", to="openvino")


def test_an_openvino_folder_gives_the_same_vectors(tmp_path):
    openvino = pytest.importorskip("openvino", reason="openvino is not in the test extra (about 180 MB)")
    source = tiny_bert(tmp_path / "model", dense=8)
    done = export(source, tmp_path / "out", to="openvino")
    assert {"openvino_model.xml", "openvino_model.bin"} <= set(done.files)
    assert "model.onnx" not in done.files
    compiled = openvino.Core().compile_model(str(tmp_path / "out" / "openvino_model.xml"), "CPU")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    given = compiled(feed_of(tokenizer, TEXTS, done.inputs))["sentence_embedding"]
    np.testing.assert_allclose(given, own(source), rtol=0, atol=0.02)  # bfloat16 where the processor has it


def test_the_command(tmp_path):
    source = tiny_bert(tmp_path / "model", prompts={"query": "q: "})
    words = [str(source), "-o", str(tmp_path / "out"), "--precision", "int8"]
    result = CliRunner().invoke(cli.command, words, catch_exceptions=False)
    assert "onnx in int8" in result.stdout
    assert "checked on 45 texts" in result.stdout
    assert "prompt query: put 'q: ' in front" in result.stdout
    words = [str(source), "-o", str(tmp_path / "x.onnx"), "--dim", "5", "--no-normalize", "--json"]
    facts = json.loads(CliRunner().invoke(cli.command, words, catch_exceptions=False).stdout)
    assert (facts["dim"], facts["files"], facts["output"]) == (5, ["x.onnx"], "sentence_embedding")


def loud_bert(folder):
    """A network like trained ones: a few outlier channels, and rows with a common offset."""
    source = tiny_bert(folder, width=64, layers=6, heads=4, normalize=True)
    weights = dict(load_file(source / "model.safetensors"))
    for layer in range(6):
        for norm in ("attention.output.LayerNorm", "output.LayerNorm"):
            name = f"encoder.layer.{layer}.{norm}"
            weights[f"{name}.weight"] = weights[f"{name}.weight"].copy()
            weights[f"{name}.bias"] = weights[f"{name}.bias"].copy()
            weights[f"{name}.weight"][[3, 17]] *= 12
            weights[f"{name}.bias"][[3, 40]] += np.float32(8)
    save_file(weights, source / "model.safetensors")
    return source


def test_int8_is_as_near_as_the_native_engine_on_a_text_of_one_word(tmp_path):
    model = gemel.load(loud_bert(tmp_path / "loud"))
    texts = ["the " * 60, "man " * 40, "a", "cat dog " * 20]
    wanted = model.encode(texts, on_long="truncate")
    export(model, tmp_path / "out.onnx", precision="int8")
    feed = feed_of(
        ready_tokenizer(model.checkpoint), texts, ("input_ids", "attention_mask", "token_type_ids")
    )
    given = onnx_run(tmp_path / "out.onnx")(feed)
    assert (given * wanted).sum(axis=1).min() > 0.995


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_no_constant_of_a_graph_is_unused(tmp_path, precision):
    import onnx

    export(tiny_bert(tmp_path / "tiny"), tmp_path / "out.onnx", precision=precision)
    graph = onnx.load(str(tmp_path / "out.onnx")).graph
    used = {name for node in graph.node for name in node.input}
    assert not [constant.name for constant in graph.initializer if constant.name not in used]


def test_shared_weights_are_stored_once_in_int8(tmp_path):
    source = tiny_bert(tmp_path / "tiny", width=64, layers=1)
    one = export(source, tmp_path / "one.onnx", precision="int8").size
    model = gemel.load(source)
    network = read_network(model.checkpoint.config, model.checkpoint.weights)
    nodes = PortableNodes()
    add_network(
        nodes,
        replace(network, blocks=network.blocks * 8),
        MultiplyInt8(8, low_ends=True),
        "words",
        ids="input_ids",
    )
    integers = [array for array in nodes.arrays.values() if array.dtype == np.uint8 and array.ndim == 2]
    assert one > 0 and len(integers) == 4
