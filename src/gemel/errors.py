"""What can go wrong, as one small tree.

    GemelError
    ├── InputError     a text, array, file or option that cannot be worked on   (also a ValueError)
    ├── ModelError     a model that cannot be found, read or trusted            (also a ValueError)
    ├── MissingExtra   a package of an optional extra is not installed          (also an ImportError)
    └── WorkError      the request was right, the work failed                   (also a RuntimeError)

A message says what was requested, what is true, and what to do. The situations that users meet most often have a code,
such as GEM-301: cli/errors.toml explains each, `gemel help CODE` prints it, and docs/reference/errors.md lists all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class GemelError(Exception):
    """Any error that gemel raises on purpose; its text is meant for the user."""

    code: str | None = None
    """The entry of cli/errors.toml that explains it; None: the message says all."""

    def __init__(self, *arguments: object, code: str | None = None) -> None:
        super().__init__(*arguments)
        if code is not None:
            self.code = code


class InputError(GemelError, ValueError):
    """A text, array, file or option cannot be worked on as given."""


class ModelError(GemelError, ValueError):
    """A model cannot be found, read or trusted."""


class MissingExtra(GemelError, ImportError):
    """A package that an optional feature needs is not installed."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs the package {package!r}. Install it with: pip install 'gemel[{extra}]'",
            code="GEM-102" if package == "torch" else "GEM-101",
        )


class WorkError(GemelError, RuntimeError):
    """The request was right, but the work could not be finished."""


