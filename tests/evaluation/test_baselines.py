"""Baselines on vocabularies of three words."""

import gzip
import sys
import zipfile

import numpy as np
import pytest

from gemel.errors import InputError, MissingExtra
from gemel.evaluation.baselines import BASELINES, BM25, TfIdf, is_baseline, open_baseline, read_word_vectors
from gemel.model import load
from gemel.vectors.bm25 import words_of
from tiny import tiny_bert

LINES = "cat 1 0\ndog 0 1\nthe 4 4\n"
TABLE = np.array([[1, 0], [0, 1], [4, 4]], dtype=np.float32)


def write_glove(folder, lines=LINES, name="vectors.txt"):
    path = folder / name
    path.write_text(lines, encoding="utf-8")
    return path


def test_words_are_lower_cased_runs_of_letters_and_digits():
    assert words_of("The CAT, don't_stop: 42é!") == ["the", "cat", "don", "t", "stop", "42é"]
    assert words_of("The cat don't", stop_words=False) == ["cat"]


def test_the_average_of_word_vectors_by_hand(tmp_path):
    encoder = open_baseline(f"glove:{write_glove(tmp_path)}")
    assert encoder.dim == 2
    vectors = encoder.encode(["Cat", "the cat", "dog dog cat unicorn", "unicorn", ""])
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, [[1, 0], [2.5, 2], [1 / 3, 2 / 3], [0, 0], [0, 0]], atol=1e-7)


def test_skipped_words_and_empty_texts_are_counted(tmp_path):
    report = open_baseline(f"glove:{write_glove(tmp_path)}").encode_report(["a cat", "unicorn", "dog"])
    assert (report.words, report.skipped, report.empty) == (4, 2, 1)


def test_stop_words_can_be_left_out(tmp_path):
    encoder = open_baseline(f"glove-content:{write_glove(tmp_path)}")
    assert encoder.encode(["the cat"]).tolist() == [[1, 0]]
    assert encoder.encode_report(["the cat"]).words == 1


def test_a_string_where_a_list_belongs_is_refused(tmp_path):
    with pytest.raises(InputError, match="list of texts"):
        open_baseline(f"glove:{write_glove(tmp_path)}").encode("cat")


def test_text_with_a_header_packed_and_in_an_archive_is_the_same(tmp_path):
    header = write_glove(tmp_path, "3 2\n" + LINES, "header.vec")
    with gzip.open(tmp_path / "packed.txt.gz", "wt") as file:
        file.write(LINES)
    with zipfile.ZipFile(tmp_path / "one.zip", "w") as archive:
        archive.writestr("v.2d.txt", LINES)
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("v.2d.txt", LINES)
        archive.writestr("v.1d.txt", "cat 1\n")
    for path in (header, tmp_path / "packed.txt.gz", tmp_path / "one.zip", tmp_path / "two.zip" / "v.2d.txt"):
        vectors = read_word_vectors(path)
        assert dict(vectors.index) == {"cat": 0, "dog": 1, "the": 2}
        np.testing.assert_array_equal(vectors.table, TABLE)
    with pytest.raises(InputError, match=r"has several files.*v\.2d\.txt or v\.1d\.txt"):
        read_word_vectors(tmp_path / "two.zip")
    with pytest.raises(InputError, match=r"no 'v\.9d\.txt' in"):
        read_word_vectors(tmp_path / "two.zip" / "v.9d.txt")


def test_words_may_contain_blanks_and_odd_separators_and_the_first_of_two_is_used(tmp_path):
    vectors = read_word_vectors(write_glove(tmp_path, "cat 1 0\nat home 2 2\nx\x85y 3 3\ncat 9 9\n"))
    assert list(vectors.index) == ["cat", "at home", "x\x85y"]
    assert vectors.table.tolist() == [[1, 0], [2, 2], [3, 3]]


@pytest.mark.parametrize("name", ["vectors.txt", "words.txt", "vocab.txt"])
def test_a_table_finds_its_words_next_to_it(tmp_path, name):
    np.save(tmp_path / "vectors.npy", TABLE)
    (tmp_path / name).write_text("cat\ndog\nthe\n")
    for path in (tmp_path, tmp_path / "vectors.npy"):
        vectors = read_word_vectors(path)
        assert vectors.index["the"] == 2
        np.testing.assert_array_equal(vectors.table, TABLE)


def test_words_in_parquet_are_read(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    np.save(tmp_path / "x_emb.npy", TABLE)
    parquet.write_table(pa.table({"index": ["cat", "dog", "the"]}), tmp_path / "x_index.parquet")
    assert read_word_vectors(tmp_path).index == {"cat": 0, "dog": 1, "the": 2}


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", TABLE)
    (tmp_path / "x.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtra, match=r"gemel\[parquet\]"):
        read_word_vectors(tmp_path)


def test_a_list_of_words_beside_vectors_in_text_is_not_taken_for_vectors(tmp_path):
    write_glove(tmp_path, "3 2\n" + LINES, "vectors.txt")
    (tmp_path / "vocab.txt").write_text("other\nwords\nhere\n")
    assert len(read_word_vectors(tmp_path).index) == 3


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("cat 1 0\ndog x 1\n", r":2: expected a word and 2 numbers, got 'dog x 1'"),
        ("cat 1 0\ndog 1\n", r":2: expected a word and 2 numbers"),
        ("cat 1 0\ndog 1 nan\n", r":2: expected a word and 2 numbers"),
        ("cat\n", r":1: expected a word and 0 numbers"),
        ("5 2\ncat 1 0\n", "should have 5 words but has 1"),
        ("", "holds no word vectors"),
    ],
)
def test_bad_vectors_are_refused_with_their_line(tmp_path, lines, message):
    with pytest.raises(InputError, match=message):
        read_word_vectors(write_glove(tmp_path, lines))


