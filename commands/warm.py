"""kvproxy warm: fill both caches from prompts, access logs, or what a cache served most."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvproxy.commands.options import DEFAULT_URL, ApiKey, Json, Token, Url

if TYPE_CHECKING:
    from kvproxy.proxy_client.client import ProxyClient
    from kvproxy.proxy_client.warm_requests import Reading
    from kvproxy.proxy_client.warm import Pace, Report


def warm(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Requests as JSON lines, an OpenAI batch file, an access log, a cache export, or one prompt a line;"
            " - is stdin.",
            show_default=False,
        ),
    ] = None,
    cache: Annotated[
        bool, typer.Option("--cache", help="Send the stored requests whose hits saved most tokens.")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option("--from", help="Proxy whose stored requests are sent.", show_default="--url"),
    ] = None,
    top: Annotated[
        int | None, typer.Option(help="Send only so many requests, the best first.", min=1, show_default=False)
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Send at most so many requests a second.", min=0.001, show_default=False)
    ] = None,
    prefix_only: Annotated[
        bool, typer.Option("--prefix-only", help="Fill the prefix cache and its tiers only; store no answer.")
    ] = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Compute and store again what is stored already.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Pin each prompt afterwards, as FILE:LINE; blocks pins lists them.")
    ] = False,
    model: Annotated[str | None, typer.Option(help="Model of requests that name none.", show_default=False)] = None,
    system: Annotated[str | None, typer.Option(help="System prompt of plain prompts.", show_default=False)] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Temperature of every request; clients must send the same.", show_default=False)
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="max_tokens of every request; clients must send the same.", show_default=False)
    ] = None,
    body: Annotated[
        list[str] | None,
        typer.Option(help="Field of every request as FIELD=JSON; repeat it for several.", show_default=False),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(help="Header of every request as NAME:VALUE; repeat it for several.", show_default=False),
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Send so many requests at a time.", min=1)] = 4,
    api_key: ApiKey = None,
    token: Token = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Send requests through the proxy, so that both caches know them. --url may be any OpenAI-compatible server.

    A client's request finds the stored response if it has the same tenant and the same fields, which the last line names.

    What is stored already is not computed again, so a second run goes on where an interrupted one stopped. With
    --prefix-only each prompt is computed up to its first token, and the prefix cache keeps its blocks.

    The exit code is 0 when every request was answered, 1 when some failed or nothing was stored, 130 after Ctrl-C.

    Example: kvproxy warm questions.txt --concurrency 8 --rate 20

    Example: kvproxy warm questions.txt --temperature 0 --body 'seed=1' --header 'X-Forwarded-User: ann'

    Example: kvproxy warm --cache --top 200 --refresh
    """
    from kvproxy.proxy_client import warm as warm_run
    from kvproxy.commands.request_body import credentials
    from kvproxy.proxy_client.client import ProxyClient
    from kvproxy.proxy_client.warm_from_cache import from_cache
    from kvproxy.proxy_client.warm_requests import read_requests
    from kvproxy.errors import InvalidRequest

    if (file is None) != cache:
        raise InvalidRequest("give a file to warm with, or --cache, and not both")
    if file is None:
        asked = source or url
        same = asked.rstrip("/") == url.rstrip("/")
        reading = from_cache(ProxyClient(asked, token), top, api_key, same=same)
    else:
        named = model or ProxyClient(url).first_model(credentials("chat", api_key))
        reading = read_requests(file, named, system)
    fields = _fields(temperature, max_tokens, body or [])
    headers = _headers(header or [])
    reading.requests = [replace(each, body=each.body | fields) for each in reading.requests[:top]]
    if prefix_only:
        reading.requests = warm_run.prefix_only(reading.requests)
    control = "no-cache, no-store" if prefix_only else "no-cache" if refresh else None
    report = warm_run.Report(
        passed_over=reading.passed_over,
        duplicates=sum(each.count - 1 for each in reading.requests) if file else 0,
        failures=list(reading.failures),
    )
    code = _send(reading, url, warm_run.Pace(concurrency, rate), api_key, report, control, headers)
    if keep and not code:
        from kvproxy.proxy_client.warm_pins import keep_all

        report.pinned = keep_all(ProxyClient(url, token), reading.requests, str(file) if file else "cache", report)
    _print(report, as_json)
    if cache and reading.passed_over:
        _tell(f"{reading.passed_over:,} responses of other tenants were left out: give their key with --api-key")
    if file is not None and report.has_cache and report.kept and not as_json:
        typer.echo(_stored_for(ProxyClient(url, token), reading, api_key, headers))
    if report.has_cache and not prefix_only and not report.kept and not code:
        _tell("nothing was stored: the answers' Cache-Status headers tell why, see docs/http.md")
        code = 1
    if code or report.failures:
        raise typer.Exit(code or 1)


