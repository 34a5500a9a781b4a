"""Sparse encoders in training: the weights of inference, a gradient only where it is due, and a folder others read."""

import json

import numpy as np
import pytest

import gemel
from gemel.errors import InputError, ModelError
from gemel.training.options import TrainOptions
from tiny import tiny_bert, tiny_checkpoint
from tiny_sparse import tiny_sparse

torch = pytest.importorskip("torch", reason="training is in the train extra")
pytest.importorskip("transformers", reason="training is in the train extra")

from gemel.training.objectives.base import make_objective  # noqa: E402
from gemel.training.packing import pack  # noqa: E402
from gemel.training.sparse_encoder import (  # noqa: E402
    FlopsRegularized,
    SparseNetwork,
    flops,
    read_sparse_start,
)

CPU = torch.device("cpu")
WORDS = ["man", "woman", "cat", "dog", "guitar", "flute", "street", "sofa", "rain", "market"]
TEXTS = ["a man is playing a guitar", "hello", "the stock market fell sharply today", "", "a man"]
ROWS = [(f"the {word} is here", f"a {word} on the street") for word in WORDS]


def network(folder, texts=(), **options):
    torch.manual_seed(0)
    return SparseNetwork(read_sparse_start(folder), TrainOptions(**options), CPU, texts=texts)


def items(texts, side="document"):
    return [(side, text) for text in texts]


