"""`kvproxy blocks pin`, `pins`, and `unpin`."""

from typing import Annotated

from kvproxy.commands.formatting import Formatted, format_duration
from kvproxy.commands.options import ProxyOptions
from kvproxy.commands.output import Output, text_output
from kvproxy.commands.request_body import PromptOptions
from kvproxy.commands.row_fields import RowFields
from kvproxy.commands.tables import ListLayout, Row, number_column, table_output, text_column
from kvproxy.operations.blocks_parameters import NewPin, PinName
from kvproxy.operations.operation import NoParameters
from kvproxy.units import format_seconds


def pin(*, pin: NewPin, prompt: PromptOptions, proxy: ProxyOptions) -> Output:
    """Protect the blocks of a prompt from eviction.

    Example: kvproxy blocks pin handbook --file request.json --ttl 1h
    """
    from kvproxy.operations.blocks import pin_prompt

    client, body = proxy.client(), prompt.body()
    if "model" not in body:
        body["model"] = client.first_model()
    pinned = client.perform(pin_prompt, pin, body)
    end = "until unpin" if pin.ttl is None else f"for {format_seconds(pin.ttl)}"
    return text_output(pinned, f"pinned {pinned.tokens:,} tokens as {pin.name} {end}")


def pins(
    layout: Annotated[ListLayout, RowFields("kvproxy.operations.blocks:list_pins")], proxy: ProxyOptions
) -> Output:
    """List pins.

    Example: kvproxy blocks pins
    """
    from kvproxy.operations.blocks import list_pins

    pins = proxy.client().perform(list_pins, NoParameters())
    rows: list[Row] = [
        {
            "Name": pin.name,
            number_column("Blocks", "num_blocks"): len(pin.blocks),
            number_column("Time left", "seconds_left"): Formatted("until unpin", None)
            if pin.seconds_left is None
            else format_duration(pin.seconds_left),
            text_column("Ids", field="blocks"): ", ".join(map(str, pin.blocks)),
        }
        for pin in pins
    ]
    return table_output(pins, rows, empty="no pins", layout=layout)


def unpin(pin: PinName, proxy: ProxyOptions) -> Output:
    """Remove a pin.

    Its blocks stay cached until they are evicted.

    Example: kvproxy blocks unpin handbook
    """
    from kvproxy.operations.blocks import unpin_prompt

    removed = proxy.client().perform(unpin_prompt, pin)
    return text_output(removed, f"unpinned {removed.unpinned}")
