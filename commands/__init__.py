"""The command line: each file here parses one command, calls the package, and prints.

Heavy modules are imported inside the commands, so that `kvproxy --help` answers at once.
"""

import os
import sys
from typing import Annotated

import typer

from kvproxy.commands import (
    audit,
    blocks,
    blocks_pin,
    blocks_tiers,
    cache,
    cache_encrypt,
    cache_pin,
    cache_sums,
    calibrate,
    config,
    doctor,
    estimate,
    explain,
    feedback,
    keys,
    lint,
    log,
    log_sums,
    savings,
    serve,
    simulate,
    top,
    upstreams,
    warm,
)
from kvproxy.errors import KvproxyError
from kvproxy.extras import missing_extra
from kvproxy.index.usage_reports import disable_usage_reports


def _version(value: bool) -> None:
    if value:
        from kvproxy import __version__

        typer.echo(f"kvproxy {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="kvproxy",
    help="A caching reverse proxy for LLMs: stored responses, and exact prefix blocks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.serve)
app.add_typer(cache.app, name="cache")
cache.app.command("encrypt")(cache_encrypt.encrypt)
cache.app.command("queue")(cache_sums.queue)
cache.app.command("usage")(cache_sums.usage)
cache.app.command("purges")(cache_sums.purges)
cache.app.command("reject")(feedback.reject)
cache.app.command("approve")(feedback.approve)
cache.app.command("pin")(cache_pin.pin)
cache.app.command("unpin")(cache_pin.unpin)
app.add_typer(blocks.app, name="blocks")
blocks.app.command("pin")(blocks_pin.pin)
blocks.app.command("pins")(blocks_pin.pins)
blocks.app.command("unpin")(blocks_pin.unpin)
blocks.app.command("tiers")(blocks_tiers.tiers)
blocks.app.command("clear-tier")(blocks_tiers.clear_tier)
app.add_typer(upstreams.app, name="upstreams")
app.add_typer(keys.app, name="keys")
app.add_typer(log.app, name="log")
log.app.command("top")(log_sums.top)
log.app.command("hist")(log_sums.hist)
app.command("savings")(savings.savings)
app.add_typer(config.app, name="config")
app.command("init")(config.init)
app.command("reload")(config.reload)
app.command("top")(top.top)
app.command("explain")(explain.explain)
app.command("warm")(warm.warm)
app.command("estimate")(estimate.estimate)
app.command("lint")(lint.lint)
app.command("audit")(audit.audit)
app.command("simulate")(simulate.simulate)
app.command("calibrate")(calibrate.calibrate)
app.command("doctor")(doctor.doctor)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """A caching reverse proxy for LLMs: stored responses, and exact prefix blocks."""


def main() -> None:
    """Run a command; what goes wrong is one line, and an exit code that scripts can rely on."""
    disable_usage_reports()
    try:
        app()
    except KvproxyError as error:
        typer.echo(f"kvproxy: {error.message}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of a pipe has gone, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get("KVPROXY_DEBUG"):
            raise
        missing = missing_extra(error) if isinstance(error, ModuleNotFoundError) else None
        if missing is not None:
            typer.echo(f"kvproxy: {missing.message}", err=True)
            sys.exit(missing.exit_code)
        name = type(error).__name__
        typer.echo(f"kvproxy: unexpected {name}: {error} (KVPROXY_DEBUG=1 shows the traceback)", err=True)
        sys.exit(1)
