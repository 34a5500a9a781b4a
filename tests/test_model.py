"""Text -> vector: properties of encoding, for every engine, precision and architecture, and what each option does."""

import asyncio
import copy
import json
import multiprocessing
import os
import pickle
import shutil
import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gemel
from gemel.checkpoint.architecture import model_types
from gemel.encoder.engines import native
from gemel.encoder.tokenizer import PreparedTexts, TruncationWarning
from gemel.errors import InputError, ModelError
from gemel.model import Model
from gemel.options import EncodeOptions
from gemel.vectors.similarity import scores
from tiny import tiny_bert, tiny_checkpoint

# The tests are about other things than prompts.
pytestmark = pytest.mark.filterwarnings("ignore::gemel.PromptWarning")

TEXTS = [
    "a man is playing a guitar",
    "someone plays an instrument",
    "",
    "   \t\n",
    "x",
    "🎉🎉",
    "nul \x00 inside",
    "שלום עולם",
    "naïve café 東京",
    "a man is playing a guitar",
    "q " * 60,
]
ENGINES = ["onnxruntime"] + (["native"] if native.levels() else [])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert(
        tmp_path_factory.mktemp("model") / "tiny", prompts={"query": "find: ", "document": "doc: "}
    )


@pytest.fixture(scope="module", params=[(e, p) for e in ENGINES for p in ("float32", "int8")], ids="-".join)
def model(request, folder):
    engine, precision = request.param
    return gemel.load(folder, engine=engine, precision=precision)


@pytest.fixture(scope="module")
def plain(folder):
    return gemel.load(folder)


# Batch invariance (bit-exact)


def test_a_text_has_the_same_bits_alone_in_any_batch_and_in_any_order(model):
    together = model.encode(TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        assert np.array_equal(model.encode([text])[0], vector)
    shuffled = np.random.default_rng(0).permutation(len(TEXTS))
    assert np.array_equal(model.encode([TEXTS[i] for i in shuffled]), together[shuffled])


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("memory", [1, "40kB", "1GiB"])
def test_threads_and_memory_never_change_a_bit(model, threads, memory):
    texts = [f"text number {n} " + "and so on " * (n % 7) for n in range(60)]
    assert np.array_equal(model.encode(texts, threads=threads, memory=memory), model.encode(texts))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(max_size=40), max_size=12), seed=st.integers(0, 99))
def test_any_texts_in_any_batch(plain, texts, seed):
    vectors = plain.encode(texts)
    assert vectors.shape == (len(texts), plain.dim) and np.isfinite(vectors).all()
    order = np.random.default_rng(seed).permutation(len(texts))
    assert np.array_equal(plain.encode([texts[i] for i in order], threads=1), vectors[order])


@pytest.mark.parametrize("model_type", model_types())
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_batch_invariance_holds_for_every_architecture(tmp_path, model_type, precision):
    pytest.importorskip("transformers", reason="the tiny models are made by transformers (train extra)")
    folder = tiny_checkpoint(tmp_path / "m", model_type)
    for engine in ("auto", "onnxruntime"):
        model = gemel.load(folder, precision=precision, engine=engine)
        together = model.encode(TEXTS, on_long="truncate")
        assert np.isfinite(together).all()
        for text, vector in zip(TEXTS, together, strict=True):
            assert np.array_equal(model.encode([text], on_long="truncate")[0], vector)


def test_one_model_serves_many_threads(plain):
    wanted = plain.encode(TEXTS)
    wrong = []

    def work():
        if any(not np.array_equal(plain.encode(TEXTS), wanted) for _ in range(5)):
            wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_encodes_too(plain):
    wanted = plain.encode(TEXTS, threads=2)  # the parent has its lanes already; the child must make its own
    child = os.fork()
    if child == 0:
        same = np.array_equal(plain.encode(TEXTS, threads=2), wanted)
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


# What comes out


def test_rows_are_float32_of_length_one_in_the_callers_order(model):
    vectors = model.encode(TEXTS)
    assert vectors.dtype == np.float32 and vectors.shape == (len(TEXTS), 32) and vectors.flags.c_contiguous
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.array_equal(vectors[0], vectors[9])


def test_no_texts_give_no_rows(plain):
    assert plain.encode([]).shape == (0, 32)
    assert list(plain.encode_stream([])) == []


