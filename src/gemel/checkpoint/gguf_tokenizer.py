"""The tokenizer of a GGUF file, made of its vocabulary: WordPiece, byte-level BPE, or SentencePiece pieces with scores.

A file names the rules of its tokenizer, and does not have them: `tokenizer.ggml.model` is the kind, and
`tokenizer.ggml.pre` says where a byte-level BPE splits a text first. Rules that are not known are refused. Special
tokens are added as the file says, else as llama.cpp does by default: a vector without its first or last token looks
right and is wrong (llama.cpp issue 14280).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, Unigram, WordPiece

from gemel.checkpoint.gguf_file import GgufFile
from gemel.errors import ModelError

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
"""Kinds of tokens; those of control and those that users defined stand in a text as they are."""

_SPACE = "\u2581"

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASES = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"


@dataclass(frozen=True)
class _Split:
    """How a byte-level BPE prepares a text, as tokenizer.json of the original has it."""

    pattern: str | None = None
    """Where it splits a text; None: where GPT-2 does."""
    digits: bool = False
    """Each digit stands alone."""
    compose: bool = False
    """Letters and their accents become one character (NFC)."""
    whole: bool = False
    """A word that is in the vocabulary is one token, whatever the merges make of it."""
    first: bool = False
    """llama.cpp adds a first token unless the file says otherwise."""


_SPLITS = {
    "gpt-2": _Split(),
    "roberta-bpe": _Split(),
    "modern-bert": _Split(compose=True),
    "olmo": _Split(compose=True),
    "smollm": _Split(digits=True),
    "starcoder": _Split(digits=True),
    "qwen2": _Split(rf"{_SHORT}|{_WORDS}|\p{{N}}|{_REST}", compose=True),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3"),
        _Split(rf"{_SHORT}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}", whole=True, first=True),
    ),
    "tekken": _Split(
        rf"{_CASES}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+", whole=True, first=True
    ),
}
"""By `tokenizer.ggml.pre`."""

_Ends = tuple[int | None, int | None]
"""Ids of the tokens before and after each text; None: there is none."""


def gguf_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of the file at `path`."""
    file = GgufFile(path)
    try:
        return _made(file)
    except ModelError:
        raise
    except BaseException as error:  # of the library: a plain Exception, or a panic, which is a BaseException
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelError(
            f"{path} has a vocabulary that is no tokenizer ({error}). Fetch or copy the file again"
        ) from error


def _made(file: GgufFile) -> Tokenizer:
    kind, tokens = file.get("tokenizer.ggml.model"), file.texts("tokenizer.ggml.tokens")
    if kind not in _KINDS:
        raise ModelError(
            f"{file.path} has a tokenizer of the kind {kind!r:.60}. Read from GGUF files: {', '.join(_KINDS)}. {_OTHER}"
        )
    if not tokens:
        raise ModelError(f"{file.path} has no tokens: it is not complete, or it is only a part of a model")
    types = file.numbers("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise ModelError(f"{file.path} has {len(tokens)} tokens, but types for {len(types)}")
    tokenizer, ends = _KINDS[kind](file, tokens, types)
    added = list(zip(tokens, types, strict=True))
    tokenizer.add_special_tokens([token for token, each in added if each in (_CONTROL, _UNKNOWN)])
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False) for token, each in added if each == _USER_DEFINED]
    )
    _add_ends(tokenizer, tokens, ends)
    return tokenizer


_OTHER = "Take the safetensors of the model, or convert it again with a current llama.cpp"


def _add_ends(tokenizer: Tokenizer, tokens: list[str], ends: _Ends) -> None:
    before, after = ([] if number is None else [tokens[number]] for number in ends)
    named = [(tokens[number], number) for number in ends if number is not None]
    if named:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after], pair=[*before, "$A", *after, "$B", *after], special_tokens=named
        )


def _ends(
    file: GgufFile, tokens: list[str], *, before: bool, after: bool, ids: _Ends = (None, None)
) -> _Ends:
    """The ends of a text as the file says; the defaults are those of llama.cpp."""
    requested = {"bos": (before, ids[0]), "eos": (after, ids[1])}
    first, last = (
        _id(file, tokens, f"{name}_token_id", default)
        if file.flag(f"tokenizer.ggml.add_{name}_token", wanted)
        else None
        for name, (wanted, default) in requested.items()
    )
    return first, last


def _id(file: GgufFile, tokens: list[str], name: str, default: int | None) -> int:
    """The id of a special token that texts need."""
    number = file.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(tokens):
        raise ModelError(
            f"{file.path}: texts need the token of 'tokenizer.ggml.{name}', which is {number!r:.60}, and there are "
            f"{len(tokens)} tokens. {_OTHER}"
        )
    return number


