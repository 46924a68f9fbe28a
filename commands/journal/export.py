"""The command `log export`."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from kvproxy.commands.files import write_chunks
from kvproxy.commands.options import WRITES, JournalOptions, since_option, time_option
from kvproxy.commands.output import Output, print_note, text_output
from kvproxy.errors import InvalidRequest, NotFound
from kvproxy.operations.record_query import RecordQuery
from kvproxy.units import plural

if TYPE_CHECKING:
    from kvproxy.operations.journal import DirectJournal

Format = Literal["mooncake", "weka", "requests"]
# Tokens in a block of the published traces.
_BLOCK_SIZES = {"mooncake": 512, "weka": 64}


def export(
    *,
    file: Annotated[Path, Argument(help="File to write, by default stdout.", show_default=False), WRITES] = Path("-"),
    format: Annotated[Format, Option(help="Trace of Mooncake or WEKA, or requests as OpenAI JSON lines.")] = "mooncake",
    block_size: Annotated[
        int | None, Option(help="Tokens per block of a trace.", min=1, show_default="512 mooncake, 64 weka")
    ] = None,
    since: Annotated[Any, since_option(help="With requests: only since this duration or time.")] = None,
    until: Annotated[float | None, time_option(help="With requests: only before this time.")] = None,
    source: JournalOptions,
) -> Output | None:
    """Export the journal as a trace, or as requests.

    A trace has the prompts that reached the backend, by block hashes; times count from the first prompt, and texts, models,
    tenants, and dates are left out. Requests have whole texts: the setting journal.text must be all, or the responses
    still be stored.

    Example: kvproxy log export trace.jsonl --format mooncake

    Example: kvproxy log export requests.jsonl --format requests --since 7d
    """
    journal = source.open_direct("log export")
    if format == "requests":
        return _export_requests(journal, file, RecordQuery(since=since, until=until))
    if since is not None or until is not None:
        raise InvalidRequest("--since and --until are for --format requests: a trace has the whole journal")
    from kvproxy.analyse.trace_writer import mooncake_lines, weka_trace
    from kvproxy.analyse.workload_reader import journal_workload

    workload = journal_workload(journal.reader, block_size or _BLOCK_SIZES[format])
    if not workload.arrivals:
        raise NotFound("the journal has no prompt that reached a backend, and whose tokens are known")
    write_chunks(file, mooncake_lines(workload) if format == "mooncake" else [weka_trace(workload)])
    count, tokens = len(workload.arrivals), sum(arrival.tokens for arrival in workload.arrivals)
    document = {"format": format, "requests": count, "tokens": tokens, "block_size": workload.block_tokens}
    prompts = f"{plural(count, 'prompt')} with {tokens:,} tokens in blocks of {workload.block_tokens} tokens"
    return _written_output(file, document, prompts)


def _export_requests(journal: "DirectJournal", file: Path, query: RecordQuery) -> Output | None:
    from kvproxy.operations.journal_export import request_lines

    count, without_text = 0, Counter[str]()

    def chunks() -> Iterator[bytes]:
        nonlocal count
        for line in request_lines(journal, query):
            if isinstance(line, bytes):
                count += 1
                yield line
            else:
                without_text[line] += 1

    write_chunks(file, chunks())
    if without_text:
        print_note(_without_text_note(without_text))
    document = {"format": "requests", "requests": count, "without_text": without_text.total()}
    return _written_output(file, document | {"without_text_by_layer": dict(without_text)}, plural(count, "request"))


def _without_text_note(without_text: Counter[str]) -> str:
    """Return how many requests of each layer are missing. Semantic hits have whole texts only with `journal.text = "all"`."""
    layers = ", ".join(f"{number:,} {layer}" for layer, number in without_text.most_common())
    note = (
        f"{plural(without_text.total(), 'request')} without a stored text left out ({layers}): set journal.text to all"
    )
    return f"{note}; without the semantic hits, estimate counts too few hits" if without_text["semantic"] else note


def _written_output(file: Path, document: Any, content: str) -> Output | None:
    if str(file) == "-":
        print_note(f"{content} on stdout")
        return None
    return text_output(document, f"{content} in {file}")
