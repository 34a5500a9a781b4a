"""The numbers of tools/shape.py stay within their limits, and ARCHITECTURE.md shows the map of layers."""

import pytest
from tools.shape import PAGE, Measure, layer_map, measure

MEASURES = measure()


@pytest.mark.parametrize("each", MEASURES, ids=lambda each: each.name)
def test_a_number_stays_within_its_limit(each: Measure):
    assert each.value <= each.limit, (
        f"{each.name}: {each.value:g}, the limit in tools/shape.py is {each.limit:g}"
    )


def test_the_page_shows_the_layers():
    assert layer_map() in PAGE.read_text(encoding="utf-8"), "run: make shape"


def test_the_page_shows_every_number():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    for each in MEASURES:
        assert any(line.startswith(f"| {each.name} |") for line in rows), (
            f"{each.name} is missing. Run: make shape"
        )
