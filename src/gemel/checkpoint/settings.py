"""The settings of a checkpoint: config_sentence_transformers.json, and those of its transformer (config.json,
sentence_bert_config.json, tokenizer_config.json), merged as sentence-transformers merges them.

A setting that could change vectors is followed or refused, never skipped. The lists at the end have the keys that are
followed and those that change nothing; any other key is refused where it has a value (not null, false or empty). A key
is added when a published checkpoint needs it; keys that one architecture has are in its `Architecture`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gemel.checkpoint.architecture import architecture_of, key_set, native_config, positive_or_none
from gemel.checkpoint.files import has_safetensors, read_object, read_object_if_there
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
    """The merged settings of a transformer."""

    config: Mapping[str, Any]
    """config.json, with `config_args` over it."""
    tokenizer: Mapping[str, Any]
    """tokenizer_config.json, with `tokenizer_args` over it."""
    lowercase: bool
    max_length: int | None
    """As requested by the files; the network may have fewer positions."""
    truncation_side: Side | None
    """The end at which a long text loses tokens; None: as tokenizer.json says, or right."""


def read_transformer_settings(
    folder: Path,
    *,
    cross: bool,
    masked: bool = False,
    config: Mapping[str, Any] | None = None,
    extra: Collection[str] = (),
) -> TransformerSettings:
    """The settings of the transformer in `folder`; `cross`: of a cross-encoder's; `masked`: with a head over words.

    `config`: the config.json of the base model, where the folder has an adapter and none of its own. `extra`: keys of
    sentence_bert_config.json that the caller follows.
    """
    path, content = _own_settings(folder)
    refuse_unknown(path, content, _TRANSFORMER, _TRANSFORMER_HARMLESS, extra)
    _check_task(folder, content, cross, masked)
    _check_modality(path, content)
    _refuse_adapter(folder)
    arguments = _arguments(path, content, "model_args", "model_kwargs")
    refuse_unknown(path, arguments, _LOADING_ARGUMENTS, where="model_args")
    config = _config(folder, path, _arguments(path, content, "config_args", "config_kwargs"), config)
    tokenizer_path = folder / "tokenizer_config.json"
    tokenizer = read_object_if_there(tokenizer_path)
    if architecture_of(config) is not None:  # other networks' tokenizers have many more keys
        refuse_unknown(tokenizer_path, tokenizer, _TOKENIZER, _TOKENIZER_HARMLESS, _token_names(tokenizer))
    own = _arguments(path, content, "tokenizer_args", "processor_kwargs")
    allowed = (_TOKENIZER, _TOKENIZER_HARMLESS, _LOADING_ARGUMENTS)
    refuse_unknown(path, own, *allowed, where="tokenizer_args")
    merged = {**tokenizer, **own}
    lengths = (
        _processing(path, content).get("max_length"),
        own.get("model_max_length"),
        content.get("max_seq_length"),
        tokenizer.get("model_max_length"),
    )
    return TransformerSettings(
        config=config,
        tokenizer=merged,
        lowercase=content.get("do_lower_case") is True,
        max_length=next((length for length in map(_length, lengths) if length is not None), None),
        truncation_side=_side(tokenizer_path, merged.get("truncation_side")),
    )


def _token_names(tokenizer: Mapping[str, Any]) -> set[str]:
    """Keys that name a special token (Gemma: "boi_token"); tokenizer.json has the tokens themselves."""
    return {
        key for key, value in tokenizer.items() if key.endswith("_token") and isinstance(value, str | dict)
    }


def _own_settings(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """sentence_bert_config.json, or the same file under the name of another architecture."""
    paths = [folder / f"sentence_{name}_config.json" for name in _FILES]
    path = next((path for path in paths if path.is_file()), paths[0])
    return path, read_object(path) if path.is_file() else {}


def _check_task(folder: Path, content: Mapping[str, Any], cross: bool, masked: bool) -> None:
    known = ("sequence-classification", "text-generation") if cross else ("feature-extraction",)
    known = ("fill-mask",) if masked else known
    task = content.get("transformer_task", known[0])
    if task not in known:
        raise ModelError(f"{folder}: a transformer for {task!r} is not supported here")


def _check_modality(path: Path, content: Mapping[str, Any]) -> None:
    """Refuse anything but texts as input and the last hidden states as output."""
    if content.get("transformer_task") in ("sequence-classification", "text-generation", "fill-mask"):
        return
    output = content.get("module_output_name")
    if output not in (None, "token_embeddings"):
        raise ModelError(
            f"{path}: the key 'module_output_name' asks for {output!r}, only 'token_embeddings' is read"
        )
    modality = content.get("modality_config")
    # Beside texts a model may encode images and sounds, of which gemel reads nothing.
    if modality not in (None, {}) and not (
        isinstance(modality, dict) and modality.get("text") == _TEXT_MODALITY
    ):
        raise ModelError(
            f"{path}: the key 'modality_config' asks for {modality!r}; only texts to last hidden states are read: "
            f"{{'text': {_TEXT_MODALITY}}}"
        )


def _refuse_adapter(folder: Path) -> None:
    """Refuse an adapter next to full weights: sentence-transformers would run its base model with the adapter."""
    path = folder / "adapter_config.json"
    if path.is_file() and has_safetensors(folder):
        raise ModelError(
            f"{path}: an adapter (LoRA) is next to full weights, and gemel would run the weights without it. Merge it "
            "into them (merge_and_unload() of peft) and save the model, or remove adapter_config.json"
        )


def _arguments(path: Path, content: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """The object under the first of `names` (an older and a newer one) that exists."""
    for name in names:
        value = content.get(name)
        if value is not None and not isinstance(value, dict):
            raise ModelError(f"{path}: the key {name!r} must be an object, got {value!r}")
        if value:
            return value
    return {}


def _config(
    folder: Path, path: Path, arguments: Mapping[str, Any], config: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    config_path = folder / "config.json"
    if config is None:
        config = read_object_if_there(config_path)
        refuse_unknown_config(config_path, config)
        config = native_config(config)
    own = {key: value for key, value in arguments.items() if key not in _LOADING_ARGUMENTS}
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
    refuse_unknown(path, renamed, architecture.config_keys, _CONFIG_HARMLESS, where="config_args")
    return {**{key: value for key, value in config.items() if key not in aliases}, **renamed}


def _processing(path: Path, content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of processing_kwargs for texts, checked."""
    kinds = _arguments(path, content, "processing_kwargs")
    for kind, arguments in kinds.items():
        if kind in ("audio", "image", "video", "chat_template"):
            continue  # these are not read
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
    """A number of tokens; None: absent, or no limit."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _WITHOUT_LIMIT:
        return None
    return int(value) or None


def read_settings(folder: Path, *, sparse: bool = False, late: bool = False) -> Mapping[str, Any]:
    """config_sentence_transformers.json, checked; other kinds than sentence and cross-encoders are refused here.

    `sparse`: that of a sparse encoder, which has one setting more; `late`: of a model for late interaction.
    """
    path = folder / "config_sentence_transformers.json"
    settings = read_object_if_there(path)
    kind = settings.get("model_type", "SentenceTransformer")
    kinds = (*["SparseEncoder"] * sparse, *(LATE_TYPES if late else ()))
    if kind not in ("SentenceTransformer", "CrossEncoder", *kinds):
        raise ModelError(f"{folder} is a {kind}, not a sentence encoder. Give a SentenceTransformer model")
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise ModelError(f"{path}: 'prompts' must be an object of names to texts")
    if default is not None and default not in list(prompts):
        raise ModelError(f"{path}: default prompt {default!r} is not among the prompts {sorted(prompts)}")
    dims = ("truncate_dim", *["max_active_dims"] * sparse)
    more = (*dims, *(LATE_SETTINGS if late else ()))
    refuse_unknown(path, settings, _SETTINGS_KEYS, _SETTINGS_HARMLESS, more)
    for key in dims:
        if (dim := settings.get(key)) is not None and positive_or_none(dim) is None:
            raise ModelError(f"{path}: {key!r} must be a whole number of at least 1, got {dim!r}")
    return settings


def refuse_unknown(path: Path, content: Mapping[str, Any], *known: Collection[str], where: str = "") -> None:
    """Raise an error for the first key of `content` that has a value and is in none of `known`.

    Keys that start with an underscore are private notes of the program that wrote the file, and dropout has no effect
    on a trained model. `where`: the key that contains `content`.
    """
    for key, value in content.items():
        if key.startswith("_") or "dropout" in key or value is False or value in (None, "", [], {}):
            continue
        if not any(key in names for names in known):
            inside = f" in {where!r}" if where else ""
            raise ModelError(
                f"{path}: the key {key!r}{inside} ({value!r:.60}) is not known to gemel, and could change vectors. "
                "Remove it from the file if it changes nothing, or use a newer gemel"
            )


def refuse_unknown_config(path: Path, config: Mapping[str, Any]) -> None:
    """As `refuse_unknown`, for the config.json of an architecture that gemel reads itself."""
    config = native_config(config)
    architecture = architecture_of(config)
    if architecture is None:
        return
    # BERT has no key for the width of its embeddings, but such a width.
    pairs = {"embedding_size": "hidden_size", **architecture.aliases}
    same = {key for key, name in pairs.items() if config.get(key) == config.get(name)}
    refuse_unknown(path, config, architecture.config_keys, _CONFIG_HARMLESS, same)


# The keys of the files: those that gemel follows, and those that change no vector.

_TRANSFORMER = key_set(
    "max_seq_length do_lower_case transformer_task model_args model_kwargs tokenizer_args",
    "processor_kwargs config_args config_kwargs processing_kwargs modality_config module_output_name",
)
"""sentence_bert_config.json: followed, or refused with a reason of their own."""

_TRANSFORMER_HARMLESS = frozenset({"unpad_inputs", "backend", "cache_dir", "model_name_or_path"})
"""sentence_bert_config.json: how it is computed, and names."""

_SETTINGS_KEYS = frozenset(
    {"model_type", "prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim"}
)
"""config_sentence_transformers.json: followed."""

_SETTINGS_HARMLESS = frozenset({"__version__", "requirements", "activation_fn", "dtype", "torch_dtype"})
"""config_sentence_transformers.json: versions, and `activation_fn`, which `checkpoint/cross.py` reads."""

LATE_TYPES = ("ColBERT", "MultiVectorEncoder")
"""`model_type` of models for late interaction in config_sentence_transformers.json: PyLate, sentence-transformers."""

LATE_SETTINGS = key_set(
    "query_prefix document_prefix query_length document_length attend_to_expansion_tokens skiplist_words",
    "do_query_expansion",
)
"""config_sentence_transformers.json of PyLate: followed by `encoder/late.py`."""

LATE_TRANSFORMER = key_set("query_length document_length query_expansion")
"""sentence_bert_config.json of a MultiVectorEncoder: followed by `encoder/late.py`."""

_LOADING_ARGUMENTS = key_set(
    "add_pooling_layer attn_implementation backend cache_dir device_map dtype export file_name",
    "local_files_only low_cpu_mem_usage output_attentions output_hidden_states provider revision token",
    "torch_dtype trust_remote_code use_cache use_fast use_memory_efficient_attention use_safetensors",
)
"""Inside model_args, config_args and tokenizer_args: where files come from and how numbers are stored."""

_TOKENIZER = key_set(
    "do_lower_case strip_accents tokenize_chinese_chars add_prefix_space keep_accents",
    "split_special_tokens truncation_side model_max_length model_input_names tokenizer_class",
    "add_bos_token add_eos_token added_tokens_decoder additional_special_tokens extra_special_tokens",
    "model_specific_special_tokens",
)
"""tokenizer_config.json: followed, or checked against tokenizer.json."""

_TOKENIZER_HARMLESS = key_set(
    "bos_token cls_token eos_token mask_token pad_token sep_token unk_token",
    "bos_token_id cls_token_id eos_token_id mask_token_id pad_token_id sep_token_id unk_token_id",
    # Names of files; versions; settings of chats and decoders.
    "auto_map backend chat_template clean_up_tokenization_spaces decoder do_basic_tokenize errors",
    "extra_ids full_tokenizer_file init_inputs is_local language legacy local_files_only mask_token_type_id",
    "max_len max_len_single_sentence max_length model_id model_type name_or_path never_split",
    "pad_to_multiple_of pad_token_type_id padding padding_side processor_class remove_space response_schema",
    "return_token_type_ids sp_model_kwargs spaces_between_special_tokens special_tokens_map_file",
    "split_by_punct stride tokenizer_file tokenizer_type transformers_version trim_offsets",
    "truncation truncation_strategy unk_id use_default_system_prompt use_fast vocab_file vocab_size",
    "vocab_type wordpieces_prefix",
)
"""tokenizer_config.json: also in tokenizer.json, which gemel reads, or without an effect on ids."""

_CONFIG_HARMLESS = key_set(
    # Names, versions, files.
    "architectures author auto_map base_model dataset datasets description dtype finetuning_task",
    "language library_name license model_max_length model_name model_type name name_or_path revision",
    "tags task_specific_params tokenizer_class torch_dtype transformers_version version",
    # How it is computed, and what is returned besides the vectors.
    "attn_implementation chunk_size_feed_forward compile deterministic_flash_attn fused_bias_fc",
    "gradient_checkpointing onnx_export output_attentions output_hidden_states output_past",
    "reference_compile repad_logits_with_grad return_dict torchscript unpad_inputs use_bfloat16",
    "use_cache use_flash_attn use_memory_efficient_attention xla_device",
    # Training.
    "classifier_dropout initializer_cutoff_factor initializer_factor initializer_range",
    "sparse_pred_ignore_index sparse_prediction",
    # Heads and adapters next to the encoder, and dimensions that it was trained for.
    "adapters custom_heads directionality emb_pooler id2label is_matryoshka label2id",
    "matryoshka_dimensions num_labels pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers",
    "pooler_size_per_head pooler_type prediction_heads problem_type",
    "sbert_ce_default_activation_function sentence_transformers summary_activation",
    "summary_first_dropout summary_last_dropout summary_proj_to_labels summary_type summary_use_proj",
    "tie_encoder_decoder tie_weights tie_weights_ tie_word_embeddings",
    # Special tokens; tokenizer.json has them.
    "bos_token_id cls_token_id decoder_start_token_id eos_token_id forced_bos_token_id",
    "forced_eos_token_id mask_token_id prefix sep_token_id unk_token_id",
    # Generation of text, which older releases of transformers write into every config.
    "bad_words_ids begin_suppress_tokens cross_attention_hidden_size diversity_penalty do_sample",
    "early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty length_penalty",
    "max_length min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences",
    "output_scores remove_invalid_values repetition_penalty return_dict_in_generate suppress_tokens",
    "temperature tf_legacy_loss top_k top_p typical_p",
)
"""config.json of an encoder, whatever its architecture: nothing here changes a hidden state."""
