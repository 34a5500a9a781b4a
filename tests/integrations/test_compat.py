"""The calls of sentence-transformers on gemel, as its documentation describes them."""

import json
import shutil
import sys

import numpy as np
import pytest
from tests.checkpoint.test_router import routed

import gemel
from gemel.compat import SentenceTransformer, util
from gemel.errors import InputError, MissingExtra
from remote_code import tiny_jina
from tiny import tiny_bert

TEXTS = ["a man is playing guitar", "a woman is playing the flute", "the stock market fell", "hello world"]
PROMPTS = {"query": "how do i ", "document": "the "}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def model(folder):
    return SentenceTransformer(str(folder))


@pytest.fixture(scope="module")
def vectors(folder):
    return gemel.load(folder).encode(TEXTS)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="tensors need torch")


# encode: shapes and types


def test_a_list_gives_rows_and_a_string_one_vector(model, vectors):
    assert np.array_equal(model.encode(TEXTS), vectors)
    one = model.encode(TEXTS[0])
    assert one.shape == (32,)
    assert np.array_equal(one, vectors[0])
    assert model.encode(TEXTS[:1]).shape == (1, 32)
    assert model.encode([]).shape == (0, 32)


def test_the_older_name_of_the_texts_is_understood(model, vectors):
    assert np.array_equal(model.encode(sentences=TEXTS), vectors)
    with pytest.raises(InputError, match="got none"):
        model.encode()


def test_batch_size_and_progress_change_no_bit(model, vectors):
    assert np.array_equal(model.encode(TEXTS, batch_size=1, show_progress_bar=False), vectors)
    with pytest.raises(InputError, match="batch_size"):
        model.encode(TEXTS, batch_size=0)


def test_tensors_are_returned_if_requested(model, vectors, torch):
    whole = model.encode(TEXTS, convert_to_tensor=True)
    assert isinstance(whole, torch.Tensor)
    assert np.array_equal(whole.numpy(), vectors)
    assert model.encode(TEXTS[0], convert_to_tensor=True).shape == (32,)
    rows = model.encode(TEXTS, convert_to_numpy=False)
    assert [type(row) for row in rows] == [torch.Tensor] * len(TEXTS)
    assert model.encode(TEXTS[0], convert_to_numpy=False).shape == (32,)


def test_without_torch_a_tensor_is_a_missing_extra(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"gemel\[train\]"):
        model.encode(TEXTS, convert_to_tensor=True)


def test_token_vectors_are_a_list_of_arrays_of_the_tokens(model):
    result = model.encode(TEXTS[:2], output_value="token_embeddings")
    assert [each.shape for each in result] == [(7, 32), (8, 32)]
    assert np.array_equal(model.encode(TEXTS[0], output_value="token_embeddings"), result[0])
    with pytest.raises(InputError, match="tokens"):
        model.encode(TEXTS, output_value=None)


def test_normalize_embeddings_gives_length_1(tmp_path):
    model = SentenceTransformer(tiny_bert(tmp_path / "m", normalize=False))
    assert not np.allclose(np.linalg.norm(model.encode(TEXTS), axis=1), 1)
    assert np.allclose(np.linalg.norm(model.encode(TEXTS, normalize_embeddings=True), axis=1), 1)


def test_long_texts_are_cut_in_silence_at_max_seq_length(model):
    assert model.max_seq_length == model.get_max_seq_length() == 64
    long = " ".join(TEXTS * 10)
    whole = model.encode(long)
    model.max_seq_length = 6
    assert np.array_equal(model.encode(long), model.encode("a man is playing"))
    assert not np.array_equal(model.encode(long), whole)


# fewer numbers


def test_truncated_vectors_are_not_scaled_again(model, vectors):
    assert np.array_equal(model.encode(TEXTS, truncate_dim=8), vectors[:, :8])
    unit = model.encode(TEXTS, truncate_dim=8, normalize_embeddings=True)
    assert np.allclose(np.linalg.norm(unit, axis=1), 1)
    assert np.array_equal(model.encode(TEXTS, truncate_dim=4000), vectors)


