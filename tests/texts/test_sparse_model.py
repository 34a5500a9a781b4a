"""Sparse encoders: weights as the reference gives them, the same bits in any batch, explanations, folders."""

import json
import math
import pickle

import numpy as np
import pytest
from safetensors.numpy import load_file

import gemel
from gemel.checkpoint.sparse import Splade, read_sparse
from gemel.encoder.check import check_model
from gemel.encoder.network import Norm
from gemel.encoder.sparse import MaskedHead, word_weights
from gemel.texts.sparse_model import SparseModel
from tiny import ARCHITECTURES, randomize, tiny_bert, tiny_tokenizer, tiny_vocabulary
from tiny_sparse import tiny_sparse, write

TEXTS = [
    "the cat sat on the mat",
    "how do i reset it?",
    "a",
    "the man is playing " * 3,
    "the cat sat on the mat",
    "",
]
LAYOUTS = ["splade", "plain", "router", "csr"]
MASKED = ["bert", "camembert", "distilbert", "modernbert", "mpnet", "roberta", "xlm-roberta"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("sparse")
    return {layout: tiny_sparse(base / layout, layout) for layout in LAYOUTS}


@pytest.fixture(scope="module")
def splade(folders):
    return gemel.load_sparse(folders["splade"])


def same_bits(left, right):
    return all(a.tobytes() == b.tobytes() for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_text_has_the_same_bits_alone_and_in_any_batch(folders, layout):
    model = gemel.load_sparse(folders[layout])
    for encode in (model.encode_query, model.encode_document):
        together = encode(TEXTS)
        assert together.shape == (len(TEXTS), model.dim)
        for position, text in enumerate(TEXTS):
            assert same_bits(encode([text], threads=1).row(0), together.row(position))
        backwards = encode(TEXTS[::-1], threads=2)
        assert all(same_bits(backwards.row(-1 - at), together.row(at)) for at in range(len(TEXTS)))


@pytest.mark.parametrize("step", [Splade(), Splade("sum", 2)])
def test_blocks_of_a_long_text_and_a_large_vocabulary_are_joined(step):
    random = np.random.default_rng(1)
    hidden, weight, table = (
        random.normal(0, 0.3, shape).astype(np.float32) for shape in ((1100, 64), (64, 64), (5000, 64))
    )
    head = MaskedHead(weight, None, "gelu", Norm(np.ones(64, np.float32), None, 1e-12, False), table, None)
    whole = word_weights(head, step, hidden)
    assert whole.tobytes() == word_weights(head, step, np.concatenate([hidden, hidden])[1100:]).tobytes()
    expected = np.log1p(np.maximum(head.transform(hidden).astype(np.float64) @ table.T.astype(np.float64), 0))
    expected = expected.max(axis=0) if step.pooling == "max" else np.log1p(expected).sum(axis=0)
    np.testing.assert_allclose(whole, expected, rtol=2e-5)


@pytest.mark.parametrize("name", ["gelu", "gelu-tanh", "relu", "silu"])
def test_activations_are_those_of_torch(name):
    torch = pytest.importorskip("torch")
    ones, same = np.ones(64, np.float32), np.eye(64, dtype=np.float32)
    head = MaskedHead(same, None, name, Norm(ones, ones, 0.0, False), same, None)
    x = np.linspace(-9, 9, 64, dtype=np.float32)[None]
    functional = torch.nn.functional
    kinds = {"gelu-tanh": lambda t: functional.gelu(t, approximate="tanh")}
    y = kinds.get(name, getattr(functional, name, None))(torch.tensor(x))
    expected = functional.layer_norm(y, (64,), torch.ones(64), torch.ones(64), 0.0)
    np.testing.assert_allclose(head.transform(x), expected.numpy(), atol=1e-6)


@pytest.mark.parametrize("kind", MASKED)
def test_weights_are_those_of_the_masked_language_model_of_transformers(tmp_path, kind):
    transformers = pytest.importorskip("transformers", reason="the reference is in the train extra")
    torch = pytest.importorskip("torch")
    name, own = ARCHITECTURES[kind]
    network = transformers.AutoModelForMaskedLM.from_config(getattr(transformers, name)(**own))
    randomize(network, 3)
    network.save_pretrained(tmp_path)
    tiny_tokenizer(tmp_path / "tokenizer.json")
    write(tmp_path / "tokenizer_config.json", {"model_max_length": 24})
    model = gemel.load_sparse(tmp_path)
    ids = model._document.preparer.tokenizer
    found = model.encode(TEXTS[:4]).to_dense()
    for text, row in zip(TEXTS, found, strict=False):
        tokens = ids.special.around(ids.content([text])[0])
        with torch.no_grad():
            logits = network.eval()(torch.tensor(tokens[None].astype(np.int64))).logits[0]
        np.testing.assert_allclose(row, torch.log1p(torch.relu(logits)).amax(0).numpy(), atol=2e-5)
        assert (row > 0).any()


@pytest.mark.parametrize("layout", [*LAYOUTS, "sum"])
def test_vectors_are_those_of_sentence_transformers(tmp_path, layout):
    reason = "compared by hand where sentence-transformers is installed"
    theirs = pytest.importorskip("sentence_transformers", reason=reason)
    folder = tiny_sparse(
        tmp_path, "splade" if layout == "sum" else layout, pooling="sum" if layout == "sum" else "max"
    )
    reference, model = theirs.SparseEncoder(str(folder), device="cpu"), gemel.load_sparse(folder)
    for side in ("encode_query", "encode_document"):
        expected = getattr(reference, side)(TEXTS, convert_to_sparse_tensor=False).numpy()
        np.testing.assert_allclose(getattr(model, side)(TEXTS).to_dense(), expected, atol=1e-5)


def test_the_sum_over_tokens_is_another_pooling(tmp_path, splade):
    summed = gemel.load_sparse(tiny_sparse(tmp_path, "splade", pooling="sum"))
    assert (summed.encode(TEXTS).to_dense() >= splade.encode(TEXTS).to_dense() - 1e-6).all()
    assert summed.weights_hash != splade.weights_hash


def test_a_query_without_a_network_has_the_weights_of_its_words(folders):
    model = gemel.load_sparse(folders["router"])
    weights = load_file(folders["router"] / "query_0_SparseStaticEmbedding" / "model.safetensors")["weight"]
    row = dict(model.encode_query(["the the cat"]).tokens(0))
    words = {word: float(weights[tiny_vocabulary().index(word)]) for word in row}
    assert row == words
    assert "the" in row
    assert not len(model.encode_query([""]).row(0)[0])
    with pytest.raises(gemel.InputError, match="encode_query or encode_document"):
        model.encode(["the"])
    assert same_bits(model.encode(["the"], prompt_name="query").row(0), model.encode_query(["the"]).row(0))


def test_weights_of_words_may_be_a_json_file(tmp_path):
    folder = tiny_sparse(tmp_path, "router")
    module = folder / "query_0_SparseStaticEmbedding"
    (module / "model.safetensors").unlink()
    write(module / "config.json", {"frozen": False, "path": "idf.json"})
    write(module / "idf.json", {"the": 0.5, "[UNK]": 0})
    assert gemel.load_sparse(folder).encode_query(["the the a"]).tokens(0) == [("the", 0.5)]
    write(module / "idf.json", {"not a token": 1.0})
    with pytest.raises(gemel.ModelError, match="no token of the tokenizer"):
        gemel.load_sparse(folder)
    (module / "idf.json").unlink()
    with pytest.raises(gemel.ModelError, match=r"'idf\.json', which is no file"):
        gemel.load_sparse(folder)


def test_the_layer_of_an_auto_encoder_keeps_its_strongest_dimensions(folders):
    model = gemel.load_sparse(folders["csr"])
    found = model.encode(TEXTS)
    assert model.vocabulary[:2] == ("0", "1")
    assert np.diff(found.indptr).max() == 8
    assert np.diff(model.encode(TEXTS, max_active_dims=3).indptr).max() == 3


def test_the_largest_weights_are_kept(tmp_path, splade):
    whole, few = splade.encode(TEXTS), splade.encode(TEXTS, max_active_dims=5)
    assert few.tokens(0) == whole.tokens(0)[:5]
    least = whole.tokens(0)[3][1]
    assert splade.encode(TEXTS[:1], min_weight=least).tokens(0) == whole.tokens(0)[:4]
    own = gemel.load_sparse(tiny_sparse(tmp_path, max_active_dims=4))
    assert own.encode(TEXTS).tokens(0) == whole.tokens(0)[:4]
    for option in ({"max_active_dims": 0}, {"min_weight": -1}, {"on_long": "chunk"}, {"top_k": 3}):
        with pytest.raises(gemel.InputError):
            splade.encode(TEXTS, **option)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_contributions_of_words_add_up_to_the_score(folders, layout):
    model = gemel.load_sparse(folders[layout])
    found = model.explain("the cat", "how do i reset the cat?")
    query, document = model.encode_query(["the cat"]), model.encode_document(["how do i reset the cat?"])
    assert found.score == query.similarity(document)[0, 0]
    assert math.isclose(sum(match.contribution for match in found.matches), found.score, rel_tol=1e-6)
    assert len(found.matches) + len(found.missing) == len(query.values)
    assert list(found.matches) == sorted(found.matches, key=lambda match: -match.contribution)
    with pytest.raises(gemel.InputError, match="one query"):
        model.explain(["the"], "the")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_texts_that_are_prepared_first_have_the_same_bits(folders, layout):
    model = gemel.load_sparse(folders[layout])
    for side, encode in (("query", model.encode_query), ("document", model.encode_document)):
        prepared = model.prepare(TEXTS, model.side_options(side))
        expected = encode(TEXTS, on_long="truncate")
        found = model.run(prepared)
        assert all(same_bits(found.row(at), expected.row(at)) for at in range(len(TEXTS)))
    assert (model.engine is None) == (model.engine_name == "static")


def test_long_texts_are_cut_with_a_warning(splade):
    long = "the cat " * 40
    with pytest.warns(gemel.TruncationWarning, match="1 of 1 texts are longer than 32 tokens"):
        splade.encode([long])
    with pytest.raises(gemel.InputError, match="the model reads 32"):
        splade.encode(["a", long], on_long="error")
    assert len(splade.encode([long], on_long="truncate")) == 1


def test_prompts_of_the_checkpoint_are_used(tmp_path, splade):
    model = gemel.load_sparse(tiny_sparse(tmp_path, prompts={"query": "how do i ", "document": ""}))
    assert same_bits(model.encode_query(["reset"]).row(0), splade.encode(["how do i reset"]).row(0))
    assert same_bits(model.encode_document(["reset"]).row(0), splade.encode(["reset"]).row(0))
    with pytest.warns(gemel.PromptWarning):
        model.encode(["reset"])


def test_int8_gives_nearly_the_same_weights(splade):
    exact, small = splade.encode(TEXTS).to_dense(), splade.encode(TEXTS, precision="int8").to_dense()
    assert np.abs(exact - small).max() < 0.2


def test_a_pickled_model_is_the_same_model(splade):
    again = pickle.loads(pickle.dumps(splade))
    assert same_bits(again.encode(TEXTS[:1]).row(0), splade.encode(TEXTS[:1]).row(0))
    assert repr(again) == repr(splade)
    assert isinstance(SparseModel(splade.checkpoint.document.checkpoint.folder), SparseModel)


def test_a_sparse_encoder_is_named_where_a_sentence_encoder_is_expected(folders, tmp_path):
    for layout in ("splade", "router", "csr"):
        with pytest.raises(gemel.ModelError, match="load_sparse"):
            gemel.load(folders[layout])
        found = check_model(folders[layout])
        assert (found.readable, found.kind, found.architecture) == (True, "sparse encoder", "bert")
    unnamed = tiny_sparse(tmp_path / "unnamed")
    (unnamed / "config_sentence_transformers.json").unlink()
    with pytest.raises(gemel.ModelError, match=r"'SpladePooling' is part of a sparse encoder.*load_sparse"):
        gemel.load(unnamed)
    assert len(gemel.load_sparse(unnamed).encode(TEXTS[:1])) == 1
    with pytest.raises(gemel.ModelError, match=r"gemel\.load\("):
        gemel.load_sparse(tiny_bert(tmp_path / "dense"))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("1_SpladePooling/config.json", {"pooling_strategy": "mean"}, "Known: max and sum"),
        ("1_SpladePooling/config.json", {"other": 3}, "'other'"),
        ("config_sentence_transformers.json", {"max_active_dims": 0}, "'max_active_dims' must be"),
        ("config.json", {"model_type": "electra"}, "is not read. Known: bert"),
        ("config.json", {"tie_word_embeddings": False}, r"'cls.predictions.decoder.weight' is missing"),
    ],
)
def test_settings_that_are_not_followed_are_refused(tmp_path, file, change, message):
    folder = tiny_sparse(tmp_path)
    content = json.loads((folder / file).read_text())
    write(folder / file, {**content, **change})
    with pytest.raises(gemel.ModelError, match=message):
        gemel.load_sparse(folder)


def test_modules_in_another_order_are_refused(tmp_path):
    folder = tiny_sparse(tmp_path)
    listed = json.loads((folder / "modules.json").read_text())
    write(folder / "modules.json", listed[:1])
    with pytest.raises(gemel.ModelError, match="the modules Transformer are not those of a sparse encoder"):
        read_sparse(folder)
