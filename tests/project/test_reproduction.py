"""The plan of the reproduction is complete, its runs resume after a kill, and its page matches its results."""

import gzip
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tiny

HERE = Path(__file__).parents[2]
sys.path.insert(0, str(HERE))

from reproduction import (  # noqa: E402
    adjusted,
    claims,
    collapse,
    derived,
    differences,
    figures,
    making,
    measuring,
    paper,
    plan,
    rates,
    render,
    run,
    stored_results,
    timing,
)
from reproduction.pages import PARTS  # noqa: E402
from reproduction.parts import NLI, START, Folders, Made, Row, Rows, Suite  # noqa: E402
from reproduction.scales import SCALES  # noqa: E402
from reproduction.shapes import Shape  # noqa: E402
from reproduction.timed_claims import TIMED_CLAIMS, timed_rows  # noqa: E402
from reproduction.timing import TIMED  # noqa: E402

import gemel  # noqa: E402
from gemel.cli.main import VERBS  # noqa: E402
from gemel.errors import InputError  # noqa: E402
from gemel.evaluation.statistics import MeanSample, WeightedSample  # noqa: E402

pytest.importorskip("torch")


@pytest.fixture
def folders(tmp_path):
    """A tiny start model, and NLI, STS and argument files of a few rows."""
    weights = tmp_path / "weights" / START
    weights.parent.mkdir()
    tiny.tiny_bert(weights)
    texts = ["a man is playing guitar", "a woman is sleeping", "the cat was running", "the stock market fell"]
    lines = [(one, two) for one in texts for two in texts if one != two]
    labels = ("entailment", "neutral", "contradiction")
    nli = ["premise\thypothesis\tlabel", *(f"{a}\t{b}\t{labels[i % 3]}" for i, (a, b) in enumerate(lines))]
    scored = ["sentence1\tsentence2\tscore", *(f"{a}\t{b}\t{i % 5}" for i, (a, b) in enumerate(lines))]
    grades = ("NS", "SS", "HS", "DTORCD")
    argued = ["topic\tsentence1\tsentence2\tlabel"]
    argued += [f"t{i % 4}\t{a}\t{b}\t{grades[i % 4]}" for i, (a, b) in enumerate(lines)]
    data = tmp_path / "data"
    files = dict.fromkeys(NLI, nli) | {"sts/stsb-dev": scored, "sts/stsb-test": scored}
    for name, content in (files | {plan.ARGUMENTS: argued}).items():
        write_gz(data / f"{name}.tsv.gz", content)
    return Folders(str(data), str(tmp_path / "weights"), str(tmp_path / "work"), threads=1)


