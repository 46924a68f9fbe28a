"""An upstream's streams put together to whole answers, one file each form of stream; see `Assembler` in `api.py`."""
