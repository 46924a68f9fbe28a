"""What an upstream says of itself, as a line."""

from typing import Any

from kvproxy.commands.output import percent


def engine_line(told: dict[str, Any]) -> str:
    """The figures that an upstream publishes; what it does not tell is left out."""
    parts = []
    if told["usage"] is not None:
        of = "" if told["num_blocks"] is None else f" of {told['num_blocks']:,} blocks"
        parts.append(f"{percent(told['usage'])}{of} in use")
    if told["running"] is not None:
        parts.append(f"{told['running']:,} running")
    if told["waiting"] is not None:
        parts.append(f"{told['waiting']:,} waiting")
    if told["queries"]:
        hits = told["hits"] or 0
        parts.append(f"{hits:,} of {told['queries']:,} prompt tokens reused ({percent(hits / told['queries'])})")
    return f"{told['engine']} says: {', '.join(parts)}; {told['age']:.0f} s ago"
