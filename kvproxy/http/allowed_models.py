"""Refuses models that a client may not use, and lists those that it may."""

from starlette.requests import Request

from kvproxy.apis.json import JsonObject, field, loads, objects
from kvproxy.errors import Forbidden, InvalidJson
from kvproxy.exchange import Exchange
from kvproxy.settings.access import ClientSettings
from kvproxy.upstreams.form_fields import is_form

_READING = ("GET", "HEAD", "OPTIONS")


def reads_model(request: Request, exchange: Exchange, most_bytes: int, *, routes_by_model: bool) -> bool:
    """Whether the proxy reads the body of a request on a forwarded route, because its model decides the upstream or the price.

    A larger body than `most_bytes`, or one of unknown length, is read only if it is JSON whose model decides the upstream, or
    which the client may lack. A form is read for the upstream only.
    """
    length = request.headers.get("content-length", "")[:15]
    is_short = length.isdecimal() and int(length) <= most_bytes
    if not is_json(request):
        return routes_by_model and is_short and is_form(request.headers.get("content-type", ""))
    return routes_by_model or (exchange.client is not None and (is_short or requires_model(exchange)))


def requires_model(exchange: Exchange) -> bool:
    """Whether a request without a readable model is refused: its client may use some models only, or has a budget."""
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
    """Check and return the model in the body of a forwarded request; None if it has none, or was not read (None).

    Raises Forbidden if the client may not use the model, or if no model can be read although the client may use some models
    only, or has a budget; then InvalidJson for JSON that is not valid. A request that only reads, cancels, or deletes needs no
    model.
    """
    client = exchange.client
    if client is None or request.method in _READING or body == b"":
        return None
    try:
        model = _model_of(body or b"")
    except ValueError as error:
        if requires_model(exchange) and body and is_json(request):
            raise InvalidJson(f"the body is not valid JSON: {error}") from None
        model = None
    if model is None and not requires_model(exchange):
        return None
    if model is None:
        limited = f"the client {client.name} may use some models only"
        if not client.models and exchange.account is not None:
            limited = exchange.account.budget_clause
        raise Forbidden(
            f"{limited}, and the body of"
            f" {request.method} {request.scope['path']} has no field model that the proxy can read",
            param="model",
            limit="models" if client.models else "prices",
        )
    # The record of a refused request names its model; UnparsedRequestCharge decides on that of a forwarded one.
    exchange.unread_model = model
    check_model(client, model)
    return model


def is_json(request: Request) -> bool:
    return request.headers.get("content-type", "").startswith("application/json")


def _model_of(body: bytes) -> str | None:
    model = field(loads(body), "model")
    return model if isinstance(model, str) else None
