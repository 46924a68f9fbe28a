"""kvproxy cache: the stored responses, of a running proxy or of a store."""

import typer

from kvproxy.commands.cache import encrypt, export, feedback, ls, pin, purges, queue, rm, show, stats, usage

app = typer.Typer(help="List, show, remove and export stored responses.", no_args_is_help=True)
app.command("ls")(ls.ls)
app.command("show")(show.show)
app.command("rm")(rm.rm)
app.command("stats")(stats.stats)
app.command("usage")(usage.usage)
app.command("queue")(queue.queue)
app.command("pin")(pin.pin)
app.command("unpin")(pin.unpin)
app.command("reject")(feedback.reject)
app.command("approve")(feedback.approve)
app.command("export")(export.export)
app.command("import")(export.import_)
app.command("purges")(purges.purges)
app.command("encrypt")(encrypt.encrypt)
