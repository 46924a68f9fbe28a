"""One engine's cached blocks, as its events tell: which there are, in how many copies, and how they hang together."""

from collections.abc import Iterator

from kvproxy.mirror.doubts import Doubts
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
        self.copies = 0
        self.stored = stored


class MirroredPool:
    """Blocks in one place (medium) of one rank, of one attention group.

    Attributes:
        blocks: by name.
        block_size: tokens in a block; 0 before the first event.
        kind, window: the group's kind of attention and its sliding window, where they are told.
        num_copies: physical blocks.
        stored, removed: copies stored and given up since the start.
    """

    def __init__(self) -> None:
        self.blocks: dict[Hash, MirroredBlock] = {}
        self.block_size = 0
        self.kind: str | None = None
        self.window: int | None = None
        self.num_copies = 0
        self.stored = 0
        self.removed = 0
        self._children: dict[Hash | None, dict[Hash, None]] = {}
        self._by_content: dict[tuple[Hash | None, tuple[int, ...], Extra], Hash] = {}
        self._doubts = Doubts()

    def store(self, event: Stored) -> None:
        """Count one more copy of each block of a run, unless it only tells of reuse: see `doubts`."""
        # A prompt's tail may be published as a smaller block of its own.
        self.block_size = max(self.block_size, event.block_size)
        self.kind, self.window = event.kind, event.window
        is_doubtful = event.parent is None and bool(event.hashes) and event.hashes[-1] in self.blocks
        if is_doubtful and self._doubts.are_reports:
            return
        if event.parent is not None and self._doubts:
            self._show_alive(event.parent)
        for block in self._blocks_of(event):
            block.copies += 1
            self.num_copies += 1
            if is_doubtful:
                self._doubts.add(block.hash, block.copies)
            else:
                self._doubts.certain(block.hash)
        self._doubts.grown(self.num_copies)

    def _blocks_of(self, event: Stored) -> Iterator[MirroredBlock]:
        """The blocks of a run; those that are new have no copy yet."""
        size = event.block_size
        # A group that leaves out blocks which fell out of its window publishes all tokens of the run, and fewer names.
        is_aligned = len(event.tokens) == len(event.hashes) * size
        parent = event.parent
        for index, digest in enumerate(event.hashes):
            block = self.blocks.get(digest)
            if block is None:
                tokens = tuple(event.tokens[index * size : (index + 1) * size]) if is_aligned else ()
                extra = event.extras[index] if event.extras and index < len(event.extras) else None
                block = self._add(MirroredBlock(digest, parent, tokens, extra, self.stored))
            self.stored += 1
            yield block
            parent = digest

    def _add(self, block: MirroredBlock) -> MirroredBlock:
        self.blocks[block.hash] = block
        self._children.setdefault(block.parent, {})[block.hash] = None
        if block.tokens:
            self._by_content[block.parent, block.tokens, block.extra] = block.hash
        return block

    def _show_alive(self, digest: Hash | None) -> None:
        """A request that goes on after a block holds it, and all before it."""
        for _ in range(len(self.blocks)):
            block = None if digest is None else self.blocks.get(digest)
            if block is None:
                return
            self._doubts.alive(block.hash)
            digest = block.parent

    def remove(self, digest: Hash) -> bool:
        """Count one copy less; False where there was none."""
        block = self.blocks.get(digest)
        if block is None:
            return False
        self.removed += 1
        self._drop(block, 1)
        self._doubts.removed(digest, block.copies)
        for each, copies in self._doubts.settle(self.num_copies):
            self._drop(self.blocks[each], copies)
        return True

    def _drop(self, block: MirroredBlock, copies: int) -> None:
        self.num_copies -= copies
        block.copies -= copies
        if block.copies == 0:
            self._forget(block)

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
        self._doubts.clear()
        self.num_copies = 0

    def children(self, parent: Hash | None) -> list[MirroredBlock]:
        """Cached blocks that follow `parent` (None: that begin a chain), the first stored first."""
        return [self.blocks[digest] for digest in self._children.get(parent, ())]

    def follow(self, parent: Hash | None, tokens: tuple[int, ...], extra: Extra) -> MirroredBlock | None:
        """The block that holds these tokens after `parent`, whatever recipe named it."""
        digest = self._by_content.get((parent, tokens, extra))
        return None if digest is None else self.blocks[digest]
