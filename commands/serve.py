"""kvproxy serve: run the proxy."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvproxy.http.services import Services
    from kvproxy.settings import Settings, UpstreamServer

Flag = typer.Option
_UPSTREAM_SECONDS = 1.0


def serve(
    host: Annotated[str | None, Flag(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, Flag(help="Port to listen on; 0 picks a free one.", show_default="8484")] = None,
    open_: Annotated[
        bool, Flag("--open", help="Serve everybody beyond loopback, without clients and their keys.")
    ] = False,
    model: Annotated[
        str | None,
        Flag(
            help="Model of the embedded engine: demo, a folder, a .gguf file, or a Hugging Face id.", show_default=False
        ),
    ] = None,
    lora: Annotated[
        list[str] | None,
        Flag(help="LoRA adapter as NAME=FOLDER, for requests that give NAME as their model; repeat it for several."),
    ] = None,
    upstream: Annotated[
        list[str] | None,
        Flag(help="Forward to this server, as http://HOST:PORT, instead of a model; repeat it for several."),
    ] = None,
    kv_events: Annotated[
        list[str] | None, Flag(help="Where the upstream publishes KV events; one for each upstream, in their order.")
    ] = None,
    kv_replay: Annotated[
        list[str] | None, Flag(help="Where the upstream answers requests for missed KV events, likewise.")
    ] = None,
    embedder: Annotated[
        str | None, Flag(help="What embeds questions: default, a folder, or a sentence-transformers id.")
    ] = None,
    store: Annotated[
        str | None, Flag(help="File of stored responses, or postgresql://HOST/DATABASE.", show_default=False)
    ] = None,
    data: Annotated[
        Path | None, Flag(help="Data folder: all state, and the file kvproxy.toml with settings.", show_default=False)
    ] = None,
    num_blocks: Annotated[int | None, Flag(help="Number of blocks in the pool.", show_default=False)] = None,
    block_size: Annotated[int | None, Flag(help="Tokens in a block.", show_default="16")] = None,
    kv_memory: Annotated[
        float | None, Flag(help="Memory of the pool: a share of what is free, as 0.9, or bytes.")
    ] = None,
    device: Annotated[
        str | None, Flag(help="Where the model runs: auto, cpu, cuda or cuda:N.", show_default=False)
    ] = None,
    threads: Annotated[int | None, Flag(help="CPU threads that the model uses.", show_default=False)] = None,
    eviction: Annotated[
        str | None, Flag(help="Which cached block goes first: lru, lfu, s3fifo or arc.", show_default="lru")
    ] = None,
    tier_host: Annotated[str | None, Flag(help='Host memory for chunks of the prefix cache, as "4GiB".')] = None,
    tier_disk: Annotated[Path | None, Flag(help="Folder for chunks; a restart finds them again.")] = None,
    tier_disk_size: Annotated[
        str | None, Flag(help='Size limit of that folder, as "20GiB".', show_default=False)
    ] = None,
    tier_redis: Annotated[
        str | None, Flag(help="URL of a Redis or Valkey server for chunks.", show_default=False)
    ] = None,
    chunk_tokens: Annotated[int | None, Flag(help="Tokens in a chunk.", show_default="256")] = None,
    policy: Annotated[
        str | None,
        Flag(help="What decides over similar questions: learned, checked or threshold.", show_default=False),
    ] = None,
    max_entries: Annotated[int | None, Flag(help="Store at most this many responses.", show_default=False)] = None,
    max_bytes: Annotated[
        int | None, Flag(help="Store responses of at most this many bytes in all.", show_default=False)
    ] = None,
    threshold: Annotated[
        float | None, Flag(help="Least cosine similarity of a semantic hit, from 0 to 1.", show_default=False)
    ] = None,
    level: Annotated[
        float | None, Flag(help="Least probability of the verifier, for checked and learned.", show_default=False)
    ] = None,
    max_error: Annotated[
        float | None, Flag(help="Largest share of wrong answers among those served, for the policy learned.")
    ] = None,
    verifier: Annotated[
        str | None, Flag(help="Model that reads both questions: built-in, or a CrossEncoder.", show_default=False)
    ] = None,
    shadow: Annotated[
        bool | None, Flag("--shadow/--no-shadow", help="Count what semantic hits would be, and serve none.")
    ] = None,
    ttl: Annotated[
        float | None, Flag(help="Seconds for which a stored response may be served.", show_default=False)
    ] = None,
    pace: Annotated[
        float | None,
        Flag(
            help="Replay a hit's stream at this many tokens a second; by default as fast as possible.",
            show_default=False,
        ),
    ] = None,
    semantic: Annotated[
        bool | None, Flag("--semantic/--no-semantic", help="Look for similar questions, or for equal requests only.")
    ] = None,
    as_json: Annotated[
        bool, Flag("--json", help="Print where the proxy listens, and what it serves, as one JSON object.")
    ] = False,
) -> None:
    """Run the proxy with the embedded engine, or with --upstream in front of a server that you run.

    Flags go before environment variables, and those before kvproxy.toml; docs/configuration.md lists all settings.

    Example: kvproxy serve --model Qwen/Qwen3-0.6B

    Example: kvproxy serve --upstream http://127.0.0.1:8000 --kv-events tcp://127.0.0.1:5557
    """
    from kvproxy.settings import load_settings

    settings = load_settings(
        host=host,
        port=port,
        model=model,
        upstreams=_servers(upstream or [], kv_events or [], kv_replay or []),
        embedder=embedder,
        store=store,
        data=data,
        engine=_given(
            num_blocks=num_blocks,
            block_size=block_size,
            kv_memory=kv_memory,
            device=device,
            threads=threads,
            policy=eviction,
            lora=_adapters(lora or []) or None,
        ),
        tiers=_given(
            host=tier_host, disk=tier_disk, disk_size=tier_disk_size, redis=tier_redis, chunk_tokens=chunk_tokens
        ),
        access=_given(open=open_ or None),
        cache=_given(
            policy=policy,
            threshold=threshold,
            level=level,
            max_error=max_error,
            verifier=verifier,
            shadow=shadow,
            ttl=ttl,
            pace=pace,
            semantic=semantic,
            max_entries=max_entries,
            max_bytes=max_bytes,
        ),
    )
    # Loads the engine's libraries, so that a wrong setting is told before that.
    from kvproxy.http.server import serve as run

    run(settings, _print_json if as_json else _banner)


def _servers(urls: list[str], events: list[str], replays: list[str]) -> list[dict[str, str]] | None:
    """The upstreams that flags name."""
    for flag, values in (("--kv-events", events), ("--kv-replay", replays)):
        if values and len(values) != len(urls):
            raise typer.BadParameter(f"{flag} is given {len(values)} times and --upstream {len(urls)}: one for each")
    servers = []
    for index, url in enumerate(urls):
        kv = {"kv_events": events, "kv_replay": replays}
        servers.append({"url": url} | {name: values[index] for name, values in kv.items() if values})
    return servers or None


def _given(**flags: Any) -> dict[str, Any] | None:
    return {name: value for name, value in flags.items() if value is not None} or None


def _adapters(given: list[str]) -> dict[str, Path]:
    """Folders of adapters by name."""
    pairs = [each.partition("=") for each in given]
    if any(not (name and folder) for name, _, folder in pairs):
        raise typer.BadParameter("give an adapter as NAME=FOLDER", param_hint="--lora")
    return {name: Path(folder) for name, _, folder in pairs}


def _print_json(services: "Services", url: str) -> None:
    settings, worker = services.settings, services.built.worker
    ready = {
        "url": url,
        "model": worker.name if worker else None,
        "upstreams": [server.url for server in settings.servers],
        "responses": services.answerer.store.name,
    }
    typer.echo(json.dumps(ready))


def _upstream_lines(settings: "Settings") -> list[str]:
    """The state of each upstream at the start, which the proxy does not wait for."""
    from concurrent.futures import ThreadPoolExecutor

    from kvproxy.checks.servers import Advised, check_upstream
    from kvproxy.errors import KvproxyError

    def line(server: "UpstreamServer") -> str:
        try:
            return check_upstream(server, settings, _UPSTREAM_SECONDS)
        except Advised as advice:
            return str(advice)
        except KvproxyError as error:
            return f"DOWN: {error.message}"

    with ThreadPoolExecutor(len(settings.servers)) as threads:
        return list(threads.map(line, settings.servers))


def _banner(services: "Services", url: str) -> None:
    settings, worker = services.settings, services.built.worker
    if worker is None:
        typer.echo(f"kvproxy in front of {', '.join(server.url for server in settings.servers)}")
        for line in _upstream_lines(settings):
            typer.echo(f"  upstream   {line}")
    elif worker.name == "demo":
        typer.echo(
            "kvproxy with the built-in demo model. It is a demonstration: it knows docs/handbook.md and nothing else."
        )
    else:
        typer.echo(f"kvproxy with {worker.name}")
    typer.echo(f"  listening  {url}/v1")
    typer.echo(f"  responses  {services.answerer.store.name}")
    if worker is not None:
        typer.echo(f"  blocks     {worker.num_blocks} of {worker.block_size} tokens")
        tiers = [f"{tier.name} ({tier.chunks} chunks)" for tier in worker.tier_figures()]
        if tiers:
            typer.echo(f"  tiers      {', '.join(tiers)}, {settings.tiers.chunk_tokens} tokens a chunk")
    model = worker.name if worker else "MODEL"
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "What is a block?"}}]}}'
    typer.echo(f"Try it:\n  curl -i {url}/v1/chat/completions -d '{body}'\n  kvproxy blocks --url {url}")
