"""Late interaction in training: the token vectors of inference, MaxSim with a gradient, and a folder others read."""

import numpy as np
import pytest

import gemel
from gemel.errors import InputError, ModelError
from gemel.training.options import TrainOptions
from tiny import tiny_bert, tiny_checkpoint, tiny_vocabulary
from tiny_late import stanford_of, tiny_late

torch = pytest.importorskip("torch", reason="training is in the train extra")
pytest.importorskip("transformers", reason="training is in the train extra")

from gemel.training.devices import Processes  # noqa: E402
from gemel.training.late_encoder import LateNetwork, read_late_start  # noqa: E402
from gemel.training.loop import BatchGradient, plan  # noqa: E402
from gemel.training.objectives.base import make_objective, maxsim_table, score_rows  # noqa: E402

CPU = torch.device("cpu")
WORDS = ["man", "woman", "cat", "dog", "guitar", "flute", "street", "sofa", "rain", "market"]
TEXTS = ["a man is playing a guitar", "hello", "the stock market fell sharply today.", "", "a man, a dog"]
ROWS = [(f"the {word} is here", f"a {word} on the street") for word in WORDS]
MASKED = [*tiny_vocabulary(), "[MASK]", "[unused0]", "[unused1]"]


def network(folder, **options):
    return LateNetwork(read_late_start(folder), TrainOptions(**options), CPU)


def vectors(start, texts, side):
    """A list of (tokens, dim), without the rows of zeros."""
    tokens = start.tokens([(side, text) for text in texts])
    with torch.no_grad():
        start.module.eval()
        padded = start.forward(tokens)
    for rows, each in zip(padded, tokens, strict=True):
        assert not rows[len(each.counted) :].any()
    return [rows[: len(each.counted)].numpy() for rows, each in zip(padded, tokens, strict=True)]


@pytest.mark.parametrize("attend", [True, False])
@pytest.mark.parametrize("layout", ["pylate", "stanford"])
def test_a_model_is_the_same_in_training_and_in_inference(tmp_path, attend, layout):
    folder = tiny_late(tmp_path / "one", attend_to_expansion_tokens=attend)
    if layout == "stanford":
        folder = stanford_of(folder, tmp_path / "two", attend_to_mask_tokens=attend)
    start, model = network(folder), gemel.load_late(folder)
    for side, expected in (("query", model.encode_query(TEXTS)), ("document", model.encode_document(TEXTS))):
        result = vectors(start, TEXTS, side)
        for row, own in enumerate(result):
            np.testing.assert_allclose(own, expected.of(row), atol=1e-5)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert", "modernbert", "mpnet"])
def test_a_saved_model_gives_the_same_vectors_without_torch(tmp_path, model_type):
    start = network(tiny_checkpoint(tmp_path / "one", model_type), token_dim=8, query_expansion=False)
    assert start.late.query.prefix is None
    train(start, ranking(), steps=3)
    start.write(tmp_path / "two", objective=None, about={})
    model = gemel.load_late(tmp_path / "two")
    assert model.dim == 8
    for side, actual in (("query", model.encode_query(TEXTS)), ("document", model.encode_document(TEXTS))):
        for row, own in enumerate(vectors(start, TEXTS, side)):
            np.testing.assert_allclose(actual.of(row), own, atol=1e-5)


def test_a_new_model_has_prefix_tokens_mask_tokens_and_the_requested_lengths(tmp_path):
    folder = tiny_bert(tmp_path / "one", vocabulary=MASKED)
    start = network(folder, token_dim=8, query_length=9, max_length=12)
    assert "the prefix tokens [unused0] and [unused1]" in read_late_start(folder).notes()[0]
    start.write(tmp_path / "two", objective=None, about={})
    model = gemel.load_late(tmp_path / "two")
    assert (model.query_length, model.document_length, model.dim) == (9, 12, 8)
    query = model.encode_query(["a man"])
    assert list(query.tokens_of(0)) == ["[CLS]", "[unused0]", "a", "man", "[SEP]", *["[MASK]"] * 4]
    assert list(model.encode_document(["a man"]).tokens_of(0))[:2] == ["[CLS]", "[unused1]"]
    np.testing.assert_allclose(query.of(0), vectors(start, ["a man"], "query")[0], atol=1e-5)
    again = network(tmp_path / "two")
    assert again.late.query == start.late.query
    assert again.late.expansion == start.late.expansion
    np.testing.assert_allclose(vectors(again, ["a man"], "query")[0], query.of(0), atol=1e-5)


