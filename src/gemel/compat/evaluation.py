"""The common evaluators of sentence-transformers, with the tasks and metrics of gemel.

An evaluator is called with a model and gives a dict of numbers from 0 to 1; `primary_metric` is the name of the main
one. `gemel.evaluate` reads files, and adds confidence intervals and comparisons of models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import numpy as np

from gemel.errors import OTHER_NAMES, InputError
from gemel.evaluation.metrics import (
    Floats,
    Ranked,
    average_precision,
    ndcg,
    precision,
    ranked,
    recall,
    reciprocal_rank,
)
from gemel.evaluation.task import POINTS, Bootstrap, Scores, rank
from gemel.evaluation.tasks.binary_pairs import BinaryPairsTask
from gemel.evaluation.tasks.sts import StsTask
from gemel.evaluation.tasks.translation import TranslationTask
from gemel.evaluation.tasks.triplets import TripletsTask
from gemel.types import AnyVectors, Encoder
from gemel.vectors.similarity import scores

_NONE = Bootstrap(rounds=0)  # no intervals
_AT = (1, 3, 5, 10)


class SentenceEvaluator(ABC):
    """Base class: `evaluator(model)` gives numbers by name, with the evaluator's own name in front if it has one."""

    name: str = ""
    primary_metric: str = ""

    def __call__(
        self,
        model: Any,  # noqa: ANN401 - a SentenceTransformer, or any object with an encode
        output_path: str | None = None,
        epoch: int = -1,
        steps: int = -1,
    ) -> dict[str, float]:
        """The numbers of a model. Nothing is written to `output_path`."""
        prefix = f"{self.name}_" if self.name else ""
        return {f"{prefix}{name}": value for name, value in self._numbers(model).items()}

    def _named(self, name: str, primary: str) -> None:
        self.name = name
        self.primary_metric = f"{name}_{primary}" if name else primary

    @abstractmethod
    def _numbers(self, model: Any) -> dict[str, float]:  # noqa: ANN401 - as above
        """The numbers by name, the evaluator's own name left out."""


class EmbeddingSimilarityEvaluator(SentenceEvaluator):
    """Spearman and Pearson correlation of similarity and gold score."""

    def __init__(
        self,
        sentences1: Sequence[str],
        sentences2: Sequence[str],
        scores: Sequence[float],
        batch_size: int = 16,
        main_similarity: Any = None,  # noqa: ANN401 - a name, or a member of their SimilarityFunction
        similarity_fn_names: Sequence[str] | None = None,
        name: str = "",
        **others: Any,
    ) -> None:
        _check_others(others)
        _same_length(sentences1, sentences2, scores)
        self._metric = _metric(main_similarity, similarity_fn_names)
        self._named(name, f"spearman_{self._metric}")
        gold = np.asarray(scores, np.float64)
        pairs = tuple(sentences1), tuple(sentences2)
        self._task = StsTask(name or "sts", *pairs, gold, (), (self._metric,), _NONE, {})

    @classmethod
    def from_input_examples(cls, examples: Iterable[Any], **named: Any) -> EmbeddingSimilarityEvaluator:
        left, right, labels = _columns(examples)
        return cls(left, right, labels, **named)

    def _numbers(self, model: Any) -> dict[str, float]:  # noqa: ANN401 - as above
        shares = _shares(self._task.score(_encoder(model)))
        return {f"{kind}_{self._metric}": shares[kind] for kind in ("pearson", "spearman")}


class BinaryClassificationEvaluator(SentenceEvaluator):
    """Whether similarity separates pairs labeled 1 from pairs labeled 0, at the best threshold."""

    def __init__(
        self,
        sentences1: Sequence[str],
        sentences2: Sequence[str],
        labels: Sequence[int],
        name: str = "",
        batch_size: int = 32,
        similarity_fn_names: Sequence[str] | None = None,
        **others: Any,
    ) -> None:
        _check_others(others)
        _same_length(sentences1, sentences2, labels)
        self._metric = _metric(None, similarity_fn_names)
        self._named(name, f"{self._metric}_ap")
        pairs = tuple(sentences1), tuple(sentences2)
        right = np.asarray(labels, np.bool_)
        self._task = BinaryPairsTask(name or "pairs", *pairs, right, (self._metric,), _NONE, {})

    @classmethod
    def from_input_examples(cls, examples: Iterable[Any], **named: Any) -> BinaryClassificationEvaluator:
        left, right, labels = _columns(examples)
        return cls(left, right, labels, **named)

    def _numbers(self, model: Any) -> dict[str, float]:  # noqa: ANN401 - as above
        names = ("accuracy", "accuracy-threshold", "f1", "f1-threshold", "precision", "recall")
        shares = _shares(self._task.score(_encoder(model)))
        numbers = {f"{self._metric}_{name.replace('-', '_')}": shares[name] for name in names}
        return {**numbers, f"{self._metric}_ap": shares["average-precision"]}


