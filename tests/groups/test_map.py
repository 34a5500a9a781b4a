"""The map: places in the plane, a page that holds everything, a picture that any viewer opens."""

import json
import re
from itertools import pairwise

import numpy as np
import pytest

from gemel.errors import InputError
from gemel.groups.map import Group, MapContent, colour_of, layout, map_page, thinned

EVIL = '</script><img src=x onerror="alert(1)"><!-- {{data}} {{title}}'


def content(texts=("a cat", "the cat", "a dog"), title="Clusters of pets"):
    places = np.linspace(0, 1, 2 * len(texts)).reshape(-1, 2)
    labels = np.array([0] * (len(texts) - 1) + [-1])
    return MapContent(title, "1 cluster", places, labels, (Group(0, "cat, pets", 2, "a cat"),), list(texts))


def groups_of_vectors(n=60, dim=12):
    random = np.random.default_rng(0)
    middles = np.linalg.qr(random.normal(size=(dim, dim)))[0][:3]
    return middles[np.arange(n) % 3] + random.normal(size=(n, dim)) * 0.05, np.arange(n) % 3


@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_texts_that_are_alike_lie_together(method):
    if method == "tsne":
        pytest.importorskip("sklearn", reason="the extra evaluate is not installed")
    rows, group = groups_of_vectors()
    places = layout(rows, method)
    assert places.shape == (60, 2)
    assert places.min() >= 0
    assert places.max() <= 1
    middles = np.stack([places[group == g].mean(axis=0) for g in range(3)])
    near = np.linalg.norm(places[:, None] - middles[None], axis=2).argmin(axis=1)
    assert (near == group).all()
    assert (layout(rows, method) == places).all()


def test_texts_beyond_the_landmarks_are_put_between_their_neighbours(monkeypatch):
    pytest.importorskip("sklearn", reason="the extra evaluate is not installed")
    monkeypatch.setattr("gemel.groups.map.LANDMARKS", 30)
    rows, group = groups_of_vectors()
    places = layout(rows)
    middles = np.stack([places[group == g].mean(axis=0) for g in range(3)])
    assert (np.linalg.norm(places[:, None] - middles[None], axis=2).argmin(axis=1) == group).all()


@pytest.mark.parametrize("n", [0, 1, 2, 9])
def test_few_texts_have_a_map_too(n):
    places = layout(np.eye(12)[:n])
    assert places.shape == (n, 2)
    assert np.isfinite(places).all()


def test_one_dimension_and_equal_rows_are_no_trouble():
    assert np.isfinite(layout(np.ones((4, 1)))).all()
    assert np.isfinite(layout(np.ones((4, 3)), "pca")).all()


def test_an_unknown_layout_is_refused():
    with pytest.raises(InputError, match=r"unknown layout 'umap'. Known: tsne, pca"):
        layout(np.eye(3), "umap")


def test_a_map_needs_as_many_texts_as_places():
    with pytest.raises(InputError, match="got 3 places, 3 labels and 1 texts"):
        MapContent("t", "s", np.zeros((3, 2)), np.zeros(3, np.int64), (), ["one"])


def test_the_page_holds_all_data_and_asks_for_nothing():
    page = map_page(content())
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, flags=re.DOTALL)[1])
    assert data["text"] == ["a cat", "the cat", "a dog"]
    assert data["c"] == [0, 0, -1]
    assert data["unassigned"] == 1
    assert data["clusters"][0]["name"] == "cat, pets"
    assert "http://" not in page
    assert "https://" not in page
    assert "src=" not in page
    assert "default-src 'none'" in page
    assert "{{" not in page


def test_no_text_becomes_markup():
    page = map_page(content((EVIL, "b", "c"), title=EVIL))
    assert "<img" not in page
    assert page.count("</script>") == 2
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, flags=re.DOTALL)[1])
    assert data["text"][0] == EVIL


def test_a_large_map_shows_a_random_part_and_says_so():
    small = thinned(content(("a", "b", "c", "d")), most=2)
    assert len(small.places) == len(small.texts) == len(small.labels) == 2
    assert small.summary == "1 cluster. The map shows 2 of them, chosen at random"


def test_groups_next_to_each_other_differ_in_colour():
    colours = [colour_of(at) for at in range(30)]
    assert len(set(colours)) == 30
    assert all(abs(a[0] - b[0]) > 20 for a, b in pairwise(colours))