def test_truncate_dim_belongs_to_the_model_or_to_a_block(folder, vectors):
    model = SentenceTransformer(folder, truncate_dim=8)
    assert model.get_sentence_embedding_dimension() == model.get_embedding_dimension() == 8
    with model.truncate_embeddings(4):
        assert np.array_equal(model.encode(TEXTS), vectors[:, :4])
    with pytest.raises(KeyError), model.truncate_sentence_embeddings(4):
        raise KeyError
    assert model.encode(TEXTS).shape == (4, 8)
    model.truncate_dim = None
    assert model.get_sentence_embedding_dimension() == 32


def test_binary_vectors_are_packed_bits(model, vectors):
    bits = np.packbits(vectors > 0, axis=1)
    assert np.array_equal(model.encode(TEXTS, precision="ubinary"), bits)
    signed = model.encode(TEXTS, precision="binary")
    assert signed.dtype == np.int8
    assert np.array_equal(signed.astype(int) + 128, bits)
    assert model.encode(TEXTS[0], precision="binary").shape == (4,)


def test_int8_divides_the_range_of_each_dimension(model, vectors):
    small, positive = (model.encode(TEXTS, precision=name) for name in ("int8", "uint8"))
    assert (small.dtype, positive.dtype) == (np.int8, np.uint8)
    assert set(positive.min(axis=0)) == {0}
    assert positive.max() == 255
    assert np.array_equal(positive.astype(int) - 128, small)
    with pytest.raises(InputError, match="more than one vector"):
        model.encode(TEXTS[0], precision="int8")
    ranges = np.stack([vectors.min(axis=0), vectors.max(axis=0)])
    assert np.array_equal(util.quantize_embeddings(vectors[:1], "int8", ranges=ranges), small[:1])
    assert np.array_equal(util.quantize_embeddings(vectors, "int8", calibration_embeddings=vectors), small)
    with pytest.raises(InputError, match="float16"):
        model.encode(TEXTS, precision="float16")


# prompts


def test_prompts_are_put_in_front(folder, vectors):
    model = SentenceTransformer(folder, prompts=PROMPTS, default_prompt_name="query")
    plain = gemel.load(folder)
    queries, documents = ([PROMPTS[name] + text for text in TEXTS] for name in ("query", "document"))
    assert np.array_equal(model.encode(TEXTS), plain.encode(queries))
    assert np.array_equal(model.encode(TEXTS, "document"), plain.encode(documents))
    assert np.array_equal(model.encode(TEXTS, prompt_name="query", prompt=""), vectors)
    assert np.array_equal(model.encode_query(TEXTS), plain.encode(queries))
    assert np.array_equal(model.encode_document(TEXTS), plain.encode(documents))
    assert np.array_equal(model.encode_document(TEXTS, prompt="how do i "), plain.encode(queries))
    assert np.array_equal(model.encode_document(TEXTS, prompt_name="query"), plain.encode(queries))


def test_without_prompts_queries_and_documents_are_texts(model, vectors):
    assert model.prompts == {"query": "", "document": ""}
    assert model.default_prompt_name is None
    assert np.array_equal(model.encode_query(TEXTS), vectors)
    assert np.array_equal(model.encode_document(TEXTS[0]), vectors[0])


def test_an_unknown_prompt_is_a_value_error(model, folder):
    with pytest.raises(ValueError, match="unknown prompt 'summary'"):
        model.encode(TEXTS, prompt_name="summary")
    with pytest.raises(ValueError, match="unknown prompt"):
        SentenceTransformer(folder, default_prompt_name="summary")


# similarity


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarity_is_a_table_and_pairwise_its_diagonal(model, vectors, name):
    model.similarity_fn_name = name
    table = model.similarity(vectors, vectors)
    assert table.shape == (4, 4)
    assert np.allclose(model.similarity_pairwise(vectors, vectors), np.diag(table), atol=1e-3)
    assert model.similarity(vectors[0], vectors).shape == (1, 4)
    assert np.ndim(model.similarity_pairwise(vectors[0], vectors[1])) == 0


