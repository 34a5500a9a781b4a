"""The one import of onnxruntime in gemel: without its usage reports."""

from __future__ import annotations

from typing import Any

from gemel.network_use import disable_usage_reports


def load_onnxruntime() -> Any:  # noqa: ANN401 - the module, which has no types
    """The module onnxruntime. On import it would make a device id and a database in the user's cache folder."""
    off = disable_usage_reports("onnxruntime")
    import onnxruntime

    # For a program that imported it first, and for releases that do not know the variable.
    if off and hasattr(onnxruntime, "disable_telemetry_events"):
        onnxruntime.disable_telemetry_events()
    return onnxruntime
