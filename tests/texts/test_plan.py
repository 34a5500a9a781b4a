"""`gemel plan`: formulas against committed measurements, growth, messages, and the page made from it."""

import json
import sys
from pathlib import Path

import pytest

from gemel.cli.main import main
from gemel.errors import InputError
from gemel.files import machine
from gemel.texts import plan as costs
from gemel.texts.plan import PlanQuestion, amount, duration, moment, plan, size, up_to

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "tools" / "docs")]

import scale_page  # noqa: E402

import plan_checks  # noqa: E402
import plan_fit  # noqa: E402

CHECKS = plan_checks.checks()


@pytest.mark.parametrize("check", [c for c in CHECKS if not c.loose], ids=lambda check: check.name)
def test_a_prediction_is_within_20_percent_of_the_measurement(check):
    assert abs(check.off) <= plan_checks.TOLERANCE, f"{check.predicted:.3g} instead of {check.measured:.3g}"


def test_some_runs_are_predicted_that_set_no_constant():
    names = " ".join(check.name for check in CHECKS if not check.sets and not check.loose)
    for word in ("encode", "200,000", "pairs", "lists built"):
        assert word in names


def test_the_constants_are_those_of_the_committed_results():
    assert plan_fit.main(["--check"]) == 0, "run: python benchmarks/plan_fit.py"


def test_the_tables_of_the_page_are_fresh():
    assert scale_page.main(["--check"]) == 0, "run: python tools/docs/scale_page.py"


def test_the_formulas_use_the_constants_of_the_index():
    from gemel.index.lance import ann as lists
    from gemel.index.lance import table

    assert (costs.TRAINED_ON, costs.ROUNDS) == (lists._TRAINED_ON, lists._ROUNDS)
    assert (costs.SMALL, costs.MANY_SMALL) == (table._SMALL, table._MANY_SMALL)


def test_operations_are_counted_by_hand():
    tiny = PlanQuestion(texts=1, layers=1, width=2, inner=3)
    # 4 matrices of 2 x 2 and two of 2 x 3, a multiplication and an addition each, 5 tokens; then 4 x 25 x 2.
    assert tiny.flop(5) == 2 * (16 + 12) * 5 + 200


@pytest.mark.parametrize(
    ("name", "factor"), [("encode", 10), ("pairs", 100)], ids=["encoding is linear", "pairs are a square"]
)
def test_ten_times_the_texts(name, factor):
    small, large = (plan(PlanQuestion(texts=texts)).part(name) for texts in (1e8, 1e9))
    assert large.core_hours == pytest.approx(factor * small.core_hours, rel=1e-6)


def test_machines_divide_time_and_not_money():
    one, ten = (plan(PlanQuestion(texts=1e9, machines=machines)) for machines in (1, 10))
    for name in ("encode", "pairs"):
        assert ten.part(name).hours == pytest.approx(one.part(name).hours / 10)
        assert ten.part(name).money == one.part(name).money
    assert ten.part("index") == one.part("index"), "an index has one writer and one builder"


def test_more_queries_need_more_servers_and_no_fewer_than_one():
    counts = [
        plan(PlanQuestion(texts=1e9, queries_per_second=rate)).searching.servers for rate in (0, 10, 10_000)
    ]
    assert counts[0] == 1 and counts == sorted(counts) and counts[2] > 10


def test_larger_blocks_save_the_writer():
    small, large = (plan(PlanQuestion(texts=1e9, block=block)).part("index") for block in (2048, 200_000))
    assert large.hours < small.hours / 2


def test_limits_are_sorted_by_the_number_of_texts():
    reached = []
    for texts in (1e5, 1e7, 1e9, 4e10):
        limits = plan(PlanQuestion(texts=texts)).limits
        assert [limit.texts for limit in limits] == sorted(limit.texts for limit in limits)
        assert all(limit.reached == (texts > limit.texts) for limit in limits)
        reached.append({limit.name for limit in limits if limit.reached})
    assert not reached[0]
    assert reached[0] <= reached[1] <= reached[2] < reached[3]
    assert {"memory of the index", "the triangle of all pairs", "fragments", "one writer"} <= reached[3]


def test_more_memory_moves_the_limit_of_memory():
    def at(memory):
        limits = plan(PlanQuestion(texts=1e6, memory=memory)).limits
        return next(limit.texts for limit in limits if limit.name == "memory of the index")

    assert at("512GB") == pytest.approx(2 * at("256GB"), rel=0.01)


