"""The checkpoint's tokenizer as it should be used here: whole texts, no padding, no cutting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.json_file import MAX_TOKENIZER, read_object_if_there
from gemel.errors import ModelError

WORDPIECE = {"bert", "distilbert", "electra", "mobilebert"}
"""Model types whose vocab.txt is a BERT vocabulary."""


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """From tokenizer.json, or from the vocab.txt of a BERT WordPiece. Lower-cases if the checkpoint says so.

    Padding and truncation that the file may bring are off: cutting is the caller's, and visible.
    """
    path = checkpoint.tokenizer_file
    size = path.stat().st_size
    if size > MAX_TOKENIZER:
        raise ModelError(
            f"{path} has {size:,} bytes; at most {MAX_TOKENIZER:,} are read. Is it the right file?"
        )
    if path.name == "vocab.txt":
        tokenizer = _from_vocabulary(checkpoint)
    else:
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library raises plain Exception, and its panics are not even that
            raise ModelError(
                f"{path} is not a tokenizer ({error}). Fetch or copy the checkpoint again"
            ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if checkpoint.lowercase:
        _lowercase(tokenizer)
    return tokenizer


def _from_vocabulary(checkpoint: Checkpoint) -> Tokenizer:
    path = checkpoint.tokenizer_file
    settings = {
        **read_object_if_there(path.with_name("special_tokens_map.json")),
        **read_object_if_there(path.with_name("tokenizer_config.json")),
    }
    kind = checkpoint.config.get("model_type", "bert")
    if kind not in WORDPIECE:
        raise ModelError(
            f"{path.parent} has no tokenizer.json, and a vocab.txt of the model type {kind!r} is not read. "
            f"Write tokenizer.json with: gemel models convert {checkpoint.folder} (needs gemel[train])"
        )
    try:
        words = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    vocabulary = {word.rstrip("\r"): number for number, word in enumerate(words)}
    unknown, first, last, *others = (_mark(settings, mark) for mark in ("unk", "cls", "sep", "pad", "mask"))
    missing = [mark for mark in (unknown, first, last) if mark not in vocabulary]
    if missing:
        raise ModelError(f"{path} is not a BERT vocabulary: it has no {missing[0]!r}")
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case") is not False,
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars") is not False,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing((last, vocabulary[last]), (first, vocabulary[first]))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([mark for mark in (unknown, first, last, *others) if mark in vocabulary])
    return tokenizer


def _mark(settings: Mapping[str, Any], mark: str) -> str:
    """A special token, written as a text or as an object with its text inside."""
    value = settings.get(f"{mark}_token")
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else f"[{mark.upper()}]"


def _lowercase(tokenizer: Tokenizer) -> None:
    """Lower case before all other rules, unless the tokenizer's own rules do it already."""
    rules = tokenizer.normalizer
    if rules is None:
        tokenizer.normalizer = normalizers.Lowercase()
    elif "A" in rules.normalize_str("A"):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), rules])
