"""Settings of a checkpoint that change vectors: followed as sentence-transformers follows them, or refused by name.

Each case states what gemel must return without any other package; where sentence-transformers is installed, the same
folder is read by it too, and the vectors must be equal.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gemel
from gemel.checkpoint.architecture import model_types, native_config
from gemel.checkpoint.folder import read_checkpoint
from gemel.checkpoint.settings import refuse_unknown_config
from gemel.errors import InputError, ModelError
from tiny import tiny_bert, tiny_checkpoint

TEXTS = ["the cat is sleeping on the sofa", "a man", "stock market fell sharply today and the rain fell"]
LONG = "the man and the woman are running in the street to the market and the dog is playing in the rain " * 4


def change(path: Path, **values: object) -> None:
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**content, **values}))


def encode(folder: Path, texts: list[str], **options: Any) -> np.ndarray:
    return np.asarray(gemel.load(folder).encode(texts, on_long="truncate", **options))


def reference(folder: Path, texts: list[str], **options: Any) -> np.ndarray:
    package = pytest.importorskip("sentence_transformers")
    model = package.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return np.asarray(model.encode(texts, **options))


def names(folder: Path, text: str) -> list[str]:
    tokenizer = gemel.load(folder).tokenizer
    return tokenizer.names(tokenizer.content([text])[0])


def byte_level(path: Path, *, prefix: bool) -> None:
    """A byte-level tokenizer of single characters, as RoBERTa's."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
    from tokenizers.models import BPE

    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=prefix)
    tokenizer.add_special_tokens(words[:5])
    tokenizer.save(str(path))


# Each case makes a folder and computes its expected vectors by other means.

Case = tuple[Path, list[str], np.ndarray]


def truncated_vectors(parent: Path) -> Case:
    folder = tiny_bert(parent)
    whole = encode(folder, TEXTS)
    change(folder / "config_sentence_transformers.json", truncate_dim=8)
    return folder, TEXTS, whole[:, :8]