def test_tables_that_do_not_fit_are_refused(tmp_path):
    np.save(tmp_path / "v.npy", TABLE)
    with pytest.raises(InputError, match=r"needs the list of its words next to it.*found: none"):
        read_word_vectors(tmp_path)
    (tmp_path / "v.txt").write_text("cat\ndog\n")
    with pytest.raises(InputError, match=r"has 3 rows but .*v\.txt has 2 words"):
        read_word_vectors(tmp_path)
    (tmp_path / "v.npy").write_bytes(b"nothing")
    with pytest.raises(InputError, match="as a table of vectors"):
        read_word_vectors(tmp_path)
    with pytest.raises(InputError, match="no word vectors at"):
        read_word_vectors(tmp_path / "none.txt")


def test_bm25_by_hand():
    hits = BM25().rank(["cat", "cat cat bird", "fish"], ["cat", "cat dog", "dog dog bird"], 3)
    # Two of three documents have "cat"; lengths 1, 2, 3 with mean 2 make allowances of 0.75, 1.2 and 1.65.
    cat, bird = np.log(1 + 1.5 / 2.5), np.log(1 + 2.5 / 1.5)
    assert hits.index.tolist() == [[0, 1, -1], [0, 1, 2], [-1, -1, -1]]
    np.testing.assert_allclose(hits.score[0], [cat / 1.75, cat / 2.2, 0], rtol=1e-6)
    np.testing.assert_allclose(hits.score[1], [2 * cat / 1.75, 2 * cat / 2.2, bird / 2.65], rtol=1e-6)


def test_bm25_breaks_ties_on_the_lower_position_and_cuts_at_k():
    assert BM25().rank(["cat"], ["dog", "cat", "cat", "cat"], 2).index.tolist() == [[1, 2]]


def test_bm25_takes_texts_without_words():
    assert BM25().rank(["?"], ["", "!"], 1).index.tolist() == [[-1]]


def test_bm25_has_no_vectors_and_raises_an_error():
    with pytest.raises(InputError, match="bm25 ranks texts and has no vectors"):
        open_baseline("bm25").encode(["a"])


def test_tfidf_by_hand():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    encoder = TfIdf().fitted(["cat dog", "cat"])
    # Smoothed idf: ln((1 + n) / (1 + df)) + 1, so 1 for cat and ln(3/2) + 1 for dog; then length 1.
    dog = np.log(1.5) + 1
    expected = np.array([1, dog]) / np.hypot(1, dog)
    np.testing.assert_allclose(encoder.encode(["dog cat", "bird"]), [expected, [0, 0]], rtol=1e-6)
    assert encoder.dim == 2
    assert encoder.encode([]).shape == (0, 2)


def test_tfidf_ranks_as_its_vectors_do():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    corpus = ["red fox runs", "blue sky", "red sky at night", "green hill"]
    hits = TfIdf().rank(["red sky"], corpus, 4)
    vectors = TfIdf().fitted(corpus)
    near = vectors.encode(["red sky"]) @ vectors.encode(corpus).T
    result = np.argsort(-near[0], kind="stable")[:3]
    assert hits.index[0].tolist() == [*result.tolist(), -1]
    np.testing.assert_allclose(hits.score[0, :3], near[0, result], rtol=1e-5)


def test_tfidf_learns_from_a_file_or_says_how(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    (tmp_path / "texts.txt").write_text("cat dog\ncat\n")
    assert open_baseline(f"tfidf:{tmp_path / 'texts.txt'}").encode(["cat"]).shape == (1, 2)
    with pytest.raises(InputError, match="must be fitted on texts"):
        open_baseline("tfidf").encode(["cat"])
    with pytest.raises(InputError, match="no words in 1 texts"):
        TfIdf().fitted(["?"])


def test_a_missing_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    with pytest.raises(MissingExtra, match=r"gemel\[evaluate\]"):
        TfIdf().rank(["a"], ["a"], 1)


@pytest.mark.parametrize(("name", "pooling"), [("average-bert", "mean"), ("cls-bert", "cls")])
def test_a_plain_transformer_is_pooled_as_the_name_says(tmp_path, name, pooling):
    folder = tiny_bert(tmp_path / "model")
    encoder = open_baseline(f"{name}:{folder}")
    texts = ["hello world", "a cat"]
    np.testing.assert_array_equal(encoder.encode(texts), load(folder, pooling=pooling).encode(texts))


@pytest.mark.parametrize("name", ["glove", "glove-content", "average-bert", "cls-bert"])
def test_a_baseline_without_its_path_says_how_to_write_it(name):
    with pytest.raises(InputError, match=f"Write {name}:PATH"):
        open_baseline(name)


def test_names_are_listed_and_typos_get_suggestions():
    assert all(is_baseline(f"{name}:x") for name in BASELINES)
    # A folder may be called "sparse" or "late".
    assert {name for name in BASELINES if not is_baseline(name)} == {"sparse", "late"}
    assert not is_baseline("all-MiniLM-L6-v2")
    with pytest.raises(InputError, match="Did you mean 'glove'"):
        open_baseline("glov:x")
    with pytest.raises(InputError, match="bm25 takes no path"):
        open_baseline("bm25:x")
