"""kvproxy config, init and reload: check the file of settings, write one, have a running proxy read its rules again."""

from pathlib import Path
from typing import Annotated

import typer

from kvproxy.proxy_client.client import ProxyClient
from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.commands.output import print_json
from kvproxy.errors import InvalidRequest

app = typer.Typer(help="The file of settings.")

Data = Annotated[Path | None, typer.Option(help="The proxy's data folder.", show_default=False)]


@app.command("check")
def check(data: Data = None, as_json: Json = False) -> None:
    """Tell whether a proxy would start with its file of settings and the environment; an error names the line.

    Example: kvproxy config check
    """
    from kvproxy.settings import load_settings

    settings = load_settings(data=data)
    rules = [rule.name for rule in settings.rules]
    if len(set(rules)) < len(rules):
        raise InvalidRequest("two rules have the same name: explain could not tell which of them holds")
    if as_json:
        print_json({"rules": rules})
    else:
        typer.echo(f"the settings are good; rules: {', '.join(rules) or 'none'}")


def init(data: Data = None, as_json: Json = False) -> None:
    """Write a file of settings in which each one stands with its meaning and its default, as a comment.

    Example: kvproxy init
    """
    from kvproxy.settings import load_settings
    from kvproxy.settings.template import template

    file = load_settings(data=data).data / "kvproxy.toml"
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as out:
            out.write(template())
    except FileExistsError:
        raise InvalidRequest(f"there is a file {file} already: move it away first") from None
    except OSError as error:
        raise InvalidRequest(f"cannot write {file}: {error.strerror}") from None
    if as_json:
        print_json({"file": str(file)})
    else:
        typer.echo(f"wrote {file}")


def reload(url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """Have a running proxy read its rules again, as SIGHUP does. Nothing changes where the file has an error.

    Example: kvproxy reload
    """
    done = ProxyClient(url, token).post("/admin/reload", {})
    if as_json:
        print_json(done)
    else:
        typer.echo(f"{done['rules']} rules hold from now on")
        if done["restart"]:
            typer.echo(f"restart the proxy for the changed settings: {', '.join(done['restart'])}")
