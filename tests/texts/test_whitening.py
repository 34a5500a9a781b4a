"""Maps and measures on arrays that can be checked by hand, then properties on random ones."""

import numpy as np
import pytest

from gemel.checkpoint.head import Dense
from gemel.errors import InputError
from gemel.texts.whitening import (
    METHODS,
    Fitted,
    Settings,
    fit_all_but_the_top,
    fit_centering,
    fit_whitening,
    isotropy,
)


def cloud(rows=400, dim=12, seed=0):
    """Vectors far from zero, wide in some directions and narrow in others."""
    random = np.random.default_rng(seed)
    mixed = random.normal(size=(rows, dim)) * np.geomspace(5, 0.05, dim) @ random.normal(size=(dim, dim))
    return (mixed + random.normal(size=dim) * 10).astype(np.float32)


# x spreads by 2, y by 1, around (10, 20): variances 16/3 and 4/3 with n - 1 = 3.
CROSS = np.array([[12, 21], [12, 19], [8, 21], [8, 19]], dtype=np.float32)


def test_whitening_by_hand():
    result = fit_whitening(CROSS)
    assert np.allclose(np.abs(result.layer.weight), np.diag([np.sqrt(3 / 16), np.sqrt(3 / 4)]))
    half = np.sqrt(3) / 2
    assert np.allclose(result.apply(CROSS), [[half, half], [half, -half], [-half, half], [-half, -half]])


def test_centering_by_hand():
    result = fit_centering(CROSS)
    assert result.layer.weight.tolist() == [[1, 0], [0, 1]]
    assert result.layer.bias.tolist() == [-10, -20]
    assert result.apply(CROSS).tolist() == [[2, 1], [2, -1], [-2, 1], [-2, -1]]


def test_all_but_the_top_by_hand():
    assert np.allclose(fit_all_but_the_top(CROSS, 1).apply(CROSS), [[0, 1], [0, -1], [0, 1], [0, -1]])


def test_all_but_the_top_of_nothing_is_centering():
    vectors = cloud()
    assert np.allclose(fit_all_but_the_top(vectors, 0).layer.weight, fit_centering(vectors).layer.weight)


def test_whitened_vectors_have_mean_0_and_covariance_1():
    vectors = cloud()
    out = fit_whitening(vectors).apply(vectors)
    assert np.allclose(out.mean(axis=0), 0, atol=1e-3)
    assert np.allclose(np.cov(out.T), np.eye(12), atol=1e-3)


def test_whitening_to_fewer_dimensions_is_the_start_of_the_whole():
    whole, part = fit_whitening(cloud()), fit_whitening(cloud(), 5)
    assert part.layer.weight.shape == (5, 12)
    assert np.array_equal(part.layer.weight, whole.layer.weight[:5])
    assert np.array_equal(part.layer.bias, whole.layer.bias[:5])


def test_whitening_agrees_with_the_singular_value_decomposition():
    vectors = cloud()
    centered = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    _, widths, directions = np.linalg.svd(centered, full_matrices=False)
    expected = directions / widths[:, None] * np.sqrt(len(vectors) - 1)
    assert np.allclose(np.abs(fit_whitening(vectors).layer.weight), np.abs(expected), rtol=1e-3, atol=1e-5)


def test_a_direction_without_spread_becomes_0_and_is_counted():
    vectors = cloud()
    vectors[:, 3] = 7
    result = fit_whitening(vectors)
    assert result.note == "1 of 12 directions have no variance and are 0 after the map"
    assert not result.layer.weight[-1].any()
    assert fit_whitening(vectors, 11).note == ""


def test_fewer_vectors_than_dimensions_do_not_blow_up_what_was_not_seen():
    result = fit_whitening(cloud(rows=6))
    assert result.note == "7 of 12 directions have no variance and are 0 after the map"
    assert np.abs(result.apply(cloud(seed=1))).max() < 1e4


def test_two_fits_agree_to_the_bit():
    assert np.array_equal(fit_whitening(cloud()).layer.weight, fit_whitening(cloud()).layer.weight)


def test_a_row_has_the_same_bits_alone_and_among_others():
    vectors = cloud(rows=70, dim=37)
    result = fit_whitening(vectors)
    together = result.apply(vectors)
    for row in (0, 1, 33, 69):
        assert np.array_equal(result.apply(vectors[row : row + 1])[0], together[row])
    assert np.array_equal(result.apply(vectors[::-1])[::-1], together)


