"""The tokenizer of a checkpoint, without padding and truncation.

Where tokenizer_config.json differs from tokenizer.json, transformers follows the first, depending on the class of the
tokenizer: those of the BERT family take their normalizer from it, those of the RoBERTa family their first space; a
plain tokenizer (PreTrainedTokenizerFast) is tokenizer.json as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from gemel.checkpoint.architecture import architecture_of, key_set
from gemel.checkpoint.files import MAX_TOKENIZER, read_object_if_there
from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.settings import Side
from gemel.errors import ModelError


@dataclass(frozen=True, eq=False)
class OpenedTokenizer:
    """A tokenizer with its truncation side and what its settings changed."""

    tokenizer: Tokenizer
    truncation_side: Side
    changed: Mapping[str, str]
    """What tokenizer_config.json changed of tokenizer.json: rules by name, as they are now."""


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of `open_tokenizer`."""
    return open_tokenizer(checkpoint).tokenizer


def open_tokenizer(checkpoint: Checkpoint) -> OpenedTokenizer:
    """From tokenizer.json, or from the vocab.txt of a BERT WordPiece; tokenizer_config.json wins where they differ.

    Padding and truncation of the file are switched off.
    """
    from gemel.files.machine import limit_tokenizers

    limit_tokenizers()
    path = checkpoint.tokenizer_file
    size = path.stat().st_size
    if size > MAX_TOKENIZER and path.suffix != ".gguf":
        raise ModelError(
            f"{path} has {size:,} bytes; at most {MAX_TOKENIZER:,} are read. Is it the right file?"
        )
    if path.suffix == ".gguf":
        from gemel.checkpoint.gguf_file import gguf_tokenizer

        tokenizer = gguf_tokenizer(path)
    elif path.name == "vocab.txt":
        tokenizer = _from_vocabulary(checkpoint)
    else:
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except BaseException as error:  # a plain Exception, or a panic, which is a BaseException
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
    unknown, first, last, *others = (
        _special(settings, name) for name in ("unk", "cls", "sep", "pad", "mask")
    )
    missing = [token for token in (unknown, first, last) if token not in vocabulary]
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
    tokenizer.add_special_tokens([token for token in (unknown, first, last, *others) if token in vocabulary])
    return tokenizer


def has_wordpiece_vocabulary(model_type: object) -> bool:
    """Whether a vocab.txt of this model type is a WordPiece vocabulary, which needs no tokenizer.json."""
    architecture = architecture_of({"model_type": model_type})
    return model_type in _OTHER_CLASSES if architecture is None else architecture.wordpiece_vocabulary


def _special(settings: Mapping[str, Any], name: str) -> str:
    """A special token, given as a text or as an object with its text."""
    value = settings.get(f"{name}_token")
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else f"[{name.upper()}]"


def _lowercase(tokenizer: Tokenizer) -> None:
    """Lower-case before all other rules, unless the tokenizer's own rules do so already."""
    rules = tokenizer.normalizer
    if rules is None:
        tokenizer.normalizer = normalizers.Lowercase()
    elif "A" in rules.normalize_str("A"):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), rules])


_BERT = key_set("Bert DistilBert Electra MPNet MobileBert Funnel LayoutLM NomicBert RetriBert SqueezeBert")

_BYTES = key_set("Roberta Longformer GPT2 Bart Deberta CodeGen")

_PIECES = key_set("Albert XLMRoberta Camembert BigBird Gte JinaEmbeddingsV3 XLNet T5 MBart")

_OTHER_CLASSES = {"mobilebert": "MobileBert"}

_DEEPEST = 8


def follow_settings(
    tokenizer: Tokenizer, settings: Mapping[str, Any], config: Mapping[str, Any], path: Path
) -> None:
    """Change `tokenizer` as its settings say, or refuse what is not supported; `path` is their file."""
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    architecture = architecture_of(config)
    default = architecture.class_prefix if architecture else _OTHER_CLASSES.get(str(config.get("model_type")))
    kind = str(named).removesuffix("Fast").removesuffix("Tokenizer") if named else default
    if kind in _BERT:
        # What transformers saves has all keys; a file without a class has only those that it means.
        defaults = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
        _bert(tokenizer, {**(defaults if settings.get("tokenizer_class") else {}), **settings})
    elif kind in _BYTES | _PIECES:
        _first_space(tokenizer, settings.get("add_prefix_space"))
        _check_case(tokenizer, settings, path, kind)
    _check_added(tokenizer, settings, path)
    _check_ends(tokenizer, settings, path)
    if settings.get("split_special_tokens") is True:
        tokenizer.encode_special_tokens = True


def _bert(tokenizer: Tokenizer, settings: Mapping[str, Any]) -> None:
    fields = {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    }
    for rule in _parts(tokenizer.normalizer, normalizers.Sequence):
        if isinstance(rule, normalizers.BertNormalizer):
            for key, name in fields.items():
                allowed = (True, False, None) if key == "strip_accents" else (True, False)
                if key in settings and any(settings[key] is value for value in allowed):
                    setattr(rule, name, settings[key])


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
    """ALBERT: releases of transformers differ in which of the two files counts, so they must agree."""
    if kind != "Albert":
        return
    rules = tokenizer.normalizer
    for key, probe, wanted in (("do_lower_case", "A", "a"), ("keep_accents", "é", "é")):
        actual = (probe if rules is None else rules.normalize_str(probe)).strip() == wanted
        if isinstance(settings.get(key), bool) and settings[key] != actual:
            raise ModelError(
                f"{path}: {key!r} is {str(settings[key]).lower()}, but tokenizer.json does the opposite. "
                "Save the tokenizer again, so that both files agree"
            )


_ADDED = (
    "added_tokens_decoder",
    "extra_special_tokens",
    "model_specific_special_tokens",
    "additional_special_tokens",
)


def _check_added(tokenizer: Tokenizer, settings: Mapping[str, Any], path: Path) -> None:
    """Refuse tokens that tokenizer.json does not have: the network may have no rows for their ids."""
    for key in _ADDED:
        tokens = settings.get(key)
        tokens = list(tokens.values()) if isinstance(tokens, dict) else tokens
        for token in tokens if isinstance(tokens, list) else []:
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str) and tokenizer.token_to_id(text) is None:
                raise ModelError(
                    f"{path}: {key!r} has the token {text!r}, which tokenizer.json does not have. "
                    "Save the tokenizer again, so that both files agree"
                )


def _check_ends(tokenizer: Tokenizer, settings: Mapping[str, Any], path: Path) -> None:
    """Refuse a token before or after each text that is only in the settings, not in tokenizer.json."""
    for key, name, position in (("add_bos_token", "bos_token", 0), ("add_eos_token", "eos_token", -1)):
        token = settings.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if settings.get(key) is True and isinstance(text, str):
            tokens = tokenizer.encode("a").tokens
            if not tokens or tokens[position] != text:
                raise ModelError(
                    f"{path}: {key!r} asks for {text!r}, which tokenizer.json does not add. "
                    "Save the tokenizer again, so that both files agree"
                )


def _parts(rule: object, sequence: type, depth: int = 0) -> Iterator[Any]:
    """The rule itself, or the rules of a sequence."""
    if depth > _DEEPEST:  # the library may also give a sequence as part of itself
        raise ModelError(
            f"the rules of tokenizer.json are sequences nested more than {_DEEPEST} deep. Write them as one sequence"
        )
    if isinstance(rule, sequence):
        for part in rule:  # type: ignore[attr-defined]  # a sequence
            yield from _parts(part, sequence, depth + 1)
    elif rule is not None:
        yield rule
