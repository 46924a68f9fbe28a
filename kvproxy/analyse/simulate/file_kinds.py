"""Recognises binary files, and names the command that converts each kind."""

_KINDS = (
    (b"\xfd7zXZ\x00", "is compressed with xz: unpack it with xz -d"),
    (b"BZh", "is compressed with bzip2: unpack it with bzip2 -d"),
    (b"PK\x03\x04", "is a zip archive: unpack it with unzip"),
    (b"PAR1", "is a Parquet file: convert it to JSON lines, for example with DuckDB"),
    (b"ARROW1", "is an Arrow file: convert it to JSON lines, for example with DuckDB"),
    (b"\xff\xfe", "is UTF-16: convert it with iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "is UTF-16: convert it with iconv -f UTF-16 -t UTF-8"),
)


def describe_binary(content: bytes) -> str | None:
    """Return the kind of a binary file, and how to convert it; None for UTF-8 text.

    `content` is the file, or its beginning, cut at any byte.
    """
    for beginning, kind in _KINDS:
        if content.startswith(beginning):
            return kind
    if b"\0" in content:
        return "has zero bytes, so it is no UTF-8 text: convert it"
    try:
        content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The last character may be cut.
        if error.end < len(content) or error.reason != "unexpected end of data":
            return "is no UTF-8 text: convert it with iconv -t UTF-8"
    return None
