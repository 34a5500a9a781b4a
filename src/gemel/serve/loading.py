"""What a server holds, loaded once at its start: the model, the cross-encoder, the indexes by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gemel.cross_model import load_cross
from gemel.errors import InputError
from gemel.model import Model, load
from gemel.serve.options import ServeOptions
from gemel.serve.services import ServerServices

if TYPE_CHECKING:
    from gemel.index.index import Index


def load_services(model: str, options: ServeOptions) -> ServerServices:
    """Slow: reads weights. An index that was made by another model is refused here."""
    encoder = load(model, precision=options.precision, engine=options.engine)
    cross = None if options.rerank is None else load_cross(options.rerank)
    return ServerServices(
        encoder,
        name=options.name,
        cross=cross,
        indexes=_open_indexes(options.index, encoder),
        limits=options.limits,
        threads=options.threads,
        cache_bytes=options.cache_bytes,
    )


def index_places(given: tuple[str, ...]) -> dict[str, str]:
    """Places by name out of NAME=PLACE or PLACE; the name of a bare place is its last part."""
    places: dict[str, str] = {}
    for word in given:
        name, equals, place = word.partition("=")
        if not equals or "/" in name:  # a URL may hold a = of its own
            name, place = Path(word.partition("?")[0].rstrip("/")).name, word
        if not name or not place:
            raise InputError(f"--index {word!r} names no place. Write --index FOLDER or --index NAME=FOLDER")
        if name in places:
            raise InputError(f"two indexes are named {name!r}. Give one another name: --index NAME={place}")
        places[name] = place
    return places


def _open_indexes(given: tuple[str, ...], model: Model) -> dict[str, Index]:
    places = index_places(given)
    if not places:
        return {}
    from gemel.index.opening import open_index

    return {name: open_index(place, model, create=False) for name, place in places.items()}