def write_gz(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        stream.write("\n".join(lines) + "\n")


def test_every_table_of_the_paper_with_data_has_a_command_and_a_section_on_the_page():
    tables = {"1", "2", "3", "5", "6", "7", "headline", "student", "curve", "rates", "collapse", "front"}
    assert tables == {*plan.TABLES, *TIMED, "collapse"} == set(PARTS)
    for name in PARTS:
        assert run.arguments([name, "--data", "d", "--weights", "w"]).table == name


@pytest.mark.parametrize("scale", SCALES.values(), ids=lambda scale: scale.name)
def test_the_command_of_every_model_is_valid(scale, monkeypatch):
    monkeypatch.setattr(
        making, "files_of", lambda rows, folders: [Path(f"{name}.tsv") for name in rows.files]
    )
    models = {row.model.name: row.model for table in plan.TABLES.values() for row in table(scale)}
    models |= {model.name: model for model in (trial.model(scale) for trial in collapse.trials(scale))}
    for model in models.values():
        if model.verb:
            verb, *words = making.command(model, Folders("data", "weights", "work"))
            VERBS[verb].make_context(verb, words)


@pytest.mark.parametrize("scale", SCALES.values(), ids=lambda scale: scale.name)
def test_every_claim_refers_to_lines_that_the_plan_measures(scale):
    for claim in claims.CLAIMS:
        rows = plan.TABLES[claim.table](scale)
        assert {*claim.better, *claim.worse} <= {row.label for row in rows}, claim.name


def test_every_line_of_the_paper_is_a_line_of_the_plan():
    for table, lines in (("1", paper.TABLE1), ("2", paper.TABLE2), ("5", paper.TABLE5), ("6", paper.TABLE6)):
        assert set(lines) <= {row.label for row in plan.TABLES[table](SCALES["full"])}


@pytest.mark.parametrize("scale", SCALES.values(), ids=lambda scale: scale.name)
def test_no_two_models_of_a_plan_share_a_name(scale):
    made = {}
    for table in plan.TABLES.values():
        for row in table(scale):
            assert made.setdefault(row.model.name, row.model) == row.model


def test_all_seven_forms_and_three_poolings_are_run_with_every_seed():
    rows = plan.table6(SCALES["full"])
    assert sum(row.label.startswith("(") for row in rows) == 7 * len(SCALES["full"].seeds)
    assert sum(row.label.startswith(("NLI", "STSb")) for row in rows) == 6 * len(SCALES["full"].seeds)


@pytest.mark.parametrize(
    ("within", "low", "high", "expected"),
    [
        (None, 0.1, 3.0, "holds"),
        (None, -3.0, -0.1, "does not hold"),
        (None, -1.0, 1.0, "undecided"),
        (1.0, -0.9, 0.9, "holds"),
        (1.0, 1.2, 3.0, "does not hold"),
        (1.0, -3.0, -1.2, "does not hold"),
        (1.0, -0.5, 1.5, "undecided"),
    ],
)
def test_a_verdict_follows_from_the_interval(within, low, high, expected):
    claim = claims.Claim("x", "6", "text", "1 against 2", ("a",), ("b",), within=within)
    assert claims.verdict(claim, low, high) == expected


def test_a_difference_over_seeds_has_students_interval():
    result = differences.over_seeds([1.0, 2.0, 3.0])
    assert (result["difference"], result["count"]) == (2.0, 3)
    assert result["low"] == pytest.approx(2 - 4.303 / 3**0.5, abs=0.01)
    assert differences.over_seeds([1.0])["low"] is None


def entry(label, seed, value):
    return {"label": label, "seed": seed, "scores": {"stsb-dev": {"value": value, "low": 0.0, "high": 1.0}}}


def test_differences_are_taken_within_a_seed_and_only_where_both_lines_have_it(folders):
    planned = plan.table6(SCALES["medium"])
    first, last = entry("(u,v,|u-v|)", 0, 60.0), entry("(u,v,|u-v|)", 2, 99.0)
    assert differences.differences("6", planned, [first, entry("(u,v)", 1, 58.0)], folders) == {}
    rows = [first, entry("(u,v)", 0, 50.0), entry("(u,v,|u-v|)", 1, 70.0), entry("(u,v)", 1, 58.0), last]
    [(name, result)] = differences.differences("6", planned, rows, folders).items()
    assert (name, result["difference"], result["count"]) == ("difference-matters", 11.0, 2)


def test_a_line_without_seeds_is_compared_with_every_seed(folders):
    rows = [entry("bi-encoder, NLI", 0, 50.0), *(entry("bi-encoder, STSb", n, 60.0 + n) for n in range(3))]
    result = differences.differences("2", plan.table2(SCALES["medium"]), rows, folders)
    assert (result["stsb-beats-nli"]["difference"], result["stsb-beats-nli"]["count"]) == (11.0, 3)


def test_the_rate_with_the_best_score_is_used_once_all_three_were_run():
    rows = [
        entry(rates.label("ranking", rate), 100, value)
        for rate, value in zip(rates.CANDIDATES, (1.0, 3.0, 3.0), strict=True)
    ]
    assert rates.choose("ranking", "1e-3", {"rows": rows}) == rates.CANDIDATES[1]
    assert rates.choose("ranking", "1e-3", {"rows": rows[:2]}) == "1e-3"
    assert (
        rates.choose("regression", "1e-3", {"rows": rows}) == rates.choose("ranking", "1e-3", None) == "1e-3"
    )


def test_a_claim_about_a_line_at_another_rate_than_the_chosen_one_has_no_verdict(monkeypatch):
    start = Made("start", verb="train", flags=("--learning-rate", "6e-5"))
    after = Made("after", verb="train", start=start, flags=("--learning-rate", "2e-5"))
    lines = {
        "bi-encoder, STSb": start,
        "bi-encoder, NLI + STSb": after,
        "cross-encoder, STSb": plan.UNTRAINED,
    }
    monkeypatch.setitem(
        plan.TABLES, "2", lambda scale: [Row(label, made, plan.STSB_TEST) for label, made in lines.items()]
    )
    rows = [
        {**entry("bi-encoder, STSb", 0, 70.0), "command": "gemel train x --learning-rate 6e-5 --seed 0"},
        {**entry("bi-encoder, NLI + STSb", 0, 70.0), "command": "gemel train x --learning-rate 2e-5"},
        {**entry("cross-encoder, STSb", 0, 70.0), "command": ""},
    ]
    content = {"scale": "small", "rows": rows}
    assert render.at_other_rates("2", content) == ["bi-encoder, NLI + STSb"]
    interval = {"difference": 2.0, "low": 1.0, "high": 3.0, "over": "seeds", "count": 3}
    content["differences"] = {"nli-first-helps-bi": interval, "bi-equals-cross": interval}
    text = render.claims_table({"2": content})
    assert (
        "| NLI before STSb helps the bi-encoder |" in text and text.count("none: not at the chosen rate") == 1
    )
    rows[1]["before"] = ["gemel train y --learning-rate 6e-5"]
    assert render.at_other_rates("2", content) == []


def test_rates_are_chosen_on_pairs_that_no_run_was_trained_on():
    for row in plan.rate_runs(SCALES["medium"]):
        [scored] = row.suite.files
        files = [each.rows for each in (row.model, row.model.start) if each.rows]
        on_stsb = [rows for rows in files if rows.files == scored.files]
        assert all((rows.fold, rows.held_out) == (scored.fold, False) for rows in on_stsb) and scored.held_out
        assert row.seed not in SCALES["full"].seeds


def test_undecided_claims_get_more_seeds_and_decided_ones_do_not(folders, tmp_path, monkeypatch):
    values = {"(u,v,|u-v|)": (60.0, 62.0), "(u,v)": (40.0, 42.0), "(u,v,u*v)": (59.0, 64.0)}
    measured = []

    def fake(row, folders, rounds):
        measured.append((row.label, row.seed))
        return {**entry(row.label, row.seed, values.get(row.label, (50.0, 50.0))[row.seed % 2])}

    monkeypatch.setattr(run, "measure", fake)
    scale = replace(SCALES["medium"], seeds=(0, 1))
    rows = [row for row in run.rows_of("6", scale, folders) if row.label in values]
    target = run.run_table("6", scale, folders, tmp_path, rows, most_seeds=4)
    content = json.loads(target.read_text())
    added = {pair for pair in measured if pair[1] > 1}
    assert added == {(label, seed) for label in ("(u,v,|u-v|)", "(u,v,u*v)") for seed in (2, 3)}
    assert content["differences"]["difference-over-product"]["count"] == 4
    assert content["planned"] == len(run.rows_of("6", scale, folders)) + len(added)


def test_a_draw_of_rows_is_the_same_for_a_seed_and_other_for_another(folders):
    first, again, other = (derived.files_of(Rows(NLI, 5, seed), folders)[0].read_text() for seed in (0, 0, 1))
    assert first == again != other
    assert len(first.splitlines()) == 6


def test_folds_of_topics_keep_a_topic_whole_and_miss_nothing(folders):
    seen = []
    for number in range(2):
        sides = [
            derived.files_of(
                Rows((plan.ARGUMENTS,), shape="arguments", fold=("topics", number, 2), held_out=held_out),
                folders,
            )[0]
            for held_out in (True, False)
        ]
        inside, rest = ([line.split("\t") for line in side.read_text().splitlines()[1:]] for side in sides)
        assert not {row[0] for row in inside} & {row[0] for row in rest}
        assert len(inside) + len(rest) == 12
        seen += inside
    assert len({tuple(row) for row in seen}) == 12


def test_data_that_is_not_there_is_named(folders):
    with pytest.raises(InputError, match=r"absent\.tsv\.gz is not there. --data takes the folder"):
        derived.files_of(Rows(("absent",)), folders)


@pytest.fixture
def trained(folders):
    flags = (
        "--objective",
        "classification",
        "--max-steps",
        "4",
        "--batch-size",
        "4",
        "--checkpoint-steps",
        "2",
    )
    return Made("few", verb="train", start=plan.UNTRAINED, rows=Rows(NLI, 12), flags=flags)


def in_process(words, threads, log):
    from gemel.cli.main import main

    return main(words)


def killed(words, threads, log):
    """As after a kill at step 2: its snapshot is there; the later one, the end and the model are not."""
    in_process(words, threads, log)
    out = Path(words[words.index("-o") + 1])
    for path in out.iterdir():
        if path.is_file():
            path.unlink()
    shutil.rmtree(max((out / "training" / "snapshots").iterdir()))
    return -9


def test_a_killed_run_resumes_to_the_same_model_and_a_finished_one_is_not_repeated(
    folders, trained, monkeypatch
):
    monkeypatch.setattr(making, "run_gemel", in_process)
    whole = making.make(trained, folders)
    assert whole["command"].startswith("gemel train work/data/nli-12-s0.tsv --model weights/tinybert-4L-312")
    assert (whole["steps"], whole["seed"]) == (4, 0)

    again = replace(trained, name="again")
    monkeypatch.setattr(making, "run_gemel", killed)
    assert making.make(trained, folders) == whole  # read, not run
    with pytest.raises(InputError, match="for again ended with -9"):
        making.make(again, folders)
    monkeypatch.setattr(making, "run_gemel", in_process)
    assert making.make(again, folders)["steps"] == 4
    assert '"kind": "resume"' in (Path(folders.work) / "again" / "training" / "metrics.jsonl").read_text()
    one, two = (Path(folders.work) / name / "model.safetensors" for name in ("few", "again"))
    assert one.read_bytes() == two.read_bytes()


def test_another_command_for_the_same_folder_is_refused(folders, trained):
    out = Path(folders.work) / trained.name
    out.mkdir(parents=True)
    (out / "made.json").write_text(json.dumps({"command": "gemel train other"}))
    with pytest.raises(InputError, match="was made by another command: gemel train other"):
        making.make(trained, folders)


def test_a_table_is_measured_row_by_row_and_one_that_fails_is_named(folders, tmp_path, monkeypatch):
    good = Row("untrained, mean", plan.UNTRAINED, plan.STSB_TEST)
    bad = Row("bi-encoder, NLI", Made("nowhere", source="no-such-model"), plan.STSB_TEST)
    monkeypatch.setitem(plan.TABLES, "2", lambda scale: [bad, good])
    words = ["2", "--data", folders.data, "--weights", folders.weights, "--work", folders.work]
    target, words = tmp_path / "table-2-small.json", [*words, "--threads", "1", "--out", str(tmp_path)]
    assert run.main([*words, "--ready"]) == 0
    assert not target.exists()
    assert run.main(words) == 0
    content = json.loads(target.read_text())
    assert [row["label"] for row in content["rows"]] == ["untrained, mean"]
    assert content["failed"][0]["label"] == "bi-encoder, NLI"
    assert set(content) >= {"command", "machine", "versions", "planned", "differences"}
    score = content["rows"][0]["scores"]["stsb"]
    assert score["low"] <= score["value"] <= score["high"]


@pytest.mark.parametrize("change", ["nothing", "its command", "the command of its start"])
def test_a_stored_row_is_used_again_if_all_its_commands_are_the_same(
    folders, tmp_path, monkeypatch, trained, change
):
    rows = []
    for seed in (0, 1):
        after = replace(trained, name=f"after-s{seed}", start=trained, seed=seed)
        rows.append(Row("bi-encoder, NLI + STSb", after, plan.STSB_TEST, seed))
    monkeypatch.setitem(plan.TABLES, "2", lambda scale: rows)
    stored = [
        {
            **entry(row.label, row.seed, 70.0),
            "suite": row.suite.name,
            "command": making.commands(row.model, folders)[1],
            "before": making.commands(trained, folders),
        }
        for row in rows
    ]
    if change == "its command":
        stored[1]["command"] += " --epochs 2"
    elif change == "the command of its start":
        stored[1]["before"] = ["gemel train other"]
    target = tmp_path / "table-2-small.json"
    target.write_text(json.dumps({"rows": stored}))
    measured = []

    def fake(row, folders, rounds):
        measured.append(row.seed)
        return entry(row.label, row.seed, 60.0)

    monkeypatch.setattr(run, "measure", fake)
    run.run_table("2", SCALES["small"], replace(folders, jobs=2), tmp_path, rows)
    assert measured == ([] if change == "nothing" else [1])
    assert [row["seed"] for row in json.loads(target.read_text())["rows"]] == [0, 1]


def test_a_killed_run_keeps_the_rows_that_it_did_not_reach(folders, tmp_path, monkeypatch):
    rows = [Row("untrained, mean", plan.UNTRAINED, plan.STSB_TEST, seed) for seed in (0, 1)]
    monkeypatch.setitem(plan.TABLES, "2", lambda scale: rows)
    stored = [{**entry(row.label, row.seed, 70.0), "suite": "stsb-test", "command": "other"} for row in rows]
    target = tmp_path / "table-2-small.json"
    target.write_text(json.dumps({"rows": stored}))

    def fake(row, folders, rounds):
        if row.seed:
            raise KeyboardInterrupt
        return {**entry(row.label, row.seed, 60.0), "suite": "stsb-test"}

    monkeypatch.setattr(run, "measure", fake)
    with pytest.raises(KeyboardInterrupt):
        run.run_table("2", SCALES["small"], folders, tmp_path, rows)
    first, second = json.loads(target.read_text())["rows"]
    assert (first["scores"]["stsb-dev"]["value"], second) == (60.0, stored[1])


def test_a_run_of_some_rows_keeps_the_others(folders, tmp_path, monkeypatch):
    rows = [Row(label, plan.UNTRAINED, plan.STSB_TEST) for label in ("teacher", "two layers", "static")]
    monkeypatch.setitem(plan.TABLES, "student", lambda scale: rows)
    stored = [{**entry(row.label, 0, 70.0), "suite": "stsb-test", "command": "other"} for row in rows]
    target = tmp_path / "table-student-small.json"
    target.write_text(json.dumps({"rows": stored[::2], "differences": {"a claim": {}}}))
    monkeypatch.setattr(run, "measure", lambda row, *_: {**entry(row.label, 0, 60.0), "suite": "stsb-test"})
    run.run_table("student", SCALES["small"], folders, tmp_path, [rows[1]])
    content = json.loads(target.read_text())
    assert [row["scores"]["stsb-dev"]["value"] for row in content["rows"]] == [70.0, 60.0, 70.0]
    assert content["differences"] == {"a claim": {}}


def test_stored_rows_of_a_model_on_several_suites_are_told_apart(folders, tmp_path, monkeypatch, trained):
    suites = (Suite("sts7", "sts"), Suite("retrieval", "retrieval"))
    rows = [Row("two layers", trained, suite) for suite in suites]
    monkeypatch.setitem(plan.TABLES, "student", lambda scale: rows)
    command = making.commands(trained, folders)[-1]
    stored = [
        {**entry(row.label, 0, value), "suite": row.suite.name, "command": command}
        for row, value in zip(rows, (70.0, 40.0), strict=True)
    ]
    target = tmp_path / "table-student-small.json"
    target.write_text(json.dumps({"rows": stored}))
    run.run_table("student", SCALES["small"], folders, tmp_path, rows)
    assert json.loads(target.read_text())["rows"] == stored


def test_a_model_that_another_table_measured_is_not_made_again(folders, tmp_path, trained):
    suite = Suite("sts7", "sts")
    same = Row("173,135 pairs", trained, suite)
    others = [
        replace(same, pooling="cls"),
        replace(same, after="centered"),
        replace(same, suite=plan.STSB_DEV),
    ]
    commands = making.commands(trained, folders)
    first = {**entry("NLI, classification", 0, 70.0), "suite": "sts7", "command": commands[-1]}
    (tmp_path / "table-1-small.json").write_text(json.dumps({"rows": [first]}))
    stored = run.stored_rows({"table": "curve", "scale": "small"}, [same, *others], tmp_path)
    assert stored.find(same, folders) == {**first, "label": "173,135 pairs"}
    assert [stored.find(row, folders) for row in others] == [None] * 3


def test_lines_that_are_compared_pair_by_pair_are_measured_again(folders, tmp_path, trained):
    untrained = Row("untrained, mean", plan.UNTRAINED, plan.STSB_TEST)
    rows = [untrained, Row("NLI, classification", trained, plan.STSB_TEST)]
    command = making.commands(trained, folders)[-1]
    stored = {**entry(rows[1].label, 0, 70.0), "suite": "stsb-test", "command": command}
    (tmp_path / "table-1-small.json").write_text(json.dumps({"rows": [stored]}))
    heading = {"table": "1", "scale": "small"}
    assert run.stored_rows(heading, rows, tmp_path).find(rows[1], folders) is None
    seeds = [*rows, replace(rows[1], seed=1)]
    assert run.stored_rows(heading, seeds, tmp_path).find(rows[1], folders) == stored


def test_a_measurement_keeps_the_number_of_its_fold(folders):
    row = Row("tf-idf, folds", plan.UNTRAINED, plan.STSB_TEST, seed=2)
    assert measuring.measure(row, folders, 20)["seed"] == 2


def test_two_models_are_compared_by_the_items_that_were_kept(folders):
    mean = Row("mean", plan.UNTRAINED, plan.STSB_TEST)
    cls = Row("cls", plan.UNTRAINED, plan.STSB_TEST, pooling="cls")
    values = [measuring.measure(row, folders, 20)["scores"]["stsb"]["value"] for row in (mean, cls)]
    compared = measuring.difference(mean, cls, "stsb", folders, rounds=20)
    assert 100 * compared.difference == pytest.approx(values[1] - values[0], abs=0.02)


def test_the_page_says_what_the_results_say(tmp_path):
    assert render.main(["--check"]) == 0, "python -m reproduction.render"
    assert render.main(["--check", "--out", str(tmp_path)]) == 1


def test_every_result_has_its_command_versions_and_seconds():
    for path in stored_results.RESULTS.glob("table-*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        assert content["command"].startswith("python -m reproduction.run")
        assert "gemel" in content["versions"]
        for row in content["rows"] if content["table"] in plan.TABLES else []:
            assert {"command", "seconds", "seed", "scores"} <= set(row), row["label"]


def test_a_line_over_seeds_is_a_mean_and_a_deviation_and_a_single_one_has_its_interval():
    line = stored_results.Line("x", [entry("x", 0, 1.0), entry("x", 1, 3.0)])
    assert line.cell() == "2.00 ± 1.41"
    assert stored_results.Line("x", [entry("x", 0, 0.5)]).cell() == "0.50 [0.0, 1.0]"
    assert np.isclose(line.mean(), 2.0)


def test_a_table_that_was_not_run_says_how_to_run_it():
    text = render.page({})
    assert "python -m reproduction.run headline --scale full" in text
    assert text.count("| not run |") == len(claims.CLAIMS) + len(TIMED_CLAIMS)


def collapse_row(label, seed, score, rank):
    steps = [
        {"step": 0, "score": 20.0, "effective_rank": 25.0, "mean_cosine": 0.97},
        {"step": 250, "score": score, "effective_rank": rank, "mean_cosine": 0.5},
    ]
    return {"label": label, "seed": seed, "steps": steps, "warnings": []}


def test_texts_of_several_files_are_distinct_and_limited_by_file(tmp_path):
    write_gz(tmp_path / "a.tsv.gz", ["label\tsentence", "1\tone", "1\ttwo", "0\tone", "0\tthree"])
    write_gz(tmp_path / "b.tsv.gz", ["id\ttext", "1\tfour", "2\ttwo"])
    folders = Folders(str(tmp_path), "", str(tmp_path))

    def texts(**more):
        rows = Rows(("a", "b"), shape="texts", **more)
        return derived.files_of(rows, folders)[0].read_text(encoding="utf-8").split()[1:]

    assert texts() == ["one", "two", "three", "four"]
    some = texts(each=2)
    assert len(some) == len(set(some)) and set(some[:2]) <= {"one", "two", "three"} and "four" in some[2:]


def test_pairs_with_a_text_that_was_seen_are_left_out(tmp_path):
    write_gz(tmp_path / "a.tsv.gz", ["label\tsentence", "1\tA cat, asleep."])
    write_gz(tmp_path / "sts.tsv.gz", ["sentence1\tsentence2\tscore", "a cat asleep\ta dog\t1", "x\ty\t2"])
    rows = Rows(("sts",), without=Rows(("a",), shape="texts"))
    file = derived.files_of(rows, Folders(str(tmp_path), "", str(tmp_path)))[0]
    assert file.name == "sts-unseen.tsv"
    assert file.read_text(encoding="utf-8").splitlines() == ["sentence1\tsentence2\tscore", "x\ty\t2"]


def test_the_fix_of_the_collapse_is_compared_seed_by_seed(tmp_path):
    rows = [
        collapse_row("classification, 6e-5", 1, 38.0, 12.0),
        collapse_row("classification, 2e-4", 0, 30.0, 4.0),
        collapse_row("classification, 2e-4", 1, 32.0, 5.0),
        collapse_row("classification, 2e-4, head 1e-3", 0, 41.0, 14.0),
        collapse_row("classification, 2e-4, head 1e-3", 1, 41.0, 16.0),
    ]
    content = {"rows": rows, "scale": "medium", "command": "python -m reproduction.run collapse"}
    text = PARTS["collapse"][1](content)
    assert "After 250 steps" in text
    ranks = "4.5 ± 0.7 | 0.50 ± 0.00 | 2 of 2, at step 250, 250"
    assert f"| classification, 2e-4 | 2 | 31.00 ± 1.41 | {ranks} |" in text
    assert "| classification, 2e-4: at 6e-5 instead | 1 | +6.00 | +7.00 |" in text
    assert (
        "| classification, 2e-4: head at 1e-3 | 2 | +10.00 [-2.71, +22.71] | +10.50 [+4.15, +16.85] |" in text
    )
    pytest.importorskip("matplotlib", reason="figures are drawn by matplotlib")
    assert [path.suffix for path in figures.draw({"collapse": content}, tmp_path)] == [".png", ".svg"]


def test_all_seeds_of_a_trial_have_its_label_and_a_model_of_their_own():
    every = list(collapse.trials(SCALES["medium"]))
    models = [trial.model(SCALES["medium"]) for trial in every]
    assert len({model.name for model in models}) == len(every)
    fixed = [trial for trial in every if trial.label == "classification, 2e-4, head 1e-3"]
    assert [trial.seed for trial in fixed] == [0, 1, 2]


def test_a_trial_is_described_by_its_journal():
    journal = [
        {"kind": "evaluation", "step": 0, "score": 20.123},
        {"kind": "health", "step": 0, "effective_rank": 25.678, "mean_cosine": 0.97},
        {"kind": "warning", "step": 5, "text": "few directions"},
        {"kind": "health", "step": 5, "effective_rank": 2.0, "mean_cosine": 0.5},
    ]
    assert collapse.over_steps(journal) == {
        "steps": [{"step": 0, "score": 20.12, "effective_rank": 25.68, "mean_cosine": 0.97}],
        "warnings": [{"step": 5, "text": "few directions"}],
    }


def test_students_are_judged_by_shares_of_the_teacher(tmp_path):
    def scored(label, suite, value):
        score = {"value": value, "low": value - 1, "high": value + 1}
        share = {name: number / 80 for name, number in score.items()}
        return {"label": label, "suite": suite, "seed": 0, "scores": {"average": score}, "share": share}

    rows = [scored(label, suite, value) for suite in ("sts7", "retrieval", "clustering")
            for label, value in (("teacher", 80.0), ("three layers", 79.0), ("static", 68.5))]  # fmt: skip
    speeds = [
        {"model": label, "seconds": [seconds, 2 * seconds], "per_second": 100 / seconds}
        for label, seconds in (("teacher", 10.0), ("three layers", 2.0), ("static", 0.1))
    ]
    result = {"student": {"rows": rows}, "front": {"rows": speeds}}
    judged = [row for row in timed_rows(result) if row[0] in ("student", "front")]
    assert {row[-1] for row in judged if "two layers" in row[1]} == {"not run"}
    verdicts = [row[-1] for row in judged if "three layers" in row[1] or "static" in row[1]]
    assert verdicts == ["**holds**"] * 4 + ["**undecided**", "**holds**"]
    (judged,) = [row for row in timed_rows(result) if "three layers has 97 %" in row[1]]
    assert judged[-2:] == ["× 0.988 [0.975, 1.000], of the teacher's average", "**holds**"]
    assert "| three layers | 50 | × 5.00 |" in PARTS["front"][1](result["front"])
    pytest.importorskip("matplotlib", reason="figures are drawn by matplotlib")
    assert len(figures.draw(result, tmp_path)) == 2


def test_a_share_of_the_teacher_is_drawn_on_the_same_items():
    random = np.random.default_rng(1)
    teacher = [MeanSample(random.random(size)) for size in (60, 90)]
    student = [MeanSample(0.9 * part.values) for part in teacher]
    both = [WeightedSample(tuple(parts), (1.0, 1.0)) for parts in (student, teacher)]
    found = differences.share(*both, 100)
    assert found == {"value": 0.9, "low": 0.9, "high": 0.9}
    noisy = [MeanSample(part.values + 0.1 * random.random(len(part.values))) for part in student]
    found = differences.share(WeightedSample(tuple(noisy), (1.0, 1.0)), both[1], 100)
    assert 0.95 < found["low"] < found["value"] < found["high"] < 1.05
    assert differences.share(both[0], MeanSample(np.zeros(150)), 100) == {}


def test_shares_are_added_where_the_items_of_both_models_are_there(tmp_path):
    folders = Folders(str(tmp_path), str(tmp_path), str(tmp_path))
    suite = Suite("sts7", "sts")
    planned = [Row(label, Made(label), suite) for label in ("teacher", "static", "two layers")]
    for row, number in zip(planned[:2], (0.8, 0.6), strict=True):
        path = measuring._path(row, folders)
        path.parent.mkdir(parents=True)
        path.write_text("{}")
        np.savez(path.with_suffix(".npz"), **{"mr:values": np.full(10, number)})
    entries = [{"label": row.label, "suite": "sts7"} for row in planned]
    differences.add_shares(planned, entries, folders, rounds=10)
    assert entries[0].get("share") is entries[2].get("share") is None
    assert entries[1]["share"] == {"value": 0.75, "low": 0.75, "high": 0.75}


def test_queries_of_a_student_are_compared_with_documents_of_its_teacher(tmp_path):
    student, teacher = tiny.tiny_bert(tmp_path / "student", seed=1), tiny.tiny_bert(tmp_path / "teacher")
    both = adjusted.TwoModels.open(str(student), str(teacher), 1)
    texts = ["the cat", "a man"]
    np.testing.assert_array_equal(both.encode_query(texts), gemel.load(student).encode(texts, threads=1))
    np.testing.assert_array_equal(both.encode_document(texts), gemel.load(teacher).encode(texts, threads=1))
    np.testing.assert_array_equal(both.encode(texts), both.encode_document(texts))


def test_speeds_are_judged_by_the_slowest_and_the_fastest_round():
    def timed(system, *seconds):
        return {"model": "bert-base's shape", "system": system, "sentences": 12, "seconds": list(seconds)}

    rows = timed_rows({"7": {"rows": [timed("padded", 4.0, 3.0), timed("sorted", 2.0, 1.0)]}})
    assert rows[0][-2:] == ["× 3.000 [1.500, 4.000], 2 rounds", "**holds**"]
    rows = timed_rows({"7": {"rows": [timed("padded", 4.0, 1.5), timed("sorted", 2.0, 1.0)]}})
    assert rows[0][-1] == "**undecided**"


def test_suites_with_other_settings_are_measured_separately():
    one = Suite("senteval", "transfer", settings=(("only", "cr"), ("limit", 5)))
    other = Suite("senteval", "transfer", settings=(("only", "mr"), ("limit", 5)))
    assert measuring.suite_name(one) != measuring.suite_name(other)


def test_speeds_and_the_headline_are_measured_on_any_encoder(folders, monkeypatch):
    small = Shape(START, str(Path(folders.weights) / START), 1.0)
    for part in ("train", "test"):
        shutil.copy(f"{folders.data}/sts/stsb-dev.tsv.gz", f"{folders.data}/sts/stsb-{part}.tsv.gz")
    monkeypatch.setattr(timing, "shapes", lambda folders: [small])
    monkeypatch.setattr(timing, "base_shape", lambda folders, cross=False: folders.work)
    rows = timing.table7(SCALES["small"], folders)
    assert [row["system"] for row in rows] == ["padded", "sorted", "gemel"]
    assert all(row["sentences"] == 4 and row["per_second"] > 0 for row in rows)
    [row] = timing.headline(SCALES["full"], folders)
    assert len(set(row["best"])) == 2
    assert row["pairs"] == 6
    assert len(row["bi_seconds"]) == len(row["cross_seconds"]) == timing.ROUNDS
    [line] = [line for line in timed_rows({"headline": {"rows": [row]}}) if line[0] == "headline"]
    assert f"{timing.ROUNDS} rounds" in line[-2]
