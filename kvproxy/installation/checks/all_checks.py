"""The checks of `kvproxy doctor`. A check returns a text for the user, or raises an error that names the fix."""

import sys
from collections.abc import Callable
from functools import partial
from importlib import metadata
from tempfile import TemporaryFile

from kvproxy.clients.client_keys import all_clients, check_budgets, why_closed
from kvproxy.errors import KvproxyError, SettingsError, StoreUnavailable
from kvproxy.index.private_files import can_restrict, is_accessible_to_others
from kvproxy.installation.checks.access import check_access
from kvproxy.installation.checks.configured_store import open_configured_store, store_exists
from kvproxy.installation.checks.model_routes import check_model_routes
from kvproxy.installation.checks.paid_models import check_paid_models
from kvproxy.installation.checks.plugins import check_plugins
from kvproxy.installation.checks.servers import CheckWarning, check_proxy, check_upstream
from kvproxy.installation.hugging_face_hub import prefer_cached_models
from kvproxy.optional_packages import install_command
from kvproxy.privacy.encryption import is_encrypted, load_cipher
from kvproxy.settings import Settings
from kvproxy.settings.tree import unread_settings
from kvproxy.units import plural

Check = Callable[[], object]
_LATER = "the first start downloads the embedder's weights"


def all_checks(settings: Settings, url: str, token: str | None = None) -> list[tuple[str, Check]]:
    engine: list[tuple[str, Check]]
    if settings.servers:
        engine = [("upstream", partial(check_upstream, server, settings)) for server in settings.servers]
        engine.append(("routes", lambda: check_model_routes(settings)))
    else:
        engine = [
            ("torch", lambda: _check_torch(settings)),
            ("model", lambda: _check_model(settings)),
            *_tier_checks(settings),
        ]
    return [
        ("python", lambda: sys.version.split()[0]),
        ("models", lambda: prefer_cached_models(settings)),
        ("plugins", check_plugins),
        ("faiss", _check_faiss),
        ("data", lambda: _check_data_folder(settings)),
        ("store", lambda: _check_store(settings)),
        ("encryption", lambda: check_encryption(settings)),
        ("weights", lambda: check_weights(settings.embedder)),
        ("embedder", lambda: _check_embedder(settings)),
        ("languages", lambda: _check_languages(settings)),
        *engine,
        ("clients", lambda: check_clients(settings)),
        ("access", lambda: check_access(settings)),
        ("prices", lambda: check_paid_models(settings)),
        ("proxy", lambda: check_proxy(url, token, settings.data)),
    ]


def check_files(settings: Settings, *, requires_folder: bool = True) -> None:
    """Check the data folder, the keys of the store and of upstreams, and the clients.

    `serve` creates the folder, so it may be missing without `requires_folder`. Raises a SettingsError with a line for each
    problem.
    """
    folder, problems = settings.data, []
    if not folder.is_dir():
        if requires_folder:
            problems.append(f"there is no data folder {folder}: create it with kvproxy init, or give another --data")
    else:
        try:
            with TemporaryFile(dir=folder) as file:
                file.write(bytes(65_536))
        except OSError as error:
            problems.append(
                f"cannot write to the data folder {folder} ({error.strerror}): free space, or give another --data"
            )
    checks: list[Check] = [lambda: load_cipher(settings.encryption), lambda: check_clients(settings)]
    for check in [*(server.authorization_or_key for server in settings.upstreams), *checks]:
        try:
            check()
        except SettingsError as error:
            problems.append(error.message)
        except (StoreUnavailable, CheckWarning):
            # Not a matter of settings; doctor reports it.
            continue
    if problems:
        raise SettingsError("\n".join(problems))


def check_clients(settings: Settings) -> str:
    """Check that clients can be read, and that models have prices if clients have budgets.

    Raises KvproxyError, and CheckWarning if no client is left.
    """
    clients = all_clients(settings)
    check_budgets(settings, clients)
    if (closed := why_closed(settings)) is not None:
        raise CheckWarning(closed)
    limited = sum(client.has_budget for client in clients)
    return f"{plural(len(clients), 'client')}, {limited} with budgets" if clients else "none: requests need no API key"


