"""The files next to an exported graph: a tokenizer that cuts and pads as the graph expects, the config, the licences.

What transformers, optimum and fastembed look for by name.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.json_file import read_object_if_there
from gemel.checkpoint.new_folder import write_json
from gemel.checkpoint.tokenizer_file import open_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FACTS = "gemel_export.json"
"""Says what was exported and how; a folder that has it may be overwritten by another export."""
_LICENCES = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*")
_MARKS = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
_PADDINGS = ("[PAD]", "<pad>")


def ready_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """Cuts at the model's length and pads on the right, so that its ids and masks fit the graph as they are."""
    opened = open_tokenizer(checkpoint)
    tokenizer = opened.tokenizer
    if checkpoint.kind == "static":
        from tokenizers import processors

        tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    if checkpoint.max_length is not None and not checkpoint.skip_unknown:  # that graph counts by itself
        tokenizer.enable_truncation(checkpoint.max_length, direction=opened.truncation_side)
    name = _padding(checkpoint, tokenizer)
    # The padding's id never counts, as the mask is 0 there; it only has to be a row of the table.
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id(name) or 0, pad_token=name)
    return tokenizer


def write_sidecar(
    checkpoint: Checkpoint, tokenizer: Tokenizer, folder: Path, facts: Mapping[str, Any]
) -> None:
    """tokenizer.json and the small files that other programs ask for, into an empty folder."""
    tokenizer.save(str(folder / "tokenizer.json"))
    home = checkpoint.tokenizer_file.parent
    theirs = read_object_if_there(home / "tokenizer_config.json")
    marks = _marks(checkpoint, tokenizer, home)
    length = {} if checkpoint.max_length is None else {"model_max_length": checkpoint.max_length}
    kind = {"tokenizer_class": theirs.get("tokenizer_class", "PreTrainedTokenizerFast")}
    write_json(folder / "tokenizer_config.json", {**theirs, **kind, **length, **marks})
    write_json(folder / "special_tokens_map.json", marks)
    padding = tokenizer.token_to_id(marks["pad_token"]) or 0
    config = {**checkpoint.config, "pad_token_id": padding}
    write_json(folder / "config.json", config)
    if checkpoint.prompts:
        prompts = {
            "prompts": dict(checkpoint.prompts),
            "default_prompt_name": checkpoint.default_prompt_name,
        }
        write_json(folder / "config_sentence_transformers.json", prompts)
    for pattern in _LICENCES:
        for path in sorted(checkpoint.folder.glob(pattern)):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
    write_json(folder / FACTS, dict(facts))


def _padding(checkpoint: Checkpoint, tokenizer: Tokenizer) -> str:
    said = checkpoint.config.get("pad_token_id")
    name = tokenizer.id_to_token(said) if isinstance(said, int) and said >= 0 else None
    known = next((mark for mark in _PADDINGS if tokenizer.token_to_id(mark) is not None), None)
    return known or name or tokenizer.id_to_token(0) or _PADDINGS[0]


def _marks(checkpoint: Checkpoint, tokenizer: Tokenizer, home: Path) -> dict[str, str]:
    """Special tokens by role: as the checkpoint says, else those with the usual names."""
    said = {
        **read_object_if_there(home / "tokenizer_config.json"),
        **read_object_if_there(home / "special_tokens_map.json"),
    }
    found = {"pad_token": _padding(checkpoint, tokenizer)}
    for role in _MARKS[1:]:
        value = said.get(f"{role}_token")
        value = value.get("content") if isinstance(value, dict) else value
        name = value if isinstance(value, str) else f"[{role.upper()}]"
        if tokenizer.token_to_id(name) is not None:
            found[f"{role}_token"] = name
    return found
