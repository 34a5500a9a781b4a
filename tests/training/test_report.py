"""The report and the card of a run: their content, valid HTML, and escaping of all texts."""

import ast
import math
import re
from dataclasses import asdict, replace
from datetime import UTC, datetime
from html.parser import HTMLParser

import numpy as np
import pytest

from gemel.errors import WorkError
from gemel.evaluation.task import Score, Scores
from gemel.training.card import DataSet, MeasuredScores, Summary, measured, model_card
from gemel.training.doctor import Diagnosis, Finding
from gemel.training.journal import POINTS, Series, series
from gemel.training.options import TrainOptions
from gemel.training.report import Curve, histograms, write_report
from gemel.training.watch import similarities

DATE = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
NASTY = '<script>alert("1")</script>&\'|`*\x00'

SUMMARY = Summary(
    name="my-model",
    base_model="tinybert",
    objective="classification",
    settings={"concat": "u,v,|u-v|"},
    options=asdict(TrainOptions(learning_rate=1e-4, batch_size=32)),
    data=(
        DataSet("snli", 1234, ("left", "right"), ("entailment", "neutral"), skipped=5, notes=("by name",)),
    ),
    steps=100,
    best_step=80,
    measured=(
        MeasuredScores(
            "sts", "stsb", "spearman", Score(60.05, 57.0, 63.1), 1500, "pairs", Score(34.39, 30.0, 38.0)
        ),
    ),
    dim=312,
    max_length=128,
)
DOCTOR = [
    Diagnosis("a", 4800, 2000, (Finding("note", "rows twice", 3, 0.0001, ("a | b",)),)),
    Diagnosis("b", 4800, 2000, (Finding("error", "labels differ", 1200, 0.25, advice="Fix it"),)),
]


def journal(steps=100):
    random = np.random.default_rng(0)
    vectors, pairs = random.normal(size=(40, 16)), [[row, row + 20] for row in range(20)]
    counts = similarities(vectors, pairs).to_json()
    lines = [{"kind": "start", "step": 0}, {"kind": "similarities", "step": 0, **counts}]
    for step in range(steps + 1):
        if step:
            values = {"loss": 1 / step, "learning_rate": 2e-5 * step / steps, "gradient_norm": 2.0}
            lines.append({"kind": "step", "step": step, **values})
        if step % 20 == 0:
            lines.append({"kind": "evaluation", "step": step, "score": 34.39 + step / 4})
            health = {
                "mean_cosine": 0.8 - step / 200,
                "uniformity": -1.0,
                "alignment": 0.3,
                "effective_rank": 9.0,
            }
            lines.append({"kind": "health", "step": step, **health})
    return [*lines, {"kind": "similarities", "step": steps, **counts}, {"kind": "end", "step": steps}]


