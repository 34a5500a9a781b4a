"""Clusters of vectors: communities by hand and by brute force, the other methods, order, stable ids, bad input."""

import json

import numpy as np
import pytest

import gemel
from gemel.errors import InputError
from gemel.groups.grouping import METHODS, frequent_words, keywords, points_of

SETTINGS = {
    "communities": {"min_score": 0.6},
    "k-means": {"k": 6},
    "spherical-k-means": {"k": 6},
    "agglomerative": {"min_score": 0.5},
    "hdbscan": {"min_size": 4},
}


def clustered(n=240, groups=6, dim=16, noise=0.12, seed=0):
    """Unit vectors around a few directions, and the direction of each."""
    random = np.random.default_rng(seed)
    middles = np.linalg.qr(random.normal(size=(dim, dim)))[0][:groups]
    group = random.permutation(np.arange(n) % groups)
    rows = middles[group] + random.normal(size=(n, dim)) * noise
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), group


def sets_of(labels):
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist()) - {-1}}


def by_size_then_position(rows, min_score, min_size):
    """The published greedy rule, ties by position: largest candidate first, overlaps removed."""
    near = rows.astype(np.float64) @ rows.T.astype(np.float64) >= min_score
    np.fill_diagonal(near, True)
    taken, actual = np.zeros(len(rows), dtype=bool), set()
    for center in np.argsort(-near.sum(axis=1), kind="stable"):
        members = np.flatnonzero(near[center] & ~taken)
        if not taken[center] and len(members) >= min_size:
            taken[members] = True
            actual.add(frozenset(members.tolist()))
    return actual


# Communities


def test_a_community_is_a_center_and_what_is_near_it():
    angles = np.radians([0, 20, 40, 90, 95, 200])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    actual = gemel.cluster(rows, min_score=0.9, min_size=2)
    assert actual.labels.tolist() == [0, 0, 0, 1, 1, -1]
    assert actual.items[0].center == 1
    assert [item.size for item in actual.items] == [3, 2]
    assert actual.unassigned == 1


@pytest.mark.parametrize("noise", [0.12, 0.2, 0.3])
@pytest.mark.parametrize("min_size", [2, 5])
def test_communities_equal_the_greedy_rule_where_ties_do_not_matter(noise, min_size):
    rows, _ = clustered(noise=noise)
    ours = sets_of(gemel.cluster(rows, min_score=0.6, min_size=min_size).labels)
    everywhere = None
    for seed in range(8):  # what the rule finds in every order does not depend on its ties
        order = np.random.default_rng(seed).permutation(len(rows))
        moved = {
            frozenset(order[list(actual)].tolist())
            for actual in by_size_then_position(rows[order], 0.6, min_size)
        }
        everywhere = moved if everywhere is None else everywhere & moved
    assert everywhere
    assert everywhere <= ours


def test_every_member_is_as_near_to_its_center_as_the_threshold():
    rows, _ = clustered(noise=0.3)
    actual = gemel.cluster(rows, min_score=0.6)
    for item in actual.items:
        assert (rows[actual.members(item.id)] @ rows[item.center]).min() >= 0.6 - 1e-6


def test_repeated_rows_count_as_often_as_they_come():
    rows = np.array([[1, 0, 0]] * 3 + [[0, 1, 0], [0, 0.99, 0.1]], dtype=np.float32)
    actual = gemel.cluster(rows, min_score=0.9, min_size=3)
    assert actual.labels.tolist() == [0, 0, 0, -1, -1]
    assert actual.items[0].inside == pytest.approx(1)


def test_a_threshold_that_joins_everything_is_refused_before_memory_is_full():
    rows = np.abs(np.random.default_rng(0).normal(size=(3000, 8)))
    with pytest.raises(
        InputError, match=r"pairs of 3,000 texts are as similar as min_score=0: too many for memory"
    ):
        gemel.cluster(rows, min_score=0, memory="2MB")


def test_pairs_that_do_not_fit_in_memory_are_spilled_to_disk_with_the_same_clusters():
    rows, _ = clustered(n=1200)
    small = gemel.cluster(rows, min_score=0.6, memory="7MB")
    assert small.labels.tolist() == gemel.cluster(rows, min_score=0.6).labels.tolist()