def _wordpiece(file: GgufFile, tokens: list[str], types: list[int]) -> tuple[Tokenizer, _Ends]:
    """llama.cpp writes the start of a word as a mark, and the rest of one without the ## of BERT."""

    def original(token: str, kind: int) -> str:
        if kind == _CONTROL or (token.startswith("[") and token.endswith("]")):
            return token
        return token[1:] if token.startswith(_SPACE) else f"##{token}"

    words = [original(token, kind) for token, kind in zip(tokens, types, strict=True)]
    special = {word for word, token in zip(words, tokens, strict=True) if word == token}
    vocabulary = {word: number for number, word in enumerate(words)}
    cased = any(word != word.lower() for word in vocabulary.keys() - special)
    lowercase = file.flag("tokenizer.ggml.normalizer.lowercase", not cased)
    unknown = words[_id(file, words, "unknown_token_id", vocabulary.get("[UNK]"))]
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=file.flag("tokenizer.ggml.normalizer.strip_accents", lowercase)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(
        [word for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if word in vocabulary]
    )
    # Newer files have the first token as that of a beginning (bos), older ones as that of a class.
    first = file.get("tokenizer.ggml.bos_token_id", vocabulary.get("[CLS]"))
    separator = vocabulary.get("[SEP]")
    return tokenizer, (
        _id(file, tokens, "cls_token_id", first),
        _id(file, tokens, "seperator_token_id", separator),
    )


def _byte_bpe(file: GgufFile, tokens: list[str], types: list[int]) -> tuple[Tokenizer, _Ends]:
    name = file.get("tokenizer.ggml.pre")
    if name not in _SPLITS:
        raise ModelError(
            f"{file.path}: the pre-tokenizer {name!r:.60} is not supported, only {', '.join(_SPLITS)}. {_OTHER}"
        )
    split = _SPLITS[name]
    merges = []
    for merge in file.texts("tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    model = BPE({token: number for number, token in enumerate(tokens)}, merges, ignore_merges=split.whole)
    tokenizer = Tokenizer(model)
    if split.compose:
        tokenizer.normalizer = normalizers.NFC()
    steps = [
        *([pre_tokenizers.Digits(individual_digits=True)] if split.digits else []),
        *([pre_tokenizers.Split(Regex(split.pattern), "isolated")] if split.pattern else []),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, _ends(file, tokens, before=split.first, after=False)


def _pieces(file: GgufFile, tokens: list[str], types: list[int]) -> tuple[Tokenizer, _Ends]:
    """BPE whose merges are the pairs of pieces that make a piece, those with the best score first."""
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges: list[tuple[float, str, str]] = []
    for token, score, kind in zip(tokens, _scores(file, tokens), types, strict=True):
        if kind in (_UNKNOWN, _CONTROL, _BYTE):
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((-score, left, right))
    merges.sort(key=lambda each: each[0])
    model = BPE(
        vocabulary,
        [(left, right) for _, left, right in merges],
        unk_token=tokens[_id(file, tokens, "unknown_token_id", 0)],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    first = [normalizers.Prepend(_SPACE)] if file.flag("tokenizer.ggml.add_space_prefix", True) else []
    tokenizer.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", _SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer, _ends(file, tokens, before=True, after=False, ids=(1, 2))


def _unigram(file: GgufFile, tokens: list[str], types: list[int]) -> tuple[Tokenizer, _Ends]:
    """Pieces of which the most probable sequence is taken (T5, XLM-R)."""
    scores, unknown = _scores(file, tokens), _id(file, tokens, "unknown_token_id", 2)
    tokenizer = Tokenizer(Unigram(list(zip(tokens, scores, strict=True)), unk_id=unknown))
    steps: list[normalizers.Normalizer] = []
    if table := file.numbers("tokenizer.ggml.precompiled_charsmap"):
        steps.append(normalizers.Precompiled(bytes(each % 256 for each in table)))
    if file.flag("tokenizer.ggml.remove_extra_whitespaces", False):
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if file.flag("tokenizer.ggml.add_space_prefix", False) else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    return tokenizer, _ends(file, tokens, before=False, after=True, ids=(None, 1))


def _scores(file: GgufFile, tokens: list[str]) -> list[float]:
    scores = file.numbers("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise ModelError(f"{file.path} has {len(tokens)} tokens, but scores for {len(scores)}")
    return [float(score) for score in scores]


_Maker = Callable[[GgufFile, list[str], list[int]], tuple[Tokenizer, _Ends]]

_KINDS: Mapping[str, _Maker] = {"bert": _wordpiece, "gpt2": _byte_bpe, "llama": _pieces, "t5": _unigram}
"""By `tokenizer.ggml.model`."""
