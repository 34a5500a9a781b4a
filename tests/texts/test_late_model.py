"""Late interaction: tokens, expansion, projection and layouts; the same numbers as PyLate and sentence-transformers."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

import gemel
from gemel.encoder.check import check_model
from gemel.encoder.late import late_network, read_late
from gemel.texts.late_model import load_reranker
from tiny import tiny_bert
from tiny_late import stanford_of, tiny_late, write, write_dense, write_modules

QUERIES = [
    "how do i reset my password",
    "dog",
    "a man, playing a guitar. on the street and in the rain of the world!",
]
DOCUMENTS = [
    "the stock market fell sharply, today.",
    "hello!",
    "a woman is running on the street! a man is playing a guitar. a dog is sleeping on the sofa in the rain.",
    "hello!",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_late(tmp_path_factory.mktemp("late") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> gemel.LateModel:
    return gemel.load_late(folder)


def test_a_token_is_put_after_the_first_and_queries_are_filled_up(model: gemel.LateModel) -> None:
    query = model.encode_query(["dog"])
    assert query.tokens == ("[CLS]", "[Q] ", "dog", "[SEP]", *["[MASK]"] * 8)
    assert query.of(0).shape == (12, model.dim) == (12, 16)
    assert np.linalg.norm(query.of(0), axis=1) == pytest.approx(np.ones(12), abs=1e-6)


def test_punctuation_of_documents_gets_no_vector(model: gemel.LateModel) -> None:
    documents = model.encode_document(["the dog, a man."])
    assert documents.tokens == ("[CLS]", "[D] ", "the", "dog", "a", "man", "[SEP]")
    assert "," in model.encode_query(["the dog, a man."]).tokens


def test_no_token_sees_the_mask_tokens_unless_they_are_attended_to(tmp_path: Path) -> None:
    unseen = gemel.load_late(tiny_late(tmp_path / "unseen"))
    none = gemel.load_late(tiny_late(tmp_path / "none", do_query_expansion=False))
    seen = gemel.load_late(tiny_late(tmp_path / "seen", attend_to_expansion_tokens=True))
    longer = gemel.load_late(tmp_path / "unseen", query_length=20)
    text = ["how do i reset"]
    alone = none.encode_query(text).of(0)
    assert unseen.encode_query(text).of(0)[: len(alone)] == pytest.approx(alone, abs=1e-5)
    assert longer.encode_query(text).of(0)[:12] == pytest.approx(unseen.encode_query(text).of(0), abs=1e-5)
    assert np.abs(seen.encode_query(text).of(0)[: len(alone)] - alone).max() > 0.01


@pytest.mark.parametrize("attend", [False, True])
def test_vectors_have_the_same_bits_alone_and_in_any_batch(tmp_path: Path, attend: bool) -> None:
    model = gemel.load_late(tiny_late(tmp_path / "model", attend_to_expansion_tokens=attend))
    for encode, texts in ((model.encode_query, QUERIES), (model.encode_document, DOCUMENTS)):
        together = encode(texts, on_long="truncate")
        backwards = encode(texts[::-1], on_long="truncate", threads=1)
        for position, text in enumerate(texts):
            alone = encode([text], on_long="truncate", memory=1)
            assert np.array_equal(alone.of(0), together.of(position))
            assert np.array_equal(alone.of(0), backwards.of(len(texts) - 1 - position))
            assert alone.tokens == together.tokens_of(position)


def test_scores_and_rankings_are_maxsim_of_the_encoded_texts(model: gemel.LateModel) -> None:
    queries = model.encode_query(QUERIES, on_long="truncate")
    documents = model.encode_document(DOCUMENTS, on_long="truncate")
    table = gemel.maxsim(queries, documents)
    pairs = model.scores([QUERIES[0]] * 4, DOCUMENTS, on_long="truncate")
    assert np.array_equal(pairs, table[0])
    ranking = model.rank(QUERIES[0], DOCUMENTS, k=3, on_long="truncate")
    assert np.array_equal(ranking.index, np.argsort(-table[0], kind="stable")[:3])
    assert ranking.kind == model.score_kind == "maxsim"
    stored = model.rank(QUERIES[0], documents, k=3)
    assert np.array_equal(stored.index, ranking.index) and np.array_equal(stored.score, ranking.score)
    tied = model.rank("dog", ["hello", "a cat", "hello"]).index.tolist()
    assert tied.index(0) < tied.index(2)


def test_stored_forms_and_no_texts(model: gemel.LateModel) -> None:
    plain = model.encode_document(["hello world", "dog"])
    small = model.encode_document(["hello world", "dog"], output="int8")
    assert small.vectors.dtype == np.int8 and small.of(1) == pytest.approx(plain.of(1), abs=5e-3)
    assert model.encode_document(["dog"], output="float16").vectors.dtype == np.float16
    assert model.encode_document([]).vectors.shape == (0, 16) and len(model.encode_query([])) == 0


def test_long_texts_are_cut_with_a_warning_or_refused(model: gemel.LateModel) -> None:
    long = "the dog " * 20
    with pytest.warns(
        gemel.TruncationWarning, match="1 of 2 documents are longer than 20 tokens and lost 23 tokens"
    ):
        assert model.encode_document(["dog", long]).of(1).shape == (20, 16)
    with pytest.warns(gemel.TruncationWarning, match="1 of 1 queries are longer than 12 tokens"):
        model.encode_query([long])
    with pytest.raises(gemel.InputError, match=r"texts\[1\] has 43 tokens, the model reads 20"):
        model.encode_document(["dog", long], on_long="error")
    with pytest.raises(gemel.InputError, match="leaves no room for a token beside the 3 special tokens"):
        model.encode_document(["dog"], max_length=3)
    assert len(model.encode_document([long], max_length=9, on_long="truncate").tokens) == 9
    assert gemel.load_late(model.checkpoint.encoder.folder, document_length=64).document_length == 64


def test_the_layout_of_stanford_gives_the_same_bits(
    folder: Path, model: gemel.LateModel, tmp_path: Path
) -> None:
    theirs = gemel.load_late(
        stanford_of(folder, tmp_path / "stanford", query_token_id="[Q] ", doc_token_id="[D] ")
    )
    for text in QUERIES[:2]:
        assert np.array_equal(theirs.encode_query([text]).of(0), model.encode_query([text]).of(0))
    texts = [text.replace(":", "") for text in DOCUMENTS[:2]]
    assert np.array_equal(theirs.encode_document(texts).vectors, model.encode_document(texts).vectors)
    every = gemel.load_late(stanford_of(folder, tmp_path / "all", mask_punctuation=False))
    assert "!" in every.encode_document(["hello!"]).tokens


def multi_vector(folder: Path, **expansion: Any) -> Path:
    """As sentence-transformers saves a MultiVectorEncoder."""
    tiny_late(folder)
    prompts = {"query": "how do i ", "document": ""}
    write(
        folder / "config_sentence_transformers.json",
        {"model_type": "MultiVectorEncoder", "prompts": prompts, "default_prompt_name": None},
    )
    own = {"strategy": "fixed", "attend": False, "token": None, "length": 12, **expansion}
    write(
        folder / "sentence_bert_config.json",
        {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
            "module_output_name": "token_embeddings",
            "document_length": 20,
            "query_expansion": own,
        },
    )
    names = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    write_dense(folder / "1_Dense", load_file(folder / "1_Dense" / "model.safetensors"), **names)
    for name in ("2_MultiVectorMask", "3_Normalize"):
        (folder / name).mkdir()
    mask = {"skiplist_words": ["!", ",", "."], "skiplist_tasks": ["document"], "keep_only_token_ids": None}
    write(folder / "2_MultiVectorMask" / "config.json", mask)
    write(folder / "3_Normalize" / "config.json", names)
    base = "sentence_transformers.base.modules"
    write_modules(
        folder,
        [
            (f"{base}.transformer.Transformer", ""),
            (f"{base}.dense.Dense", "1_Dense"),
            (
                "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
                "2_MultiVectorMask",
            ),
            (f"{base}.normalize.Normalize", "3_Normalize"),
        ],
    )
    return folder


def test_a_multi_vector_encoder_is_read_with_its_prompts(tmp_path: Path) -> None:
    model = gemel.load_late(multi_vector(tmp_path / "model"))
    tokens = model.encode_query(["reset"]).tokens
    assert tokens == ("[CLS]", "how", "do", "i", "reset", "[SEP]", *["[MASK]"] * 6)
    least = gemel.load_late(multi_vector(tmp_path / "least", strategy="min", length=8))
    assert len(least.encode_query(["dog"]).tokens) == 8
    assert len(least.encode_query(["dog " * 10]).tokens) == 15


def test_several_layers_and_residual_connections_become_one(folder: Path, tmp_path: Path) -> None:
    own = tiny_late(tmp_path / "model")
    random = np.random.default_rng(5)

    def matrix(*shape: int) -> NDArray[np.float32]:
        return random.normal(0, 0.2, shape).astype(np.float32)

    first = {"linear.weight": matrix(32, 32), "linear.bias": matrix(32)}
    second = {"linear.weight": matrix(8, 32), "residual.weight": matrix(8, 32)}
    write_dense(own / "1_Dense", first, use_residual=True)
    write_dense(own / "2_Dense", second, use_residual=True)
    modules = [("pylate.models.Dense.Dense", f"{number}_Dense") for number in (1, 2)]
    write_modules(own, [("sentence_transformers.models.Transformer", ""), *modules])
    model = gemel.load_late(own)
    states = gemel.load(tiny_bert_of(own, tmp_path / "plain"))
    prefix = model.checkpoint.document.prefix
    assert prefix == "[D] " and model.dim == 8
    hidden = states.engine.hidden(model._tokenizer.prepare(["the dog"], "document")[0].ids[None])[0]
    middle = hidden @ first["linear.weight"].T + first["linear.bias"] + hidden
    expected = gemel.normalize(middle @ (second["linear.weight"] + second["residual.weight"]).T)
    assert model.encode_document(["the dog"]).of(0) == pytest.approx(expected, abs=1e-5)


def tiny_bert_of(late: Path, folder: Path) -> Path:
    """The network of a late model as a plain encoder."""
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_bytes((late / name).read_bytes())
    return folder


def test_onnxruntime_gives_nearly_the_same_vectors(folder: Path, model: gemel.LateModel) -> None:
    other = gemel.load_late(folder, engine="onnxruntime")
    assert other.engine_name == "onnxruntime"
    expected = model.encode_document(DOCUMENTS[:2]).vectors
    assert other.encode_document(DOCUMENTS[:2]).vectors == pytest.approx(expected, abs=1e-5)
    int8 = gemel.load_late(folder, precision="int8").encode_document(DOCUMENTS[:2])
    assert (int8.vectors * expected).sum(axis=1).min() > 0.98


def test_it_reranks_the_results_of_a_search(folder: Path, model: gemel.LateModel, tmp_path: Path) -> None:
    first = gemel.load(tiny_bert(tmp_path / "first"))
    found = gemel.search_texts(first, ["dog"], DOCUMENTS[:3], k=3, rerank=model)
    expected = model.rank("dog", DOCUMENTS[:3], on_long="truncate")
    assert np.array_equal(found.hits.index[0], expected.index)
    assert np.array_equal(found.hits.score[0], expected.score) and found.scored_by == "late"
    assert isinstance(load_reranker(folder), gemel.LateModel)


def test_a_pickled_model_is_loaded_again_with_its_lengths(folder: Path) -> None:
    model = gemel.load_late(folder, query_length=9, document_length=11)
    again = pickle.loads(pickle.dumps(model))
    assert (again.query_length, again.document_length, again.name) == (9, 11, model.name)
    assert np.array_equal(again.encode_query(["dog"]).vectors, model.encode_query(["dog"]).vectors)


def test_loading_says_which_kind_of_model_it_is(folder: Path, tmp_path: Path) -> None:
    for load in (gemel.load, gemel.load_cross):
        with pytest.raises(gemel.ModelError, match=r"late interaction \(ColBERT\).*gemel.load_late"):
            load(folder)
    with pytest.raises(gemel.ModelError, match="is not a model for late interaction"):
        gemel.load_late(tiny_bert(tmp_path / "plain"))
    checked = check_model(folder)
    assert checked.readable and checked.kind == "late interaction" and checked.engine == "native"
    with pytest.raises(gemel.InputError, match="engine 'torch' does not run late interaction"):
        gemel.load_late(folder, engine="torch")


def test_folders_of_early_releases_of_pylate_have_no_model_type(tmp_path: Path) -> None:
    model = gemel.load_late(tiny_late(tmp_path / "model", model_type=None))
    assert model.encode_query(["dog"]).tokens[1] == "[Q] "


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query_prefix": "[QUERY]"}, r"the token '\[QUERY\]'.*does not have"),
        ({"query_length": 0}, "'query_length' must be a whole number"),
        ({"pool": 3}, "the key 'pool'.*is not known"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(gemel.ModelError, match=message):
        gemel.load_late(tiny_late(tmp_path / "model", **change))
    assert not check_model(tmp_path / "model").readable


def test_modules_that_cannot_be_followed_are_refused(tmp_path: Path) -> None:
    own = tiny_late(tmp_path / "model")
    weight = np.ones((16, 31), np.float32)
    write_dense(own / "1_Dense", {"linear.weight": weight})
    with pytest.raises(gemel.ModelError, match="gets 32 numbers of each token"):
        late_network(read_late(own))
    write_dense(own / "1_Dense", {"linear.weight": weight}, activation_function="torch.nn.Tanh")
    with pytest.raises(gemel.ModelError, match="no activation"):
        read_late(own)
    write_modules(own, [("sentence_transformers.models.Transformer", ""), ("evil.Dense", "1_Dense")])
    with pytest.raises(gemel.ModelError, match=r"unknown module 'evil\.Dense'"):
        read_late(own)
    write_modules(own, [])
    with pytest.raises(gemel.ModelError, match="one Transformer, and first"):
        read_late(own)
    left = json.loads((own / "tokenizer_config.json").read_text(encoding="utf-8"))
    write(own / "tokenizer_config.json", {**left, "padding_side": "left"})
    write_modules(own, [("sentence_transformers.models.Transformer", "")])
    with pytest.raises(gemel.ModelError, match="fills up queries on the left"):
        gemel.load_late(own)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"attend_to_expansion_tokens": True},
        {"do_query_expansion": False, "query_prefix": ""},
    ],
)
def test_vectors_are_those_of_pylate(tmp_path: Path, settings: dict[str, Any]) -> None:
    package = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    if hasattr(package, "MultiVectorEncoder"):
        pytest.skip("PyLate needs an older sentence-transformers")
    models = pytest.importorskip("pylate.models", reason="pylate is not installed")
    own = tiny_late(tmp_path / "model", **settings)
    theirs, ours = models.ColBERT(str(own), device="cpu"), gemel.load_late(own)
    _compare(ours.encode_query(QUERIES, on_long="truncate"), theirs.encode(QUERIES, is_query=True))
    _compare(ours.encode_document(DOCUMENTS, on_long="truncate"), theirs.encode(DOCUMENTS, is_query=False))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["pylate", "stanford", "own", "attended", "min"])
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, layout: str) -> None:
    package = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    if not hasattr(package, "MultiVectorEncoder"):
        pytest.skip("this version of sentence-transformers has no MultiVectorEncoder")
    own = tmp_path / "model"
    if layout == "pylate":
        tiny_late(own)
    elif layout == "stanford":
        stanford_of(tiny_late(tmp_path / "first"), own)
    else:
        changes: dict[str, dict[str, Any]] = {"attended": {"attend": True}, "min": {"strategy": "min"}}
        multi_vector(own, **changes.get(layout, {}))
    theirs, ours = package.MultiVectorEncoder(str(own), device="cpu"), gemel.load_late(own)
    _compare(ours.encode_query(QUERIES, on_long="truncate"), theirs.encode_query(QUERIES))
    _compare(ours.encode_document(DOCUMENTS, on_long="truncate"), theirs.encode_document(DOCUMENTS))


def _compare(ours: gemel.MultiVectors, theirs: Any) -> None:
    assert len(ours) == len(theirs)
    for position, vectors in enumerate(theirs):
        assert ours.of(position) == pytest.approx(np.asarray(vectors), abs=1e-5)


def test_an_explanation_adds_up_to_the_score_and_says_where_tokens_are(model: gemel.LateModel) -> None:
    document = "the stock market fell, and a dog was sleeping."
    result = model.explain("dog in the street", document)
    assert result.score == model.scores(["dog in the street"], [document])[0]
    assert sum(match.product for match in result.matches) == pytest.approx(result.score, abs=1e-5)
    assert tuple(match.query for match in result.matches) == model.encode_query(["dog in the street"]).tokens
    queries, documents = model.encode_query(["dog in the street"]), model.encode_document([document])
    best = (queries.of(0) @ documents.of(0).T).argmax(axis=1)
    assert [match.document for match in result.matches] == [documents.tokens[at] for at in best]
    for match in result.matches:
        if match.start is None:
            assert match.document in ("[CLS]", "[D] ", "[SEP]")
        else:
            assert document[match.start : match.stop] == match.document.removeprefix("##")


def test_every_vector_of_a_text_knows_its_characters(tmp_path: Path) -> None:
    for name, settings in (
        ("plain", {}),
        ("prompt", {"prompts": {"query": "", "document": "a man "}}),
        ("none", {"document_prefix": "", "skiplist_words": []}),
    ):
        model = gemel.load_late(tiny_late(tmp_path / name, **settings))
        for text in ("the dog, a man.", DOCUMENTS[2], ""):
            tokens = model.encode_document([text], on_long="truncate").tokens
            places = model._tokenizer.offsets(text, "document")
            assert len(places) == len(tokens)
            written = [
                (token, text[start:stop])
                for token, (start, stop) in zip(tokens, places, strict=True)
                if start is not None
            ]
            assert all(token.removeprefix("##") == part for token, part in written)
            assert len(written) == len(tokens) - sum(
                token in ("[CLS]", "[SEP]", "[D] ") for token in tokens
            ) - (2 if name == "prompt" else 0)


def test_explain_takes_one_query_and_one_document(model: gemel.LateModel) -> None:
    with pytest.raises(gemel.InputError, match="explain takes one document, a string, got list"):
        model.explain("dog", ["dog"])  # type: ignore[arg-type]
