"""A model's files by size and time, as a shortcut: where these are as they were, their hash is as it was."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from gemel.model import Model


def stamp_of(model: Model) -> str:
    """Hex digits of path, size, times and inode of each file that computes, and of the settings beside them.

    Another stamp says nothing (a copy has one of its own); the same stamp: the same files on the same machine,
    not written since. "" where a file is gone.
    """
    checkpoint = model.checkpoint
    try:
        files = [
            (str(path.resolve()), found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
            for path in (*checkpoint.parts, checkpoint.tokenizer_file)
            for found in [path.stat()]
        ]
    except OSError:
        return ""
    settings = [
        dict(checkpoint.config),
        [dense.activation for dense in checkpoint.dense],
        checkpoint.kind,
        checkpoint.lowercase,
        checkpoint.skip_unknown,
        asdict(checkpoint.pooling),
        [dict(checkpoint.tokenizer_settings), checkpoint.truncation_side, checkpoint.truncate_dim],
    ]
    said = json.dumps([files, settings], sort_keys=True, default=str)
    return hashlib.sha256(said.encode("ascii")).hexdigest()[:32]
