"""Keys and values outside the block pool, in chunks: host memory, disk, Redis."""
