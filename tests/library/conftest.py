"""Empty stores in files."""

from tests.index.conftest import open_file, store

__all__ = ["open_file", "store"]
