"""What a cross-encoder has besides its network: pairs of texts as token ids in one row, and its head.

A token of the second text (token type 1) has its id raised by the size of the vocabulary, so that one row of numbers
has both: `id % vocabulary` is the token, `id // vocabulary` its type. Token types need no support in engines: they
become a second half of the word table.

A head makes one number per label from the token vectors of a pair, before any activation. All heads have one form:
pooling (the first token, the last one or the mean), mostly a layer and an activation, in one case a norm, and a last
layer; `Architecture.head` has the names of their weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import tokenizers
from numpy.typing import NDArray

from gemel.checkpoint.architecture import ARCHITECTURES, Config, HeadLayout
from gemel.checkpoint.files import Tensors
from gemel.checkpoint.head import Dense
from gemel.checkpoint.pair_prompt import AnswerTokens, Gap, PairPrompt, Segment
from gemel.encoder.head import finish
from gemel.encoder.network import Array, Network, Norm
from gemel.encoder.pooling import POOLINGS
from gemel.encoder.tokenizer import (
    PROBES,
    TextTokenizer,
    TokenIds,
    Windows,
    check_texts,
    token_ids,
    tokenizer_errors,
)
from gemel.encoder.weights import CheckpointWeights, positive
from gemel.errors import InputError, ModelError
from gemel.types import Vectors


@dataclass(frozen=True)
class PairSpecialTokens:
    """Special tokens around two texts: [CLS] left [SEP] right [SEP] for BERT. Ids are raised by their types."""

    before: TokenIds
    between: TokenIds
    after: TokenIds
    left: int
    """Added to every id of the left text."""
    right: int

    def __len__(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)

    def around(self, left: TokenIds, right: TokenIds) -> TokenIds:
        return np.concatenate([self.before, left + self.left, self.between, right + self.right, self.after])


class PairTokenizer:
    """Safe to use from several threads."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, vocabulary: int, typed: bool) -> None:
        """`vocabulary`: rows of the network's word table. `typed`: the network gets token types."""
        self._tokenizer = TextTokenizer(tokenizer, special=False)
        self.special = _special_tokens(tokenizer, vocabulary if typed else 0)

    def pairs(
        self, left: Sequence[str], right: Sequence[str], limit: int | None, *, parallel: bool = True
    ) -> list[Windows]:
        """Each pair in at most `limit` tokens, special tokens included; a text of many pairs is tokenized once."""
        distinct = list(dict.fromkeys([*left, *right]))
        contents = dict(zip(distinct, self._tokenizer.content(distinct, parallel=parallel), strict=True))
        return [self._pair(contents[a], contents[b], limit) for a, b in zip(left, right, strict=True)]

    def _pair(self, left: TokenIds, right: TokenIds, limit: int | None) -> Windows:
        tokens = len(left) + len(right) + len(self.special)
        if limit is not None and tokens > limit:
            room = limit - len(self.special)
            if room < 2:
                raise InputError(
                    f"max_length {limit} leaves no room for a token of each text beside the {len(self.special)} "
                    f"special tokens of this model. Use at least {len(self.special) + 2}"
                )
            keep_left, keep_right = longest_first(len(left), len(right), room)
            left, right = left[:keep_left], right[:keep_right]
        ids = self.special.around(left, right)
        return Windows((ids,), (1,), tokens, len(ids))


def longest_first(left: int, right: int, room: int) -> tuple[int, int]:
    """How many tokens of each text stay when both together have more than `room`.

    The longer one is cut to the length of the other, then both equally; an odd token goes to the longer, or to the
    right one of two equals. This is `longest_first` of transformers.
    """
    short = min(left, right)
    long = room - short
    if long < short:
        short = room // 2
        long = room - short
    return (long, short) if left > right else (short, long)


def _special_tokens(tokenizer: tokenizers.Tokenizer, step: int) -> PairSpecialTokens:
    """What the tokenizer adds to a pair, measured on a short one."""
    for probe in PROBES:
        with tokenizer_errors():
            encoding = tokenizer.encode(probe, probe)
        parts = groupby(
            zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True), lambda t: t[2]
        )
        groups = [(owner, [(number, kind) for number, kind, _ in part]) for owner, part in parts]
        owners = [owner for owner, _ in groups if owner is not None]
        if not owners:
            continue
        if owners != [0, 1] or not set(encoding.type_ids) <= {0, 1}:
            break
        texts = [position for position, (owner, _) in enumerate(groups) if owner is not None]
        special = [
            _flat(groups[: texts[0]]),
            _flat(groups[texts[0] + 1 : texts[1]]),
            _flat(groups[texts[1] + 1 :]),
        ]
        ids = [token_ids([number + kind * step for number, kind in part]) for part in special]
        kinds = [groups[position][1][0][1] * step for position in texts]
        return PairSpecialTokens(ids[0], ids[1], ids[2], kinds[0], kinds[1])
    raise ModelError(
        "the tokenizer does not put two texts one after the other, with types 0 and 1: it is not one of a cross-encoder"
    )


