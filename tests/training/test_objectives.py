"""Properties that hold for every objective, and the formula of each on numbers that can be checked by hand."""

import json
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from math import exp, log, sqrt
from typing import get_type_hints

import pytest

from gemel.cli.flags import field_docs
from gemel.cli.main import main
from gemel.errors import InputError
from gemel.training.objectives.base import OBJECTIVES, make_objective
from gemel.training.objectives.matryoshka import Matryoshka

torch = pytest.importorskip("torch", reason="objectives need the extra train")

ROWS, DIM, CLASSES, WORDS = 8, 32, 3, 20
WITHOUT_SENSE = torch.tensor([0.92, 0.1, 0.71, 0.3, 0.83, 0.2, 0.64, 0.4])  # cosines that match no label
VARIANTS = [
    *((name, {}) for name in OBJECTIVES),
    ("classification", {"concat": "|u-v|, u*v"}),
    ("contrastive", {"metric": "euclidean", "margin": 3.0}),
    ("contrastive", {"online": True}),
    ("in-batch-ranking", {"symmetric": True, "guard": 0.99}),
    ("in-batch-ranking", {"symmetric": True, "guide": "any", "guide_margin": 0.1}),
    ("margin-mse", {"score": "cosine"}),
    ("score-distillation", {"score": "cosine", "teacher_temperature": 0.5}),
    ("triplet", {"metric": "cosine"}),
    ("triplet", {"metric": "manhattan", "margin": 20.0}),
    *(("triplet", {"mining": mining, "margin": 5.0}) for mining in ("all", "hard", "semi-hard")),
]
VARIANT = pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=str)


def made(name, settings):
    # Pairs by shifting depend on the order of the rows; with all shifts they are all pairs.
    return make_objective(name, {"random": ROWS - 1, **settings} if name == "soft-label" else settings)


def columns(needs, near, extra=1, seed=0):
    """Vectors and labels as the roles require: at `near` 1 they match the labels, at 0 they are random."""
    random = torch.Generator().manual_seed(seed)

    def noise():
        return torch.randn(ROWS, DIM, generator=random) / 4  # lengths near a margin of 1

    base, label = noise(), labels(needs.label, random)
    if needs.label == "group":
        base = noise()[label]
    if needs.label == "vector":
        base = label
    roles = [*needs.texts, *([needs.more] * extra if needs.more else [])] * needs.passes
    vectors = []
    for number, role in enumerate(roles):
        wanted, other = base, noise()
        if role == "right":
            wanted = at_cosine(base, other, near * goal(needs.label, label) + (1 - near) * WITHOUT_SENSE)
        elif role == "negative":
            wanted = other
        elif role in ("positive", "translation") or number or needs.label in ("group", "vector"):
            wanted = base + (1 - near) * other
        vectors.append(wanted)
    if needs.label == "margin":
        anchor, positive, negative = columns(replace(needs, label=None), 1.0, seed=seed)[0]
        label = (anchor * positive).sum(1) - (anchor * negative).sum(1)
    if needs.label == "scores":
        anchor, *documents = columns(replace(needs, label=None), 1.0, extra, seed=seed)[0]
        label = torch.stack([(anchor * document).sum(1) for document in documents], 1)
    if needs.label == "guide":
        label = torch.stack(columns(replace(needs, label=None), 1.0, extra, seed=seed)[0], 1)
    return tuple(vectors), label


def labels(kind, random):
    if kind == "score":
        return torch.linspace(0, 1, ROWS)
    if kind == "vector":
        return torch.randn(ROWS, DIM, generator=random) / 4
    if kind == "tokens":
        tokens = torch.randint(WORDS, (ROWS, 6), generator=random)
        return tokens.masked_fill(torch.arange(6) > torch.arange(ROWS)[:, None] % 6, -100)
    count = {"class": CLASSES, "binary": 2, "group": 3}.get(kind)
    return None if count is None else torch.arange(ROWS) % count


def goal(kind, label):
    if kind == "binary":
        return torch.where(label == 1, 1.0, 0.3)
    return label if kind == "score" else torch.zeros(ROWS)


def at_cosine(base, other, cosine):
    """Rows at this cosine to `base`, in the direction of `other`."""
    unit = base / base.norm(dim=1, keepdim=True)
    aside = other - (other * unit).sum(1, keepdim=True) * unit
    aside = aside / aside.norm(dim=1, keepdim=True)
    return (unit * cosine[:, None] + aside * (1 - cosine**2).clamp(min=0).sqrt()[:, None]) * 3


def weights_of(objective, dim=DIM):
    torch.manual_seed(0)
    return objective.weights(dim, WORDS if objective.needs.label == "tokens" else CLASSES)


