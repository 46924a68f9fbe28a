"""kvproxy explain: which layer would answer a request, and why not the ones before it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from kvproxy.commands.blocks_picture import group_name
from kvproxy.commands.request_body import ApiName, credentials, read_body
from kvproxy.proxy_client.client import ProxyClient
from kvproxy.commands.explain_request import explain_request
from kvproxy.commands.learned import answered
from kvproxy.commands.options import DEFAULT_URL, ApiKey, Data, Json, Token, Url
from kvproxy.commands.output import print_facts, print_json
from kvproxy.commands.tables import digest, print_table, text
from kvproxy.errors import KvproxyError, NotFound


def explain(
    prompt: Annotated[str | None, typer.Argument(help="The user's question.", show_default=False)] = None,
    system: Annotated[str | None, typer.Option(help="System prompt before it.", show_default=False)] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="File with the body of a request, instead of a prompt; - is stdin.", show_default=False),
    ] = None,
    api: Annotated[
        ApiName | None,
        typer.Option(help="API that the body is for.", show_default="what its fields tell"),
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Temperature of the request.", show_default=False)] = None,
    model: Annotated[str | None, typer.Option(help="Model of the request.", show_default="the proxy's first")] = None,
    request: Annotated[
        str | None,
        typer.Option(help="Id of a request that came: why was it not answered from the cache?", show_default=False),
    ] = None,
    api_key: ApiKey = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Tell which layer would answer a request, and why the layers before it would not. Nothing is computed or stored.

    With --request it looks back: why was that request not answered from the cache? Its id is in the answer's header x-request-id.

    Each client sees only the responses that its own key has stored: give the same key here.

    Example: kvproxy explain "What is a block?"

    Example: kvproxy explain --file request.json --api messages --api-key "$KEY"

    Example: kvproxy explain --request 3f2a
    """
    if request is not None:
        explain_request(request, url, token, data, as_json)
        return
    client = ProxyClient(url, token)
    body = read_body(prompt, system, file)
    # What holds only an input is most likely one for Responses; --api tells otherwise.
    from kvproxy.offline.api_detection import api_of

    chosen = api or api_of(body) or ("responses" if "input" in body else "chat")
    headers = credentials(chosen, api_key)
    if model is not None or "model" not in body:
        body["model"] = model or client.first_model(headers)
    if temperature is not None:
        body["temperature"] = temperature
    found = client.post("/admin/explain", body, headers=headers, api=chosen)
    if model is not None and found["layer"] not in ("exact", "semantic"):
        _check_listed(client, model, headers)
    if as_json:
        print_json(found)
    else:
        _render(found)


def _check_listed(client: ProxyClient, model: str, headers: dict[str, str]) -> None:
    """Raise NotFound if the proxy lists models, and not this one. An upstream may have no list."""
    try:
        listed = client.models(headers)
    except KvproxyError:
        return
    if listed and model not in listed:
        names = ", ".join(listed[:5]) + (" and more" if len(listed) > 5 else "")
        raise NotFound(f"{client.url} does not list the model {model!r}: it lists {names}")


_SENTENCES = {
    "exact": "This request is stored: the response cache would answer it.",
    "semantic": "The response cache would answer with the stored answer to a similar question.",
    "prefix": "The engine would answer, and reuse a part of the prompt.",
    "none": "Nothing is cached for this request: the engine would compute all of it.",
}


