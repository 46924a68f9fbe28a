import typer

from kvproxy.commands.log import requests, top

app = typer.Typer(help="List requests, and how each was answered.", no_args_is_help=False)
app.callback(invoke_without_command=True)(requests.log)
app.command("show")(requests.show)
app.command("top")(top.top)