def test_engines_agree(folder):
    if len(ENGINES) < 2:
        pytest.skip("only one engine was compiled")
    a, b = (gemel.load(folder, engine=engine).encode(TEXTS) for engine in ENGINES)
    np.testing.assert_allclose(a, b, atol=1e-5)


def test_the_report_has_details_of_each_text(folder):
    report = gemel.load(folder).encode_report([*TEXTS, "q " * 100], on_long="truncate")
    assert report.duplicates == 1
    assert report.tokens[2] == 2 and report.tokens[-1] == 102 and report.kept[-1] == 64
    assert report.truncated.tolist() == [len(TEXTS)]
    assert "1 repeated" in report.summary() and "1 cut (38 tokens lost)" in report.summary()


def test_repeated_texts_are_computed_once(folder):
    model = gemel.load(folder, engine="onnxruntime")
    seen = []
    run = model.engine.hidden
    model.engine.hidden = lambda ids, threads: seen.append(len(ids)) or run(ids, threads)
    model.encode(["same"] * 500 + ["other one"])
    assert sum(seen) == 2


def test_a_stream_gives_the_same_rows_in_blocks(plain):
    texts = [f"row {n}" for n in range(25)]
    blocks = list(plain.encode_stream(iter(texts), block=10))
    assert [len(block) for block in blocks] == [10, 10, 5]
    assert np.array_equal(np.concatenate(blocks), plain.encode(texts))


def test_a_stream_reads_no_further_than_it_must(plain):
    taken = []

    def source():
        for n in range(1000):
            taken.append(n)
            yield f"row {n}"

    next(plain.encode_stream(source(), block=10))
    assert len(taken) <= 11


def test_token_vectors_average_to_the_text_vector(plain):
    (result,) = plain.tokens(["a man plays"])
    mean = result.vectors.mean(axis=0)
    np.testing.assert_allclose(mean / np.linalg.norm(mean), plain.encode(["a man plays"])[0], atol=1e-6)
    assert (
        result.tokens[0] == "[CLS]"
        and result.tokens[-1] == "[SEP]"
        and len(result.tokens) == len(result.vectors)
    )


# Long texts


def test_truncation_is_warned_of_once_with_numbers(plain):
    with pytest.warns(
        TruncationWarning, match="2 of 3 texts are longer than 64 tokens and lost 176 tokens"
    ) as caught:
        plain.encode(["q " * 150, "short", "z " * 150])
    assert len(caught) == 1 and caught[0].filename == __file__


def test_truncate_is_silent_and_keeps_the_first_tokens(plain):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cut = plain.encode(["q " * 150], on_long="truncate")
    assert np.array_equal(cut, plain.encode(["q " * 62]))


def test_error_names_the_position(plain):
    with pytest.raises(InputError, match=r"texts\[2\] has 152 tokens, the model reads 64"):
        plain.encode(["a", "b", "q " * 150], on_long="error")


def test_chunks_read_the_whole_text(plain):
    whole, cut = "q " * 62 + "z " * 300, "q " * 62
    chunked = plain.encode([whole], on_long="chunk")
    assert not np.array_equal(chunked, plain.encode([cut]))
    far_end = plain.encode(["z " * 62])
    assert (chunked @ far_end.T).item() > (plain.encode([cut]) @ far_end.T).item()
    assert plain.encode_report([whole], on_long="chunk").kept[0] == 364
    assert np.array_equal(plain.encode(["short"], on_long="chunk"), plain.encode(["short"]))


def test_a_chunked_text_has_the_same_bits_in_any_batch(plain):
    texts = ["q " * n for n in (10, 70, 200, 333)]
    together = plain.encode(texts, on_long="chunk")
    assert all(
        np.array_equal(plain.encode([t], on_long="chunk")[0], v) for t, v in zip(texts, together, strict=True)
    )


def test_a_megabyte_of_text_is_read(plain):
    text = "lorem ipsum dolor " * 60_000
    report = plain.encode_report([text], on_long="truncate")
    assert report.tokens[0] > 60_000 and np.isfinite(report.vectors).all()


def test_max_length_can_be_shorter_and_up_to_the_positions_longer(plain):
    assert plain.encode_report(["q " * 100], max_length=10, on_long="truncate").kept[0] == 10
    assert plain.encode_report(["q " * 100], max_length=500, on_long="truncate").kept[0] == 102
    assert plain.encode_report(["q " * 200], max_length=500, on_long="truncate").kept[0] == 128
    with pytest.raises(InputError, match="max_length 2 leaves no room"):
        plain.encode(["q q q"], max_length=2)