class Page(HTMLParser):
    """Counts elements, and fails on one that is not closed or closed in the wrong order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.attributes, self.words = [], {}, [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes += [(tag, *attribute) for attribute in attrs]
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def made(tmp_path, **changes):
    given = {"summary": SUMMARY, "journal": journal(), "doctor": DOCTOR, "date": DATE, **changes}
    path = write_report(tmp_path, **given)
    assert path == tmp_path / "report.html"
    return path.read_text(encoding="utf-8")


# The page


def test_the_page_has_all_pictures_and_says_what_they_show(tmp_path):
    page = Page(made(tmp_path))
    assert page.tags["svg"] == page.tags["desc"] == 1 + 3 + 2 + 4
    for title in (
        "Score over the steps",
        "Loss",
        "Learning rate",
        "Gradient norm",
        "Before training",
        "After training",
        "Mean cosine of random texts",
        "Uniformity",
        "Alignment",
        "Effective rank",
    ):
        assert title in page.text
    assert len(set(page.ids)) == len(page.ids)


def test_the_page_says_what_was_done_and_how_to_load_it(tmp_path):
    text = Page(made(tmp_path)).text
    for expected in (
        "2026-01-02 03:04+00:00",
        "trained from tinybert",
        "snli (1,234 rows)",
        "80, whose weights were saved",
        "60.05 [57.0, 63.1], untrained 34.39 [30.0, 38.0]",
        "gemel.load('my-model')",
        "batch_size 32 16",
        "classification: concat u,v,|u-v|",
        "untrained 34.39",
        "best 54.39",
    ):
        assert expected in text


def test_the_doctor_s_findings_are_there_worst_first(tmp_path):
    text = Page(made(tmp_path)).text
    assert "error labels differ (1,200 rows, 25.0 %). Fix it note rows twice (3 rows, under 0.1 %)" in text
    assert "The data was not checked" in Page(made(tmp_path, doctor=None)).text
    assert "Nothing was found" in Page(made(tmp_path, doctor=[Diagnosis("a", 9, 9, ())])).text


def test_warnings_and_an_early_end_are_at_the_top(tmp_path):
    lines = [*journal(), {"kind": "warning", "step": 3, "text": "the score fell"}]
    text = Page(made(tmp_path, journal=lines, summary=replace(SUMMARY, stopped="it collapsed"))).text
    assert "Stopped early: it collapsed" in text
    assert text.index("the score fell") < text.index("Scores data set")


def test_the_page_loads_nothing_and_runs_no_script(tmp_path):
    text = made(tmp_path)
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not re.search(r"https?:|url\(|@import", text)
    assert not [one for one in page.attributes if one[1].startswith("on") or one[1] in ("src", "style")]
    assert "prefers-color-scheme: dark" in text


def test_texts_are_escaped_on_the_page(tmp_path):
    summary = replace(
        SUMMARY,
        name=NASTY,
        base_model=NASTY,
        objective=NASTY,
        settings={NASTY: NASTY},
        options={NASTY: NASTY},
        data=(DataSet(NASTY, 1, (NASTY,), (NASTY,), notes=(NASTY,)),),
        measured=(MeasuredScores(NASTY, NASTY, NASTY, Score(None, note=NASTY), 1, NASTY),),
        stopped=NASTY,
        versions=(NASTY,),
    )
    doctor = [Diagnosis(NASTY, 1, 1, (Finding(NASTY, NASTY, examples=(NASTY,), advice=NASTY),))]
    lines = [*journal(), {"kind": "warning", "step": 1, "text": NASTY}]
    text = made(tmp_path, summary=summary, doctor=doctor, journal=lines)
    page = Page(text)
    assert "script" not in page.tags
    assert "\x00" not in text
    assert page.text.count("alert(") >= 15


@pytest.mark.parametrize("lines", [[], [{"kind": "step", "step": 1, "loss": None}], journal(1)[:3]])
def test_a_run_that_ended_early_still_has_a_page(tmp_path, lines):
    summary = replace(SUMMARY, measured=(), best_step=None, data=(), steps=0)
    Page(made(tmp_path, journal=lines, summary=summary, doctor=None))


def test_the_same_run_gives_the_same_bytes(tmp_path):
    assert made(tmp_path / "a") == made(tmp_path / "b")


def test_a_report_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkError, match="cannot write the report to"):
        write_report(tmp_path / "file", summary=SUMMARY, journal=[])


# Pictures


def test_a_long_series_keeps_its_peaks():
    steps, values = np.arange(50_000.0), np.ones(50_000)
    values[[777, 31_000]] = 9.0, -9.0
    thin = Series(steps, values).thinned()
    assert len(thin) <= POINTS
    assert {9.0, -9.0} <= set(thin.values)
    assert (thin.steps[0], thin.steps[-1]) == (0, 49_999)
    assert (np.diff(thin.steps) > 0).all()


def test_values_that_are_not_finite_are_left_out():
    lines = [{"kind": "step", "step": n, "loss": loss} for n, loss in enumerate((1.0, None, math.nan, 2.0))]
    assert series(lines, "step", "loss").steps.tolist() == [0, 3]


def test_a_few_wild_values_are_cut_off_and_counted():
    values = np.ones(1000)
    values[3] = 500.0
    curve = Curve("Gradient norm", Series(np.arange(1000.0), values), smooth=True)
    assert curve.hint.endswith("1 above 1.5 are cut off, the highest is 500")
    assert "highest 500 at step 3" in curve.draw()


def test_small_numbers_are_shown_with_their_power_of_ten():
    curve = Curve("Learning rate", Series(np.arange(3.0), np.array([0, 2e-5, 1e-5])))
    assert "× 10⁻⁵" in curve.draw()


@pytest.mark.parametrize("values", [[0.0], [1.0, 1.0], [-3.0, 1e9], [1e-300, 0.0]])
def test_any_numbers_can_be_drawn(values):
    shown = Series(np.arange(float(len(values))), np.array(values))
    picture = Curve("x", shown, smooth=True, untrained=values[0], best_step=0).draw()
    assert "nan" not in picture
    assert "inf" not in picture.replace("infinity", "")


def test_histograms_share_their_axes_and_work_without_positives():
    random = np.random.default_rng(0)
    wide, narrow = random.normal(size=(30, 4)), 5 + random.normal(size=(30, 4))
    one, other = histograms([("A", similarities(wide)), ("B", similarities(narrow, [[0, 1]]))])
    assert (one.x, one.y) == (other.x, other.y)
    assert "belong together" in other.hint
    assert "belong together" not in one.hint
    assert "outline" not in one.draw()


# The card


def front_matter(card):
    assert card.startswith("---\n")
    return card.split("---\n")[1]


def test_the_card_says_what_it_is_how_to_use_it_and_what_was_measured():
    card = model_card(SUMMARY)
    for expected in (
        "pipeline_tag: sentence-similarity",
        "- gemel\n",
        'base_model: "tinybert"',
        "a vector of 312 numbers",
        'gemel.load("my-model")',
        'SentenceTransformer("my-model")',
        "`snli`, 1,234 rows of left, right with labels entailment, neutral; 5 bad rows were left out",
        "epochs 1; batch_size 32; learning_rate 0.0001; seed 0; all others",
        "the weights are those of step 80",
        "| sts | stsb | spearman | 34.39 \\[30.0, 38.0\\] | 60.05 \\[57.0, 63.1\\] | 1,500 pairs |",
        "95 % bootstrap intervals. The step was chosen by these scores",
        "up to 128 tokens",
    ):
        assert expected in card


def test_the_card_claims_nothing_unknown():
    card = model_card(replace(SUMMARY, measured=(), best_step=None, dim=None, max_length=None))
    assert "was not evaluated" in card
    for word in ("language:", "license:", "tokens", "None", "intervals", "chosen"):
        assert word not in card


@pytest.mark.parametrize("base", ["/data/models/bert", "../bert", "C:\\models\\bert", "./bert"])
def test_a_path_is_no_name_of_a_base_model(base):
    card = model_card(replace(SUMMARY, base_model=base))
    assert "base_model" not in card
    assert "Trained from `bert`" in card


def test_the_code_of_a_card_is_python_whatever_the_names():
    for kind in ("bi-encoder", "cross-encoder"):
        for labels in ((), ("a",), ("a\nb", 'x"y')):
            card = model_card(replace(SUMMARY, name='a"b\n`c', kind=kind, labels=labels))
            blocks = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
            assert len(blocks) == 2
            for block in blocks:
                ast.parse(block)


def test_a_card_s_front_matter_is_yaml_that_others_read():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    result = yaml.safe_load(front_matter(model_card(replace(SUMMARY, base_model="owner/name-1.0"))))
    assert result["base_model"] == "owner/name-1.0"
    assert {"sentence-similarity", "feature-extraction", "gemel", "sentence-transformers"} == set(
        result["tags"]
    )


def test_a_cross_encoder_has_a_card_of_its_own():
    card = model_card(replace(SUMMARY, kind="cross-encoder", labels=()))
    assert "gemel.load_cross" in card
    assert "CrossEncoder(" in card
    assert "pipeline_tag: text-ranking" in card
    assert "pipeline_tag: text-classification" in model_card(
        replace(SUMMARY, kind="cross-encoder", labels=("yes", "no"))
    )


def test_texts_are_escaped_in_the_tables_of_the_card():
    nasty = replace(
        SUMMARY,
        measured=(MeasuredScores("sts", NASTY, "spearman", Score(1.0), 3, "pairs"),),
        settings={"x": NASTY},
    )
    card = model_card(nasty)
    assert "<script" not in card.replace("\\<script", "")
    row = next(line for line in card.splitlines() if line.startswith("| sts"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 7


# The summary


def test_scores_are_shown_next_to_those_of_the_untrained_model():
    def scores(dataset, value):
        return Scores("sts", dataset, "spearman", {"spearman": Score(value)}, 10, "pairs")

    result = measured([scores("a", 60.0), scores("b", 50.0)], measured([scores("b", 30.0)]))
    assert [(each.dataset, each.score.value) for each in result] == [("a", 60.0), ("b", 50.0)]
    assert result[0].untrained is None
    assert result[1].untrained.value == 30.0


def test_a_data_set_describes_itself():
    class Rows:
        name, roles, classes, skipped, notes = "nli", ("left", "right"), ("yes",), 2, ("scores from 0 to 5",)

        def __len__(self):
            return 7

    assert DataSet.of(Rows()) == DataSet("nli", 7, ("left", "right"), ("yes",), 2, ("scores from 0 to 5",))
