"""Orders of eviction said plainly: every queue a list, every question a walk over it. Front goes first."""

from typing import Any


class NaiveLFU:
    def __init__(self, capacity: int) -> None:
        self.idle: list[Any] = []  # by time of becoming idle
        self.uses: dict[Any, int] = {}

    def add(self, key: Any) -> None:
        self.uses.setdefault(key, 1)
        self.idle.append(key)

    def remove(self, key: Any) -> None:
        self.idle.remove(key)
        self.uses[key] += 1

    def pop(self) -> Any:
        key = min(self.idle, key=lambda key: (self.uses[key], self.idle.index(key)))
        self.idle.remove(key)
        del self.uses[key]
        return key


class NaiveS3FIFO:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.small: list[Any] = []
        self.main: list[Any] = []
        self.ghosts: list[Any] = []
        self.uses: dict[Any, int] = {}
        self.busy: list[Any] = []

    def add(self, key: Any) -> None:
        if key in self.busy:
            self.busy.remove(key)
        elif key in self.ghosts:
            self.ghosts.remove(key)
            self.uses[key] = 0
            self.main.append(key)
        else:
            self.uses[key] = 0
            self.small.append(key)

    def remove(self, key: Any) -> None:
        self.busy.append(key)
        self.uses[key] = min(self.uses[key] + 1, 3)

    def pop(self) -> Any:
        while True:
            idle_in_main = [key for key in self.main if key not in self.busy]
            if self.small and (10 * len(self.small) > self.capacity or not idle_in_main):
                key = self.small.pop(0)
                if key in self.busy:
                    self.main.append(key)
                elif self.uses[key]:
                    self.uses[key] = 0
                    self.main.append(key)
                else:
                    self.ghosts = [*self.ghosts, key][-self.capacity :]
                    return key
            else:
                key = self.main.pop(0)
                if key not in self.busy and not self.uses[key]:
                    return key
                if key not in self.busy:
                    self.uses[key] -= 1
                self.main.append(key)


class NaiveARC:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.target = 0.0
        self.live: dict[str, list[Any]] = {"recent": [], "frequent": []}
        self.ghosts: dict[str, list[Any]] = {"recent": [], "frequent": []}
        self.hit: list[Any] = []

    def add(self, key: Any) -> None:
        recent, frequent = len(self.ghosts["recent"]), len(self.ghosts["frequent"])
        if key in self.hit:
            self.hit.remove(key)
            self.live["frequent"].append(key)
        elif key in self.ghosts["recent"]:
            self.target = min(self.capacity, self.target + max(1, frequent / recent))
            self.ghosts["recent"].remove(key)
            self.live["frequent"].append(key)
        elif key in self.ghosts["frequent"]:
            self.target = max(0, self.target - max(1, recent / frequent))
            self.ghosts["frequent"].remove(key)
            self.live["frequent"].append(key)
        else:
            self.live["recent"].append(key)

    def remove(self, key: Any) -> None:
        next(keys for keys in self.live.values() if key in keys).remove(key)
        self.hit.append(key)

    def pop(self) -> Any:
        recent, frequent = self.live["recent"], self.live["frequent"]
        name = "recent" if recent and (len(recent) > self.target or not frequent) else "frequent"
        key = self.live[name].pop(0)
        self.ghosts[name] = [*self.ghosts[name], key][-self.capacity :]
        return key
