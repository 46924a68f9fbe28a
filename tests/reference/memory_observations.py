"""A reference model of observations: a list."""

from collections.abc import Sequence
from dataclasses import replace

from kvproxy.index.store.observations import Observation


class MemoryObservations:
    def __init__(self) -> None:
        self.rows: list[Observation] = []
        self.states: dict[str, tuple[int, str]] = {}
        self.gone: list[Observation] = []
        self.gone_to: dict[str, int] = {}

    def add(self, observations: Sequence[Observation]) -> None:
        last = self.rows[-1].number if self.rows else 0
        self.rows += [replace(seen, number=last + place) for place, seen in enumerate(observations, 1)]

    def list_since(self, namespace: str, number: int, limit: int) -> list[Observation]:
        return [seen for seen in self.rows if seen.namespace == namespace and seen.number > number][:limit]

    def rejected_entries(self, ids: Sequence[str]) -> set[str]:
        verdicts = {seen.entry: seen.right for seen in self.rows if seen.source == "user"}
        return {id for id in ids if not verdicts.get(id, True)}

    def snapshot(self, namespace: str) -> str | None:
        return self.states[namespace][1] if namespace in self.states else None

    def save_snapshot(self, namespace: str, number: int, state: str) -> None:
        if number >= self.states.get(namespace, (0, ""))[0]:
            self.states[namespace] = (number, state)

    def summary(self) -> dict[str, int]:
        compared = [row for row in self.gone + self.rows if row.source == "answer"]
        accepted = [row for row in compared if row.accepted]
        verdicts = {row.entry: row.right for row in self.rows if row.source == "user"}
        return {
            "observed": len(compared),
            "right": sum(row.right for row in compared),
            "accepted": len(accepted),
            "accepted_wrong": sum(not row.right for row in accepted),
            "rejected": sum(not right for right in verdicts.values()),
            "accepted_undecided": sum(row.source == "undecided" and row.accepted for row in self.gone + self.rows),
        }

    def prune(self, keep: int) -> int:
        last = self.rows[-1].number if self.rows else 0
        dead = [
            row
            for row in self.rows
            if row.source != "user"
            and row.number < last
            and row.number <= (self.states[row.namespace][0] if row.namespace in self.states else last - keep)
        ]
        self.gone += dead
        self.rows = [row for row in self.rows if row not in dead]
        self.gone_to |= {namespace: number for namespace, (number, _) in self.states.items()}
        return len(dead)

    def last_pruned_number(self, namespace: str) -> int:
        return self.gone_to.get(namespace, 0)

    def close(self) -> None:
        pass