# Every method


@pytest.mark.parametrize("name", METHODS)
def test_a_method_finds_groups_that_are_there(name):
    rows, group = clustered()
    actual = gemel.cluster(rows, method=name, **SETTINGS[name])
    assert sets_of(actual.labels) == sets_of(group)
    assert actual.method == name


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_the_rows_changes_no_label(name):
    rows, _ = clustered(noise=0.3)
    rows = np.concatenate([rows, rows[:40]])  # with repeats
    order = np.random.default_rng(1).permutation(len(rows))
    first = gemel.cluster(rows, method=name, **SETTINGS[name])
    second = gemel.cluster(rows[order], method=name, **SETTINGS[name])
    assert second.labels.tolist() == first.labels[order].tolist()
    assert [item.inside for item in second.items] == [item.inside for item in first.items]
    centers = rows[order][[item.center for item in second.items]]
    assert (centers == rows[[item.center for item in first.items]]).all()
    assert second.silhouette == first.silhouette


@pytest.mark.parametrize("name", METHODS)
def test_a_row_of_zeros_is_in_no_cluster(name):
    rows, _ = clustered()
    rows = np.concatenate([np.zeros((2, rows.shape[1]), np.float32), rows])
    actual = gemel.cluster(rows, method=name, **SETTINGS[name])
    assert actual.labels[:2].tolist() == [-1, -1]
    assert actual.labels[2:].min() == 0


@pytest.mark.parametrize("name", METHODS)
def test_ids_go_down_in_size_and_figures_are_true(name):
    rows, _ = clustered(n=250, noise=0.2)
    actual = gemel.cluster(rows, method=name, **SETTINGS[name])
    sizes = [item.size for item in actual.items]
    assert sizes == sorted(sizes, reverse=True)
    assert [item.id for item in actual.items] == list(range(len(sizes)))
    table = rows.astype(np.float64) @ rows.T.astype(np.float64)
    for item in actual.items:
        members = actual.members(item.id)
        assert len(members) == item.size
        assert item.center in members
        inside = table[np.ix_(members, members)][np.triu_indices(len(members), 1)]
        assert item.inside == pytest.approx(inside.mean(), abs=1e-6)
        others = {
            other.id: table[np.ix_(members, actual.members(other.id))].mean()
            for other in actual.items
            if other.id != item.id
        }
        assert item.nearest == max(others, key=others.get)
        assert item.outside == pytest.approx(others[item.nearest], abs=1e-6)


def test_the_silhouette_is_scikit_learn_s():
    metrics = pytest.importorskip("sklearn.metrics", reason="the extra evaluate is not installed")
    rows, _ = clustered(noise=0.3)
    actual = gemel.cluster(rows, k=5)
    expected = metrics.silhouette_score(rows, actual.labels, metric="cosine")
    assert actual.silhouette == pytest.approx(expected, abs=1e-5)


def test_agglomerative_makes_exactly_k_clusters():
    rows, _ = clustered(noise=0.5)
    assert len(gemel.cluster(rows, method="agglomerative", k=9)) == 9


def test_agglomerative_says_how_much_memory_it_needs():
    rows, _ = clustered()
    with pytest.raises(InputError, match=r"agglomerative clustering of 240 texts needs about .* GB"):
        gemel.cluster(rows, method="agglomerative", k=2, memory="100KB")


def test_hdbscan_finds_the_same_with_and_without_a_table_of_distances():
    rows, _ = clustered(noise=0.2)
    table = gemel.cluster(rows, method="hdbscan", min_size=5)
    tree = gemel.cluster(rows, method="hdbscan", min_size=5, memory="1KB")
    assert sets_of(table.labels) == sets_of(tree.labels)


def test_spherical_k_means_fills_every_cluster():
    rows = np.eye(6, dtype=np.float32)
    actual = gemel.cluster(rows, method="spherical-k-means", k=6)
    assert sorted(actual.labels.tolist()) == list(range(6))


# Names