def _flat(parts: list[tuple[int | None, list[tuple[int, int]]]]) -> list[tuple[int, int]]:
    return [token for _, part in parts for token in part]


def check_pairs(left: Sequence[str], right: Sequence[str]) -> list[tuple[str, str]]:
    """`left[i]` with `right[i]`; refuses what are not two lists of texts of the same length."""
    lefts = check_text_list(left, "left", "scores([left], [right])")
    rights = check_text_list(right, "right", "scores([left], [right])")
    if len(lefts) != len(rights):
        raise InputError(
            f"left has {len(lefts):,} texts, right has {len(rights):,}. Give one right text for each left one"
        )
    return list(zip(lefts, rights, strict=True))


def check_text_list(texts: Sequence[str], name: str, example: str) -> list[str]:
    """A list of texts, called `name` in errors; `example` is what to write for one text."""
    if isinstance(texts, str | bytes):
        raise InputError(f"{name} must be a list of texts, got one string. Write {example}")
    return check_texts(texts, name)


@dataclass(frozen=True, eq=False)
class _Part:
    """The tokens of one segment of a prompt."""

    ids: TokenIds
    owners: NDArray[np.int8]
    """Of each token: the text that it is part of, as in `_OWNERS`; 0: it is part of the prompt, at least partly."""


_OWNERS = {Gap.QUERY: 1, Gap.DOCUMENT: 2}


