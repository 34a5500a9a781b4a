"""Tiny random cross-encoders of every architecture, made with transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny import ARCHITECTURES, SPECIAL_TOKENS, randomize, tiny_tokenizer

HEADED = sorted(set(ARCHITECTURES) - {"embedding_gemma2_text", "mt5", "t5", "umt5"})
"""Those whose head for pairs gemel reads."""
TYPED = {"albert", "bert", "deberta", "electra", "nomic_bert"}


def tiny_cross(
    folder: Path,
    model_type: str = "bert",
    *,
    labels: int = 1,
    max_length: int = 48,
    typed: bool | None = None,
    seed: int = 0,
    **settings: Any,
) -> Path:
    """A ...ForSequenceClassification of random numbers with its tokenizer; `settings` go to its config."""
    import transformers

    name, own = ARCHITECTURES[model_type]
    config = getattr(transformers, name)(**{**own, "num_labels": labels, **settings})
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    randomize(model, seed)
    model.save_pretrained(folder)
    _write_tokenizer(folder, max_length, model_type in TYPED if typed is None else typed)
    return folder


def _write_tokenizer(folder: Path, max_length: int, typed: bool) -> None:
    """With token types [CLS] a [SEP] b [SEP] as BERT has it, without them [CLS] a [SEP] [SEP] b [SEP] as RoBERTa."""
    path = folder / "tokenizer.json"
    tiny_tokenizer(path)
    if not typed:
        from tokenizers import Tokenizer, processors

        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] [SEP] $B [SEP]",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
        )
        tokenizer.save(str(path))
    names = ["input_ids", *(["token_type_ids"] if typed else []), "attention_mask"]
    special = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL_TOKENS, strict=True))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_input_names": names}))


def their_logits(folder: Path, left: list[str], right: list[str], max_length: int | None = None) -> Any:
    """What transformers gives for each pair alone."""
    import torch
    import transformers

    # AutoTokenizer would not follow the tokenizer.json of a Qwen2: it has rules of its own for them.
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    reader = transformers.PreTrainedTokenizerFast if kind == "qwen2" else transformers.AutoTokenizer
    tokenizer = reader.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    rows = []
    with torch.no_grad():
        for a, b in zip(left, right, strict=True):
            tokens = tokenizer(
                [a], [b], truncation="longest_first", max_length=max_length, return_tensors="pt"
            )
            rows.append(model(**tokens).logits[0])
    return torch.stack(rows).numpy()


CHAT_TEMPLATE = """{%- set instruction = messages | selectattr("role", "eq", "system") | map(attribute="content") \
| first | default("how do i reset") -%}
{%- set query_text = messages | selectattr("role", "eq", "query") | map(attribute="content") | first -%}
[CLS] is the rain on the street: {{ instruction }}
query: {{ query_text }}
document: {{ (messages | selectattr('role', 'eq', 'document') | first).content }}[SEP]
answer

"""
"""In the form of Qwen3-Reranker, with words of the tiny tokenizer."""


def tiny_reranker(
    folder: Path,
    model_type: str = "qwen3",
    *,
    tied: bool = False,
    modules: bool = True,
    false: str | None = "is",
    seed: int = 0,
    **settings: Any,
) -> Path:
    """A ...ForCausalLM of random numbers, which answers "was" or `false`; `modules`: with the files of
    sentence-transformers, otherwise plain."""
    import transformers

    name, own = ARCHITECTURES[model_type]
    config = getattr(transformers, name)(**{**own, "tie_word_embeddings": tied, **settings})
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomize(model, seed)
    model.save_pretrained(folder)
    _write_tokenizer(folder, 64, typed=False)
    if modules:
        _write_chat(folder, false)
    return folder


def _write_chat(folder: Path, false: str | None) -> None:
    """The files of sentence-transformers around a language model."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    package = "sentence_transformers"
    listed = [
        {"idx": 0, "name": "0", "path": "", "type": f"{package}.base.modules.transformer.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_LogitScore",
            "type": f"{package}.cross_encoder.modules.logit_score.LogitScore",
        },
    ]
    output = {"method": "forward", "method_output_name": "logits"}
    written = {
        "modules.json": listed,
        "1_LogitScore/config.json": {
            "true_token_id": tokenizer.token_to_id("was"),
            "false_token_id": None if false is None else tokenizer.token_to_id(false),
        },
        "sentence_bert_config.json": {
            "transformer_task": "text-generation",
            "modality_config": {"text": output, "message": {**output, "format": "flat"}},
            "module_output_name": "causal_logits",
        },
        "config_sentence_transformers.json": {
            "model_type": "CrossEncoder",
            "activation_fn": "torch.nn.modules.linear.Identity",
            "prompts": {},
            "default_prompt_name": None,
        },
    }
    (folder / "1_LogitScore").mkdir(exist_ok=True)
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def their_answers(folder: Path, texts: list[str], true: str, false: str | None) -> Any:
    """The logit of `true` minus that of `false` after each text, as transformers gives it for the text alone."""
    import torch
    import transformers

    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    rows = []
    with torch.no_grad():
        for text in texts:
            tokens = tokenizer([text], add_special_tokens=False, return_tensors="pt")
            last = model(input_ids=tokens["input_ids"]).logits[0, -1]
            ids = [tokenizer.convert_tokens_to_ids(word) for word in (true, false) if word is not None]
            rows.append(last[ids[0]] - last[ids[1]] if len(ids) > 1 else last[ids[0]])
    return torch.stack(rows).numpy()
