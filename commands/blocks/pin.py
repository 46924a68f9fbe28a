"""`kvproxy blocks pin`, `pins`, and `unpin`."""

from typing import Annotated

from typer import Argument

from kvproxy.commands.formatting import Formatted, format_duration
from kvproxy.commands.options import ProxyOptions, duration_option
from kvproxy.commands.output import Output, text_output
from kvproxy.commands.request_body import PromptOptions
from kvproxy.commands.tables import ListLayout, Row, number_column, table_output, text_column
from kvproxy.operations.client import quote_path_segment
from kvproxy.units import format_seconds


def pin(
    *,
    name: Annotated[str, Argument(help="Name of the pin.")],
    prompt: PromptOptions,
    ttl: Annotated[
        float | None, duration_option(help="Lifetime of the pin, such as 1h.", show_default="until unpin")
    ] = None,
    proxy: ProxyOptions,
) -> Output:
    """Protect the blocks of a prompt from eviction.

    Example: kvproxy blocks pin handbook --file request.json --ttl 1h
    """
    client, body = proxy.client(), prompt.body()
    if "model" not in body:
        body["model"] = client.first_model()
    done = client.post("/admin/blocks/pins", body, name=name, ttl=ttl)
    end = "until unpin" if ttl is None else f"for {format_seconds(ttl)}"
    return text_output(done, f"pinned {done['tokens']:,} tokens as {name} {end}")


def pins(layout: ListLayout, proxy: ProxyOptions) -> Output:
    """List pins.

    Example: kvproxy blocks pins
    """
    found = proxy.client().get("/admin/blocks/pins")
    rows: list[Row] = [
        {
            "Name": pin["name"],
            "Blocks#": len(pin["blocks"]),
            number_column("Time left", "seconds_left"): Formatted("until unpin", None)
            if pin["seconds_left"] is None
            else format_duration(pin["seconds_left"]),
            text_column("Ids"): ", ".join(map(str, pin["blocks"])),
        }
        for pin in found
    ]
    return table_output(found, rows, empty="no pins", layout=layout)


def unpin(name: Annotated[str, Argument(help="Name of the pin.")], proxy: ProxyOptions) -> Output:
    """Remove a pin.

    Its blocks stay cached until they are evicted.

    Example: kvproxy blocks unpin handbook
    """
    done = proxy.client().delete(f"/admin/blocks/pins/{quote_path_segment(name)}")
    return text_output(done, f"unpinned {name}")
