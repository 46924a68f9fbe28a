"""Storage of keys and values outside the block pool, in chunks of 256 tokens: host memory, disk, Redis."""
