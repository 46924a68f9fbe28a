"""One engine's cached blocks, as its events tell: which there are, in how many copies, and how they hang together."""

from kvproxy.mirror.wire import Extra, Hash, Stored


class MirroredBlock:
    """A cached block.

    Attributes:
        hash: as published.
        parent: name of the block before it, None where the chain begins.
        tokens: token ids; empty where they were not published.
        extra: what else names it (adapter, salt, media).
        copies: physical blocks that hold it.
        stored: ordinal of the event that stored it first.
    """

    __slots__ = ("copies", "extra", "hash", "parent", "stored", "tokens")

    def __init__(self, hash: Hash, parent: Hash | None, tokens: tuple[int, ...], extra: Extra, stored: int) -> None:
        self.hash = hash
        self.parent = parent
        self.tokens = tokens
        self.extra = extra
        self.copies = 1
        self.stored = stored


class MirroredPool:
    """Blocks in one place (medium) of one rank, of one attention group."""

    def __init__(self) -> None:
        self.blocks: dict[Hash, MirroredBlock] = {}
        self.block_size = 0
        self.kind: str | None = None
        self.num_copies = 0
        self.stored = 0
        self.removed = 0
        self._children: dict[Hash | None, dict[Hash, None]] = {}
        self._by_content: dict[tuple[Hash | None, tuple[int, ...], Extra], Hash] = {}

    def store(self, event: Stored) -> None:
        """Count one more copy of each block of a run.

        vLLM can be asked to publish blocks that a request only reused (`kv_cache_report_mode`), and nothing in the event
        tells them from new ones; but it always publishes them from the first block on. So in a run that begins a chain, a
        block that is held already gains no copy: were it counted, it would be shown for ever once its only copy is gone.
        """
        size = self.block_size = event.block_size
        self.kind = event.kind
        parent, start = event.parent, 0
        for index, digest in enumerate(event.hashes):
            block = self.blocks.get(digest)
            if block is None:
                extra = event.extras[index] if event.extras and index < len(event.extras) else None
                self._add(MirroredBlock(digest, parent, tuple(event.tokens[start : start + size]), extra, self.stored))
            elif event.parent is not None:
                block.copies += 1
                self.num_copies += 1
            self.stored += 1
            parent = digest
            start += size

    def _add(self, block: MirroredBlock) -> None:
        self.blocks[block.hash] = block
        self.num_copies += 1
        self._children.setdefault(block.parent, {})[block.hash] = None
        self._by_content[block.parent, block.tokens, block.extra] = block.hash

    def remove(self, digest: Hash) -> bool:
        """Count one copy less; False where there was none."""
        block = self.blocks.get(digest)
        if block is None:
            return False
        self.num_copies -= 1
        self.removed += 1
        block.copies -= 1
        if block.copies == 0:
            self._forget(block)
        return True

    def _forget(self, block: MirroredBlock) -> None:
        del self.blocks[block.hash]
        siblings = self._children[block.parent]
        del siblings[block.hash]
        if not siblings:
            del self._children[block.parent]
        content = (block.parent, block.tokens, block.extra)
        if self._by_content.get(content) == block.hash:
            del self._by_content[content]

    def clear(self) -> None:
        """Forget every block."""
        self.blocks.clear()
        self._children.clear()
        self._by_content.clear()
        self.num_copies = 0

    def children(self, parent: Hash | None) -> list[MirroredBlock]:
        """Cached blocks that follow `parent` (None: that begin a chain), the first stored first."""
        return [self.blocks[digest] for digest in self._children.get(parent, ())]

    def follow(self, parent: Hash | None, tokens: tuple[int, ...], extra: Extra) -> MirroredBlock | None:
        """The block that holds these tokens after `parent`, whatever recipe named it."""
        digest = self._by_content.get((parent, tokens, extra))
        return None if digest is None else self.blocks[digest]

    def is_leaf(self, digest: Hash) -> bool:
        """Whether no cached block follows."""
        return digest not in self._children
