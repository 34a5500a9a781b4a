"""tokenizer_config.json against tokenizer.json: where the two differ, transformers follows the first.

It depends on the class of the tokenizer: those of the BERT line make their normalizer from the settings, those of the
RoBERTa line their first space; a plain tokenizer (PreTrainedTokenizerFast) is tokenizer.json as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers, pre_tokenizers

from gemel.errors import ModelError

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
_BY_MODEL_TYPE = {
    "albert": "Albert",
    "bert": "Bert",
    "camembert": "Camembert",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "mobilebert": "MobileBert",
    "mpnet": "MPNet",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
}
"""The class of a tokenizer whose settings name none."""

_DEEPEST = 8


def follow_settings(
    tokenizer: Tokenizer, settings: Mapping[str, Any], config: Mapping[str, Any], path: Path
) -> None:
    """Change `tokenizer` to what its settings say, or refuse what cannot be followed; `path` is where they stand."""
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    by_type = _BY_MODEL_TYPE.get(str(config.get("model_type")), "")
    kind = str(named).removesuffix("Fast").removesuffix("Tokenizer") if named else by_type
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
