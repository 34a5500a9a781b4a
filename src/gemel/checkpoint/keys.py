"""The keys of a checkpoint's JSON files: those that gemel follows, and those that change no vector.

A key that is in neither list is refused where its value says something (not null, false or empty): because of it,
sentence-transformers might compute other vectors. One table per file; a key is added here when a published checkpoint
needs it. Keys that only one architecture has are in its `Architecture`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from gemel.checkpoint.architecture import architecture_of
from gemel.errors import ModelError

SETTINGS = frozenset({"model_type", "prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim"})
"""config_sentence_transformers.json: followed."""

SETTINGS_HARMLESS = frozenset({"__version__", "requirements", "activation_fn", "dtype", "torch_dtype"})
"""config_sentence_transformers.json: versions, and `activation_fn`, which `checkpoint/cross.py` reads."""

TRANSFORMER = frozenset(
    {
        "max_seq_length",
        "do_lower_case",
        "transformer_task",
        "model_args",
        "model_kwargs",
        "tokenizer_args",
        "processor_kwargs",
        "config_args",
        "config_kwargs",
        "processing_kwargs",
        "modality_config",
        "module_output_name",
    }
)
"""sentence_bert_config.json: followed, or refused with a reason of their own."""

TRANSFORMER_HARMLESS = frozenset({"unpad_inputs", "backend", "cache_dir", "model_name_or_path"})
"""sentence_bert_config.json: how the work is done, and names."""

POOLING = frozenset(
    {
        "embedding_dimension",
        "word_embedding_dimension",
        "pooling_mode",
        "include_prompt",
        "pooling_mode_cls_token",
        "pooling_mode_max_tokens",
        "pooling_mode_mean_tokens",
        "pooling_mode_mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens",
        "pooling_mode_lasttoken",
    }
)
"""config.json of a Pooling."""

DENSE = frozenset(
    {
        "in_features",
        "out_features",
        "bias",
        "activation_function",
        "module_input_name",
        "module_output_name",
        "use_residual",
    }
)
"""config.json of a Dense."""

NORMALIZE = frozenset({"module_input_name", "module_output_name"})
"""config.json of a Normalize."""

LOADING_ARGUMENTS = frozenset(
    {
        "add_pooling_layer",
        "attn_implementation",
        "backend",
        "cache_dir",
        "device_map",
        "dtype",
        "export",
        "file_name",
        "local_files_only",
        "low_cpu_mem_usage",
        "output_attentions",
        "output_hidden_states",
        "provider",
        "revision",
        "token",
        "torch_dtype",
        "trust_remote_code",
        "use_cache",
        "use_fast",
        "use_memory_efficient_attention",
        "use_safetensors",
    }
)
"""Inside model_args, config_args and tokenizer_args: where files come from and how numbers are stored."""

TOKENIZER = frozenset(
    {
        "do_lower_case",
        "strip_accents",
        "tokenize_chinese_chars",
        "add_prefix_space",
        "keep_accents",
        "split_special_tokens",
        "truncation_side",
        "model_max_length",
        "model_input_names",
        "tokenizer_class",
        "add_bos_token",
        "add_eos_token",
        "added_tokens_decoder",
        "additional_special_tokens",
        "extra_special_tokens",
    }
)
"""tokenizer_config.json: followed, or checked against tokenizer.json."""

TOKENIZER_HARMLESS = frozenset(
    {
        *(f"{name}_token" for name in ("bos", "cls", "eos", "mask", "pad", "sep", "unk")),
        *(f"{name}_token_id" for name in ("bos", "cls", "eos", "mask", "pad", "sep", "unk")),
        # Names of files and places; versions; what a chat or a decoder reads.
        "auto_map",
        "backend",
        "chat_template",
        "clean_up_tokenization_spaces",
        "decoder",
        "do_basic_tokenize",
        "errors",
        "full_tokenizer_file",
        "init_inputs",
        "is_local",
        "language",
        "legacy",
        "local_files_only",
        "mask_token_type_id",
        "max_len",
        "max_len_single_sentence",
        "max_length",
        "model_id",
        "model_type",
        "name_or_path",
        "never_split",
        "pad_to_multiple_of",
        "pad_token_type_id",
        "padding",
        "padding_side",
        "processor_class",
        "remove_space",
        "return_token_type_ids",
        "sp_model_kwargs",
        "spaces_between_special_tokens",
        "special_tokens_map_file",
        "split_by_punct",
        "stride",
        "tokenizer_file",
        "tokenizer_type",
        "transformers_version",
        "trim_offsets",
        "truncation",
        "truncation_strategy",
        "unk_id",
        "use_default_system_prompt",
        "use_fast",
        "vocab_file",
        "vocab_size",
        "vocab_type",
        "wordpieces_prefix",
    }
)
"""tokenizer_config.json: said in tokenizer.json too, which gemel reads, or without an effect on ids."""

CONFIG_HARMLESS = frozenset(
    {
        # Names, versions, files.
        "architectures",
        "author",
        "auto_map",
        "base_model",
        "dataset",
        "datasets",
        "description",
        "dtype",
        "finetuning_task",
        "language",
        "library_name",
        "license",
        "model_max_length",
        "model_name",
        "model_type",
        "name",
        "name_or_path",
        "revision",
        "tags",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "transformers_version",
        "version",
        # How the work is done, and what is given back beside the vectors.
        "attn_implementation",
        "chunk_size_feed_forward",
        "compile",
        "deterministic_flash_attn",
        "fused_bias_fc",
        "gradient_checkpointing",
        "onnx_export",
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "reference_compile",
        "repad_logits_with_grad",
        "return_dict",
        "torchscript",
        "unpad_inputs",
        "use_bfloat16",
        "use_cache",
        "use_flash_attn",
        "use_memory_efficient_attention",
        "xla_device",
        # Training.
        "classifier_dropout",
        "initializer_cutoff_factor",
        "initializer_factor",
        "initializer_range",
        "sparse_pred_ignore_index",
        "sparse_prediction",
        # Heads and adapters that stand beside the encoder, and dimensions that it was trained for.
        "adapters",
        "custom_heads",
        "directionality",
        "emb_pooler",
        "id2label",
        "is_matryoshka",
        "label2id",
        "matryoshka_dimensions",
        "num_labels",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
        "prediction_heads",
        "problem_type",
        "sbert_ce_default_activation_function",
        "sentence_transformers",
        "summary_activation",
        "summary_first_dropout",
        "summary_last_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "tie_encoder_decoder",
        "tie_weights",
        "tie_weights_",
        "tie_word_embeddings",
        # Special tokens; tokenizer.json has them.
        "bos_token_id",
        "cls_token_id",
        "decoder_start_token_id",
        "eos_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "mask_token_id",
        "prefix",
        "sep_token_id",
        "unk_token_id",
        # Generation of text, which older releases of transformers write into every config.
        "bad_words_ids",
        "begin_suppress_tokens",
        "cross_attention_hidden_size",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty",
        "length_penalty",
        "max_length",
        "min_length",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "output_scores",
        "remove_invalid_values",
        "repetition_penalty",
        "return_dict_in_generate",
        "suppress_tokens",
        "temperature",
        "tf_legacy_loss",
        "top_k",
        "top_p",
        "typical_p",
    }
)
"""config.json of an encoder, whatever its architecture: nothing here changes a hidden state."""


def refuse_unknown(path: Path, content: Mapping[str, Any], *known: Collection[str], where: str = "") -> None:
    """An error that names the first key of `content` that says something and is in none of `known`.

    Keys that start with an underscore are private notes of the program that wrote the file, and nothing drops out when
    a trained model is used. `where` is the key inside which `content` lies.
    """
    for key, value in content.items():
        if (
            key.startswith("_")
            or "dropout" in key
            or value is None
            or value is False
            or value in ("", [], {})
        ):
            continue
        if not any(key in names for names in known):
            inside = f" in {where!r}" if where else ""
            raise ModelError(
                f"{path}: the key {key!r}{inside} ({_short(value)}) is not known to gemel, and could change vectors. "
                "Remove it from the file if it changes nothing, or use a newer gemel"
            )


def refuse_unknown_config(path: Path, config: Mapping[str, Any]) -> None:
    """As `refuse_unknown`, for the config.json of an encoder that gemel reads itself; others are transformers' own."""
    architecture = architecture_of(config)
    if architecture is None:
        return
    pairs = {
        "embedding_size": "hidden_size",
        **architecture.aliases,
    }  # a width that BERT does not know, but does have
    same = {key for key, name in pairs.items() if config.get(key) == config.get(name)}
    refuse_unknown(path, config, architecture.config_keys, CONFIG_HARMLESS, same)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