def test_tensors_are_compared_to_tensors(model, vectors, torch):
    tensor = torch.from_numpy(vectors)
    table = model.similarity(tensor, vectors)
    assert isinstance(table, torch.Tensor)
    assert np.array_equal(table.numpy(), model.similarity(vectors, vectors))
    assert isinstance(util.cos_sim(list(tensor), list(tensor)), torch.Tensor)
    assert isinstance(util.normalize_embeddings(tensor), torch.Tensor)


def test_an_unknown_similarity_is_refused(model):
    with pytest.raises(InputError, match="hamming"):
        model.similarity_fn_name = "hamming"


# save and load


def test_a_saved_model_keeps_prompts_and_length(folder, tmp_path):
    model = SentenceTransformer(
        folder, prompts=PROMPTS, default_prompt_name="query", similarity_fn_name="dot"
    )
    model.max_seq_length = 12
    for name in ("a", "a", "b"):  # the second time it is replaced
        model.save_pretrained(tmp_path / name, safe_serialization=True, create_model_card=False)
    model.save(str(tmp_path / "b"))
    again = SentenceTransformer(tmp_path / "b")
    assert (again.prompts, again.default_prompt_name) == (PROMPTS, "query")
    assert (again.max_seq_length, again.similarity_fn_name) == (12, "dot")
    assert np.array_equal(again.encode(TEXTS), model.encode(TEXTS))
    with pytest.raises(InputError, match="pickle"):
        model.save(tmp_path / "c", safe_serialization=False)


def test_a_gemel_model_can_be_used_as_it_is(folder, vectors):
    inside = gemel.load(folder)
    model = SentenceTransformer(inside)
    assert model.model is inside
    assert np.array_equal(model.encode(TEXTS), vectors)
    assert "tiny" in repr(model)


# what is not supported


def test_the_device_stays(model):
    assert model.device == "cpu"
    assert model.to("cpu") is model.eval() is model
    assert model.encode(TEXTS, device="cpu").shape == (4, 32)
    with pytest.raises(InputError, match="device"):
        model.encode(TEXTS, device="cuda")
    with pytest.raises(InputError, match="all cores"):
        model.encode(TEXTS, device=["cpu", "cpu"])


def test_backends_are_engines(folder, vectors):
    model = SentenceTransformer(folder, backend="onnx")
    assert model.model.engine_name == "onnxruntime"
    assert np.allclose(model.encode(TEXTS), vectors, atol=1e-5)
    with pytest.raises(InputError, match="backend"):
        SentenceTransformer(folder, backend="openvino")


@pytest.mark.parametrize(
    ("name", "value", "way"),
    [
        ("modules", [1], r"gemel\.train"),
        ("trust_remote_code", True, "no code"),
        ("cache_folder", "x", "GEMEL_CACHE"),
        ("model_kwargs", {"torch_dtype": "float16"}, "precision"),
        ("sparkle", 1, "unknown argument"),
    ],
)
def test_other_ways_to_load_are_refused_with_the_gemel_alternative(folder, name, value, way):
    with pytest.raises(InputError, match=way):
        SentenceTransformer(folder, **{name: value})


def test_a_model_built_from_modules_is_refused_with_the_gemel_alternative():
    with pytest.raises(InputError, match=r"modules is not supported.*gemel\.train"):
        SentenceTransformer(modules=[object()])
    with pytest.raises(InputError, match="the name or the folder of a model, got none"):
        SentenceTransformer()


def test_arguments_at_their_defaults_are_accepted(folder):
    assert SentenceTransformer(folder, trust_remote_code=False, token=None).encode("hello").shape == (32,)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("train", r"gemel\.train"),
        ("push_to_hub", "huggingface_hub"),
        ("tokenize", "pieces"),
        ("nonsense", "has no"),
    ],
)
def test_a_missing_method_is_an_attribute_error_with_the_gemel_alternative(model, name, way):
    assert not hasattr(model, name)
    with pytest.raises(AttributeError, match=way):
        getattr(model, name)


