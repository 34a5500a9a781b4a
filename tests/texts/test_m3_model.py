"""BGE-M3: its three outputs by its formulas, from one pass, and as models of their own."""

import pickle
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gemel
from gemel.checkpoint.convert import convert
from gemel.errors import InputError, ModelError
from gemel.evaluation.evaluate import open_encoder
from gemel.texts.late_model import LateModel, load_reranker
from tiny_m3 import tiny_m3

TEXTS = ["the cat is sleeping", "a man and a man", "rain", "", "the stock market fell sharply today 日 ☃"]
LEFT_OUT = (0, 1, 2, 3)  # <s>, <pad>, </s>, <unk>


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_m3(tmp_path_factory.mktemp("m3") / "bge-m3")


@pytest.fixture(scope="module")
def model(folder):
    return gemel.load_m3(folder)


def by_hand(folder, hidden, ids):
    """Dense vector, weights by token id and token vectors of one text, by the formulas of the authors' program."""
    layers = {name: load_file(folder / f"{name}.safetensors") for name in ("sparse_linear", "colbert_linear")}
    dense = hidden[0] / np.linalg.norm(hidden[0])
    sparse, late = (hidden @ layer["weight"].T + layer["bias"] for layer in layers.values())
    weights = {}
    for number, weight in zip(ids, np.maximum(sparse[:, 0], 0), strict=True):
        if number not in LEFT_OUT and weight > 0:
            weights[number] = max(weights.get(number, 0), float(weight))
    return dense, weights, late[1:] / np.linalg.norm(late[1:], axis=1, keepdims=True)


def check(folder, result, states, ids):
    for text, (hidden, numbers) in enumerate(zip(states, ids, strict=True)):
        dense, weights, late = by_hand(folder, hidden, numbers)
        np.testing.assert_allclose(result.dense[text], dense, atol=1e-5)
        columns, values = result.sparse.row(text)
        assert columns.tolist() == sorted(weights)
        np.testing.assert_allclose(values, [weights[column] for column in sorted(weights)], atol=1e-5)
        np.testing.assert_allclose(result.late.of(text), late, atol=1e-5)


def test_the_three_outputs_follow_the_formulas(folder, model):
    tokens = gemel.load(folder).tokens(TEXTS)
    positions = {token: number for number, token in enumerate(model.vocabulary)}
    ids = [[positions[token] for token in each.tokens] for each in tokens]
    check(folder, model.encode(TEXTS), [each.vectors for each in tokens], ids)


def test_the_three_outputs_are_those_of_transformers(folder, model):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    import torch
    from tokenizers import Tokenizer

    network = transformers.XLMRobertaModel.from_pretrained(folder, add_pooling_layer=False).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [tokenizer.encode(text).ids for text in TEXTS]
    with torch.no_grad():
        states = [network(torch.tensor([each])).last_hidden_state[0].numpy() for each in ids]
    check(folder, model.encode(TEXTS), states, ids)


def test_the_dense_vectors_are_the_bits_of_load(folder, model):
    assert model.encode(TEXTS).dense.tobytes() == gemel.load(folder).encode(TEXTS).tobytes()
    assert model.dim == 32
    assert model.max_length == 32
    assert repr(model).startswith("M3Model('bge-m3', dim=32, max_length=32")


def test_load_sparse_gives_the_same_weights(folder, model):
    sparse = gemel.load_sparse(folder)
    one, other = sparse.encode(TEXTS), model.encode(TEXTS).sparse
    assert one.vocabulary == other.vocabulary == sparse.vocabulary
    assert one.values.tobytes() == other.values.tobytes()
    assert one.indices.tolist() == other.indices.tolist()
    assert not {token for row in range(len(one)) for token, _ in one.tokens(row)} & {"<s>", "</s>", "<unk>"}
    assert sparse.encode_query(TEXTS).values.tobytes() == one.values.tobytes()
    assert (sparse.dim, sparse.engine_name) == (len(sparse.vocabulary), gemel.load(folder).engine_name)
    assert len(sparse.encode(TEXTS, max_active_dims=1).values) <= len(TEXTS)


