"""Texts to token ids; what happens to a text that is longer than the model reads: it is cut, split or refused."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray

from gemel.checkpoint.architecture import least, max_positions
from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.tokenizer import open_tokenizer
from gemel.errors import InputError, ModelError
from gemel.options import EncodeOptions, OnLong

if TYPE_CHECKING:
    from gemel.encoder.wordpiece import AsciiWordPiece

TokenIds = NDArray[np.int32]

TOKENIZERS_VERSION = tokenizers.__version__

CutSide = Literal["left", "right"]

PROBES = ("a", "the", "1", ".")  # texts that show which special tokens a tokenizer adds

_MANY = 500  # texts from which on the fast WordPiece is worth the time that its tables take

LONG = 10_000  # characters from which on a text is tokenized without the GIL


@dataclass(frozen=True)
class Piece:
    """One token and the characters of the text it stands for."""

    id: int
    token: str
    """As the vocabulary writes it."""
    special: bool
    """Added by the tokenizer: no characters of the text."""
    start: int
    stop: int


@dataclass(frozen=True)
class SpecialTokens:
    """Special tokens around every text: [CLS] ... [SEP] for BERT, none for a static table."""

    before: TokenIds
    after: TokenIds
    cut: CutSide = "right"
    """The end at which a text that is too long loses tokens."""

    def __len__(self) -> int:
        return len(self.before) + len(self.after)

    def around(self, content: TokenIds) -> TokenIds:
        if not len(self):
            return content
        return np.concatenate([self.before, content, self.after])


class TextTokenizer:
    """Texts to token ids and back. Safe to use from several threads: it never changes."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        special: bool = True,
        drop: str | None = None,
        cut: CutSide = "right",
    ) -> None:
        """`special` False: no special tokens are added to a text. `drop`: a token that is removed from every text.

        `cut`: the end at which long texts lose tokens.
        """
        self._tokenizer = tokenizer
        self.dropped: int | None = tokenizer.token_to_id(drop) if drop else None  # the id of `drop`
        around = _special_tokens(tokenizer) if special else SpecialTokens(*np.empty((2, 0), np.int32))
        self.special = replace(around, cut=cut)

    @cached_property
    def vocabulary(self) -> int:
        """One more than the largest token id."""
        return max(self._tokenizer.get_vocab().values(), default=-1) + 1

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of the special tokens, which `text` leaves out."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(id_ for id_, token in added.items() if token.special)

    def prefix_length(self, prompt: str) -> int:
        """Tokens before those of a text: special tokens, and those of a prompt."""
        return len(self.special.before) + len(self.content([prompt])[0])

    def content(self, texts: Sequence[str], *, parallel: bool = True) -> list[TokenIds]:
        """Token ids of each text, without special tokens."""
        contents = self._contents(texts, parallel=parallel)
        if self.dropped is not None:
            contents = [content[content != self.dropped] for content in contents]
        return contents

    def _contents(self, texts: Sequence[str], *, parallel: bool) -> list[TokenIds]:
        """With the dropped token. Those that the fast WordPiece can do, and the others by the library."""
        if len(texts) >= _MANY and self._wordpiece is not None:
            fast = self._wordpiece.content(texts)
            rest = [text for text, ids in zip(texts, fast, strict=True) if ids is None]
            others = iter(self.library_content(rest, parallel=parallel))
            return [next(others) if ids is None else ids for ids in fast]
        return self.library_content(texts, parallel=parallel)

    def library_content(self, texts: Sequence[str], *, parallel: bool = True) -> list[TokenIds]:
        """By the tokenizers library alone."""
        if parallel and len(texts) > 1:
            with tokenizer_errors():
                encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        else:
            encodings = [self._encoding(text, special=False, fast=True) for text in texts]
        return [token_ids(encoding.ids) for encoding in encodings]

    @cached_property
    def _wordpiece(self) -> AsciiWordPiece | None:
        from gemel.encoder.wordpiece import ascii_wordpiece

        return ascii_wordpiece(self._tokenizer)

    def offsets(self, text: str) -> NDArray[np.int64]:
        """(t, 2): for each token of `content` its characters [start, stop) in the text."""
        encoding = self._encoding(text, special=False)
        offsets = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        return offsets if self.dropped is None else offsets[np.asarray(encoding.ids) != self.dropped]

    def names(self, ids: TokenIds) -> list[str]:
        """The tokens as they are in the vocabulary."""
        return [self._tokenizer.id_to_token(int(i)) or "" for i in ids]

    def id_of(self, token: str) -> int | None:
        """The id of a token of the vocabulary; None: it is not there."""
        number: int | None = self._tokenizer.token_to_id(token)
        return number

    def pieces(self, text: str, *, special: bool = True) -> list[Piece]:
        """The tokens of a text with their offsets, special tokens included unless `special` is False."""
        encoding = self._encoding(text, special=special and len(self.special) > 0)
        columns = zip(
            encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True
        )
        return [Piece(i, token, bool(added), *offsets) for i, token, added, offsets in columns]

    def _encoding(self, text: str, *, special: bool, fast: bool = False) -> tokenizers.Encoding:
        """The encoding of one text; `fast`: without offsets. A long text is a batch, which releases the GIL."""
        with tokenizer_errors():
            if len(text) > LONG:
                encode = self._tokenizer.encode_batch_fast if fast else self._tokenizer.encode_batch
                return encode([text], add_special_tokens=special)[0]
            return self._tokenizer.encode(text, add_special_tokens=special)

    def text(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of these ids, as far as the vocabulary can restore it; `special`: with special tokens."""
        with tokenizer_errors():
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=not special))


@contextmanager
def tokenizer_errors() -> Iterator[None]:
    """Raises a ModelError for what the tokenizers library raises: a plain Exception, or a panic (a BaseException).

    Its regular expressions panic after ten million steps.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is Exception or type(error).__name__ == "PanicException":
            raise ModelError(
                f"the tokenizer of the model fails on a text: {error}. Its tokenizer.json is damaged, belongs to "
                "another model, or has a regular expression that takes too long"
            ) from error
        raise


def token_ids(ids: Sequence[int]) -> TokenIds:
    """The ids as an array; an id that does not fit int32 is an error."""
    try:
        return np.asarray(ids, dtype=np.int32)
    except OverflowError:
        raise ModelError(
            f"the tokenizer gives the token id {max(ids):,}, which no network has. Is tokenizer.json damaged?"
        ) from None


def check_texts(texts: object, name: str = "texts") -> list[str]:
    """The texts as a list, or an error with the first position that cannot be encoded; `name` is that of the list."""
    if isinstance(texts, str | bytes):
        raise InputError("encode takes a list of texts, got one string. Write encode([text])[0]")
    _check_no_table(texts)
    try:
        checked: list[str] = list(texts)  # type: ignore[call-overload]
    except TypeError:
        raise InputError(f"encode takes a list of texts, got {type(texts).__name__}") from None
    for position, text in enumerate(checked):
        if not isinstance(text, str):
            raise InputError(f"{name}[{position}] is {_what(text)}, not a string. Remove or convert it first")
        if not text.isascii():
            _check_characters(f"{name}[{position}]", text)
    return checked


def _check_no_table(texts: object) -> None:
    """Refuse a table or a dict: iterating over it gives the names of its columns or its keys, not the texts."""
    columns = getattr(texts, "columns", None) if hasattr(texts, "shape") else None
    if isinstance(texts, Mapping):
        raise InputError(
            "encode takes a list of texts, got a dict, of which only the keys would be encoded. "
            "Write encode(list(texts.values()))"
        )
    if columns is not None:
        names = [str(column) for column in columns]
        raise InputError(
            f"encode takes a list of texts, got a {type(texts).__name__} with the columns {', '.join(names)}. "
            f"Give one column: encode(df[{(names or ['text'])[0]!r}].tolist())"
        )


def _check_characters(name: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} has half a character (a lone surrogate, U+{ord(text[error.start]):04X}) at offset "
            f"{error.start}. Repair it with: text.encode('utf-8', 'replace').decode()"
        ) from None