def wrapped(name, settings):
    """The objective alone, and inside a matryoshka."""
    plain = made(name, settings)
    return [plain, Matryoshka(plain, (8,)), Matryoshka(plain, (8, 16), normalize=True)]


# Properties


@VARIANT
def test_the_loss_is_one_finite_number(name, settings):
    for objective in wrapped(name, settings):
        for near in (0.0, 0.5, 1.0):
            vectors, label = columns(objective.needs, near)
            loss = objective(vectors, label, weights_of(objective))
            assert loss.shape == ()
            assert torch.isfinite(loss)
            assert loss >= 0


# In a classification or a decoder, nearness depends on their own weights.
@pytest.mark.parametrize(
    ("name", "settings"), [row for row in VARIANTS if row[0] not in ("classification", "denoising")], ids=str
)
def test_the_loss_is_lower_when_related_vectors_are_nearer(name, settings):
    for objective in wrapped(name, settings):
        near, far = (objective(*columns(objective.needs, share)) for share in (0.9, 0.2))
        assert near < far


@VARIANT
def test_the_order_of_rows_does_not_matter(name, settings):
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    for objective in wrapped(name, settings):
        vectors, label = columns(objective.needs, 0.5)
        weights = weights_of(objective)
        mixed = tuple(column[order] for column in vectors)
        again = objective(mixed, None if label is None else label[order], weights)
        assert torch.allclose(objective(vectors, label, weights), again, rtol=1e-5, atol=1e-6)


@VARIANT
def test_the_gradient_reaches_every_column_and_every_weight(name, settings):
    for objective in wrapped(name, settings):
        vectors, label = columns(objective.needs, 0.5, extra=2)
        leaves = tuple(column.clone().requires_grad_() for column in vectors)
        weights = weights_of(objective)
        objective(leaves, label, weights).backward()
        for leaf in leaves:
            assert torch.isfinite(leaf.grad).all()
            assert leaf.grad.abs().sum() > 0
        if weights is not None:
            assert all(weight.grad is not None for weight in weights.parameters())


@VARIANT
def test_a_small_step_down_the_gradient_lowers_the_loss(name, settings):
    for objective in wrapped(name, settings):
        vectors, label = columns(objective.needs, 0.5)
        vectors = tuple(column.double() for column in vectors)
        label = label.double() if label is not None and label.is_floating_point() else label
        weights = weights_of(objective)
        weights = weights.double() if weights is not None else None
        leaves = tuple(column.clone().requires_grad_() for column in vectors)
        before = objective(leaves, label, weights)
        before.backward()
        size = sqrt(sum(float(leaf.grad.square().sum()) for leaf in leaves))
        moved = tuple((leaf - 1e-4 / size * leaf.grad).detach() for leaf in leaves)
        after = objective(moved, label, weights)
        assert after < before
        assert torch.isclose(before - after, torch.tensor(1e-4 * size).double(), rtol=0.1)


@VARIANT
@pytest.mark.parametrize("kind", ["zeros", "equal"])
def test_vectors_that_are_zero_or_equal_have_a_finite_gradient(name, settings, kind):
    objective = made(name, settings)
    vectors, label = columns(objective.needs, 0.5)
    same = torch.zeros(ROWS, DIM) if kind == "zeros" else vectors[0][:1].repeat(ROWS, 1)
    leaves = tuple(same.clone().requires_grad_() for _ in vectors)
    loss = objective(leaves, label, weights_of(objective))
    assert torch.isfinite(loss)
    loss.backward()
    assert all(torch.isfinite(leaf.grad).all() for leaf in leaves)


@VARIANT
def test_a_batch_of_one_row_can_be_trained_on(name, settings):
    objective = made(name, settings)
    vectors, label = columns(objective.needs, 0.5)
    leaves = tuple(column[:1].clone().requires_grad_() for column in vectors)
    loss = objective(leaves, None if label is None else label[:1], weights_of(objective))
    assert torch.isfinite(loss)
    loss.backward()
    assert all(torch.isfinite(leaf.grad).all() for leaf in leaves)


@VARIANT
def test_the_arguments_are_not_changed(name, settings):
    objective = made(name, settings)
    vectors, label = columns(objective.needs, 0.5)
    copies = [column.clone() for column in vectors]
    objective(vectors, label, weights_of(objective))
    assert all(torch.equal(column, copy) for column, copy in zip(vectors, copies, strict=True))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_is_frozen_settings_with_a_line_for_each(name):
    cls = OBJECTIVES[name]
    assert is_dataclass(cls)
    assert cls.name == name
    docs, objective = field_docs(cls), make_objective(name)
    for field in fields(cls):
        assert docs.get(field.name), f"{cls.__name__}.{field.name} has no docstring"
        with pytest.raises(FrozenInstanceError):
            setattr(objective, field.name, None)
    assert len(cls.__doc__.splitlines()[0]) > 20


