"""What a checkpoint says about its transformer beside the weights: config.json, sentence_bert_config.json and
tokenizer_config.json, joined as sentence-transformers joins them.

A setting that could change vectors is followed or refused, never skipped: `keys.py` has the lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gemel.checkpoint import keys as known_keys
from gemel.checkpoint.architecture import architecture_of
from gemel.checkpoint.json_file import read_object, read_object_if_there
from gemel.checkpoint.tensors import has_safetensors
from gemel.errors import ModelError

Side = Literal["left", "right"]

_FILES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")

_TEXT_MODALITY = {"method": "forward", "method_output_name": "last_hidden_state"}

_HARMLESS_PROCESSING: dict[str, dict[str, tuple[object, ...] | None]] = {
    "common": {"return_tensors": ("pt", "np")},
    "text": {
        "padding": (True, "longest", "max_length"),
        "truncation": (True, "longest_first", "only_first"),
        "pad_to_multiple_of": None,
        "return_attention_mask": None,
        "return_token_type_ids": None,
        "padding_side": None,
        "max_length": None,
    },
}
"""processing_kwargs that change no vector of a text, with the values that do not; None: any. `max_length` is read."""

_WITHOUT_LIMIT = 1e6  # tokenizers write 1e30 for: no limit


@dataclass(frozen=True)
class TransformerSettings:
    """The settings of a transformer, joined."""

    config: Mapping[str, Any]
    """config.json, with `config_args` over it."""
    tokenizer: Mapping[str, Any]
    """tokenizer_config.json, with `tokenizer_args` over it."""
    lowercase: bool
    max_length: int | None
    """Tokens that are asked for; the network may have fewer positions."""
    truncation_side: Side | None
    """The end at which a long text loses tokens; None: tokenizer.json says it, or the right one."""


def read_transformer_settings(folder: Path, *, cross: bool) -> TransformerSettings:
    """The settings of the transformer in `folder`; `cross`: of a cross-encoder's."""
    path, said = _own_settings(folder)
    known_keys.refuse_unknown(path, said, known_keys.TRANSFORMER, known_keys.TRANSFORMER_HARMLESS)
    _check_task(folder, said, cross)
    _check_modality(path, said)
    _refuse_adapter(folder)
    arguments = _arguments(path, said, "model_args", "model_kwargs")
    known_keys.refuse_unknown(path, arguments, known_keys.LOADING_ARGUMENTS, where="model_args")
    config = _config(folder, path, _arguments(path, said, "config_args", "config_kwargs"))
    tokenizer_path = folder / "tokenizer_config.json"
    tokenizer = read_object_if_there(tokenizer_path)
    if architecture_of(config) is not None:  # other networks' tokenizers have many more keys
        lists = (known_keys.TOKENIZER, known_keys.TOKENIZER_HARMLESS)
        known_keys.refuse_unknown(tokenizer_path, tokenizer, *lists)
    own = _arguments(path, said, "tokenizer_args", "processor_kwargs")
    allowed = (known_keys.TOKENIZER, known_keys.TOKENIZER_HARMLESS, known_keys.LOADING_ARGUMENTS)
    known_keys.refuse_unknown(path, own, *allowed, where="tokenizer_args")
    joined = {**tokenizer, **own}
    lengths = (
        _processing(path, said).get("max_length"),
        own.get("model_max_length"),
        said.get("max_seq_length"),
        tokenizer.get("model_max_length"),
    )
    return TransformerSettings(
        config=config,
        tokenizer=joined,
        lowercase=said.get("do_lower_case") is True,
        max_length=next((length for length in map(_length, lengths) if length is not None), None),
        truncation_side=_side(tokenizer_path, joined.get("truncation_side")),
    )


