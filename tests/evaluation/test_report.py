"""Reports: three files with the same content, for any names and any number of results."""

import json
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from itertools import combinations

import numpy as np
import pytest

from gemel.errors import InputError, WorkError
from gemel.evaluation.evaluate import average
from gemel.evaluation.report.content import comparison_sentence, grids, protocol_lines
from gemel.evaluation.report.plots import ScatterPoints, by_gold, by_score, chunks, points_of
from gemel.evaluation.report.write import plain, write_report
from gemel.evaluation.statistics import CorrelationSample, MeanSample, NamedComparison, PairedComparison
from gemel.evaluation.task import Score, Scores
from gemel.files.markup import STYLE, Scale, cut, element, join, range_of, round_step, short

DATE = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
NASTY = '<script>alert("1")</script>&\'|`*\x00'


def result(dataset="stsb", model="A", value=82.034, **changes):
    score = Score(value, value - 2, value + 2) if value is not None else Score(None, note="one row")
    made = Scores("sts", dataset, "spearman", {"spearman": score}, 1379, "pairs", model)
    return replace(made, **changes)


def correlated(items, seed=0):
    random = np.random.default_rng(seed)
    gold = random.uniform(0, 5, items)
    return CorrelationSample(gold, gold / 5 + random.normal(0, 0.1, items))


def compared(difference, low, high, p_value=0.0005, dataset="stsb"):
    return NamedComparison(
        "A", "B", "sts", dataset, PairedComparison(difference, low, high, p_value, 100, 2000)
    )


def report(tmp_path, results, comparisons=()):
    write_report(results, comparisons, tmp_path, date=DATE)
    return (tmp_path / "report.html").read_text(encoding="utf-8")


class Page(HTMLParser):
    """Counts elements, and fails on one that is not closed or closed in the wrong order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.words = [], {}, [], []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return "".join(self.words)


# Files


def test_three_files_are_written_and_nothing_else(tmp_path):
    folder = tmp_path / "new" / "folder"
    paths = write_report([result()], [], folder)
    assert [path.name for path in paths] == ["results.json", "results.md", "report.html"]
    assert sorted(folder.iterdir()) == sorted(paths)


def test_a_second_report_replaces_the_first(tmp_path):
    write_report([result(model="old")], [], tmp_path)
    write_report([result(model="new")], [], tmp_path)
    assert all(
        "old" not in path.read_text(encoding="utf-8") for path in tmp_path.iterdir() if path.suffix == ".md"
    )
    assert len(list(tmp_path.iterdir())) == 3


def test_the_json_file_contains_to_json(tmp_path):
    results, comparisons = [result(), result(value=None, model="B")], [compared(1.3, 0.6, 2.0)]
    write_report(results, comparisons, tmp_path, date=DATE)
    content = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert content["results"] == [one.to_json() for one in results]
    assert content["comparisons"] == [one.to_json() for one in comparisons]
    assert content["date"] == "2026-01-02 03:04+00:00"
    assert content["versions"][0].startswith("gemel ")


def test_numbers_of_numpy_and_paths_in_a_protocol_are_written(tmp_path):
    protocol = {"seed": np.int64(3), "weights": np.array([1.0, 2.0]), "data": tmp_path}
    write_report([result(protocol=protocol)], [], tmp_path)
    content = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert content["results"][0]["protocol"] == {"seed": 3, "weights": [1.0, 2.0], "data": str(tmp_path)}


def test_the_same_results_give_the_same_bytes(tmp_path):
    results = [result(sample=correlated(50))]
    first = report(tmp_path / "one", results, [compared(1.3, 0.6, 2.0)])
    assert report(tmp_path / "two", results, [compared(1.3, 0.6, 2.0)]) == first


def test_no_results_are_refused(tmp_path):
    with pytest.raises(InputError, match="a report needs at least one result"):
        write_report([], [], tmp_path)


def test_a_number_that_is_not_finite_is_refused_and_nothing_written(tmp_path):
    with pytest.raises(InputError, match="An undefined score is None with a note"):
        write_report([result(value=float("nan"))], [], tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkError, match="cannot write the report to"):
        write_report([result()], [], tmp_path / "file")


# Markdown

GOLDEN = """\
## sts

spearman × 100, with 95 % bootstrap intervals.

| model | stsb | sts12 | average |
| --- | --- | --- | --- |
| A | 82.03 [80.0, 84.0] | 70.00 [68.0, 72.0] | 76.02 |
| B | 83.35 [81.3, 85.3] | undefined (one row) | – |

### Sub-sets

| sub-set | size | A | B |
| --- | --- | --- | --- |
| sts12 / MSRpar | 750 pairs | 60.00 [58.0, 62.0] | – |

### Protocol

- metric: cosine
- seed: 1 (A); 2 (B)

## Comparisons

