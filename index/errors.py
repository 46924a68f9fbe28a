"""What can go wrong with the response cache. Messages name the fix."""


class CacheStoreError(Exception):
    """The store cannot be used."""


class StoreDamaged(CacheStoreError):
    """The file is there but is no readable store; it is left as it is."""


class EmbedderError(Exception):
    """The embedder cannot be loaded."""


class ImportFailed(CacheStoreError):
    """A line of an import cannot be read."""


class VerifierError(Exception):
    """The verifier cannot be loaded."""


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its type where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