def test_the_search_for_a_limit_finds_it():
    assert up_to(lambda texts: texts**2, 1e12) == pytest.approx(1e6, rel=2e-3)
    assert up_to(lambda texts: 0.0, 1) == 1e15


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"texts": 0}, "texts must be a number of at least 1, got 0"),
        ({"texts": float("nan")}, "texts must be"),
        ({"texts": 10, "cores": 0}, "cores must be"),
        ({"texts": 10, "queries_per_second": -1}, "queries_per_second must not be negative"),
        ({"texts": 10, "memory": "much"}, "memory must be bytes or a size"),
        ({"texts": 10, "precision": "int4"}, "precision must be one of float32, bfloat16, int8"),
        ({"texts": 10, "block": 0}, "block must be at least 1"),
        ({"texts": 10, "texts_per_second": 0}, "texts_per_second must be a number above 0"),
        ({"texts": 10, "text_bytes": -1}, "text_bytes must not be negative"),
    ],
)
def test_an_invalid_question_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        PlanQuestion(**given)


def test_the_rate_of_gemel_bench_can_be_given():
    question = PlanQuestion(texts=1e6, texts_per_second=500)
    assert plan(question).part("encode").core_hours == pytest.approx(1e6 / 500 / 3600)
    assert plan(question).part("index") == plan(PlanQuestion(texts=1e6)).part("index")


@pytest.mark.parametrize(
    ("flags", "cores", "memory"),
    [
        ([], 64, "256GB"),
        (["--here"], 2, 3_000_000_000),
        (["--here", "--cores", "5"], 5, 3_000_000_000),
        (["--here", "--memory", "1GB"], 2, "1GB"),
    ],
)
def test_a_plan_for_here_takes_the_cores_and_memory_of_the_container(
    monkeypatch, capsys, flags, cores, memory
):
    monkeypatch.setattr(machine, "core_limits", lambda: machine.CoreLimits(64, 64, 1.5, None))
    monkeypatch.setattr(machine, "memory_limits", lambda: machine.MemoryLimits(256 * 10**9, 3 * 10**9))
    assert main(["plan", "--texts", "1000", "--json", *flags]) == 0
    question = json.loads(capsys.readouterr().out)["question"]
    assert (question["cores"], question["memory"]) == (cores, memory)


def test_the_command_shows_costs_and_what_breaks(capsys):
    assert main(["plan", "--texts", "1e9", "--mean-tokens", "20", "--cores", "64", "--memory", "256GB"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("1,000,000,000 texts of 20 tokens")
    for word in (
        "core hours",
        "encode",
        "index",
        "pairs",
        "search, 10 per second",
        "what breaks first",
        "rates: ",
    ):
        assert word in shown


def test_the_command_gives_json(capsys):
    assert main(["plan", "--texts", "1e7", "--queries-per-second", "100", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [part["name"] for part in made["parts"]] == ["encode", "index", "pairs"]
    assert made["question"]["texts"] == 1e7 and made["constants"]["source"]
    assert made["searching"]["servers"] >= 1 and made["limits"][0]["words"]


def test_a_wrong_request_is_one_line(capsys):
    assert main(["plan", "--texts", "-5"]) == 2
    assert "texts must be a number of at least 1" in capsys.readouterr().err
    assert main(["plan"]) == 2
    assert "--texts" in capsys.readouterr().err


def test_numbers_are_written_for_a_person():
    assert [size(n) for n in (12, 1.5e9, 999.96e6, 4e15, 2e18)] == [
        "12 bytes",
        "1.5 GB",
        "1 GB",
        "4 PB",
        "2,000 PB",
    ]
    assert [amount(n) for n in (0.0526, 99, 12_345, 4.56e6, 4e10)] == [
        "0.0526",
        "99",
        "12,345",
        "4.56 M",
        "40 B",
    ]
    assert [duration(h) for h in (0.001, 0.5, 30, 100, 24 * 365 * 150)] == [
        "3.6 s", "30 min", "30 hours", "4.17 days", "150 years",
    ]  # fmt: skip
    assert [moment(s) for s in (0.0174, 6.77)] == ["17.4 ms", "6.77 s"]