def test_load_late_gives_the_same_token_vectors(folder, model):
    late = gemel.load_late(folder)
    one, other = late.encode_document(TEXTS), model.encode(TEXTS).late
    assert one.tokens == other.tokens
    assert one.tokens_of(0) == ("the", "cat", "is", "sleeping", "</s>")
    assert one.offsets.tolist() == other.offsets.tolist()
    np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-5)
    assert late.encode_query(TEXTS).vectors.tobytes() == one.vectors.tobytes()
    assert late.dim == 24


def test_no_bit_depends_on_the_batch(model):
    texts = TEXTS * 3 + ["a dog"]
    for threads in (1, 2):
        together = model.encode(texts, threads=threads)
        for text in (0, 4, 8, 15):
            alone = model.encode([texts[text]])
            assert together.dense[text].tobytes() == alone.dense[0].tobytes()
            assert together.sparse.row(text)[1].tobytes() == alone.sparse.values.tobytes()
            assert together.late.of(text).tobytes() == alone.late.vectors.tobytes()


def test_only_what_is_requested_is_made(model):
    result = model.encode(TEXTS, sparse=False, late=False)
    assert (result.sparse, result.late, len(result)) == (None, None, len(TEXTS))
    assert model.encode(TEXTS, dense=False, sparse=False).late is not None
    with pytest.raises(InputError, match="nothing is requested"):
        model.encode(TEXTS, dense=False, sparse=False, late=False)
    with pytest.raises(InputError, match="output"):
        model.encode(TEXTS, output="int8")
    assert len(model.encode([])) == 0


def test_the_hybrid_score_is_the_weighted_mean_of_the_three(model):
    queries, documents = model.encode(TEXTS[:2]), model.encode(TEXTS[2:])
    dense = queries.dense @ documents.dense.T
    sparse = queries.sparse.to_dense() @ documents.sparse.to_dense().T
    late = np.array(
        [
            [(queries.late.of(q) @ documents.late.of(d).T).max(axis=1).mean() for d in range(len(documents))]
            for q in range(len(queries))
        ]
    )
    expected = (dense + 0.3 * sparse + late) / 2.3
    np.testing.assert_allclose(queries.similarity(documents), expected, atol=1e-5)
    weights = {"dense": 0.4, "sparse": 0.2, "late": 0.4}
    expected = 0.4 * dense + 0.2 * sparse + 0.4 * late
    np.testing.assert_allclose(queries.similarity(documents, weights), expected, atol=1e-5)
    np.testing.assert_allclose(queries.similarity(documents, {"sparse": 1}), sparse, atol=1e-5)
    only = model.encode(TEXTS[2:], sparse=False, late=False)
    np.testing.assert_allclose(queries.similarity(only), dense, atol=1e-5)
    with pytest.raises(InputError, match="there is no 'late' to compare by: both have dense in common"):
        queries.similarity(only, {"late": 1})
    with pytest.raises(InputError, match="weights must be numbers of at least 0, and not all 0"):
        queries.similarity(documents, {"dense": 0})
    with pytest.raises(InputError, match="both have nothing in common"):
        model.encode(TEXTS, dense=False, late=False).similarity(only)


def test_long_texts_are_cut_with_a_warning_or_refused(model):
    long = ["cat " * 40]
    with pytest.warns(gemel.TruncationWarning, match="longer than 32 tokens"):
        cut = model.encode(long)
    assert len(cut.late.vectors) == 31
    with pytest.raises(InputError, match="tokens"):
        model.encode(long, on_long="error")
    assert len(model.encode(long, on_long="truncate", max_length=10).late.vectors) == 9


def test_a_pickled_model_is_its_folder(model):
    again = pickle.loads(pickle.dumps(model))
    assert again.encode(TEXTS).dense.tobytes() == model.encode(TEXTS).dense.tobytes()
    assert again.name == "bge-m3"


