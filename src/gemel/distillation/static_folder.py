"""A table of token vectors to a folder: the module StaticEmbedding of sentence-transformers, then length 1."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.new_folder import new_folder, write_json
from gemel.checkpoint.tokenizer_file import load_tokenizer
from gemel.checkpoint.write import check_target
from gemel.types import Vectors

_THEIRS = "sentence_transformers.models."
_TABLE = "0_StaticEmbedding"


def write_static(teacher: Checkpoint, table: Vectors, folder: Path, *, overwrite: bool = False) -> Path:
    """`table` with the teacher's tokenizer and licence. No prompts: the table has seen none of them."""
    from safetensors.numpy import save_file

    check_target(folder.absolute(), teacher, overwrite)
    with new_folder(folder.absolute()) as working:
        (working / _TABLE).mkdir()
        rows = np.array(table, dtype=np.float32, order="C")
        save_file({"embedding.weight": rows}, working / _TABLE / "model.safetensors")
        load_tokenizer(teacher).save(str(working / _TABLE / "tokenizer.json"))
        for pattern in ("LICENSE*", "NOTICE*"):
            for path in sorted(teacher.folder.glob(pattern)):
                shutil.copyfile(path, working / path.name)
        (working / "1_Normalize").mkdir()
        modules = [("StaticEmbedding", _TABLE), ("Normalize", "1_Normalize")]
        listed = [
            {"idx": place, "name": str(place), "path": path, "type": _THEIRS + kind}
            for place, (kind, path) in enumerate(modules)
        ]
        write_json(working / "modules.json", listed)
        settings: dict[str, Any] = {
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        }
        write_json(working / "config_sentence_transformers.json", settings)
    return folder
