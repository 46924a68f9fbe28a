"""Refuses models that a client may not use."""

from starlette.requests import Request

from kvproxy.apis.json import as_object, loads
from kvproxy.errors import Forbidden
from kvproxy.settings.access import ClientSettings

_READING = ("GET", "HEAD", "OPTIONS")


def restricts_models(client: ClientSettings | None) -> bool:
    return client is not None and bool(client.models)


def check_model(client: ClientSettings | None, model: str) -> None:
    """Raise Forbidden if the client may not use the model."""
    if client is not None and not client.may_use(model):
        raise Forbidden(
            f"the client {client.name} may not use the model {model[:100]!r}, only {', '.join(client.models)}: ask the operator"
            " (kvproxy keys set)",
            param="model",
        )


def check_model_of_body(request: Request, client: ClientSettings | None, body: bytes | None) -> None:
    """Check the model in the body of a forwarded request. Raise Forbidden also if no model can be read there.

    A request without a body only reads, cancels, or deletes.
    """
    if client is None or not client.models or request.method in _READING or body == b"":
        return
    try:
        model = as_object(loads(body or b"")).get("model")
    except ValueError:
        model = None
    if not isinstance(model, str):
        raise Forbidden(
            f"the client {client.name} may use some models only, and the body of {request.method} {request.scope['path']} has no"
            " field model that the proxy can read",
            param="model",
        )
    check_model(client, model)