@pytest.mark.parametrize("engine", [*ENGINES, "torch"])
@pytest.mark.parametrize("model_type", ["roberta", "xlm-roberta", "camembert", "mpnet"])
def test_max_length_goes_up_to_the_positions_after_the_padding(tmp_path, model_type, engine):
    pytest.importorskip("transformers", reason="the tiny models are made by transformers (train extra)")
    model = gemel.load(tiny_checkpoint(tmp_path, model_type, pad_token_id=1), engine=engine)
    longest = model.encode_report(["q " * 100], max_length=64, on_long="truncate")
    assert longest.kept[0] == 62  # 64 rows, of which the first two are never a token's
    assert np.array_equal(longest.vectors, model.encode(["q " * 60], max_length=62))
    assert all(len(part) <= 120 for part in model.passages(["q " * 100], max_length=500)[0])


def test_a_checkpoint_without_a_limit_is_truncated_at_its_positions(plain):
    endless = Model(replace(plain.checkpoint, max_length=None))
    assert endless.encode_report(["q " * 200], max_length=500, on_long="truncate").kept[0] == 128
    assert endless.encode_report(["q " * 200], on_long="truncate").kept[0] == 128


def without_prompt(folder, **settings):
    """A model whose pooling leaves the prompt out."""
    pooling = tiny_bert(folder, **settings) / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps(json.loads(pooling.read_text()) | {"include_prompt": False}))
    return gemel.load(folder)


@pytest.mark.parametrize("prompt", ["the man is ", "the man is playing a guitar in the rain on the street "])
def test_chunks_leave_out_the_prompt_and_nothing_else(tmp_path, prompt):
    model = without_prompt(tmp_path, max_length=16, normalize=False)
    text = "cat dog guitar flute street sofa rain stock market fell rose sharply today hello world " * 3
    options = EncodeOptions(prompt=prompt, on_long="chunk")
    (window,) = model.prepare([text], options).windows
    prompt_length, room = len(model.tokenizer.content([prompt])[0]), 14
    total, weights = 0, 0
    for number, piece in enumerate(window.pieces):
        states = model.engine.hidden(piece[None])[0]
        prompt_left = max(
            0, prompt_length - number * (room - int(room * 0.25))
        )  # the special token before it belongs to the prompt
        total = total + states[prompt_left + 1 if prompt_left else 0 :].mean(axis=0) * window.weights[number]
        weights += window.weights[number]
    np.testing.assert_allclose(model.encode([text], options)[0], total / weights, atol=1e-5)
    both = model.encode(["short", text], options)
    assert np.array_equal(both, np.concatenate([model.encode([t], options) for t in ("short", text)]))


# Bad input


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one string", r"encode takes a list of texts, got one string\. Write encode\(\[text\]\)\[0\]"),
        (["a", None], r"texts\[1\] is None, not a string"),
        (["a", "b", b"bytes"], r"texts\[2\] is of type bytes, not a string"),
        ([3.5], r"texts\[0\] is of type float"),
        (7, "encode takes a list of texts, got int"),
        (
            ["fine", "half \ud83d"],
            r"texts\[1\] has half a character \(a lone surrogate, U\+D83D\) at offset 5",
        ),
    ],
)
def test_a_wrong_input_is_named_with_its_position(plain, texts, message):
    with pytest.raises(InputError, match=message):
        plain.encode(texts)


