"""The architectures that gemel reads itself: one `Architecture` record per HF `model_type`, everything about it once.

The records are in `gemel.encoder.architectures`, one file each; the table imports a file when its model type is looked
up. A new architecture is one new file there. Other architectures run through transformers and torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gemel.errors import ModelError
from gemel.registry import Registry

Config: TypeAlias = Mapping[str, Any]  # config.json as it is: any JSON value


def key_set(*lines: str) -> frozenset[str]:
    """The words of all `lines`: a long list of keys in few lines of code."""
    return frozenset(key for line in lines for key in line.split())


_OTHERS_AFTER_PADDING = key_set(
    "data2vec-text esm ibert layoutlmv3 lilt longformer luke markuplm roberta-prelayernorm",
    "xlm-roberta-xl xmod",
)
"""Model types that torch runs, whose positions start after the padding id."""


@dataclass(frozen=True)
class Architecture:
    """What is particular to the checkpoints of one architecture."""

    read: Callable[[Config, Any], Any]
    """config.json and the `CheckpointWeights` -> the `Network`: types of a higher layer, of `gemel.encoder`."""
    head: HeadLayout | Callable[[Config], HeadLayout] | None
    """The head of its ...ForSequenceClassification; a function where config.json has settings of the head.

    None: such a class has more than a head, and torch runs it.
    """
    class_prefix: str
    """What the names of its classes in transformers start with: "Bert" for BertModel and BertTokenizer."""
    config_keys: frozenset[str]
    """Keys of config.json that `read` follows or that change no vector; any other key is refused."""
    native: Callable[[Config], Config] = lambda config: config
    """config.json as code of the checkpoint's own (`trust_remote_code`) wrote it -> as transformers writes it."""
    variant: Callable[[Config], Architecture | None] = lambda _: None
    """The record of another network under the same model type, where config.json describes one."""
    adapt: Callable[[Config, Any], Any] = lambda _, weights: weights
    """config.json and the weights by their names in the checkpoint -> the weights that `read` gets."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names of keys; both may be there when they have the same value."""
    word_table: str = "embeddings.word_embeddings.weight"
    """The name of the weight with a row per token; what stands before it in a checkpoint is a prefix of all names."""
    width_key: str = "hidden_size"
    """The key of config.json with the width of the network."""
    positions: int | None = None
    """Tokens of a text at most, where config.json sets no limit."""
    positions_after_padding: bool = False
    """The first token takes the row of the position table after the padding id; a padding token takes its own row."""
    token_types: bool = True
    """The network has a table of token types, with which it tells the two texts of a pair apart."""
    default_types: int = 2
    """Rows of that table where config.json does not say."""
    tokenizer_types: bool = False
    """Its own tokenizers give token types."""
    wordpiece_vocabulary: bool = False
    """A vocab.txt without tokenizer.json is read as a WordPiece vocabulary."""
    packed_training: bool = False
    """Its class in transformers passes keywords on to the attention and takes positions: texts need no padding."""
    masked: Callable[[Config], MaskedLayout] | None = None
    """The head of its ...ForMaskedLM, with which sparse encoders weigh words; None: it is not read."""


@dataclass(frozen=True)
class HeadLayout:
    """The form of a classification head for pairs, and the names of its weights in a checkpoint."""

    encoder: str
    """What stands before the names of the encoder's own weights."""
    inner: str | None
    """The layer before the last one; None: there is none."""
    last: str
    activation: str
    norm: str | None = None
    pooling: str = "cls"
    pooled_after_inner: bool = False
    """The inner layer runs on every token, and its results are pooled (EuroBERT)."""
    inner_bias: bool = True
    last_bias: bool = True
    norm_bias: bool = True
    epsilon: float = 1e-5


@dataclass(frozen=True)
class MaskedLayout:
    """A head that gives one number per word of the vocabulary, and the names of its weights in a checkpoint.

    All of them have one form: a layer, an activation, a norm, and the word table (or a table of its own) with a bias.
    """

    dense: str
    norm: str
    decoder: str
    """The table where it is stored; otherwise it is that of the embeddings."""
    bias: str | None
    activation: str
    """As config.json names it."""
    epsilon: float
    dense_bias: bool = True
    norm_bias: bool = True


ARCHITECTURES: Registry[Architecture] = Registry(
    "architecture",
    package="gemel.encoder.architectures",
    skip=("rotary",),
    named_by_file=False,
    error=ModelError,
)
"""HF `model_type` to its record."""


_OTHER_TYPES = {"embedding_gemma2": "embedding_gemma2_text", "jina_embeddings_v5": "qwen3", "new": "gte"}
"""Model types whose config.json `Architecture.native` turns into that of another."""


def architecture_of(config: Config) -> Architecture | None:
    """The record for this config.json; None: gemel cannot read it itself, but the torch engine may run it."""
    kind = config.get("model_type")
    kind = _OTHER_TYPES.get(kind, kind) if isinstance(kind, str) else kind
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        return None
    return ARCHITECTURES[kind].variant(config) or ARCHITECTURES[kind]


def native_config(config: Config) -> Config:
    """config.json in the spelling of transformers: see `Architecture.native`."""
    architecture = architecture_of(config)
    return config if architecture is None else architecture.native(config)


def model_types() -> list[str]:
    """Every HF `model_type` that gemel reads itself, sorted."""
    return list(ARCHITECTURES)


_TASK_CLASS = "JinaEmbeddingsV5Model"


def has_task_folders(config: Config) -> bool:
    """True for jina-embeddings-v5 (arXiv 2602.15547): an adapter for each of several tasks, in folders."""
    return config.get("architectures") == [_TASK_CLASS]


def max_positions(config: Config) -> int | None:
    """Tokens that a network has positions for; None if the config does not say."""
    architecture = architecture_of(config)
    positions = positive_or_none(config.get("max_position_embeddings"))
    if positions is None:
        return architecture.positions if architecture else None
    after = (
        architecture.positions_after_padding
        if architecture
        else config.get("model_type") in _OTHERS_AFTER_PADDING
    )
    if after:
        padding = config.get("pad_token_id")
        positions = positive_or_none(positions - 1 - (padding if isinstance(padding, int) else 1))
    return positions


def least(*lengths: int | None) -> int | None:
    """The smallest of these limits; None is no limit."""
    return min((length for length in lengths if length is not None), default=None)


def positive_or_none(value: object) -> int | None:
    """A whole number of at least 1; None for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def first_class(config: Mapping[str, Any]) -> str:
    """The class of transformers that config.json names first; empty: none."""
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    return first if isinstance(first, str) else ""
