"""`kvproxy upstreams`: lists and drains upstreams."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvproxy.commands.command import CommandGroup
from kvproxy.commands.formatting import Formatted, format_size, percent
from kvproxy.commands.options import ProxyOptions
from kvproxy.commands.output import Output, print_text
from kvproxy.commands.tables import Column, ListLayout, print_table
from kvproxy.operations.operation import NoParameters
from kvproxy.operations.upstreams import UpstreamName, drain_upstream, list_upstreams, undrain_upstream

if TYPE_CHECKING:
    from kvproxy.upstreams.status import EngineStatus

app = CommandGroup("upstreams", help="List upstreams, and drain one for maintenance.")


@app.default
def ls(layout: ListLayout, proxy: ProxyOptions) -> Output:
    """List upstreams with their state, load and cache."""
    return _upstreams_output(proxy.client().perform(list_upstreams, NoParameters()), layout, numbered=True)


@app.subcommand
def drain(upstream: UpstreamName, proxy: ProxyOptions) -> Output:
    """Stop sending new requests to an upstream.

    Requests in flight are completed.
    """
    return _upstreams_output([proxy.client().perform(drain_upstream, upstream)])


@app.subcommand
def undrain(upstream: UpstreamName, proxy: ProxyOptions) -> Output:
    """Send requests to a drained upstream again."""
    return _upstreams_output([proxy.client().perform(undrain_upstream, upstream)])


def _upstreams_output(
    upstreams: "Sequence[EngineStatus]", layout: ListLayout = ListLayout(), *, numbered: bool = False
) -> Output:
    def show() -> None:
        number: dict[Column | str, list[Any]] = {Column("#", is_number=True): list(range(1, len(upstreams) + 1))}
        columns = (number if numbered else {}) | _upstream_columns(upstreams)
        rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        print_table(rows, empty="there is no upstream", layout=layout)
        for upstream in upstreams:
            for note in [upstream.error, *upstream.notes, *upstream.advice, *_reuse_and_prediction_lines(upstream)]:
                if note:
                    print_text(note if upstream.url in note else f"{upstream.url}: {note}")

    return Output(upstreams, show, fields=list_upstreams.row_fields)


def _upstream_columns(upstreams: "Sequence[EngineStatus]") -> dict[Column | str, list[Any]]:
    columns: dict[Column | str, list[Any]] = {
        Column("Upstream", field="url"): [upstream.url for upstream in upstreams],
        "State": [upstream.state for upstream in upstreams],
        "Running#": [upstream.requests for upstream in upstreams],
        "Load#?": [upstream.load for upstream in upstreams],
        "Sent#?": [upstream.sent for upstream in upstreams],
    }
    if any(upstream.models or upstream.aliases for upstream in upstreams):
        columns["Models"] = [_models_text(upstream) for upstream in upstreams]
    if len({upstream.weight for upstream in upstreams}) > 1:
        columns["Weight#?"] = [Formatted(f"{upstream.weight:g}", upstream.weight) for upstream in upstreams]
    if any(upstream.retried for upstream in upstreams):
        columns["Retried#"] = [upstream.retried for upstream in upstreams]
    if any(upstream.errors for upstream in upstreams):
        columns["Errors#"] = [upstream.errors for upstream in upstreams]
    if any(upstream.ejections for upstream in upstreams):
        columns["Ejected#"] = [upstream.ejections for upstream in upstreams]
    if any(upstream.streams for upstream in upstreams):
        columns["Blocks#?"] = [upstream.cached_blocks for upstream in upstreams]
        for medium in sorted({medium for upstream in upstreams for medium in upstream.offloaded}):
            columns[f"{medium}#?"] = [upstream.offloaded.get(medium) for upstream in upstreams]
        columns["Mirror"] = [_mirror_state(upstream) for upstream in upstreams]
    figures = [upstream.metrics for upstream in upstreams]
    if any(figures):
        columns["Pool used#?"] = [_percent(None if metrics is None else metrics.usage) for metrics in figures]
        columns["Waiting#?"] = [None if metrics is None else metrics.waiting for metrics in figures]
    if any(figures) or any(upstream.reuse for upstream in upstreams):
        columns["Reused#"] = [_percent(_reused_share(upstream)) for upstream in upstreams]
    if any(upstream.slots for upstream in upstreams):
        slots = [upstream.slots for upstream in upstreams]
        columns["Slots#"] = [None if status is None else status.slots for status in slots]
        columns["Saved#?"] = [None if status is None else status.saved for status in slots]
        columns["On disk#?"] = [None if status is None else format_size(status.saved_bytes) for status in slots]
        columns["Restored#?"] = [None if status is None else status.restores for status in slots]
    return columns


def _models_text(upstream: "EngineStatus") -> str:
    aliases = [f"{alias} ({model})" for alias, model in upstream.aliases.items()]
    return ", ".join([*(upstream.models or ["all others"]), *aliases])


def _mirror_state(upstream: "EngineStatus") -> str:
    if not upstream.streams:
        return "none"
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
