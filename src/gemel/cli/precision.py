"""The precision of a command: what was asked for, else what `gemel bench --save` kept for this very model.

Only commands that say what they computed with, or whose answer is not kept, ask here. An index, a server, an
evaluation and `gemel.load` do not: their vectors meet others that were made elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemel.cli.screen import echo

if TYPE_CHECKING:
    from gemel.options import EncodeOptions, Precision


def precision_of(model: str, options: EncodeOptions) -> Precision:
    """Says so on standard error where it is not the default."""
    if options.precision is not None:
        return options.precision
    from gemel.trial import saved_precision

    saved = saved_precision(model) or "float32"
    if saved != "float32":
        echo(f"in {saved}, as gemel bench was told to save; --precision float32 undoes it", err=True)
    return saved
