"""`kvproxy ask`: sends one request, and prints the answer with its source."""

import time
from typing import Annotated, Any

import typer
from typer import Option

from kvproxy.apis.api import ApiName
from kvproxy.commands.options import ApiKey, ProxyOptions
from kvproxy.commands.output import Output, print_note, print_text
from kvproxy.commands.request_body import PromptOptions, RequestFieldOptions
from kvproxy.errors import InvalidRequest
from kvproxy.operations.api_paths import PATHS, credential_headers
from kvproxy.operations.client import response_error

_STATUS_HEADER = "cache-status"


def ask(
    *,
    prompt: PromptOptions,
    api: Annotated[ApiName | None, Option(help="API of the body.", show_default="detected")] = None,
    model: Annotated[str | None, Option(help="Model of the request.", show_default="the first listed")] = None,
    changes: RequestFieldOptions,
    api_key: ApiKey = None,
    proxy: ProxyOptions,
) -> Output:
    """Send a request, and print its Cache-Status and the answer.

    The answer is stored as that of any client. `kvproxy explain` predicts the source without sending the request. --json adds
    the status, the id of the request, and the whole response, also of an error; `answers` has the text of each choice.

    Example: kvproxy ask "What is a block?"

    Example: git diff | kvproxy ask --system "Review this change."

    Example: kvproxy ask --file request.json --header "cache-control: no-cache"
    """
    from kvproxy.analyse.log_formats.log_format import detect_api

    client, body = proxy.client(), prompt.body() | changes.fields()
    chosen = api or detect_api(body) or ("responses" if "input" in body else "chat")
    headers = credential_headers(chosen, api_key) | changes.headers()
    if body.get("stream"):
        raise InvalidRequest("kvproxy ask prints whole answers: remove the field stream")
    if model is not None or "model" not in body:
        body["model"] = model or client.first_model(headers)
    started = time.perf_counter()
    received, response = client.send(PATHS[chosen], body, headers=headers)
    error = None if received.is_success else response_error(received)
    answers = _answers(chosen, response) if error is None else []
    document = {
        "status": received.status_code,
        "answer": answers[0] if answers else None,
        "answers": answers,
        "cache_status": received.headers.get(_STATUS_HEADER),
        "request_id": received.headers.get("x-kvproxy-request-id") or received.headers.get("x-request-id"),
        "seconds": round(time.perf_counter() - started, 4),
        "response": response,
    }

    def show() -> None:
        if error is not None:
            print_note(f"kvproxy: HTTP {received.status_code}: {error.message}")
            return
        # A header stays on one line, so that its key can be copied.
        typer.echo(f"{_STATUS_HEADER}: {document['cache_status'] or 'none: the server is not a kvproxy'}")
        for number, answer in enumerate(answers, 1):
            choice = f"choice {number}: " if len(answers) > 1 else ""
            print_text(choice + (answer or "(no text: --json prints the response)"))

    return Output(document, show, exit_code=0 if error is None else error.exit_code)


def _answers(api: ApiName, response: Any) -> list[str | None]:
    """Return the text of each choice; None for other output, such as a tool call."""
    from kvproxy.apis import APIS
    from kvproxy.apis.json import as_object, objects

    if not isinstance(response, dict):
        return [None]
    choices = objects(response.get("choices"))
    if len(choices) < 2:
        return [APIS[api].output_text(as_object(response))]
    # Each as the only choice of a response.
    return [APIS[api].output_text({**response, "choices": [{**choice, "index": 0}]}) for choice in choices]
