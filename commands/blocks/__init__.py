"""`kvproxy blocks`: the prefix cache of the engine."""

from kvproxy.commands.blocks import ls, picture, pin, tiers, what_if
from kvproxy.commands.command import CommandFunction, CommandGroup

_FUNCTIONS: tuple[CommandFunction, ...] = (
    *(ls.ls, ls.queue, ls.show, ls.chains, ls.stats, what_if.what_if),
    *(pin.pin, pin.pins, pin.unpin, tiers.tiers, tiers.clear_tier, tiers.reset),
)
app = CommandGroup("blocks", help="Inspect the prefix cache: blocks, chains, pins and tiers.")
app.default(picture.picture)
for function in _FUNCTIONS:
    app.subcommand(function)