def test_pools_of_processes_are_refused(model):
    with pytest.raises(InputError, match="threads"):
        model.encode(TEXTS, pool={"input": 1})
    with pytest.raises(InputError, match="unknown argument 'foo'"):
        model.encode(TEXTS, foo=1)


# util


def test_scores_of_util_are_those_of_the_names():
    a, b = np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([[0.0, 1.0]])
    assert np.allclose(util.cos_sim(a, b), [[0.8], [0.0]])
    assert np.allclose(util.pytorch_cos_sim(a[0], b[0]), [[0.8]])
    assert np.allclose(util.dot_score(a, b), [[4.0], [0.0]])
    assert np.allclose(util.euclidean_sim(a, b), [[-np.sqrt(18)], [-np.sqrt(2)]])
    assert np.allclose(util.manhattan_sim(a, b), [[-6.0], [-2.0]])
    assert np.allclose(util.pairwise_cos_sim(a, a), [1, 1])
    assert np.allclose(util.pairwise_dot_score(a, a), [25, 1])
    assert np.allclose(util.pairwise_euclidean_sim(a, a), 0)
    assert np.allclose(util.pairwise_manhattan_sim(a[0], a[1]), -6)
    assert np.allclose(util.normalize_embeddings(a[0]), [0.6, 0.8])
    assert util.truncate_embeddings(a, 1).shape == (2, 1)
    with pytest.raises(InputError, match="vectors of numbers"):
        util.cos_sim(np.array(["a"]), b)


def test_semantic_search_gives_a_list_of_dicts_for_each_query():
    corpus = np.eye(3, dtype=np.float32)
    result = util.semantic_search(np.array([[0.0, 2.0, 1.0]]), corpus, top_k=2)
    assert [[hit["corpus_id"] for hit in hits] for hits in result] == [[1, 2]]
    assert result[0][0]["score"] == pytest.approx(2 / np.sqrt(5))
    assert len(util.semantic_search(corpus[0], corpus)[0]) == 3
    by_dot = util.semantic_search(np.array([0.0, 2.0, 1.0]), corpus, top_k=1, score_function=util.dot_score)
    assert by_dot == [[{"corpus_id": 1, "score": 2.0}]]
    with pytest.raises(InputError, match="metric"):
        util.semantic_search(corpus, corpus, score_function=lambda a, b: a @ b.T)


def test_paraphrase_mining_gives_every_pair_once_best_first(model):
    result = util.paraphrase_mining(model, TEXTS)
    assert [result[i][0] for i in range(6)] == sorted((score for score, _, _ in result), reverse=True)
    assert {(i, j) for _, i, j in result} == {(i, j) for i in range(4) for j in range(i + 1, 4)}
    assert util.paraphrase_mining(model, TEXTS, max_pairs=2) == result[:2]
    assert util.paraphrase_mining(model, TEXTS[:1]) == []


def test_top_k_bounds_the_partners_of_a_text_not_of_its_partners():
    vectors = np.array([[1, 0], [1, 0.1], [1, 0.3]], dtype=np.float32)
    result = util.paraphrase_mining_embeddings(vectors, top_k=1)
    assert [pair[1:] for pair in result] == [[0, 1], [1, 2]]  # 2 is nearest to 1, though 1 has a nearer one


def test_many_equal_texts_are_still_pairs_of_two_different_positions():
    result = util.paraphrase_mining_embeddings(np.ones((6, 4)), top_k=2)
    assert result
    assert all(i < j for _, i, j in result)


def test_communities_are_lists_of_positions_with_the_center_first():
    vectors = np.array([[0, 1], [1, 0], [1, 0.2], [1, -0.3], [0.05, 1]], dtype=np.float32)
    assert util.community_detection(vectors, threshold=0.9, min_community_size=2) == [[1, 2, 3], [0, 4]]
    assert util.community_detection(vectors, threshold=0.9, min_community_size=3) == [[1, 2, 3]]
    assert util.community_detection(vectors, threshold=0.9) == []


