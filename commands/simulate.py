"""kvproxy simulate: replay a trace."""

from pathlib import Path
from typing import Annotated

import typer

from commands.options import Json


def simulate(
    trace: Annotated[Path, typer.Argument(help="A conformance trace.")],
    out: Annotated[Path | None, typer.Option(help="Write the result lines here.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Replay a conformance trace through the block cache, and write what it did request by request.

    Example: kvproxy simulate trace.jsonl --out result.jsonl
    """
    import json

    from commands.output import print_facts, print_json
    from kvproxy.errors import NotFound
    from kvproxy.simulate.replay import replay

    if not trace.is_file():
        raise NotFound(f"no trace {trace}")
    lines = list(replay(trace))
    if out is not None:
        out.write_text("".join(f"{line}\n" for line in lines))
    end = json.loads(lines[-1])
    end["hit_rate"] = end["hits"] / end["queries"] if end["queries"] else 0.0
    if as_json:
        print_json(end)
    else:
        print_facts(end.items())
