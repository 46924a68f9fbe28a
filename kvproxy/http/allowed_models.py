"""Refuses models that a client may not use, and lists those that it may."""

from starlette.requests import Request

from kvproxy.apis.json import JsonObject, as_object, loads, objects
from kvproxy.errors import Forbidden
from kvproxy.exchange import Exchange
from kvproxy.settings.access import ClientSettings

_READING = ("GET", "HEAD", "OPTIONS")


def requires_model(exchange: Exchange) -> bool:
    """Whether the proxy must read the model of a request: its client may use some models only, or has a budget."""
    client, account = exchange.client, exchange.account
    return client is not None and (bool(client.models) or (account is not None and account.has_budget))


def check_model(client: ClientSettings | None, model: str) -> None:
    """Raise Forbidden if the client may not use the model."""
    if client is not None and not client.may_use(model):
        raise Forbidden(
            f"the client {client.name} may not use the model {model[:100]!r}, only {', '.join(client.models)}: ask the operator"
            " (kvproxy keys set)",
            param="model",
            limit="models",
        )


def allowed_listing(client: ClientSettings | None, listing: JsonObject) -> JsonObject:
    """Return a listing of models without those that the client may not use."""
    if client is None or not client.models:
        return listing
    rows = objects(listing.get("data"))
    return {**listing, "data": [row for row in rows if client.may_use(str(row.get("id")))]}


def check_model_of_body(request: Request, exchange: Exchange, body: bytes | None) -> str | None:
    """Check and return the model in the body of a forwarded request. Raise Forbidden also if no model can be read there.

    None if the request only reads, cancels, or deletes, so that it has no body, or if the client may use all models without a
    budget.
    """
    client = exchange.client
    if client is None or not requires_model(exchange) or request.method in _READING or body == b"":
        return None
    try:
        model = as_object(loads(body or b"")).get("model")
    except ValueError:
        model = None
    if not isinstance(model, str):
        raise Forbidden(
            f"the client {client.name} {'may use some models only' if client.models else 'has a budget'}, and the body of"
            f" {request.method} {request.scope['path']} has no field model that the proxy can read",
            param="model",
        )
    check_model(client, model)
    return model
