"""The map: coordinates in the plane, and a page that contains everything."""

import json
import re
from itertools import pairwise

import numpy as np
import pytest

from gemel.errors import InputError
from gemel.groups.cluster import Anchors, Cluster, Clusters
from gemel.groups.map import color_of, layout, map_page

EVIL = '</script><img src=x onerror="alert(1)"><!-- {{data}} {{title}}'


def page_of(texts=("a cat", "the cat", "a dog"), title="Clusters of pets", **changes):
    coordinates = np.linspace(0, 1, 2 * len(texts)).reshape(-1, 2)
    labels = np.array([0] * (len(texts) - 1) + [-1])
    item = Cluster(0, 2, 0, 0.9, None, None, "a cat", ("cat", "pets"))
    anchors = Anchors(np.eye(1), np.ones(1), np.eye(1), np.eye(1), None)
    clusters = Clusters("communities", {}, labels, (item,), None, anchors)
    return map_page(title, clusters, coordinates, texts, **changes)


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, flags=re.DOTALL)[1])


def groups_of_vectors(n=60, dim=12):
    random = np.random.default_rng(0)
    middles = np.linalg.qr(random.normal(size=(dim, dim)))[0][:3]
    return middles[np.arange(n) % 3] + random.normal(size=(n, dim)) * 0.05, np.arange(n) % 3


@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_texts_that_are_alike_lie_together(method):
    if method == "tsne":
        pytest.importorskip("sklearn", reason="the extra evaluate is not installed")
    rows, group = groups_of_vectors()
    coordinates = layout(rows, method)
    assert coordinates.shape == (60, 2)
    assert coordinates.min() >= 0
    assert coordinates.max() <= 1
    middles = np.stack([coordinates[group == g].mean(axis=0) for g in range(3)])
    near = np.linalg.norm(coordinates[:, None] - middles[None], axis=2).argmin(axis=1)
    assert (near == group).all()
    assert (layout(rows, method) == coordinates).all()


def test_texts_beyond_the_landmarks_are_placed_between_their_neighbors(monkeypatch):
    pytest.importorskip("sklearn", reason="the extra evaluate is not installed")
    monkeypatch.setattr("gemel.groups.map.LANDMARKS", 30)
    rows, group = groups_of_vectors()
    coordinates = layout(rows)
    middles = np.stack([coordinates[group == g].mean(axis=0) for g in range(3)])
    assert (np.linalg.norm(coordinates[:, None] - middles[None], axis=2).argmin(axis=1) == group).all()


@pytest.mark.parametrize("n", [0, 1, 2, 9])
def test_few_texts_have_a_map_too(n):
    coordinates = layout(np.eye(12)[:n])
    assert coordinates.shape == (n, 2)
    assert np.isfinite(coordinates).all()


def test_one_dimension_and_equal_rows_are_handled():
    assert np.isfinite(layout(np.ones((4, 1)))).all()
    assert np.isfinite(layout(np.ones((4, 3)), "pca")).all()


def test_an_unknown_layout_is_refused():
    with pytest.raises(InputError, match=r"unknown layout 'umap'. Known: tsne, pca"):
        layout(np.eye(3), "umap")


def test_the_page_contains_all_data_and_loads_nothing():
    page = page_of()
    data = data_of(page)
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
    page = page_of((EVIL, "b", "c"), title=EVIL)
    assert "<img" not in page
    assert page.count("</script>") == 2
    assert data_of(page)["text"][0] == EVIL


def test_a_large_map_shows_a_random_sample_and_reports_it():
    page = page_of(("a", "b", "c", "d"), most=2)
    data = data_of(page)
    assert len(data["x"]) == len(data["y"]) == len(data["c"]) == len(data["text"]) == 2
    assert "The map shows 2 of them, chosen at random" in page


def test_groups_next_to_each_other_differ_in_color():
    colors = [color_of(at) for at in range(30)]
    assert len(set(colors)) == 30
    assert all(abs(a[0] - b[0]) > 20 for a, b in pairwise(colors))
