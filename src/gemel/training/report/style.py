"""What the page of a training run needs beyond the style sheet of evaluation reports."""

from __future__ import annotations

from gemel.evaluation.report.style import STYLE as EVALUATION

STYLE = (
    EVALUATION
    + """
.thin { fill: none; stroke: currentColor; stroke-width: 1; opacity: .4; } .thin + .track { stroke-width: 2; }
.ring { fill: none; stroke: var(--ink); stroke-width: 1.5; }
.filled { fill: currentColor; fill-opacity: .35; stroke: currentColor; stroke-width: 1; }
.outline { fill: none; stroke: currentColor; stroke-width: 2; }
pre { margin: .6em 0; padding: 10px 12px; background: var(--panel); border-radius: 6px; overflow-x: auto; }
.facts td { text-align: left; overflow-wrap: anywhere; } .facts th { text-align: left; }
.facts tbody th { font-weight: 400; }
.level { display: inline-block; min-width: 5em; font-weight: 600; }
.stopped { border-left: 4px solid var(--c1); padding-left: 12px; }
"""
)
