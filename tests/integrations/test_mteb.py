"""A gemel model inside mteb: tasks made of a few local rows give the scores that are computed here without mteb."""

import builtins
from types import SimpleNamespace

import numpy as np
import pytest

import gemel
from gemel.errors import InputError, MissingExtra
from gemel.evaluation.metrics import spearman
from gemel.integrations.mteb import GemelEncoder
from gemel.options import EncodeOptions
from gemel.vectors.similarity import row_scores, scores
from tiny import tiny_bert

PAIRS = [
    ("a man is playing guitar", "a man is playing a guitar", 5.0),
    ("a cat is sleeping", "the cat was sleeping on a sofa", 4.0),
    ("stock market fell sharply", "stock market rose today", 2.5),
    ("a dog in the rain", "how do i reset my password", 0.0),
    ("refund not received", "the refund was not received", 4.5),
    ("hello world", "a woman is running in the street", 0.5),
]
CORPUS = {"d1": "how do i reset my password", "d2": "refund not received", "d3": "a man is playing guitar"}
QUERIES = {"q1": "reset my password", "q2": "a woman and a guitar"}
RELEVANT = {"q1": {"d1": 1}, "q2": {"d3": 1}}

# mteb and its dependencies warn about their own code
quiet = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def prompted(tmp_path_factory):
    prompts = {"query": "how: ", "passage": "the: ", "STS": "same: ", "Special": "only: "}
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("prompted"), prompts=prompts))


def metadata(kind, name, main):
    from mteb.abstasks.task_metadata import TaskMetadata

    return TaskMetadata(
        name=name,
        type=kind,
        main_score=main,
        description="a few rows for a test",
        dataset={"path": "local/rows", "revision": "1"},
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
    )


def sts_task():
    pytest.importorskip("mteb", reason="mteb is not installed")
    from datasets import Dataset, DatasetDict
    from mteb.abstasks.sts import AbsTaskSTS

    class LocalSTS(AbsTaskSTS):
        metadata = globals()["metadata"]("STS", "LocalSTS", "cosine_spearman")

        def load_data(self, **_):
            left, right, score = zip(*PAIRS, strict=True)
            rows = Dataset.from_dict({"sentence1": left, "sentence2": right, "score": score})
            self.dataset = DatasetDict({"test": rows})
            self.data_loaded = True

    return LocalSTS()


def retrieval_task():
    pytest.importorskip("mteb", reason="mteb is not installed")
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval

    class LocalRetrieval(AbsTaskRetrieval):
        metadata = globals()["metadata"]("Retrieval", "LocalRetrieval", "ndcg_at_10")

        def load_data(self, **_):
            def rows(texts):
                return Dataset.from_dict({"id": list(texts), "text": list(texts.values())})

            split = {"corpus": rows(CORPUS), "queries": rows(QUERIES), "relevant_docs": RELEVANT}
            self.dataset = {"default": {"test": {**split, "top_ranked": None}}}
            self.data_loaded = True

    return LocalRetrieval()


def run(encoder, task):
    import mteb

    result = mteb.evaluate(encoder, task, cache=None, co2_tracker=False, show_progress_bar=False)
    return result.task_results[0].scores["test"][0]


@quiet
def test_mteb_sees_an_encoder(model):
    pytest.importorskip("mteb", reason="mteb is not installed")
    from mteb.models.models_protocols import EncoderProtocol

    encoder = GemelEncoder(model)
    assert isinstance(encoder, EncoderProtocol)
    assert encoder.mteb_model_meta.revision == model.fingerprint.digest
    assert encoder.mteb_model_meta.embed_dim == model.dim
    assert encoder.mteb_model_meta.name.startswith("gemel/")


@quiet
def test_sts_in_mteb_is_the_spearman_of_the_cosines(model):
    actual = run(GemelEncoder(model), sts_task())
    left, right, gold = zip(*PAIRS, strict=True)
    expected = spearman(gold, row_scores(model.encode(left), model.encode(right)))
    assert actual["main_score"] == pytest.approx(expected, abs=1e-5)


