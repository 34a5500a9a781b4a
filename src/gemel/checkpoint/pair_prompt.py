"""What a language model that reranks reads for a pair of texts, and which of its answers are counted.

The prompt is in the chat template of the checkpoint, which newer releases of sentence-transformers fill with a query
and a document, or it is one of the formats that model cards describe. A chat template is a program (Jinja): it is never
run. Those of rerankers only insert texts, and are read as text with gaps; anything else is refused.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from gemel.checkpoint.files import read_object_if_there
from gemel.errors import InputError, ModelError


class Gap(Enum):
    """Where a text of the pair is inserted."""

    QUERY = "query"
    DOCUMENT = "document"


Segment = tuple[str | Gap, ...]


@dataclass(frozen=True)
class PairPrompt:
    """The prompt as texts and gaps. Each segment is tokenized on its own."""

    segments: tuple[Segment, ...]

    def filled(self, query: str, document: str) -> str:
        """The whole text for one pair."""
        texts = {Gap.QUERY: query, Gap.DOCUMENT: document}
        parts = [part for segment in self.segments for part in segment]
        return "".join(part if isinstance(part, str) else texts[part] for part in parts)


@dataclass(frozen=True)
class AnswerTokens:
    """The score is the logit of the token `true` after the prompt, minus that of `false` where there is one."""

    true: int
    false: int | None


@dataclass(frozen=True)
class RerankerFormat:
    """How the card of a model says that its pairs are scored."""

    prompt: PairPrompt
    true: str
    """The word for a document that answers the query."""
    false: str
    activation: Literal["identity", "sigmoid"]
    """What the card applies to the difference of the two logits."""


_QWEN3 = RerankerFormat(
    PairPrompt(
        (
            (
                "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
                'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
                "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: ",
                Gap.QUERY,
                "\n<Document>: ",
                Gap.DOCUMENT,
                "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
            ),
        )
    ),
    "yes",
    "no",
    "sigmoid",
)

_MXBAI = RerankerFormat(
    PairPrompt(
        (
            (
                "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
                "<|im_start|>user\n",
            ),
            ("query: ", Gap.QUERY),
            ("\n",),
            ("document: ", Gap.DOCUMENT),
            ("\n",),
            (
                "You are a search relevance expert who evaluates how well documents match search queries. For each "
                "query-document pair, carefully analyze the semantic relationship between them, then provide your "
                "binary relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:",
            ),
            ("<|im_end|>\n<|im_start|>assistant\n",),
        )
    ),
    "1",
    "0",
    "identity",
)

FORMATS = {"qwen3-reranker": _QWEN3, "mxbai-rerank-v2": _MXBAI}
"""By name: those of Qwen/Qwen3-Reranker-* (arXiv 2506.05176) and mixedbread-ai/mxbai-rerank-*-v2 (arXiv 2506.03487)."""

_NAMED = {
    "qwen3-reranker": ("qwen3", r"qwen3[-_.]?reranker"),
    "mxbai-rerank-v2": ("qwen2", r"mxbai[-_.]?rerank.*v2"),
}
"""Of each: the `model_type`, and how the model is called."""


def format_of(name: str, model_type: object, requested: str) -> RerankerFormat | None:
    """The format that was requested, "none", or with "auto" the one that the name of the model tells."""
    if requested == "none":
        return None
    if requested != "auto":
        if requested not in FORMATS:
            known = ", ".join(("auto", "none", *FORMATS))
            raise InputError(f"template must be one of {known}, got {requested!r}")
        return FORMATS[requested]
    named = (
        key for key, (kind, words) in _NAMED.items() if kind == model_type and re.search(words, name.lower())
    )
    return next((FORMATS[key] for key in named), None)


# Chat templates.


def read_chat_template(folder: Path, tokenizer: Mapping[str, Any], instruction: str | None) -> PairPrompt:
    """The chat template of a checkpoint: chat_template.jinja, or the one in the settings of its tokenizer.

    `instruction`: the checkpoint's default prompt, which takes the place of the system message.
    """
    _check_form(folder)
    path = folder / "chat_template.jinja"
    try:
        given = path.read_text(encoding="utf-8") if path.is_file() else tokenizer.get("chat_template")
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}. Fetch the checkpoint again") from error
    if not isinstance(given, str):
        raise ModelError(
            f"{folder} asks for pairs in the form of a chat, but has no chat_template.jinja and no single "
            "'chat_template' in tokenizer_config.json. Fetch the checkpoint again"
        )
    return parse_chat_template(given, where=str(folder), instruction=instruction)


def has_message_modality(folder: Path) -> bool:
    """Whether sentence-transformers would fill the chat template: 'message' is in `modality_config`."""
    return _object(folder, "modality_config", "message") is not None


def _check_form(folder: Path) -> None:
    """Refuse messages in other forms than plain texts, and another chat template than the default one."""
    form = (_object(folder, "modality_config", "message") or {}).get("format", "flat")
    named = (_object(folder, "processing_kwargs", "chat_template") or {}).get("chat_template")
    for key, value, known in (("format", form, "flat"), ("chat_template", named, None)):
        if value != known:
            path = folder / "sentence_bert_config.json"
            raise ModelError(
                f"{path}: the key {key!r} asks for {value!r:.60}, which is not followed in pairs of texts"
            )


def _object(folder: Path, *keys: str) -> Mapping[str, Any] | None:
    """The object under these keys of sentence_bert_config.json."""
    content: object = read_object_if_there(folder / "sentence_bert_config.json")
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content if isinstance(content, dict) else None


_LONGEST = 2**16
"""Characters of a chat template."""

_TAG = re.compile(r"(\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\})", re.DOTALL)
_SET = re.compile(r"set\s+(\w+)\s*=\s*(.+)", re.DOTALL)
_TEXT = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'"
_ROLE = r"""messages\s*\|\s*selectattr\(\s*["']role["']\s*,\s*["'](?:eq|equalto|==)["']\s*,\s*["'](\w+)["']\s*\)"""
_CONTENTS = re.compile(
    _ROLE + r"""\s*\|\s*map\(\s*attribute\s*=\s*["']content["']\s*\)\s*\|\s*first"""
    rf"""(?:\s*\|\s*default\(\s*({_TEXT})\s*\))?""",
    re.DOTALL,
)
_FIRST = re.compile(rf"\(\s*{_ROLE}\s*\|\s*first\s*\)\.content()", re.DOTALL)


def parse_chat_template(text: str, *, where: str, instruction: str | None = None) -> PairPrompt:
    """The texts and gaps of a chat template; one that does more than insert messages is refused."""
    if len(text) > _LONGEST:
        raise ModelError(
            f"the chat template of {where} has {len(text):,} characters; at most {_LONGEST:,} are read"
        )
    variables: dict[str, str | Gap] = {}
    parts: list[str | Gap] = []
    for piece in _trimmed(_TAG.split(text.removesuffix("\n"))):
        inner = piece[2:-2].strip("-+").strip() if _TAG.fullmatch(piece) else None
        if inner is None:
            parts.append(piece)
        elif piece.startswith("{{"):
            value = variables.get(inner)
            parts.append(_value(inner, instruction, where) if value is None else value)
        elif piece.startswith("{%"):
            assigned = _SET.fullmatch(inner)
            if assigned is None:
                raise _refused(inner, where)
            variables[assigned[1]] = _value(assigned[2].strip(), instruction, where)
    gaps = [part for part in parts if isinstance(part, Gap)]
    if sorted(gap.value for gap in gaps) != ["document", "query"]:
        raise ModelError(
            f"the chat template of {where} must insert one query and one document, but inserts "
            f"{', '.join(gap.value for gap in gaps) or 'neither'}: it is not one of a reranker"
        )
    return PairPrompt((tuple(part for part in parts if part != ""),))


def _trimmed(pieces: list[str]) -> list[str]:
    """Texts and tags in turn, the texts without the spaces that Jinja removes around tags.

    As transformers sets it up: also the spaces before a statement on its line and the newline after it.
    """
    texts = list(pieces)
    for at in range(1, len(texts), 2):
        tag = texts[at]
        statement = not tag.startswith("{{")
        if tag[2] == "-":
            texts[at - 1] = texts[at - 1].rstrip()
        elif statement and tag[2] != "+":
            line, newline, indent = texts[at - 1].rpartition("\n")
            if not indent.strip(" \t") and (newline or at == 1):
                texts[at - 1] = line + newline
        if tag[-3] == "-":
            texts[at + 1] = texts[at + 1].lstrip()
        elif statement and tag[-3] != "+":
            texts[at + 1] = texts[at + 1].removeprefix("\n")
    return texts


def _value(expression: str, instruction: str | None, where: str) -> str | Gap:
    """A message by its role: a gap, or the text of the instruction."""
    found = _CONTENTS.fullmatch(expression) or _FIRST.fullmatch(expression)
    if found is None:
        raise _refused(expression, where)
    role, default = found[1], found[2]
    if role in (Gap.QUERY.value, Gap.DOCUMENT.value):
        return Gap(role)
    if role == "system" and instruction is not None:
        return instruction
    return str(ast.literal_eval(default)) if default else ""


def _refused(inner: str, where: str) -> ModelError:
    known = ", ".join(FORMATS)
    return ModelError(
        f"the chat template of {where} has a step that is not followed, because no code of a checkpoint runs: "
        f"{inner[:160]!r}. If the model uses a known format, name it: load_cross(model, template=...), one of {known}"
    )
