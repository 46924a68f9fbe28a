"""The block cache once more, as plainly as it can be said: lists, no tricks. Compared with the real one in tests.

Block names are the whole token prefix (and salt) that a block stands for, so there are no digests to go wrong.
"""

from dataclasses import dataclass, field

Name = tuple[object, ...]


@dataclass
class NaiveRequest:
    tokens: list[int]
    salt: str | None
    computed: int = 0
    table: list[int] = field(default_factory=list)
    named: int = 0


class NaiveCache:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.size = block_size
        self.free = list(range(1, num_blocks))
        self.refs = dict.fromkeys(range(1, num_blocks), 0)
        self.names: dict[int, Name] = {}
        self.born: list[int] = []  # ids in the order in which they were named
        self.live: dict[str, NaiveRequest] = {}
        self.copies: list[tuple[int, int]] = []
        self.evictions = 0

    def name(self, request: NaiveRequest, index: int) -> Name:
        return (request.salt, *request.tokens[: (index + 1) * self.size])

    def find(self, name: Name) -> int | None:
        return next((block for block in self.born if self.names.get(block) == name), None)

    def lookup(self, request: NaiveRequest) -> list[int]:
        found = []
        for index in range((len(request.tokens) - 1) // self.size):
            block = self.find(self.name(request, index))
            if block is None:
                break
            found.append(block)
        return found

    def start(self, id: str, tokens: list[int], salt: str | None, count: int) -> bool:
        request = NaiveRequest(list(tokens), salt)
        hits = self.lookup(request)
        computed = len(hits) * self.size
        count = min(count, len(tokens) - computed)
        need = -(-(computed + count) // self.size) - len(hits) + sum(1 for block in hits if self.refs[block] == 0)
        if need > len(self.free):
            return False
        for block in hits:
            self.take(block)
        request.table, request.named, request.computed = list(hits), len(hits), computed
        self.live[id] = request
        assert self.grow(request, count)
        return True

    def take(self, block: int) -> None:
        if self.refs[block] == 0:
            self.free.remove(block)
        self.refs[block] += 1

    def pop(self) -> int:
        block = self.free.pop(0)
        if block in self.names:
            del self.names[block]
            self.born.remove(block)
            self.evictions += 1
        self.refs[block] = 1
        return block

    def grow(self, request: NaiveRequest, count: int) -> bool:
        new = -(-(request.computed + count) // self.size) - len(request.table)
        first = request.computed // self.size
        shared = [index for index in range(first, len(request.table)) if self.refs[request.table[index]] > 1]
        if max(new, 0) + len(shared) > len(self.free):
            return False
        for index in shared:
            old, own = request.table[index], self.pop()
            request.table[index] = own
            if index * self.size < request.computed:
                self.copies.append((old, own))
            self.refs[old] -= 1
        for _ in range(new):
            request.table.append(self.pop())
        request.computed += count
        while request.named < min(request.computed, len(request.tokens)) // self.size:
            block = request.table[request.named]
            if block not in self.names:
                self.names[block] = self.name(request, request.named)
                self.born.append(block)
            request.named += 1
        return True

    def take_copies(self) -> list[tuple[int, int]]:
        """One after the other they would say: what each destination holds in the end, told by what is there now."""
        content: dict[int, int] = {}
        for source, destination in self.copies:
            content[destination] = content.get(source, source)
        self.copies = []
        return [(source, destination) for destination, source in content.items()]

    def fork(self, parent: str, child: str) -> None:
        one = self.live[parent]
        for block in one.table:
            self.refs[block] += 1
        self.live[child] = NaiveRequest(list(one.tokens), one.salt, one.computed, list(one.table), one.named)

    def end(self, id: str) -> None:
        empty: list[int] = []
        for block in reversed(self.live.pop(id).table):
            self.refs[block] -= 1
            if self.refs[block] == 0 and block in self.names:
                self.free.append(block)
            elif self.refs[block] == 0:
                empty.append(block)
        self.free[:0] = empty

    def reset(self) -> bool:
        if any(self.refs.values()):
            return False
        self.names.clear()
        self.born.clear()
        return True