@quiet
def test_retrieval_in_mteb_ranks_as_gemel_does(model):
    actual = run(GemelEncoder(model), retrieval_task())
    table = scores(model.encode(list(QUERIES.values())), model.encode(list(CORPUS.values())))
    gains = []
    for row, query in zip(table, QUERIES, strict=True):
        (right,) = RELEVANT[query]
        rank = 1 + int((row > row[list(CORPUS).index(right)]).sum())
        gains.append(1 / np.log2(1 + rank))
    assert actual["ndcg_at_10"] == pytest.approx(np.mean(gains), abs=1e-5)


@quiet
def test_queries_and_documents_get_their_prompts_inside_mteb(prompted):
    seen = []

    class Watched(GemelEncoder):
        def _prompt_name(self, task, kind, role):
            seen.append(super()._prompt_name(task, kind, role))
            return seen[-1]

    run(Watched(prompted), retrieval_task())
    assert set(seen) == {"query", "passage"}


@quiet
def test_similarities_are_those_of_gemel(model):
    pytest.importorskip("mteb", reason="mteb is not installed")
    left, right = model.encode(["a cat", "the dog"]), model.encode(["a man", "hello world"])
    encoder = GemelEncoder(model)
    assert np.asarray(encoder.similarity(left, right)) == pytest.approx(scores(left, right), abs=1e-6)
    pairwise = np.asarray(encoder.similarity_pairwise(left, right))
    assert pairwise == pytest.approx(row_scores(left, right), abs=1e-6)


@quiet
def test_options_change_the_revision_so_that_results_are_not_mixed_up(model):
    pytest.importorskip("mteb", reason="mteb is not installed")
    short = GemelEncoder(model, EncodeOptions(dim=8))
    assert short.mteb_model_meta.embed_dim == 8
    assert short.mteb_model_meta.revision != GemelEncoder(model).mteb_model_meta.revision


# The rest needs no mteb.


def batches(*texts):
    return [{"text": list(texts[:1])}, {"text": list(texts[1:])}]


@pytest.mark.parametrize(
    ("task", "kind", "role", "prompt"),
    [
        ("Any", "Retrieval", "query", "how: "),
        ("Any", "Retrieval", "document", "the: "),
        ("Any", "STS", None, "same: "),
        ("Special", "STS", "query", "only: "),
        ("Any", "Clustering", None, ""),
    ],
)
def test_the_most_specific_prompt_is_used(prompted, task, kind, role, prompt):
    about = SimpleNamespace(name=task, type=kind)
    actual = GemelEncoder(prompted).encode(
        batches("a cat", "the dog"),
        task_metadata=about,
        hf_split="test",
        hf_subset="default",
        prompt_type=role,
    )
    assert (actual == prompted.encode(["a cat", "the dog"], prompt=prompt)).all()


def test_any_object_with_encode_is_accepted():
    class Lengths:
        dim = 1

        def encode(self, texts):
            return np.array([[len(text)] for text in texts], np.float32)

    about = SimpleNamespace(name="Any", type="STS")
    assert GemelEncoder(Lengths()).encode(batches("a", "bb"), task_metadata=about).tolist() == [[1], [2]]
    with pytest.raises(InputError, match="options are for a gemel model, got a Lengths"):
        GemelEncoder(Lengths(), EncodeOptions(dim=1))


def test_a_task_of_images_is_refused(model):
    about = SimpleNamespace(name="Pictures", type="STS")
    with pytest.raises(InputError, match="gemel encodes texts; the task Pictures gives image"):
        GemelEncoder(model).encode([{"image": []}], task_metadata=about)


def test_without_mteb_the_error_says_how_to_get_it(model, monkeypatch):
    real = builtins.__import__

    def absent(name, *args, **kwargs):
        if name.split(".")[0] == "mteb":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtra, match=r"pip install 'gemel\[mteb\]'"):
        _ = GemelEncoder(model).mteb_model_meta
