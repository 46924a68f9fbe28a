"""The store's schema as a list of steps. Steps are only ever added: an old file is brought up to date when opened."""

from typing import Any

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations


def migrations() -> Any:
    """All steps in order, ready to `apply` to a database."""
    steps: Any = Migrations("kvproxy")

    @steps(name="m001_responses")  # type: ignore[untyped-decorator]
    def m001_responses(db: Database) -> None:
        table = db["responses"]
        table.create(
            {
                "id": str,
                "key": str,
                "namespace": str,
                "tenant": str,
                "model": str,
                "endpoint": str,
                "prompt": str,
                "semantic": int,
                "request": bytes,
                "response": bytes,
                "created": float,
                "expires": float,
                "hits": int,
                "last_hit": float,
                "prompt_tokens": int,
                "completion_tokens": int,
            },
            pk="id",
            defaults={"hits": 0},
        )
        table.create_index(["key"], unique=True)
        table.create_index(["namespace"])
        table.create_index(["created"])

    @steps(name="m002_vectors")  # type: ignore[untyped-decorator]
    def m002_vectors(db: Database) -> None:
        db["vectors"].create({"id": str, "embedder": str, "vector": bytes}, pk=("id", "embedder"))

    return steps
