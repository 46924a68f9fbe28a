"""kvproxy warm: fill both caches from prompts, access logs, or what a cache served most."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvproxy.commands.options import DEFAULT_URL, ApiKey, Json, Token, Url

if TYPE_CHECKING:
    from kvproxy.commands.warm_file import Reading
    from kvproxy.commands.warm_run import Pace, Report


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
    concurrency: Annotated[int, typer.Option(help="Send so many requests at a time.", min=1)] = 4,
    api_key: ApiKey = None,
    token: Token = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Send requests through the proxy, so that both caches know them. --url may be any OpenAI-compatible server.

    What is stored already is not computed again, so a second run goes on where an interrupted one stopped. With
    --prefix-only each prompt is computed up to its first token, and the prefix cache keeps its blocks.

    The exit code is 0 when every request was answered, 1 when some failed or nothing was stored, 130 after Ctrl-C.

    Example: kvproxy warm questions.txt --concurrency 8 --rate 20

    Example: kvproxy warm --cache --top 200 --refresh
    """
    from kvproxy.commands import warm_run
    from kvproxy.commands.bodies import credentials
    from kvproxy.commands.client import ProxyClient
    from kvproxy.commands.warm_cache import from_cache
    from kvproxy.commands.warm_file import read_requests
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
    reading.requests = reading.requests[:top]
    if prefix_only:
        reading.requests = warm_run.prefix_only(reading.requests)
    control = "no-cache, no-store" if prefix_only else "no-cache" if refresh else None
    report = warm_run.Report(passed_over=reading.passed_over, failures=list(reading.failures))
    code = _send(reading, url, warm_run.Pace(concurrency, rate), api_key, report, control)
    if keep and not code:
        from kvproxy.commands.warm_keep import keep_all

        report.pinned = keep_all(ProxyClient(url, token), reading.requests, str(file) if file else "cache", report)
    _print(report, as_json)
    if cache and reading.passed_over:
        _tell(f"{reading.passed_over:,} responses of other tenants were left out: give their key with --api-key")
    if report.has_cache and not prefix_only and not report.kept and not code:
        _tell("nothing was stored: the answers' Cache-Status headers tell why, see docs/http.md")
        code = 1
    if code or report.failures:
        raise typer.Exit(code or 1)


def _send(
    reading: "Reading", url: str, pace: "Pace", api_key: str | None, report: "Report", control: str | None
) -> int:
    """Send the requests; an exit code other than 0 where that ended early, after saying why."""
    import asyncio

    from kvproxy.commands import warm_run
    from kvproxy.errors import ProxyUnreachable

    try:
        asyncio.run(warm_run.run(reading.requests, url, pace, api_key, report, control))
    except KeyboardInterrupt:
        _tell("interrupted: run warm again, which goes on from here")
        return 130
    except ProxyUnreachable as error:
        _tell(f"kvproxy: {error.message}")
        return error.exit_code
    return 0


_NAMED = 20


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