def test_a_cluster_is_named_by_its_central_text_and_its_words():
    rows = np.array([[1, 0], [0.99, 0.1], [0.98, 0.2], [0, 1], [0.1, 0.99]], dtype=np.float32)
    texts = ["the cat sleeps", "the cat eats", "the old cat", "the stock fell", "the stock rose"]
    actual = gemel.cluster(rows, min_score=0.9, texts=texts)
    first, second = actual.items
    assert first.text == "the cat eats"
    assert first.keywords == ("cat",)
    assert second.keywords[0] == "stock"
    assert first.name == "cat"


def test_without_texts_the_name_is_the_number():
    assert gemel.cluster(np.eye(2), k=2).items[1].name == "cluster 1"


def test_words_that_are_everywhere_are_no_keywords():
    texts = ["the cat", "the cat", "the cat", "the dog", "the dog", "the dog"]
    assert keywords(texts, np.array([0, 0, 0, 1, 1, 1]), 2) == [("cat",), ("dog",)]


def named(*groups, vocabulary=()):
    """The keywords of groups of texts."""
    texts = [text for group in groups for text in group]
    labels = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    return keywords(texts, labels, len(groups), vocabulary)


def test_words_of_scripts_without_spaces_are_pairs_of_characters():
    first, second = named(["人工智能"] * 3, ["Straße 3 a 42"] * 3)
    assert first == ("人工", "工智", "智能")
    assert second == ("strasse",)


def test_a_name_has_no_stop_words_numbers_or_single_letters():
    first, _ = named(
        [
            "Why don't you send my parcel in 2 weeks?",
            "I don't have my parcel, it's 2 weeks",
            "My parcel is 2 late",
        ],
        ["The screen is black", "A black screen", "Black screen"],
    )
    assert first == ("parcel",)


def test_a_phrase_is_named_instead_of_its_words():
    first, second = named(
        ["the death penalty is wrong", "is the death penalty just?", "no death penalty"],
        ["wind turbines kill birds", "birds and turbines", "a turbine for birds"],
    )
    assert first == ("death penalty",)
    assert second == ("birds", "turbines")


def test_singular_and_plural_are_one_word_and_a_particle_belongs_to_its_verb():
    first, second = named(
        ["my movies", "a movie", "the movies"], ["How to top up?", "top up by card", "a card to top-up with"]
    )
    assert first == ("movies",)
    assert second == ("top up", "card")


def test_words_beside_a_comma_are_no_phrase():
    first, _ = named(["cats, dogs", "cats, dogs", "cats, dogs"], ["rain", "rain", "rain"])
    assert first == ("cats", "dogs")


def test_frequent_words_of_the_vocabulary_are_poor_names():
    cats, rain = ["die katze schläft", "die katze frisst"], ["es regnet heute", "es regnet morgen"]
    assert named(cats, rain) == [("die katze", "frisst", "schläft"), ("es regnet", "heute", "morgen")]
    first, second = named(cats, rain, vocabulary=["die", "es", "und"])
    assert first[0] == "katze"
    assert second[0] == "regnet"


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["[CLS]", "a", "the", "of", "##s", "cat", "42"], ["the", "of", "cat"]),
        (["<s>", "▁the", "s", "▁of", "▁a", ".", "ing"], ["the", "of"]),
    ],
)
def test_the_words_of_a_vocabulary_come_in_its_order(tokens, expected):
    class Vocabulary:
        vocabulary = 5000

        def names(self, ids):
            return [tokens[i] if i < len(tokens) else f"[unused{i}]" for i in ids]

    assert frequent_words(Vocabulary()) == expected
    Vocabulary.vocabulary = 400  # of a toy
    assert frequent_words(Vocabulary()) == []


# Texts that come later


