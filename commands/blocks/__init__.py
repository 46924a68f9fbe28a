import typer

from kvproxy.commands.blocks import ls, picture, pin, tiers, what_if

app = typer.Typer(help="Inspect the prefix cache: blocks, chains, pins and tiers.")
app.callback(invoke_without_command=True)(picture.picture)
app.command("ls")(ls.ls)
app.command("queue")(ls.queue)
app.command("show")(ls.show)
app.command("chains")(ls.chains)
app.command("stats")(ls.stats)
app.command("what-if")(what_if.what_if)
app.command("pin")(pin.pin)
app.command("pins")(pin.pins)
app.command("unpin")(pin.unpin)
app.command("tiers")(tiers.tiers)
app.command("clear-tier")(tiers.clear_tier)
app.command("reset")(tiers.reset)