# Names and settings


def test_settings_of_one_name_are_of_one_type():
    kinds = {}
    for name in OBJECTIVES:
        for setting, kind in get_type_hints(OBJECTIVES[name]).items():
            if setting not in ("name", "needs"):
                assert kinds.setdefault(setting, kind) == kind, f"{setting} of {name}: one flag serves all"


def test_an_unknown_objective_or_setting_is_refused_with_what_exists():
    with pytest.raises(
        InputError, match=r"unknown objective 'triplets'. Did you mean 'triplet'\? Known: angle"
    ):
        make_objective("triplets")
    with pytest.raises(InputError, match=r"objective 'regression' has no setting 'margin'. It has none"):
        make_objective("regression", {"margin": 1})
    assert make_objective("triplet", {"margin": None}) == make_objective("triplet")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("angle", {"temperature": 0}, "temperature must be more than 0, got 0"),
        ("classification", {"concat": "u,w"}, r"unknown part 'w', in 'u,w'. Known: u, v, \|u-v\|, u\*v"),
        ("classification", {"concat": "u,v,u"}, "names a part twice"),
        ("classification", {"concat": "u"}, "has one of the two vectors only"),
        ("classification", {"concat": ""}, "unknown part ''"),
        ("contrastive", {"metric": "dot"}, "metric must be one of euclidean, cosine, manhattan, got 'dot'"),
        ("denoising", {"noise": 1.0}, "noise must be from 0 to below 1, got 1.0"),
        ("in-batch-ranking", {"guard": 2.0}, "guard must be a cosine above -1, up to 1, got 2.0"),
        ("margin-mse", {"score": "euclidean"}, "score must be one of cosine, dot, maxsim"),
        ("in-batch-ranking", {"guide_margin": 3.0}, "guide_margin must be a difference of cosines"),
        ("in-batch-ranking", {"score": "maxsim", "guard": 0.9}, "use a guide"),
        ("score-distillation", {"teacher_temperature": 0}, "teacher_temperature must be more than 0"),
        ("soft-label", {"random": -1}, "random must be 0 or more"),
        ("soft-label", {"floor": 1.5}, "floor must be from 0 to below 1"),
        ("triplet", {"mining": "easy"}, "mining must be one of given, all, hard, semi-hard, got 'easy'"),
        ("triplet", {"margin": float("nan")}, "margin must be more than 0"),
    ],
)
def test_a_wrong_setting_is_refused_when_the_objective_is_made(name, settings, message):
    with pytest.raises(InputError, match=message):
        make_objective(name, settings)


# The list


def test_the_list_has_every_objective_with_its_columns(capsys):
    assert main(["objectives"]) == 0
    shown = capsys.readouterr().out
    for name in OBJECTIVES:
        assert f"{name}: {', '.join(make_objective(name).needs.texts)}" in shown
        assert f"    {OBJECTIVES[name].__doc__.splitlines()[0]}\n" in shown
    assert "triplet --mining all | hard | semi-hard: text; label: group\n" in shown