def test_texts_added_later_keep_the_ids_of_earlier_clusters():
    rows, _ = clustered(n=240)
    first = gemel.cluster(rows[:160], min_score=0.6)
    new, _ = clustered(n=30, groups=2, seed=9)
    later = np.concatenate([rows[160:], new])
    grown = gemel.cluster(later, earlier=first)
    assert grown.labels[:160].tolist() == first.labels.tolist()
    assert grown.labels[160:240].tolist() == first.assign(rows[160:]).tolist()
    assert set(grown.labels[240:].tolist()) == {len(first), len(first) + 1}
    assert [item.id for item in grown.items] == list(range(len(first) + 2))
    assert sum(item.size for item in grown.items) == 270
    for item in grown.items:
        assert item.size == len(grown.members(item.id))
        assert item.center in grown.members(item.id)
    every = np.concatenate([rows, new]).astype(np.float64)
    members = grown.members(0)
    inside = (every[members] @ every[members].T)[np.triu_indices(len(members), 1)].mean()
    assert grown.items[0].inside == pytest.approx(inside, abs=1e-6)


def test_earlier_unassigned_texts_can_join_a_new_cluster():
    first = gemel.cluster([[1, 0], [0.99, 0.1], [0, 1]], min_score=0.9, texts=["a cat", "the cat", "a dog"])
    grown = gemel.cluster([[0.1, 0.99]], earlier=first, texts=["the dog"])
    assert first.labels.tolist() == [0, 0, -1]
    assert grown.labels.tolist() == [0, 0, 1, 1]
    assert grown.items[0].keywords == first.items[0].keywords
    assert (grown.items[1].center, grown.items[1].text) in {(2, "a dog"), (3, "the dog")}


@pytest.mark.parametrize("name", METHODS)
def test_members_would_be_assigned_to_their_own_cluster(name):
    rows, _ = clustered()
    actual = gemel.cluster(rows, method=name, **SETTINGS[name])
    assert actual.assign(rows).tolist() == actual.labels.tolist()


@pytest.mark.parametrize("name", METHODS)
def test_saved_clusters_are_loaded_and_extended(name, tmp_path):
    rows, _ = clustered(noise=0.25)
    texts = [f"text {position}" for position in range(200)]
    actual = gemel.cluster(rows[:200], method=name, texts=texts, **SETTINGS[name])
    back = gemel.Clusters.load(actual.save(tmp_path / "c"))
    assert back.to_json() == actual.to_json()
    assert back.labels.tolist() == actual.labels.tolist()
    more = [f"more {position}" for position in range(40)]
    one = gemel.cluster(rows[200:], earlier=actual, texts=more)
    other = gemel.cluster(rows[200:], earlier=back, texts=more)
    assert one.labels.tolist() == other.labels.tolist()
    assert one.to_json() == other.to_json()


def test_the_json_is_readable(tmp_path):
    gemel.cluster(np.eye(3), k=3, texts=["one", "two", "three"]).save(tmp_path)
    content = json.loads((tmp_path / "clusters.json").read_text(encoding="utf-8"))
    assert content["clusters"][0]["size"] == 1
    assert {item["text"] for item in content["clusters"]} == {"one", "two", "three"}


def test_files_of_two_runs_are_not_mixed(tmp_path):
    gemel.cluster(np.eye(3), k=3).save(tmp_path / "a")
    gemel.cluster(np.eye(3), k=3).save(tmp_path / "b")
    (tmp_path / "a" / "clusters.npz").replace(tmp_path / "b" / "clusters.npz")
    with pytest.raises(InputError, match="of two runs"):
        gemel.Clusters.load(tmp_path / "b")
    with pytest.raises(InputError, match="no clusters in"):
        gemel.Clusters.load(tmp_path / "a")


def test_a_damaged_file_is_an_error_of_ours(tmp_path):
    gemel.cluster(np.eye(3), k=3).save(tmp_path)
    (tmp_path / "clusters.npz").write_bytes(b"PK\x03\x04 nonsense")
    with pytest.raises(InputError, match="cannot be read"):
        gemel.Clusters.load(tmp_path)


# Bad input


@pytest.mark.parametrize("name", ["communities", "agglomerative", "hdbscan"])
def test_no_rows_make_no_clusters(name):
    given = {} if name == "hdbscan" else {"min_score": 0.5}
    actual = gemel.cluster(np.empty((0, 4)), method=name, **given)
    assert len(actual) == 0
    assert actual.summary() == "0 clusters of 0 texts, 0 in none"


