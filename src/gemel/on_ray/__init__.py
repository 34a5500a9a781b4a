"""The same verbs on a Ray cluster that already runs: encode, index, pairs, search. Extra `ray`.

One pool of workers (`pool.py`) stands under all of them: a worker or a node that dies costs the blocks it held, which
are done again elsewhere. Results are those of one machine to the bit.
"""

from gemel.on_ray.ahead import Ahead
from gemel.on_ray.cluster import Cluster, open_cluster
from gemel.on_ray.encoding import ModelOnRay, load_on_ray
from gemel.on_ray.pairs import pairs_on_ray
from gemel.on_ray.queries import search_on_ray
from gemel.on_ray.summary import JobSummary

__all__ = [
    "Ahead",
    "Cluster",
    "JobSummary",
    "ModelOnRay",
    "load_on_ray",
    "open_cluster",
    "pairs_on_ray",
    "search_on_ray",
]
