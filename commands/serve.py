"""`kvproxy serve`: runs the proxy."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from kvproxy import __version__
from kvproxy.apis.api import ApiName
from kvproxy.commands.options import (
    Data,
    Store,
    TierOptions,
    duration_option,
    load_settings,
    settings_section,
    size_option,
)
from kvproxy.doors import EVICTION
from kvproxy.operations.api_paths import credential_headers
from kvproxy.units import plural

if TYPE_CHECKING:
    from kvproxy.http.services import Services
    from kvproxy.installation.checks.servers import UpstreamCheck
    from kvproxy.settings import Settings, UpstreamServer

_ANTHROPIC = "https://api.anthropic.com"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    num_blocks: Annotated[int | None, Option(help="Number of blocks in the pool.")] = None
    block_size: Annotated[int | None, Option(help="Tokens per block.", show_default="16")] = None
    kv_memory: Annotated[str | None, Option(help="Pool memory: share of the free memory (0.9), or size (2GiB).")] = None
    device: Annotated[str | None, Option(help="Device of the model: auto, cpu, cuda or cuda:N.")] = None
    threads: Annotated[int | None, Option(help="CPU threads of the model.")] = None
    eviction_policy: Annotated[
        str | None,
        Option(
            help=f"Evict by {', '.join(EVICTION.built_in)}, or a plugin's policy.",
            show_default="lru",
            autocompletion=EVICTION.names,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class CacheOptions:
    policy: Annotated[str | None, Option(help="Semantic policy: learned, checked or threshold.")] = None
    max_entries: Annotated[int | None, Option(help="Maximum number of stored responses.")] = None
    max_bytes: Annotated[int | None, size_option(help="Maximum size of stored responses, such as 2GiB.")] = None
    min_similarity: Annotated[float | None, Option(help="Minimum cosine similarity of a semantic hit.")] = None
    min_probability: Annotated[float | None, Option(help="Minimum verifier probability of checked and learned.")] = None
    max_error: Annotated[float | None, Option(help="Maximum share of wrong semantic hits under learned.")] = None
    verifier: Annotated[str | None, Option(help="Verifier: built-in, or a CrossEncoder.")] = None
    shadow: Annotated[bool | None, Option("--shadow/--no-shadow", help="Count semantic hits, but serve none.")] = None
    ttl: Annotated[float | None, duration_option(help="Time until a stored response expires, such as 7d.")] = None
    semantic: Annotated[bool | None, Option("--semantic/--no-semantic", help="Answer similar questions, too.")] = None


def serve(
    *,
    host: Annotated[str | None, Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, Option(help="Port to listen on; 0 selects a free port.", show_default="8484")] = None,
    open_: Annotated[bool, Option("--open", help="Accept all clients beyond loopback without API keys.")] = False,
    model: Annotated[str | None, Option(help="Embedded model: demo, folder, .gguf file, or Hugging Face id.")] = None,
    lora: Annotated[list[str] | None, Option(help="LoRA adapter as NAME=FOLDER for model NAME; repeatable.")] = None,
    upstream: Annotated[list[str] | None, Option(help="Forward to http://HOST:PORT; repeat for several.")] = None,
    demo: Annotated[
        bool, Option("--demo", help="Forward to a small demonstration model, without torch; it calls required tools.")
    ] = False,
    kv_events: Annotated[list[str] | None, Option(help="KV event address of each --upstream, in order.")] = None,
    kv_replay: Annotated[list[str] | None, Option(help="KV event replay address of each --upstream.")] = None,
    embedder: Annotated[
        str | None, Option(help="Embedder: default, multilingual, a folder, or a sentence-transformers id.")
    ] = None,
    store: Store = None,
    data: Data = None,
    engine: EngineOptions,
    tiers: TierOptions,
    chunk_tokens: Annotated[int | None, Option(help="Tokens per chunk of a tier.", show_default="256")] = None,
    cache: CacheOptions,
    log_level: Annotated[
        str | None, Option(help="Least severe messages of the log: debug, info, warning or error.", show_default="info")
    ] = None,
    log_format: Annotated[str | None, Option(help="Format of the log: text or json.", show_default="text")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the URL and the models as one JSON line.")] = False,
) -> None:
    """Run the proxy with a model, or in front of upstreams.

    Flags override environment variables, and those override kvproxy.toml. docs/configuration.md lists all settings.

    Example: kvproxy serve --upstream http://127.0.0.1:8000 --kv-events tcp://127.0.0.1:5557

    Example: kvproxy serve --model Qwen/Qwen3-0.6B

    Example: kvproxy serve --demo
    """

    embedded = settings_section(**asdict(engine), lora=_parse_adapters(lora or []) or None)
    if upstream and (model is not None or embedded is not None):
        flag = "model" if model is not None else min(embedded or {})
        raise typer.BadParameter(
            f"--upstream replaces the embedded engine: leave out --{flag.replace('_', '-')}, or leave out --upstream"
        )
    flags = {*(embedded or {}), *(["model"] if model else []), *(["upstream"] if upstream else [])}
    if demo and flags:
        named = ", ".join(f"--{flag.replace('_', '-')}" for flag in sorted(flags))
        raise typer.BadParameter(f"--demo has a model of its own: leave out {named}")
    load = partial(
        load_settings,
        host=host,
        port=port,
        model=model,
        embedder=embedder,
        store=store,
        data=data,
        engine=embedded,
        tiers=tiers.settings(chunk_tokens=chunk_tokens),
        access=settings_section(open=open_ or None),
        log=settings_section(level=log_level, format=log_format),
    )
    if demo:
        _serve_demo(load, cache, data, as_json=as_json)
        return
    servers = _upstream_settings(upstream or [], kv_events or [], kv_replay or [])
    # The flag replaces the settings of the file.
    _run(
        load(upstreams=servers, upstream="" if servers else None, cache=settings_section(**asdict(cache))),
        as_json=as_json,
    )


def _run(settings: "Settings", *, as_json: bool, demo: bool = False, problem: str | None = None) -> None:
    # Importing the server is slow, so errors in the settings are reported first.
    from kvproxy.http.serve import serve as run

    banner = partial(_print_banner, demo=demo, problem=problem)
    run(settings, _print_json if as_json or settings.log.format == "json" else banner)


def _demo_folder(data: Path | None) -> Path | None:
    """Return a folder of its own, unless the user names one: no other proxy counts the responses of the demonstration."""
    from kvproxy.installation.data_folder import demo_folder
    from kvproxy.operations.client import names_folder

    if data is not None or names_folder(settings := load_settings()):
        return data
    return demo_folder(settings.data)


def _serve_demo(load: "Callable[..., Settings]", cache: CacheOptions, data: Path | None, *, as_json: bool) -> None:
    from kvproxy.demo import DEMO
    from kvproxy.demo.upstream import run_demo_upstream
    from kvproxy.settings.models import OTHER_MODELS

    options = asdict(cache)
    problem = _missing_weights() if options["semantic"] is None else None
    if problem is not None:
        options["semantic"] = False
    with run_demo_upstream() as url:
        # The name keeps stored responses, although the port changes.
        settings = load(
            # Other names would have the list prices of those models.
            upstreams=[{"url": url, "kind": "demo", "models": [DEMO], "aliases": {OTHER_MODELS: DEMO}}],
            upstream="",
            routing={"name": "demo"},
            data=_demo_folder(data),
            cache=settings_section(**options),
        )
        _run(settings, as_json=as_json, demo=True, problem=problem)


def _missing_weights() -> str | None:
    """Return why the default embedder has no weights; None if it has them."""
    from kvproxy.index.errors import EmbedderError
    from kvproxy.index.models.minilm.weights import packaged_model

    try:
        packaged_model()
    except EmbedderError as error:
        return str(error)
    return None


def _upstream_settings(urls: list[str], events: list[str], replays: list[str]) -> list[dict[str, str]] | None:
    servers = [{"url": url} for url in urls]
    for name, values in (("kv_events", events), ("kv_replay", replays)):
        if values and len(values) != len(urls):
            flag = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"give {flag} once per --upstream: {len(urls)} times instead of {len(values)}")
        for server, value in zip(servers, values, strict=False):
            server[name] = value
    return servers or None


def _parse_adapters(folders: list[str]) -> dict[str, Path]:
    pairs = [adapter.partition("=") for adapter in folders]
    if any(not (name and folder) for name, _, folder in pairs):
        raise typer.BadParameter("use NAME=FOLDER", param_hint="--lora")
    return {name: Path(folder) for name, _, folder in pairs}


def _print_json(services: "Services", url: str) -> None:
    settings, worker = services.settings, services.built.worker
    ready = {
        "url": url,
        "model": worker.name if worker else None,
        "upstreams": [server.url for server in settings.servers],
        "responses": services.cache.store.name,
    }
    typer.echo(json.dumps(ready))


def _check_upstreams(settings: "Settings") -> "list[UpstreamCheck | str]":
    from concurrent.futures import ThreadPoolExecutor

    from kvproxy.errors import KvproxyError
    from kvproxy.installation.checks.servers import check_upstream

    def check(server: "UpstreamServer") -> "UpstreamCheck | str":
        try:
            return check_upstream(server, settings)
        except KvproxyError as error:
            return f"DOWN: {error.message}"

    with ThreadPoolExecutor(len(settings.servers)) as threads:
        return list(threads.map(check, settings.servers))


def _print_banner(services: "Services", url: str, *, demo: bool = False, problem: str | None = None) -> None:
    settings, worker = services.settings, services.built.worker
    lines: list[tuple[str, object]] = []
    if demo:
        typer.echo(f"kvproxy {__version__} with the demonstration model, which only answers questions about kvproxy")
        if not settings.cache.semantic:
            lines.append(("similar", f"off: only equal requests have hits{f'; {problem}' if problem else ''}"))
        models, needs_key = ["demo"], services.clients.requires_key
    elif worker is None:
        typer.echo(f"kvproxy {__version__} in front of {', '.join(server.url for server in settings.servers)}")
        checks = _check_upstreams(settings)
        lines += [("upstream", check) for check in checks]
        up = [check for check in checks if not isinstance(check, str)]
        models = [name for check in up for name in check.models]
        needs_key = services.clients.requires_key or any(check.requires_key for check in up)
    else:
        purpose = ", which only answers questions about kvproxy" if worker.name == "demo" else ""
        typer.echo(f"kvproxy {__version__} with the model {worker.name}{purpose}")
        models, needs_key = [worker.name], services.clients.requires_key
    lines += [("API", f"{url}/v1"), ("dashboard", f"{url}/ui"), ("responses", services.cache.store.name)]
    if worker is not None:
        lines.append(("blocks", f"{worker.num_blocks:,} of {worker.block_size} tokens"))
        tiers = [f"{tier.name} ({plural(tier.chunks, 'chunk')})" for tier in worker.tier_stats()]
        if tiers:
            lines.append(("tiers", f"{', '.join(tiers)}, {settings.tiers.chunk_tokens} tokens per chunk"))
    for name, value in lines:
        typer.echo(f"  {name:<9}  {value}")
    typer.echo("Try it twice: the second response comes from the cache.")
    typer.echo(f"  {_example_request(url, next(iter(models), None), settings.servers, needs_key)}")


def _example_request(url: str, model: str | None, servers: "Sequence[UpstreamServer]", needs_key: bool) -> str:
    body: dict[str, object] = {"model": model or "MODEL", "messages": [{"role": "user", "content": "What is a block?"}]}
    # A paid API requires a key, also if it cannot be reached now.
    paid = [server for server in servers if server.url.startswith("https:")]
    needs_key = needs_key or any(not server.has_key for server in paid)
    api: ApiName = "chat"
    path = "/v1/chat/completions"
    if paid and all(server.url.startswith(_ANTHROPIC) for server in servers):
        api, path, body = "messages", "/v1/messages", {"max_tokens": 100, **body}
    given = credential_headers(api, "$KEY" if needs_key else None)
    headers = "".join(f' -H "{name}: {value}"' for name, value in given.items())
    return f"curl -i {url}{path}{headers} -d {shlex.quote(json.dumps(body))}"
