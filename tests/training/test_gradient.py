"""The gradient of a batch is the same whichever way it is computed."""

from dataclasses import dataclass

import numpy as np
import pytest

from gemel.checkpoint.folder import read_checkpoint
from gemel.training.bi_encoder import BiEncoderNetwork
from gemel.training.devices import Processes
from gemel.training.loop import BatchGradient, plan
from gemel.training.objectives.base import Needs, make_objective
from gemel.training.options import TrainOptions
from tiny import TEXT, tiny_bert

torch = pytest.importorskip("torch", reason="training needs torch")

WORDS = TEXT.split()


def texts(rows, seed):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=int(rng.integers(2, 12)))) for _ in range(rows)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("models") / "m", normalize=False)


def gradients(folder, columns, objective, label=None, cache=None, processes=None, dropout=0.0):
    torch.manual_seed(0)
    net = BiEncoderNetwork(read_checkpoint(folder), TrainOptions(dropout=dropout), torch.device("cpu"))
    net.module.train()
    weights = objective.weights(net.dim, 3)
    torch.manual_seed(7)
    step = BatchGradient(
        net, objective, weights, processes or Processes(), cache, lambda loss: loss.backward()
    )
    planned = plan(net.items(columns), objective.needs)
    loss = step(planned, net.tokens(planned.items), label, 1.0)
    return loss, {
        name: weight.grad for name, weight in net.module.named_parameters() if weight.grad is not None
    }


@pytest.mark.parametrize("cache", [1, 3, 8, 100])
@pytest.mark.parametrize("name", ["in-batch-ranking", "classification"])
def test_the_cached_gradient_is_the_plain_gradient(folder, name, cache):
    columns = (texts(9, 1), texts(9, 2))
    label = torch.arange(9) % 3 if name == "classification" else None
    plain_loss, plain = gradients(folder, columns, make_objective(name), label)
    loss, cached = gradients(folder, columns, make_objective(name), label, cache=cache)
    assert loss == pytest.approx(plain_loss, rel=1e-5)
    assert plain.keys() == cached.keys()
    for key, gradient in plain.items():
        torch.testing.assert_close(cached[key], gradient, rtol=1e-4, atol=1e-6)


def test_the_second_pass_of_the_cache_drops_the_same_numbers(folder):
    """If the masks of the two passes differed, the gradient would be wrong for the loss."""
    columns = (texts(6, 1), texts(6, 2))
    objective = make_objective("in-batch-ranking")
    torch.manual_seed(0)
    net = BiEncoderNetwork(read_checkpoint(folder), TrainOptions(dropout=0.3), torch.device("cpu"))
    net.module.train()
    seen = []
    forward = net.forward

    def recording(tokens):
        vectors = forward(tokens)
        seen.append(vectors.detach().clone())
        return vectors

    net.forward = recording
    planned = plan(columns, objective.needs)
    BatchGradient(net, objective, None, Processes(), 4, lambda loss: loss.backward())(
        planned, net.tokens(planned.items), None, 1.0
    )
    first, second = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    for before, after in zip(first, second, strict=True):
        torch.testing.assert_close(before, after)


def test_a_text_that_repeats_goes_through_the_network_once():
    planned = plan((["a", "a", "b"], ["x", "b", "x"]), Needs(texts=("left", "right")))
    assert planned.items == ["a", "b", "x"]
    assert [rows.tolist() for rows in planned.where] == [[0, 0, 1], [2, 1, 2]]


def test_two_passes_encode_every_text_twice():
    planned = plan((["a", "a"],), Needs(texts=("text",), passes=2))
    assert planned.items == ["a", "a", "a", "a"]
    assert [rows.tolist() for rows in planned.where] == [[0, 1], [2, 3]]


@dataclass(frozen=True)
class OneOfTwo(Processes):
    """A process that has the vectors of the other one already."""

    others: object = None

    def gather(self, own, total):
        whole = own.new_empty(total, own.shape[1])
        whole[self.rank :: self.world] = own.detach()
        whole[1 - self.rank :: self.world] = self.others
        return whole


@pytest.mark.parametrize("name", ["in-batch-ranking", "classification", "regression"])
def test_the_gradients_of_two_processes_add_up_to_that_of_one(folder, name):
    columns = (texts(7, 1), texts(7, 2))
    labels = {"classification": torch.arange(7) % 3, "regression": torch.linspace(0, 1, 7)}
    label = labels.get(name)
    objective = make_objective(name)
    _, whole = gradients(folder, columns, objective, label)

    def share(rank):
        torch.manual_seed(0)
        net = BiEncoderNetwork(read_checkpoint(folder), TrainOptions(dropout=0.0), torch.device("cpu"))
        weights = objective.weights(net.dim, 3)
        planned = plan(columns, objective.needs)
        vectors = net.forward(net.tokens(planned.items)).detach()
        processes = OneOfTwo(rank, 2, others=vectors[1 - rank :: 2])
        step = BatchGradient(net, objective, weights, processes, None, lambda loss: loss.backward())
        step(planned, net.tokens(planned.share(rank, 2)), label, 1.0)
        return {key: weight.grad for key, weight in net.module.named_parameters() if weight.grad is not None}

    one, two = share(0), share(1)
    for key, gradient in whole.items():
        torch.testing.assert_close(one[key] + two[key], gradient, rtol=1e-4, atol=1e-6)
