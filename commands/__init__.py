"""The command line, with one module per command, which is imported when it is called. Functions import heavy modules."""

import difflib
import errno
import os
import re
import sys
from typing import Annotated

import typer
from typer import Option

from kvproxy.commands.command import CommandGroup
from kvproxy.commands.output import print_note
from kvproxy.commands.root import RootGroup
from kvproxy.errors import InvalidSettingsFile, KvproxyError
from kvproxy.index.disable_usage_reports import disable_usage_reports
from kvproxy.index.errors import CacheStoreError, PluginError
from kvproxy.optional_packages import missing_extra_error

app = CommandGroup("kvproxy", help="A caching reverse proxy for LLMs.", cls=RootGroup)


_SIMILARITY = 0.8
"""Ratio of `difflib` from which an option is suggested instead of a wrong one."""
_WORK_WITHOUT_FILE = {"backup", "blocks", "cache", "doctor", "keys", "log", "savings", "sessions"}
_WITHOUT_FILE = (
    "to ignore the file, set KVPROXY_CONFIG=/dev/null; name its data and its store, if it sets them, with KVPROXY_DATA and"
    " KVPROXY_STORE"
)
_SIGPIPE_CODE = 128 + 13
"""Exit code that shells report for a program that SIGPIPE ended."""
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


def _print_version(value: bool) -> None:
    if value:
        from kvproxy import __version__

        typer.echo(f"kvproxy {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A caching reverse proxy for LLMs."""


def main() -> None:
    disable_usage_reports()
    # Plugins of pydantic would see the settings' secrets. The search for them reads the metadata of all packages.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _open_missing_streams()
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code)
    except typer.TyperException as error:
        _print_usage_error(error)
        sys.exit(2)
    except typer.Abort:
        sys.exit(1)
    except KvproxyError as error:
        # The settings may have several errors, one per line.
        lines = error.message.splitlines()
        if isinstance(error, InvalidSettingsFile) and {*sys.argv[1:2]} & _WORK_WITHOUT_FILE:
            lines.append(_WITHOUT_FILE)
        print_note("\n".join(f"kvproxy: {line}" for line in lines))
        sys.exit(error.exit_code)
    except (CacheStoreError, PluginError) as error:
        print_note(f"kvproxy: {error}")
        sys.exit(1)
    except SystemExit as end:
        # Typer exits with 1 if the reader of the pipe has exited.
        sys.exit(_SIGPIPE_CODE if isinstance(end.__context__, BrokenPipeError) else end.code)
    except BrokenPipeError:
        # The reader of the pipe, such as `head`, has exited: as if by the signal SIGPIPE.
        _discard_stdout()
        sys.exit(_SIGPIPE_CODE)
    except Exception as error:
        if os.environ.get("KVPROXY_DEBUG"):
            raise
        if isinstance(error, OSError) and error.errno in _WRITE_ERRORS:
            _discard_stdout()
            where = f" {error.filename}" if error.filename else ""
            print_note(f"kvproxy: cannot write{where} ({error.strerror}): free space, or write to another file")
            sys.exit(1)
        missing = missing_extra_error(error) if isinstance(error, ModuleNotFoundError) else None
        if missing is not None:
            print_note(f"kvproxy: {missing.message}")
            sys.exit(missing.exit_code)
        name = type(error).__name__
        print_note(f"kvproxy: unexpected {name}: {error} (KVPROXY_DEBUG=1 shows the traceback)")
        sys.exit(1)


def _open_missing_streams() -> None:
    """Replace closed standard streams: nobody reads the output, and other files must not get their descriptors."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def _discard_stdout() -> None:
    """Point stdout to /dev/null, so that the interpreter can flush it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_BOUNDS = {
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
    "a valid integer": "an integer",
    "a valid number": "a number",
}
"""Parts of messages of the validator, and ours."""
_COSTS = ("cost", "costs", "bill", "spending")
"""Names that users try for the commands that list costs."""


def _print_usage_error(error: typer.TyperException) -> None:
    # Typer's base class does not declare what all its errors have.
    message: str = error.format_message()
    context: typer.Context | None = getattr(error, "ctx", None)
    if hasattr(error, "possibilities") and isinstance(option := getattr(error, "option_name", None), str):
        message = f"No such option: {option}{_similar_options(option, context)}"
    if context is not None and message == context.get_help():
        # A group without a command.
        typer.echo(message, err=True)
    elif message:
        path = "kvproxy" if context is None else context.command_path
        names = (f"No such command {name!r}." for name in _COSTS)
        if any(map(message.startswith, names)):
            message = f"{message.split('.')[0]}. Use {path} sessions --by, or {path} savings --bill"
        message = _named_bound(message)
        message = message.rstrip(".").removeprefix("Invalid value: ").replace("Value error, ", "")
        print_note(f"{path}: {message} ({path} --help lists the options)")


def _named_bound(message: str) -> str:
    """Return a message about a number without the words of the validator, such as `--limit must be at least 0`."""
    found = re.match(r"Invalid value for '(?:(\S+)' / ')*(\S+)': Input should be (.*)", message)
    if found is None:
        return message
    rule = found[3].split(",")[0]
    for words, ours in _BOUNDS.items():
        rule = rule.replace(words, ours)
    return f"{found[1] or found[2]} must be {rule}"


def _similar_options(name: str, context: "typer.Context | None") -> str:
    """Return a suggestion of options that begin with a wrong name, or have almost its letters; else an empty text."""
    names = [] if context is None else [long for parameter in context.command.params for long in parameter.opts]
    names = [long for long in names if long.startswith("--")]
    if name in ("--port", "--host") and "--url" in names:
        return ". Did you mean --url http://HOST:PORT?"
    if name == "--workers" and "--upstream" in names:
        return "; start several proxies with the setting shared_port: see docs/fleet.md#all-cores-of-one-machine"
    similar = [long for long in names if len(name) > 3 and long.startswith(name)]
    similar = similar or difflib.get_close_matches(name, names, n=2, cutoff=_SIMILARITY)
    if similar:
        return f". Did you mean {' or '.join(similar)}?"
    groups = {} if context is None else getattr(context.command, "commands", {})
    # The root imports no command to answer.
    is_root = context is not None and context.parent is None
    if context is None or not (is_root or any(_has_option(command, name) for command in groups.values())):
        return ""
    return f"; it may belong after a command: {context.command_path} COMMAND {name}"


def _has_option(command: typer.core.TyperCommand, name: str) -> bool:
    return any(name in parameter.opts for parameter in command.params)
