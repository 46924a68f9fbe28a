"""The checks of `kvproxy doctor`. A check returns a text for the user, or raises an error that names the fix."""

import sys
from collections.abc import Callable
from functools import partial
from importlib import metadata
from tempfile import TemporaryFile

from kvproxy.checks.configured_store import open_configured_store, store_exists
from kvproxy.checks.encryption_and_weights import check_encryption, check_weights
from kvproxy.checks.servers import check_proxy, check_upstream
from kvproxy.encryption import load_cipher
from kvproxy.errors import KvproxyError, SettingsError
from kvproxy.index.private_files import is_accessible_to_others
from kvproxy.settings import Settings
from kvproxy.units import plural

Check = Callable[[], object]


def all_checks(settings: Settings, url: str, token: str | None = None) -> list[tuple[str, Check]]:
    engine: list[tuple[str, Check]]
    if settings.servers:
        engine = [("upstream", partial(check_upstream, each, settings)) for each in settings.servers]
    else:
        engine = [("torch", _check_torch), ("model", lambda: _check_model(settings)), *_tier_checks(settings)]
    return [
        ("python", lambda: sys.version.split()[0]),
        ("faiss", _check_faiss),
        ("data", lambda: _check_data(settings)),
        ("store", lambda: _check_store(settings)),
        ("encryption", lambda: check_encryption(settings)),
        ("weights", lambda: check_weights(settings.embedder)),
        ("languages", lambda: _check_languages(settings)),
        *engine,
        ("proxy", lambda: check_proxy(url, token)),
    ]


def check_files(settings: Settings) -> None:
    """Check the data folder and the encryption keys. The raised SettingsError has a line for each problem."""
    folder, problems = settings.data, []
    if not folder.is_dir():
        problems.append(f"there is no data folder {folder}: create it with kvproxy init, or give another --data")
    else:
        try:
            with TemporaryFile(dir=folder):
                pass
        except OSError as error:
            problems.append(f"cannot write to the data folder {folder} ({error.strerror}): give another --data")
    try:
        load_cipher(settings.encryption)
    except SettingsError as error:
        problems.append(error.message)
    if problems:
        raise SettingsError("\n".join(problems))


def _check_torch() -> str:
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    return f"{torch.__version__} on {device}"


def _check_faiss() -> str:
    found = {}
    for name in ("faiss-cpu", "faiss-gpu-cu12"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if len(found) > 1:
        raise KvproxyError("faiss-cpu and faiss-gpu-cu12 overwrite each other: uninstall both, then install one again")
    import faiss

    return f"{', '.join(f'{name} {version}' for name, version in found.items())}, {faiss.get_num_gpus()} GPUs"


def _check_data(settings: Settings) -> str:
    try:
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = settings.data / ".doctor"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise KvproxyError(f"cannot write to {settings.data} ({error.strerror}): choose another with --data") from None
    for path in (settings.data, *settings.data.glob("*")):
        if is_accessible_to_others(path) and (path == settings.data or is_accessible_to_others(settings.data)):
            raise KvproxyError(f"other users can read {path}, which contains prompts: chmod go= {path}")
    return f"{settings.data}, private"


def _check_store(settings: Settings) -> str:
    if not store_exists(settings):
        return f"{settings.store_path} (does not exist yet)"
    if is_accessible_to_others(settings.store_path):
        raise KvproxyError(f"other users can read {settings.store_path}: chmod go= {settings.store_path}")
    with open_configured_store(settings) as store:
        return f"{store.name}, {plural(store.count_intact_responses(), 'response')}"


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