# Models with modules or adapters of their own for queries and documents.


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    return routed(tmp_path_factory.mktemp("models") / "router", prompts={"query": "how do i "})


def test_a_router_is_called_by_side_by_task_or_by_its_default_route(router):
    theirs, ours = SentenceTransformer(str(router)), gemel.load(router)
    query, document = ours.encode_query(TEXTS), ours.encode_document(TEXTS)
    assert np.array_equal(theirs.encode_query(TEXTS), query)
    assert np.array_equal(theirs.encode_document(TEXTS), document)
    assert np.array_equal(theirs.encode(TEXTS), document)  # the default route
    assert np.array_equal(theirs.encode(TEXTS, task="query", prompt_name="query"), query)
    assert np.array_equal(theirs.encode(TEXTS[0], task="document"), document[0])
    tokens = theirs.encode(TEXTS[:1], task="query", output_value="token_embeddings", convert_to_numpy=True)
    assert tokens[0].shape[1] == 32
    with pytest.raises(InputError, match="task must be 'query' or 'document' for router, got 'image'"):
        theirs.encode(TEXTS, task="image")


def test_a_router_without_a_default_route_needs_a_task(router, tmp_path):
    folder = shutil.copytree(router, tmp_path / "strict")
    path = folder / "router_config.json"
    config = json.loads(path.read_text())
    parameters = {"default_route": None, "allow_empty_key": False}
    path.write_text(json.dumps({**config, "parameters": parameters}))
    model = SentenceTransformer(str(folder))
    with pytest.raises(
        InputError, match=r"names no default. Use encode_query or encode_document, or encode\("
    ):
        model.encode(TEXTS)
    assert np.array_equal(model.encode_query(TEXTS), gemel.load(folder).encode_query(TEXTS))
    path.write_text(json.dumps({**config, "parameters": {"default_route": None}}))  # the first one: queries
    first = SentenceTransformer(str(folder)).encode(TEXTS)
    assert np.array_equal(first, gemel.load(folder).encode(TEXTS, prompt="", prompt_name="query"))


def test_a_task_of_a_model_with_one_side_is_ignored(model, vectors):
    assert np.array_equal(model.encode(TEXTS, task="query"), vectors)


def test_a_router_gives_the_vectors_of_sentence_transformers(router):
    package = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    theirs, ours = package.SentenceTransformer(str(router)), SentenceTransformer(str(router))
    for call in ("encode", "encode_query", "encode_document"):
        np.testing.assert_allclose(getattr(ours, call)(TEXTS), getattr(theirs, call)(TEXTS), atol=1e-5)
    for task in ("query", "document"):
        np.testing.assert_allclose(ours.encode(TEXTS, task=task), theirs.encode(TEXTS, task=task), atol=1e-5)
    with pytest.raises(ValueError, match="image"):
        theirs.encode(TEXTS, task="image")


def test_adapters_for_tasks_are_called_by_side(tmp_path):
    pytest.importorskip("transformers", reason="the tiny model is made by transformers")
    folder = tiny_jina(tmp_path)
    model, ours = SentenceTransformer(str(folder)), gemel.load(folder)
    assert np.array_equal(model.encode_query(TEXTS), ours.encode_query(TEXTS))
    assert np.array_equal(model.encode_document(TEXTS), ours.encode_document(TEXTS))
    asked = model.encode(TEXTS, task="retrieval.query", prompt_name="retrieval.query")
    assert np.array_equal(asked, ours.encode_query(TEXTS))
    with pytest.raises(
        InputError, match=r"got 'text-matching'. A model with adapters is loaded .*gemel.load\("
    ):
        model.encode(TEXTS, task="text-matching")
    chosen = gemel.load(folder, task="retrieval.query")
    assert np.array_equal(SentenceTransformer(chosen).encode(TEXTS), chosen.encode(TEXTS))
