"""A model saved and loaded again is the same model, in the layout that others read."""

import json
from dataclasses import replace

import numpy as np
import pytest

import gemel
from gemel.checkpoint.files import Tensors
from gemel.checkpoint.folder import read_checkpoint
from gemel.checkpoint.head import Coupling, Dense, Flow
from gemel.checkpoint.write import write_checkpoint
from gemel.errors import InputError, ModelError, WorkError
from gemel.texts.whitening import Settings, save_postprocessed
from tiny import tiny_bert, tiny_tokenizer

# The tests are about other things than prompts.
pytestmark = pytest.mark.filterwarnings("ignore::gemel.PromptWarning")

TEXTS = ["a man is playing a guitar", "hello world", "", "how do i reset my password " * 20, "日本語 !"]
MANY = [
    f"{a} {b} is {c}" for a in ("the", "my") for b in ("man", "cat", "dog") for c in ("running", "sleeping")
]


def encode(folder, **options):
    return gemel.load(folder).encode(TEXTS, on_long="truncate", **options)


def linear(outputs, inputs, seed=0):
    random = np.random.default_rng(seed)
    weight, bias = random.normal(size=(outputs, inputs)), random.normal(size=outputs)
    return Dense(weight.astype(np.float32), bias.astype(np.float32), "identity")


def flow(dim, seed=0):
    random = np.random.default_rng(seed)
    half, start = dim // 2, linear(dim, dim, seed)

    def numbers(*shape):
        return random.normal(0, 0.3, shape).astype(np.float32)

    steps = tuple(
        Coupling(
            random.permutation(dim),
            numbers(7, half),
            numbers(7),
            numbers(2 * (dim - half), 7),
            numbers(2 * (dim - half)),
        )
        for _ in range(3)
    )
    return Flow(start.weight, start.bias, "flow", steps)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dense": 8, "normalize": False},
        {"pooling": ("cls", "mean"), "prompts": {"query": "hello "}},
        {"pooling": "last", "max_length": 12, "similarity": "dot"},
    ],
    ids=str,
)
def test_a_saved_model_gives_the_same_bits_and_the_same_fingerprint(tmp_path, settings):
    model = gemel.load(tiny_bert(tmp_path / "one", **settings))
    assert model.save(tmp_path / "two") == tmp_path / "two"
    again = gemel.load(tmp_path / "two")
    assert np.array_equal(encode(tmp_path / "one"), encode(tmp_path / "two"))
    assert again.fingerprint == model.fingerprint
    first, second = model.checkpoint, again.checkpoint
    for name in ("prompts", "similarity", "max_length", "pooling", "normalize", "lowercase"):
        assert getattr(first, name) == getattr(second, name)


def test_poolings_in_an_order_that_flags_cannot_express(tmp_path):
    folder = tiny_bert(tmp_path / "one")
    model = gemel.load(folder, pooling=("mean", "cls"))
    model.save(tmp_path / "two")
    assert np.array_equal(gemel.load(tmp_path / "two").encode(TEXTS[:2]), model.encode(TEXTS[:2]))