def test_the_list_as_json_has_the_columns(capsys):
    assert main(["objectives", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["name"] for row in rows} == set(OBJECTIVES)
    first, second = (row for row in rows if row["name"] == "triplet")
    assert (first["texts"], first["more"], first["when"]) == (
        ["anchor", "positive", "negative"],
        "negative",
        {},
    )
    assert (second["texts"], second["label"]) == (["text"], "group")
    assert second["when"] == {"mining": ["all", "hard", "semi-hard"]}


# By hand


def rows(*values):
    return torch.tensor(values, dtype=torch.float32)


def value(name, settings, vectors, label=None, weights=None):
    return float(make_objective(name, settings)(tuple(vectors), label, weights))


I2 = torch.eye(2)
U = rows([1, 2, 3, 4], [0, 1, 0, 1], [2, 0, 1, 0])
V = rows([1, 0, 3, 1], [1, 1, 0, 2], [0, 1, 2, 3])


def test_classification_is_the_cross_entropy_of_w_times_the_parts():
    objective = make_objective("classification")
    head = objective.weights(2, 2)
    assert head.bias is None
    assert head.weight.shape == (2, 6)
    with torch.no_grad():
        head.weight.copy_(rows([1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0.5, 0]))
    # u = (3, 1), v = (1, 1): class 0 sees u0 = 3, class 1 half of |u0 - v0| = 1
    loss = float(objective((rows([3, 1]), rows([1, 1])), torch.tensor([0]), head).detach())
    assert loss == pytest.approx(log(1 + exp(1 - 3)))
    assert objective.saved_weights(head) is head


def test_classification_joins_the_parts_in_the_order_of_the_spec():
    objective = make_objective("classification", {"concat": "u*v, v"})
    head = objective.weights(1, 2)
    with torch.no_grad():
        head.weight.copy_(rows([1, 0], [0, 1]))
    loss = float(objective((rows([3]), rows([2])), torch.tensor([1]), head).detach())
    assert loss == pytest.approx(log(1 + exp(6 - 2)))


def test_classification_of_one_label_is_refused():
    with pytest.raises(InputError, match="two or more different labels, the data has 1"):
        make_objective("classification").weights(4, 1)


def test_regression_is_the_squared_error_of_the_cosine():
    left, right = rows([1, 0], [2, 0]), rows([0, 3], [1, 1])
    assert value("regression", {}, (left, right), rows(0.5, 1)) == pytest.approx(
        (0.25 + (1 - sqrt(0.5)) ** 2) / 2
    )


@pytest.mark.parametrize(("metric", "near", "far"), [("euclidean", 5, 3), ("manhattan", 7, 3)])
def test_a_triplet_is_right_minus_wrong_plus_the_margin(metric, near, far):
    anchor, positive, negative = rows([0, 0]), rows([3, 4]), rows([0, 3])
    result = value("triplet", {"metric": metric}, (anchor, positive, negative))
    assert result == pytest.approx(near - far + 1)


def test_a_further_negative_makes_a_further_triplet():
    anchor, positive = rows([0, 0]), rows([3, 4])
    assert value("triplet", {}, (anchor, positive, rows([0, 3]), rows([0, 9]))) == pytest.approx((3 + 0) / 2)


def test_cosine_triplets_use_one_minus_the_cosine():
    anchor, positive, negative = rows([1, 0]), rows([0, 2]), rows([1, 1])
    result = value("triplet", {"metric": "cosine"}, (anchor, positive, negative))
    assert result == pytest.approx(1 - (1 - sqrt(0.5)) + 1)


# Four texts on a line, at 0, 2 (group 0), 3, 7 (group 1).
LINE, GROUPS = rows([0], [2], [3], [7]), torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("mining", "expected"),
    [
        # distances less 1: 0: right 2, wrong 3 7; 2: 2, 1 5; 3: 4, 3 1; 7: 4, 7 5. right - wrong + 1 > 0:
        ("all", (2 + 2 + 4) / 3),
        # right - nearest wrong + 1 of each text: 0: 0; 2: 2; 3: 4; 7: 0
        ("hard", (0 + 2 + 4 + 0) / 4),
        # nearest wrong beyond the right: 0: 3; 2: 5; 3: none, so the farthest, 3; 7: 5
        ("semi-hard", (0 + 0 + 2 + 0) / 4),
    ],
)
def test_triplets_are_mined_from_groups(mining, expected):
    assert value("triplet", {"mining": mining}, (LINE,), GROUPS) == pytest.approx(expected)


@pytest.mark.parametrize("mining", ["all", "hard", "semi-hard"])
@pytest.mark.parametrize("groups", [[0, 0, 0, 0], [0, 1, 2, 3]], ids=str)
def test_a_batch_without_a_triplet_teaches_nothing(mining, groups):
    line = LINE.clone().requires_grad_()
    loss = make_objective("triplet", {"mining": mining})((line,), torch.tensor(groups))
    loss.backward()
    assert loss == 0
    assert (line.grad == 0).all()


@pytest.mark.parametrize("mining", ["all", "hard", "semi-hard"])
def test_mined_triplets_equal_a_walk_over_all_three(mining):
    random = torch.Generator().manual_seed(3)
    vectors = torch.randn(12, 4, generator=random)
    groups = torch.randint(4, (12,), generator=random)
    result = value("triplet", {"mining": mining}, (vectors,), groups)
    assert result == pytest.approx(walk(vectors, groups, mining), rel=1e-5)


def walk(vectors, groups, mining):
    def gap(i, j):
        return float((vectors[i] - vectors[j]).norm())

    losses = []
    for a in range(len(groups)):
        right = [gap(a, p) for p in range(len(groups)) if p != a and groups[p] == groups[a]]
        wrong = [gap(a, n) for n in range(len(groups)) if groups[n] != groups[a]]
        if not right or not wrong:
            continue
        if mining == "hard":
            losses.append(max(0, max(right) - min(wrong) + 1))
        elif mining == "all":
            losses += [p - n + 1 for p in right for n in wrong if p - n + 1 > 0]
        else:
            for p in right:
                beyond = [n for n in wrong if n > p]
                losses.append(max(0, p - (min(beyond) if beyond else max(wrong)) + 1))
    return sum(losses) / len(losses)


