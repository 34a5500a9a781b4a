"""Estimate what a number of texts costs, and what breaks first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from gemel.cli import flags
from gemel.cli.output import echo, echo_json
from gemel.texts.plan import PlanQuestion

if TYPE_CHECKING:
    from gemel.texts.plan import Plan

EXAMPLES = """\b
Examples:
  gemel plan --texts 1e9 --mean-tokens 20 --cores 64 --memory 256GB --price-core-hour 0.04
  gemel plan --texts 1000000 --here
  gemel plan --texts 10000000 --precision int8 --queries-per-second 100 --json"""


@click.command(epilog=EXAMPLES)
@flags.options_of(PlanQuestion)
@click.option(
    "--here",
    is_flag=True,
    help="Plan for this machine: its cores and memory, within the limits of the container, unless --cores or --memory "
    "is given.",
)
@flags.json_option()
@click.pass_context
def command(ctx: click.Context, *, as_json: bool, here: bool, options: PlanQuestion) -> None:
    """Estimate what a number of texts costs: cores, hours, memory, disk, money, and what breaks first.

    Covers encoding, an index, all pairs, and searches. Nothing is run: the rates were measured earlier. `gemel bench`
    measures the rate of encoding on your machine, for --texts-per-second. docs/explanation/scale.md has the formulas.
    """
    from gemel.texts.plan import plan

    if here:
        options = _on_this_machine(ctx, options)
    made = plan(options)
    if as_json:
        echo_json(made.to_json())
    else:
        echo("\n".join(lines_of(made)))


def _on_this_machine(ctx: click.Context, question: PlanQuestion) -> PlanQuestion:
    """The question with the cores and the memory that this process may use, where the user gave none."""
    from gemel.files.machine import memory_limits, usable_cores

    def is_default(name: str) -> bool:
        return ctx.get_parameter_source(name) is ParameterSource.DEFAULT

    memory = memory_limits().usable
    if is_default("cores"):
        question = replace(question, cores=usable_cores())
    if is_default("memory") and memory is not None:  # None: the system does not report it
        question = replace(question, memory=memory)
    return question


def lines_of(made: Plan) -> list[str]:
    """The plan for a person."""
    from gemel.texts.plan import amount, duration, moment, size

    question = made.question
    lines = [
        f"{question.texts:,.0f} texts of {question.mean_tokens:g} tokens, {question.dim} dimensions, "
        f"{question.precision}; {question.machines} x {question.cores} cores, {size(question.memory_bytes)}",
        "",
        f"{'':8}{'core hours':>12}{'takes':>14}{'memory':>10}{'disk':>10}{'money':>12}",
    ]
    for part in made.parts:
        disk = size(part.disk) if part.disk else "-"
        lines.append(
            f"{part.name:8}{amount(part.core_hours):>12}{duration(part.hours):>14}{size(part.memory):>10}{disk:>10}"
            f"{amount(part.money):>12}"
        )
    search = made.searching
    short = "" if search.memory <= question.memory_bytes else ", more than a machine has"
    lines += [
        "",
        f"search, {question.queries_per_second:g} per second: {search.servers} server(s), "
        f"{amount(search.money_month)} per month; a query takes {moment(search.core_seconds)} of a core",
        f"each server needs {size(search.memory)} of memory{short}; {size(search.mapped)} more are mapped from files",
        f"without an index a query takes {moment(search.exact_core_seconds)} of a core, a thousand at a time",
        "",
        "what breaks first",
    ]
    for limit in made.limits:
        mark = "holds" if not limit.reached else "over" if limit.hard else "slow"
        lines.append(f"  {mark:5} {amount(limit.texts):>8} texts  {limit.name}: {limit.words}")
    return [*lines, "", f"rates: {made.constants.source}"]
