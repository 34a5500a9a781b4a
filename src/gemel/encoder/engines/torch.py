"""The torch engine: what no architecture file reads, run by transformers. Slower, in the train extra."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gemel.checkpoint.foreign_error import reason_of
from gemel.errors import InputError, MissingExtra, ModelError
from gemel.network_use import disable_usage_reports
from gemel.types import Ids, Vectors


class TorchEngine:
    """Fits `Engine`. Loads safetensors only, and runs no code that comes with a checkpoint."""

    name = "torch"
    batch_tokens = 2048

    def __init__(self, folder: Path, *, device: str = "cpu") -> None:
        disable_usage_reports("huggingface_hub")
        try:
            import torch
            from transformers import AutoModel
        except ImportError as error:
            raise MissingExtra("a model without an architecture file", "torch", "train") from error
        try:
            model = AutoModel.from_pretrained(
                folder,
                trust_remote_code=False,
                use_safetensors=True,
                local_files_only=True,
                dtype=torch.float32,
            )
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"transformers cannot load {folder}: {reason_of(error)}") from error
        try:
            self._model = model.eval().to(device)
        except (RuntimeError, AssertionError) as error:  # torch built without the device asserts
            raise InputError(f"torch cannot use device {device!r}: {error}") from error
        self.device = device
        self.width = int(model.config.hidden_size)
        self._vocabulary = int(model.get_input_embeddings().num_embeddings)

    def hidden(self, ids: Ids, threads: int = 1) -> Vectors:
        """(b, t) token ids, all rows of t real tokens -> (b, t, width) float32.

        Row by row: torch picks its kernels by the size of the batch, and they give other bits.
        """
        import torch

        if ids.ndim != 2 or ids.size == 0 or ids.min() < 0 or ids.max() >= self._vocabulary:
            known = f"0 to {self._vocabulary - 1}"
            raise InputError(f"token ids must be (texts, tokens), none empty, from {known}; got {ids.shape}")
        tokens = torch.from_numpy(ids.astype(np.int64)).to(self.device)
        with torch.inference_mode():
            states = [
                self._model(input_ids=row[None], attention_mask=torch.ones_like(row[None])).last_hidden_state
                for row in tokens
            ]
        hidden: Vectors = torch.cat(states).float().cpu().numpy()
        return hidden

    def bytes_per_text(self, tokens: int) -> int:
        """A guess for an unknown network: some twenty matrices of its width, and scores of sixteen heads."""
        return 4 * tokens * (20 * self.width + 16 * tokens)