def test_in_batch_ranking_of_two_right_angles():
    assert value("in-batch-ranking", {"temperature": 1}, (I2, I2)) == pytest.approx(log(1 + exp(-1)))
    assert value("in-batch-ranking", {"temperature": 0.5}, (I2, I2)) == pytest.approx(log(1 + exp(-2)))


def test_in_batch_ranking_takes_every_row_s_negatives_as_candidates():
    # scores of row 0: right 1, other positive 0, negatives 0 and -1
    negative = rows([0, 1], [-1, 0])
    first = log(1 + exp(-1) + exp(-1) + exp(-2))
    second = log(1 + exp(-1) + exp(0) + exp(-1))
    result = value("in-batch-ranking", {"temperature": 1}, (I2, I2, negative))
    assert result == pytest.approx((first + second) / 2)
    twice = value("in-batch-ranking", {"temperature": 1}, (I2, I2, negative, negative))
    assert twice > result


def test_symmetric_ranking_is_the_mean_of_both_directions_without_negatives_in_reverse():
    one, both = {"temperature": 1}, {"temperature": 1, "symmetric": True}
    negative = rows([0.5, 0.5], [1, 0.2])
    positive = rows([1, 0.5], [0.2, 1])
    there = value("in-batch-ranking", one, (I2, positive, negative))
    back = value("in-batch-ranking", one, (positive, I2))
    assert value("in-batch-ranking", both, (I2, positive, negative)) == pytest.approx((there + back) / 2)


def test_the_guard_excludes_what_equals_the_positive():
    same = rows([1, 0], [1, 0], [0, 1])  # rows 0 and 1 have the same answer
    plain = value("in-batch-ranking", {"temperature": 1}, (same, same))
    guarded = value("in-batch-ranking", {"temperature": 1, "guard": 0.9}, (same, same))
    assert plain == pytest.approx((2 * log(2 + exp(-1)) + log(1 + 2 * exp(-1))) / 3)
    assert guarded == pytest.approx((2 * log(1 + exp(-1)) + log(1 + 2 * exp(-1))) / 3)


def test_the_guard_leaves_a_row_its_own_negative():
    # Its own negative comes from the data; the same vector in another row is a coincidence.
    negative = rows([1, 0.1], [0, -1])
    guarded = value("in-batch-ranking", {"temperature": 1, "guard": 0.9}, (I2, I2, negative))
    plain = value("in-batch-ranking", {"temperature": 1}, (I2, I2, negative))
    assert guarded == pytest.approx(plain)
    swapped = value("in-batch-ranking", {"temperature": 1, "guard": 0.9}, (I2, I2, negative.flip(0)))
    assert swapped < value("in-batch-ranking", {"temperature": 1}, (I2, I2, negative.flip(0)))


def test_the_guard_passes_no_gradient():
    right = rows([1, 0.2], [1, 0.1]).requires_grad_()
    loss = make_objective("in-batch-ranking", {"guard": 0.5})((I2, right), None)
    loss.backward()
    assert loss == 0  # each row is left with one candidate
    assert torch.isfinite(right.grad).all()


def test_cosent_sums_over_all_ordered_pairs():
    # cosines 1, 0, -1 with gold 2, 1, 0: gaps -1, -2, -1
    left, right = rows([1, 0], [1, 0], [1, 0]), rows([2, 0], [0, 1], [-1, 0])
    result = value("cosent", {"temperature": 1}, (left, right), rows(2, 1, 0))
    assert result == pytest.approx(log(1 + exp(-1) + exp(-2) + exp(-1)))
    wrong = value("cosent", {"temperature": 0.5}, (left, right), rows(0, 1, 1))
    assert wrong == pytest.approx(log(1 + exp(2 * (1 - 0)) + exp(2 * (1 - -1))))


@pytest.mark.parametrize("name", ["cosent", "angle"])
def test_equal_gold_scores_have_no_order(name):
    left = U.clone().requires_grad_()
    loss = make_objective(name)((left, V), torch.ones(3))
    loss.backward()
    assert loss == 0
    assert (left.grad == 0).all()


def test_angle_is_the_complex_quotient_of_the_paper():
    def quotient(left, right):
        z, w = (torch.complex(row[:2], row[2:]) for row in (left, right))
        result = (z * w.conj()).sum() / (z.norm() * w.norm()).real
        return abs(float(result.real + result.imag))

    angles = [quotient(left, right) for left, right in zip(U, V, strict=True)]
    gold = rows(0.1, 0.9, 0.5)
    terms = [
        exp(angles[j] - angles[i]) for i in range(3) for j in range(3) if float(gold[i]) > float(gold[j])
    ]
    assert value("angle", {"temperature": 1}, (U, V), gold) == pytest.approx(log(1 + sum(terms)), rel=1e-5)


