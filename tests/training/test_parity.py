"""Ten steps of gemel are ten steps of sentence-transformers: losses, gradients, step sizes, weights.

The figures of sentence-transformers are in training_parity.json; see training_parity_reference.py.
"""

from dataclasses import replace

import numpy as np
import pytest

from gemel.checkpoint.folder import read_checkpoint
from gemel.training.bi_encoder import BiEncoderNetwork
from gemel.training.data import open_examples
from gemel.training.loop import Loop, Observers, learning_rate, plan
from gemel.training.objectives.base import make_objective
from gemel.training.options import TrainOptions
from gemel.training.sampler import Draw
from gemel.training.train import open_accelerator
from training_parity import (
    BATCH,
    CASES,
    LABELS,
    SCHEDULES,
    SOFTMAX,
    STEPS,
    figures,
    read_reference,
    start_head,
    start_model,
)

torch = pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("accelerate", reason="training needs accelerate")

REFERENCE = read_reference()
CLOSE = 1e-6
PEER = {"warmup_from_zero": True, "clip_head": False}
"""Settings of sentence-transformers that are not gemel's defaults and matter without dropout."""


class InOrder:
    """The rows in order, `BATCH` at a time."""

    def __init__(self, rows):
        self._rows = rows

    def epoch(self, number):
        starts = range(0, self._rows, BATCH)
        return [Draw(0, np.arange(start, start + BATCH, dtype=np.int64)) for start in starts]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return start_model(tmp_path_factory.mktemp("parity") / "model")


def weights_of(net, head):
    """Under the names of a checkpoint, those of the head as head.*"""
    parts = [("", net.body.module), *([("head.", head)] if head is not None else [])]
    for prefix, part in parts:
        for name, weight in part.named_parameters():
            if not name.startswith("pooler."):
                yield prefix + name, weight


def trained(folder, case, *, dtype=torch.float64, **changes):
    """What `training_parity_reference.run` gives, by gemel."""
    options = TrainOptions(
        max_steps=STEPS,
        batch_size=BATCH,
        learning_rate=case.learning_rate,
        schedule=case.schedule,
        warmup=case.warmup,
        weight_decay=case.weight_decay,
        clip=case.clip,
        accumulate=case.accumulate,
        dropout=0.0,
        threads=1,
        device="cpu",
        **{**PEER, **changes},
    )
    accelerator = open_accelerator(options)
    objective = make_objective(case.objective, case.settings)
    examples = open_examples(case.rows(), objective.needs, score_range=(0, 1))
    net = BiEncoderNetwork(read_checkpoint(folder), options, accelerator.device)
    net.module.to(dtype)
    head = objective.weights(net.dim, LABELS)
    if head is not None:
        head.to(dtype)
        with torch.no_grad():
            for name, weight in head.named_parameters():
                weight.copy_(torch.from_numpy(start_head()[f"head.{name}"]))
    before = {name: weight.detach().numpy().copy() for name, weight in weights_of(net, head)}
    seen = {"losses": [], "norms": [], "learning_rates": [], "gradients": {}}

    def record(step, loss, norm):
        seen["losses"].append(loss)
        seen["norms"].append(norm)
        result = [(name, w.grad.numpy()) for name, w in weights_of(net, head) if w.grad is not None]
        for name, values in figures(case, result).items():
            seen["gradients"].setdefault(name, []).append(values)

    observers = Observers(before=record, step=lambda step: seen["learning_rates"].append(step.learning_rate))
    loop = Loop(net, objective, [examples], InOrder(len(examples)), options, accelerator, head, observers)
    loop.run()
    seen["moved"] = figures(case, ((n, w.detach().numpy() - before[n]) for n, w in weights_of(net, head)))
    seen["loop"] = loop
    return seen


def worst(ours, theirs):
    """The largest error of a norm or a product, relative to the norm of the group of weights."""
    ours, theirs = np.array(ours), np.array(theirs)
    return float((np.abs(ours - theirs) / theirs[..., :1]).max())


@pytest.mark.parametrize("name", CASES)
def test_ten_steps_are_those_of_sentence_transformers(folder, name):
    ours, theirs = trained(folder, CASES[name]), REFERENCE["cases"][name]
    for kind in ("losses", "norms", "learning_rates"):
        np.testing.assert_allclose(ours[kind], theirs[kind], rtol=CLOSE, err_msg=kind)
    for kind in ("gradients", "moved"):
        assert ours[kind].keys() == theirs[kind].keys()
        errors = {group: worst(ours[kind][group], each) for group, each in theirs[kind].items()}
        assert max(errors.values()) < CLOSE, (kind, errors)


