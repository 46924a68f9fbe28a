"""kvproxy estimate"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvproxy.commands.analyse.options import (
    DEMO_TOKENIZER_NOTE,
    BlockSize,
    Log,
    LogModel,
    Tokenizer,
    load_tokenizer,
    parse_sizes,
)
from kvproxy.commands.command import command
from kvproxy.commands.formatting import percent
from kvproxy.commands.options import Data
from kvproxy.commands.output import Output, print_charts, print_note, progress_bar
from kvproxy.commands.tables import print_table

if TYPE_CHECKING:
    from kvproxy.offline.estimate import Estimate
    from kvproxy.offline.prefix_reuse import PrefixEstimate


@command
def estimate(
    log: Log,
    tokenizer: Tokenizer = None,
    block_size: BlockSize = 16,
    blocks: Annotated[str | None, typer.Option(help="Pool sizes in blocks, such as 1000,5000.")] = None,
    model: LogModel = "model",
    plot: Annotated[Path | None, typer.Option(help="Plot the result into this .png or .svg file.")] = None,
    draws: Annotated[int, typer.Option(help="Replays of a log with responses; exploration varies.", min=1)] = 3,
    data: Data = None,
) -> Output:
    """Estimate from a log what caching would save.

    The log is replayed through the proxy with an empty cache and the settings of the data folder. If the log has responses,
    semantic hits are compared with them.

    Example: kvproxy estimate requests.jsonl --tokenizer ./model --plot estimate.svg
    """
    import asyncio

    from kvproxy.commands.files import PLOT_SUFFIXES, check_writable, read_text, save_charts
    from kvproxy.offline.estimate import estimate as run
    from kvproxy.offline.estimate import estimate_charts
    from kvproxy.offline.request_log import read_log
    from kvproxy.settings import load_settings

    check_writable(plot, PLOT_SUFFIXES)
    settings, loaded, sizes = load_settings(data=data), load_tokenizer(tokenizer), parse_sizes(blocks, 2)
    content = read_log(log, read_text(log), model)
    with progress_bar("estimating") as progress:
        found = asyncio.run(
            run(content.requests, settings, loaded, block_size, sizes, lambda step, share: progress(share), draws)
        )
    charts = estimate_charts(found)
    save_charts(charts, plot)

    def show() -> None:
        _print(found)
        print_charts(charts)
        for error in content.errors[:5]:
            print_note(f"line {error.line}: {error.message}")
        if tokenizer is None:
            print_note(DEMO_TOKENIZER_NOTE)

    return Output(_document(found) | {"passed_over": content.skipped, "failures": len(content.errors)}, show)


def _print(found: "Estimate") -> None:
    total = found.requests
    layers = (("Exact hits", found.exact), ("Semantic hits", found.similar), ("Engine", found.forwarded))
    rows = [(name, count, percent(count / total)) for name, count in layers]
    print_table(["Answered by", "Requests#", "Share#"], rows, title=f"{total:,} requests")
    fewest, most = found.similar_range
    if fewest < most:
        typer.echo(f"semantic hits: {percent(fewest / total)} to {percent(most / total)}, depending on exploration")
    typer.echo(_error_sentence(found))
    prefix, alone = found.prefix, found.prefix_alone
    print_table(
        ["Pool, blocks#", "Reused#", "Reused without cached responses#"],
        [
            (f"{point.blocks:,}", _share(prefix, point.reused), _share(alone, other.reused))
            for point, other in zip(prefix.points, alone.points, strict=True)
        ]
        + [("unlimited", _share(prefix, prefix.endless), _share(alone, alone.endless))],
        title=f"{prefix.prompt_tokens:,} prompt tokens reach the engine, in blocks of {prefix.block_size}",
    )
    if found.unread:
        typer.echo(f"{found.unread:,} prompts contain more than text and are not counted")


def _share(prefix: "PrefixEstimate", reused: int) -> str:
    return percent(prefix.share(reused))


def _error_sentence(found: "Estimate") -> str:
    wrong, interval = found.wrong, found.wrong.interval
    if not found.similar:
        return "no semantic hits"
    if interval is not None:
        return (
            f"{wrong.wrong:,} of {wrong.compared:,} semantic hits differ from the logged response"
            f" ({percent(wrong.wrong / wrong.compared)}, between {percent(interval[0])} and {percent(interval[1])})"
        )
    guess = "" if wrong.expected is None else f"; the verifier expects {percent(wrong.expected)} wrong hits"
    return f"the log has no responses to compare with semantic hits{guess}"


def _document(found: "Estimate") -> dict[str, Any]:
    from dataclasses import asdict

    interval = found.wrong.interval
    document = asdict(found)
    document["wrong"]["interval"] = None if interval is None else list(interval)
    for name, prefix in (("prefix", found.prefix), ("prefix_alone", found.prefix_alone)):
        document[name]["endless_share"] = prefix.share(prefix.endless)
        for point in document[name]["points"]:
            point["share"] = prefix.share(point["reused"])
    return document