class TripletEvaluator(SentenceEvaluator):
    """The share of triplets whose anchor is nearer to the positive than to the negative."""

    def __init__(
        self,
        anchors: Sequence[str],
        positives: Sequence[str],
        negatives: Sequence[str],
        main_similarity_function: Any = None,  # noqa: ANN401 - as above
        name: str = "",
        batch_size: int = 16,
        similarity_fn_names: Sequence[str] | None = None,
        **others: Any,
    ) -> None:
        _check_others(others)
        _same_length(anchors, positives, negatives)
        self._metric = _metric(main_similarity_function, similarity_fn_names)
        self._named(name, f"{self._metric}_accuracy")
        columns = tuple(anchors), tuple(positives), tuple(negatives)
        self._task = TripletsTask(name or "triplets", columns, (self._metric,), _NONE, {})

    @classmethod
    def from_input_examples(cls, examples: Iterable[Any], **named: Any) -> TripletEvaluator:
        anchors, positives, negatives = zip(*(example.texts for example in examples), strict=True)
        return cls(anchors, positives, negatives, **named)

    def _numbers(self, model: Any) -> dict[str, float]:  # noqa: ANN401 - as above
        return {f"{self._metric}_accuracy": _shares(self._task.score(_encoder(model)))["accuracy"]}


class InformationRetrievalEvaluator(SentenceEvaluator):
    """How well queries find their documents in a corpus; every document is compared."""

    def __init__(  # noqa: PLR0913, PLR0917 - their arguments
        self,
        queries: Mapping[str, str],
        corpus: Mapping[str, str],
        relevant_docs: Mapping[str, Iterable[str]],
        corpus_chunk_size: int = 50_000,
        mrr_at_k: Sequence[int] = (10,),
        ndcg_at_k: Sequence[int] = (10,),
        accuracy_at_k: Sequence[int] = _AT,
        precision_recall_at_k: Sequence[int] = _AT,
        map_at_k: Sequence[int] = (100,),
        name: str = "",
        similarity_fn_names: Sequence[str] | None = None,
        **others: Any,
    ) -> None:
        _check_others(others)
        self._metric = _metric(None, similarity_fn_names)
        self._named(name, f"{self._metric}_ndcg@{max(ndcg_at_k)}")
        found = {query: set(relevant_docs.get(query, ())) & set(corpus) for query in queries}
        self._queries = {query: text for query, text in queries.items() if found[query]}
        if not self._queries:
            raise InputError("no query has a relevant document in the corpus: check the ids in relevant_docs")
        self._corpus = tuple(corpus.values())
        position = {document: i for i, document in enumerate(corpus)}
        self._gains = [{position[document]: 1.0 for document in found[query]} for query in self._queries]
        self._at: list[tuple[str, Callable[..., Floats], Sequence[int]]] = [
            ("accuracy", _any_found, accuracy_at_k),
            ("precision", precision, precision_recall_at_k),
            ("recall", recall, precision_recall_at_k),
            ("ndcg", ndcg, ndcg_at_k),
            ("mrr", reciprocal_rank, mrr_at_k),
            ("map", average_precision, map_at_k),
        ]

    def _numbers(self, model: Any) -> dict[str, float]:  # noqa: ANN401 - as above
        depth = min(max(k for _, _, ks in self._at for k in ks), len(self._corpus))
        hits = rank(_encoder(model), tuple(self._queries.values()), self._corpus, depth, self._metric)
        lists = ranked(hits.index, self._gains)
        return {
            f"{self._metric}_{name}@{k}": float(number(lists, k).mean())
            for name, number, ks in self._at
            for k in ks
        }


class RerankingEvaluator(SentenceEvaluator):
    """How well a model ranks the right answers among the candidates of each query."""

    def __init__(
        self, samples: Sequence[Mapping[str, Any]], at_k: int = 10, name: str = "", **others: Any
    ) -> None:
        """`samples`: dicts of query, positive (texts) and negative (texts)."""
        _check_others(others)
        self._samples = [sample for sample in samples if sample["positive"] and sample["negative"]]
        if not self._samples:
            raise InputError("no sample has both a positive and a negative text")
        self._k = at_k
        self._named(name, f"ndcg@{at_k}")

    def _numbers(self, model: Any) -> dict[str, float]:  # noqa: ANN401 - as above
        encoder = _encoder(model)
        width = max(len(each["positive"]) + len(each["negative"]) for each in self._samples)
        index = np.full((len(self._samples), width), -1, np.int64)
        gains = []
        for row, sample in enumerate(self._samples):
            texts = [*sample["positive"], *sample["negative"]]
            found = scores(encoder.encode([sample["query"]]), encoder.encode(texts))[0]
            index[row, : len(texts)] = np.argsort(-found, kind="stable")
            gains.append(dict.fromkeys(range(len(sample["positive"])), 1.0))
        lists, k = ranked(index, gains), self._k
        numbers = {
            "map": average_precision(lists),
            f"mrr@{k}": reciprocal_rank(lists, k),
            f"ndcg@{k}": ndcg(lists, k),
        }
        return {name: float(each.mean()) for name, each in numbers.items()}


