from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from kvproxy.commands.output import print_note
from kvproxy.units import plural

if TYPE_CHECKING:
    from kvproxy.offline.request_log import RequestLog

Log = Annotated[
    Path, Argument(help="JSON lines, OpenAI batch file, access log, one prompt per line, or transcripts; - is stdin.")
]
Tokenizer = Annotated[str | None, Option(help="Folder or Hugging Face id of the tokenizer.", show_default="demo")]
BlockSize = Annotated[int, Option(help="Tokens per block of the engine's prefix cache.", min=1)]
LogModel = Annotated[str, Option("--model", help="Model of requests without a model.")]


def print_reading_notes(log: "RequestLog", tokenizer: str | None) -> None:
    for error in log.errors[:5]:
        print_note(f"line {error.line}: {error.message}")
    if log.plain_lines:
        first = ", ".join(map(str, log.plain_lines[:5])) + (", ..." if len(log.plain_lines) > 5 else "")
        print_note(f"skipped {plural(len(log.plain_lines), 'line')} without a JSON object: {first}")
    if skipped := log.skipped - len(log.plain_lines):
        print_note(f"skipped {plural(skipped, 'line')} without a successful request to a cached API")
    if tokenizer is None:
        print_note("tokens are counted with the demo model's tokenizer: give --tokenizer for your model")


def format_pool_size(blocks: int, block_size: int) -> str:
    return f"{blocks * block_size:,} tokens ({blocks:,} blocks)"


def parse_sizes(blocks: str | None, minimum: int) -> list[int] | None:
    """Parse pool sizes in blocks, such as `1000,5000`. Raises BadParameter for a size below `minimum`."""
    if blocks is None:
        return None
    try:
        sizes = [int(size) for size in blocks.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < minimum:
        raise typer.BadParameter(f"--blocks takes integers of at least {minimum}, such as 1000,5000, not {blocks!r}")
    return sizes