def test_angle_of_equal_vectors_is_1_and_odd_vectors_are_refused():
    from gemel.training.objectives.angle import complex_angle

    assert torch.allclose(complex_angle(U, 3 * U), torch.ones(3))
    with pytest.raises(InputError, match="splits a vector into two halves, got 3 numbers"):
        value("angle", {}, (U[:, :3], V[:, :3]), rows(0, 1, 2))


def test_contrastive_pulls_ones_and_pushes_zeros_up_to_the_margin():
    left, right = rows([0, 0], [0, 0], [0, 0]), rows([3, 4], [0, 1], [0, 9])
    result = value(
        "contrastive", {"metric": "euclidean", "margin": 2}, (left, right), torch.tensor([1, 0, 0])
    )
    assert result == pytest.approx((25 + (2 - 1) ** 2 + 0) / 2 / 3)


def test_the_online_form_counts_hard_pairs_only():
    left = torch.zeros(5, 1)
    right, label = rows([1], [3], [2], [4], [0.5]), torch.tensor([1, 1, 0, 0, 0])
    # 1s beyond the nearest 0 (0.5): 1, 3. 0s within the farthest 1 (3): 2, 0.5
    settings = {"metric": "euclidean", "margin": 2.5, "online": True}
    expected = (1 + 9 + 0.5**2 + 2**2) / 2 / 4
    assert value("contrastive", settings, (left, right), label) == pytest.approx(expected)
    easy = value("contrastive", settings, (left[:2], rows([1], [3])), torch.tensor([1, 0]))
    assert easy == 0
    ones = value("contrastive", settings, (left[:2], rows([1], [3])), torch.tensor([1, 1]))
    assert ones == pytest.approx((1 + 9) / 2 / 2)


def test_soft_label_has_a_floor_for_zeros_and_0_for_other_rows():
    left, right, label = I2, rows([1, 0], [1, 1]), torch.tensor([1, 0])
    given = [0, sqrt(0.5) - 0.3]
    assert value("soft-label", {"random": 0}, (left, right), label) == pytest.approx(given[1] ** 2 / 2)
    others = [sqrt(0.5), 0]  # left 0 with right 1, left 1 with right 0
    expected = sum(error**2 for error in [*given, *others]) / 4
    assert value("soft-label", {}, (left, right), label) == pytest.approx(expected)
    assert value("soft-label", {"random": 9}, (left, right), label) == pytest.approx(expected)


def test_margin_mse_compares_the_difference_of_dots():
    anchor, positive, negative = rows([1, 2]), rows([3, 1]), rows([0, 1])
    assert value("margin-mse", {}, (anchor, positive, negative), rows(1)) == pytest.approx((5 - 2 - 1) ** 2)
    cosines = 5 / sqrt(50) - 2 / sqrt(5)
    result = value("margin-mse", {"score": "cosine"}, (anchor, positive, negative), rows(1))
    assert result == pytest.approx((cosines - 1) ** 2)


def test_vector_distillation_pulls_a_text_and_its_translations():
    teacher, text, translation = rows([1, 1]), rows([1, 0]), rows([3, 1])
    assert value("vector-distillation", {}, (text,), teacher) == pytest.approx(1 / 2)
    assert value("vector-distillation", {}, (text, translation), teacher) == pytest.approx(
        (1 / 2 + 4 / 2) / 2
    )
    with pytest.raises(InputError, match="vectors have 2 dimensions, the teacher's 3"):
        value("vector-distillation", {}, (text,), rows([1, 1, 1]))


def test_simcse_finds_each_text_in_the_second_pass():
    assert make_objective("simcse").needs.passes == 2
    assert value("simcse", {"temperature": 1}, (I2, I2)) == pytest.approx(log(1 + exp(-1)))


def test_denoising_sees_the_vector_and_only_earlier_words():
    from gemel.training.objectives.denoising import decode

    objective = make_objective("denoising")
    decoder = weights_of(objective)
    vectors = torch.randn(1, DIM, generator=torch.Generator().manual_seed(0))
    label = torch.tensor([[3, 5, 7, 2]])

    def thoughts(vector, tokens):
        return torch.log_softmax(decode(vector, tokens, decoder), 2)

    plain = thoughts(vectors, label)
    changed = thoughts(vectors, torch.tensor([[3, 5, 9, 2]]))
    assert torch.allclose(plain[:, :3], changed[:, :3], atol=1e-6)
    assert not torch.allclose(plain[:, 3], changed[:, 3], atol=1e-4)
    assert not torch.allclose(plain[:, 0], thoughts(-vectors, label)[:, 0], atol=1e-4)
    expected = -plain[0, torch.arange(4), label[0]].mean()
    assert torch.allclose(objective((vectors,), label, decoder), expected, rtol=1e-5)