def test_a_wrong_text_in_a_stream_is_named(plain):
    with pytest.raises(InputError, match=r"texts\[1\] is None.*from text 3 of the stream"):
        list(plain.encode_stream(["a", "b", "c", "d", None], block=3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 32}, "unknown option 'batch_size' of encode. Leave it out"),
        ({"dim": 33}, "dim must be at most 32"),
        ({"dim": 0}, "dim must be a whole number of at least 1, got 0"),
        ({"output": "int4"}, "output must be one of float32, float16, int8, binary, got 'int4'"),
        ({"precision": "bf16"}, "precision must be one of float32, bfloat16, int8"),
        ({"on_long": "drop"}, "on_long must be one of"),
        ({"memory": "lots"}, "memory must be bytes or a size like '256MB'"),
        ({"prompt_name": "quary"}, "unknown prompt 'quary'. The model tiny brings: document, query"),
    ],
)
def test_a_wrong_option_is_explained(plain, change, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        plain.encode(["a"], **change)


# Prompts, normalization, dimensions, precision of the result


def test_prompts_are_put_in_front(plain):
    assert np.array_equal(plain.encode(["cats"], prompt_name="query"), plain.encode(["find: cats"]))
    assert np.array_equal(plain.encode(["cats"], prompt="say "), plain.encode(["say cats"]))


def test_queries_and_documents_use_their_prompts_where_there_are_some(plain, tmp_path):
    assert np.array_equal(plain.encode_query(["cats"]), plain.encode(["cats"], prompt_name="query"))
    assert np.array_equal(plain.encode_document(["cats"]), plain.encode(["cats"], prompt_name="document"))
    bare = gemel.load(tiny_bert(tmp_path / "bare"))
    assert np.array_equal(bare.encode_query(["cats"]), bare.encode(["cats"]))


def test_normalize_can_be_disabled_and_dim_normalizes_again(plain):
    raw = plain.encode(["cats"], normalize=False)
    unit = raw / np.linalg.norm(raw)
    np.testing.assert_allclose(plain.encode(["cats"]), unit, atol=1e-6)
    short = raw[:, :8] / np.linalg.norm(raw[:, :8])
    np.testing.assert_allclose(plain.encode(["cats"], dim=8), short, atol=1e-6)


def test_smaller_results_keep_the_direction(plain):
    exact = plain.encode(TEXTS)
    assert plain.encode(TEXTS, output="float16").dtype == np.float16
    small = plain.encode(TEXTS, output="int8")
    assert small.dtype == np.int8 and np.abs(small).max(axis=1).tolist() == [127] * len(TEXTS)
    again = small / np.linalg.norm(small.astype(np.float32), axis=1, keepdims=True)
    assert (again * exact).sum(1).min() > 0.999
    bits = plain.encode(TEXTS, output="binary")
    assert bits.dtype == np.uint8 and np.array_equal(np.unpackbits(bits, axis=1), exact > 0)


def test_rescoring_orders_candidates_by_the_float_query(plain):
    corpus, query = plain.encode(TEXTS), plain.encode(["a man is playing a guitar"])
    candidates = np.array([[3, 0, 5]])
    for output in ("int8", "binary", "float16"):
        scores = gemel.rescore(query, gemel.quantize(corpus, output), candidates)
        assert scores.shape == (1, 3) and scores.argmax() == 1
    np.testing.assert_allclose(
        gemel.rescore(query, corpus, candidates), query @ corpus[candidates[0]].T, atol=1e-6
    )
    with pytest.raises(InputError, match="queries have 32 dimensions but the corpus has 16"):
        gemel.rescore(query, corpus[:, :16], candidates)


@pytest.mark.parametrize("pooling", ["cls", "max", "mean-sqrt-len", "weighted-mean", "last", ["cls", "mean"]])
def test_pooling_can_be_given_at_load(folder, pooling):
    model = gemel.load(folder, pooling=pooling)
    assert model.dim == 32 * (2 if isinstance(pooling, list) else 1)
    together = model.encode(TEXTS)
    assert all(np.array_equal(model.encode([t])[0], v) for t, v in zip(TEXTS, together, strict=True))
    with pytest.raises(InputError, match=r"unknown pooling 'maen'\. Did you mean 'mean'"):
        gemel.load(folder, pooling="maen")


def test_batch_invariance_holds_with_a_dense_layer(tmp_path):
    model = gemel.load(tiny_bert(tmp_path / "d", dense=20, normalize=False))
    together = model.encode(TEXTS)
    assert together.shape == (len(TEXTS), 20) and np.abs(together).max() <= 1
    assert all(np.array_equal(model.encode([t])[0], v) for t, v in zip(TEXTS, together, strict=True))


# Names and fingerprints


def test_the_fingerprint_follows_what_a_vector_depends_on(plain, folder):
    base = plain.fingerprint
    assert base == gemel.load(folder).fingerprint
    assert plain.fingerprint_for(EncodeOptions(threads=1, memory=5000, on_long="truncate")) == base
    for change in (
        {"dim": 8},
        {"prompt": "x"},
        {"normalize": False},
        {"precision": "int8"},
        {"on_long": "chunk"},
    ):
        assert plain.fingerprint_for(EncodeOptions(**change)) != base
    assert gemel.load(folder, pooling="cls").fingerprint != base


def test_a_model_describes_itself(folder):
    model = gemel.load(folder, engine="onnxruntime")
    assert repr(model) == "Model('tiny', dim=32, max_length=64, engine='onnxruntime')"


def test_an_unknown_engine_or_device_is_explained(folder):
    with pytest.raises(
        InputError, match="engine must be one of auto, native, onnxruntime, numpy, torch, got 'candle'"
    ):
        gemel.load(folder, engine="candle")
    with pytest.raises(InputError, match="device 'cuda' is not available"):
        gemel.load(folder, device="cuda")


def test_progress_is_written_to_standard_error(plain, capsys, monkeypatch):
    monkeypatch.setattr("gemel.terminal.is_live", lambda: True)
    plain.encode([f"text {n}" for n in range(20)], progress=True)
    shown = capsys.readouterr()
    assert "20 of 20 texts" in shown.err and shown.out == ""


# Tokens now, vectors later: what the server does


def test_prepared_texts_give_the_same_bits_in_any_grouping(plain):
    options = EncodeOptions(on_long="truncate", dim=16, threads=1)
    prepared = plain.prepare(TEXTS, options)
    expected = plain.encode(TEXTS, options)
    assert np.array_equal(plain.run(prepared), expected)
    for start in range(0, len(TEXTS), 3):
        part = PreparedTexts(prepared.windows[start : start + 3], options)
        assert np.array_equal(plain.run(part), expected[start : start + 3])


def test_preparing_refuses_what_encoding_refuses(plain):
    with pytest.raises(InputError, match="dim must be at most 32"):
        plain.prepare(["a"], EncodeOptions(dim=33))
    with pytest.raises(InputError, match=r"texts\[1\] has 102 tokens, the model reads 64"):
        plain.prepare(["a", "a " * 100], EncodeOptions(on_long="error"))


def test_similarity_compares_all_rows(tmp_path):
    model = gemel.load(tiny_bert(tmp_path / "m"))
    left, right = model.encode(["a man", "a dog"]), model.encode(["a man", "a woman", "the dog"])
    result = model.similarity(left, right)
    assert result.shape == (2, 3) and result.dtype == np.float32
    assert result[0, 0] == pytest.approx(1)
    assert np.array_equal(result, scores(left, right, "cosine"))
    np.testing.assert_allclose(model.similarity(left, right, "dot"), left @ right.T, rtol=1e-5)
    assert model.similarity(left, right, metric="euclidean")[0, 0] == pytest.approx(0)
    with pytest.raises(InputError, match="unknown metric 'near'"):
        model.similarity(left, right, "near")


def test_similarity_is_that_of_the_checkpoint(tmp_path):
    folder = tiny_bert(tmp_path / "m", normalize=False)
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "similarity_fn_name": "dot"}))
    model = gemel.load(folder)
    vectors = model.encode(["a man", "a dog"])
    assert np.array_equal(model.similarity(vectors, vectors), model.similarity(vectors, vectors, "dot"))


