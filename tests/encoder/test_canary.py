"""Vectors of fixed texts that are recorded with a model, and the warning when another version gives others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.checkpoint.test_router import asymmetric, routed, static_folder

import gemel
from gemel.checkpoint.folder import read_checkpoint
from gemel.encoder.canary import CANARIES, CanaryStore, Distance, pack_vectors, unpack_vectors
from gemel.model import Model
from tiny import tiny_bert

TEXT = ["A man is playing a guitar."]


@pytest.fixture(autouse=True)
def on(monkeypatch, tmp_path):
    monkeypatch.setenv("GEMEL_CANARIES", "1")
    monkeypatch.setenv("GEMEL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    """A model that was used once."""
    folder = tiny_bert(tmp_path / "model")
    gemel.load(folder).encode(TEXT)
    return folder


@pytest.fixture
def computed(monkeypatch):
    """The texts of every canary that is computed."""
    texts = []
    raw = Model._raw

    def counted(self, given, precision):
        texts.append((list(given), precision))
        return raw(self, given, precision)

    monkeypatch.setattr(Model, "_raw", counted)
    return texts


def record_of(folder: Path, pattern: str = "canary-native-float32-*.json") -> Path:
    (path,) = (folder / ".gemel").glob(pattern)
    return path


def rewrite(path: Path, *, off: float = 0.0, **environment: str) -> None:
    """As if another version had recorded vectors that differ by `off`."""
    content = json.loads(path.read_text())
    last = content["sets"][-1]
    vectors = unpack_vectors(last["vectors"], len(content["texts"]))
    noise = np.random.default_rng(1).normal(0, 1, vectors.shape).astype(np.float32)
    last["vectors"] = pack_vectors(vectors + off * noise)
    last["environments"] = [{**last["environments"][0], **environment}]
    last["recorded"] = "2025-01-31T12:00:00+00:00"
    path.write_text(json.dumps(content))


def test_the_first_use_records_and_the_next_program_computes_nothing(folder, computed):
    content = json.loads(record_of(folder).read_text())
    assert content["texts"] == list(CANARIES[:4])
    (environment,) = content["sets"][0]["environments"]
    assert environment["gemel"] == gemel.__version__
    model = gemel.load(folder)
    model.encode(TEXT)
    model.tokens(TEXT)
    assert computed == []
    vectors = unpack_vectors(content["sets"][0]["vectors"], 4)
    np.testing.assert_array_equal(vectors, model.encode(CANARIES[:4]))


def test_another_version_with_other_vectors_is_a_warning_once(folder, computed):
    path = record_of(folder)
    rewrite(path, off=0.1, gemel="0.0.9", tokenizers="0.15.0", kernel="avx2")
    model = gemel.load(folder)
    with pytest.warns(gemel.VectorsChangedWarning) as warned:
        vectors = model.encode(TEXT)
    assert len(warned) == 1
    assert warned[0].filename == __file__
    message = str(warned[0].message)
    assert "model gives other vectors than on 2025-01-31 (native, float32)" in message
    assert "Then: gemel 0.0.9, tokenizers 0.15.0, kernel avx2; now: gemel " in message
    assert "smallest cosine" in message
    assert "encode the stored texts again" in message
    assert "numpy" not in message
    again = gemel.load(folder)
    np.testing.assert_array_equal(again.encode(TEXT), vectors)  # a second warning would be an error
    assert len(computed) == 1
    assert len(json.loads(path.read_text())["sets"]) == 2


def test_a_warning_that_is_an_error_is_raised_once(folder):
    rewrite(record_of(folder), off=0.1, gemel="0.0.9")
    model = gemel.load(folder)
    with pytest.raises(gemel.VectorsChangedWarning):
        model.encode(TEXT)
    assert model.encode(TEXT).shape == (1, 32)
    assert gemel.load(folder).encode(TEXT).shape == (1, 32)


def test_rounding_of_another_version_is_no_warning(folder, computed):
    path = record_of(folder)
    rewrite(path, off=1e-7, gemel="0.0.9")
    gemel.load(folder).encode(TEXT)
    gemel.load(folder).encode(TEXT)
    assert len(computed) == 1  # the record knows this version now
    (only,) = json.loads(path.read_text())["sets"]
    assert [each["gemel"] for each in only["environments"]] == ["0.0.9", gemel.__version__]


def test_int8_has_a_record_and_a_tolerance_of_its_own(folder):
    model = gemel.load(folder)
    model.encode(TEXT, precision="int8")
    path = record_of(folder, "canary-native-int8-*.json")
    rewrite(path, off=1e-3, gemel="0.0.9")
    gemel.load(folder, precision="int8").encode(TEXT)
    rewrite(path, off=0.05, gemel="0.0.8")
    with pytest.warns(gemel.VectorsChangedWarning, match=r"\(native, int8\).* beyond a cosine of 0.999"):
        gemel.load(folder, precision="int8").encode(TEXT)


def test_other_weights_are_a_new_canary(folder, computed):
    rewrite(record_of(folder), gemel="0.0.9")
    path = folder / "model.safetensors"
    save_file({name: weight * 1.5 for name, weight in load_file(path).items()}, path)
    model = gemel.load(folder)
    model.encode(TEXT)
    assert len(computed) == 1
    (only,) = json.loads(record_of(folder).read_text())["sets"]
    assert only["environments"][0]["gemel"] == gemel.__version__


def test_other_settings_are_a_new_canary(folder, computed):
    rewrite(record_of(folder), gemel="0.0.9")
    path = folder / "1_Pooling" / "config.json"
    config = json.loads(path.read_text())
    other = {**config, "pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    path.write_text(json.dumps(other))
    gemel.load(folder).encode(TEXT)
    assert len(computed) == 1


def test_the_same_versions_with_other_vectors_have_other_weights(folder):
    """`quick_digest` samples large files; such a change is found by the vectors, and no version is to blame."""
    path = record_of(folder)
    rewrite(path, off=0.1, files="before")
    gemel.load(folder).encode(TEXT)
    assert len(json.loads(path.read_text())["sets"]) == 2


def test_a_folder_that_cannot_be_written_has_its_record_in_the_cache(tmp_path, computed):
    folder = tiny_bert(tmp_path / "model")
    (folder / ".gemel").write_text("a file where a folder should be")
    gemel.load(folder).encode(TEXT)
    gemel.load(folder).encode(TEXT)
    assert len(computed) == 1
    (path,) = (tmp_path / "cache" / "canaries").iterdir()
    rewrite(path, off=0.1, gemel="0.0.9")
    with pytest.warns(gemel.VectorsChangedWarning):
        gemel.load(folder).encode(TEXT)


def test_where_nothing_can_be_written_nothing_fails(tmp_path, monkeypatch):
    folder = tiny_bert(tmp_path / "model")
    (folder / ".gemel").write_text("")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GEMEL_CACHE", str(tmp_path / "file"))
    assert gemel.load(folder).encode(TEXT).shape == (1, 32)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"format": 2}',
        b'{"format": 1, "content": "x", "texts": [], "sets": []}',
        b'{"format": 1, "content": "x", "texts": ["\\ud800"], "sets": [{"recorded": "", "vectors": "AAAA"}]}',
        b"[" * 100_000,
        b'{"format": 1, "content": "x", "texts": ["a", "b"], "sets": [{"recorded": "", "vectors": "AAAA"}]}',
        b'{"format": 1, "content": "x", "texts": ["a"], "sets": [{"recorded": 1, "vectors": "!", "environments": 3}]}',
    ],
)
def test_a_damaged_record_is_written_again(folder, damaged):
    path = record_of(folder)
    whole = json.loads(path.read_text())
    path.write_bytes(damaged)
    gemel.load(folder).encode(TEXT)
    again = json.loads(path.read_text())
    assert again["content"] == whole["content"]
    assert again["sets"][0]["vectors"] == whole["sets"][0]["vectors"]


def test_two_processes_at_once_leave_one_whole_record(tmp_path):
    folder = tiny_bert(tmp_path / "model")
    program = (
        f"import gemel, sys; gemel.load({str(folder)!r}).encode({TEXT!r}); print('torch' in sys.modules)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program], stdout=subprocess.PIPE, env=os.environ.copy()
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert [output.split() for output in outputs] == [[b"False"]] * 2
    record_of(folder)
    assert len(list((folder / ".gemel").iterdir())) == 1
    checkpoint = read_checkpoint(folder)
    assert CanaryStore(checkpoint, "native", "float32").read() is not None


def test_prompts_and_long_texts_are_no_warning(tmp_path):
    folder = tiny_bert(tmp_path / "model")
    settings = {"prompts": {"query": "how do i ", "document": "a "}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 6, "do_lower_case": false}')
    gemel.load(folder).encode_query(["the"], prompt_name="document")
    content = json.loads(record_of(folder).read_text())
    vectors = unpack_vectors(content["sets"][0]["vectors"], 4)
    raw = gemel.load(folder).encode(CANARIES[:4], prompt="", on_long="truncate")
    np.testing.assert_array_equal(vectors, raw)


@pytest.mark.parametrize("make", [routed, asymmetric])
def test_each_side_of_a_model_has_its_own_record(tmp_path, make, computed):
    folder = make(tmp_path / "model")
    model = gemel.load(folder)
    model.encode_query(TEXT)
    assert len(computed) == 1
    model.encode_document(TEXT)
    gemel.load(folder).encode_document(TEXT)
    gemel.load(folder).encode_query(TEXT)
    assert len(computed) == 2
    assert len(list((folder / ".gemel").glob("canary-*.json"))) == 2
    assert [result.holds for result in gemel.load(folder).check_canaries()] == [True, True]


def test_a_table_of_token_vectors_has_a_record(tmp_path):
    folder = tmp_path / "model"
    static_folder(folder / "0_StaticEmbedding")
    modules = [
        {
            "idx": 0,
            "name": "0",
            "path": "0_StaticEmbedding",
            "type": "sentence_transformers.models.StaticEmbedding",
        }
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    gemel.load(folder).encode(TEXT)
    rewrite(record_of(folder, "canary-static-*.json"), off=0.5, numpy="1.26.0")
    with pytest.warns(gemel.VectorsChangedWarning, match=r"\(static, float32\).* Then: numpy 1.26.0; now: "):
        gemel.load(folder).encode(TEXT)


def test_another_pooling_and_a_checkpoint_of_ones_own_do_not_touch_the_record(folder, computed):
    before = record_of(folder).read_bytes()
    gemel.load(folder, pooling="cls").encode(TEXT)
    assert len(computed) == 1
    gemel.load(folder, pooling="mean").encode(TEXT)  # its own
    own = gemel.Model(read_checkpoint(folder))
    own.encode(TEXT)
    assert own.check_canaries() == []
    assert len(computed) == 1
    paths = sorted((folder / ".gemel").glob("canary-*.json"))
    assert len(paths) == 2
    assert before in [path.read_bytes() for path in paths]


def test_the_variable_turns_canaries_off(tmp_path, monkeypatch, computed):
    monkeypatch.setenv("GEMEL_CANARIES", "off")
    folder = tiny_bert(tmp_path / "model")
    gemel.load(folder).encode(TEXT)
    assert computed == []
    assert not (folder / ".gemel").exists()


def test_a_check_encodes_again_and_expects_the_same_bits(folder, computed):
    (result,) = gemel.load(folder).check_canaries()
    assert result.holds
    assert (result.difference, len(computed)) == (0, 1)
    path = record_of(folder)
    rewrite(path, off=1e-6)  # the same versions
    (result,) = gemel.load(folder).check_canaries()
    assert not result.holds
    rewrite(path, off=0.1, gemel="0.0.9")
    (result,) = gemel.load(folder).check_canaries()
    assert not result.holds
    assert result.then["gemel"] == "0.0.9"
    assert result.cosine < 0.999


def test_the_distance_of_vectors():
    one = np.array([[3.0, 4.0], [0.0, 0.0]], dtype=np.float32)
    assert Distance.between(one, one * 2) == Distance(0.0, 1.0)  # only the direction counts
    assert Distance.between(one, one[:, ::-1]).cosine == pytest.approx(24 / 25)
    assert Distance.between(one, np.ones_like(one)).cosine == 0  # a text that had no vector
    assert not Distance.between(one, one[:, :1]).within("float32")
    assert Distance(1e-6, 1.0).within("float32")
    assert not Distance(1e-4, 0.99999).within("float32")
    assert Distance(1e-2, 0.9995).within("int8")
