"""kvproxy explain: would this prompt hit, and if not, why."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kvproxy.commands.client import ProxyClient
from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.commands.output import print_facts, print_json, print_table


def explain(
    prompt: Annotated[str | None, typer.Argument(help="The user's question.", show_default=False)] = None,
    system: Annotated[str | None, typer.Option(help="System prompt before it.", show_default=False)] = None,
    file: Annotated[
        Path | None, typer.Option(help="A chat request as JSON, instead of a prompt.", show_default=False)
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling setting of the request.", show_default=False)
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model; by default the proxy's first.", show_default=False)] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Tell which layer would answer a request, and why not the ones before it. Nothing is computed or stored.

    Example: kvproxy explain "What is a block?"
    """
    client = ProxyClient(url, token)
    body = chat_body(prompt, system, file)
    body.setdefault("model", model or client.get("/v1/models")["data"][0]["id"])
    if temperature is not None:
        body["temperature"] = temperature
    found = client.post("/admin/explain", body)
    if as_json:
        print_json(found)
    else:
        _render(found)


def chat_body(prompt: str | None, system: str | None, file: Path | None) -> dict[str, Any]:
    """The chat request that a command line describes."""
    from kvproxy.errors import InvalidRequest, NotFound

    if (prompt is None) == (file is None):
        raise typer.BadParameter("give a prompt, or --file")
    if file is None:
        messages = [{"role": "system", "content": system}] if system else []
        return {"messages": [*messages, {"role": "user", "content": prompt}]}
    if not file.is_file():
        raise NotFound(f"no file {file}")
    try:
        body = json.loads(file.read_text())
    except ValueError as error:
        raise InvalidRequest(f"{file} is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest(f"{file} must hold one chat request, a JSON object")
    return body


_SENTENCES = {
    "exact": "This request is stored: it would be answered from the response cache, exactly.",
    "semantic": "A stored answer to a similar question would be served.",
    "prefix": "The engine would answer, and reuse a part of the prompt.",
    "none": "Nothing is cached for this request: all of it would be computed.",
}


def _row(near: dict[str, Any]) -> tuple[object, ...]:
    numbers = ("-" if near[name] is None else f"{near[name]:.3f}" for name in ("similarity", "score", "error"))
    return (*numbers, near["verdict"], near["guard"], near["id"][:12], near["prompt"][:70])


def _render(found: dict[str, Any]) -> None:
    typer.echo(_SENTENCES[found["layer"]])
    exact, semantic, prefix = found["exact"], found["semantic"], found["prefix"]
    print_facts(
        [
            ("exact key", f"{found['key'][:16]}  {'stored as ' + exact['id'][:12] if exact['hit'] else 'not stored'}"),
            ("namespace", found["namespace"][:16]),
            *((name, semantic[name]) for name in ("policy", "threshold", "level", "max_error") if semantic.get(name)),
        ]
    )
    if semantic.get("reason"):
        typer.echo(semantic["reason"])
    elif not semantic["neighbours"]:
        typer.echo("neighbours no stored question shares this model, system prompt and these settings")
    if semantic["neighbours"]:
        print_table(
            ("similarity#", "score#", "error#", "verdict", "guard", "id", "prompt"), map(_row, semantic["neighbours"])
        )
    if semantic.get("shadow"):
        typer.echo("shadow     nothing is served for a similar question; what is accepted would have been")
    if prefix is None:
        typer.echo("prefix     kept by the upstream: --kv-events shows it")
    else:
        _render_prefix(prefix)


def _render_prefix(prefix: dict[str, Any]) -> None:
    if prefix["matched_tokens"] is None:
        typer.echo(f"prefix     unknown: {prefix['reason']}")
        return
    typer.echo(
        f"prefix     {prefix['matched_tokens']} of {prefix['prompt_tokens']} tokens,"
        f" blocks {', '.join(map(str, prefix['blocks'])) or 'none'}"
    )
    for name, tokens in prefix["tiers"].items():
        typer.echo(f"  {name:8} {tokens} tokens more")
    if prefix.get("engine"):
        rank = "" if prefix["rank"] is None else f", rank {prefix['rank']}"
        typer.echo(f"engine     {prefix['engine']}{rank}{'' if prefix['complete'] else ' (its mirror is incomplete)'}")
    if prefix.get("reason"):
        typer.echo(f"           {prefix['reason']}")
    divergence = prefix["divergence"]
    if divergence:
        typer.echo(f"diverges   at token {divergence['position']}, after {divergence['context']!r}")
        typer.echo(f"  cached   {divergence['cached']!r}")
        typer.echo(f"  prompt   {divergence['prompt']!r}")