class PromptTokenizer:
    """Pairs inside the prompt of a decoder. Fits `PairTokenizer`. Safe to use from several threads."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, prompt: PairPrompt) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt

    def pairs(
        self, left: Sequence[str], right: Sequence[str], limit: int | None, *, parallel: bool = True
    ) -> list[Windows]:
        """Each pair in at most `limit` tokens, the prompt included; documents lose tokens first, then queries."""
        pairs = list(zip(left, right, strict=True))
        columns = [self._column(segment, pairs, parallel) for segment in self._prompt.segments]
        return [self._join(parts, limit) for parts in zip(*columns, strict=True)]

    def _column(self, segment: Segment, pairs: Sequence[tuple[str, str]], parallel: bool) -> list[_Part]:
        """This segment for each pair; the same text is tokenized once."""
        filled = [_fill(segment, *pair) for pair in pairs]
        distinct = list({each.text: each for each in filled}.values())
        with tokenizer_errors():
            if parallel:
                encodings = self._tokenizer.encode_batch([f.text for f in distinct], add_special_tokens=False)
            else:
                encodings = [self._tokenizer.encode(f.text, add_special_tokens=False) for f in distinct]
        # The same text may come from two pairs with another border between query and document.
        by_text = {each.text: encoding for each, encoding in zip(distinct, encodings, strict=True)}
        return [_part(each, by_text[each.text]) for each in filled]

    def _join(self, parts: Sequence[_Part], limit: int | None) -> Windows:
        ids = np.concatenate([part.ids for part in parts])
        owners = np.concatenate([part.owners for part in parts])
        excess = 0 if limit is None else len(ids) - limit
        if excess <= 0:
            return Windows((ids,), (1,), len(ids), len(ids))
        removable = np.concatenate([np.flatnonzero(owners == owner)[::-1] for owner in (2, 1)])
        if len(removable) < excess:
            room = len(ids) - len(removable)
            raise InputError(
                f"max_length {limit} leaves no room for the texts beside the {room} tokens of this model's prompt. "
                f"Use at least {room + 2}"
            )
        kept = np.delete(ids, removable[:excess])
        return Windows((kept,), (1,), len(ids), len(kept))


@dataclass(frozen=True)
class _Filled:
    """A segment with its texts, and where they are."""

    text: str
    spans: tuple[tuple[int, int, int], ...]
    """Owner, start and end."""


def _fill(segment: Segment, query: str, document: str) -> _Filled:
    texts = {Gap.QUERY: query, Gap.DOCUMENT: document}
    whole, spans = "", []
    for part in segment:
        added = part if isinstance(part, str) else texts[part]
        if isinstance(part, Gap):
            spans.append((_OWNERS[part], len(whole), len(whole) + len(added)))
        whole += added
    return _Filled(whole, tuple(spans))


def _part(filled: _Filled, encoding: tokenizers.Encoding) -> _Part:
    ids = token_ids(encoding.ids)
    owners = np.zeros(len(ids), dtype=np.int8)
    starts, ends = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
    for owner, first, last in filled.spans:
        owners[(starts >= first) & (ends <= last) & (starts < ends)] = owner
    return _Part(ids, owners)


@dataclass(frozen=True, eq=False)
class CrossHead:
    """What follows the network: pooling, then layers."""

    pooling: str
    layers: tuple[Dense | Norm, ...]
    token_layer: Dense | None = None
    """Runs on every token before the pooling."""

    def pool(self, hidden: Vectors) -> Vectors:
        """(b, t, d) -> (b, d)"""
        if self.token_layer is not None:
            hidden = _linear(self.token_layer, hidden.reshape(-1, hidden.shape[-1])).reshape(hidden.shape)
        return POOLINGS[self.pooling](hidden)

    def logits(self, pooled: Vectors) -> Vectors:
        """(n, d) -> (n, labels); the bits of a row do not depend on the other rows."""
        for layer in self.layers:
            pooled = _norm(layer, pooled) if isinstance(layer, Norm) else _linear(layer, pooled)
        if not np.isfinite(pooled).all():
            raise ModelError(
                "the cross-encoder gives scores that are not numbers: its weights hold NaN or infinite values, or it "
                "overflows. Fetch or train the model again"
            )
        return pooled


def layout_of(config: Config) -> HeadLayout:
    """The layout of the head of this architecture, which must be one that gemel reads itself."""
    head = ARCHITECTURES[config["model_type"]].head
    if head is None:
        raise ModelError(
            f"the head of a cross-encoder of the architecture {config['model_type']!r} is not read. It may run with "
            "engine='torch' (pip install 'gemel[train]')"
        )
    return head if isinstance(head, HeadLayout) else head(config)


def read_head(config: Config, weights: Mapping[str, Array], labels: int) -> CrossHead:
    """The head of a checkpoint with so many labels."""
    layout = layout_of(config)
    d = positive(config, ARCHITECTURES[config["model_type"]].width_key)
    take = CheckpointWeights(weights, word=f"{layout.last}.weight")
    last = take.linear(layout.last, labels, d, bias=layout.last_bias)
    layers: list[Dense | Norm] = []
    token_layer = None
    if layout.inner is not None:
        inner = take.linear(layout.inner, d, d, bias=layout.inner_bias)
        dense = Dense(inner.read(), inner.bias, layout.activation)
        token_layer = dense if layout.pooled_after_inner else None
        layers += [] if layout.pooled_after_inner else [dense]
    if layout.norm is not None:
        layers.append(take.norm(layout.norm, d, layout.epsilon, bias=layout.norm_bias))
    return CrossHead(layout.pooling, (*layers, Dense(last.read(), last.bias, "identity")), token_layer)


def answer_head(
    config: Config, weights: Mapping[str, Array], word: Array, answers: AnswerTokens
) -> CrossHead:
    """The rows of a language model's output layer for its answers, as one layer over the last token.

    The difference of two logits is one product with the difference of two rows, in float32.
    """
    if config.get("final_logit_softcapping"):
        raise ModelError(
            "config.json sets 'final_logit_softcapping', which changes the score and is not followed"
        )
    name = "lm_head.weight"
    table = word
    if config.get("tie_word_embeddings") is not True and name in weights:
        table = weights.read(name) if isinstance(weights, Tensors) else weights[name]
    named = [number for number in (answers.true, answers.false) if number is not None]
    if table.shape[1:] != word.shape[1:] or max(named) >= len(table):
        raise ModelError(
            f"the output layer {name!r} has shape {table.shape}, which does not fit a word table of {word.shape} and "
            f"the tokens {named}. One of the files belongs to another model"
        )
    row = np.asarray(table[answers.true], dtype=np.float32)
    if answers.false is not None:
        row = row - np.asarray(table[answers.false], dtype=np.float32)
    return CrossHead("last", (Dense(row[None], None, "identity"),))


def _linear(layer: Dense, vectors: Vectors) -> Vectors:
    return finish(vectors, [layer], unit=False, dim=None)


def _norm(norm: Norm, vectors: Vectors) -> Vectors:
    out = np.empty_like(vectors)
    for row, vector in zip(out, vectors, strict=True):
        centered = vector - vector.mean()
        row[:] = centered / np.sqrt(np.square(centered).mean() + np.float32(norm.epsilon)) * norm.weight
    return out if norm.bias is None else out + norm.bias


def with_token_types(network: Network, config: Config, weights: Mapping[str, Array]) -> Network:
    """The network with a word table of twice the rows: ids from `network.vocabulary` on are words of type 1.

    `Network.positions` includes the row of type 0, so row v + i of a table of v words is row i plus the difference.
    """
    types, width = positive(config, "type_vocab_size", 2), network.word.shape[1]
    reader = CheckpointWeights(weights, ARCHITECTURES[config["model_type"]].word_table)
    table = reader.array("embeddings.token_type_embeddings.weight", types, width)
    return replace(network, word=np.concatenate([network.word, network.word + (table[1] - table[0])]))
