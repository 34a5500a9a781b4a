"""Which model a client means by a name. A name is only ever compared, never looked for on disk."""

from __future__ import annotations

from gemel.serve.errors import RouteError
from gemel.serve.port import Services

_OWNER = "sentence-transformers/"


def aliases(services: Services) -> set[str]:
    """What the loaded model may be called: with and without the owner of its repository."""
    names = {services.model_name, services.model.name}
    names |= {name.rpartition("/")[2] for name in names}
    return names | {_OWNER + name for name in names if "/" not in name}


def known_models(services: Services) -> list[str]:
    """What is loaded, by the names to use."""
    return [services.model_name, *([services.cross_name] if services.cross_name else [])]


def check_model(services: Services, name: str) -> None:
    """Refuse (404) a name that is not the loaded model's."""
    if name not in aliases(services):
        _refuse(services, name)


def check_ranker(services: Services, name: str | None) -> None:
    """Refuse (404) a name that is neither the cross-encoder's nor the model's; None means what is loaded."""
    cross = {services.cross_name, (services.cross_name or "").rpartition("/")[2]} - {None, ""}
    if name is not None and name not in aliases(services) | cross:
        _refuse(services, name)


def _refuse(services: Services, name: str) -> None:
    known = ", ".join(known_models(services))
    raise RouteError(
        404,
        f"the model {name[:100]!r} is not loaded here. Loaded: {known}",
        code="model_not_found",
        param="model",
    )
