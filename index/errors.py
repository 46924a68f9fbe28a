"""The errors of the response cache."""


class CacheStoreError(Exception):
    """The store of responses failed: a full disk, a damaged file, or an unreachable server. The message names the fix."""


class InvalidValue(CacheStoreError):
    """The database rejected a value. It works, and other operations succeed."""


class StoreUnreachable(CacheStoreError):
    """The database's server does not respond. Reads and writes fail."""


class StoreDamaged(CacheStoreError):
    """The store's data is damaged. It is left unchanged."""


class SchemaVersionError(CacheStoreError):
    """The database was created by another version of kvproxy."""

    def __init__(self, name: str, version: int, required: int) -> None:
        self.version = version
        fix = "upgrade kvproxy, or move it away" if version > required else "move it away"
        super().__init__(
            f"{name} has schema version {version}, but this version of kvproxy requires {required}: {fix}."
            " Responses that its own version exports (kvproxy cache export) can be imported (kvproxy cache import)"
        )


class ForeignDatabase(SchemaVersionError):
    """Another program created the database."""

    def __init__(self, name: str) -> None:
        self.version = 0
        CacheStoreError.__init__(
            self, f"{name} belongs to another program, and has no tables of kvproxy: give another path"
        )


class EmbedderError(Exception):
    """The embedder cannot be loaded, or failed for a text."""


class WrongDimension(EmbedderError):
    """The embedder's vectors have another dimension than it states, or than its stored vectors."""


class ImportFailed(CacheStoreError):
    """A line of an imported file is invalid."""


class VerifierError(Exception): ...


class PolicyError(Exception):
    """A policy, its guards, or its verifier failed on a question, or the policy returned an invalid result."""


def policy_error(part: str, error: Exception) -> PolicyError:
    """Return the PolicyError of a part that raised an exception."""
    cause = f"{type(error).__name__}: {first_line(error)}" if str(error) else type(error).__name__
    return PolicyError(f"{part} failed: {cause}")


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class PluginError(ValueError):
    """A part of another distribution is missing or broken. The message names the distribution and the fix."""
