"""kvproxy serve: run the proxy."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvproxy.http.services import Services

Flag = typer.Option


def serve(
    host: Annotated[str | None, Flag(help="Address to listen on.  [default: 127.0.0.1]", show_default=False)] = None,
    port: Annotated[int | None, Flag(help="Port; 0 picks a free one.  [default: 8484]", show_default=False)] = None,
    model: Annotated[str | None, Flag(help="demo, a folder, or a Hugging Face id.", show_default=False)] = None,
    upstream: Annotated[
        list[str] | None, Flag(help="Forward to this server instead of a model; repeat for several.")
    ] = None,
    kv_events: Annotated[
        list[str] | None, Flag(help="Where the upstream publishes KV events; one for each, in their order.")
    ] = None,
    kv_replay: Annotated[list[str] | None, Flag(help="Where it answers requests for missed events, likewise.")] = None,
    embedder: Annotated[str | None, Flag(help="default, a folder, or a sentence-transformers id.")] = None,
    store: Annotated[str | None, Flag(help="File of stored responses, or postgresql://...", show_default=False)] = None,
    data: Annotated[Path | None, Flag(help="Folder of all state.", show_default=False)] = None,
    num_blocks: Annotated[int | None, Flag(help="Blocks in the pool.", show_default=False)] = None,
    block_size: Annotated[int | None, Flag(help="Tokens in a block.  [default: 16]", show_default=False)] = None,
    kv_memory: Annotated[float | None, Flag(help="Share of free memory for the pool, or bytes.")] = None,
    device: Annotated[str | None, Flag(help="auto, cpu, cuda or cuda:N.", show_default=False)] = None,
    threads: Annotated[int | None, Flag(help="CPU threads of a forward pass.", show_default=False)] = None,
    eviction: Annotated[str | None, Flag(help="Order of eviction: lru, lfu, s3fifo or arc.  [default: lru]")] = None,
    tier_host: Annotated[str | None, Flag(help='Host memory for chunks of the prefix cache, as in "4GiB".')] = None,
    tier_disk: Annotated[Path | None, Flag(help="Folder for chunks, found again by a restart.")] = None,
    tier_disk_size: Annotated[str | None, Flag(help='Most bytes in it, as in "20GiB".', show_default=False)] = None,
    tier_redis: Annotated[str | None, Flag(help="URL of a Redis or Valkey for chunks.", show_default=False)] = None,
    chunk_tokens: Annotated[int | None, Flag(help="Tokens in a chunk.  [default: 256]", show_default=False)] = None,
    policy: Annotated[str | None, Flag(help="threshold, checked or verified.", show_default=False)] = None,
    max_entries: Annotated[int | None, Flag(help="Most stored responses.", show_default=False)] = None,
    max_bytes: Annotated[int | None, Flag(help="Most bytes of stored responses.", show_default=False)] = None,
    threshold: Annotated[float | None, Flag(help="Least similarity of a semantic hit.", show_default=False)] = None,
    level: Annotated[float | None, Flag(help="Least probability of the verifier.", show_default=False)] = None,
    max_error: Annotated[float | None, Flag(help="Largest wrong share, for the policy verified.")] = None,
    verifier: Annotated[str | None, Flag(help="built-in, or a CrossEncoder.", show_default=False)] = None,
    shadow: Annotated[bool | None, Flag("--shadow/--no-shadow", help="Count semantic hits, serve none.")] = None,
    ttl: Annotated[float | None, Flag(help="Seconds that a response may be served.", show_default=False)] = None,
    semantic: Annotated[bool | None, Flag("--semantic/--no-semantic", help="Match similar questions.")] = None,
) -> None:
    """Run the proxy: the embedded engine, or --upstream URL behind both caches.

    Example: kvproxy serve --upstream http://127.0.0.1:8000 --kv-events tcp://127.0.0.1:5557
    """
    from kvproxy.http.server import serve as run
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
        ),
        tiers=_given(
            host=tier_host, disk=tier_disk, disk_size=tier_disk_size, redis=tier_redis, chunk_tokens=chunk_tokens
        ),
        cache=_given(
            policy=policy,
            threshold=threshold,
            level=level,
            max_error=max_error,
            verifier=verifier,
            shadow=shadow,
            ttl=ttl,
            semantic=semantic,
            max_entries=max_entries,
            max_bytes=max_bytes,
        ),
    )
    run(settings, _banner)


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


def _banner(services: "Services", url: str) -> None:
    settings, worker = services.settings, services.built.worker
    if worker is None:
        typer.echo(f"kvproxy in front of {', '.join(server.url for server in settings.servers)}")
    elif worker.name == "demo":
        typer.echo(
            "kvproxy with the built-in demo model. It is a demonstration: it knows docs/handbook.md, nothing else."
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
