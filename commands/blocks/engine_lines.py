"""Describes engines, groups of layers, and tiers in one line each."""

from typing import Any

from kvproxy.commands.formatting import percent
from kvproxy.units import format_bytes


def tier_line(tier: dict[str, Any]) -> str:
    line = f"{tier['name']}: {tier['chunks']:,} chunks, {format_bytes(tier['bytes'])}, {tier['hits']:,} hits"
    return line if tier["available"] else f"{line}, paused after a failure"


def layer_group_lines(groups: list[dict[str, Any]]) -> list[str]:
    return [f"{layer_group_name(group)}: {group['used']:,} blocks used, {group['cached']:,} cached" for group in groups]


def layer_group_name(group: dict[str, Any]) -> str:
    reach = f" of {group['reach']:,} tokens" if group["reach"] else ""
    return f"group {group['number']}, {group['kind'].replace('_', ' ')}{reach}"


def engine_line(engine: dict[str, Any]) -> str:
    parts = []
    if engine["usage"] is not None:
        of = "" if engine["num_blocks"] is None else f" of {engine['num_blocks']:,} blocks"
        parts.append(f"{percent(engine['usage'])}{of} in use")
    if engine["running"] is not None:
        parts.append(f"{engine['running']:,} running")
    if engine["waiting"] is not None:
        parts.append(f"{engine['waiting']:,} waiting")
    if engine["queries"]:
        hits = engine["hits"] or 0
        parts.append(f"{hits:,} of {engine['queries']:,} prompt tokens reused ({percent(hits / engine['queries'])})")
    return f"{engine['engine']} reports {', '.join(parts)}, {engine['age']:.0f} s ago"
