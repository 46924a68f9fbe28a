"""`kvproxy upstreams`: lists and drains upstreams."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from kvproxy.commands.command import CommandGroup
from kvproxy.commands.formatting import Formatted, format_size, percent
from kvproxy.commands.options import ProxyOptions
from kvproxy.commands.output import Output, print_note, print_text
from kvproxy.commands.row_fields import RowFields
from kvproxy.commands.tables import Column, ListLayout, number_column, print_table
from kvproxy.errors import KvproxyError
from kvproxy.operations.client import ProxyClient
from kvproxy.operations.operation import AsyncOperation, NoParameters, fields_of
from kvproxy.operations.upstreams import UpstreamName, UpstreamsAccess, drain_upstream, list_upstreams, undrain_upstream
from kvproxy.units import plural

if TYPE_CHECKING:
    from kvproxy.upstreams.status import EngineStatus

Also = Annotated[
    list[str] | None, Option("--also", metavar="URL", help="Do the same at another proxy; repeat for several.")
]

app = CommandGroup("upstreams", help="List upstreams, and drain one for maintenance.")


@app.default
def ls(
    layout: Annotated[ListLayout, RowFields("kvproxy.operations.upstreams:list_upstreams")], proxy: ProxyOptions
) -> Output:
    """List upstreams with their state, load and cache.

    `sent` is the number of clients' requests that an upstream received since the proxy's start, also of uncached routes such as
    `GET /v1/models`. `errors` is the number of requests that failed there. Probes and the proxy's own requests do not count.
    """
    return _upstreams_output(proxy.client().perform(list_upstreams, NoParameters()), layout)


@app.subcommand
def drain(upstream: UpstreamName, *, also: Also = None, proxy: ProxyOptions) -> Output:
    """Stop sending new requests to an upstream.

    Requests in flight are completed. All proxies on one PostgreSQL drain it, until undrain. A proxy without PostgreSQL drains it
    until its next start; --also names further proxies.

    Example: kvproxy upstreams drain http://SERVER:8000 --url http://127.0.0.1:8491 --also http://127.0.0.1:8492
    """
    return _perform(drain_upstream, upstream, proxy, also)


@app.subcommand
def undrain(upstream: UpstreamName, *, also: Also = None, proxy: ProxyOptions) -> Output:
    """Send requests to a drained upstream again."""
    return _perform(undrain_upstream, upstream, proxy, also)


def _perform(
    operation: "AsyncOperation[UpstreamsAccess, UpstreamName, EngineStatus]",
    upstream: UpstreamName,
    proxy: ProxyOptions,
    also: list[str] | None,
) -> Output:
    """Perform an operation at all proxies, also if it fails at some, and return the exit code of the first failure."""
    statuses, exit_code = [], 0
    for client in (proxy.client(), *(ProxyClient(url, proxy.token) for url in also or ())):
        try:
            statuses.append(client.perform(operation, upstream))
        except KvproxyError as error:
            if not also:
                raise
            print_note(f"{client.url}: {error.message}")
            exit_code = exit_code or error.exit_code

    def show() -> None:
        for status in statuses:
            print_text(f"{status.url} is {status.state}: {plural(status.requests, 'request')} in flight")
            _print_notes(status.url, [status.error, *status.notes])

    return Output(statuses, show, exit_code=exit_code)


def _print_notes(url: str, notes: Iterable[str | None]) -> None:
    for note in notes:
        if note:
            print_text(note if url in note else f"{url}: {note}")


def _upstreams_output(upstreams: "Sequence[EngineStatus]", layout: ListLayout) -> Output:
    def show() -> None:
        number: dict[Column | str, list[Any]] = {Column("#", is_number=True): list(range(1, len(upstreams) + 1))}
        columns = number | _upstream_columns(upstreams)
        rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        records = [fields_of(upstream) for upstream in upstreams]
        print_table(rows, empty="there is no upstream", layout=layout, records=records)
        for upstream in upstreams:
            lines = _reuse_and_prediction_lines(upstream)
            _print_notes(upstream.url, [upstream.error, *upstream.notes, *upstream.advice, *lines])

    return Output(upstreams, show)


def _upstream_columns(upstreams: "Sequence[EngineStatus]") -> dict[Column | str, list[Any]]:
    has_models = any(upstream.models or upstream.aliases for upstream in upstreams)
    has_weights = len({upstream.weight for upstream in upstreams}) > 1
    figures = [upstream.metrics for upstream in upstreams]
    slots = [upstream.slots for upstream in upstreams]
    return {
        Column("Upstream", field="url"): [upstream.url for upstream in upstreams],
        "State": [upstream.state for upstream in upstreams],
        number_column("Running", "requests"): [upstream.requests for upstream in upstreams],
        "Load#?": [upstream.load for upstream in upstreams],
        "Sent#?": [upstream.sent for upstream in upstreams],
        Column("Models", hides_empty=True): [_models_text(upstream) if has_models else None for upstream in upstreams],
        _figure("Weight", optional=True): [
            Formatted(f"{upstream.weight:g}" if has_weights else "", upstream.weight) for upstream in upstreams
        ],
        _figure("Retried"): _unless_all_zero([upstream.retried for upstream in upstreams]),
        _figure("Errors"): _unless_all_zero([upstream.errors for upstream in upstreams]),
        _figure("Ejected", field="ejections"): _unless_all_zero([upstream.ejections for upstream in upstreams]),
        _figure("Blocks", optional=True, field="cached_blocks"): [upstream.cached_blocks for upstream in upstreams],
        Column("Offloaded", is_optional=True, hides_empty=True): [_offloaded_text(upstream) for upstream in upstreams],
        Column("Mirror", hides_empty=True): [_mirror_state(upstream) for upstream in upstreams],
        _figure("Pool used", optional=True): [
            _percent(None if metrics is None else metrics.usage) for metrics in figures
        ],
        _figure("Waiting", optional=True): [None if metrics is None else metrics.waiting for metrics in figures],
        _figure("Reused"): [_percent(_reused_share(upstream)) for upstream in upstreams],
        _figure("Slots"): [None if status is None else status.slots for status in slots],
        _figure("Saved", optional=True): [None if status is None else status.saved for status in slots],
        _figure("On disk", optional=True): [
            None if status is None else format_size(status.saved_bytes) for status in slots
        ],
        _figure("Restored", optional=True): [None if status is None else status.restores for status in slots],
    }


def _figure(name: str, *, optional: bool = False, field: str | None = None) -> Column:
    return Column(name, is_number=True, is_optional=optional, hides_empty=True, field=field)


def _unless_all_zero(counts: Sequence[int]) -> list[Any]:
    """Return counts that a terminal shows only if one of them is not 0."""
    return list(counts) if any(counts) else [Formatted("", count) for count in counts]


def _offloaded_text(upstream: "EngineStatus") -> str | None:
    return ", ".join(f"{medium} {blocks:,}" for medium, blocks in sorted(upstream.offloaded.items())) or None


def _models_text(upstream: "EngineStatus") -> str:
    aliases = [f"{alias} ({model})" for alias, model in upstream.aliases.items()]
    return ", ".join([*(upstream.models or ["all others"]), *aliases])


def _mirror_state(upstream: "EngineStatus") -> str | None:
    if not upstream.streams:
        return None
    if not all(stream.connected for stream in upstream.streams):
        return "not connected"
    return "complete" if upstream.complete else "incomplete"


def _percent(share: float | None) -> Formatted | None:
    return None if share is None else percent(share)


def _reused_share(upstream: "EngineStatus") -> float | None:
    """Return the share in the responses to this proxy, or else in the engine's metrics, which cover all clients."""
    reported = upstream.reuse.values()
    if prompt_tokens := sum(reuse.prompt_tokens for reuse in reported):
        return sum(reuse.cached_tokens for reuse in reported) / prompt_tokens
    metrics = upstream.metrics
    if metrics is None or not metrics.queries or metrics.hits is None:
        return None
    return metrics.hits / metrics.queries


def _reuse_and_prediction_lines(upstream: "EngineStatus") -> list[str]:
    lines = []
    for model, reuse in upstream.reuse.items():
        line = f"{model}: {reuse.cached_tokens:,} of {reuse.prompt_tokens:,} prompt tokens reused, as reported"
        if reuse.predictions:
            line += f"; {reuse.exact:,} of {reuse.predictions:,} predictions exact"
            if reuse.too_high + reuse.too_low:
                line += (
                    f", {reuse.too_high:,} too high ({reuse.tokens_too_high:,} tokens),"
                    f" {reuse.too_low:,} too low ({reuse.tokens_too_low:,} tokens)"
                )
        lines.append(line)
    if loaded := upstream.loaded:
        parts = ", ".join(f"{tokens:,} from {medium}" for medium, tokens in loaded.items())
        lines.append(f"loaded, of the predicted reuse: {parts}")
    return lines
