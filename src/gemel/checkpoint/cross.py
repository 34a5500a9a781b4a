"""The folder of a cross-encoder: an encoder with a head that classifies pairs, as transformers saves it.

Read in two layouts: plain (config.json of a ...ForSequenceClassification), and with the modules.json of newer releases
of sentence-transformers. Written in the plain one, which transformers, sentence-transformers and gemel read.
Language models that answer whether a document fits a query (Qwen3-Reranker) are read, not written.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.architecture import architecture_of, first_class, key_set, model_types
from gemel.checkpoint.files import read_object, read_object_if_there
from gemel.checkpoint.folder import Checkpoint, read_checkpoint
from gemel.checkpoint.modules import read_side_steps
from gemel.checkpoint.pair_prompt import (
    FORMATS,
    AnswerTokens,
    PairPrompt,
    RerankerFormat,
    format_of,
    has_message_modality,
    read_chat_template,
)
from gemel.checkpoint.settings import refuse_unknown
from gemel.checkpoint.tokenizer import load_tokenizer
from gemel.checkpoint.write import TOKENIZER_FILES, check_target
from gemel.errors import ModelError
from gemel.files.atomic import atomic_folder, write_json

Activation = Literal["identity", "sigmoid", "softmax"]

_ACTIVATIONS: dict[str, Activation] = {"Identity": "identity", "Sigmoid": "sigmoid", "Softmax": "softmax"}
_PATHS = {"identity": "torch.nn.modules.linear.Identity", "sigmoid": "torch.nn.modules.activation.Sigmoid"}
ONE_OUTPUT = ("score",)
"""The label of a network with one output that has no name."""
_HEAD = "ForSequenceClassification"
_OLD_KEY = "sbert_ce_default_activation_function"
_TYPED = key_set(
    "Bert ConvBert DPRQuestionEncoder Deberta DebertaV2 Electra FNet LayoutLM Lxmert MobileBert NomicBert"
)
"""Tokenizers of transformers that give token types, without "Tokenizer" or "TokenizerFast" at the end."""
_TYPED_UP_TO_4 = key_set(
    "Albert BertJapanese Funnel Herbert PreTrained RemBert RoFormer Splinter SqueezeBert XLNet"
)
_TOKENIZERS = {
    **dict.fromkeys(("convbert", "ernie", "megatron-bert", "squeezebert"), "Bert"),
    "fnet": "FNet",
    "funnel": "Funnel",
    "mobilebert": "MobileBert",
    "nystromformer": "Albert",
    "rembert": "RemBert",
    "roformer": "RoFormer",
    "xlnet": "XLNet",
}
"""The tokenizer that transformers takes where tokenizer_config.json names none, for architectures that torch runs."""
_OLDER_THAN_5 = {"", "0", "1", "2", "3", "4"}


@dataclass(frozen=True, eq=False)
class CrossCheckpoint:
    """One cross-encoder as its folder describes it."""

    encoder: Checkpoint
    """The network without its head; `weights` has those of the head too."""
    labels: tuple[str, ...]
    """Names of the outputs, in their order."""
    activation: Activation
    """What turns an output into a score or a probability."""
    typed: bool
    """The network gets token types, which tell the two texts apart."""
    prompt: PairPrompt | None = None
    """What a decoder reads around the two texts; None: the tokenizer joins them."""
    answers: AnswerTokens | None = None
    """The answers of a language model that make its score; None: the network has a head for pairs."""

    @property
    def name(self) -> str:
        return self.encoder.name


def read_cross(folder: Path, *, name: str | None = None, template: str = "auto") -> CrossCheckpoint:
    """The cross-encoder in `folder`; `name` is what messages call it (default: the folder's own).

    `template`: a name of `FORMATS` instead of the checkpoint's own prompt, or "none".
    """
    encoder = read_checkpoint(folder, name=name, cross=True)
    if encoder.dense or encoder.normalize:
        raise ModelError(
            f"{encoder.name} has further modules after its network; only the network's own head is read"
        )
    known = format_of(encoder.name, encoder.config.get("model_type"), template)
    chat = template == "auto" and has_message_modality(encoder.network_folder)
    if encoder.default_prompt_name is not None and not chat:
        raise ModelError(
            f"{encoder.name} puts the prompt {encoder.default_prompt_name!r} before texts: not supported"
        )
    prompt = _chat_prompt(encoder) if chat else known.prompt if known else None
    answers = _answer_tokens(encoder, known)
    labels = _labels(encoder.config) if answers is None else ONE_OUTPUT
    activation = _activation(encoder, len(labels), known)
    typed = prompt is None and has_token_types(encoder)
    return CrossCheckpoint(encoder, labels, activation, typed, prompt, answers)


def _chat_prompt(encoder: Checkpoint) -> PairPrompt:
    """The chat template, with the default prompt of the checkpoint as its instruction."""
    name = encoder.default_prompt_name
    instruction = None if name is None else encoder.prompts[name]
    return read_chat_template(encoder.network_folder, encoder.tokenizer_settings, instruction)


def _answer_tokens(encoder: Checkpoint, known: RerankerFormat | None) -> AnswerTokens | None:
    """Of a language model: as its module LogitScore says, or the words of its known format."""
    has_modules = (encoder.folder / "modules.json").is_file()
    module = read_side_steps(encoder.folder).document.logit_score if has_modules else None
    if not first_class(encoder.config).endswith("ForCausalLM"):
        if module is not None:
            raise ModelError(
                f"{encoder.name} has a module LogitScore, but is not a language model (...ForCausalLM)"
            )
        return None
    if module is not None:
        return _logit_score(module)
    if known is None:
        raise ModelError(
            f"{encoder.name} is a language model, and nothing says how it scores a pair: it has no module LogitScore, "
            "and its name is not that of a known reranker. If it uses a known format, name it: "
            f"load_cross(model, template=...), one of {', '.join(FORMATS)}"
        )
    tokenizer = load_tokenizer(encoder)
    true, false = tokenizer.token_to_id(known.true), tokenizer.token_to_id(known.false)
    if true is None or false is None:
        raise ModelError(
            f"{encoder.name}: the tokenizer has no tokens {known.true!r} and {known.false!r}, between which a model of "
            "its format decides. Use another template"
        )
    return AnswerTokens(true, false)


def _logit_score(folder: Path) -> AnswerTokens:
    """config.json of a LogitScore."""
    path = folder / "config.json"
    config = read_object(path)
    refuse_unknown(path, config, ("true_token_id", "false_token_id", "module_input_name"))
    true, false = config.get("true_token_id"), config.get("false_token_id")
    if config.get("module_input_name", "causal_logits") != "causal_logits":
        raise ModelError(
            f"{path}: scores of {config['module_input_name']!r} are not supported, only of causal_logits"
        )
    for number in (true, false):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
            raise ModelError(f"{path}: the ids of tokens must be whole numbers, got {number!r:.60}")
    if true is None:
        raise ModelError(f"{path} names no 'true_token_id'")
    return AnswerTokens(true, false)


def has_token_types(checkpoint: Checkpoint) -> bool:
    """Whether transformers gives this network token types, which depends on the class of the tokenizer."""
    architecture = architecture_of(checkpoint.config)
    untyped = architecture is not None and not architecture.token_types
    types = checkpoint.config.get("type_vocab_size", architecture.default_types if architecture else 2)
    if untyped or types in (0, 1):
        return False
    settings = read_object_if_there(checkpoint.tokenizer_file.with_name("tokenizer_config.json"))
    inputs = settings.get("model_input_names")
    if isinstance(inputs, list):
        return "token_type_ids" in inputs
    kind = str(checkpoint.config.get("model_type"))
    default = architecture.class_prefix if architecture else _TOKENIZERS.get(kind, "")
    named = settings.get("tokenizer_class")
    tokenizer = str(named).removesuffix("Fast").removesuffix("Tokenizer") if named else default
    version = str(checkpoint.config.get("transformers_version") or "")
    # Some tokenizers stopped giving types in transformers 5; a checkpoint is run as it was trained.
    older = version.partition(".")[0] in _OLDER_THAN_5
    return tokenizer in _TYPED or (older and tokenizer in _TYPED_UP_TO_4)


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names in the order of the outputs; a config that names none has two, the default of transformers."""
    named = config.get("id2label")
    if named is None:
        count = config.get("num_labels", 2)
        named = {str(number): f"LABEL_{number}" for number in range(count if isinstance(count, int) else 0)}
    numbers = [str(number) for number in range(len(named))] if isinstance(named, dict) else []
    if not numbers or set(named) != set(numbers):
        raise ModelError(f"'id2label' in config.json must name the outputs 0, 1, ..., got {named!r}")
    return tuple(str(named[number]) for number in numbers)


def _activation(encoder: Checkpoint, outputs: int, known: RerankerFormat | None = None) -> Activation:
    """One output: as the checkpoint says, or a sigmoid. Several: probabilities, of one label or of each.

    `known`: the format of a model whose card says it, where no file does.
    """
    settings = read_object_if_there(encoder.folder / "config_sentence_transformers.json")
    inner = encoder.config.get("sentence_transformers")
    inside = inner.get("activation_fn") if isinstance(inner, dict) else None
    named = settings.get("activation_fn") or inside or encoder.config.get(_OLD_KEY)
    path, _, word = str(named).rpartition(".")
    if named is not None and (path.partition(".")[0] != "torch" or word not in _ACTIVATIONS):
        raise ModelError(
            f"{encoder.name} asks for the activation {named!r}, which is not supported: no code of a checkpoint runs. "
            f"Known, of torch.nn: {', '.join(_ACTIVATIONS)}"
        )
    activation = _ACTIVATIONS[word] if named is not None else None
    if outputs > 1:
        several = encoder.config.get("problem_type") == "multi_label_classification"
        return "sigmoid" if activation == "sigmoid" or several else "softmax"
    if activation == "softmax":
        raise ModelError(f"{encoder.name} asks for a softmax over its one output, which is always 1")
    default: Activation = known.activation if known is not None and not settings else "sigmoid"
    return activation or default


def write_cross(
    folder: Path | str,
    *,
    source: Checkpoint,
    weights: Mapping[str, NDArray[Any]],
    labels: Sequence[str],
    activation: Activation,
    config: Mapping[str, Any] | None = None,
    max_length: int | None = None,
    typed: bool | None = None,
    overwrite: bool = False,
) -> Path:
    """Save a cross-encoder: all its `weights` by their names in transformers, and the tokenizer of `source`.

    `config`, `max_length` and `typed` are those of `source` where they are not given. The folder is written
    atomically. Only a folder with a model is ever overwritten, and only with `overwrite`.
    """
    from safetensors.numpy import save_file

    target = Path(folder).absolute()
    check_target(target, source, overwrite)
    config = _config(source.config if config is None else config, labels, activation)
    arrays = {name: np.array(array, order="C") for name, array in weights.items()}
    with atomic_folder(target) as working:
        write_json(working / "config.json", config)
        save_file(arrays, working / "model.safetensors", metadata={"format": "pt"})
        typed = has_token_types(source) if typed is None else typed
        _write_tokenizer(source, working, max_length or source.max_length, typed)
    return Path(folder)


def _config(config: Mapping[str, Any], labels: Sequence[str], activation: Activation) -> dict[str, Any]:
    """config.json of the classifier: its class, its labels, and the keys of sentence-transformers."""
    kind = config.get("model_type")
    named = [name for name in config.get("architectures") or () if str(name).endswith(_HEAD)]
    architecture = architecture_of(config)
    if architecture is None and not named:
        raise ModelError(
            f"a cross-encoder of the architecture {kind!r} cannot be saved. Known: {', '.join(model_types())}"
        )
    several = {"softmax": "single_label_classification", "sigmoid": "multi_label_classification"}
    one = {"identity": "regression"}  # a sigmoid is the default everywhere
    dropped = ("torch_dtype", "num_labels", "problem_type", _OLD_KEY)
    problem = (several if len(labels) > 1 else one).get(activation)
    path = _PATHS["identity" if len(labels) > 1 else activation]
    return {
        **{key: value for key, value in config.items() if key not in dropped},
        **({"problem_type": problem} if problem else {}),
        "architectures": [f"{architecture.class_prefix}{_HEAD}"] if architecture else named,
        "dtype": "float32",
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
        "sentence_transformers": {"activation_fn": path},
    }


def _write_tokenizer(source: Checkpoint, folder: Path, max_length: int | None, typed: bool) -> None:
    """The files of the tokenizer, with the length and the inputs in its settings."""
    for pattern in TOKENIZER_FILES:
        for path in sorted(source.tokenizer_file.parent.glob(pattern)):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
    if source.lowercase:  # this layout has no file for it, so it goes into the tokenizer itself
        load_tokenizer(source).save(str(folder / "tokenizer.json"))
    settings = dict(read_object_if_there(folder / "tokenizer_config.json"))
    names = ["input_ids", "token_type_ids", "attention_mask"]
    settings["model_input_names"] = names if typed else [names[0], names[2]]
    if max_length is not None:
        settings["model_max_length"] = max_length
    write_json(folder / "tokenizer_config.json", settings)
