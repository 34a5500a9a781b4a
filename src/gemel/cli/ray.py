"""`--on ray`: its flags, and the model and search functions of a command, on this machine or on a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemel.cli.flags import Function
from gemel.cli.output import echo
from gemel.errors import InputError, WorkError

if TYPE_CHECKING:
    from gemel.integrations.ray.cluster import RayCluster
    from gemel.model import Model
    from gemel.options import EncodeOptions
    from gemel.vectors.pair_scan import Pairs
    from gemel.vectors.search import Hits

CLUSTER_BLOCK = 16_384  # documents per commit, at least, so that all workers are busy between two commits


@dataclass(frozen=True)
class On:
    """The values of the flags."""

    where: str
    workers: int | None
    job_summary: Path | None

    @contextmanager
    def opened(self, threads: int | None) -> Iterator[RayCluster]:
        """The cluster, open until the command ends."""
        from gemel.integrations.ray.cluster import open_cluster

        with open_cluster(self.where, workers=self.workers, threads=threads or 1) as cluster:
            yield cluster


def on_option(function: Function) -> Function:
    """`--on`, `--workers` and `--job-summary`; the command gets them as one argument `on`, None for this machine."""

    @wraps(function)
    def call(*arguments: Any, **values: Any) -> Any:  # noqa: ANN401
        where, workers, summary = (values.pop(name) for name in ("on", "workers", "job_summary"))
        if where is None and (workers is not None or summary is not None):
            raise InputError("--workers and --job-summary need a cluster. Name it with --on ray")
        on = None if where is None else On(where, workers, summary)
        return function(*arguments, on=on, **values)

    decorated: Function = click.option(
        "--job-summary",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="With --on: write what the job did (tasks, retries, nodes, seconds) as JSON.",
    )(call)
    decorated = click.option(
        "--workers",
        type=click.IntRange(1),
        help="With --on: processes, each with --threads cores (default 1). Default: as many as fit.",
    )(decorated)
    return click.option(
        "--on",
        metavar="ray[://HOST:PORT]",
        help="Run on a Ray cluster: the one of RAY_ADDRESS or of this machine, or the one at the address. "
        "The result is the same. Default: this machine alone.",
    )(decorated)


@dataclass(frozen=True)
class Machine:
    """The model and search functions of a command."""

    model: Any  # gemel.Model; that of a cluster encodes there
    on: On | None = None
    cluster: RayCluster | None = None

    def find_pairs(self) -> Callable[..., Pairs]:
        """`similar_pairs`, here or on the cluster."""
        if self.cluster is None:
            from gemel.vectors.pairs import similar_pairs

            return similar_pairs
        from gemel.integrations.ray.pairs import pairs_on_ray

        return partial(pairs_on_ray, self.cluster)

    def find_hits(self) -> Callable[..., Hits]:
        """`search`, here or on the cluster."""
        if self.cluster is None:
            from gemel.vectors.search import search

            return search
        from gemel.integrations.ray.pairs import search_on_ray

        return partial(search_on_ray, self.cluster)

    def done(self, verb: str, rows: int) -> None:
        """Report what the cluster did; nothing without one."""
        if self.cluster is None or self.on is None:
            return
        summary = self.cluster.summary(verb, rows)
        echo(summary.line(), err=True)
        if self.on.job_summary is not None:
            text = json.dumps(summary.to_json(), indent=2) + "\n"
            try:
                self.on.job_summary.write_text(text, encoding="utf-8")
            except OSError as error:
                raise WorkError(f"cannot write {self.on.job_summary}: {error}") from error


@contextmanager
def machine(on: On | None, model: str, options: EncodeOptions) -> Iterator[Machine]:
    """The model on this machine or on the cluster."""
    precision = options.precision or "float32"
    if on is None:
        import gemel

        yield Machine(gemel.load(model, precision=precision))
        return
    from gemel.integrations.ray.encode import load_on_ray

    with on.opened(options.threads) as cluster:
        yield Machine(load_on_ray(model, cluster, precision=precision), on, cluster)


@contextmanager
def machine_of_index(on: On | None, location: str) -> Iterator[Machine]:
    """The model that the index at `location` names; None if the index loads it itself."""
    if on is None:
        yield Machine(None)
        return
    import gemel
    from gemel.integrations.ray.encode import ModelOnRay

    # The cluster first: one that is started here forks, which is not safe once the store of the index is loaded.
    with on.opened(None) as cluster:
        with gemel.open_index(location, create=False, read_only=True) as index:
            named: Model | None = index.model
        if named is None:
            raise InputError(f"the index {location} has no model, so there is nothing to encode on a cluster")
        yield Machine(ModelOnRay(named.checkpoint, cluster, precision=named.precision), on, cluster)
