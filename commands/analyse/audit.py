"""`kvproxy audit`: does the prefix cache change a response?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from kvproxy.commands.analyse.options import FormatOption, describe_rows
from kvproxy.commands.formatting import percent
from kvproxy.commands.options import ApiKey
from kvproxy.commands.output import Output, print_note, print_text, progress_bar
from kvproxy.commands.tables import print_table
from kvproxy.index.evaluation.confidence_intervals import wilson_interval

if TYPE_CHECKING:
    from kvproxy.analyse.audit import AuditedPair, AuditedResponse
    from kvproxy.apis.json import JsonObject

_LISTED_PAIRS = 20


def audit(
    url: Annotated[str, Argument(help="URL of an OpenAI-compatible engine, or of a proxy.")],
    file: Annotated[Path | None, Option(help="Requests in any format of warm.", show_default="generated")] = None,
    format: FormatOption = None,
    requests: Annotated[int, Option(help="Number of requests.", min=1)] = 100,
    max_tokens: Annotated[int, Option(help="Tokens per response of generated requests.", min=1)] = 64,
    history: Annotated[bool, Option("--history", help="Compare answers after original and changed answers.")] = False,
    flush: Annotated[bool, Option("--flush", help="Empty the prefix cache before each cold request.")] = False,
    concurrency: Annotated[int, Option(help="Maximum requests in flight.", min=1)] = 1,
    model: Annotated[str | None, Option(help="Model of the requests.", show_default="the first listed")] = None,
    api_key: ApiKey = None,
) -> Output:
    """Check that an engine's prefix cache changes no response.

    Each request is sent twice, greedily. A unique cache_salt makes the first response cold; the engine's report of cached
    tokens proves that the second one is warm. Pairs without this proof are not counted.

    With --history, the next turn is sent twice: after the original answer, and after the answer with other white space and
    without its reasoning. A proxy with the rule repair_history returns equal responses.

    The exit code is 0 if the responses of all counted pairs are equal, 1 if a pair differs or no pair counts.

    Example: kvproxy audit http://127.0.0.1:8000 --requests 200
    """
    import asyncio

    from kvproxy.analyse.audit import Auditor, generate_bodies
    from kvproxy.operations.api_paths import credential_headers
    from kvproxy.operations.client import ProxyClient

    headers = credential_headers("chat", api_key)
    model = model or ProxyClient(url).first_model(headers)
    bodies = _read_chats(file, model, format)[:requests] if file else generate_bodies(requests, model, max_tokens)
    with progress_bar("auditing") as progress:
        auditor = Auditor(url, headers, flush=flush, histories=history)
        pairs = asyncio.run(auditor.run(bodies, concurrency, progress))
    proven = [pair for pair in pairs if history or pair.is_reuse_reported]
    different = [pair for pair in proven if pair.first_different_token is not None]
    document, code = _json_document(pairs, proven, different), 1 if different or not proven else 0
    return Output(document, lambda: _print_audit(pairs, proven, different, history=history), code)


def _read_chats(file: Path, model: str, format: str | None) -> "list[JsonObject]":
    from kvproxy.analyse.request_log import read_log
    from kvproxy.commands.files import read_text, shown_name
    from kvproxy.errors import InvalidRequest

    log = read_log(shown_name(file), read_text(file), model, format=format)
    for line in describe_rows(log):
        print_note(line)
    bodies = [request.body for request in log.requests if request.api.name == "chat"]
    if not bodies:
        raise InvalidRequest(f"{file} contains no chat completion")
    return bodies


def _print_audit(
    pairs: "list[AuditedPair]", proven: "list[AuditedPair]", different: "list[AuditedPair]", *, history: bool
) -> None:
    names = ("original", "changed") if history else ("cold", "warm")
    if different:
        print_table(
            {
                "Request#": pair.number,
                "At token#": at,
                names[0].capitalize(): _text_at_difference(pair.cold.tokens, at),
                names[1].capitalize(): _text_at_difference(pair.warm.tokens, at),
            }
            for pair in different[:_LISTED_PAIRS]
            if (at := pair.first_different_token) is not None
        )
    if not proven:
        print_note(
            f"no reuse was proven in {len(pairs)} pairs: the engine must report cached tokens (vLLM:"
            " --enable-prompt-tokens-details), and support cache_salt or --flush"
        )
        return
    low, high = wilson_interval(len(different), len(proven))
    print_text(
        f"{len(different):,} of {len(proven):,} {names[1]} responses differ from the {names[0]} response"
        f" ({percent(len(different) / len(proven))}, between {percent(low)} and {percent(high)})"
    )
    if history:
        shares = (
            _reused_tokens_percent([pair.cold for pair in pairs]),
            _reused_tokens_percent([pair.warm for pair in pairs]),
        )
        print_text(f"{shares[0]} of the prompt tokens reused after original answers, {shares[1]} after changed ones")
    if len(proven) < len(pairs):
        print_text(f"{len(pairs) - len(proven):,} pairs are not counted: the engine did not report cold and warm")


def _reused_tokens_percent(responses: "list[AuditedResponse]") -> str:
    prompt_tokens = sum(response.prompt_tokens or 0 for response in responses)
    return (
        percent(sum(response.cached_tokens or 0 for response in responses) / prompt_tokens) if prompt_tokens else "none"
    )


def _text_at_difference(tokens: tuple[str, ...], position: int) -> str:
    return "".join(tokens[position : position + 5]) or "(ended)"


def _json_document(
    pairs: "list[AuditedPair]", proven: "list[AuditedPair]", different: "list[AuditedPair]"
) -> dict[str, Any]:
    return {
        "pairs": len(pairs),
        "proven": len(proven),
        "flips": len(different),
        "interval": list(wilson_interval(len(different), len(proven))),
        "differ": [
            {
                "request": pair.number,
                "token": pair.first_different_token,
                "cold": list(pair.cold.tokens),
                "warm": list(pair.warm.tokens),
                "cached_tokens": pair.warm.cached_tokens,
            }
            for pair in different
        ],
    }