@pytest.mark.parametrize("name", CASES)
def test_ten_steps_in_float32_have_the_same_losses_and_norms(folder, name):
    """As a model is really trained; single gradients are not compared, their rounding depends on the processor."""
    ours, theirs = trained(folder, CASES[name], dtype=torch.float32), REFERENCE["cases"][name]
    for kind in ("losses", "norms", "learning_rates"):
        np.testing.assert_allclose(ours[kind], theirs[kind], rtol=1e-5, err_msg=kind)


def test_a_change_of_a_hundred_thousandth_is_seen(folder):
    theirs = REFERENCE["cases"]["triplet"]["gradients"]
    ours = trained(folder, replace(CASES["triplet"], clip=1.00001))["gradients"]
    assert max(worst(ours[group], each) for group, each in theirs.items()) > 5e-6


def test_the_gradients_were_clipped_and_the_cases_differ(folder):
    """If no gradient exceeded the clip, or the head's were negligible, the numbers would prove little."""
    for name, case in CASES.items():
        assert min(REFERENCE["cases"][name]["norms"]) > case.clip
    theirs = REFERENCE["cases"]["softmax"]
    for change in ({"clip_head": True}, {"warmup_from_zero": False}):
        ours = trained(folder, SOFTMAX, **change)
        assert (
            max(worst(ours["gradients"][each], theirs["gradients"][each]) for each in theirs["gradients"])
            > 0.01
        )


def test_the_default_clip_scales_network_and_head_together(folder):
    """The direction of the gradient stays; sentence-transformers leaves the head's as it is."""
    whole, peer = trained(folder, SOFTMAX, clip_head=True), trained(folder, SOFTMAX)
    assert whole["norms"][0] > peer["norms"][0] > 1
    length = np.linalg.norm([each[0][0] for each in whole["gradients"].values()])
    assert length == pytest.approx(1, rel=1e-3)
    network = np.linalg.norm([each[0][0] for group, each in peer["gradients"].items() if group != "head"])
    assert network == pytest.approx(1, rel=1e-3) and peer["gradients"]["head"][0][0] > 1


def test_the_first_step_learns_unless_the_warm_up_starts_from_zero(folder):
    assert trained(folder, SOFTMAX)["learning_rates"][:3] == [0, 5e-5, 1e-4]
    assert trained(folder, SOFTMAX, warmup_from_zero=False)["learning_rates"][:3] == [5e-5, 1e-4, 1e-4]


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_schedules_are_those_of_transformers_after_the_warm_up(name):
    theirs = REFERENCE["schedules"][name]
    steps, rising = theirs["steps"], int(theirs["warmup"] * theirs["steps"])
    options = TrainOptions(learning_rate=1.0, schedule=name, warmup=theirs["warmup"], warmup_from_zero=True)
    ours = [learning_rate(options, step, steps) for step in range(steps)]
    np.testing.assert_allclose(ours, theirs["factors"], rtol=1e-8)
    ours = [learning_rate(replace(options, warmup_from_zero=False), step, steps) for step in range(steps)]
    np.testing.assert_allclose(ours[rising:], theirs["factors"][rising:], rtol=1e-8)
    np.testing.assert_allclose(ours[: rising - 1], theirs["factors"][1:rising], rtol=1e-8)


def test_the_optimizer_is_the_same_adamw(folder):
    theirs = REFERENCE["cases"]["softmax-accumulated-decayed"]["optimizer"]
    loop = trained(folder, CASES["softmax-accumulated-decayed"])["loop"]
    optimizer = loop._optimizer
    group = optimizer.param_groups[0]
    assert (theirs["class"], theirs["amsgrad"]) == ("AdamW", group["amsgrad"])
    assert (group["eps"], list(group["betas"])) == (theirs["eps"], theirs["betas"])
    names = {id(weight): name for name, weight in weights_of(loop.network, loop.weights)}
    plain = [
        id(weight) for one in optimizer.param_groups if not one["weight_decay"] for weight in one["params"]
    ]
    assert sorted(names[one] for one in plain if one in names) == theirs["not_decayed"]


@pytest.mark.parametrize("repeats", [True, False])
def test_a_repeated_text_has_one_dropout_mask_unless_repeats_are_encoded(folder, repeats):
    net = BiEncoderNetwork(read_checkpoint(folder), TrainOptions(dropout=0.3), torch.device("cpu"))
    net.module.train()
    columns = (["the cat is sleeping"] * 2,)
    planned = plan(columns, make_objective("regression").needs, repeats=repeats)
    torch.manual_seed(0)
    first, second = net.forward(net.tokens(planned.items))[planned.where[0]]
    assert torch.equal(first, second) is not repeats
    assert REFERENCE["one_mask_for_a_repeated_text"] is False


def test_without_dropout_encoding_repeats_changes_nothing(folder):
    once, each = trained(folder, SOFTMAX), trained(folder, SOFTMAX, encode_repeats=True)
    assert once["loop"].position.texts < each["loop"].position.texts == 2 * STEPS * BATCH
    np.testing.assert_allclose(once["losses"], each["losses"], rtol=CLOSE)
