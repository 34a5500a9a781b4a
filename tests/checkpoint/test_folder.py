"""Every layout of a model's folder, as files on disk -> `Checkpoint`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from gemel.checkpoint.folder import PoolingConfig, read_checkpoint, static_table
from gemel.errors import ModelError
from tiny import POOLINGS, tiny_bert, tiny_tokenizer, tiny_vocabulary


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def modules(folder: Path, *steps: tuple[str, str]) -> None:
    write(
        folder / "modules.json",
        [{"idx": n, "name": str(n), "path": path, "type": kind} for n, (kind, path) in enumerate(steps)],
    )


def change(path: Path, **values: object) -> None:
    content = json.loads(path.read_text())
    content.update(values)
    write(path, {key: value for key, value in content.items() if value != "gone"})


def static(folder: Path, tensors: dict[str, np.ndarray], *, config: object = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    tiny_tokenizer(folder / "tokenizer.json")
    if config is not None:
        write(folder / "config.json", config)
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_checkpoint(folder)
    return str(caught.value)


def test_the_sentence_transformers_layout(tmp_path):
    folder = tiny_bert(tmp_path / "tiny", dense=8, prompts={"query": "query: ", "document": ""})
    result = read_checkpoint(folder)
    assert (result.name, result.kind, result.folder) == ("tiny", "transformer", folder)
    assert result.config["model_type"] == "bert"
    assert result.weights["embeddings.word_embeddings.weight"].shape == (len(tiny_vocabulary()), 32)
    assert result.tokenizer_file == folder / "tokenizer.json"
    assert result.max_length == 64
    assert result.pooling == PoolingConfig(("mean",))
    assert [(layer.weight.shape, layer.activation) for layer in result.dense] == [((8, 32), "tanh")]
    assert result.dense[0].bias is not None
    assert result.dense[0].bias.shape == (8,)
    assert result.normalize
    assert result.prompts == {"query": "query: ", "document": ""}
    assert result.default_prompt_name is None
    assert result.similarity == "cosine"
    assert result.notes == ()
    assert (result.width, result.dim) == (32, 8)
    assert [path.name for path in result.parts] == ["model.safetensors", "model.safetensors"]


def test_new_class_paths_mean_the_same_as_old_ones(tmp_path):
    folder = tiny_bert(tmp_path / "tiny", dense=8)
    modules(
        folder,
        ("sentence_transformers.base.modules.transformer.Transformer", ""),
        ("sentence_transformers.sentence_transformer.modules.pooling.Pooling", "1_Pooling"),
        ("sentence_transformers.base.modules.dense.Dense", "2_Dense"),
        ("sentence_transformers.base.modules.normalize.Normalize", "3_Normalize"),
    )
    names = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
    write(folder / "3_Normalize" / "config.json", names)
    change(folder / "2_Dense" / "config.json", **names)
    result = read_checkpoint(folder)
    assert result.normalize
    assert len(result.dense) == 1


def test_the_transformer_may_live_in_a_sub_folder(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    inner = folder / "0_Transformer"
    inner.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "sentence_bert_config.json"):
        (folder / name).rename(inner / name)
    modules(
        folder,
        ("sentence_transformers.models.Transformer", "0_Transformer"),
        ("sentence_transformers.models.Pooling", "./1_Pooling"),
    )
    result = read_checkpoint(folder)
    assert result.max_length == 64
    assert result.tokenizer_file == inner / "tokenizer.json"
    assert not result.normalize


@pytest.mark.parametrize("mode", POOLINGS)
def test_every_pooling_by_its_old_flag(tmp_path, mode):
    assert read_checkpoint(tiny_bert(tmp_path / "tiny", pooling=mode)).pooling == PoolingConfig((mode,))


NEW_NAMES = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean-sqrt-len",
    "weightedmean": "weighted-mean",
    "lasttoken": "last",
}


@pytest.mark.parametrize(("name", "mode"), NEW_NAMES.items())
def test_every_pooling_by_its_new_name(tmp_path, name, mode):
    folder = tiny_bert(tmp_path / "tiny")
    write(folder / "1_Pooling" / "config.json", {"embedding_dimension": 32, "pooling_mode": name})
    assert read_checkpoint(folder).pooling == PoolingConfig((mode,))


def test_old_flags_are_joined_in_one_fixed_order(tmp_path):
    folder = tiny_bert(tmp_path / "tiny", pooling=list(reversed(list(POOLINGS))))
    result = read_checkpoint(folder)
    assert result.pooling.modes == ("cls", "max", "mean", "mean-sqrt-len", "weighted-mean", "last")
    assert result.dim == 6 * 32


def test_new_names_are_joined_in_the_order_of_the_list(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    config = {"pooling_mode": ["mean", "cls"], "include_prompt": False, "pooling_mode_max_tokens": True}
    write(folder / "1_Pooling" / "config.json", config)
    assert read_checkpoint(folder).pooling == PoolingConfig(("mean", "cls"), include_prompt=False)


def test_mean_pooling_is_the_default_without_flags(tmp_path):
    folder = tiny_bert(tmp_path / "tiny", pooling=[])
    assert read_checkpoint(folder).pooling == PoolingConfig(("mean",))


@pytest.mark.parametrize("bad", ["maen", [], ["mean", "x"], 3, {"mean": True}, [["mean"]]])
def test_an_unknown_pooling_is_refused(tmp_path, bad):
    folder = tiny_bert(tmp_path / "tiny")
    write(folder / "1_Pooling" / "config.json", {"pooling_mode": bad})
    assert "unknown pooling" in refusal(folder)


@pytest.mark.parametrize("word", ["Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU", "LeakyReLU", "ELU"])
def test_every_activation_of_a_dense_layer(tmp_path, word):
    folder = tiny_bert(tmp_path / "tiny", dense=4)
    change(folder / "2_Dense" / "config.json", activation_function=f"torch.nn.modules.activation.{word}")
    assert read_checkpoint(folder).dense[0].activation == word.lower()


def test_several_dense_layers_one_without_bias(tmp_path):
    folder = tiny_bert(tmp_path / "tiny", dense=8, normalize=False)
    (folder / "3_Dense").mkdir()
    save_file({"linear.weight": np.ones((4, 8), np.float32)}, folder / "3_Dense" / "model.safetensors")
    write(folder / "3_Dense" / "config.json", {"activation_function": "torch.nn.modules.linear.Identity"})
    listed = json.loads((folder / "modules.json").read_text())
    listed.append({"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"})
    write(folder / "modules.json", listed)
    result = read_checkpoint(folder)
    assert [layer.weight.shape for layer in result.dense] == [(8, 32), (4, 8)]
    assert result.dense[1].bias is None
    assert result.dim == 4


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"activation_function": "my_code.Swish"}, "unknown activation 'my_code.Swish'"),
        ({"activation_function": "my_code.Tanh"}, "unknown activation 'my_code.Tanh'"),
        ({"activation_function": "torch.nn.modules.activation.PReLU"}, "Known, of torch.nn: Identity, Tanh"),
        ({"use_residual": True}, "residual"),
        ({"module_input_name": "token_embeddings"}, "'token_embeddings' is not supported"),
    ],
)
def test_a_dense_layer_of_another_kind_is_refused(tmp_path, config, reason):
    folder = tiny_bert(tmp_path / "tiny", dense=4)
    change(folder / "2_Dense" / "config.json", **config)
    assert reason in refusal(folder)


def test_a_dense_layer_that_does_not_fit_is_refused(tmp_path):
    folder = tiny_bert(tmp_path / "tiny", dense=4)
    save_file({"linear.weight": np.ones((4, 33), np.float32)}, folder / "2_Dense" / "model.safetensors")
    assert "takes 33 numbers, but gets 32" in refusal(folder)
    save_file({"weight": np.ones((4, 32), np.float32)}, folder / "2_Dense" / "model.safetensors")
    assert "needs the tensor 'linear.weight'" in refusal(folder)


@pytest.mark.parametrize(
    "kind",
    [
        "my_package.Router",
        "my_package.Transformer",
        "Transformer",
        "transformers_modules.remote.code.Pooling",
    ],
)
def test_an_unknown_module_is_named(tmp_path, kind):
    folder = tiny_bert(tmp_path / "tiny")
    modules(folder, (kind, ""))
    assert f"unknown module {kind!r}" in refusal(folder)


@pytest.mark.parametrize(
    "order",
    [
        ("Pooling", "Transformer"),
        ("Transformer", "Transformer"),
        ("Transformer", "Pooling", "Pooling"),
        ("Transformer", "Pooling", "Normalize", "Dense"),
        ("Transformer", "Dense", "Pooling"),
        ("StaticEmbedding", "Pooling"),
    ],
)
def test_modules_in_an_order_that_means_something_else_are_refused(tmp_path, order):
    folder = tiny_bert(tmp_path / "tiny", dense=4)
    paths = {
        "Transformer": "",
        "StaticEmbedding": "",
        "Pooling": "1_Pooling",
        "Dense": "2_Dense",
        "Normalize": "n",
    }
    modules(folder, *((f"sentence_transformers.models.{kind}", paths[kind]) for kind in order))
    assert "has an unsupported position" in refusal(folder)


def test_dropout_and_a_second_normalize_change_nothing(tmp_path):
    folder = tiny_bert(tmp_path / "tiny", normalize=False)
    words = [
        ("Transformer", ""),
        ("Pooling", "1_Pooling"),
        ("Dropout", "d"),
        ("Normalize", "n"),
        ("Normalize", "m"),
    ]
    modules(folder, *((f"sentence_transformers.models.{word}", path) for word, path in words))
    assert read_checkpoint(folder).normalize


@pytest.mark.parametrize(
    "trick", ["../other", "/etc", "a/../../b", "..\\other", "C:\\model", "\\\\server\\share", "a\0b"]
)
def test_module_paths_stay_inside_the_folder(tmp_path, trick):
    folder = tiny_bert(tmp_path / "tiny")
    modules(folder, ("sentence_transformers.models.Transformer", trick))
    assert "leaves the model's folder" in refusal(folder)


@pytest.mark.parametrize(
    "content", ["{}", "[]", "[3]", '[{"path": ""}]', "nonsense", '[{"type": 3, "path": ""}]']
)
def test_a_damaged_modules_file_is_refused(tmp_path, content):
    folder = tiny_bert(tmp_path / "tiny")
    (folder / "modules.json").write_text(content)
    assert "modules.json" in refusal(folder)


def test_a_json_file_that_is_too_large_is_not_read(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    with (folder / "config.json").open("r+b") as stream:
        stream.truncate(10 * 2**20 + 1)
    assert "at most 10,485,760 are read" in refusal(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.ckpt", "model.pth"])
def test_a_pickle_is_refused_with_the_command_that_converts_it(tmp_path, name):
    folder = tiny_bert(tmp_path / "my model")
    (folder / "model.safetensors").rename(folder / name)
    message = refusal(folder)
    assert f"{name} is a pickle" in message
    assert message.endswith(f"gemel models convert '{folder}'")


def test_a_pickled_dense_layer_is_refused_too(tmp_path):
    folder = tiny_bert(tmp_path / "tiny", dense=4)
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    assert refusal(folder).endswith(f"gemel models convert {folder}")


def test_a_folder_without_weights_is_refused(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    (folder / "model.safetensors").unlink()
    assert "expected a file named model.safetensors" in refusal(folder)


def test_a_missing_folder_and_an_empty_folder_are_refused(tmp_path):
    assert "no model folder" in refusal(tmp_path / "absent")
    assert "neither modules.json nor config.json" in refusal(tmp_path)


def test_a_plain_encoder_uses_mean_pooling_and_reports_it(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (folder / name).unlink()
    result = read_checkpoint(folder)
    assert result.pooling == PoolingConfig(("mean",))
    assert not result.normalize
    assert result.max_length == 128
    assert re.search("averaged", result.notes[0])


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "last"),
        ({"architectures": ["Qwen3ForCausalLM"], "is_causal": False}, "mean"),
        ({"architectures": ["BertForMaskedLM"]}, "mean"),
        ({"architectures": "Qwen3ForCausalLM"}, "mean"),
    ],
)
def test_a_plain_language_model_uses_last_token_pooling_and_reports_it(tmp_path, config, mode):
    folder = tiny_bert(tmp_path / "tiny")
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (folder / name).unlink()
    change(folder / "config.json", **config)
    result = read_checkpoint(folder)
    assert result.pooling == PoolingConfig((mode,))
    assert ("last token" if mode == "last" else "averaged") in result.notes[0]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"model.gguf": ""}, "model.gguf holds the model in the format GGUF"),
        ({"config.json": "{}", "model.onnx": ""}, "model.onnx holds the model in the format ONNX"),
        ({"config.json": "{}", "onnx/model.onnx": ""}, "onnx/model.onnx holds the model in the format ONNX"),
        ({"config.json": "{}", "tf_model.h5": ""}, "in the format TensorFlow"),
    ],
)
def test_a_folder_of_another_format_is_named_as_what_it_is(tmp_path, files, message):
    for name, content in files.items():
        path = tmp_path / "other" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert message in refusal(tmp_path / "other")


def test_a_folder_of_another_format_is_named_when_it_is_loaded_by_its_name(tmp_path, monkeypatch):
    from gemel.checkpoint.sources import find_model

    (tmp_path / "some-model").mkdir()
    (tmp_path / "some-model" / "model.gguf").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"model\.gguf holds the model in the format GGUF"):
        find_model("some-model", offline=True)


@pytest.mark.parametrize("name", ["spiece.model", "sentencepiece.bpe.model", "tokenizer.model"])
def test_a_sentencepiece_tokenizer_alone_requires_sentencepiece(tmp_path, name):
    folder = tiny_bert(tmp_path / "tiny")
    (folder / "tokenizer.json").rename(folder / name)
    assert f"and sentencepiece, for {name}" in refusal(folder)


def test_modules_without_a_pooling_use_mean_pooling_and_report_it(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    modules(folder, ("sentence_transformers.models.Transformer", ""))
    assert "no pooling is configured" in read_checkpoint(folder).notes[0]


@pytest.mark.parametrize(
    ("own", "tokenizer", "config", "expected"),
    [
        ({"max_seq_length": 20}, {"model_max_length": 50}, {}, 20),
        ({}, {"model_max_length": 50}, {}, 50),
        ({"max_seq_length": None}, {"model_max_length": 1e30}, {}, 128),
        ({}, {"model_max_length": 1000000000000000019884624838656}, {}, 128),
        ({}, {"model_max_length": 512}, {}, 128),
        ({}, {"model_max_length": float("-inf")}, {}, 128),
        ({}, {"model_max_length": float("nan")}, {}, 128),
        ({}, {"model_max_length": -1}, {}, 128),
        ({"max_seq_length": 999}, {}, {}, 128),
        ({}, {}, {"model_type": "roberta", "pad_token_id": 1}, 126),
        ({}, {}, {"model_type": "mpnet"}, 127),
        ({}, {}, {"max_position_embeddings": "gone"}, None),
        ({"max_seq_length": 77}, {}, {"max_position_embeddings": "gone"}, 77),
    ],
)
def test_the_length_limit(tmp_path, own, tokenizer, config, expected):
    folder = tiny_bert(tmp_path / "tiny", max_positions=128)
    write(folder / "sentence_bert_config.json", own)
    write(folder / "tokenizer_config.json", tokenizer)
    change(folder / "config.json", **config)
    assert read_checkpoint(folder).max_length == expected


@pytest.mark.parametrize("kind", ["roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"])
def test_length_and_case_under_the_file_name_of_another_architecture(tmp_path, kind):
    folder = tiny_bert(tmp_path / "tiny")
    (folder / "sentence_bert_config.json").unlink()
    write(folder / f"sentence_{kind}_config.json", {"max_seq_length": 33, "do_lower_case": True})
    result = read_checkpoint(folder)
    assert result.max_length == 33
    assert result.lowercase


def test_prompts_and_similarity(tmp_path):
    folder = tiny_bert(tmp_path / "tiny", prompts={"query": "q: "})
    settings = folder / "config_sentence_transformers.json"
    change(settings, default_prompt_name="query", similarity_fn_name="dot")
    result = read_checkpoint(folder)
    assert (result.default_prompt_name, result.similarity) == ("query", "dot")
    change(settings, default_prompt_name="passage")
    assert "default prompt 'passage' is not among" in refusal(folder)
    change(settings, default_prompt_name=None, similarity_fn_name=None)
    assert read_checkpoint(folder).similarity is None


@pytest.mark.parametrize("kind", ["SparseEncoder", "CrossEncoder"])
def test_models_of_another_kind_are_refused(tmp_path, kind):
    folder = tiny_bert(tmp_path / "tiny")
    change(folder / "config_sentence_transformers.json", model_type=kind)
    named = "sparse encoder" if kind == "SparseEncoder" else "cross-encoder, not a sentence encoder"
    assert f"is a {named}" in refusal(folder)


def test_a_transformer_for_another_task_is_refused(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    write(folder / "sentence_bert_config.json", {"transformer_task": "fill-mask"})
    assert "'fill-mask' is not supported" in refusal(folder)


def test_code_that_comes_with_a_checkpoint_is_never_run(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    change(folder / "config.json", auto_map={"AutoModel": "evil.Model"})
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    assert read_checkpoint(folder).kind == "transformer"


def test_a_static_embedding_module(tmp_path):
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    folder = static(tmp_path / "static", {"embedding.weight": table})
    modules(
        folder,
        ("sentence_transformers.models.StaticEmbedding", "."),
        ("sentence_transformers.models.Normalize", "1_Normalize"),
    )
    result = read_checkpoint(folder)
    assert (result.kind, result.normalize, result.dim, result.max_length) == ("static", True, 3, None)
    assert not result.skip_unknown
    assert np.array_equal(static_table(result), table)
    assert not static_table(result).flags.owndata


def test_a_plain_model2vec_folder(tmp_path):
    tensors = {
        "embeddings": np.array([[1, 2], [3, 4]], np.float16),
        "mapping": np.array([1, 0, 1]),
        "weights": np.array([1.0, 2.0, 0.5]),
    }
    folder = static(tmp_path / "m2v", tensors, config={"model_type": "model2vec", "normalize": True})
    result = read_checkpoint(folder)
    assert (result.kind, result.normalize, result.dim, result.max_length) == ("static", True, 2, 512)
    assert result.skip_unknown
    assert static_table(result).tolist() == [[3, 4], [2, 4], [1.5, 2]]
    assert static_table(result).dtype == np.float32


def test_a_static_folder_without_a_table_or_with_a_wrong_mapping_is_refused(tmp_path):
    config = {"model_type": "model2vec"}
    folder = static(tmp_path / "a", {"other": np.ones((2, 2), np.float32)}, config=config)
    assert "no token table" in refusal(folder)
    wrong = {"embeddings": np.ones((2, 2), np.float32), "mapping": np.array([0, 2])}
    with pytest.raises(ModelError, match="points outside"):
        static_table(read_checkpoint(static(tmp_path / "b", wrong, config=config)))
    wrong = {"embeddings": np.ones((2, 2), np.float32), "weights": np.ones(3)}
    with pytest.raises(ModelError, match="token weights of shape"):
        static_table(read_checkpoint(static(tmp_path / "c", wrong, config=config)))


def test_a_snapshot_of_the_hub_is_called_by_its_repository(tmp_path):
    folder = tiny_bert(tmp_path / "models--org--name" / "snapshots" / "0123abc")
    assert read_checkpoint(folder).name == "org/name"
    assert read_checkpoint(folder, name="mine").name == "mine"


STRANGE: tuple[object, ...] = (None, True, 3, -1, 1e30, "x", "", [], {}, [3], {"x": 3})


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "config_sentence_transformers.json",
        "sentence_bert_config.json",
        "tokenizer_config.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
    ],
)
def test_an_unexpected_value_anywhere_is_read_or_refused_but_never_crashes(tmp_path, name):
    folder = tiny_bert(tmp_path / "tiny", dense=4, prompts={"query": "q"})
    write(folder / "tokenizer_config.json", {"model_max_length": 64})
    path = folder / name
    original = json.loads(path.read_text())
    for value in (*STRANGE, *({**original, key: value} for key in original for value in STRANGE)):
        write(path, value)
        try:
            result = read_checkpoint(folder)
        except ModelError:
            continue
        assert result.dim == 4
        assert result.max_length is None or result.max_length > 0


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        *((kind, "it works on whole words") for kind in ("WordEmbeddings", "WordWeights", "BoW")),
        *((kind, "it runs a second network") for kind in ("CNN", "LSTM")),
        ("WeightedLayerPooling", "it mixes the hidden states of several layers"),
        ("CLIPModel", "it encodes images"),
    ],
)
def test_a_module_that_is_not_supported_is_named_with_the_reason(tmp_path, kind, reason):
    folder = tiny_bert(tmp_path / "tiny")
    for home in ("models", f"sentence_transformer.modules.{kind.lower()}"):
        modules(folder, (f"sentence_transformers.{home}.{kind}", ""))
        assert f"the module {kind!r} is not supported: {reason}" in refusal(folder)


@pytest.mark.parametrize("dtype", [np.float16, np.int8])
def test_a_static_table_of_small_numbers(tmp_path, dtype):
    table = np.arange(3 * len(tiny_vocabulary())).reshape(-1, 3).astype(dtype)
    folder = static(tmp_path / "tiny", {"embeddings": table}, config={"model_type": "model2vec"})
    np.testing.assert_array_equal(static_table(read_checkpoint(folder)), table.astype(np.float32))
    # As model2vec saves it for sentence-transformers: the module is the folder itself.
    modules(folder, ("sentence_transformers.models.StaticEmbedding", "."))
    np.testing.assert_array_equal(static_table(read_checkpoint(folder)), table.astype(np.float32))


def test_a_layer_norm_that_does_not_fit_is_refused(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    modules(
        folder,
        ("sentence_transformers.models.Transformer", ""),
        ("sentence_transformers.models.Pooling", "1_Pooling"),
        ("sentence_transformers.models.LayerNorm", "2_LayerNorm"),
    )
    write(folder / "2_LayerNorm" / "config.json", {"dimension": 32})
    tensors = {"norm.weight": np.ones(32, np.float32)}
    save_file(tensors, folder / "2_LayerNorm" / "model.safetensors")
    assert "needs the tensor 'norm.bias'" in refusal(folder)
    tensors |= {"norm.bias": np.ones(31, np.float32)}
    save_file(tensors, folder / "2_LayerNorm" / "model.safetensors")
    assert "bias of shape (31,)" in refusal(folder)
    tensors = {name: np.ones(16, np.float32) for name in tensors}
    save_file(tensors, folder / "2_LayerNorm" / "model.safetensors")
    assert "takes 16 numbers, but gets 32" in refusal(folder)