@pytest.mark.parametrize("layout", ["splade", "plain"])
def test_a_sparse_encoder_is_the_same_in_training_and_in_inference(tmp_path, layout):
    folder = tiny_sparse(tmp_path / "one", layout)
    start = network(folder)
    expected = gemel.load_sparse(folder).encode(TEXTS).to_dense()
    np.testing.assert_allclose(start.encoder().encode(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(start.encoder().encode_query(TEXTS), expected, atol=1e-5)
    assert (expected > 0).any()


def test_the_gradient_is_that_of_the_whole_table_of_tokens_and_words(tmp_path):
    start = network(tiny_sparse(tmp_path / "one"), dropout=0.0)
    tokens = start.tokens(items(TEXTS))
    factors = torch.randn(len(TEXTS), start.dim, generator=torch.Generator().manual_seed(1))
    (start.forward(tokens) * factors).sum().backward()
    fast = {
        name: weight.grad.clone()
        for name, weight in start.module.named_parameters()
        if weight.grad is not None
    }
    start.module.zero_grad()
    (direct(start, tokens) * factors).sum().backward()
    slow = {name: weight.grad for name, weight in start.module.named_parameters() if weight.grad is not None}
    assert fast.keys() == slow.keys()
    for name, gradient in fast.items():
        torch.testing.assert_close(gradient, slow[name], atol=1e-5, rtol=1e-4, msg=name)


def test_mixed_precision_computes_weights_and_their_gradient_in_float32(tmp_path):
    start = network(tiny_sparse(tmp_path / "one"), dropout=0.0)
    tokens = start.tokens(items(TEXTS))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights = start.forward(tokens)
        weights.sum().backward()
    assert weights.dtype == torch.float32
    np.testing.assert_allclose(weights.detach().numpy(), start.encoder().encode(TEXTS), atol=0.1)
    gradients = [weight.grad for weight in start.module.parameters() if weight.grad is not None]
    assert all(gradient.dtype == torch.float32 and gradient.isfinite().all() for gradient in gradients)


def direct(start, tokens):
    """SPLADE as it is defined: all numbers of all tokens and words at once."""
    texts = pack([each.ids for each in tokens], CPU)
    logits = start._transform(start.body.hidden(texts)) @ start._table().T + start._bias()
    weights = [torch.log1p(torch.relu(part)).amax(0) for part in logits.split(texts.lengths.tolist())]
    return torch.stack(weights)[texts.back]


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert", "mpnet", "modernbert"])
def test_a_start_without_a_head_gets_one_that_gives_a_text_its_own_words(tmp_path, model_type):
    texts = [text for row in ROWS for text in row]
    start = network(tiny_checkpoint(tmp_path / "one", model_type), texts)
    assert start.start.fresh
    weights = start.encoder().encode(["a guitar", "the rain"])
    ids = [start.tokenizer.content([word])[0][0] for word in ("guitar", "rain")]
    assert (weights > 0).any(1).all()
    assert weights[0, ids[0]] > weights[1, ids[0]]
    assert weights[1, ids[1]] > weights[0, ids[1]]


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert", "mpnet", "modernbert"])
def test_a_saved_model_gives_the_same_weights_without_torch_and_in_transformers(tmp_path, model_type):
    start = network(tiny_checkpoint(tmp_path / "one", model_type), TEXTS)
    train(start, ranking(), ROWS, steps=3)
    start.write(tmp_path / "two", objective=None, about={})
    expected = start.encoder().encode(TEXTS)
    model = gemel.load_sparse(tmp_path / "two")
    np.testing.assert_allclose(model.encode(TEXTS).to_dense(), expected, atol=1e-4)
    np.testing.assert_allclose(theirs(tmp_path / "two", start, TEXTS), expected, atol=1e-4)
    again = network(tmp_path / "two")
    assert not again.start.fresh
    np.testing.assert_allclose(again.encoder().encode(TEXTS), expected, atol=1e-5)


def theirs(folder, start, texts):
    """The weights by the ...ForMaskedLM of transformers."""
    from transformers import AutoModelForMaskedLM

    with torch.no_grad():
        model, report = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
        assert not report["missing_keys"]
        rows = []
        for each in start.tokens(items(texts)):
            logits = model.eval()(input_ids=torch.from_numpy(each.ids.astype(np.int64))[None]).logits[0]
            rows.append(torch.log1p(torch.relu(logits)).amax(0).numpy())
    return np.stack(rows)


def ranking(query=0.0, document=0.0):
    inner = make_objective("in-batch-ranking", {"score": "dot", "temperature": 1.0})
    return FlopsRegularized(inner, query, document, warmup=0.0)


def train(start, objective, rows, steps, rate=1e-3):
    """Full batches of all rows, through the training interface only."""
    optimizer = torch.optim.AdamW(start.module.parameters(), lr=rate)
    columns = tuple(list(column) for column in zip(*rows, strict=True))
    start.module.train()
    for _ in range(steps):
        vectors = tuple(start.forward(start.tokens(column)) for column in start.items(columns))
        loss = objective(vectors, None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def test_the_regularizer_is_the_squared_mean_weight_of_each_word():
    weights = torch.tensor([[1.0, 0.0, 2.0], [3.0, 0.0, 0.0]])
    assert float(flops(weights)) == pytest.approx(2**2 + 0 + 1**2)
    objective = ranking(query=0.5, document=0.25)
    vectors = (weights, weights, weights * 2)
    plain = objective.objective(vectors, None)
    both = torch.cat([weights, weights * 2])
    expected = float(plain) + 0.5 * 5 + 0.25 * float(flops(both))
    assert float(objective(vectors, None)) == pytest.approx(expected)


def test_the_weight_of_the_regularizer_rises_with_the_square_of_the_steps():
    objective = FlopsRegularized(make_objective("in-batch-ranking"), 1.0, 1.0, warmup=0.5)
    assert [objective.at(done).share for done in (0.0, 0.25, 0.5, 0.9)] == [0.0, 0.25, 1.0, 1.0]
    assert ranking().at(0.0).share == 1.0


def test_the_regularizer_leaves_fewer_words(tmp_path):
    counts = []
    for weight in (0.0, 1.0):
        start = network(tiny_sparse(tmp_path / f"model-{weight}"), dropout=0.0)
        train(start, ranking(weight, weight), ROWS, steps=30, rate=3e-3)
        counts.append(start.facts([text for row in ROWS for text in row])["active_words"])
    assert 0 < counts[1] < counts[0] / 2


def test_a_run_writes_a_model_that_finds_its_documents_and_follows_its_words(tmp_path):
    tiny_sparse(tmp_path / "one")
    result = gemel.train(
        tmp_path / "one",
        ROWS,
        objective="in-batch-ranking",
        kind="sparse",
        out=tmp_path / "two",
        batch_size=10,
        max_steps=60,
        threads=1,
        learning_rate=3e-3,
        dropout=0.0,
        document_flops=1e-3,
        eval_steps=30,
    )
    assert result.steps == 60
    model = gemel.load_sparse(tmp_path / "two")
    queries, documents = (list(column) for column in zip(*ROWS, strict=True))
    scores = model.encode_query(queries).similarity(model.encode_document(documents))
    assert (scores.argmax(1) == np.arange(len(ROWS))).mean() >= 0.9
    lines = [json.loads(line) for line in (tmp_path / "two/training/metrics.jsonl").read_text().splitlines()]
    facts = [line for line in lines if line["kind"] == "facts"]
    assert [line["step"] for line in facts] == [0, 30, 60]
    assert all(line["active_words"] > 0 for line in facts)
    assert "gemel.load_sparse" in (tmp_path / "two/README.md").read_text()


def test_an_interrupted_run_is_resumed_to_the_same_bytes(tmp_path):
    tiny_bert(tmp_path / "one")  # with a new head, which is fitted again before the snapshot replaces it
    settings = {
        "objective": "in-batch-ranking",
        "kind": "sparse",
        "batch_size": 5,
        "max_steps": 8,
        "threads": 1,
        "checkpoint_steps": 4,
        "learning_rate": 1e-3,
        "cache_texts": 4,
    }
    gemel.train(tmp_path / "one", ROWS, out=tmp_path / "whole", **settings)
    gemel.train(tmp_path / "one", ROWS, out=tmp_path / "part", **settings)
    for name in ("step-00000008",):
        for file in (tmp_path / "part/training/snapshots" / name).iterdir():
            file.unlink()
        (tmp_path / "part/training/snapshots" / name).rmdir()
    gemel.train(tmp_path / "one", ROWS, out=tmp_path / "part", resume=True, **settings)
    whole, part = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "part"))
    assert whole == part


def test_no_word_at_all_stops_the_run(tmp_path):
    with pytest.raises(gemel.GemelError, match="no text has a word with a weight above zero"):
        gemel.train(
            tiny_sparse(tmp_path / "one"),
            ROWS,
            objective="in-batch-ranking",
            kind="sparse",
            out=tmp_path / "two",
            batch_size=10,
            max_steps=60,
            threads=1,
            learning_rate=3e-2,
            query_flops=100.0,
            document_flops=100.0,
            flops_warmup=0.0,
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "regression"}, "cannot be trained with objective 'regression'"),
        ({"settings": {"score": "maxsim"}}, "compares texts by dot or cosine"),
        ({"matryoshka": (8,)}, "matryoshka truncates dense vectors"),
        ({"pooling": "cls"}, "does not pool"),
        ({"query_flops": -1.0}, "query_flops must be 0 or more"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(tmp_path, changes, message):
    tiny_sparse(tmp_path / "one")
    request = {"objective": "in-batch-ranking", "kind": "sparse", "out": tmp_path / "two", **changes}
    with pytest.raises(InputError, match=message):
        gemel.train(tmp_path / "one", ROWS, **request)


def test_a_model_of_another_form_is_refused(tmp_path):
    with pytest.raises(ModelError, match="used, but not trained"):
        read_sparse_start(tiny_sparse(tmp_path / "sum", pooling="sum"))
    with pytest.raises(ModelError, match="used, but not trained"):
        read_sparse_start(tiny_sparse(tmp_path / "router", "router"))
    with pytest.raises(ModelError, match="'qwen3', which cannot be trained as a sparse encoder"):
        read_sparse_start(tiny_checkpoint(tmp_path / "decoder", "qwen3"))


def test_queries_without_a_network_have_learned_weights_of_their_words(tmp_path):
    result = gemel.train(
        tiny_bert(tmp_path / "one"),
        ROWS,
        objective="in-batch-ranking",
        kind="sparse",
        inference_free=True,
        out=tmp_path / "two",
        batch_size=10,
        max_steps=20,
        threads=1,
        learning_rate=1e-3,
        dropout=0.0,
    )
    assert result.steps == 20
    model = gemel.load_sparse(tmp_path / "two")
    assert model.checkpoint.query is not None
    words = dict(model.encode_query(["the man is here"]).tokens(0))
    assert words["man"] > words.get("the", 0.0)  # in fewer texts
    assert not {"[CLS]", "[SEP]"} & set(words)
    queries, documents = (list(column) for column in zip(*ROWS, strict=True))
    scores = model.encode_query(queries).similarity(model.encode_document(documents))
    assert (scores.argmax(1) == np.arange(len(ROWS))).mean() >= 0.9


def test_the_query_table_is_the_same_in_training_and_in_inference(tmp_path):
    start = network(tiny_sparse(tmp_path / "one"), TEXTS, inference_free=True, dropout=0.0)
    train(start, ranking(), ROWS, steps=3)
    start.write(tmp_path / "two", objective=None, about={})
    model = gemel.load_sparse(tmp_path / "two")
    for side in ("query", "document"):
        expected = getattr(start.encoder(), f"encode_{side}")(TEXTS)
        actual = getattr(model, f"encode_{side}")(TEXTS).to_dense()
        np.testing.assert_allclose(actual, expected, atol=1e-4)
        assert (expected > 0).any()
