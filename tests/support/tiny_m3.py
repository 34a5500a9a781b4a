"""A tiny random BGE-M3 in the layout of the published one; torch is needed only to write pickles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tiny import SPECIAL_TOKENS, tiny_bert, tiny_vocabulary

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
LAYERS = {"sparse_linear": 1, "colbert_linear": 24}
"""Outputs of the layers beside the network. The published one has as many for token vectors as the network is wide."""


def tiny_m3(folder: Path, *, pickled: bool = False, seed: int = 0) -> Path:
    """An XLM-RoBERTa of random numbers with its pooling, and the two layers; `pickled`: all weights as torch saves
    them, as the authors published theirs."""
    words = [word for word in tiny_vocabulary() if word not in SPECIAL_TOKENS]
    vocabulary = [*SPECIAL, *words, "<mask>"]
    # The builder of the tokenizer needs the tokens of BERT; its file is written again below.
    rows = [*vocabulary, *SPECIAL_TOKENS]
    tiny_bert(folder, seed=seed, pooling="cls", max_length=32, max_positions=66, vocabulary=rows)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "type_vocab_size": 1}
    config |= {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "layer_norm_eps": 1e-5}
    _write(folder / "config.json", {**config, "vocab_size": len(vocabulary)})
    weights = dict(load_file(folder / "model.safetensors"))
    types = "embeddings.token_type_embeddings.weight"
    words_table = "embeddings.word_embeddings.weight"
    weights |= {types: weights[types][:1].copy(), words_table: weights[words_table][: len(vocabulary)].copy()}
    random = np.random.default_rng(seed + 1)
    layers = {
        name: {
            "weight": random.normal(0, 0.2, (outputs, 32)).astype(np.float32),
            "bias": random.normal(0, 0.1, outputs).astype(np.float32),
        }
        for name, outputs in LAYERS.items()
    }
    _tokenizer(folder, vocabulary)
    (folder / "model.safetensors").unlink()
    if not pickled:
        save_file(weights, folder / "model.safetensors")
        for name, tensors in layers.items():
            save_file(tensors, folder / f"{name}.safetensors")
        return folder
    import torch

    def saved(tensors: dict[str, Any]) -> dict[str, Any]:
        return {name: torch.from_numpy(value) for name, value in tensors.items()}

    torch.save(saved(weights), folder / "pytorch_model.bin")
    for name, tensors in layers.items():
        torch.save(saved(tensors), folder / f"{name}.pt")
    return folder


def _tokenizer(folder: Path, vocabulary: list[str]) -> None:
    from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
    from tokenizers.models import WordPiece

    ids = {piece: number for number, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(WordPiece(ids, unk_token="<unk>", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(token, ids[token]) for token in ("<s>", "</s>")],
    )
    tokenizer.add_special_tokens([*SPECIAL, "<mask>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>"}
    special = {f"{name}_token": token for name, token in names.items()}
    kind = {"tokenizer_class": "XLMRobertaTokenizer", "model_max_length": 64}
    mask = {"content": "<mask>", "lstrip": True, "normalized": False, "rstrip": False, "single_word": False}
    _write(
        folder / "tokenizer_config.json", {**kind, **special, "mask_token": {"__type": "AddedToken", **mask}}
    )


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
