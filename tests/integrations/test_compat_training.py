"""Programs for sentence-transformers that train, evaluate and rerank, with the import changed."""

import numpy as np
import pytest

import gemel
from gemel.compat import CrossEncoder, InputExample, SentenceTransformer, evaluation, losses, util
from gemel.errors import InputError
from tiny import tiny_bert
from tiny_cross import tiny_cross

WORDS = ["man", "woman", "playing", "guitar", "flute", "stock", "market", "fell", "hello", "world"]
TEXTS = ["a man is playing guitar", "a woman is playing the flute", "the stock market fell"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def model(folder):
    return SentenceTransformer(folder)


@pytest.fixture(scope="module")
def cross(tmp_path_factory):
    pytest.importorskip("torch", reason="writes a reference model")
    return CrossEncoder(tiny_cross(tmp_path_factory.mktemp("models") / "cross"))


# Scores: what people do with the tensors of sentence-transformers.


def test_the_score_of_two_vectors_is_a_number(model):
    left, right = model.encode("a man"), model.encode("a woman")
    assert float(util.cos_sim(left, right)) == pytest.approx(float(gemel.cosine(left, right)))
    assert util.cos_sim(left, right).item() == float(util.cos_sim(left, right))


def test_torch_takes_the_scores(model):
    torch = pytest.importorskip("torch")
    found = model.similarity(model.encode(["a man"]), model.encode(TEXTS))
    best = torch.topk(found[0], k=2)
    order = np.argsort(-found[0]).tolist()
    assert best.indices.tolist() == order[:2]
    assert found[0].topk(2).indices.tolist() == order[:2]
    assert torch.argsort(found[0], descending=True).tolist() == order
    assert torch.stack([found[0], found[0]]).shape == (2, 3)


def test_scores_are_arrays_with_the_methods_of_tensors(model):
    vectors = model.encode(TEXTS)
    found = util.cos_sim(vectors, vectors)
    assert isinstance(found, np.ndarray)
    assert type(found.cpu().detach().numpy()) is np.ndarray
    assert np.array_equal(found, gemel.cosine(vectors, vectors))


# Cross-encoders


def test_predict_takes_pairs_and_gives_scores(cross):
    pairs = [("a man", "hello"), ("a man", "a woman")]
    expected = cross.model.scores(*map(list, zip(*pairs, strict=True)))
    assert np.array_equal(cross.predict(pairs, batch_size=1, show_progress_bar=False), expected)
    assert cross.predict(("a man", "hello")) == expected[0]
    assert np.array_equal(cross.predict([list(pair) for pair in pairs]), expected)
    assert cross.predict(pairs, convert_to_tensor=True).tolist() == expected.tolist()


def test_rank_gives_the_best_documents(cross):
    ranking = cross.model.rank("a man", TEXTS, k=2)
    result = cross.rank("a man", TEXTS, top_k=2, return_documents=True)
    assert [each["corpus_id"] for each in result] == ranking.index.tolist()
    assert [each["text"] for each in result] == [TEXTS[i] for i in ranking.index]
    assert [each["score"] for each in result] == ranking.score.tolist()
    assert "text" not in cross.rank("a man", TEXTS)[0]


def test_an_activation_of_torch_is_understood_by_its_name(cross):
    torch = pytest.importorskip("torch")
    logits = cross.model.logits(["a man"], ["hello"])[:, 0]
    assert np.array_equal(cross.predict([("a man", "hello")], activation_fn=torch.nn.Identity()), logits)
    with pytest.raises(InputError, match="Sigmoid"):
        cross.predict([("a man", "hello")], activation_fn=torch.nn.Tanh())


def test_several_labels_give_the_outputs_of_the_network(tmp_path):
    pytest.importorskip("torch", reason="writes a reference model")
    nli = CrossEncoder(tiny_cross(tmp_path / "nli", labels=3))
    pairs = [("a man", "hello")]
    assert np.array_equal(nli.predict(pairs), nli.model.logits(["a man"], ["hello"]))
    assert np.allclose(nli.predict(pairs, apply_softmax=True), nli.model.probabilities(["a man"], ["hello"]))
    with pytest.raises(InputError, match="no single score"):
        nli.rank("a man", TEXTS)


@pytest.mark.parametrize("inputs", [["a man"], [("a", "b", "c")], [(1, 2)]])
def test_what_is_no_pair_is_refused(cross, inputs):
    with pytest.raises(InputError, match="pair of texts"):
        cross.predict(inputs)


def test_a_missing_member_of_a_cross_encoder_names_the_gemel_way(cross):
    with pytest.raises(AttributeError, match="kind='cross-encoder'"):
        cross.fit  # noqa: B018 - the access is the test
    with pytest.raises(InputError, match="has 1 labels"):
        CrossEncoder(cross.model, num_labels=3)


# Training


def examples(label):
    return [InputExample(texts=[f"a {word}", f"the {word}"], label=label(i)) for i, word in enumerate(WORDS)]


LOSSES = [
    (losses.MultipleNegativesRankingLoss, lambda i: 0),
    (losses.CosineSimilarityLoss, lambda i: i / 10),
    (losses.ContrastiveLoss, lambda i: i % 2),
    (losses.SoftmaxLoss, lambda i: i % 3),
]


@pytest.mark.parametrize(("loss", "label"), LOSSES, ids=lambda each: getattr(each, "__name__", ""))
def test_fit_trains_with_a_loss_and_a_data_loader(model, loss, label, tmp_path):
    data = pytest.importorskip("torch.utils.data")
    before = model.encode(TEXTS)
    loader = data.DataLoader(examples(label), shuffle=True, batch_size=4)
    out = str(tmp_path / "out")
    model.fit(
        train_objectives=[(loader, loss(model))],
        epochs=1,
        warmup_steps=1,
        output_path=out,
        show_progress_bar=False,
    )
    assert not np.array_equal(model.encode(TEXTS), before)
    assert np.array_equal(SentenceTransformer(out).encode(TEXTS), model.encode(TEXTS))


def test_fit_without_a_folder_keeps_the_model_and_calls_the_evaluator(model):
    pytest.importorskip("torch")
    called = []
    triplets = [InputExample(texts=[f"a {word}", f"the {word}", "hello"]) for word in WORDS]
    dims = losses.MatryoshkaLoss(model, losses.TripletLoss(model), [32, 16])
    model.fit([(triplets, dims)], evaluator=lambda each, **more: called.append(each), show_progress_bar=False)
    assert called == [model]
    assert model.model.checkpoint.folder.is_dir()


def test_a_loss_is_an_objective_with_its_settings():
    assert losses.MultipleNegativesRankingLoss(None, scale=50.0).settings == {"temperature": 0.02}
    assert losses.TripletLoss(None).settings == {"margin": 5, "metric": "euclidean"}
    assert losses.OnlineContrastiveLoss(None).settings["online"]
    cached = losses.CachedMultipleNegativesRankingLoss(None, mini_batch_size=8)
    assert cached.options == {"cache_texts": 8}
    with pytest.raises(InputError, match="cosine"):
        losses.MultipleNegativesRankingLoss(None, similarity_fct=util.dot_score)
    with pytest.raises(AttributeError, match=r"has no 'GISTEmbedLoss'\. It has MultipleNegatives"):
        _ = losses.GISTEmbedLoss


@pytest.mark.parametrize(
    ("objectives", "message"),
    [
        ([([], losses.CosineSimilarityLoss())], "no examples"),
        ([(["text"], losses.CosineSimilarityLoss())], "InputExample"),
        ([(examples(float), "CosineSimilarityLoss")], r"gemel\.compat\.losses"),
        ([(examples(float), losses.CosineSimilarityLoss()), ([], losses.CoSENTLoss())], "one loss"),
    ],
)
def test_what_fit_cannot_train_on_is_explained(model, objectives, message):
    with pytest.raises(InputError, match=message):
        model.fit(objectives)


def test_an_argument_of_fit_that_gemel_train_has_is_named(model):
    with pytest.raises(InputError, match="schedule='cosine'"):
        model.fit([(examples(float), losses.CosineSimilarityLoss())], scheduler="WarmupCosine")


# Evaluators


def test_an_evaluator_gives_named_numbers_from_0_to_1(model):
    sts = evaluation.EmbeddingSimilarityEvaluator(TEXTS, TEXTS[::-1], [0.2, 1.0, 0.1], name="dev")
    numbers = model.evaluate(sts)
    assert set(numbers) == {"dev_pearson_cosine", "dev_spearman_cosine"}
    assert sts.primary_metric == "dev_spearman_cosine"
    assert -1 <= numbers[sts.primary_metric] <= 1
    pairs = [
        InputExample(texts=[a, b], label=i / 2) for i, (a, b) in enumerate(zip(TEXTS, TEXTS, strict=True))
    ]
    assert evaluation.EmbeddingSimilarityEvaluator.from_input_examples(pairs)(model)


def test_evaluators_agree_with_the_tasks_of_gemel(model, tmp_path):
    rows = [("a man", "the man", 1), ("a man", "stock market", 0), ("hello", "hello world", 1)]
    file = tmp_path / "pairs.tsv"
    file.write_text("left\tright\tlabel\n" + "".join("\t".join(map(str, row)) + "\n" for row in rows))
    left, right, labels = zip(*rows, strict=True)
    numbers = evaluation.BinaryClassificationEvaluator(left, right, labels)(model)
    [own] = gemel.evaluate(model.model, "binary-pairs", file)
    assert numbers["cosine_ap"] == pytest.approx(own.values["average-precision"].value / 100)
    assert numbers["cosine_f1_threshold"] == pytest.approx(own.values["f1-threshold"].value)


def test_retrieval_counts_what_is_found_at_each_depth(model):
    corpus = {"d1": "a man is playing guitar", "d2": "the stock market fell", "d3": "hello world"}
    queries = {"q1": "a man is playing guitar", "q2": "hello world", "q3": "nothing is relevant"}
    evaluator = evaluation.InformationRetrievalEvaluator(queries, corpus, {"q1": {"d1"}, "q2": {"d3", "d2"}})
    numbers = evaluator(model)
    assert numbers["cosine_accuracy@1"] == numbers["cosine_mrr@10"] == 1
    assert numbers["cosine_recall@1"] == pytest.approx(0.75)
    assert numbers["cosine_precision@10"] == pytest.approx(0.15)
    assert evaluator.primary_metric == "cosine_ndcg@10"
    with pytest.raises(InputError, match="check the ids"):
        evaluation.InformationRetrievalEvaluator(queries, corpus, {"q1": {"d9"}})


def test_triplets_rerank_translation_and_sequences(model):
    triplets = evaluation.TripletEvaluator(TEXTS, TEXTS, TEXTS[::-1], name="t")
    assert triplets(model) == {"t_cosine_accuracy": pytest.approx(2 / 3)}  # the middle one ties
    samples = [{"query": "a man", "positive": ["a man"], "negative": ["hello", "stock market"]}]
    assert evaluation.RerankingEvaluator(samples)(model) == {"map": 1.0, "mrr@10": 1.0, "ndcg@10": 1.0}
    translation = evaluation.TranslationEvaluator(TEXTS, TEXTS)(model)
    assert translation == {"src2trg_accuracy": 1.0, "trg2src_accuracy": 1.0, "mean_accuracy": 1.0}
    both = evaluation.SequentialEvaluator([evaluation.TranslationEvaluator(TEXTS, TEXTS), triplets])
    assert both(model)["sequential_score"] == pytest.approx(2 / 3)


def test_an_argument_that_would_change_the_numbers_is_refused(model):
    with pytest.raises(InputError, match="truncate_dim is not supported"):
        evaluation.TripletEvaluator(TEXTS, TEXTS, TEXTS, truncate_dim=8)
    with pytest.raises(InputError, match="one length, got 3, 2"):
        evaluation.EmbeddingSimilarityEvaluator(TEXTS, TEXTS[:2], [1, 2, 3])
    with pytest.raises(AttributeError, match=r"gemel\.evaluate\(model, 'mining', data\)"):
        _ = evaluation.ParaphraseMiningEvaluator
