import typer

from kvproxy.commands.cache import export, feedback, ls, rm, stats

app = typer.Typer(help="List, show, remove and export stored responses.", no_args_is_help=True)
app.command("ls")(ls.ls)
app.command("show")(ls.show)
app.command("rm")(rm.rm)
app.command("stats")(stats.stats)
app.command("usage")(stats.usage)
app.command("queue")(ls.queue)
app.command("pin")(feedback.pin)
app.command("unpin")(feedback.unpin)
app.command("reject")(feedback.reject)
app.command("approve")(feedback.approve)
app.command("export")(export.export)
app.command("import")(export.import_)
app.command("encrypt")(export.encrypt)
