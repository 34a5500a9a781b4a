"""Predictions of `gemel plan` next to measurements: runs that set its constants, and runs that did not.

A test requires every checked prediction to be within 20 %. The others state why they are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gemel.texts.plan import Constants, Costs, PlanQuestion, committed
from plan_fit import read, used

TOLERANCE = 0.20
MILLION_TOKENS = 18.3  # of a sentence of benchmarks/memory.py on average


@dataclass(frozen=True)
class Check:
    name: str
    measured: float
    predicted: float
    sets: bool = False
    """A constant comes from this run."""
    loose: str = ""
    """Why it is not required to be within 20 %; empty: it is."""
    unit: str = "core-s"

    @property
    def off(self) -> float:
        return self.predicted / self.measured - 1


def checks(constants: Constants | None = None) -> list[Check]:
    constants = constants or committed()
    return [*encoding(constants), *scanning(constants), *indexing(constants)]


def encoding(constants: Constants) -> Iterator[Check]:
    files = (
        ("encode-10000", "stsb-10000"),
        ("encode", "stsb-test"),
        ("encode", "stsb-10000"),
        ("encode", "long"),
    )
    for file, kind in files:
        result = read(file)
        texts = result["texts"][kind]
        for precision, system in (("float32", "gemel"), ("int8", "gemel-int8")):
            seconds = result["systems"][system]["rates"][kind]["seconds"]
            question = PlanQuestion(
                texts=texts["distinct"], mean_tokens=texts["tokens"] / texts["texts"], precision=precision
            )
            yield Check(
                f"encode {texts['texts']:,} texts of {question.mean_tokens:.0f} tokens, {precision} ({file}.json)",
                min(seconds) * result["threads"],
                Costs(question, constants).encode_seconds(question.texts),
                sets=file == "encode-10000",
                loose="one round only" if len(seconds) == 1 else "",
            )
    result = read("scale")
    question = PlanQuestion(texts=result["count"], mean_tokens=result["mean_tokens"], precision="float32")
    for mode, label in (("alone", "by one process"), ("ray", "on Ray")):
        yield Check(
            f"encode {question.texts:,} texts of {question.mean_tokens:.0f} tokens to a folder, float32, {label}",
            min(result["results"]["encode"][mode]) * 2,
            Costs(question, constants).encode_seconds(question.texts),
            sets=mode == "alone",
        )
    result = read("memory")
    question = PlanQuestion(texts=result["texts"], mean_tokens=MILLION_TOKENS, precision=result["precision"])
    yield Check(
        f"encode {result['texts']:,} texts of {MILLION_TOKENS:.0f} tokens to a folder, {result['precision']}",
        result["seconds"] * result["threads"],
        Costs(question, constants).encode_seconds(question.texts),
        loose="by the clock; see below",
    )


def scanning(constants: Constants) -> Iterator[Check]:
    cases: dict[str, Any] = {**read("pairs")["cases"], **read("pairs-200k")["cases"]}
    cores = read("pairs")["threads"]
    for case in ("pairs-10k", "pairs-50k", "captions", "threshold-50k", "pairs-200k"):
        result = cases[case]
        count = result["vectors"]
        yield Check(
            result["title"],
            result["systems"]["gemel"]["best"] * cores,
            Costs(PlanQuestion(texts=count), constants).pair_seconds(count),
            sets=case == "pairs-50k",
            loose="a tenth of a second: the start counts" if case == "pairs-10k" else "",
        )
    for case in ("search-50k", "search-1m"):
        result = cases[case]
        count = result["vectors"]
        yield Check(
            result["title"],
            result["systems"]["gemel"]["best"] * cores,
            1000 * Costs(PlanQuestion(texts=count), constants).scan_seconds(count),
            sets=True,
        )


def indexing(constants: Constants) -> Iterator[Check]:
    result = read("plan")
    for position, at in enumerate(result["sizes"]):
        count = at["rows"]
        last = position == len(result["sizes"]) - 1
        question = PlanQuestion(
            texts=count, dim=result["dim"], block=result["block"], text_bytes=at["text_bytes"] / count
        )
        build = Costs(question, constants).copy_seconds(count) + Costs(question, constants).list_seconds(
            count
        )
        title = f"index of {count:,}"
        write = Costs(question, constants).write_seconds(count)
        yield Check(f"{title}: written", used(at["write"]), write, sets=True)
        yield Check(f"{title}: lists built", used(at["build"]), build, sets=not last)
        ask = Costs(question, constants).ask_seconds(count) * at["queries"]
        yield Check(f"{title}: {at['queries']} queries", used(at["ask"]), ask, sets=position != 1)
        memory = (Costs(question, constants).index_memory(count) - read("memory")["model_mb"] * 1e6) / 1e6
        yield Check(f"{title}: memory", at["open_mb"], memory, sets=position != 1, unit="MB")
        disk = Costs(question, constants).index_disk(count) / 1e6
        yield Check(f"{title}: disk", at["bytes"] / 1e6, disk, sets=not last, unit="MB")
