import typer

from kvproxy.commands.sessions import sessions

app = typer.Typer(help="List sessions and their reused and lost tokens.", no_args_is_help=False)
app.callback(invoke_without_command=True)(sessions.sessions)
app.command("show")(sessions.show)
