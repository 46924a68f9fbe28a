"""kvproxy estimate: what both caches would have made of a log."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvproxy.commands.options import Data, Json
from kvproxy.commands.output import percent, print_json, print_table, shown_progress

if TYPE_CHECKING:
    from kvproxy.offline.estimate import Estimate
    from kvproxy.offline.prefix_reuse import PrefixEstimate

Log = Annotated[
    Path,
    typer.Argument(
        help="Requests as JSON lines, an OpenAI batch file, an access log with bodies, or one prompt a line; - is stdin."
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(help="The served model's folder or Hugging Face id, which has its tokenizer.", show_default="demo"),
]
BlockSize = Annotated[int, typer.Option(help="Tokens in a block of the engine's prefix cache.", min=1)]
Blocks = Annotated[str | None, typer.Option(help="Pool sizes in blocks, as 1000,5000.", show_default=False)]


def estimate(
    log: Log,
    tokenizer: Tokenizer = None,
    block_size: BlockSize = 16,
    blocks: Blocks = None,
    model: Annotated[str, typer.Option(help="Model of requests that name none.")] = "model",
    plot: Annotated[
        Path | None, typer.Option(help="Draw the result into this .png or .svg file.", show_default=False)
    ] = None,
    draws: Annotated[
        int,
        typer.Option(help="Replays of a log with answers: the policy learned explores others each time.", min=1),
    ] = 3,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Tell from a log what caching would save, before anything is installed in front of a server.

    The log is replayed through the proxy's own flow, with an empty cache and the settings of the data folder. Where its
    lines hold the answers too, what is served for similar questions is compared with them.

    Example: kvproxy estimate requests.jsonl --tokenizer ./model --plot estimate.svg
    """
    import asyncio

    from kvproxy.commands.files import PICTURES, check_place, read_text, writing
    from kvproxy.offline.estimate import estimate as run
    from kvproxy.offline.request_log import read_log

    check_place(plot, PICTURES)
    settings, spelling = prepared(data, tokenizer)
    sizes = pool_sizes(blocks)
    reading = read_log(log, read_text(log), model)
    with shown_progress("estimating") as progress:
        found = asyncio.run(
            run(reading.requests, settings, spelling, block_size, sizes, lambda what, share: progress(share), draws)
        )
    if plot is not None:
        from kvproxy.offline.picture import draw

        with writing(plot):
            draw(found, plot)
    if as_json:
        print_json(_document(found) | {"passed_over": reading.passed_over, "failures": len(reading.failures)})
        return
    _render(found)
    for failure in reading.failures[:5]:
        typer.echo(f"line {failure.line}: {failure.message}", err=True)
    if tokenizer is None:
        typer.echo("tokens are counted with the demo model's tokenizer: give --tokenizer for your own model", err=True)


def prepared(data: Path | None, tokenizer: str | None) -> tuple[Any, Any]:
    """Settings, and the tokenizer that a command line names.

    Raises:
        SettingsError: one of them cannot be used.
    """
    from kvproxy.settings import load_settings
    from kvproxy.upstreams.prompt_tokenizer import LocalTokenizer

    settings = load_settings(**({} if data is None else {"data": data}))
    return settings, LocalTokenizer(tokenizer or "demo")


def pool_sizes(blocks: str | None) -> list[int] | None:
    """Pool sizes of a command line; raises BadParameter where they are none."""
    if blocks is None:
        return None
    try:
        sizes = [int(size) for size in blocks.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 2:
        raise typer.BadParameter(f"--blocks takes whole numbers of at least 2, as in 1000,5000, not {blocks!r}")
    return sizes


def _render(found: "Estimate") -> None:
    total = found.requests
    rows = [
        ("equal requests", found.exact, percent(found.exact / total)),
        ("similar questions", found.similar, percent(found.similar / total)),
        ("the engine", found.forwarded, percent(found.forwarded / total)),
    ]
    print_table(["answered by", "requests#", "share#"], rows, title=f"{total:,} requests")
    fewest, most = found.similar_range
    if fewest < most:
        typer.echo(
            f"similar questions: {percent(fewest / total)} to {percent(most / total)} by what"
            " the policy explores, which is left to chance"
        )
    typer.echo(_told(found))
    prefix, alone = found.prefix, found.prefix_alone
    print_table(
        ["pool, blocks#", "reused#", "reused without cached responses#"],
        [
            (f"{point.blocks:,}", _share(prefix, point.reused), _share(alone, other.reused))
            for point, other in zip(prefix.points, alone.points, strict=True)
        ]
        + [("endless", _share(prefix, prefix.endless), _share(alone, alone.endless))],
        title=f"{prefix.prompt_tokens:,} prompt tokens reach the engine, in blocks of {prefix.block_size}",
    )
    if found.unread:
        typer.echo(f"{found.unread:,} prompts hold more than text and are not counted there")


def _share(prefix: "PrefixEstimate", reused: int) -> str:
    return percent(prefix.share(reused))


def _told(found: "Estimate") -> str:
    """What is known of the errors among similar questions."""
    wrong, interval = found.wrong, found.wrong.interval
    if not found.similar:
        return "no similar question would have been answered"
    if interval is not None:
        return (
            f"of {wrong.compared:,} answers to similar questions {wrong.wrong:,} differ from the log's own"
            f" ({percent(wrong.wrong / wrong.compared)}, between {percent(interval[0])} and {percent(interval[1])})"
        )
    guess = "" if wrong.expected is None else f"; the verifier expects {percent(wrong.expected)} of them to be wrong"
    return f"the log holds no answers to compare those to similar questions with{guess}"


def _document(found: "Estimate") -> dict[str, Any]:
    from dataclasses import asdict

    interval = found.wrong.interval
    told = asdict(found)
    told["wrong"]["interval"] = None if interval is None else list(interval)
    for name, prefix in (("prefix", found.prefix), ("prefix_alone", found.prefix_alone)):
        told[name]["endless_share"] = prefix.share(prefix.endless)
        for point in told[name]["points"]:
            point["share"] = prefix.share(point["reused"])
    return told