@pytest.mark.parametrize("name", ["communities", "agglomerative", "hdbscan"])
def test_one_row_makes_no_cluster(name):
    given = {} if name == "hdbscan" else {"min_score": 0.5}
    assert gemel.cluster(np.eye(4)[:1], method=name, **given).labels.tolist() == [-1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "comunities"}, "unknown method of clustering 'comunities'. Did you mean 'communities'?"),
        ({"k": 0}, "k must be a whole number of at least 1, got 0"),
        ({"k": 4}, "k=4 clusters of 3 different vectors: k must be at most that"),
        ({"k": 4, "method": "agglomerative"}, "k=4 clusters of 3 different vectors"),
        ({"method": "k-means"}, "k-means needs k, the number of clusters"),
        ({"method": "agglomerative"}, "agglomerative needs either k"),
        ({"method": "agglomerative", "k": 2, "min_score": 0.5}, "agglomerative needs either k"),
        ({"method": "communities", "k": 2}, "communities takes min_score, not k"),
        ({"method": "k-means", "k": 2, "min_score": 0.5}, "k-means takes k, not min_score"),
        ({"method": "hdbscan", "k": 2}, "hdbscan takes neither k nor min_score"),
        ({"min_score": float("nan")}, "min_score must be a finite number"),
        ({"min_size": 0}, "min_size must be a whole number of at least 1, got 0"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"texts": ["one"]}, "1 texts but 3 vectors"),
        ({"texts": "one"}, "texts must be a list of texts"),
    ],
)
def test_a_wrong_request_says_what_is_wrong(given, message):
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        gemel.cluster(np.eye(3), **given)


def test_nan_is_refused_with_its_row():
    rows = np.eye(3)
    rows[1, 2] = np.nan
    with pytest.raises(InputError, match="row 1 has NaN or infinity"):
        gemel.cluster(rows)


def test_rows_of_another_size_cannot_be_added():
    actual = gemel.cluster(np.eye(3), k=3)
    with pytest.raises(InputError, match="vectors have 4 dimensions but the earlier clusters have 3"):
        gemel.cluster(np.eye(4), earlier=actual)
    with pytest.raises(InputError, match="k comes from the earlier clusters"):
        gemel.cluster(np.eye(3), earlier=actual, k=3)
    with pytest.raises(InputError, match="vectors have 4 dimensions but the clusters have 3"):
        actual.assign(np.eye(4))


def test_equal_directions_are_one_point():
    points = points_of(np.array([[2, 0], [0, 0], [1, -0.0], [0, 1]], dtype=np.float32))
    assert len(points) == 2
    assert sorted(points.counts.tolist()) == [1, 2]
    assert points.of_row[0] == points.of_row[2]
    assert points.of_row[1] == -1


def test_the_last_bits_of_vectors_decide_no_tie():
    """Processors differ in the last bits; pairs are symmetric, so every cluster of two is a tie."""
    rng = np.random.default_rng(5)
    base = rng.normal(size=(6, 24)).astype(np.float32)
    rows = np.repeat(base, 2, axis=0) + rng.normal(scale=0.05, size=(12, 24)).astype(np.float32)
    expected = gemel.cluster(rows, min_score=0.9, min_size=2)
    assert len(expected.items) == 6
    for shift in (np.inf, -np.inf):
        result = gemel.cluster(np.nextafter(rows, np.float32(shift)), min_score=0.9, min_size=2)
        np.testing.assert_array_equal(result.labels, expected.labels)
        assert [each.center for each in result.items] == [each.center for each in expected.items]


class WordEncoder:
    """One dimension per first word."""

    dim = 2

    def encode(self, texts):
        return np.array([[text.startswith("cat"), text.startswith("dog")] for text in texts], np.float32)


def test_texts_are_clustered_if_there_is_a_model():
    texts = ["cat one", "dog one", "cat two", "dog two", "dog three"]
    clusters = gemel.cluster(texts, model=WordEncoder())
    assert clusters.labels.tolist() == [1, 0, 1, 0, 0]
    assert clusters.items[0].text in texts
    with pytest.raises(gemel.InputError, match="Encode them first"):
        gemel.cluster(texts)