class TranslationEvaluator(SentenceEvaluator):
    """The share of sentences whose nearest sentence of the other language is their translation."""

    def __init__(
        self, source_sentences: Sequence[str], target_sentences: Sequence[str], name: str = "", **others: Any
    ) -> None:
        _check_others(others)
        _same_length(source_sentences, target_sentences)
        self._named(name, "mean_accuracy")
        columns = {"src": tuple(source_sentences), "trg": tuple(target_sentences)}
        self._task = TranslationTask(name or "translation", columns, "src", ("trg",), "cosine", _NONE)

    def _numbers(self, model: Any) -> dict[str, float]:  # noqa: ANN401 - as above
        result = self._task.score(_encoder(model))
        shares = _shares(result if "src-to-trg" in result.values else result.parts[0])
        return {
            "src2trg_accuracy": shares["src-to-trg"],
            "trg2src_accuracy": shares["trg-to-src"],
            "mean_accuracy": shares["accuracy"],
        }


class SequentialEvaluator(SentenceEvaluator):
    """Several evaluators, one after another; the main number is the last one's unless a function says otherwise."""

    def __init__(
        self,
        evaluators: Iterable[SentenceEvaluator],
        main_score_function: Callable[[list[float]], float] = lambda numbers: numbers[-1],
    ) -> None:
        self._evaluators = list(evaluators)
        self._main = main_score_function
        self._named("", "sequential_score")

    def _numbers(self, model: Any) -> dict[str, float]:  # noqa: ANN401 - as above
        numbers: dict[str, float] = {}
        mains = []
        for evaluator in self._evaluators:
            each = evaluator(model)
            numbers |= each
            mains.append(each[evaluator.primary_metric])
        return {**numbers, "sequential_score": float(self._main(mains))}


def __getattr__(name: str) -> NoReturn:
    known = [each for each in OTHER_NAMES if each in globals()]
    task = OTHER_NAMES.get(name)
    instead = f"gemel.evaluate(model, {task!r}, data)" if task else "docs/reference/evaluation.md"
    raise AttributeError(f"gemel.compat.evaluation has no {name!r}: see {instead}. It has {', '.join(known)}")


@dataclass(frozen=True)
class _TextEncoder:
    """A SentenceTransformer as an `Encoder` of gemel, with its prompts."""

    model: Any
    dim: int

    def encode(self, texts: Sequence[str]) -> AnyVectors:
        return cast("AnyVectors", self.model.encode(list(texts)))

    def encode_query(self, texts: Sequence[str]) -> AnyVectors:
        return cast("AnyVectors", getattr(self.model, "encode_query", self.model.encode)(list(texts)))

    def encode_document(self, texts: Sequence[str]) -> AnyVectors:
        return cast("AnyVectors", getattr(self.model, "encode_document", self.model.encode)(list(texts)))


def _encoder(model: Any) -> Encoder:  # noqa: ANN401 - as above
    if hasattr(model, "dim"):
        return cast("Encoder", model)
    return _TextEncoder(model, model.get_sentence_embedding_dimension())


def _shares(result: Scores) -> dict[str, float]:
    """Numbers from 0 to 1 instead of points; NaN where one is not defined, as in sentence-transformers."""
    return {
        name: float("nan") if score.value is None else score.value / (1 if "threshold" in name else POINTS)
        for name, score in result.values.items()
    }


def _metric(main: Any, names: Sequence[str] | None) -> str:  # noqa: ANN401 - a name, or a member of an enum
    if names is not None and len(names) > 1:
        raise InputError(f"an evaluator uses one similarity, got {', '.join(names)}. Make one for each")
    return str(getattr(main, "value", main) or (names or ["cosine"])[0])


def _columns(examples: Iterable[Any]) -> tuple[list[str], list[str], list[Any]]:
    rows = list(examples)
    return [each.texts[0] for each in rows], [each.texts[1] for each in rows], [each.label for each in rows]


def _any_found(lists: Ranked, k: int) -> Floats:
    """(q,) 1 where one of the first `k` is relevant."""
    return np.asarray(recall(lists, k) > 0, np.float64)


_IGNORED = ("batch_size", "show_progress_bar", "write_csv", "write_predictions", "log_top_k_predictions")


def _check_others(others: Mapping[str, object]) -> None:
    """Refuse an argument that would change the numbers."""
    for name, value in others.items():
        if name not in _IGNORED and value is not None:
            raise InputError(f"{name} is not supported by the evaluators of gemel.compat. See gemel.evaluate")


def _same_length(*columns: Sequence[object]) -> None:
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise InputError(f"the lists must have one length, got {', '.join(map(str, lengths))}")
