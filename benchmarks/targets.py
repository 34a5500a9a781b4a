"""The speed targets of the project, each judged from one results file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Results = dict[str, Any]  # the JSON of results/encode.json


@dataclass(frozen=True)
class Target:
    what: str
    wanted: str
    measured: str
    met: bool | None
    """None: not measured in this run."""


def rate(results: Results, system: str, texts: str) -> float | None:
    """Best texts per second of a system on a set; None where it failed, is absent or gave wrong vectors."""
    entry = results["systems"].get(system, {})
    if entry.get("failed") or entry.get("wrong"):
        return None
    result: float | None = entry.get("rates", {}).get(texts, {}).get("texts_per_second")
    return result


def best_peer(results: Results, precision: str, texts: str) -> str | None:
    """Name of the fastest peer of a precision on a set. References do not count, ours neither."""
    rates = {
        name: value
        for name, entry in results["systems"].items()
        if entry["role"] == "peer" and entry["precision"] == precision
        and (value := rate(results, name, texts)) is not None
    }  # fmt: skip
    return max(rates, key=lambda name: rates[name]) if rates else None


def limit_share(results: Results, texts: str) -> dict[str, float]:
    """Our float32 rate as a part of each measured matmul limit, from the operations actually done."""
    ours, counted = rate(results, "gemel", texts), results["texts"].get(texts)
    if ours is None or counted is None:
        return {}
    # Repeated texts are computed once, so only distinct ones count.
    done = ours / counted["texts"] * counted["gflop_distinct"]
    return {name: done / limit["gflops"] for name, limit in results["sgemm"].items() if limit.get("gflops")}


def judge(results: Results) -> list[Target]:
    """Every target in the order of the table."""
    result: list[Target] = []
    for texts in results["texts"]:
        result += _speed(results, texts)
    return [*result, *_quality(results), *_latency(results), *_start(results), *_size(results)]


def _at_least(what: str, wanted: float, measured: float | None, form: str) -> Target:
    met = None if measured is None else measured >= wanted
    return Target(what, "≥ " + form.format(wanted), _shown(measured, form), met)


def _at_most(what: str, wanted: float, measured: float | None, form: str) -> Target:
    met = None if measured is None else measured <= wanted
    return Target(what, "≤ " + form.format(wanted), _shown(measured, form), met)


def _shown(measured: float | None, form: str) -> str:
    return "not measured" if measured is None else form.format(measured)


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _speed(results: Results, texts: str) -> list[Target]:
    base = rate(results, "st-torch", texts)
    result = []
    for ours, precision, over_base, over_peer in (
        ("gemel", "float32", 1.9, 1.35),
        ("gemel-bfloat16", "bfloat16", None, 1.3),
        ("gemel-int8", "int8", 3.0, 1.3),
    ):
        if ours not in results["systems"]:
            continue
        mine = rate(results, ours, texts)
        peer = best_peer(results, precision, texts)
        times = f"{texts}, {precision}, times sentence-transformers torch"
        if over_base is not None:
            result.append(_at_least(times, over_base, _ratio(mine, base), "{:.2f}"))
        name = f" ({peer})" if peer else ""
        over_others = _ratio(mine, rate(results, peer, texts)) if peer else None
        result.append(
            _at_least(
                f"{texts}, {precision}, times the best {precision} peer{name}",
                over_peer,
                over_others,
                "{:.2f}",
            )
        )
    result += _amx(results, texts)
    shares = limit_share(results, texts)
    # The highest of the measured limits gives the smallest share.
    result.append(
        _at_least(
            f"{texts}, float32, part of the sgemm limit", 0.88, min(shares.values(), default=None), "{:.0%}"
        )
    )
    return result


def _amx(results: Results, texts: str) -> list[Target]:
    """How much AMX gains; no targets on a processor without it."""
    if "amx" not in results["systems"].get("gemel", {}).get("settings", {}).get("kernel", ""):
        return []
    wide = results["shape"]["width"] >= 768
    exact, half = rate(results, "gemel", texts), rate(results, "gemel-bfloat16", texts)
    vnni, small = rate(results, "gemel-avx512vnni-int8", texts), rate(results, "gemel-int8", texts)
    half_wanted, small_wanted = (5.0, 3.0) if wide else (2.5, 1.8)
    targets = [_at_least(f"{texts}, bfloat16, times float32", half_wanted, _ratio(half, exact), "{:.2f}")]
    if vnni is not None:
        what = f"{texts}, int8, times the level avx512vnni"
        targets.append(_at_least(what, small_wanted, _ratio(small, vnni), "{:.2f}"))
    return targets


def _quality(results: Results) -> list[Target]:
    targets = []
    for precision, most in (("bfloat16", 0.05), ("int8", 0.3)):
        if f"gemel-{precision}" not in results["systems"]:
            continue
        pair = [results["systems"].get(n, {}).get("spearman") for n in ("gemel", f"gemel-{precision}")]
        lost = None if None in pair else pair[0] - pair[1]
        targets.append(_at_most(f"STSb-test Spearman lost by {precision}, points", most, lost, "{:.2f}"))
    return targets


def _latency(results: Results) -> list[Target]:
    p50 = {n: results["systems"].get(n, {}).get("latency_ms", {}).get("p50") for n in ("gemel", "st-torch")}
    what = "one short query, p50, part of sentence-transformers'"
    return [_at_most(what, 1 / 3, _ratio(p50["gemel"], p50["st-torch"]), "{:.2f}")]


def _start(results: Results) -> list[Target]:
    ours, base = results["start"].get("gemel", {}), results["start"].get("st-torch", {})
    own = results["gemel"]
    seconds = ours.get("best_seconds")
    heavy = own.get("help_imports")
    return [
        _at_most("start to first vector, seconds", 0.8, seconds, "{:.2f}"),
        _at_most(
            "start to first vector, part of sentence-transformers'",
            1 / 8,
            _ratio(seconds, base.get("best_seconds")),
            "{:.3f}",
        ),
        _at_most("start to first vector, peak memory, MB", 250, ours.get("peak_mb"), "{:.0f}"),
        _at_most("import gemel, seconds", 0.15, own.get("import_seconds"), "{:.3f}"),
        Target(
            "gemel --help loads",
            "no numpy",
            "not measured" if heavy is None else ", ".join(heavy) or "nothing heavy",
            None if heavy is None else not heavy,
        ),
    ]


def _size(results: Results) -> list[Target]:
    million = results.get("million") or {}
    count = million.get("texts")
    what = f"{count:,} sentences" if count else "1,000,000 sentences"
    return [
        _at_most("installed size without the model, MB", 250, results["gemel"].get("installed_mb"), "{:.0f}"),
        _at_most(
            f"{what} to disk, peak memory above the model, MB", 600, million.get("above_model_mb"), "{:.0f}"
        ),
    ]