def test_denoising_does_not_count_padding():
    objective = make_objective("denoising")
    decoder = weights_of(objective)
    vectors = torch.randn(1, DIM, generator=torch.Generator().manual_seed(0))
    short, padded = torch.tensor([[3, 5]]), torch.tensor([[3, 5, -100, -100]])
    result = [objective((vectors,), label, decoder) for label in (short, padded)]
    assert torch.allclose(result[0], result[1], rtol=1e-5)
    assert objective((vectors,), torch.full((1, 3), -100), decoder) == 0


def test_denoising_learns_to_write_texts_from_their_vectors():
    objective = make_objective("denoising", {"noise": 0.3})
    assert objective.needs.noise == 0.3
    vectors, label = columns(objective.needs, 1.0)
    decoder = weights_of(objective)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=3e-3)
    first = float(objective(vectors, label, decoder).detach())
    for _ in range(60):
        optimizer.zero_grad()
        loss = objective(vectors, label, decoder)
        loss.backward()
        optimizer.step()
    assert first == pytest.approx(log(WORDS), abs=0.5)
    assert loss < 0.5
    assert objective.saved_weights(decoder) is None


@pytest.mark.parametrize("dim", [1, 7, 26])
def test_the_decoder_fits_any_width(dim):
    objective = make_objective("denoising")
    loss = objective((torch.ones(2, dim),), torch.tensor([[1, 2], [3, -100]]), objective.weights(dim, WORDS))
    assert torch.isfinite(loss)


# Matryoshka


def test_matryoshka_is_the_mean_over_full_and_truncated_vectors():
    plain = make_objective("regression")
    gold = rows(0.1, 0.5, 0.9)
    result = Matryoshka(plain, (2, 1))((U, V), gold)
    parts = [plain((U[:, :size], V[:, :size]), gold) for size in (4, 2, 1)]
    assert torch.allclose(result, torch.stack(parts).mean())
    assert torch.equal(Matryoshka(plain, (4,))((U, V), gold), parts[0])


def test_matryoshka_has_the_needs_of_the_inner_objective():
    plain = make_objective("denoising", {"noise": 0.2})
    wrapper = Matryoshka(plain, (8,))
    assert wrapper.needs == plain.needs
    assert wrapper.name == "denoising"
    assert Matryoshka(make_objective("cosent"), (8,)).weights(DIM, CLASSES) is None


def test_matryoshka_has_weights_for_each_size_and_saves_those_of_full_vectors():
    wrapper = Matryoshka(make_objective("classification"), (16, 8))
    weights = wrapper.weights(DIM, CLASSES)
    assert {name: part.weight.shape for name, part in weights.items()} == {
        str(size): (CLASSES, 3 * size) for size in (DIM, 16, 8)
    }
    assert wrapper.saved_weights(weights) is weights[str(DIM)]
    assert Matryoshka(make_objective("denoising"), (8,)).saved_weights(weights) is None


def test_matryoshka_cuts_a_teacher_s_vector_as_its_own():
    teacher = V
    result = Matryoshka(make_objective("vector-distillation"), (2,))((U,), teacher)
    assert torch.allclose(result, ((U - V).square().mean() + (U - V)[:, :2].square().mean()) / 2)
    with pytest.raises(InputError, match="vectors have 4 dimensions, the teacher's 3"):
        Matryoshka(make_objective("vector-distillation"), (2,))((U,), V[:, :3])


def test_matryoshka_normalizes_truncated_vectors_as_encoding_does():
    units = [column / column.norm(dim=1, keepdim=True) for column in (U, V, V.flip(0))]
    starts = [column[:, :2] / column[:, :2].norm(dim=1, keepdim=True).clamp(min=1e-6) for column in units]
    plain = make_objective("triplet")
    result = Matryoshka(plain, (2,), normalize=True)(tuple(units), None)
    assert torch.allclose(result, (plain(tuple(units), None) + plain(tuple(starts), None)) / 2)


def test_matryoshka_sizes_must_fit():
    with pytest.raises(InputError, match="at least 1"):
        Matryoshka(make_objective("cosent"), ())
    with pytest.raises(InputError, match=r"at most 4, the model's dimensions, got \(8,\)"):
        Matryoshka(make_objective("cosent"), (8,))((U, V), rows(1, 2, 3))