def _own_settings(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """sentence_bert_config.json, or the same file under the name of another architecture."""
    paths = [folder / f"sentence_{name}_config.json" for name in _FILES]
    path = next((path for path in paths if path.is_file()), paths[0])
    return path, read_object(path) if path.is_file() else {}


def _check_task(folder: Path, said: Mapping[str, Any], cross: bool) -> None:
    own = "sequence-classification" if cross else "feature-extraction"
    task = said.get("transformer_task", own)
    if task != own:
        raise ModelError(f"{folder}: a transformer for {task!r} is not supported here")


def _check_modality(path: Path, said: Mapping[str, Any]) -> None:
    """Texts through the network as they are, and the last hidden states out of it: nothing else is run here."""
    if said.get("transformer_task") == "sequence-classification":
        return
    output = said.get("module_output_name")
    if output not in (None, "token_embeddings"):
        raise ModelError(
            f"{path}: the key 'module_output_name' asks for {output!r}, only 'token_embeddings' is read"
        )
    modality = said.get("modality_config")
    if modality not in (None, {}, {"text": _TEXT_MODALITY}):
        raise ModelError(
            f"{path}: the key 'modality_config' asks for {modality!r}; only texts to last hidden states are read: "
            f"{{'text': {_TEXT_MODALITY}}}"
        )


def _refuse_adapter(folder: Path) -> None:
    """sentence-transformers would run the adapter's base model with the adapter in it, not the weights beside it."""
    path = folder / "adapter_config.json"
    if path.is_file() and has_safetensors(folder):
        raise ModelError(
            f"{path}: an adapter (LoRA) lies beside full weights, and gemel would run the weights without it. Merge it "
            "into them (merge_and_unload() of peft) and save the model, or remove adapter_config.json"
        )


def _arguments(path: Path, said: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """The object under the first of `names` (an older and a newer one) that is there."""
    for name in names:
        value = said.get(name)
        if value is not None and not isinstance(value, dict):
            raise ModelError(f"{path}: the key {name!r} must be an object, got {value!r}")
        if value:
            return value
    return {}


def _config(folder: Path, path: Path, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    config_path = folder / "config.json"
    config = read_object_if_there(config_path)
    known_keys.refuse_unknown_config(config_path, config)
    own = {key: value for key, value in arguments.items() if key not in known_keys.LOADING_ARGUMENTS}
    if not own:
        return config
    architecture = architecture_of(config)
    if "model_type" in own or architecture is None:
        key = next(iter(own))
        raise ModelError(
            f"{path}: the key {key!r} in 'config_args' changes the network, which gemel follows only for architectures "
            f"that it reads itself, not for {config.get('model_type')!r}. Write it into config.json"
        )
    aliases = architecture.aliases
    renamed = {aliases.get(key, key): value for key, value in own.items()}
    known_keys.refuse_unknown(
        path, renamed, architecture.config_keys, known_keys.CONFIG_HARMLESS, where="config_args"
    )
    return {**{key: value for key, value in config.items() if key not in aliases}, **renamed}


def _processing(path: Path, said: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is said about texts in processing_kwargs, checked."""
    kinds = _arguments(path, said, "processing_kwargs")
    for kind, arguments in kinds.items():
        if kind in ("audio", "image", "video", "chat_template"):
            continue  # nothing of the kind is read
        harmless = _HARMLESS_PROCESSING.get(kind)
        for key, value in arguments.items() if isinstance(arguments, dict) else [(kind, arguments)]:
            values = () if harmless is None else harmless.get(key, ())
            if value is not None and values is not None and value not in values:
                raise ModelError(
                    f"{path}: the key {key!r} in 'processing_kwargs' ({value!r}) could change vectors and is not "
                    "supported. Remove it from the file if it changes nothing"
                )
    text = kinds.get("text")
    return text if isinstance(text, dict) else {}


def _side(path: Path, side: object) -> Side | None:
    if side in (None, "left", "right"):
        return side
    raise ModelError(f"{path}: 'truncation_side' must be left or right, got {side!r}")


def _length(value: object) -> int | None:
    """A number of tokens; None: it says nothing, or that there is no limit."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _WITHOUT_LIMIT:
        return None
    return int(value) or None