def _render(found: dict[str, Any]) -> None:
    typer.echo(_SENTENCES[found["layer"]])
    exact, semantic, prefix = found["exact"], found["semantic"], found["prefix"]
    stored = "not stored" if exact["id"] is None else f"stored as {exact['id'][:12]}"
    if exact["id"] is not None and exact["freshness"] != "fresh":
        stored += f", past its time ({exact['freshness']})"
    if found["other_tenants"]:
        stored += ", but another tenant has an equal request stored: give its key with --api-key"
    print_facts(
        [
            ("tenant", found["tenant"]),
            *([("rule", found["rule"])] if found.get("rule") else []),
            ("exact key", f"{found['key'][:16]}, {stored}"),
            ("namespace", found["namespace"][:16]),
            *((name, semantic[name]) for name in ("policy", "threshold", "level", "max_error") if semantic.get(name)),
        ]
    )
    if semantic.get("learned"):
        typer.echo("\n".join(_learned(semantic["learned"])))
    if semantic.get("reason"):
        typer.echo(f"similar    {semantic['reason']}")
    elif not semantic["neighbours"]:
        typer.echo("similar    no stored question has this model, system prompt, tenant and these settings")
    if semantic["neighbours"]:
        print_table(
            ("similarity#", "score#", "error#", "verdict", "guard", digest("id"), text("prompt")),
            map(_row, semantic["neighbours"]),
        )
    if semantic.get("shadow"):
        typer.echo("shadow     an accepted question would be served, but shadow mode serves none")
    if prefix is None:
        typer.echo("prefix     unknown: the upstream keeps its own; serve with --kv-events to see into it")
    else:
        _render_prefix(prefix)


def _learned(status: dict[str, Any]) -> list[str]:
    """A sentence a line."""
    who = "What was learned decides." if status["serves"] else "The policy checked decides until more is known."
    first, *others = answered(status)
    return [f"{'' if place else 'learned':<11}{line}" for place, line in enumerate([first, who, *others])]


def _row(near: dict[str, Any]) -> tuple[object, ...]:
    numbers = ("-" if near[name] is None else f"{near[name]:.3f}" for name in ("similarity", "score", "error"))
    return (*numbers, near["verdict"], near["guard"], near["id"], near["prompt"])


def _render_prefix(prefix: dict[str, Any]) -> None:
    if prefix["matched_tokens"] is None:
        typer.echo(f"prefix     unknown: {prefix['reason']}")
        return
    # A slot of llama.cpp is restored from a file as a whole, so the file's tokens count as cached.
    from_file = prefix["tiers"].get("disk", 0) if prefix["slots"] else 0
    cached = prefix["matched_tokens"] + from_file
    typer.echo(f"prefix     {cached:,} of {prefix['prompt_tokens']:,} tokens are cached{_blocks(prefix['blocks'])}")
    for group in prefix["groups"]:
        typer.echo(f"  {group_name(group)}: {group['tokens']:,} tokens if it were alone")
    for name, tokens in prefix["tiers"].items():
        origin = "of them restored from a file" if prefix["slots"] else "more"
        typer.echo(f"  {name:8} {tokens:,} tokens {origin}")
    if prefix.get("engine"):
        rank = "" if prefix["rank"] is None else f", rank {prefix['rank']}"
        typer.echo(f"engine     {prefix['engine']}{rank}{'' if prefix['complete'] else ' (its mirror is incomplete)'}")
    if prefix.get("reason"):
        typer.echo(f"           {prefix['reason']}")
    divergence = prefix["divergence"]
    if divergence:
        typer.echo(f"diverges   at token {divergence['position']:,}, after {divergence['context']!r}")
        typer.echo(f"  cached   {divergence['cached']!r}")
        typer.echo(f"  prompt   {divergence['prompt']!r}")


def _blocks(blocks: list[int] | list[str]) -> str:
    """Which blocks hold a prompt: runs of ids as `1-28`, of mirrored blocks the first digits of their hashes."""
    if not blocks:
        return ""
    if len(blocks) > 1 and all(isinstance(id, int) for id in blocks):
        ids = [int(id) for id in blocks]
        starts = [index for index, id in enumerate(ids) if index == 0 or id != ids[index - 1] + 1]
        runs = [ids[start:end] for start, end in zip(starts, [*starts[1:], len(ids)], strict=True)]
        names = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    else:
        names = [str(id)[:12] for id in blocks]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f", in blocks {', '.join(names[:_SHOWN])}{more}"


_SHOWN = 12