def test_a_transformer_in_a_sub_folder_moves_to_the_top(tmp_path):
    inner = tiny_bert(tmp_path / "one" / "0_Transformer")
    modules = json.loads((inner / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (tmp_path / "one" / "modules.json").write_text(json.dumps(modules))
    (inner / "1_Pooling").rename(tmp_path / "one" / "1_Pooling")
    gemel.load(tmp_path / "one").save(tmp_path / "two")
    assert (tmp_path / "two" / "model.safetensors").is_file()
    assert np.array_equal(encode(tmp_path / "one"), encode(tmp_path / "two"))


def test_shards_and_their_index_are_kept(tmp_path):
    from safetensors.numpy import save_file

    folder = tiny_bert(tmp_path / "one")
    before = encode(folder)
    tensors = {name: np.array(array) for name, array in Tensors.of_folder(folder).items()}
    names = sorted(tensors)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    (folder / "model.safetensors").unlink()
    for shard, part in shards.items():
        save_file({name: tensors[name] for name in part}, folder / shard)
    index = {"weight_map": {name: shard for shard, part in shards.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    gemel.load(folder).save(tmp_path / "two")
    assert np.array_equal(encode(tmp_path / "two"), before)


def test_a_static_table_with_a_dense_layer(tmp_path):
    from safetensors.numpy import save_file

    folder = tmp_path / "one" / "0_StaticEmbedding"
    folder.mkdir(parents=True)
    tiny_tokenizer(folder / "tokenizer.json")
    table = np.random.default_rng(0).normal(size=(400, 6)).astype(np.float32)
    save_file({"embedding.weight": table}, folder / "model.safetensors")
    kind = "sentence_transformers.models.StaticEmbedding"
    listed = [{"idx": 0, "name": "0", "path": "0_StaticEmbedding", "type": kind}]
    (tmp_path / "one" / "modules.json").write_text(json.dumps(listed))
    model = gemel.load(tmp_path / "one")
    layer = linear(4, 6)
    write_checkpoint(model.checkpoint, tmp_path / "two", dense=[layer])
    plain = model.encode(TEXTS)
    assert np.allclose(encode(tmp_path / "two"), plain @ layer.weight.T + layer.bias, atol=1e-5)


@pytest.mark.parametrize("layer", [linear(5, 32), flow(32)], ids=["dense", "flow"])
def test_a_new_layer_runs_and_changes_the_fingerprint(tmp_path, layer):
    model = gemel.load(tiny_bert(tmp_path / "one"))
    write_checkpoint(model.checkpoint, tmp_path / "two", dense=[layer], normalize=False)
    again = gemel.load(tmp_path / "two")
    assert again.dim == len(layer.weight)
    assert again.weights_hash != model.weights_hash
    turned = model.encode(TEXTS[:2], normalize=False) @ layer.weight.T + layer.bias
    same = np.allclose(again.encode(TEXTS[:2]), turned, atol=1e-4)
    assert same == (type(layer) is Dense)
    other = linear(5, 32, seed=1) if same else flow(32, seed=1)
    write_checkpoint(model.checkpoint, tmp_path / "three", dense=[other], normalize=False)
    assert gemel.load(tmp_path / "three").fingerprint != again.fingerprint


@pytest.mark.parametrize("method", ["whitening", "centering", "all-but-the-top", "flow"])
def test_fit_save_load_is_bit_identical(tmp_path, method):
    if method == "flow":
        pytest.importorskip("torch", reason="training a flow needs the extra train")
    from gemel.vectors.similarity import normalize

    model = gemel.load(tiny_bert(tmp_path / "one"))
    settings = Settings(epochs=1) if method == "flow" else Settings()
    done = save_postprocessed(model, [*MANY, *MANY], tmp_path / "two", method=method, settings=settings)
    assert (done.texts, done.dim, done.method) == (len(MANY), 32, method)
    vectors = model.encode(MANY, normalize=False)
    expected = normalize(done.fitted.apply(vectors))
    again = gemel.load(tmp_path / "two")
    assert np.array_equal(again.encode(MANY), expected)
    assert np.array_equal(again.encode(MANY[3:4])[0], expected[3])
    assert again.fingerprint.digest != model.fingerprint.digest
    assert again.checkpoint.normalize


def test_post_processing_twice_keeps_the_first_layer(tmp_path):
    model = gemel.load(tiny_bert(tmp_path / "one"))
    save_postprocessed(model, MANY, tmp_path / "two", settings=Settings(dim=8))
    save_postprocessed(gemel.load(tmp_path / "two"), MANY, tmp_path / "three", method="centering")
    again = gemel.load(tmp_path / "three").checkpoint
    assert [layer.weight.shape for layer in again.dense] == [(8, 32), (8, 8)]


def test_the_files_are_those_of_the_layout(tmp_path):
    checkpoint = read_checkpoint(tiny_bert(tmp_path / "one"))
    write_checkpoint(checkpoint, tmp_path / "two", dense=[linear(5, 32), flow(5)], normalize=True)
    listed = json.loads((tmp_path / "two" / "modules.json").read_text())
    assert [(module["path"], module["type"]) for module in listed] == [
        ("", "sentence_transformers.models.Transformer"),
        ("1_Pooling", "sentence_transformers.models.Pooling"),
        ("2_Dense", "sentence_transformers.models.Dense"),
        ("3_Flow", "gemel.checkpoint.head.Flow"),
        ("4_Normalize", "sentence_transformers.models.Normalize"),
    ]
    assert json.loads((tmp_path / "two" / "2_Dense" / "config.json").read_text()) == {
        "in_features": 32,
        "out_features": 5,
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    stored = Tensors.of_folder(tmp_path / "two" / "2_Dense")
    assert {name: array.dtype for name, array in stored.items()} == {
        "linear.weight": np.float32,
        "linear.bias": np.float32,
    }


def test_no_temporary_files_remain_and_an_existing_folder_is_kept(tmp_path):
    checkpoint = read_checkpoint(tiny_bert(tmp_path / "one"))
    (tmp_path / "two").mkdir()
    write_checkpoint(checkpoint, tmp_path / "two")  # empty: fine
    with pytest.raises(InputError, match="exists and is not empty"):
        write_checkpoint(checkpoint, tmp_path / "two")
    write_checkpoint(checkpoint, tmp_path / "two", dense=[linear(4, 32)], overwrite=True)
    assert read_checkpoint(tmp_path / "two").dim == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_a_model_can_be_written_over_itself(tmp_path):
    folder = tiny_bert(tmp_path / "one")
    write_checkpoint(read_checkpoint(folder), folder, dense=[linear(4, 32)], overwrite=True)
    assert encode(folder).shape == (len(TEXTS), 4)


def test_a_folder_that_is_not_a_model_is_never_overwritten(tmp_path):
    checkpoint = read_checkpoint(tiny_bert(tmp_path / "models" / "one"))
    for folder in (tmp_path / "models", tmp_path):
        with pytest.raises(InputError, match="is not overwritten"):
            write_checkpoint(checkpoint, folder, overwrite=True)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InputError, match="is a file"):
        write_checkpoint(checkpoint, file, overwrite=True)


def test_a_write_that_fails_leaves_the_old_model(tmp_path, monkeypatch):
    from gemel.checkpoint import write

    checkpoint = read_checkpoint(tiny_bert(tmp_path / "one"))
    write_checkpoint(checkpoint, tmp_path / "two")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "_write_layer", full)
    with pytest.raises(WorkError, match="No space left on device"):
        write_checkpoint(checkpoint, tmp_path / "two", dense=[linear(4, 32)], overwrite=True)
    assert read_checkpoint(tmp_path / "two").dim == 32
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_layers_that_do_not_fit_are_refused_before_anything_is_written(tmp_path):
    checkpoint = read_checkpoint(tiny_bert(tmp_path / "one"))
    with pytest.raises(InputError, match="dense layer 2 takes 7 numbers, but gets 5"):
        write_checkpoint(checkpoint, tmp_path / "two", dense=[linear(5, 32), linear(4, 7)])
    with pytest.raises(ModelError, match="model2vec"):
        write_checkpoint(replace(checkpoint, skip_unknown=True), tmp_path / "two")
    assert not (tmp_path / "two").exists()


def test_a_fit_checks_its_folder_before_it_encodes(tmp_path):
    model = gemel.load(tiny_bert(tmp_path / "one"))
    model.encode = None  # would fail if it were called
    with pytest.raises(InputError, match="exists and is not empty"):
        save_postprocessed(model, MANY, tmp_path / "one")
    with pytest.raises(InputError, match="at least 2 different texts, got 1"):
        save_postprocessed(model, ["a", "a"], tmp_path / "two")


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda tensors: tensors.pop("couplings.1.w2"), "needs the tensor 'couplings.1.w2'"),
        (
            lambda tensors: tensors.update({"couplings.0.order": np.zeros(6, np.int32)}),
            "is not an order of 6",
        ),
        (
            lambda tensors: tensors.update({"couplings.2.b2": np.zeros(5, np.float32)}),
            "do not fit 6 dimensions",
        ),
        (lambda tensors: tensors.update({"linear.weight": np.zeros((6, 5), np.float32)}), "are no flow"),
    ],
)
def test_a_broken_flow_is_refused_when_it_is_read(tmp_path, break_it, message):
    from safetensors.numpy import save_file

    checkpoint = read_checkpoint(tiny_bert(tmp_path / "one"))
    folder = write_checkpoint(checkpoint, tmp_path / "two", dense=[linear(6, 32), flow(6)])
    part = folder / "3_Flow"
    tensors = {name: np.array(array) for name, array in Tensors.of_folder(part).items()}
    break_it(tensors)
    save_file(tensors, part / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        read_checkpoint(folder)


def test_a_flow_of_another_package_is_refused(tmp_path):
    checkpoint = read_checkpoint(tiny_bert(tmp_path / "one"))
    folder = write_checkpoint(checkpoint, tmp_path / "two", dense=[flow(32)])
    text = (folder / "modules.json").read_text()
    (folder / "modules.json").write_text(text.replace("gemel.checkpoint.head.Flow", "other.postprocess.Flow"))
    with pytest.raises(ModelError, match=r"unknown module 'other.postprocess.Flow'"):
        read_checkpoint(folder)