def test_a_map_is_float32_and_refuses_vectors_of_another_width():
    result = Fitted(Dense(np.eye(2, dtype=np.float32), np.zeros(2, np.float32), "identity"))
    assert result.apply(CROSS).dtype == np.float32
    with pytest.raises(InputError, match=r"vectors have 3 dimensions, the map takes 2"):
        result.apply(np.eye(3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit_whitening(CROSS, 3), "dim must be from 1 to 2"),
        (lambda: fit_whitening(CROSS, 0), "dim must be from 1 to 2"),
        (lambda: fit_whitening(CROSS[:1]), "at least 2 vectors, got 1"),
        (lambda: fit_whitening(np.ones((5, 2))), "all vectors are equal"),
        (lambda: fit_whitening([[1.0, np.nan], [0, 1]]), "row 0 has NaN or infinity"),  # type: ignore[arg-type]
        (lambda: fit_all_but_the_top(CROSS, 2), "remove must be from 0 to 1"),
        (lambda: fit_centering(np.empty((0, 2))), "at least 1 vector"),
        (lambda: isotropy(CROSS[:1]), "at least 2 vectors, got 1"),
        (lambda: METHODS["whitning"], "Did you mean 'whitening'"),
        (lambda: METHODS["centering"](CROSS, Settings(dim=1)), "'centering' has no setting 'dim'"),
        (lambda: METHODS["whitening"](CROSS, Settings(remove=1)), "no setting 'remove'; it has dim"),
    ],
)
def test_vectors_that_cannot_be_fitted_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_a_cross_of_unit_vectors_is_perfectly_isotropic():
    both_ways = np.concatenate([np.eye(3), -np.eye(3)])
    result = isotropy(both_ways)
    assert result.mean_length == 0
    assert result.partition == pytest.approx(1)
    assert result.effective_rank == pytest.approx(3)
    assert result.participation_ratio == pytest.approx(3)
    # 15 pairs, 3 of them opposite: mean -3/15.
    assert result.mean_cosine == pytest.approx(-0.2)


def test_equal_vectors_are_in_no_direction():
    result = isotropy(np.full((4, 3), 2.0))
    assert result.mean_cosine == pytest.approx(1)
    assert result.mean_length == pytest.approx(1)
    assert (result.effective_rank, result.participation_ratio) == (0, 0)
    # All along one axis: e up and 1/e down.
    assert result.partition == pytest.approx(np.exp(-2))


def test_zero_vectors_do_not_become_nan():
    assert np.isfinite(list(isotropy(np.zeros((3, 2))).to_json().values())).all()


def test_the_mean_cosine_is_that_of_all_pairs():
    vectors = cloud(rows=40)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = (unit @ unit.T)[np.triu_indices(40, 1)]
    assert isotropy(vectors).mean_cosine == pytest.approx(pairs.mean(), abs=1e-6)


def test_two_directions_of_unequal_spread_by_hand():
    # Unit vectors along x (8 of 10) and y (2 of 10), both ways: variances 0.8 and 0.2.
    rows = [[1, 0]] * 4 + [[-1, 0]] * 4 + [[0, 1], [0, -1]]
    result = isotropy(np.array(rows, dtype=np.float32))
    assert result.participation_ratio == pytest.approx(1 / (0.64 + 0.04))
    assert result.effective_rank == pytest.approx(np.exp(-(0.8 * np.log(0.8) + 0.2 * np.log(0.2))))


@pytest.mark.parametrize("name", ["whitening", "centering", "all-but-the-top"])
def test_every_map_makes_a_narrow_cone_more_isotropic(name):
    vectors = cloud()
    before = isotropy(vectors)
    after = isotropy(METHODS[name](vectors, Settings()).apply(vectors))
    assert before.mean_cosine > 0.5
    assert abs(after.mean_cosine) < 0.1
    assert after.partition > before.partition


def test_the_summary_has_every_measure():
    line = isotropy(cloud()).summary()
    for word in ("mean cosine", "mean length", "partition", "effective rank", "participation ratio", "of 12"):
        assert word in line
