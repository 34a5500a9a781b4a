"""A model and options by name -> an encoder that needs nothing more said."""

from __future__ import annotations

from typing import Any

from gemel.errors import InputError
from gemel.from_texts.with_options import WithOptions
from gemel.model import Model, changed
from gemel.types import Encoder


def encoder_of(model: Encoder, changes: dict[str, Any]) -> Encoder:
    """The model under these fields of EncodeOptions; any other object with an `encode` has no options."""
    if not isinstance(model, Model):
        if isinstance(model, str) or not hasattr(model, "encode"):
            raise InputError(f"model is a loaded model, got {model!r}. Write gemel.load(...) first")
        if changes:
            kind = type(model).__name__
            raise InputError(f"options are for a gemel model, got a {kind}: leave {', '.join(changes)} out")
        return model
    options = changed(None, changes)
    if options.output != "float32":
        raise InputError(f"vectors are float32 here, got output={options.output!r}: leave it out")
    return WithOptions(model, options)