def test_a_model_with_fixed_options_encodes_as_with_those_options(tmp_path):
    model = gemel.load(tiny_bert(tmp_path / "m", prompts={"query": "q: ", "document": "d: "}))
    fixed = model.with_options(EncodeOptions(normalize=True), dim=8)
    texts = ["a man", "a dog"]
    assert (fixed.dim, fixed.name, fixed.labels) == (8, model.name, None)
    assert fixed.fingerprint == model.fingerprint_for(EncodeOptions(normalize=True, dim=8))
    for method in ("encode", "encode_query", "encode_document"):
        assert np.array_equal(
            getattr(fixed, method)(texts), getattr(model, method)(texts, dim=8, normalize=True)
        )
    assert not np.array_equal(fixed.encode_query(texts), fixed.encode_document(texts))
    own = model.with_options(prompt="own: ")
    assert np.array_equal(own.encode_query(texts), own.encode(texts))


def test_a_prompt_of_the_caller_wins_over_that_of_a_side(tmp_path):
    model = gemel.load(tiny_bert(tmp_path / "m", prompts={"query": "q: ", "document": "d: "}))
    assert model.options_for("query").prompt_name == "query"
    assert model.options_for("query", EncodeOptions(prompt="own: ")).prompt_name is None
    assert model.options_for("query", prompt_name="document").prompt_name == "document"
    assert model.options_for("query", prompt_name=None).prompt_name is None


