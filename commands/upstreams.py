"""`kvproxy upstreams`: lists and drains upstreams."""

from typing import Annotated, Any

from typer import Argument

from kvproxy.commands.command import CommandGroup
from kvproxy.commands.formatting import Formatted, format_size, percent
from kvproxy.commands.options import ProxyOptions
from kvproxy.commands.output import Output, print_text
from kvproxy.commands.tables import Column, ListLayout, print_table

app = CommandGroup("upstreams", help="List upstreams, and drain one for maintenance.")

Name = Annotated[str, Argument(help="URL of the upstream, or its number from 1.")]


@app.default
def ls(layout: ListLayout, proxy: ProxyOptions) -> Output:
    """List upstreams with their state, load and cache."""
    return _upstreams_output(proxy.client().get("/admin/upstreams"), layout, numbered=True)


@app.subcommand
def drain(name: Name, proxy: ProxyOptions) -> Output:
    """Stop sending new requests to an upstream.

    Requests in flight are completed.
    """
    return _upstreams_output([proxy.client().post("/admin/upstreams/drain", name=name)])


@app.subcommand
def undrain(name: Name, proxy: ProxyOptions) -> Output:
    """Send requests to a drained upstream again."""
    return _upstreams_output([proxy.client().post("/admin/upstreams/undrain", name=name)])


def _upstreams_output(
    upstreams: list[dict[str, Any]], layout: ListLayout = ListLayout(), *, numbered: bool = False
) -> Output:
    def show() -> None:
        number: dict[Column | str, list[Any]] = {Column("#", is_number=True): list(range(1, len(upstreams) + 1))}
        columns = (number if numbered else {}) | _upstream_columns(upstreams)
        rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        print_table(rows, empty="there is no upstream", layout=layout)
        for each in upstreams:
            for note in [each["error"], *each["notes"], *each["advice"], *_reuse_and_prediction_lines(each)]:
                if note:
                    print_text(note if each["url"] in note else f"{each['url']}: {note}")

    return Output(upstreams, show)


def _upstream_columns(upstreams: list[dict[str, Any]]) -> dict[Column | str, list[Any]]:
    columns: dict[Column | str, list[Any]] = {
        Column("Upstream", field="url"): [each["url"] for each in upstreams],
        "State": [each["state"] for each in upstreams],
        "Running#": [each["requests"] for each in upstreams],
        "Load#?": [each["load"] for each in upstreams],
        "Sent#?": [each["sent"] for each in upstreams],
    }
    if any(each.get("models") or each.get("aliases") for each in upstreams):
        columns["Models"] = [_models_text(each) for each in upstreams]
    if len({each["weight"] for each in upstreams}) > 1:
        columns["Weight#?"] = [Formatted(f"{each['weight']:g}", each["weight"]) for each in upstreams]
    if any(each["ejections"] for each in upstreams):
        columns["Ejected#"] = [each["ejections"] for each in upstreams]
    if any(each["streams"] for each in upstreams):
        columns["Blocks#?"] = [each["cached_blocks"] for each in upstreams]
        for medium in sorted({medium for each in upstreams for medium in each.get("offloaded", {})}):
            columns[f"{medium}#?"] = [each["offloaded"].get(medium) for each in upstreams]
        columns["Mirror"] = [_mirror_state(each) for each in upstreams]
    figures = [each["metrics"] or {} for each in upstreams]
    if any(figures):
        columns["Pool used#?"] = [_percent(each.get("usage")) for each in figures]
        columns["Waiting#?"] = [each.get("waiting") for each in figures]
        columns["Reused#"] = [_percent(_hit_rate(each)) for each in figures]
    if any(each["slots"] for each in upstreams):
        slots = [each["slots"] or {} for each in upstreams]
        columns["Slots#"] = [each.get("slots") for each in slots]
        columns["Saved#?"] = [each.get("saved") for each in slots]
        columns["On disk#?"] = [format_size(each["saved_bytes"]) if each else None for each in slots]
        columns["Restored#?"] = [each.get("restores") for each in slots]
    return columns


def _models_text(upstream: dict[str, Any]) -> str:
    aliases = [f"{alias} ({model})" for alias, model in upstream["aliases"].items()]
    return ", ".join([*(upstream["models"] or ["all others"]), *aliases])


def _mirror_state(upstream: dict[str, Any]) -> str:
    if not upstream["streams"]:
        return "none"
    if not all(stream["connected"] for stream in upstream["streams"]):
        return "not connected"
    return "complete" if upstream["complete"] else "incomplete"


def _percent(share: float | None) -> Formatted | None:
    return None if share is None else percent(share)


def _hit_rate(figures: dict[str, Any]) -> float | None:
    queries, hits = figures.get("queries"), figures.get("hits")
    return hits / queries if queries and hits is not None else None


def _reuse_and_prediction_lines(upstream: dict[str, Any]) -> list[str]:
    lines = []
    for model, reuse in upstream["reuse"].items():
        line = f"{model}: {reuse['cached_tokens']:,} of {reuse['prompt_tokens']:,} prompt tokens reused, as reported"
        if reuse["predictions"]:
            line += f"; {reuse['exact']:,} of {reuse['predictions']:,} predictions exact"
            if reuse["too_high"] + reuse["too_low"]:
                line += (
                    f", {reuse['too_high']:,} too high ({reuse['tokens_too_high']:,} tokens),"
                    f" {reuse['too_low']:,} too low ({reuse['tokens_too_low']:,} tokens)"
                )
        lines.append(line)
    if loaded := upstream.get("loaded"):
        parts = ", ".join(f"{tokens:,} from {medium}" for medium, tokens in loaded.items())
        lines.append(f"loaded, of the predicted reuse: {parts}")
    return lines