def _check_torch(settings: Settings) -> str:
    from kvproxy.demo import DEMO

    try:
        import torch
    except ModuleNotFoundError as error:
        if settings.model != DEMO:
            raise
        raise CheckWarning(f"only the embedded engine needs it: {install_command('engine')}") from error

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    return f"{torch.__version__} on {device}"


def _check_faiss() -> str:
    versions = {}
    for name in ("faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs", "faiss-gpu-cu12"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if len(versions) > 1:
        raise KvproxyError(f"{' and '.join(versions)} overwrite each other: uninstall them, then install one again")
    import faiss

    return f"{', '.join(f'{name} {version}' for name, version in versions.items())}, {faiss.get_num_gpus()} GPUs"


def _check_data_folder(settings: Settings) -> str:
    try:
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        with TemporaryFile(dir=settings.data):
            pass
    except OSError as error:
        raise KvproxyError(f"cannot write to {settings.data} ({error.strerror}): choose another with --data") from None
    if is_accessible_to_others(settings.data):
        exposed = next(filter(is_accessible_to_others, settings.data.glob("*")), None)
        if exposed is not None or not can_restrict(settings.data):
            path = exposed or settings.data
            raise KvproxyError(f"other users can read {path}, which contains prompts: chmod go= {settings.data}")
        raise CheckWarning(f"other users can list {settings.data}: kvproxy serve makes it private, or chmod go= it now")
    if (note := unread_settings(settings.data)) is not None:
        raise CheckWarning(note)
    return f"{settings.data}, private"


def _check_store(settings: Settings) -> str:
    if not store_exists(settings):
        return f"{settings.store_path} (does not exist yet)"
    if is_accessible_to_others(settings.store_path):
        raise KvproxyError(f"other users can read {settings.store_path}: chmod go= {settings.store_path}")
    with open_configured_store(settings, accepts_constant=False) as store:
        return f"{store.name}, {plural(store.database.count_intact_responses(), 'response')}"


def check_encryption(settings: Settings) -> str:
    """Check that the key file is private, and that stored responses and chunks are encrypted. Raises KvproxyError."""
    cipher = load_cipher(settings.encryption)
    if cipher is None:
        return "off: texts are stored unencrypted, in files that only their owner can read"
    file = settings.encryption.key_file
    if file is not None and is_accessible_to_others(file):
        raise KvproxyError(f"other users can read the keys in {file}: chmod 600 {file}")
    folder, chunks = settings.tiers.disk, 0
    for path in folder.glob("*/*.chunk") if folder is not None else ():
        with path.open("rb") as chunk:
            chunks += not is_encrypted(chunk.read(64))
    if chunks:
        raise KvproxyError(f"{chunks:,} chunks in {folder} are unencrypted: kvproxy blocks clear-tier disk")
    by_key: dict[str, int] = {}
    if store_exists(settings):
        with open_configured_store(settings, accepts_constant=False) as store:
            by_key = store.count_by_key_name()
    if by_key.get(""):
        raise KvproxyError(f"{by_key['']:,} responses are stored unencrypted: kvproxy cache encrypt")
    older = sum(count for name, count in by_key.items() if name != cipher.name)
    more = f", {older:,} responses use an older key (kvproxy cache encrypt)" if older else ""
    return f"the key {cipher.name} encrypts texts{more}; vectors and digests are not encrypted"


def check_weights(embedder: str) -> str:
    """Compare the weights of the embedder, verifier, and demo model with the released digests. Raises KvproxyError."""
    from kvproxy.demo import verified_model_path
    from kvproxy.index.errors import EmbedderError
    from kvproxy.index.models.e5 import installed_file
    from kvproxy.index.models.embedder import MULTILINGUAL
    from kvproxy.index.models.minilm.weights import (
        RANGES,
        check_packaged_weights,
        is_downloadable,
        packaged_model,
        weights_file,
    )
    from kvproxy.index.models.verifier.built_in import ADAPTER

    is_later = is_downloadable()
    extra = (installed_file(),) if embedder == MULTILINGUAL else ()
    try:
        for path in (*([] if is_later else [weights_file(packaged_model())]), RANGES, ADAPTER, *extra):
            check_packaged_weights(path)
    except (OSError, ValueError, EmbedderError) as error:
        raise KvproxyError(str(error)) from None
    verified_model_path()
    if is_later:
        return f"verifier and demo model are the released ones (SHA-256); {_LATER}"
    return "embedder, verifier and demo model are the released ones (SHA-256)"


def _check_embedder(settings: Settings) -> str:
    """Embed a text, and compare the embedder with its stored vectors."""
    if not (settings.cache.enabled and settings.cache.semantic):
        return "off: exact hits only"
    from kvproxy.index.doors import EMBEDDERS
    from kvproxy.index.errors import EmbedderError
    from kvproxy.index.models.embedder import DEFAULT, EmbeddingCache, load_embedder
    from kvproxy.index.models.hugging_face_hub import is_cached, is_hub_id
    from kvproxy.index.models.minilm.weights import is_downloadable
    from kvproxy.index.search.open_vector_search import open_vector_search

    name = settings.embedder
    if name == DEFAULT and is_downloadable():
        return f"{name}: {_LATER}"
    if name not in EMBEDDERS.names() and is_hub_id(name) and not is_cached(name):
        return f"{name}: not in the local cache yet"
    try:
        embedder = load_embedder(name, settings.data)
        EmbeddingCache(embedder).check_embedder()
        if store_exists(settings):
            with open_configured_store(settings, accepts_constant=False) as store:
                open_vector_search(store, embedder.name, embedder.dim).close()
    except EmbedderError as error:
        raise KvproxyError(str(error)) from None
    return f"{name}, {embedder.dim} dimensions"


def _check_languages(settings: Settings) -> str:
    from kvproxy.index.models.embedder import DEFAULT, MULTILINGUAL
    from kvproxy.index.models.verifier.multilingual import EMPTY

    chosen, rest = settings.cache.languages_of(settings.embedder), "others: exact hits only"
    if settings.embedder not in (DEFAULT, MULTILINGUAL):
        return f"{', '.join(chosen)}: embedder {settings.embedder}; {rest}"
    ways = {"verifier and guards": ["en"]}
    if settings.embedder == MULTILINGUAL:
        ways["equal words, apart from small ones"] = sorted(EMPTY.keys() - {"en"})
        rest = "others: equal words" if "*" in chosen else rest
    known = [f"{', '.join(codes)}: {way}" for way, codes in ways.items() if {"*", *codes} & {*chosen}]
    return "; ".join([*known, rest])


def _check_model(settings: Settings) -> str:
    from kvproxy.demo import DEMO, verified_model_path

    if settings.model == DEMO:
        weights = verified_model_path() / "model.safetensors"
        return f"demo, {weights.stat().st_size / 2**20:.1f} MiB (a demonstration)"
    from kvproxy.engine.models.loader import load_model

    loaded = load_model(settings.model)
    return f"{settings.model}, up to {loaded.max_model_len} tokens"


def _tier_checks(settings: Settings) -> list[tuple[str, Check]]:
    from kvproxy.tiers import checks

    tiers, engine = settings.tiers, settings.engine
    if not tiers.enabled:
        return []
    host, disk, is_persistent = tiers.host, tiers.disk, tiers.disk is not None or tiers.redis is not None
    sizes = tiers.chunk_tokens, engine.block_size, engine.hash_algorithm
    return [
        ("chunks", partial(checks.check_chunks, *sizes, is_persistent=is_persistent)),
        *([("host tier", partial(checks.check_host_memory, host))] if host is not None else []),
        *([("disk tier", partial(checks.check_disk, disk, tiers.disk_size))] if disk is not None else []),
        *([("redis tier", partial(checks.check_redis, tiers))] if tiers.redis is not None else []),
    ]
