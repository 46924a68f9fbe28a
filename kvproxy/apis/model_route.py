"""The upstreams that serve the model of a request."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """The upstreams that serve a model.

    Attributes:
        requested: the model in the client's request: its name, or an alias.
        model: its name in the upstreams.
        upstreams: their URLs.
        backend: name of these upstreams in cache keys.
        fallbacks: models that answer if it fails, the first one first.
    """

    requested: str
    model: str
    upstreams: tuple[str, ...]
    backend: str
    fallbacks: tuple[str, ...] = ()
