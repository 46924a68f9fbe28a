"""Observations in a list: the double that tests and simulations use, and the model that the durable ones are compared with."""

from collections.abc import Sequence

from kvproxy.index.observations import NEWEST, History, Observation


class MemoryObservations:
    def __init__(self) -> None:
        self.rows: list[Observation] = []

    def add(self, observations: Sequence[Observation]) -> None:
        self.rows += observations

    def histories(self, ids: Sequence[str], scorer: str) -> dict[str, History]:
        found = {}
        for id in ids:
            mine = [row for row in self.rows if row.entry == id]
            scored = [row for row in mine if row.score is not None and row.scorer == scorer][-NEWEST:]
            verdicts = [row.right for row in mine if row.source == "user"]
            history = History(
                tuple(row.score for row in scored if row.score is not None),
                tuple(row.right for row in scored),
                bool(verdicts) and not verdicts[-1],
            )
            if history != History():
                found[id] = history
        return found

    def recent(self, scorer: str, limit: int) -> list[tuple[str, float, bool]]:
        rows = [
            (row.entry, row.score, row.right) for row in self.rows if row.scorer == scorer and row.score is not None
        ]
        return rows[::-1][:limit]

    def summary(self) -> dict[str, int]:
        compared = [row for row in self.rows if row.source == "answer"]
        accepted = [row for row in compared if row.accepted]
        verdicts = {row.entry: row.right for row in self.rows if row.source == "user"}
        return {
            "observed": len(compared),
            "right": sum(row.right for row in compared),
            "accepted": len(accepted),
            "accepted_wrong": sum(not row.right for row in accepted),
            "rejected": sum(not right for right in verdicts.values()),
        }

    def prune(self, keep: int) -> int:
        before, old = len(self.rows), len(self.rows) - keep
        self.rows = [row for place, row in enumerate(self.rows) if place >= old or row.source == "user"]
        return before - len(self.rows)

    def close(self) -> None:
        pass
