"""The root of the command line, which imports a command when it is called, and none for the list of commands."""

from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.completion import install_callback, show_callback
from typer.core import TyperCommand

from kvproxy.commands.command import CommandGroup, Group
from kvproxy.commands.output import print_note
from kvproxy.doors import COMMAND_PANELS, COMMANDS
from kvproxy.index.errors import PluginError

_PANELS = {name: panel for panel, commands in COMMAND_PANELS.items() for name in commands}
_PLUGINS = "Plugins"
_COMPLETION_OPTIONS = {"--install-completion": install_callback, "--show-completion": show_callback}
_SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


class LazyCommands(Mapping[str, Any]):
    """Built-in commands and commands of plugins, by name. A command is imported when it is looked up.

    A look-up raises PluginError if the plugin cannot be loaded.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            if name not in _PANELS and name not in self:
                raise KeyError(name)
            self._loaded[name] = _load(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS.names())

    def __len__(self) -> int:
        return len(COMMANDS.names())

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS.names()


def _load(name: str) -> Any:
    panel = _PANELS.get(name, _PLUGINS)
    part = COMMANDS.load_built_in(name) if name in _PANELS else COMMANDS.load(name)
    if isinstance(part, CommandGroup):
        command: Any = typer.main.get_group(part)
        command.name, command.rich_help_panel = name, panel
        return command
    group = CommandGroup(name, "")
    group.subcommand(part, panel, name)
    return typer.main.get_group(group).commands[name]


class RootGroup(Group):
    """The group of all commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = LazyCommands()  # type: ignore[assignment]

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if args:
            _complete_named_shell(ctx, *args)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        parameters = super().get_params(ctx)
        for parameter in parameters:
            # Typer imports pydantic to convert a missing value, as of --help and --install-completion.
            if getattr(parameter, "is_flag", False) and parameter.default is None:
                parameter.default = False
        return parameters

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return list(self.commands)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        """Return a command for lists, which has only a name and a summary; None if its plugin is broken."""
        panel = _PANELS.get(cmd_name)
        if panel is not None:
            _, summary = COMMAND_PANELS[panel][cmd_name]
            return TyperCommand(cmd_name, help=summary, rich_help_panel=panel)
        try:
            return self.commands.get(cmd_name)
        except PluginError as error:
            print_note(f"kvproxy: {error}")
            return None

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        command = self.commands.get(args[0])
        if command is None:
            return super().resolve_command(ctx, args)
        return args[0], command, args[1:]

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        commands = [command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name)) is not None]
        width = max(len(command.name) for command in commands)
        for panel in (*COMMAND_PANELS, _PLUGINS):
            rows = [
                (command.name.ljust(width), command.get_short_help_str(formatter.width))
                for command in commands
                if command.rich_help_panel == panel
            ]
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)


def _complete_named_shell(context: Any, option: str, *rest: str) -> None:
    """Install or show the completion of the shell after the option, which Typer's options do not take; then exit."""
    name, _, value = option.partition("=")
    shell = value or next(iter(rest), "-")
    if name not in _COMPLETION_OPTIONS or shell.startswith("-"):
        return
    if shell not in _SHELLS:
        context.fail(f"{name} is for {', '.join(_SHELLS)}, not {shell[:40]!r}")
    parameter = next(parameter for parameter in context.command.params if name in parameter.opts)
    _COMPLETION_OPTIONS[name](context, parameter, shell)