def _what(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _special_tokens(tokenizer: tokenizers.Tokenizer) -> SpecialTokens:
    """What the tokenizer adds before and after a text, measured on a short one."""
    for probe in PROBES:
        with tokenizer_errors():
            bare = tokenizer.encode(probe, add_special_tokens=False).ids
            full = tokenizer.encode(probe, add_special_tokens=True).ids
        for start in range(len(full) - len(bare) + 1) if bare else ():
            if full[start : start + len(bare)] == bare:
                end = start + len(bare)
                return SpecialTokens(token_ids(full[:start]), token_ids(full[end:]))
    raise ModelError(
        "the tokenizer gives no tokens for the texts 'a', 'the', '1' and '.': is its vocabulary empty?"
    )


OVERLAP = 0.25
"""Share of a window that is in the next one too, so that every sentence is away from an edge in some window."""


@dataclass(frozen=True)
class Windows:
    """One text, ready to run: in one or several pieces, each with its special tokens and its weight in the mean.

    A pair of texts is one piece.
    """

    pieces: tuple[TokenIds, ...]
    weights: tuple[int, ...]
    tokens: int
    """Tokens of the text, special tokens included."""
    kept: int
    """Tokens that are in some piece, special tokens included."""
    starts: tuple[int, ...] = (0,)
    """Where each piece starts in the tokens of the text, special tokens not counted."""


def cut(content: TokenIds, special: SpecialTokens, limit: int | None, on_long: OnLong) -> Windows:
    """The pieces of one text, at most `limit` tokens each, special tokens included; None: no limit."""
    tokens = len(content) + len(special)
    if limit is None or tokens <= limit:
        return Windows((special.around(content),), (1,), tokens, tokens)
    room = limit - len(special)
    if room < 1:
        raise InputError(
            f"max_length {limit} leaves no room for a token beside the {len(special)} special tokens of this model. "
            f"Use at least {len(special) + 1}"
        )
    if on_long != "chunk":
        start = 0 if special.cut == "right" else len(content) - room
        return Windows((special.around(content[start : start + room]),), (1,), tokens, limit, (start,))
    step = max(1, room - int(room * OVERLAP))
    starts = range(0, len(content) - room + step, step)
    parts = [content[start : start + room] for start in starts]
    pieces = tuple(special.around(part) for part in parts)
    return Windows(pieces, tuple(map(len, parts)), tokens, tokens, tuple(starts))


@dataclass(frozen=True)
class PreparedTexts:
    """Texts as tokens, ready for `Model.run`. Those with equal options may be joined and split."""

    windows: tuple[Windows, ...]
    """One per text, in order."""
    options: EncodeOptions


class TextPreparer:
    """Texts to `Windows` as a checkpoint and the options say: with a prompt, cut or split where they are too long."""

    def __init__(self, checkpoint: Checkpoint, tokenizer: TextTokenizer | None = None) -> None:
        """`tokenizer`: the one of a model with the same files; None: it is opened."""
        self._checkpoint = checkpoint
        self.tokenizer = tokenizer or _open_tokenizer(checkpoint)
        self._warned = False

    def warn_of_no_prompt(self, options: EncodeOptions, texts: Sequence[str]) -> None:
        """Warn once where the checkpoint has prompts for queries or documents, and neither the options nor the first
        text has one."""
        requested = (options.prompt, options.prompt_name, self._checkpoint.default_prompt_name)
        if self._warned or any(value is not None for value in requested):
            return
        own = (self._checkpoint.prompt_name("query"), self._checkpoint.prompt_name("document"))
        prompts = {name: self._checkpoint.prompts[name] for name in own if name is not None}
        if (
            not any(prompts.values())
            or not texts
            or any(p and texts[0].startswith(p) for p in prompts.values())
        ):
            return
        self._warned = True
        listed = ", ".join(f"{name}: {prompt!r}" for name, prompt in prompts.items())
        warnings.warn(
            f"the model {self._checkpoint.name} was trained with prompts ({listed}), and encode was called without "
            f"one, which gives worse results in search. Use encode_query and encode_document, or give "
            f"prompt_name={next(iter(prompts))!r}; prompt='' means none, without this line",
            PromptWarning,
            stacklevel=outside(),
        )

    def windows(
        self, texts: Sequence[str], options: EncodeOptions, *, among: Sequence[str] | None = None
    ) -> list[Windows]:
        """One per text. With on_long="error" a long text is refused, with its position in `among` (None: `texts`)."""
        prompt, limit = self.prompt(options), self.limit(options)
        self._check_prompt_length(prompt, limit, options)
        contents = self.tokenizer.content(
            [prompt + text for text in texts] if prompt else texts, parallel=options.threads != 1
        )
        windows = [cut(content, self.tokenizer.special, limit, options.on_long) for content in contents]
        if options.on_long == "error":
            refuse_long(windows, texts, texts if among is None else among)
        return windows

    def limit(self, options: EncodeOptions) -> int | None:
        """Tokens of a text that are run; a `max_length` over the checkpoint's own is bounded by its positions."""
        requested = options.max_length or self._checkpoint.max_length
        # A table of token vectors has no positions, whatever config.json says.
        room = max_positions(self._checkpoint.config) if self._checkpoint.kind == "transformer" else None
        return least(requested, room)

    def prompt(self, options: EncodeOptions) -> str:
        """What is put before each text; empty: nothing."""
        prompts = self._checkpoint.prompts
        if options.prompt is not None:
            return options.prompt
        name = options.prompt_name or self._checkpoint.default_prompt_name
        if name is None:
            return ""
        if name not in prompts:
            available = ", ".join(sorted(prompts)) or "none"
            raise InputError(
                f"unknown prompt {name!r}. The model {self._checkpoint.name} brings: {available}"
            )
        return prompts[name]

    def prompt_tokens(self, options: EncodeOptions) -> int:
        """Tokens at the start that pooling skips: those of the prompt, where the checkpoint says so."""
        prompt = self.prompt(options)
        if self._checkpoint.pooling.include_prompt or not prompt:
            return 0
        return self.tokenizer.prefix_length(prompt)

    def skips(self, windows: Sequence[Windows], options: EncodeOptions) -> NDArray[np.int64]:
        """(pieces,) tokens at the start of each piece that pooling skips, because they belong to the prompt."""
        skip, before = self.prompt_tokens(options), len(self.tokenizer.special.before)
        if not skip:
            return np.zeros(sum(len(window.pieces) for window in windows), dtype=np.int64)
        skips: list[int] = []
        for window in windows:
            # Later pieces start after the prompt, or inside it where it is long.
            inside = (max(0, skip - before - start) for start in window.starts[1:])
            skips += [skip, *(before + tokens if tokens else 0 for tokens in inside)]
        return np.asarray(skips, dtype=np.int64)

    def _check_prompt_length(self, prompt: str, limit: int | None, options: EncodeOptions) -> None:
        """Refuse a prompt that fills the window: all texts would get the same vector, or zeros."""
        if not prompt or limit is None or options.on_long == "chunk":
            return
        room, taken = limit - len(self.tokenizer.special), len(self.tokenizer.content([prompt])[0])
        seen = self.tokenizer.special.cut == "left" and self._checkpoint.pooling.include_prompt
        if taken >= room >= 1 and not seen:
            raise InputError(
                f"the prompt has {taken} tokens, the model reads {room} beside its special tokens: nothing of a text "
                "would count. Use a shorter prompt, a larger max_length, or on_long='chunk'"
            )


def _open_tokenizer(checkpoint: Checkpoint) -> TextTokenizer:
    opened = open_tokenizer(checkpoint)
    return TextTokenizer(
        opened.tokenizer,
        special=checkpoint.kind == "transformer",
        drop="[UNK]" if checkpoint.skip_unknown else None,
        cut=opened.truncation_side,
    )


_PACKAGE = str(Path(__file__).parent.parent)


class PromptWarning(UserWarning):
    """Texts were encoded without a prompt by a model that was trained with prompts for queries or documents."""

    code = "GEM-208"


class TruncationWarning(UserWarning):
    """Texts were longer than the model reads, and were truncated."""

    code = "GEM-306"


def refuse_long(
    windows: Sequence[Windows],
    block: Sequence[object],
    among: Sequence[object],
    *,
    name: str = "texts[{}]",
    advice: str = "'truncate' or 'chunk'",
) -> None:
    """Raise an error for the first text (or pair) of `block` that was truncated, with its position in `among`."""
    for window, text in zip(windows, block, strict=True):
        if window.kept < window.tokens:
            raise InputError(
                f"{name.format(among.index(text))} has {window.tokens:,} tokens, the model reads {window.kept:,}. "
                f"Shorten it, or use on_long={advice}",
                code="GEM-306",
            )


def warn_of_long(
    tokens: NDArray[np.int64],
    kept: NDArray[np.int64],
    limit: int | None,
    *,
    what: str = "texts",
    advice: str = "Use on_long='chunk' to read them whole, or 'truncate' to cut them without this line",
) -> None:
    """Warn once with the number of texts and tokens that were lost; silent where none were."""
    lost = tokens - kept
    count = int((lost > 0).sum())
    if count:
        warnings.warn(
            f"{count:,} of {len(tokens):,} {what} are longer than {limit:,} tokens "
            f"and lost {int(lost.sum()):,} tokens. {advice}",
            TruncationWarning,
            stacklevel=outside(),
        )


def outside() -> int:
    """The stack level of the first caller outside this package: a warning points at the user's code."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level
