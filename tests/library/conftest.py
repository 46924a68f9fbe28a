"""Empty stores in files."""

from tests.index.conftest import make_store, open_file, store

__all__ = ["make_store", "open_file", "store"]