# Habits: tables as texts, attributes, names, pools, event loops


def test_a_dict_is_refused_instead_of_its_keys(plain):
    with pytest.raises(InputError, match=r"got a dict, of which only the keys.*list\(texts\.values\(\)\)"):
        plain.encode({"title": "a man", "body": "is playing"})


def test_a_data_frame_is_refused_instead_of_its_column_names(plain):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": ["a man", "hello"], "stars": [1, 2]})
    with pytest.raises(InputError, match=r"a DataFrame with the columns text, stars.*df\['text'\]"):
        plain.encode(frame)
    assert np.array_equal(plain.encode(frame["text"]), plain.encode(["a man", "hello"]))


@pytest.mark.parametrize("name", ["max_seq_length", "max_length"])
def test_a_length_cannot_be_set_on_a_model(folder, name):
    model = gemel.load(folder)
    with pytest.raises(AttributeError, match=r"no effect.*encode\(texts, max_length=128\)"):
        setattr(model, name, 128)


def test_a_model_takes_no_new_attributes(folder):
    model = gemel.load(folder)
    with pytest.raises(AttributeError, match=r"takes no attribute 'prompt_prefix'.*with_options"):
        model.prompt_prefix = "query: "
    model.precision = "int8"
    assert model.engine_name


def test_a_model_can_be_made_from_a_name_or_a_folder(folder, plain):
    assert np.array_equal(Model(str(folder)).encode(["a man"]), plain.encode(["a man"]))
    assert Model(folder, precision="int8").precision == "int8"


def test_a_pickled_model_is_a_path_and_gives_the_same_bits(folder):
    model = gemel.load(folder, pooling=["mean", "max"], precision="int8")
    changed = Model(replace(model.checkpoint, max_length=7, prompts={"query": "a "}), precision="int8")
    for each in (model, changed):
        content = pickle.dumps(each)
        assert len(content) < 2000
        again = pickle.loads(content)
        assert (again.name, again.max_length, again.precision) == (each.name, each.max_length, "int8")
        assert again.checkpoint.prompts == each.checkpoint.prompts
        texts = TEXTS[:4]
        assert np.array_equal(again.encode(texts, on_long="truncate"), each.encode(texts, on_long="truncate"))
    assert copy.deepcopy(model).dim == model.dim


def test_a_pickled_model_whose_folder_changed_is_refused(tmp_path):
    content = pickle.dumps(gemel.load(tiny_bert(tmp_path / "m")))
    shutil.rmtree(tmp_path / "m")
    with pytest.raises(ModelError, match="no model folder"):
        pickle.loads(content)
    tiny_bert(tmp_path / "m", seed=1)
    with pytest.raises(ModelError, match="differs from the one in"):
        pickle.loads(content)


def test_a_model_works_in_a_pool_of_new_processes(plain):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        parts = pool.map(plain.encode, [TEXTS[:2], TEXTS[2:4]])
    assert np.array_equal(np.concatenate(parts), plain.encode(TEXTS[:4]))


def test_aencode_gives_the_same_bits_while_the_loop_goes_on(plain):
    async def both():
        return await asyncio.gather(
            plain.aencode(TEXTS[:3], prompt_name="query"), plain.with_options(dim=8).aencode(TEXTS[:3])
        )

    whole, short = asyncio.run(both())
    assert np.array_equal(whole, plain.encode(TEXTS[:3], prompt_name="query"))
    assert np.array_equal(short, plain.encode(TEXTS[:3], dim=8))


def test_waiting_for_aencode_can_be_canceled(plain, monkeypatch):
    free = threading.Event()

    def slow(self, texts, options):
        assert free.wait(30)
        return np.zeros((1, 1))

    monkeypatch.setattr(Model, "encode", slow)

    async def cancel():
        task = asyncio.create_task(plain.aencode(["a"]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        free.set()

    asyncio.run(cancel())


def test_the_repr_of_a_configured_model_has_what_was_changed(plain):
    assert repr(plain.with_options(dim=8)) == "ConfiguredModel('tiny', dim=8)"