def cased_by_the_settings(parent: Path) -> Case:
    folder = tiny_bert(parent)
    change(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer", do_lower_case=False)
    plain = tiny_bert(parent / "plain")
    return folder, ["the MAN is"], encode(plain, ["the [UNK] is"])


def without_accents_by_the_settings(parent: Path) -> Case:
    folder = tiny_bert(parent)
    change(folder / "tokenizer_config.json", strip_accents=True)
    return folder, ["é a", "the"], encode(tiny_bert(parent / "plain"), ["e a", "the"])


def a_class_brings_its_defaults(parent: Path) -> Case:
    folder = tiny_bert(parent)  # tokenizer.json keeps accents; a BertTokenizer that lower-cases removes them
    change(folder / "tokenizer_config.json", tokenizer_class="BertTokenizerFast")
    return folder, ["É a"], encode(tiny_bert(parent / "plain"), ["e a"])


def a_plain_class_is_the_file(parent: Path) -> Case:
    folder = tiny_bert(parent)
    whole = encode(folder, ["The Man É"])
    change(
        folder / "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        do_lower_case=False,
        pad_token="[PAD]",
    )
    return folder, ["The Man É"], whole


def tokens_of_the_end(parent: Path) -> Case:
    folder = tiny_bert(parent, max_length=10)
    end = " ".join(LONG.split()[-8:])
    wanted = encode(folder, [end, "a man"])
    change(folder / "tokenizer_config.json", truncation_side="left")
    return folder, [LONG, "a man"], wanted


def tokens_of_the_end_by_the_file(parent: Path) -> Case:
    folder = tiny_bert(parent, max_length=10)
    wanted = encode(folder, [" ".join(LONG.split()[-8:])])
    cut = {"direction": "Left", "max_length": 64, "strategy": "LongestFirst", "stride": 0}
    change(folder / "tokenizer.json", truncation=cut)
    return folder, [LONG], wanted


def another_activation(parent: Path) -> Case:
    folder, plain = tiny_bert(parent), tiny_bert(parent / "plain")
    change(plain / "config.json", hidden_act="relu")
    change(folder / "sentence_bert_config.json", config_args={"hidden_act": "relu"})
    return folder, TEXTS, encode(plain, TEXTS)


def arguments_of_the_tokenizer(parent: Path) -> Case:
    folder = tiny_bert(parent)
    change(
        folder / "sentence_bert_config.json",
        max_seq_length=64,
        tokenizer_args={"model_max_length": 10, "truncation_side": "left", "padding_side": "left"},
    )
    return folder, [LONG], encode(tiny_bert(parent / "plain"), [" ".join(LONG.split()[-8:])])


def a_length_for_texts(parent: Path) -> Case:
    folder = tiny_bert(parent)
    change(folder / "sentence_bert_config.json", processing_kwargs={"text": {"max_length": 6}})
    return folder, [LONG], encode(tiny_bert(parent / "plain"), [" ".join(LONG.split()[:4])])


def special_tokens_as_text(parent: Path) -> Case:
    folder = tiny_bert(parent)
    wanted = encode(folder, ["a [ sep ] man"])
    change(folder / "tokenizer_config.json", split_special_tokens=True)
    return folder, ["a [SEP] man"], wanted


def first_space(parent: Path) -> Case:
    folder = tiny_checkpoint(parent, "roberta", vocab_size=300, bos_token_id=0, eos_token_id=2)
    byte_level(folder / "tokenizer.json", prefix=True)
    wanted = encode(folder, ["a man"])
    byte_level(folder / "tokenizer.json", prefix=False)
    assert not np.allclose(encode(folder, ["a man"]), wanted, atol=1e-3)
    change(folder / "tokenizer_config.json", tokenizer_class="RobertaTokenizer", add_prefix_space=True)
    return folder, ["a man"], wanted


CASES: list[Callable[[Path], Case]] = [
    truncated_vectors,
    cased_by_the_settings,
    without_accents_by_the_settings,
    a_class_brings_its_defaults,
    a_plain_class_is_the_file,
    tokens_of_the_end,
    tokens_of_the_end_by_the_file,
    another_activation,
    arguments_of_the_tokenizer,
    a_length_for_texts,
    special_tokens_as_text,
    first_space,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_setting_is_followed(tmp_path, case):
    if case is first_space:
        pytest.importorskip("torch")
    folder, texts, wanted = case(tmp_path / "model")
    np.testing.assert_allclose(encode(folder, texts), wanted, atol=2e-6)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_reference_package_agrees(tmp_path, case):
    pytest.importorskip("sentence_transformers")
    folder, texts, wanted = case(tmp_path / "model")
    np.testing.assert_allclose(reference(folder, texts), wanted, atol=2e-6)


def test_a_truncated_vector_is_normalized_again_only_on_request(tmp_path):
    folder = tiny_bert(tmp_path / "model")
    change(folder / "config_sentence_transformers.json", truncate_dim=8)
    model = gemel.load(folder)
    assert model.dim == read_checkpoint(folder).dim == 8
    whole = model.encode(TEXTS, dim=None)
    np.testing.assert_allclose(np.linalg.norm(model.encode(TEXTS, normalize=True), axis=1), 1, atol=1e-6)
    assert (np.linalg.norm(whole, axis=1) < 0.99).all()
    with pytest.raises(InputError, match="at most 8"):
        model.encode(TEXTS, dim=16)
    saved = gemel.load(model.save(tmp_path / "saved"))
    np.testing.assert_array_equal(saved.encode(TEXTS), whole)


def test_a_setting_that_changes_tokens_is_part_of_the_fingerprint(tmp_path):
    folder = tiny_bert(tmp_path / "model")
    change(folder / "tokenizer_config.json", model_max_length=64)
    plain = gemel.load(folder).fingerprint.digest
    change(folder / "tokenizer_config.json", do_lower_case=True, truncation_side="right")
    assert gemel.load(folder).fingerprint.digest == plain
    change(folder / "tokenizer_config.json", do_lower_case=False)
    cased = gemel.load(folder).fingerprint.digest
    change(folder / "tokenizer_config.json", do_lower_case=True, truncation_side="left")
    left = gemel.load(folder).fingerprint.digest
    assert len({plain, cased, left}) == 3


@pytest.mark.parametrize("modes", ["weighted-mean", "mean", "cls", "last", "max"])
def test_a_prompt_that_does_not_count_leaves_the_weights_of_the_other_tokens(tmp_path, modes):
    folder = tiny_bert(tmp_path / "model", pooling=modes, normalize=False, prompts={"query": "how do i "})
    change(folder / "1_Pooling" / "config.json", include_prompt=False)
    model = gemel.load(folder)
    result = model.encode(["reset my password"], prompt_name="query")[0]
    states = model.tokens(["reset my password"], prompt_name="query")[0].vectors
    positions = np.arange(1, len(states) + 1)[4:, None]
    if modes == "weighted-mean":
        np.testing.assert_allclose(result, (states[4:] * positions).sum(0) / positions.sum(), atol=1e-5)
    pytest.importorskip("sentence_transformers")
    theirs = reference(folder, ["reset my password"], prompt_name="query")[0]
    np.testing.assert_allclose(result, theirs, atol=1e-5)


@pytest.mark.parametrize("counts", [True, False])
def test_a_prompt_that_fills_the_window_is_refused(tmp_path, counts):
    folder = tiny_bert(tmp_path / "model", max_length=8, prompts={"long": "the man is in the rain "})
    change(folder / "1_Pooling" / "config.json", include_prompt=counts)
    model = gemel.load(folder)
    for run in (model.encode, lambda *a, **k: list(model.encode_stream(*a, **k)), model.tokens):
        with pytest.raises(InputError, match="the prompt has 6 tokens, the model reads 6 "):
            run(TEXTS, prompt_name="long")
    assert np.abs(model.encode(TEXTS, prompt_name="long", on_long="chunk")).sum() > 0
    assert np.abs(model.encode(TEXTS, prompt_name="long", max_length=9, on_long="truncate")).sum() > 0


ADAPTER = {"peft_type": "LORA", "base_model_name_or_path": "x"}
REFUSED = [
    ("config_sentence_transformers.json", "query_prefix", "[Q] "),
    ("config_sentence_transformers.json", "truncate_dim", -3),
    ("config_sentence_transformers.json", "truncate_dim", "8"),
    ("sentence_bert_config.json", "query_length", 32),
    ("sentence_bert_config.json", "document_length", 180),
    ("sentence_bert_config.json", "query_expansion", {"strategy": "fixed", "length": 32}),
    ("sentence_bert_config.json", "tokenizer_name_or_path", "other/tokenizer"),
    ("sentence_bert_config.json", "new_setting", 3),
    ("sentence_bert_config.json", "module_output_name", "sentence_embedding"),
    ("sentence_bert_config.json", "modality_config", {"message": {"method": "forward"}}),
    (
        "sentence_bert_config.json",
        "modality_config",
        {"text": {"method": "forward", "method_output_name": "pooler_output"}},
    ),
    (
        "sentence_bert_config.json",
        "processing_kwargs.add_special_tokens",
        {"text": {"add_special_tokens": False}},
    ),
    ("sentence_bert_config.json", "processing_kwargs.truncation", {"text": {"truncation": False}}),
    ("sentence_bert_config.json", "processing_kwargs.tokens", {"tokens": 3}),
    ("sentence_bert_config.json", "model_args.num_hidden_layers", {"num_hidden_layers": 1}),
    ("sentence_bert_config.json", "config_args.some_setting", {"some_setting": 1}),
    ("sentence_bert_config.json", "config_args.model_type", {"model_type": "roberta"}),
    ("sentence_bert_config.json", "tokenizer_args.some_setting", {"some_setting": 1}),
    ("config.json", "feed_forward_type", "geglu"),
    ("config.json", "quantization_config", {"quant_method": "bitsandbytes"}),
    ("config.json", "pruned_heads", {"0": [1]}),
    ("config.json", "rope_scaling", {"type": "linear"}),
    ("tokenizer_config.json", "some_setting", 5),
    ("tokenizer_config.json", "truncation_side", "both"),
    ("1_Pooling/config.json", "pooling_mode_learned", True),
    ("2_Dense/config.json", "scale", 2.0),
    ("3_Normalize/config.json", "order", 3),
]


@pytest.mark.parametrize(("file", "key", "value"), REFUSED)
def test_a_key_that_is_not_understood_is_refused_by_name(tmp_path, file, key, value):
    folder = tiny_bert(tmp_path / "model", dense=8)
    outer, _, inner = key.partition(".")
    change(folder / file, **{outer: value})
    with pytest.raises(ModelError) as error:
        read_checkpoint(folder)
    assert repr(inner or outer) in str(error.value)
    assert file in str(error.value)


@pytest.mark.parametrize(("file", "key", "value"), REFUSED)
def test_the_same_key_without_a_value_is_accepted_silently(tmp_path, file, key, value):
    folder = tiny_bert(tmp_path / "model", dense=8)
    change(folder / file, **{key.partition(".")[0]: None})
    read_checkpoint(folder)


@pytest.mark.parametrize("tokens", ["added_tokens_decoder", "additional_special_tokens"])
def test_tokens_that_tokenizer_json_does_not_have_are_refused(tmp_path, tokens):
    folder = tiny_bert(tmp_path / "model")
    value = {"300": {"content": "<new>"}} if tokens == "added_tokens_decoder" else ["<new>"]
    change(folder / "tokenizer_config.json", **{tokens: value})
    with pytest.raises(ModelError, match=rf"tokenizer_config.json: '{tokens}' has the token '<new>'"):
        gemel.load(folder)


@pytest.mark.parametrize(("key", "token"), [("add_bos_token", "[CLS]"), ("add_eos_token", "[SEP]")])
def test_a_token_at_an_end_must_be_in_both_files(tmp_path, key, token):
    folder = tiny_bert(tmp_path / "model")
    name = key.removeprefix("add_")
    change(folder / "tokenizer_config.json", **{key: True, name: token})
    gemel.load(folder)
    change(folder / "tokenizer_config.json", **{name: "[PAD]"})
    with pytest.raises(ModelError, match=rf"tokenizer_config.json: '{key}' asks for '\[PAD\]'"):
        gemel.load(folder)


def test_an_adapter_beside_full_weights_is_refused(tmp_path):
    folder = tiny_bert(tmp_path / "model")
    (folder / "adapter_config.json").write_text(json.dumps(ADAPTER))
    with pytest.raises(ModelError, match=r"adapter_config.json: an adapter \(LoRA\) is next to full weights"):
        gemel.load(folder)


# Keys of published configs, as their authors and transformers 3, 4 and 5 wrote them: none may be refused.
SHAPE = {
    "vocab_size": 9,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "max_position_embeddings": 9,
}
TRAINED = {"initializer_range": 0.02, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
LABELS = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
WRITTEN = {
    "_name_or_path": "x",
    "architectures": ["X"],
    "transformers_version": "4.9.2",
    "torch_dtype": "float16",
}
BERT = {**SHAPE, **TRAINED, **WRITTEN, "hidden_act": "gelu", "intermediate_size": 8, "layer_norm_eps": 1e-12}
DECODER = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": True,
    "use_cache": True,
}
NOMIC = {
    "model_type": "nomic_bert",
    **WRITTEN,
    "activation_function": "swiglu",
    "attn_pdrop": 0.0,
    "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
    "causal": False,
    "dense_seq_output": True,
    "embd_pdrop": 0.0,
    "fused_bias_fc": True,
    "fused_dropout_add_ln": True,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": 768,
    "n_head": 12,
    "n_inner": 3072,
    "n_layer": 12,
    "n_positions": 8192,
    "pad_vocab_size_multiple": 64,
    "parallel_block": False,
    "parallel_block_tied_norm": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "reorder_and_upcast_attn": False,
    "resid_pdrop": 0.0,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "type_vocab_size": 2,
    "use_cache": True,
    "use_flash_attn": True,
    "use_rms_norm": False,
    "use_xentropy": True,
    "vocab_size": 30528,
}
NEW = {
    "model_type": "new",
    **BERT,
    "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
    "classifier_dropout": 0.0,
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "pack_qkv": True,
    "position_embedding_type": "rope",
    "type_vocab_size": 1,
    "unpad_inputs": "true",
    "use_memory_efficient_attention": "true",
}
PUBLISHED = {
    "arctic-embed-l": {"model_type": "xlm-roberta", **BERT, "matryoshka_dimensions": [256]},
    "specter2": {
        "model_type": "bert",
        **BERT,
        "adapters": {"adapters": {}, "config_map": {}},
        "embedding_size": 8,
    },
    "all-MiniLM": {
        "model_type": "bert",
        **BERT,
        "gradient_checkpointing": False,
        "use_cache": True,
        "type_vocab_size": 2,
    },
    "bge": {
        "model_type": "bert",
        **BERT,
        **LABELS,
        "classifier_dropout": None,
        "position_embedding_type": "absolute",
    },
    "LaBSE": {
        "model_type": "bert",
        **BERT,
        "directionality": "bidi",
        "pooler_fc_size": 768,
        "pooler_num_attention_heads": 12,
        "pooler_num_fc_layers": 3,
        "pooler_size_per_head": 128,
        "pooler_type": "first_token_transform",
    },
    "all-mpnet": {
        "model_type": "mpnet",
        **BERT,
        "relative_attention_num_buckets": 32,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    "multilingual-e5": {
        "model_type": "xlm-roberta",
        **BERT,
        "output_past": True,
        "type_vocab_size": 1,
        "use_cache": True,
    },
    "xlm-roberta-large": {"model_type": "xlm-roberta", **BERT, "language": "english", "name": "XLMRoberta"},
    "all-distilroberta": {
        "model_type": "roberta",
        **BERT,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "type_vocab_size": 1,
    },
    "camembert": {
        "model_type": "camembert",
        **BERT,
        "output_past": True,
        "bos_token_id": 5,
        "eos_token_id": 6,
    },
    "distiluse": {
        "model_type": "distilbert",
        **WRITTEN,
        "activation": "gelu",
        "attention_dropout": 0.1,
        "dim": 768,
        "dropout": 0.1,
        "hidden_dim": 3072,
        "initializer_range": 0.02,
        "max_position_embeddings": 512,
        "n_heads": 12,
        "n_layers": 6,
        "output_past": True,
        "pad_token_id": 0,
        "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2,
        "sinusoidal_pos_embds": False,
        "tie_weights_": True,
        "vocab_size": 119547,
        "finetuning_task": "sst-2",
        "hidden_size": 768,
    },
    "paraphrase-albert": {
        "model_type": "albert",
        **BERT,
        "classifier_dropout_prob": 0.1,
        "down_scale_factor": 1,
        "embedding_size": 128,
        "gap_size": 0,
        "inner_group_num": 1,
        "net_structure_type": 0,
        "num_hidden_groups": 1,
        "num_memory_blocks": 0,
    },
    "electra": {
        "model_type": "electra",
        **BERT,
        "embedding_size": 128,
        "generator_size": "0.25",
        "summary_activation": "gelu",
        "summary_last_dropout": 0.1,
        "summary_type": "first",
        "summary_use_proj": True,
    },
    "modernbert-embed": {
        "model_type": "modernbert",
        **SHAPE,
        **WRITTEN,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 50281,
        "classifier_activation": "gelu",
        "classifier_bias": False,
        "classifier_dropout": 0.0,
        "classifier_pooling": "mean",
        "cls_token_id": 50281,
        "decoder_bias": True,
        "deterministic_flash_attn": False,
        "embedding_dropout": 0.0,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "gradient_checkpointing": False,
        "hidden_activation": "gelu",
        "initializer_cutoff_factor": 2.0,
        "intermediate_size": 1152,
        "layer_norm_eps": 1e-05,
        "local_attention": 128,
        "local_rope_theta": 10000.0,
        "mlp_bias": False,
        "mlp_dropout": 0.0,
        "norm_bias": False,
        "norm_eps": 1e-05,
        "position_embedding_type": "absolute",
        "reference_compile": False,
        "repad_logits_with_grad": False,
        "sep_token_id": 50282,
        "sparse_pred_ignore_index": -100,
        "sparse_prediction": False,
    },
    "Qwen3-Embedding": {
        "model_type": "qwen3",
        **SHAPE,
        **DECODER,
        "head_dim": 128,
        "layer_types": ["full_attention"] * 2,
        "max_window_layers": 28,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "use_sliding_window": False,
    },
    "gte-Qwen2": {
        "model_type": "qwen2",
        **SHAPE,
        **DECODER,
        "auto_map": {"AutoModel": "modeling_qwen.Qwen2Model"},
        "is_causal": False,
        "max_window_layers": 21,
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "use_sliding_window": False,
    },
    "e5-mistral": {
        "model_type": "mistral",
        **SHAPE,
        **DECODER,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
    },
    "llama-embed": {
        "model_type": "llama",
        **SHAPE,
        **DECODER,
        "head_dim": 64,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
    },
    "EuroBERT": {
        "model_type": "eurobert",
        **SHAPE,
        **DECODER,
        "clf_pooling": "late",
        "mask_token_id": 128002,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "rope_scaling": None,
        "rope_theta": 250000,
    },
    "embeddinggemma": {
        "model_type": "gemma3_text",
        **SHAPE,
        **DECODER,
        "_sliding_window_pattern": 6,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": ["sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 256,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "sliding_window": 512,
        "use_bidirectional_attention": True,
    },
    # A network for images and one for sounds are beside that for texts.
    "embeddinggemma-2": {
        "model_type": "embedding_gemma2",
        **WRITTEN,
        "audio_config": {"hidden_size": 1024, "model_type": "gemma4_audio", "use_clipped_linears": True},
        "audio_token_id": 258881,
        "boa_token_id": 256000,
        "boi_token_id": 255999,
        "eoa_token_index": 258883,
        "eoi_token_id": 258882,
        "image_token_id": 258880,
        "initializer_range": 0.02,
        "text_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 2,
            "dtype": "bfloat16",
            "embedding_dim": 768,
            "eos_token_id": 1,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 512,
            "hidden_size_per_layer_input": 512,
            "initializer_range": 0.02,
            "intermediate_size": 2048,
            "layer_types": ["sliding_attention", "full_attention"],
            "max_position_embeddings": 262144,
            "model_type": "embedding_gemma2_text",
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "pad_token_id": 0,
            "per_layer_config": {"01": {"head_dim": 512, "num_key_value_heads": 1}},
            "rms_norm_eps": 1e-06,
            "rope_parameters": {
                "full_attention": {"rope_theta": 1000000.0, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
            },
            "sliding_window": 512,
            "vocab_size": 262144,
        },
        "video_token_id": 258884,
        "vision_config": {"hidden_size": 768, "model_type": "gemma4_vision", "patch_size": 16},
    },
    "nomic-embed-text-v1": {**NOMIC, "rotary_scaling_factor": 2},
    # Since it can be read by transformers as well, it has both spellings.
    "nomic-embed-text-v1.5": {
        **NOMIC,
        "hidden_act": "silu",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 2048,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
    },
    "nomic-embed-text-v1.5 of transformers": {
        "model_type": "nomic_bert",
        **BERT,
        "head_dim": 64,
        "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
        "type_vocab_size": 2,
    },
    "gte-multilingual-base": {
        **NEW,
        "architectures": ["NewForTokenClassification"],
        "rope_scaling": {"factor": 8.0, "type": "ntk"},
        "rope_theta": 20000,
    },
    "gte-multilingual-reranker-base": {
        **NEW,
        **LABELS,
        "rope_scaling": {"factor": 8.0, "type": "ntk"},
        "rope_theta": 20000,
    },
    "gte-base-en-v1.5": {
        **NEW,
        "rope_scaling": {"factor": 2.0, "type": "ntk"},
        "rope_theta": 500000,
        "type_vocab_size": 0,
    },
    "arctic-embed-m-v2": {
        **NEW,
        "model_type": "gte",
        "matryoshka_dimensions": [256],
        "rope_scaling": {"factor": 8.0, "type": "ntk"},
        "rope_theta": 20000,
    },
    "gte-multilingual-base of transformers": {
        "model_type": "gte",
        **BERT,
        "rope_parameters": {"rope_theta": 160000.0, "rope_type": "default"},
        "type_vocab_size": 1,
    },
    "jina-embeddings-v2-base-en": {
        "model_type": "bert",
        **BERT,
        "attn_implementation": None,
        "auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
        "classifier_dropout": None,
        "emb_pooler": "mean",
        "feed_forward_type": "geglu",
        "gradient_checkpointing": False,
        "model_max_length": 8192,
        "position_embedding_type": "alibi",
        "type_vocab_size": 2,
        "use_cache": True,
    },
    "jina-embeddings-v3": {
        "model_type": "xlm-roberta",
        **BERT,
        "auto_map": {"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"},
        "classifier_dropout": None,
        "emb_pooler": None,
        "load_trained_adapters": True,
        "lora_adaptations": [
            "retrieval.query",
            "retrieval.passage",
            "separation",
            "classification",
            "text-matching",
        ],
        "lora_alpha": 1,
        "lora_dropout_p": 0.0,
        "lora_main_params_trainable": False,
        "lora_rank": 4,
        "matryoshka_dimensions": [32, 64, 128, 256, 512, 768, 1024],
        "output_past": True,
        "position_embedding_type": "rotary",
        "rotary_emb_base": 20000.0,
        "task_instructions": {"retrieval.query": "Represent the query for retrieving evidence documents: "},
        "truncate_dim": None,
        "type_vocab_size": 1,
        "use_cache": True,
        "use_flash_attn": True,
    },
    "jina-embeddings-v5-text-small": {
        "model_type": "jina_embeddings_v5",
        **SHAPE,
        **DECODER,
        "architectures": ["JinaEmbeddingsV5Model"],
        "auto_map": {"AutoModel": "modeling_jina_embeddings_v5.JinaEmbeddingsV5Model"},
        "head_dim": 128,
        "max_window_layers": 28,
        "rope_scaling": None,
        "rope_theta": 3500000,
        "sliding_window": None,
        "task_names": ["retrieval", "text-matching", "clustering", "classification"],
        "use_sliding_window": False,
    },
    "jina-embeddings-v5-text-nano": {
        "model_type": "jina_embeddings_v5",
        **SHAPE,
        **DECODER,
        "architectures": ["JinaEmbeddingsV5Model"],
        "auto_map": {"AutoModel": "modeling_jina_embeddings_v5.JinaEmbeddingsV5Model"},
        "clf_pooling": "late",
        "is_decoder": False,
        "mask_token_id": 128002,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "rope_theta": 250000,
        "task_names": ["retrieval", "text-matching", "clustering", "classification"],
    },
    # One task, with its adapter in the weights.
    "jina-embeddings-v5-text-small-retrieval": {
        "model_type": "qwen3",
        **SHAPE,
        **DECODER,
        "architectures": ["Qwen3Model"],
        "head_dim": 128,
        "rope_theta": 3500000,
        "task_names": ["retrieval", "text-matching", "clustering", "classification"],
    },
    "jina-embeddings-v3 of transformers": {
        "model_type": "jina_embeddings_v3",
        **BERT,
        "rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"},
        "type_vocab_size": 1,
        "use_cache": True,
    },
    "deberta-base-mnli": {
        "model_type": "deberta",
        **BERT,
        "max_relative_positions": -1,
        "padding_idx": 0,
        "pos_att_type": "c2p|p2c",
        "position_biased_input": False,
        "relative_attention": True,
        "type_vocab_size": 0,
        "pooler_dropout": 0,
        "pooler_hidden_act": "gelu",
        "pooler_hidden_size": 768,
    },
    "mxbai-rerank-v1": {
        "model_type": "deberta-v2",
        **BERT,
        **LABELS,
        "legacy": True,
        "max_relative_positions": -1,
        "norm_rel_ebd": "layer_norm",
        "pooler_dropout": 0,
        "pooler_hidden_act": "gelu",
        "pooler_hidden_size": 768,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "position_buckets": 256,
        "relative_attention": True,
        "share_att_key": True,
        "type_vocab_size": 0,
        "summary_activation": "tanh",
    },
    "sentence-t5": {
        "model_type": "t5",
        **WRITTEN,
        "d_ff": 3072,
        "d_kv": 64,
        "d_model": 768,
        "decoder_start_token_id": 0,
        "dense_act_fn": "relu",
        "dropout_rate": 0.1,
        "eos_token_id": 1,
        "feed_forward_proj": "relu",
        "initializer_factor": 1.0,
        "is_encoder_decoder": True,
        "is_gated_act": False,
        "layer_norm_epsilon": 1e-06,
        "n_positions": 512,
        "num_decoder_layers": 12,
        "num_heads": 12,
        "num_layers": 12,
        "output_past": True,
        "pad_token_id": 0,
        "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": 32,
        "task_specific_params": {"summarization": {"num_beams": 4}},
        "use_cache": True,
        "vocab_size": 32128,
    },
    "mt5-base": {
        "model_type": "mt5",
        **WRITTEN,
        "d_ff": 2048,
        "d_kv": 64,
        "d_model": 768,
        "feed_forward_proj": "gated-gelu",
        "is_encoder_decoder": True,
        "layer_norm_epsilon": 1e-06,
        "num_decoder_layers": 12,
        "num_heads": 12,
        "num_layers": 12,
        "relative_attention_num_buckets": 32,
        "tie_word_embeddings": False,
        "tokenizer_class": "T5Tokenizer",
        "vocab_size": 250112,
    },
    "umt5-base": {
        "model_type": "umt5",
        **WRITTEN,
        "d_ff": 2048,
        "d_kv": 64,
        "d_model": 768,
        "decoder_start_token_id": 0,
        "dense_act_fn": "gelu_new",
        "dropout_rate": 0.1,
        "eos_token_id": 1,
        "feed_forward_proj": "gated-gelu",
        "initializer_factor": 1.0,
        "is_encoder_decoder": True,
        "is_gated_act": True,
        "layer_norm_epsilon": 1e-06,
        "num_decoder_layers": 12,
        "num_heads": 12,
        "num_layers": 12,
        "output_past": True,
        "pad_token_id": 0,
        "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": 32,
        "scalable_attention": True,
        "tie_word_embeddings": False,
        "tokenizer_class": "T5Tokenizer",
        "use_cache": True,
        "vocab_size": 256384,
    },
    "ms-marco-MiniLM": {
        "model_type": "bert",
        **BERT,
        **LABELS,
        "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
        "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.0.1"},
    },
}


def test_a_config_of_every_architecture_is_published():
    assert {native_config(config)["model_type"] for config in PUBLISHED.values()} == set(model_types())


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_published_config_is_refused(name):
    refuse_unknown_config(Path("config.json"), PUBLISHED[name])


def test_the_files_of_a_published_tokenizer_and_of_newer_releases_are_read(tmp_path):
    folder = tiny_bert(tmp_path / "model")
    special = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    change(
        folder / "tokenizer_config.json",
        added_tokens_decoder={"0": {"content": "[PAD]", **special}, "3": {"content": "[SEP]", **special}},
        clean_up_tokenization_spaces=True,
        extra_ids=100,
        cls_token="[CLS]",
        do_basic_tokenize=True,
        do_lower_case=True,
        extra_special_tokens={},
        mask_token={"content": "[MASK]", "__type": "AddedToken"},
        max_length=128,
        model_max_length=512,
        name_or_path="nreimers/MiniLM-L6-H384-uncased",
        never_split=None,
        pad_to_multiple_of=None,
        pad_token_type_id=0,
        padding_side="right",
        special_tokens_map_file="special_tokens_map.json",
        stride=0,
        strip_accents=None,
        tokenize_chinese_chars=True,
        tokenizer_class="BertTokenizer",
        truncation_side="right",
        truncation_strategy="longest_first",
        sp_model_kwargs={},
        # Of Gemma: further special tokens by their names, and the form of an answer.
        boi_token="[CLS]",
        image_token={"content": "[SEP]", **special},
        model_specific_special_tokens={"boi_token": "[CLS]"},
        response_schema={"type": "object"},
    )
    change(
        folder / "sentence_bert_config.json",
        transformer_task="feature-extraction",
        modality_config={
            "text": {"method": "forward", "method_output_name": "last_hidden_state"},
            "image": {"method": "get_image_features", "method_output_name": "pooler_output"},
        },
        module_output_name="token_embeddings",
        model_args={"trust_remote_code": True, "dtype": "bfloat16", "attn_implementation": "sdpa"},
        tokenizer_args={"padding_side": "left"},
        config_args={"use_memory_efficient_attention": False},
    )
    change(
        folder / "config_sentence_transformers.json",
        __version__={"sentence_transformers": "5.4.1"},
        model_type="SentenceTransformer",
    )
    assert gemel.load(folder).encode(["a man"]).shape == (1, 32)


@pytest.mark.parametrize(
    "kind",
    [
        "albert",
        "bert",
        "camembert",
        "distilbert",
        "electra",
        "gte",
        "modernbert",
        "mpnet",
        "nomic_bert",
        "roberta",
    ],
)
def test_configs_written_by_the_installed_transformers_are_read(tmp_path, kind):
    pytest.importorskip("torch")
    folder = tiny_checkpoint(tmp_path / "model", kind)
    assert gemel.load(folder).encode(["a man"]).shape == (1, 32)