def test_a_notebook_shows_each_text(model):
    page = model.encode(TEXTS)._repr_html_()
    assert "<th>heaviest</th>" in page
    assert "<th>token vectors</th>" in page


def test_the_published_layout_is_refused_until_it_is_converted(tmp_path):
    pytest.importorskip("torch")
    folder = tiny_m3(tmp_path / "published", pickled=True)
    for load in (gemel.load, gemel.load_sparse, gemel.load_late, gemel.load_m3):
        with pytest.raises(ModelError, match=r"is a pickle.*gemel models convert"):
            load(folder)
    written = [path.name for path in convert(folder).written]
    assert written == ["model.safetensors", "sparse_linear.safetensors", "colbert_linear.safetensors"]
    assert convert(folder).written == ()
    plain = tiny_m3(tmp_path / "plain")
    result, expected = (gemel.load_m3(path).encode(TEXTS) for path in (folder, plain))
    assert result.dense.tobytes() == expected.dense.tobytes()
    assert result.late.vectors.tobytes() == expected.late.vectors.tobytes()
    assert result.sparse.values.tobytes() == expected.sparse.values.tobytes()
    copy = convert(tiny_m3(tmp_path / "other", pickled=True), tmp_path / "copy").folder
    assert not list(copy.glob("*.pt"))
    assert gemel.load_sparse(copy).dim == gemel.load_sparse(plain).dim


def test_layers_of_another_model_are_refused(folder, tmp_path):
    def changed(name, tensors):
        broken = tmp_path / "broken"
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(folder, broken)
        save_file(tensors, broken / f"{name}.safetensors")
        return broken

    zeros = np.zeros
    with pytest.raises(ModelError, match=r"sparse_linear.*a token has 32 numbers and gets one weight"):
        gemel.load_sparse(changed("sparse_linear", {"weight": zeros((2, 32)), "bias": zeros(2)}))
    with pytest.raises(ModelError, match="the layer takes 16 numbers, but a token has 32"):
        gemel.load_m3(changed("colbert_linear", {"weight": zeros((8, 16)), "bias": zeros(8)}))
    with pytest.raises(ModelError, match="of shape"):
        gemel.load_late(changed("colbert_linear", {"weight": zeros((8, 16)), "bias": zeros(8)}))
    with pytest.raises(ModelError, match="expected a matrix 'weight' and its 'bias', found bias"):
        gemel.load_m3(changed("colbert_linear", {"bias": zeros(8)}))
    with pytest.raises(ModelError, match="NaN or infinite"):
        gemel.load_m3(changed("colbert_linear", {"weight": np.full((8, 32), np.nan), "bias": zeros(8)}))
    (folder_without := changed("sparse_linear", {"bias": zeros(1)})).joinpath(
        "colbert_linear.safetensors"
    ).unlink()
    with pytest.raises(ModelError, match="is no BGE-M3"):
        gemel.load_m3(folder_without)


def test_kinds_are_chosen_by_name_in_evaluations_and_reranking(folder):
    assert isinstance(open_encoder(folder), gemel.Model)
    assert isinstance(open_encoder(f"sparse:{folder}"), gemel.SparseModel)
    assert isinstance(open_encoder(f"late:{folder}"), LateModel)
    assert isinstance(load_reranker(folder), LateModel)


def test_the_hash_of_sparse_weights_has_the_layer(folder, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    layer = load_file(other / "sparse_linear.safetensors")
    save_file({**layer, "bias": layer["bias"] + 1}, other / "sparse_linear.safetensors")
    one, two = gemel.load_sparse(folder), gemel.load_sparse(other)
    assert one.weights_hash != two.weights_hash


def test_a_sentence_encoder_says_what_else_its_folder_gives(folder):
    assert any("load_m3" in note for note in gemel.load(folder).checkpoint.notes)
