"""kvproxy config"""

import typer

from kvproxy.commands.command import command
from kvproxy.commands.options import Data
from kvproxy.commands.output import Output, sentence
from kvproxy.errors import InvalidRequest

app = typer.Typer(help="Check the settings.", no_args_is_help=True)


@app.command("check")
@command
def check(data: Data = None) -> Output:
    """Check kvproxy.toml and the environment.

    An error names the line.

    Example: kvproxy config check
    """
    from kvproxy.settings import load_settings

    rules = [rule.name for rule in load_settings(data=data).rules]
    if len(set(rules)) < len(rules):
        raise InvalidRequest("two rules have the same name: rename one of them")
    return sentence({"rules": rules}, f"the settings are valid; rules: {', '.join(rules) or 'none'}")
