"""The tokenizer as the checkpoint means it, from tokenizer.json or from a BERT vocabulary."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, normalizers

import gemel
from gemel.checkpoint.folder import read_checkpoint
from gemel.checkpoint.tokenizer import load_tokenizer
from gemel.errors import ModelError
from tiny import tiny_bert, tiny_tokenizer, tiny_vocabulary


def test_padding_and_truncation_of_the_file_are_disabled(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    path = str(folder / "tokenizer.json")
    stored = Tokenizer.from_file(path)
    stored.enable_padding(length=50)
    stored.enable_truncation(4)
    stored.save(path)
    tokenizer = load_tokenizer(read_checkpoint(folder))
    assert tokenizer.encode("the cat is sleeping").tokens == [
        "[CLS]",
        "the",
        "cat",
        "is",
        "sleeping",
        "[SEP]",
    ]


def test_a_bert_vocabulary_gives_the_same_tokens_as_tokenizer_json(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "strip_accents": False}))
    expected = load_tokenizer(read_checkpoint(folder))
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(tiny_vocabulary()) + "\n", encoding="utf-8")
    checkpoint = read_checkpoint(folder)
    assert checkpoint.tokenizer_file.name == "vocab.txt"
    tokenizer = load_tokenizer(checkpoint)
    for text in [
        "The Cat is sleeping!",
        "",
        "  日本語 é ",
        "unknown€word",
        "[CLS] x [SEP]",
        "a\0b\tc",
        "x" * 200,
    ]:
        assert tokenizer.encode(text).ids == expected.encode(text).ids, text
        assert tokenizer.encode(text, text).type_ids == expected.encode(text, text).type_ids


def test_a_vocabulary_with_case_keeps_case(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    (folder / "tokenizer.json").unlink()
    vocabulary = ["<pad>", "<unk>", "<s>", "</s>", "Cat", "cat"]
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    special_tokens = {
        "unk_token": "<unk>",
        "cls_token": {"content": "<s>"},
        "sep_token": "</s>",
        "pad_token": "<pad>",
    }
    (folder / "special_tokens_map.json").write_text(json.dumps(special_tokens))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    assert load_tokenizer(read_checkpoint(folder)).encode("Cat cat").ids == [2, 4, 5, 3]


def test_lower_case_is_added_only_where_the_tokenizer_keeps_case(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    rules = load_tokenizer(read_checkpoint(folder)).normalizer
    assert isinstance(rules, normalizers.BertNormalizer)
    for kept in (normalizers.NFC(), None):
        stored = Tokenizer.from_file(str(folder / "tokenizer.json"))
        stored.normalizer = kept
        stored.save(str(folder / "tokenizer.json"))
        tokens = load_tokenizer(read_checkpoint(folder)).encode("The CAT").tokens
        assert tokens == ["[CLS]", "the", "cat", "[SEP]"]


def test_no_tokenizer_is_refused_with_the_command_that_makes_one(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="gemel models convert"):
        read_checkpoint(folder)


def test_a_vocabulary_of_another_tokenizer_is_refused(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(ModelError, match=r"not a BERT vocabulary: it has no '\[UNK\]'"):
        load_tokenizer(read_checkpoint(folder))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mpnet"}))
    with pytest.raises(ModelError, match="gemel models convert"):
        load_tokenizer(read_checkpoint(folder))


def test_a_damaged_tokenizer_is_named(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(read_checkpoint(folder))


def test_a_tokenizer_that_is_too_large_is_not_read(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    with (folder / "tokenizer.json").open("r+b") as stream:
        stream.truncate(200 * 2**20 + 1)
    with pytest.raises(ModelError, match="at most 209,715,200 are read"):
        load_tokenizer(read_checkpoint(folder))


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("kind", ["WordPiece", "WordLevel", "BPE"])
def test_an_empty_vocabulary_is_a_model_error(tmp_path, kind, static):
    folder = static_folder(tmp_path / "model") if static else tiny_bert(tmp_path / "model")
    model = {"type": kind, "vocab": {}, "unk_token": "[UNK]", "merges": []}
    if kind == "WordPiece":
        model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    edit(folder / "tokenizer.json", model=model, added_tokens=[], post_processor=None)
    try:
        result = gemel.load(folder).encode(["a man"])
    except ModelError:
        return
    assert static and kind == "BPE" and not result.any()  # no token, as of an empty text


@pytest.mark.parametrize("where", ["word", "special"])
@pytest.mark.parametrize("number", [2**32 - 1, 2**31])
def test_a_token_id_that_no_network_has_is_a_model_error(tmp_path, number, where):
    folder = tiny_bert(tmp_path / "model")
    content = json.loads((folder / "tokenizer.json").read_text())
    if where == "word":
        content["model"]["vocab"]["man"] = number
    else:
        content["post_processor"]["special_tokens"]["[SEP]"]["ids"] = [number]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match=f"the token id {number:,}, which no network has"):
        gemel.load(folder).encode(["a man", "a man is"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$"])
def test_a_regular_expression_with_catastrophic_backtracking_is_a_model_error(tmp_path, pattern, capfd):
    folder = tiny_bert(tmp_path / "model")
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    edit(folder / "tokenizer.json", pre_tokenizer=split)
    model = gemel.load(folder)
    for texts in (["a" * 40 + "!"], ["a" * 40 + "!", "the cat"]):
        with pytest.raises(ModelError, match="a regular expression that takes too long"):
            model.encode(texts)
    capfd.readouterr()  # the library prints its own traceback
    assert model.encode(["the cat"]).shape == (1, 32)


def static_folder(folder):
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    save_file({"embeddings": np.ones((200, 8), np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec"}))
    tiny_tokenizer(folder / "tokenizer.json")
    return folder


@pytest.mark.parametrize("shape", [(0, 8), (200, 0)])
def test_an_empty_table_is_a_model_error(tmp_path, shape):
    from safetensors.numpy import save_file

    folder = static_folder(tmp_path / "model")
    save_file({"embeddings": np.ones(shape, np.float32)}, folder / "model.safetensors")
    with pytest.raises(ModelError, match="'embeddings' is empty"):
        gemel.load(folder, precision="int8")
