"""`kvproxy warm`: fills both caches."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from kvproxy.commands.analyse.options import Column, FormatOption
from kvproxy.commands.options import ApiKey, ProxyOptions
from kvproxy.commands.output import Output, print_facts, print_note, print_text, progress_bar
from kvproxy.commands.request_body import SAMPLING, RequestFieldOptions
from kvproxy.errors import InvalidRequest, KvproxyError, ProxyUnreachable
from kvproxy.operations.api_paths import API_NAMES, credential_headers
from kvproxy.operations.client import ProxyClient, configured_token
from kvproxy.units import format_line_numbers, plural, tenant_name

if TYPE_CHECKING:
    from kvproxy.operations.warm import WarmReport, WarmRequest

_LISTED_ERRORS = 20


def warm(
    *,
    file: Annotated[
        Path | None,
        Argument(help="Requests, a batch, a log, or an export of the cache or of another tool; - is stdin."),
    ] = None,
    cache: Annotated[bool, Option("--cache", help="Send stored requests whose hits saved most tokens.")] = False,
    from_log: Annotated[bool, Option("--from-log", help="Send the most frequent requests of the journal.")] = False,
    source: Annotated[str | None, Option("--from", help="Proxy of --cache, --from-log.", show_default="--url")] = None,
    top: Annotated[int | None, Option(help="Maximum number of requests.", min=1)] = None,
    rate: Annotated[float | None, Option(help="Maximum requests per second.", min=0.001)] = None,
    prefix_only: Annotated[bool, Option("--prefix-only", help="Warm the prefix cache only; store nothing.")] = False,
    refresh: Annotated[bool, Option("--refresh", help="Recompute responses that are stored already.")] = False,
    format: FormatOption = None,
    column: Column = None,
    answer_column: Annotated[
        str | None, Option("--answer-column", help="Column with the answers to store; no model computes them.")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Send nothing; show the first request and the counts.")] = False,
    keep: Annotated[bool, Option("--keep", help="Pin the blocks of each prompt as FILE:LINE.")] = False,
    model: Annotated[str | None, Option(help="Model of requests without a model.")] = None,
    system: Annotated[str | None, Option(help="System prompt of plain prompts.")] = None,
    changes: RequestFieldOptions,
    concurrency: Annotated[int, Option(help="Maximum requests in flight.", min=1)] = 4,
    api_key: ApiKey = None,
    proxy: ProxyOptions,
) -> Output:
    """Fill both caches from prompts, logs or another cache.

    It sends each request once; --url may be any OpenAI-compatible server. A client receives a stored response only if its
    request has the tenant and the fields in the last line of the output. Stored responses are not recomputed, so an
    interrupted run can be continued. With --prefix-only each prompt is computed up to its first token. With --answer-column,
    the answers of the table are stored, and nothing is sent to a model; this needs the admin token.

    The exit code is 0 if every request was answered, 1 if a request or a pin failed or no response is stored, 130 after Ctrl-C.

    Example: kvproxy warm requests.jsonl --dry-run

    Example: kvproxy warm questions.txt --format prompts --concurrency 8 --rate 20

    Example: kvproxy warm questions.txt --format prompts --temperature 0 --body 'seed=1' --header 'Remote-User: ann'

    Example: kvproxy warm faq.csv --column question

    Example: kvproxy warm faq.csv --column question --answer-column answer

    Example: kvproxy warm --cache --top 200 --refresh

    Example: kvproxy warm --from-log --top 200
    """
    import asyncio

    from kvproxy.commands.files import read_text, shown_name
    from kvproxy.operations import warm as warming

    if (file is not None) + cache + from_log != 1:
        raise InvalidRequest("give one of a file, --cache, and --from-log")
    if column is not None and file is None:
        raise InvalidRequest("--column is for a file")
    if answer_column is not None and (column is None or prefix_only or keep):
        raise InvalidRequest("--answer-column needs --column, and excludes --prefix-only and --keep")
    fields, headers = changes.fields(), changes.headers()
    target = origin = proxy.client()
    if answer_column is not None:
        headers |= target.token_headers
    if source is not None:
        # The token in the settings is for the proxy of their URL only.
        is_configured = proxy.token == configured_token(proxy.url, proxy.data)
        origin = ProxyClient(source, configured_token(source, proxy.data) if is_configured else proxy.token)
    if file is not None:
        default_model = model or target.first_model(credential_headers("chat", api_key))
        text = read_text(file)
        warm_source = warming.read_file_requests(
            shown_name(file), text, default_model, system, format=format, column=column, answer_column=answer_column
        )
    elif from_log:
        warm_source = warming.logged_requests(origin, proxy.data, top, api_key, headers, prefix_only=prefix_only)
    else:
        warm_source = warming.stored_requests(origin, top, api_key, same_proxy=origin.url == target.url)
    if warm_source.format is not None and format is None:
        print_note(f"read as {warm_source.format}")
    warm_source.requests = [replace(request, body=request.body | fields) for request in warm_source.requests]
    if prefix_only:
        warming.select_prefixes(warm_source)
    report, requests = warming.WarmReport(warm_source), warm_source.requests[:top]
    if dry_run:
        return _dry_run(report, requests, stores=not prefix_only)
    control, code = "no-cache, no-store" if prefix_only else "no-cache" if refresh else None, 0
    try:
        with progress_bar("warming") as progress:
            asyncio.run(
                warming.send_all(requests, target.url, report, concurrency, rate, api_key, control, headers, progress)
            )
    except KeyboardInterrupt:
        print_note("interrupted: run the command again to continue")
        code = 130
    except ProxyUnreachable as error:
        print_note(f"kvproxy: {error.message}")
        code = error.exit_code
    if keep and not code:
        # For `blocks unpin`, a name that begins with a dash would be an option.
        name = str(shown_name(file)) if file else "journal" if from_log else "cache"
        warming.pin_all(target, requests, name, report)
    if report.has_cache and not prefix_only and not report.cached and not code:
        print_note("no response is stored: see the Cache-Status header of the responses, and docs/http.md")
        code = 1
    if report.has_cache and report.cached and report.not_stored and not prefix_only:
        lines = format_line_numbers(report.not_stored)
        print_note(f"not stored: {lines}: truncated, private, no-store, or excluded by a rule")
    for note in warm_source.notes:
        print_note(note)
    document = report.document()
    if report.has_cache and report.cached:
        document["required"] = _hit_requirements(target, report.cached, api_key, headers)

    def show() -> None:
        _print_report(report)
        if required := document.get("required"):
            tenants = " and ".join(map(tenant_name, required["tenants"]))
            print_text(f"stored for tenant {', '.join([tenants, *_describe_fields(required)])}")

    return Output(document, show, code or int(bool(report.errors)))


def _describe_fields(required: dict[str, Any]) -> list[str]:
    fields = [f"{name} {_format_field_value(value)}" for name, value in required["fields"].items()]
    return fields + [f"{name} of each request" for name in required["varying"]]


def _format_field_value(value: Any) -> str:
    if value is None:
        return "unset"
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def _hit_requirements(
    client: ProxyClient, requests: "list[WarmRequest]", api_key: str | None, headers: dict[str, str]
) -> dict[str, Any]:
    # A credential is in another header for another API, and selects another tenant.
    models = {API_NAMES[request.path]: str(request.body.get("model", "")) for request in requests}
    try:
        tenants = [client.tenant(credential_headers(api, api_key) | headers, model) for api, model in models.items()]
    except KvproxyError as error:
        tenants = [f"unknown ({error.message})"]
    return {"tenants": list(dict.fromkeys(tenants)), **_required_fields(requests)}


def _required_fields(requests: "list[WarmRequest]") -> dict[str, Any]:
    fields = [_fields_in_cache_key(request) for request in requests]
    names = [*SAMPLING, *sorted(set().union(*fields) - set(SAMPLING))]
    same = [name for name in names if all(request_fields.get(name) == fields[0].get(name) for request_fields in fields)]
    return {
        "fields": {name: fields[0].get(name) for name in same},
        "varying": [name for name in names if name not in same],
    }


def _fields_in_cache_key(request: "WarmRequest") -> dict[str, Any]:
    from kvproxy.apis import APIS

    known = {"model", "messages", "prompt", "input", "system", *APIS[API_NAMES[request.path]].fields.ignored}
    return {name: value for name, value in request.body.items() if name not in known}


def _dry_run(report: "WarmReport", requests: "list[WarmRequest]", *, stores: bool) -> Output:
    first: dict[str, Any] | None = {"path": requests[0].path, "body": requests[0].body} if requests else None
    if first is not None and requests[0].answer is not None:
        first["answer"] = requests[0].answer
    notes, failures = report.source.notes, report.document()["failures"]
    document = {"requests": len(requests), "first": first, "notes": notes, "failures": failures}
    required = _required_fields(requests) if stores and requests else None
    if required is not None:
        document["required"] = required

    def show() -> None:
        for note in notes:
            print_note(note)
        _print_errors(report)
        print_text(f"{plural(len(requests), 'distinct request')}, none sent")
        if requests:
            print_text(f"first: POST {requests[0].path}\n{json.dumps(requests[0].body, indent=2, ensure_ascii=False)}")
            if requests[0].answer is not None:
                print_text(f"answer: {requests[0].answer}")
        if required is not None:
            print_text(f"clients need {', '.join(_describe_fields(required))}")

    return Output(document, show)


def _print_report(report: "WarmReport") -> None:
    values = report.document().items()
    facts = {
        name.replace("_not_stored", ", not stored").replace("_", " ").capitalize(): value for name, value in values
    }
    print_facts((name, value) for name, value in facts.items() if name != "Failures")
    _print_errors(report)


def _print_errors(report: "WarmReport") -> None:
    lines: dict[str, list[int]] = {}
    for error in report.errors:
        lines.setdefault(error.message, []).append(error.line)
    for message, line_numbers in list(lines.items())[:_LISTED_ERRORS]:
        print_note(f"{format_line_numbers(line_numbers)}: {message}")
    if len(lines) > _LISTED_ERRORS:
        print_note(f"and {len(lines) - _LISTED_ERRORS:,} more errors: list all with --json")
