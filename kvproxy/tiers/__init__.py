"""Keys and values outside the block pool, in chunks: host memory, disk, Redis. No torch here: bytes in, bytes out."""
