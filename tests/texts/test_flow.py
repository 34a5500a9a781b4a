"""A flow: trained with torch, run in NumPy, row by row."""

import sys

import numpy as np
import pytest
from tests.texts.test_whitening import cloud

from gemel.errors import InputError, MissingExtra
from gemel.texts.whitening import (
    METHODS,
    Settings,
    _initial_flow,
    fit_flow,
    isotropy,
    torch_forward,
    torch_steps,
)

torch = pytest.importorskip("torch", reason="training a flow needs the extra train")


def bent(rows=600, dim=9, seed=0):
    """Points that no linear map makes Gaussian."""
    vectors = cloud(rows, dim, seed)
    vectors[:, 1] += 0.1 * vectors[:, 0] ** 2
    return vectors


@pytest.fixture(scope="module")
def fitted():
    return fit_flow(bent(), couplings=4, hidden=16, epochs=5)


def test_the_likelihood_rises_while_training(fitted):
    assert len(fitted.log_likelihood) == 6
    assert (np.diff(fitted.log_likelihood) > 0).all()
    assert "5 epochs" in fitted.note


def test_before_training_the_likelihood_is_that_of_a_round_gaussian():
    vectors = bent()
    result = fit_flow(vectors, couplings=2, hidden=4, epochs=0)
    variance = vectors.astype(np.float64).var(axis=0, ddof=1).mean()
    gaps = vectors - vectors.mean(axis=0, dtype=np.float64)
    expected = -0.5 * (gaps**2).mean() / variance - 0.5 * np.log(2 * np.pi * variance)
    assert result.log_likelihood == (pytest.approx(expected, abs=1e-4),)


def test_numpy_gives_what_torch_gives(fitted):
    vectors = bent(seed=1)
    layer = fitted.layer
    with torch.no_grad():
        turned = torch.from_numpy(vectors) @ torch.from_numpy(layer.weight).T + torch.from_numpy(layer.bias)
        expected, _ = torch_forward(torch, torch_steps(torch, layer.couplings), turned)
    assert np.abs(fitted.apply(vectors) - expected.numpy()).max() < 1e-5 * np.abs(expected.numpy()).max()


def test_the_stretch_is_the_determinant_of_the_derivative(fitted):
    steps = torch_steps(torch, fitted.layer.couplings)
    x = torch.randn(1, 9, generator=torch.Generator().manual_seed(0))
    _, log_scale = torch_forward(torch, steps, x)
    derivative = torch.autograd.functional.jacobian(
        lambda v: torch_forward(torch, steps, v[None])[0][0], x[0]
    )
    assert float(torch.linalg.slogdet(derivative)[1]) == pytest.approx(log_scale.item(), abs=1e-4)


def test_a_row_has_the_same_bits_alone_and_in_any_batch(fitted):
    vectors = bent(rows=67, seed=3)
    together = fitted.apply(vectors)
    assert np.array_equal(fitted.apply(vectors[::-1])[::-1], together)
    for rows in (slice(0, 1), slice(5, 8), slice(1, 67)):
        assert np.array_equal(fitted.apply(vectors[rows]), together[rows])


def test_the_same_seed_gives_the_same_flow_and_torch_s_own_state_stays():
    torch.manual_seed(5)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    one, two, other = (fit_flow(bent(rows=100), hidden=8, epochs=1, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    vectors = bent(seed=4)
    assert np.array_equal(one.apply(vectors), two.apply(vectors))
    assert not np.array_equal(one.apply(vectors), other.apply(vectors))


def test_a_flow_makes_a_narrow_cone_more_isotropic(fitted):
    vectors = bent()
    assert isotropy(fitted.apply(vectors)).participation_ratio > isotropy(vectors).participation_ratio
    assert abs(isotropy(fitted.apply(vectors)).mean_cosine) < 0.1


def test_an_odd_and_a_tiny_number_of_dimensions_work():
    vectors = bent(dim=3, rows=50)
    assert fit_flow(vectors[:, :2], hidden=2, epochs=1).apply(vectors[:, :2]).shape == (50, 2)
    assert fit_flow(vectors, hidden=2, epochs=1).apply(vectors[:0]).shape == (0, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit_flow(np.ones((5, 4))), "all vectors are equal"),
        (lambda: fit_flow(np.ones((5, 1))), "at least 2 dimensions, got 1"),
        (lambda: fit_flow(bent(), couplings=0), "couplings must be at least 1, got 0"),
        (lambda: fit_flow(bent(rows=1)), "at least 2 vectors, got 1"),
        (
            lambda: METHODS["flow"](bent(), Settings(dim=4)),
            "'flow' has no setting 'dim'; it has epochs, seed",
        ),
    ],
)
def test_vectors_that_cannot_train_a_flow_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_vectors_of_another_width_are_refused(fitted):
    with pytest.raises(InputError, match="vectors have 4 dimensions, the flow takes 9"):
        fitted.apply(np.eye(4))


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"pip install 'gemel\[train\]'"):
        fit_flow(bent())


def test_the_first_flow_needs_no_torch_and_only_turns_and_scales(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    weight = _initial_flow(bent(), 2, 4, 0).weight.astype(np.float64)
    square = weight @ weight.T
    assert np.allclose(square, np.eye(9) * square[0, 0], atol=1e-5 * square[0, 0])
