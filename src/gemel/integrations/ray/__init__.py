"""The same work on a Ray cluster that already runs: encode, index, pairs, search. Extra `ray`.

One pool of workers (`cluster.py`) serves all of them: the blocks of a worker or node that dies are computed
again elsewhere. Results are bit-exact with those of one machine.
"""

from gemel.integrations.ray.cluster import JobSummary, RayCluster, open_cluster
from gemel.integrations.ray.encode import ModelOnRay, RowPrefetcher, load_on_ray
from gemel.integrations.ray.pairs import pairs_on_ray, search_on_ray

__all__ = [
    "JobSummary",
    "ModelOnRay",
    "RayCluster",
    "RowPrefetcher",
    "load_on_ray",
    "open_cluster",
    "pairs_on_ray",
    "search_on_ray",
]
