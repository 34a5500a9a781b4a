"""The checkpoint's tokenizer as it should be used here: whole texts, no padding, no cutting.

tokenizer_config.json against tokenizer.json: where the two differ, transformers follows the first.

It depends on the class of the tokenizer: those of the BERT line make their normalizer from the settings, those of the
RoBERTa line their first space; a plain tokenizer (PreTrainedTokenizerFast) is tokenizer.json as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from gemel.checkpoint.architecture import architecture_of
from gemel.checkpoint.files import MAX_TOKENIZER, read_object_if_there
from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.settings import Side
from gemel.errors import ModelError

"""Model types whose vocab.txt is a BERT vocabulary."""


@dataclass(frozen=True, eq=False)
class OpenedTokenizer:
    """A tokenizer, and what its files say about texts that are too long for the model."""

    tokenizer: Tokenizer
    truncation_side: Side
    changed: Mapping[str, str]
    """What tokenizer_config.json changed against tokenizer.json: rules by name, as they are now."""


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of `open_tokenizer`."""
    return open_tokenizer(checkpoint).tokenizer


def open_tokenizer(checkpoint: Checkpoint) -> OpenedTokenizer:
    """From tokenizer.json, or from the vocab.txt of a BERT WordPiece; as tokenizer_config.json says where they differ.

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
        except BaseException as error:  # the library raises plain Exception, or panics, which is no Exception
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise ModelError(
                f"{path} is not a tokenizer ({error}). Fetch or copy the checkpoint again"
            ) from error
    side = checkpoint.truncation_side or (tokenizer.truncation or {}).get("direction", "right")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    before = _rules(tokenizer)
    if checkpoint.kind == "transformer":
        settings = path.with_name("tokenizer_config.json")
        follow_settings(tokenizer, checkpoint.tokenizer_settings, checkpoint.config, settings)
    changed = {name: rule for name, rule in _rules(tokenizer).items() if rule != before[name]}
    if checkpoint.lowercase:
        _lowercase(tokenizer)
    return OpenedTokenizer(tokenizer, "left" if side == "left" else "right", changed)


def _rules(tokenizer: Tokenizer) -> dict[str, str]:
    return {
        "normalizer": str(tokenizer.normalizer),
        "pre_tokenizer": str(tokenizer.pre_tokenizer),
        "encode_special_tokens": str(tokenizer.encode_special_tokens),
    }


def _from_vocabulary(checkpoint: Checkpoint) -> Tokenizer:
    path = checkpoint.tokenizer_file
    settings = {
        **read_object_if_there(path.with_name("special_tokens_map.json")),
        **read_object_if_there(path.with_name("tokenizer_config.json")),
    }
    kind = checkpoint.config.get("model_type", "bert")
    if not has_wordpiece_vocabulary(kind):
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


def has_wordpiece_vocabulary(model_type: object) -> bool:
    """Whether a vocab.txt of this model type is a WordPiece vocabulary, which needs no tokenizer.json beside it."""
    architecture = architecture_of({"model_type": model_type})
    return model_type in _OTHER_CLASSES if architecture is None else architecture.wordpiece_vocabulary


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


_BERT = {
    "Bert",
    "DistilBert",
    "Electra",
    "MPNet",
    "MobileBert",
    "Funnel",
    "LayoutLM",
    "RetriBert",
    "SqueezeBert",
}

_BYTES = {"Roberta", "Longformer", "GPT2", "Bart", "Deberta", "CodeGen"}

_PIECES = {"Albert", "XLMRoberta", "Camembert", "BigBird", "XLNet", "T5", "MBart"}

_OTHER_CLASSES = {"mobilebert": "MobileBert"}

_DEEPEST = 8


def follow_settings(
    tokenizer: Tokenizer, settings: Mapping[str, Any], config: Mapping[str, Any], path: Path
) -> None:
    """Change `tokenizer` to what its settings say, or refuse what cannot be followed; `path` is where they stand."""
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    kind = str(named).removesuffix("Fast").removesuffix("Tokenizer") if named else _default_class(config)
    if kind in _BERT:
        # What transformers saves has all keys; a file without a class may say one thing only, and means only that.
        defaults = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
        _bert(tokenizer, {**(defaults if settings.get("tokenizer_class") else {}), **settings})
    elif kind in _BYTES | _PIECES:
        _first_space(tokenizer, settings.get("add_prefix_space"))
        _check_case(tokenizer, settings, path, kind)
    _check_added(tokenizer, settings, path)
    _check_ends(tokenizer, settings, path)
    if settings.get("split_special_tokens") is True:
        tokenizer.encode_special_tokens = True


def _default_class(config: Mapping[str, Any]) -> str:
    """The class of a tokenizer whose settings name none."""
    architecture = architecture_of(config)
    return (
        architecture.class_prefix if architecture else _OTHER_CLASSES.get(str(config.get("model_type")), "")
    )


def _bert(tokenizer: Tokenizer, said: Mapping[str, Any]) -> None:
    fields = {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    }
    for rule in _parts(tokenizer.normalizer, normalizers.Sequence):
        if isinstance(rule, normalizers.BertNormalizer):
            for key, name in fields.items():
                allowed = (True, False, None) if key == "strip_accents" else (True, False)
                if key in said and any(said[key] is value for value in allowed):
                    setattr(rule, name, said[key])


def _first_space(tokenizer: Tokenizer, wanted: object) -> None:
    """A space before the first word, or none, in whichever rule decides it."""
    if not isinstance(wanted, bool):
        return
    for rule in _parts(tokenizer.pre_tokenizer, pre_tokenizers.Sequence):
        if isinstance(rule, pre_tokenizers.ByteLevel):
            rule.add_prefix_space = wanted
        elif isinstance(rule, pre_tokenizers.Metaspace) and wanted == (rule.prepend_scheme == "never"):
            rule.prepend_scheme = "always" if wanted else "never"


def _check_case(tokenizer: Tokenizer, settings: Mapping[str, Any], path: Path, kind: str) -> None:
    """ALBERT: releases of transformers differ in which of the two files counts, so they must say the same."""
    if kind != "Albert":
        return
    rules = tokenizer.normalizer
    for key, probe, wanted in (("do_lower_case", "A", "a"), ("keep_accents", "é", "é")):
        found = (probe if rules is None else rules.normalize_str(probe)).strip() == wanted
        if isinstance(settings.get(key), bool) and settings[key] != found:
            raise ModelError(
                f"{path}: {key!r} is {str(settings[key]).lower()}, but tokenizer.json does the opposite. "
                "Save the tokenizer again, so that both files say the same"
            )


def _check_added(tokenizer: Tokenizer, settings: Mapping[str, Any], path: Path) -> None:
    """Tokens that tokenizer.json does not have would get ids that the network may not have either."""
    decoder, extra = settings.get("added_tokens_decoder"), settings.get("extra_special_tokens")
    more = settings.get("additional_special_tokens")
    entries = {
        "added_tokens_decoder": list(decoder.values()) if isinstance(decoder, dict) else [],
        "extra_special_tokens": list(extra.values()) if isinstance(extra, dict) else extra or [],
        "additional_special_tokens": more or [],
    }
    for key, tokens in entries.items():
        for token in tokens if isinstance(tokens, list) else []:
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str) and tokenizer.token_to_id(text) is None:
                raise ModelError(
                    f"{path}: {key!r} has the token {text!r}, which tokenizer.json does not have. "
                    "Save the tokenizer again, so that both files say the same"
                )


def _check_ends(tokenizer: Tokenizer, settings: Mapping[str, Any], path: Path) -> None:
    """A token that the settings put before or after each text must be one that tokenizer.json puts there."""
    for key, name, place in (("add_bos_token", "bos_token", 0), ("add_eos_token", "eos_token", -1)):
        token = settings.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if settings.get(key) is True and isinstance(text, str):
            found = tokenizer.encode("a").tokens
            if not found or found[place] != text:
                raise ModelError(
                    f"{path}: {key!r} asks for {text!r}, which tokenizer.json does not put there. "
                    "Save the tokenizer again, so that both files say the same"
                )


def _parts(rule: object, sequence: type, depth: int = 0) -> Iterator[Any]:
    """The rule itself, or the rules that a sequence holds."""
    if depth > _DEEPEST:  # the library may also give a sequence as a part of itself
        raise ModelError(
            f"the rules of tokenizer.json are sequences nested more than {_DEEPEST} deep. Write them as one sequence"
        )
    if isinstance(rule, sequence):
        for part in rule:  # type: ignore[attr-defined]  # a sequence
            yield from _parts(part, sequence, depth + 1)
    elif rule is not None:
        yield rule
