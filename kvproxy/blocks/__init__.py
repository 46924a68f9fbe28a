"""The prefix block cache, without torch and I/O. A chain is the blocks of a prompt, in order."""