def did_you_mean(name: object, choices: Iterable[str]) -> str:
    """` Did you mean 'encode'?` with the choice that is closest to a wrong name; empty if none is close."""
    from difflib import get_close_matches

    names = list(choices)
    other = OTHER_NAMES.get(str(name))
    close = [other] if other in names else get_close_matches(str(name), names, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


# Names of sentence-transformers that people write by habit, and what they are in gemel.

SAME_LOSSES: Mapping[str, str] = {
    "MultipleNegativesRankingLoss": "in-batch-ranking",
    "CosineSimilarityLoss": "regression",
    "ContrastiveLoss": "contrastive",
    "CoSENTLoss": "cosent",
    "AnglELoss": "angle",
    "MarginMSELoss": "margin-mse",
    "MSELoss": "vector-distillation",
    "DenoisingAutoEncoderLoss": "denoising",
}
"""Losses that are an objective with its default settings: `train` takes both names."""

OTHER_NAMES: Mapping[str, str] = {
    # objectives, of which some need settings to be the same loss
    **SAME_LOSSES,
    "MultipleNegativesSymmetricRankingLoss": "in-batch-ranking",
    "CachedMultipleNegativesRankingLoss": "in-batch-ranking",
    "SoftmaxLoss": "classification",
    "OnlineContrastiveLoss": "contrastive",
    "TripletLoss": "triplet",
    # tasks
    "EmbeddingSimilarityEvaluator": "sts",
    "BinaryClassificationEvaluator": "binary-pairs",
    "TripletEvaluator": "triplets",
    "InformationRetrievalEvaluator": "retrieval",
    "RerankingEvaluator": "reranking",
    "TranslationEvaluator": "translation",
    "ParaphraseMiningEvaluator": "mining",
    "LabelAccuracyEvaluator": "nli",
    # keywords
    "top_k": "k",
    "score_function": "metric",
    "threshold": "min_score",
    "min_community_size": "min_size",
    "show_progress_bar": "progress",
    "normalize_embeddings": "normalize",
    "truncate_dim": "dim",
    "max_seq_length": "max_length",
    "num_train_epochs": "epochs",
    "per_device_train_batch_size": "batch_size",
    "lr": "learning_rate",
    "warmup_ratio": "warmup",
}
"""Their name to ours, where one word replaces the other."""

NOT_KEYWORDS: Mapping[str, str] = {
    "batch_size": "Leave it out: batches are made by length and memory and do not change the result. "
    "Larger ones: memory='1GB'",
    "convert_to_tensor": "Results are arrays. A tensor: torch.from_numpy(model.encode(texts))",
    "convert_to_numpy": "Leave it out: results are arrays",
    "device": "Load for a device: gemel.load(name, device='cuda')",
    "output_value": "Token vectors: model.tokens(texts)",
    "num_workers": "One process uses all cores; fewer: threads=4",
    "query_chunk_size": "Leave it out: memory is bounded by memory='1GB'",
    "corpus_chunk_size": "Leave it out: memory is bounded by memory='1GB'",
    "warmup_steps": "warmup=0.1 is a share of all steps",
    "output_path": "The folder of the trained model: out=",
    "output_dir": "The folder of the trained model: out=",
}
"""Their keywords that no word of gemel replaces, with what to do."""

_TRAIN = "Train with gemel.train(model, data, objective=..., out=...): docs/reference/training.md"

NOT_MEMBERS: Mapping[str, str] = {
    **dict.fromkeys(
        ("pool", "chunk_size", "start_multi_process_pool", "stop_multi_process_pool", "encode_multi_process"),
        "One process uses all cores: gemel.load(name).encode(texts, threads=...)",
    ),
    **dict.fromkeys(("fit", "train", "old_fit", "gradient_checkpointing_enable", "add_adapter"), _TRAIN),
    "evaluate": "Score a model with gemel.evaluate(model, task=..., data=...): docs/reference/evaluation.md",
    **dict.fromkeys(
        ("push_to_hub", "save_to_hub"),
        "Write a folder with save(path) and upload that with the package huggingface_hub",
    ),
    "save_pretrained": "Write a folder with save(folder)",
    **dict.fromkeys(
        ("tokenize", "preprocess", "processor"),
        "Tokens of a text: gemel.load(name).tokenizer.pieces(text); their number: encode_report(texts).tokens",
    ),
    **dict.fromkeys(
        ("forward", "transformers_model", "modules", "parameters", "state_dict"),
        "There is no torch module. Hidden states: gemel.load(name).tokens(texts)",
    ),
    **dict.fromkeys(
        ("half", "bfloat16"),
        "Smaller numbers: gemel.load(name, precision='int8'), or encode(texts, output='float16')",
    ),
    "quantize": "Smaller numbers: gemel.load(name, precision='int8')",
    "compile": "The native engine is compiled. Leave it out",
    **dict.fromkeys(("cuda", "to", "device"), "Load for a device: gemel.load(name, device='cuda')"),
    "eval": "Leave it out: a model has no training mode",
    **dict.fromkeys(
        ("max_seq_length", "max_length"),
        "A length belongs to a call, encode(texts, max_length=128), or to model.with_options(max_length=128)",
    ),
    "get_max_seq_length": "It is model.max_length",
    **dict.fromkeys(("get_sentence_embedding_dimension", "get_embedding_dimension"), "It is model.dim"),
    "truncate_dim": "A dimension belongs to a call: encode(texts, dim=128), or model.with_options(dim=128)",
    **dict.fromkeys(
        ("prompts", "default_prompt_name"),
        "They are in model.checkpoint.prompts; encode(texts, prompt=...) or prompt_name=... uses one",
    ),
    "similarity_pairwise": "Row by row: (gemel.normalize(a) * gemel.normalize(b)).sum(axis=1)",
    "similarity_fn_name": "A metric belongs to a call: model.similarity(a, b, metric='dot')",
    "predict": "Scores of pairs: gemel.load_cross(name).scores(left, right), with two lists",
}
"""Their members of a model, with what to use instead."""

NOT_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("SentenceTransformerTrainer", "SentenceTransformerTrainingArguments"), _TRAIN),
    **dict.fromkeys(
        ("CrossEncoderTrainer", "CrossEncoderTrainingArguments"), f"{_TRAIN}, kind='cross-encoder'"
    ),
    **dict.fromkeys(
        ("SentencesDataset", "ParallelSentencesDataset", "readers", "datasets"),
        "gemel.train reads files, DataFrames, data sets and lists: docs/reference/training-data.md",
    ),
    "models": "A model is data only. gemel.load(folder, pooling='mean') reads a plain encoder",
    "SparseEncoder": "gemel.load_sparse(name): docs/reference/sparse.md",
    **dict.fromkeys(("semantic_search", "cos_sim"), "gemel.search and gemel.cosine, or gemel.compat.util"),
    "paraphrase_mining": "gemel.find_pairs(model, texts, k=1000), or gemel.compat.util.paraphrase_mining",
    "community_detection": "gemel.cluster(vectors), or gemel.compat.util.community_detection",
}
"""Their names in the package, with what to use instead; `gemel.compat` has the others."""


def keyword_hint(name: str, names: Iterable[str]) -> str:
    """What to write instead of a keyword of sentence-transformers or a misspelt one; empty if nothing is close."""
    return f" {NOT_KEYWORDS[name]}." if name in NOT_KEYWORDS else did_you_mean(name, names)


def refuse_keywords(function: str, names: Iterable[str], given: Mapping[str, object]) -> None:
    """An error for the first keyword that `function` does not have, with the one to write instead."""
    known = list(names)
    for name in given:
        hint = keyword_hint(name, known)
        raise InputError(f"{function} has no argument {name!r}.{hint} It has {', '.join(known)}")
