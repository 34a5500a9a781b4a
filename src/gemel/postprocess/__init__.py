"""Vectors that use their space more evenly: whitening, centring, a flow, and measures of evenness.

Each fits on unlabelled vectors and becomes the last layer of a saved model; see docs/postprocess.md.
"""

from gemel.checkpoint.flow import Flow
from gemel.postprocess.centring import fit_all_but_the_top, fit_centring
from gemel.postprocess.flow import FittedFlow, fit_flow
from gemel.postprocess.isotropy import Isotropy, isotropy
from gemel.postprocess.linear_map import LinearMap
from gemel.postprocess.methods import METHODS, Settings
from gemel.postprocess.save import Postprocessed, save_postprocessed
from gemel.postprocess.whitening import fit_whitening

__all__ = [
    "METHODS",
    "FittedFlow",
    "Flow",
    "Isotropy",
    "LinearMap",
    "Postprocessed",
    "Settings",
    "fit_all_but_the_top",
    "fit_centring",
    "fit_flow",
    "fit_whitening",
    "isotropy",
    "save_postprocessed",
]