def test_in_batch_ranking_by_dot_products_by_hand():
    anchor, positive = torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([[1.0, 1.0], [0.0, 2.0]])
    loss = make_objective("in-batch-ranking", {"score": "dot", "temperature": 2.0})((anchor, positive), None)
    rows = [log(exp(1) + exp(0)) - 1, log(exp(1.5) + exp(3)) - 3]  # scores 2, 0 and 3, 6, halved
    assert float(loss) == pytest.approx(sum(rows) / 2)


# Texts 0 and 1 mean the same, and 2 is another; the guide knows it, and the negative of row 2 is its positive again.
GUIDE = torch.tensor(
    [
        [[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]],
        [[1.0, 0.0], [1.0, 0.2], [0.1, 1.0]],
        [[0.0, 1.0], [0.1, 1.0], [0.0, 1.0]],
    ]
)


def test_a_guide_leaves_out_negatives_that_it_finds_nearer_than_the_positive():
    objective = make_objective("in-batch-ranking", {"guide": "any", "temperature": 1.0})
    assert objective.needs.label == "guide"
    assert not objective.needs.labeled
    random = torch.Generator().manual_seed(0)
    vectors = tuple(torch.randn(3, 4, generator=random) for _ in range(3))
    anchor, *documents = (column / column.norm(dim=1, keepdim=True) for column in vectors)
    scores = anchor @ torch.cat(documents).T
    # Columns: positives of rows 0, 1, 2, then their negatives. For row 1 the positive of row 0 is nearer than its own;
    # for row 2 the negatives of rows 0 and 2 are nearer, and that of row 1 is as near as its positive.
    kept = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 1, 0]], dtype=torch.bool)
    expected = torch.nn.functional.cross_entropy(scores.masked_fill(~kept, -torch.inf), torch.arange(3))
    torch.testing.assert_close(objective(vectors, GUIDE), expected)
    wider = make_objective("in-batch-ranking", {"guide": "any", "temperature": 1.0, "guide_margin": 0.1})
    kept[0, 1] = kept[2, 4] = False  # within the margin
    expected = torch.nn.functional.cross_entropy(scores.masked_fill(~kept, -torch.inf), torch.arange(3))
    torch.testing.assert_close(wider(vectors, GUIDE), expected)


def test_a_guide_protects_planted_false_negatives():
    """Rows in pairs with the same meaning: without a guide their vectors are pushed apart, with one they are not."""
    meanings = torch.eye(4).repeat_interleave(2, 0)
    guide = torch.stack(
        [meanings, meanings + 0.01 * torch.randn(8, 4, generator=torch.Generator().manual_seed(1))], 1
    )
    cosines = {}
    for name, label in (("plain", None), ("guided", guide)):
        torch.manual_seed(0)
        anchor = (meanings + 0.3 * torch.randn(8, 4)).requires_grad_()
        positive = (meanings + 0.3 * torch.randn(8, 4)).requires_grad_()
        settings = {} if label is None else {"guide": "any", "guide_margin": 0.05}
        objective, optimizer = (
            make_objective("in-batch-ranking", settings),
            torch.optim.SGD([anchor, positive], lr=0.2),
        )
        for _ in range(100):
            loss = objective((anchor, positive), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        one, other = (
            column.detach() / column.detach().norm(dim=1, keepdim=True) for column in (anchor, positive)
        )
        table = one @ other.T
        cosines[name] = float(torch.stack([table[row, row ^ 1] for row in range(8)]).mean())
    assert cosines["guided"] > cosines["plain"] + 0.1


def test_score_distillation_by_hand():
    anchor = torch.tensor([[1.0, 0.0]])
    documents = (torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 5.0]]))
    objective = make_objective("score-distillation", {"temperature": 1.0, "teacher_temperature": 0.5})
    teacher = [exp(1) / (exp(1) + 1), 1 / (exp(1) + 1)]  # of 0.5 and 0 at temperature 0.5
    student = [exp(2) / (exp(2) + exp(1)), exp(1) / (exp(2) + exp(1))]
    expected = sum(p * log(p / q) for p, q in zip(teacher, student, strict=True))
    result = objective((anchor, *documents), torch.tensor([[0.5, 0.0]]))
    assert float(result) == pytest.approx(expected, abs=1e-6)
    same = objective((anchor, *documents), torch.tensor([[1.0, 0.5]]))
    assert float(same) == pytest.approx(0, abs=1e-6)
    with pytest.raises(InputError, match="2 documents and 3 scores"):
        objective((anchor, *documents), torch.zeros(1, 3))