def test_the_table_of_scores_is_that_of_each_pair():
    generator = torch.Generator().manual_seed(0)
    queries, documents = torch.randn(3, 4, 5, generator=generator), torch.randn(6, 7, 5, generator=generator)
    queries[1, 2:], documents[2, 3:], documents[4, 1:] = 0, 0, 0
    table = maxsim_table(queries, documents)
    for row, query in enumerate(queries):
        arrays = [each[(each != 0).any(1)].numpy() for each in documents]
        expected = gemel.maxsim(query[(query != 0).any(1)].numpy(), arrays)
        np.testing.assert_allclose(table[row].numpy(), expected, atol=1e-5)
    rows = score_rows(queries, documents[:3], "maxsim")
    torch.testing.assert_close(rows, table[:, :3].diagonal())


def test_a_table_in_blocks_is_the_table_at_once(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(5, 4, 6, generator=generator, requires_grad=True)
    documents = torch.randn(7, 3, 6, generator=generator, requires_grad=True)
    whole = maxsim_table(queries, documents)
    expected = torch.autograd.grad(whole.square().sum(), (queries, documents))
    monkeypatch.setattr("gemel.training.objectives.base._MAXSIM_NUMBERS", 2 * 4 * 7 * 3)
    parts = maxsim_table(queries, documents)
    torch.testing.assert_close(parts, whole)
    for one, other in zip(
        torch.autograd.grad(parts.square().sum(), (queries, documents)), expected, strict=True
    ):
        torch.testing.assert_close(one, other)


def test_the_gradient_is_that_of_a_direct_computation():
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(3, 4, 5, generator=generator, requires_grad=True)
    documents = torch.randn(3, 6, 5, generator=generator)
    documents[1, 4:] = 0
    documents.requires_grad_()
    objective = make_objective("in-batch-ranking", {"score": "maxsim", "temperature": 0.5})
    given = torch.autograd.grad(objective((queries, documents), None), (queries, documents))
    lengths = [6, 4, 6]
    scores = torch.stack(
        [
            torch.stack(
                [
                    (query @ document[:length].T).amax(1).sum()
                    for document, length in zip(documents, lengths, strict=True)
                ]
            )
            for query in queries
        ]
    )
    loss = torch.nn.functional.cross_entropy(scores / 0.5, torch.arange(3))
    for one, other in zip(given, torch.autograd.grad(loss, (queries, documents)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_cached_gradients_equal_plain_ones(tmp_path, size):
    gradients = []
    for cache in (None, size):
        start = network(tiny_late(tmp_path / f"model-{cache}"), dropout=0.0)
        columns = start.items(tuple(list(column) for column in zip(*ROWS, strict=True)))
        planned = plan(columns, ranking().needs)
        gradient = BatchGradient(start, ranking(), None, Processes(), cache, lambda loss: loss.backward())
        gradient(planned, start.tokens(planned.items), None, 1.0)
        gradients.append({name: weight.grad for name, weight in start.module.named_parameters()})
    for name, expected in gradients[0].items():
        if expected is not None:
            torch.testing.assert_close(gradients[1][name], expected, atol=1e-5, rtol=1e-4, msg=name)


def test_token_vectors_of_two_processes_are_as_long_as_the_longest_text(monkeypatch):
    own, other = torch.ones(2, 3, 4), 2 * torch.ones(2, 5, 4)  # texts 0 and 2, and text 1

    def gather(parts, padded):
        assert padded.shape == (2, 5, 4)
        parts[0].copy_(padded)
        parts[1].copy_(other)

    monkeypatch.setattr(torch.distributed, "all_reduce", lambda number, op: number.fill_(5))
    monkeypatch.setattr(torch.distributed, "all_gather", gather)
    result = Processes(0, 2).gather(own, 3)
    assert result.shape == (3, 5, 4)
    assert [float(rows.sum()) for rows in result] == [12.0, 40.0, 12.0]
    assert not result[0, 3:].any()


def ranking():
    return make_objective("in-batch-ranking", {"score": "maxsim", "temperature": 1.0})


def train(start, objective, steps, rate=1e-3):
    optimizer = torch.optim.AdamW(start.module.parameters(), lr=rate)
    columns = start.items(tuple(list(column) for column in zip(*ROWS, strict=True)))
    planned = plan(columns, objective.needs)
    gradient = BatchGradient(start, objective, None, Processes(), None, lambda loss: loss.backward())
    start.module.train()
    for _ in range(steps):
        gradient(planned, start.tokens(planned.items), None, 1.0)
        optimizer.step()
        optimizer.zero_grad()


def test_a_run_writes_a_model_that_finds_its_documents(tmp_path):
    rows = [(query, document, ROWS[(row + 1) % 10][1]) for row, (query, document) in enumerate(ROWS)]
    result = gemel.train(
        tiny_late(tmp_path / "one"),
        rows,
        objective="in-batch-ranking",
        kind="late",
        out=tmp_path / "two",
        batch_size=10,
        max_steps=40,
        threads=1,
        learning_rate=3e-3,
        dropout=0.0,
        cache_texts=7,
        force=True,
    )
    assert result.steps == 40
    model = gemel.load_late(tmp_path / "two")
    queries, documents = (list(column) for column in zip(*ROWS, strict=True))
    scores = gemel.maxsim(model.encode_query(queries), model.encode_document(documents))
    assert (scores.argmax(1) == np.arange(10)).mean() >= 0.9
    assert "gemel.load_late" in (tmp_path / "two/README.md").read_text()


def test_an_interrupted_run_is_resumed_to_the_same_bytes(tmp_path):
    tiny_bert(tmp_path / "one", vocabulary=MASKED)
    settings = {
        "objective": "margin-mse",
        "kind": "late",
        "batch_size": 5,
        "max_steps": 4,
        "threads": 1,
        "checkpoint_steps": 2,
        "token_dim": 8,
    }
    rows = [(query, document, "the rain", row / 10) for row, (query, document) in enumerate(ROWS)]
    for name in ("whole", "part"):
        gemel.train(tmp_path / "one", rows, out=tmp_path / name, **settings)
    last = tmp_path / "part/training/snapshots/step-00000004"
    for file in last.iterdir():
        file.unlink()
    last.rmdir()
    gemel.train(tmp_path / "one", rows, out=tmp_path / "part", resume=True, **settings)
    for name in ("model.safetensors", "1_Dense/model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "part" / name).read_bytes()


def test_scores_during_training_are_those_of_the_saved_model(tmp_path):
    start = network(tiny_late(tmp_path / "one"))
    expected = gemel.load_late(tmp_path / "one").scores(TEXTS, TEXTS[::-1])
    np.testing.assert_allclose(start.encoder().scores(TEXTS, TEXTS[::-1]), expected, atol=1e-4)
    with pytest.raises(InputError, match="a vector of each token"):
        start.encoder().encode(TEXTS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "triplet"}, "cannot be trained with objective 'triplet'"),
        ({"settings": {"score": "dot"}}, "compares texts by maxsim"),
        ({"settings": {"symmetric": True}}, "maxsim compares queries with documents"),
        ({"token_dim": 5}, "token_dim=5 was requested"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(tmp_path, changes, message):
    request = {"objective": "in-batch-ranking", "kind": "late", "out": tmp_path / "two", **changes}
    with pytest.raises(InputError, match=message):
        gemel.train(tiny_late(tmp_path / "one"), ROWS, **request)


def test_a_model_of_another_form_is_refused(tmp_path):
    with pytest.raises(ModelError, match="used, but not trained further"):
        read_late_start(tiny_late(tmp_path / "one", prompts={"query": "find: ", "document": ""}))