Paired bootstrap: each round draws the same items for both models. A model is called better where the 95 % interval \
of the difference does not contain zero.

- B is better than A on stsb (sts) by 1.32 [0.61, 2.02], p < 0.001.
"""


def test_markdown_is_word_for_word_this(tmp_path):
    part = result("MSRpar", "", 60.0, items=750)
    one, two = {"metric": "cosine", "seed": 1}, {"metric": "cosine", "seed": 2}
    results = [
        result(protocol=one),
        result("sts12", value=70.0, parts=(part,), protocol=one),
        result(model="B", value=83.35, protocol=two),
        result("sts12", "B", None, protocol=two),
    ]
    write_report(results, [compared(1.32, 0.61, 2.02)], tmp_path, date=DATE)
    text = (tmp_path / "results.md").read_text(encoding="utf-8")
    start = text.index("## sts")
    assert text[start:] == GOLDEN
    assert text[:start].startswith("# Evaluation\n\n2026-01-02 03:04+00:00 · gemel ")


def test_an_average_among_the_results_is_kept_with_its_interval_and_goes_last(tmp_path):
    sets = [result("x", sample=correlated(30)), result("y", value=60.0, sample=correlated(30, 1))]
    write_report([average(sets), *sets], [], tmp_path)
    text = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "| model | x | y | average |\n" in text
    assert re.search(r"\| 60\.00 \[58\.0, 62\.0\] \| \d+\.\d\d \[\d+\.\d, \d+\.\d\] \|\n", text)
    assert "- average: the mean of the data sets, each with the same weight" in text


def test_different_metrics_are_named_and_not_averaged(tmp_path):
    other = result("trec", main="accuracy", values={"accuracy": Score(90.0)})
    write_report([result(), other], [], tmp_path)
    text = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "| model | stsb (spearman) | trec (accuracy) |\n" in text


def test_names_do_not_become_markdown():
    assert plain("a|b\n*c* `d` <e> [f](g)") == r"a\|b \*c\* \`d\` &lt;e&gt; [f\](g)"
    assert plain("82.03 [80.1, 83.8]") == "82.03 [80.1, 83.8]"


# Sentences


@pytest.mark.parametrize(
    ("comparison", "sentence"),
    [
        (
            compared(1.32, 0.61, 2.02, 0.0012),
            "B is better than A on stsb (sts) by 1.32 [0.61, 2.02], p = 0.001",
        ),
        (compared(-1.32, -2.02, -0.61), "A is better than B on stsb (sts) by 1.32 [0.61, 2.02], p < 0.001"),
        (
            compared(0.3, -0.7, 1.2, 0.44),
            "stsb (sts): cannot tell B from A (ahead by 0.30 [-0.70, 1.20], p = 0.440)",
        ),
        (
            compared(-0.3, -1.2, 0.7, 0.44),
            "stsb (sts): cannot tell A from B (ahead by 0.30 [-0.70, 1.20], p = 0.440)",
        ),
    ],
)
def test_a_comparison_says_who_is_better_and_how_sure(comparison, sentence):
    assert comparison_sentence(comparison) == sentence


def test_a_protocol_names_the_models_or_data_sets_that_differ():
    results = [
        result(
            dataset, model, protocol={"same": True, "by model": model * 2, "by set": [dataset, 1], "a": None}
        )
        for dataset in ("x", "y")
        for model in ("A", "B")
    ]
    results[0] = replace(results[0], protocol={**results[0].protocol, "alone": {"k": "5", "empty": ""}})
    assert protocol_lines(grids(results)[0]) == [
        ("same", "yes"),
        ("by model", "AA (A); BB (B)"),
        ("by set", "x, 1 (x); y, 1 (y)"),
        ("a", "none"),
        ("alone", "k 5 (x by A)"),
    ]


def test_two_results_of_one_name_are_both_kept():
    grid = grids([result(value=1.0), result(value=2.0), result(value=3.0)])[0]
    assert grid.models == ("A", "A (2)", "A (3)")
    assert [grid.score("stsb", model).value for model in grid.models] == [1.0, 2.0, 3.0]


# The page


def test_one_model_on_one_data_set_makes_a_page(tmp_path):
    page = Page(report(tmp_path, [result(sample=correlated(40))]))
    assert page.tags["svg"] == 3  # bars, points, calibration
    assert page.tags["svg"] == page.tags["desc"]
    assert page.tags["title"] == page.tags["svg"] + 1
    assert "script" not in page.tags
    assert "82.03" in page.text
    assert "average" not in page.text


def test_twelve_data_sets_and_three_models_make_a_page_of_modest_size(tmp_path):
    results, comparisons = [], []
    for number in range(12):
        parts = tuple(result(f"part{part}", "", 50.0 + part) for part in range(4))
        sample = correlated(1500 if number % 2 else 3000, number)
        results += [
            result(f"set{number}", model, 70.0 + number, parts=parts, sample=sample)
            for model in ("A", "B", "C")
        ]
        comparisons += [compared(number - 5.5, number - 6.5, number - 4.5, dataset=f"set{number}")]
    text = report(tmp_path, results, comparisons)
    page = Page(text)
    assert page.tags["svg"] == 4 + 12 + 36 + 36 + 1
    assert len(page.ids) == len(set(page.ids))
    assert len(text) < 1_000_000


def test_a_page_loads_nothing_from_other_hosts(tmp_path):
    text = report(tmp_path, [result(sample=correlated(40))], [compared(1.0, 0.5, 1.5)])
    assert not re.search(r"http|@import|url\(|<link|<script|<img| src=|//", text)


def test_names_from_outside_stay_text(tmp_path):
    part = result(NASTY, "", 50.0)
    nasty = result(NASTY, NASTY, task=NASTY, parts=(part,), protocol={NASTY: NASTY}, sample=correlated(30))
    nasty = replace(
        nasty, main=NASTY, values={NASTY: Score(1.0, 0.5, 1.5), "x": Score(None, note=NASTY)}, unit=NASTY
    )
    comparison = NamedComparison(
        NASTY, NASTY + "2", NASTY, NASTY, PairedComparison(1.0, -1.0, 2.0, 0.3, 9, 9)
    )
    text = report(tmp_path, [nasty, replace(nasty, model=NASTY + "2")], [comparison])
    page = Page(text)
    assert "script" not in page.tags
    assert "<script" not in text
    assert NASTY.replace("\x00", "\N{REPLACEMENT CHARACTER}") in page.text
    assert "<script" not in (tmp_path / "results.md").read_text(encoding="utf-8")


def test_a_lone_surrogate_in_a_name_does_not_stop_the_report(tmp_path):
    Page(report(tmp_path, [result("caf\ud800", sample=correlated(30))]))


def test_an_undefined_number_is_shown_as_undefined(tmp_path):
    flat = CorrelationSample(np.array([1.0, 2.0, 3.0]), np.ones(3))
    page = Page(report(tmp_path, [result(value=None, sample=flat), result("x", value=None)]))
    assert "undefined (one row)" in page.text
    assert "nan" not in (tmp_path / "report.html").read_text(encoding="utf-8").lower()


def test_results_without_items_have_bars_and_no_points(tmp_path):
    page = Page(report(tmp_path, [result(sample=MeanSample(np.ones(3))), result("x")]))
    assert page.tags["svg"] == 1
    assert "Predicted against gold" not in page.text


def test_many_points_become_a_map(tmp_path):
    few = report(tmp_path / "few", [result(sample=correlated(2000))])
    many = report(tmp_path / "many", [result(sample=correlated(2001))])
    assert few.count("h.1") == 2000
    assert many.count("h.1") == 0
    assert 'class="cell"' in many
    assert "darker where there are more" in Page(many).text


def test_yes_no_labels_are_shown_as_reliability(tmp_path):
    @dataclass(frozen=True, eq=False)
    class Labelled:
        labels: np.ndarray
        scores: np.ndarray
        items: int = 4

        def number(self, rows):
            return None

    sample = Labelled(np.array([True, False, True, False]), np.array([0.9, 0.1, 0.8, 0.3]))
    text = report(tmp_path / "cosine", [result(sample=sample)])
    assert "Reliability" in Page(text).text
    assert "Predicted against gold" not in Page(text).text
    assert 'class="zero"' in text
    dots = replace(sample, scores=30 * sample.scores)  # dot products are no probabilities
    assert 'class="zero"' not in report(tmp_path / "dot", [result(sample=dots)])


def test_a_page_names_models_with_their_fingerprints(tmp_path):
    weights = "65dab861aef156e6124084d5212485d7e1fbafe5c07b8d2ed7529994de6fec60"
    page = Page(report(tmp_path, [result(protocol={"fingerprint": {"weights": weights, "dim": 384}})]))
    assert "A · weights 65dab861aef156e6, dim 384" in page.text


def test_parts_of_parts_are_shown(tmp_path):
    inner = result("MSRpar", "", 50.0)
    year = result("sts12", "", 60.0, parts=(inner,))
    page = Page(report(tmp_path, [result("all", parts=(year,))]))
    assert "all / sts12 / MSRpar" in page.text


# Colors

# Linear RGB as seen without red, green or blue cones (Machado, Oliveira and Fernandes 2009).
EYES = {
    "all": np.eye(3),
    "no red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "no green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "no blue": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


def palette(name, theme):
    """The values of a color in the style sheet: the first is for light, the second for dark."""
    code = re.findall(rf"--{name}: #([0-9a-f]{{6}})", STYLE)[theme]
    share = np.array([int(code[start : start + 2], 16) / 255 for start in (0, 2, 4)])
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("name", "least"), [*((f"c{n}", 3) for n in range(6)), ("soft", 4.5), ("link", 4.5)])
def test_colors_have_enough_contrast_with_the_page(theme, name, least):
    lightness = [0.05 + palette(key, theme) @ [0.2126, 0.7152, 0.0722] for key in (name, "panel")]
    assert max(lightness) / min(lightness) >= least


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("eyes", EYES)
def test_colors_of_models_differ_with_any_color_vision(theme, eyes):
    seen = [lab(EYES[eyes] @ palette(f"c{number}", theme)) for number in range(6)]
    assert min(np.linalg.norm(one - two) for one, two in combinations(seen, 2)) > 20


# Pieces


def test_an_element_escapes_text_and_attributes_but_not_markup():
    made = element("p", "a<b", element("rect", x=1.25, class_="c0", y=None), title='"')
    assert made == '<p title="&quot;">a&lt;b<rect x="1.2" class="c0"/></p>'
    assert join(["<", element("b", ">")]) == "&lt;<b>&gt;</b>"
    assert [short(number) for number in (2.0, -0.01, 3.14)] == ["2", "0", "3.1"]


@pytest.mark.parametrize("width", [1e-6, 0.013, 0.7, 1.0, 5.0, 99.0, 4e7])
def test_a_range_has_a_few_round_steps(width):
    assert 2 < width / round_step(width) <= 7.5


def test_ranges_reach_the_next_tick_and_keep_zero_for_bars():
    assert range_of([0.03, 1.0000001]).high == pytest.approx(1.0)
    bars = range_of([82.0, 84.0], zero=True)
    assert (bars.low, bars.high) == (0.0, 100.0)
    assert range_of([]).low < range_of([]).high
    assert range_of([3.0]).low < 3.0 < range_of([3.0]).high
    assert Scale(0, 100, 0, 10).ticks == [0, 20, 40, 60, 80, 100]


def test_data_sets_are_divided_evenly():
    assert [len(chunk) for chunk in chunks("abcdefg", 3)] == [2, 3, 2]
    assert chunks("a", 3) == ["a"]


def test_a_long_name_keeps_both_ends():
    assert cut("abcdefghij" * 10, 70) == "abcd…fghij"
    assert cut("short", 340) == "short"


def test_calibration_by_gold_is_mean_and_spread_of_each_level():
    points = ScatterPoints(np.array([0.0, 0.0, 5.0]), np.array([0.1, 0.3, 0.9]))
    low, high = by_gold(points)
    assert (low.x, low.items) == (0.0, 2)
    assert (low.y, low.low, low.high) == pytest.approx((0.2, 0.1, 0.3))
    assert (high.y, high.low, high.high) == pytest.approx((0.9, 0.9, 0.9))


def test_many_levels_of_gold_fall_into_ten_bins():
    gold = np.linspace(0, 1, 101)
    bins = by_gold(ScatterPoints(gold, gold))
    assert [actual.items for actual in bins] == [10] * 9 + [11]


def test_reliability_is_the_share_of_yes_with_its_wilson_interval():
    points = ScatterPoints(np.array([1.0] * 8 + [0.0] * 2), np.full(10, 0.7))
    (actual,) = by_score(points)
    assert (actual.x, actual.y, actual.items) == pytest.approx((0.7, 0.8, 10))
    assert (actual.low, actual.high) == pytest.approx((0.4902, 0.9433), abs=1e-4)


def test_reliability_has_equally_full_bins_however_the_scores_crowd():
    scores = 1 - np.linspace(0, 1, 100) ** 8
    bins = by_score(ScatterPoints(np.ones(100), scores))
    assert [actual.items for actual in bins] == [10] * 10


def test_equal_scores_stay_in_one_bin():
    bins = by_score(ScatterPoints(np.ones(100), np.repeat([0.1, 0.5, 0.9], [5, 90, 5])))
    assert sum(actual.items for actual in bins) == 100
    assert len({actual.x for actual in bins}) == len(bins)


def test_reliability_intervals_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    for yes, items in ((0, 3), (8, 10), (50, 50), (7, 2000)):
        (actual,) = by_score(ScatterPoints(np.arange(items) < yes, np.full(items, 0.7)))
        expected = stats.binomtest(yes, items).proportion_ci(method="wilson")
        assert (actual.low, actual.high) == pytest.approx((expected.low, expected.high), abs=1e-4)


def test_points_that_are_not_finite_or_too_few_are_left_out():
    sample = CorrelationSample(np.array([1.0, 2.0, 3.0]), np.array([0.1, np.nan, 0.3]))
    assert points_of(sample).gold.tolist() == [1.0, 3.0]
    assert points_of(CorrelationSample(np.ones(1), np.ones(1))) is None
    assert points_of(None) is None
