"""Explanations: the table sums to the cosine for every linear pooling, and others are refused."""

import json

import numpy as np
import pytest
from tests.checkpoint.test_write import MANY

import gemel
from gemel.cli.main import main
from gemel.cli.verbs.explain import heat_map, strongest
from gemel.texts.explanation import words_of
from gemel.texts.whitening import save_postprocessed
from tiny import tiny_bert

LEFT, RIGHT = "a man is playing the guitar", "the woman was running in the rain, sleeping"


def cosine(model, **changes):
    one, other = model.encode([LEFT, RIGHT], **changes).astype(np.float64)
    return one @ other / np.linalg.norm(one) / np.linalg.norm(other)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def model(folder):
    return gemel.load(folder)


@pytest.mark.parametrize(
    "pooling", ["mean", "mean-sqrt-len", "weighted-mean", "cls", "last", ("cls", "mean"), ("mean", "last")]
)
@pytest.mark.parametrize("normalize", [True, False])
def test_the_table_sums_to_the_cosine(folder, pooling, normalize):
    model = gemel.load(folder, pooling=pooling)
    result = gemel.explain(model, LEFT, RIGHT, normalize=normalize)
    assert result.table.sum() == pytest.approx(cosine(model), abs=1e-5)
    assert result.score == pytest.approx(result.table.sum(), abs=1e-12)
    assert result.table.shape == tuple(len(tokens) for tokens in result.tokens)


@pytest.mark.parametrize("method", ["whitening", "centering", "all-but-the-top"])
def test_it_sums_for_a_model_with_linear_layers(model, tmp_path, method):
    save_postprocessed(model, MANY, tmp_path / "new", method=method)
    new = gemel.load(tmp_path / "new")
    result = gemel.explain(new, LEFT, RIGHT)
    assert result.table.sum() == pytest.approx(cosine(new), abs=1e-5)
    assert result.left_tokens[-1] == result.right_tokens[-1] == "(offset)"
    assert result.words().left_tokens[-1] == "(offset)"


def test_fewer_dimensions_and_prompts_are_explained_too(tmp_path):
    model = gemel.load(tiny_bert(tmp_path / "model", prompts={"query": "how do i "}))
    result = gemel.explain(model, LEFT, RIGHT, dim=8, prompt_name="query")
    assert result.score == pytest.approx(cosine(model, dim=8, prompt_name="query"), abs=1e-5)
    assert result.left_tokens[1:4] == ("how", "do", "i")


def test_a_prompt_that_does_not_count_adds_nothing(tmp_path):
    folder = tiny_bert(tmp_path / "model", prompts={"query": "how do i "})
    config = folder / "1_Pooling" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "include_prompt": False}))
    model = gemel.load(folder)
    result = gemel.explain(model, LEFT, RIGHT, prompt_name="query")
    assert result.score == pytest.approx(cosine(model, prompt_name="query"), abs=1e-5)
    assert not result.table[:4].any()
    assert not result.table[:, :4].any()


def test_words_add_up_their_pieces(model):
    result = gemel.explain(model, "reset guitars", "the dog")
    words = result.words()
    assert result.left_tokens == ("[CLS]", "reset", "guitar", "##s", "[SEP]")
    assert words.left_tokens == ("[CLS]", "reset", "guitars", "[SEP]")
    np.testing.assert_allclose(words.table[2], result.table[2] + result.table[3])
    assert words.table.sum() == pytest.approx(result.score)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["[CLS]", "play", "##ing", "##s", ".", "[SEP]"], ["[CLS]", "playings", ".", "[SEP]"]),
        (["<s>", "A", "Ġguitar", "ist", ",", "Ġno", "</s>"], ["<s>", "A", "guitarist", ",", "no", "</s>"]),
        (["<s>", "▁un", "believ", "able", "!", "▁yes"], ["<s>", "unbelievable", "!", "yes"]),
        (["<s>", "Ġcaf", "Ã©", "Ġau", "Ġlait"], ["<s>", "café", "au", "lait"]),
        (["<s>", "▁", "word"], ["<s>", "word"]),
        (["#", "##", "a"], ["#", "##", "a"]),
        ([], []),
    ],
)
def test_pieces_become_words(tokens, words):
    result = words_of(tokens)
    assert [word.text for word in result] == words
    assert [position for word in result for position in word.positions] == list(range(len(tokens)))


def test_a_text_with_itself_scores_one_and_the_table_is_symmetric(model):
    result = gemel.explain(model, LEFT, LEFT)
    assert result.score == pytest.approx(1)
    np.testing.assert_allclose(result.table, result.table.T, atol=1e-12)


def test_an_empty_text_can_be_explained(model):
    assert gemel.explain(model, "", RIGHT).left_tokens == ("[CLS]", "[SEP]")


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"pooling": "max"}, "pools by 'max'"), ({"dense": 16}, "a dense layer with tanh")],
)
def test_a_vector_that_is_not_a_linear_sum_is_refused(tmp_path, settings, words):
    model = gemel.load(tiny_bert(tmp_path / "model", **settings))
    with pytest.raises(gemel.InputError, match=words):
        gemel.explain(model, LEFT, RIGHT)


def test_bad_options_are_refused(model):
    with pytest.raises(gemel.InputError, match="dim must be at most 32"):
        gemel.explain(model, LEFT, RIGHT, dim=99)
    with pytest.raises(gemel.InputError, match="unknown option 'color'"):
        gemel.explain(model, LEFT, RIGHT, color="red")


def test_json_has_both_tables(model):
    result = gemel.explain(model, "reset guitars", "the dog")
    data = json.loads(json.dumps(result.to_json()))
    assert np.sum(data["table"]) == pytest.approx(data["score"]) == pytest.approx(np.sum(data["word_table"]))
    assert len(data["word_table"]) == len(data["left_words"]) == 4


def test_the_page_is_complete_and_escapes_texts(model):
    page = gemel.explain(model, "<script>alert(1)</script>", "a & b guitars").to_html()
    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "http" not in page
    assert page.count("<h2>") == 2


def test_the_command_prints_json_when_piped(folder, capsys):
    assert main(["explain", LEFT, RIGHT, "--model", str(folder), "--threads", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["left"] == LEFT


def test_the_command_writes_a_page(folder, tmp_path, capsys):
    page = tmp_path / "why.html"
    assert main(["explain", LEFT, RIGHT, "--model", str(folder), "-o", str(page)]) == 0
    assert "Cosine" in page.read_text(encoding="utf-8")
    assert str(page) in capsys.readouterr().err


def test_the_heat_map_shows_every_number_and_the_sums(model):
    from rich.console import Console

    console = Console(width=200, no_color=True)
    with console.capture() as shown:
        console.print(heat_map(gemel.explain(model, "the dog [red]", "the cat")))
    lines = [line.split() for line in shown.get().splitlines()]
    assert lines[0] == ["[CLS]", "the", "cat", "[SEP]", "sum"]
    assert [line[0] for line in lines[1:]] == [
        "[CLS]",
        "the",
        "dog",
        "[",
        "r",
        "##e",
        "##d",
        "]",
        "[SEP]",
        "sum",
    ]


def test_the_strongest_pairs_come_first(model):
    pairs = strongest(gemel.explain(model, LEFT, RIGHT))
    sizes = [abs(value) for value, _, _ in pairs]
    assert sizes == sorted(sizes, reverse=True)
