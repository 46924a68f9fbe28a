"""The command line, with one module per command. Functions import heavy modules, so that `--help` is fast."""

import os
import sys
from typing import Annotated

import typer

from kvproxy.commands import (
    backup,
    blocks,
    cache,
    config,
    doctor,
    explain,
    keys,
    serve,
    top,
    upstreams,
    warm,
)
from kvproxy.commands.analyse import audit, calibrate, estimate, lint, simulate
from kvproxy.commands.journal import log, savings, sessions
from kvproxy.commands.output import print_note
from kvproxy.errors import KvproxyError
from kvproxy.index.disable_usage_reports import disable_usage_reports
from kvproxy.index.errors import CacheStoreError
from kvproxy.optional_packages import missing_extra_error

app = typer.Typer(
    name="kvproxy",
    help="A caching reverse proxy for LLMs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve", rich_help_panel="Run")(serve.serve)
app.command("init", rich_help_panel="Run")(config.init)
app.add_typer(config.app, name="config", rich_help_panel="Run")
app.command("doctor", rich_help_panel="Run")(doctor.doctor)
app.command("top", rich_help_panel="Inspect")(top.top)
app.add_typer(log.app, name="log", rich_help_panel="Inspect")
app.command("explain", rich_help_panel="Inspect")(explain.explain)
app.add_typer(sessions.app, name="sessions", rich_help_panel="Inspect")
app.command("savings", rich_help_panel="Inspect")(savings.savings)
app.add_typer(cache.app, name="cache", rich_help_panel="Inspect")
app.add_typer(blocks.app, name="blocks", rich_help_panel="Inspect")
app.command("estimate", rich_help_panel="Analyse")(estimate.estimate)
app.command("lint", rich_help_panel="Analyse")(lint.lint)
app.command("audit", rich_help_panel="Analyse")(audit.audit)
app.command("simulate", rich_help_panel="Analyse")(simulate.simulate)
app.command("calibrate", rich_help_panel="Analyse")(calibrate.calibrate)
app.command("warm", rich_help_panel="Operate")(warm.warm)
app.add_typer(upstreams.app, name="upstreams", rich_help_panel="Operate")
app.add_typer(keys.app, name="keys", rich_help_panel="Operate")
app.command("backup", rich_help_panel="Operate")(backup.backup)
app.command("restore", rich_help_panel="Operate")(backup.restore)
app.command("reload", rich_help_panel="Operate")(config.reload)


def _print_version(value: bool) -> None:
    if value:
        from kvproxy import __version__

        typer.echo(f"kvproxy {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A caching reverse proxy for LLMs."""


def main() -> None:
    disable_usage_reports()
    try:
        sys.exit(app(standalone_mode=False))
    except typer.TyperException as error:
        _print_usage_error(error)
        sys.exit(2)
    except typer.Abort:
        sys.exit(1)
    except KvproxyError as error:
        # The settings may have several errors, one per line.
        print_note("\n".join(f"kvproxy: {line}" for line in error.message.splitlines()))
        sys.exit(error.exit_code)
    except CacheStoreError as error:
        print_note(f"kvproxy: {error}")
        sys.exit(1)
    except BrokenPipeError:
        # The reader of the pipe, such as `head`, has exited.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get("KVPROXY_DEBUG"):
            raise
        missing = missing_extra_error(error) if isinstance(error, ModuleNotFoundError) else None
        if missing is not None:
            print_note(f"kvproxy: {missing.message}")
            sys.exit(missing.exit_code)
        name = type(error).__name__
        print_note(f"kvproxy: unexpected {name}: {error} (KVPROXY_DEBUG=1 shows the traceback)")
        sys.exit(1)


def _print_usage_error(error: typer.TyperException) -> None:
    # Typer's base class does not declare what all its errors have.
    message: str = error.format_message()
    context: typer.Context | None = getattr(error, "ctx", None)
    if message:  # Without arguments, the help is printed already.
        path = "kvproxy" if context is None else context.command_path
        message = message.rstrip(".").removeprefix("Invalid value: ").replace("Value error, ", "")
        print_note(f"{path}: {message} ({path} --help lists the options)")