def _fields(temperature: float | None, max_tokens: int | None, given: list[str]) -> dict[str, Any]:
    """The fields that every request gets."""
    named = {"temperature": temperature, "max_tokens": max_tokens}
    fields: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    for each in given:
        name, separator, value = each.partition("=")
        try:
            fields[name] = json.loads(value)
        except ValueError:
            separator = ""
        if not name or not separator:
            raise typer.BadParameter(
                f"give FIELD=JSON, as in 'seed=1' or 'user=\"ann\"', not {each!r}", param_hint="--body"
            )
    return fields


def _headers(given: list[str]) -> dict[str, str]:
    headers = {}
    for each in given:
        name, separator, value = each.partition(":")
        if not name.strip() or not separator:
            raise typer.BadParameter(
                f"give NAME:VALUE, as in 'X-Forwarded-User: ann', not {each!r}", param_hint="--header"
            )
        headers[name.strip().lower()] = value.strip()
    return headers


def _stored_for(client: "ProxyClient", reading: "Reading", api_key: str | None, headers: dict[str, str]) -> str:
    """The tenant and the fields that a request must have to find what was stored."""
    from kvproxy.apis import APIS
    from kvproxy.commands.request_body import PATHS, credentials
    from kvproxy.errors import KvproxyError

    first = reading.requests[0]
    api = next(api for api, path in PATHS.items() if path == first.path)
    try:
        tenant = client.tenant(credentials(api, api_key) | headers, str(first.body.get("model", "")))
    except KvproxyError:
        tenant = "unknown (the admin routes refuse)"
    sampling = [f"{name} {json.dumps(first.body[name]) if name in first.body else 'unset'}" for name in _SAMPLING]
    shown = {"model", "messages", "prompt", "input", "system", *_SAMPLING, *APIS[api].irrelevant}
    others = sorted(first.body.keys() - shown)
    fields = sampling + [f"{name} {json.dumps(first.body[name])}" for name in others]
    return f"stored for tenant {tenant}, {', '.join(fields)}"


def _send(
    reading: "Reading",
    url: str,
    pace: "Pace",
    api_key: str | None,
    report: "Report",
    control: str | None,
    headers: dict[str, str],
) -> int:
    """Send the requests; an exit code other than 0 where that ended early, after saying why."""
    import asyncio

    from kvproxy.proxy_client import warm as warm_run
    from kvproxy.errors import ProxyUnreachable

    try:
        asyncio.run(warm_run.run(reading.requests, url, pace, api_key, report, control, headers))
    except KeyboardInterrupt:
        _tell("interrupted: run warm again, which goes on from here")
        return 130
    except ProxyUnreachable as error:
        _tell(f"kvproxy: {error.message}")
        return error.exit_code
    return 0


_NAMED = 20
_SAMPLING = ("temperature", "max_tokens")


def _print(report: "Report", as_json: bool) -> None:
    from kvproxy.commands.output import print_facts, print_json

    if as_json:
        print_json(report.as_dict())
        return
    print_facts(report.facts())
    for failure in report.failures[:_NAMED]:
        _tell(f"line {failure.line}: {failure.message}")
    if len(report.failures) > _NAMED:
        _tell(f"and {len(report.failures) - _NAMED:,} more; --json lists them all")


def _tell(sentence: str) -> None:
    typer.echo(sentence, err=True)
