"""Groups of commands: option groups, `--json`, and exit codes."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter
from typing import Annotated, Any, TypeAlias, get_args, get_origin

import typer
from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup

from kvproxy.commands.options import WRITES, Force, Json, completion_of, completion_of_fields, parser_of
from kvproxy.commands.output import Output, print_charts, print_json, print_note
from kvproxy.commands.row_fields import RowFields
from kvproxy.errors import InvalidRequest
from kvproxy.operations.parameters import DeclaredParameter, Filter, declared_parameters
from kvproxy.operations.parameters import Parameter as DescribedParameter
from kvproxy.telemetry.printable_text import escape_bytes

_SINGLE = "single"
"""Attribute of a command's function: the parameters that may be given once, by name."""
_SYNONYMS = {
    **{"create": "add", "new": "add", "delete": "rm", "remove": "rm", "revoke": "rm", "list": "ls"},
    **{"help": "--help", "stats": "cache stats"},
}
CommandFunction: TypeAlias = Callable[..., Output | None]


class _Command(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _refuse_repeated(self, ctx, args)
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """A group that names our command for the name that other programs use."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        meant = _SYNONYMS.get(args[0], "")
        if args[0] not in self.commands and (meant.startswith("-") or meant.split(" ")[0] in self.commands):
            ctx.fail(f"No such command {args[0]!r}. Did you mean '{ctx.command_path} {meant}'?")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _refuse_repeated(self, ctx, args)
        return super().parse_args(ctx, args)


def _refuse_repeated(command: TyperCommand | TyperGroup, context: Any, args: list[str]) -> None:
    """Fail if a filter or a list is given twice, of which only the last one would count. Others may override an alias."""
    single: Mapping[str, DeclaredParameter] = getattr(command.callback, _SINGLE, {})
    if context.resilient_parsing or not single:
        return
    _, _, given = command.make_parser(context).parse_args(args=list(args))
    for parameter in given:
        if parameter.name in single and given.count(parameter) > 1:
            advice = _advice(single[parameter.name].metadata.is_list, "where" in single)
            context.fail(f"{parameter.opts[0]} is given twice: give it once{advice}")


def _advice(is_list: bool, has_condition: bool) -> str:
    if is_list:
        return ", with commas between the names"
    return ", or several values with 'or' in --where" if has_condition else ""


class CommandGroup(typer.Typer):
    """A group whose functions become commands, see `_command`."""

    def __init__(self, name: str, help: str, cls: type[TyperGroup] = Group) -> None:
        super().__init__(
            name=name,
            help=help,
            cls=cls,
            no_args_is_help=True,
            pretty_exceptions_enable=False,
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
            # The import of rich's parts for help takes half as long as the whole help.
            rich_markup_mode=None,
        )

    def subcommand(
        self, function: CommandFunction, panel: str | None = None, name: str | None = None
    ) -> CommandFunction:
        """Add a command. Its default name is the function's name."""
        name = name or function.__name__.rstrip("_").replace("_", "-")
        self.command(name, cls=_Command, rich_help_panel=panel)(_command(function))
        return function

    def default(self, function: CommandFunction) -> CommandFunction:
        """Call the function if no subcommand is given."""
        self.callback(cls=Group, invoke_without_command=True, no_args_is_help=False)(_command(function))
        return function


def _command(function: CommandFunction) -> Callable[..., None]:
    """Return a function for Typer that calls `function` and prints its output.

    A dataclass parameter becomes one option per field, whose type has an `Option`, or a `Parameter` of `kvproxy.parameters`. The
    option `--json` is added, unless there is a parameter `as_json`, and `--force` if a parameter names a file to write.
    """
    given = inspect.signature(function).parameters
    groups = {name: group for name, parameter in given.items() if (group := _group_of(parameter)) is not None}
    row_fields = next(filter(None, map(_row_fields_of, given.values())), RowFields())
    parameters = [option for parameter in given.values() for option in _options_of(parameter)]
    prints_json = "as_json" not in given
    if prints_json:
        parameters.append(Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=Json))

    written = [name for name, parameter in given.items() if WRITES in getattr(parameter.annotation, "__metadata__", ())]
    if written:
        parameters.append(Parameter("force", Parameter.KEYWORD_ONLY, default=False, annotation=Force))
    parameters.append(Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context))

    declared = [parameter for group in groups.values() for parameter in declared_parameters(group)]
    single = {parameter.name: parameter for parameter in declared if _is_single(parameter.metadata)}

    @functools.wraps(function)
    def run(context: typer.Context, **values: Any) -> None:
        if context.invoked_subcommand is not None:
            return
        for name, value in values.items():
            _check_is_utf8(name, value)
            _check_has_value(single.get(name), value)
        if written and not values.pop("force"):
            from kvproxy.commands.files import check_is_new

            check_is_new(*(values[name] for name in written))
        as_json, options = prints_json and values.pop("as_json"), dict(values)
        for name, group in groups.items():
            values[name] = group(**{option.name: values.pop(option.name) for option in _options_of_group(group)})
        from kvproxy.commands.tables import ListLayout, print_records  # Not needed for help.

        layout = next(
            (argument for argument in values.values() if isinstance(argument, ListLayout) and argument.is_data), None
        )
        if as_json and layout is not None:
            raise typer.BadParameter(f"give one of --json and --{'csv' if layout.csv else 'jsonl'}")
        output = function(**values)
        if output is None:
            return
        if as_json:
            print_json(output.document)
        elif layout is not None:
            records = output.document if output.records is None else output.records
            print_records(records, layout, output.fields or row_fields.names(options))
        else:
            output.show()
            print_charts(output.charts)
        if output.note is not None:
            print_note(output.note)
        if output.exit_code:
            raise typer.Exit(output.exit_code)

    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    # Rich keeps the line breaks of a paragraph, also in a narrower terminal.
    run.__doc__ = "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    setattr(run, _SINGLE, single)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _is_single(parameter: DescribedParameter) -> bool:
    return parameter.is_list or isinstance(parameter, Filter)


def _check_has_value(parameter: DeclaredParameter | None, value: object) -> None:
    """Refuse a blank filter, such as an empty variable of a script, which would match every row or none."""
    if parameter is None or not isinstance(parameter.metadata, Filter):
        return
    if isinstance(value, str) and not value.strip():
        raise typer.BadParameter(f"--{parameter.name.replace('_', '-')} is empty: give it a value, or leave it out")


def _check_is_utf8(name: str, value: object) -> None:
    """Raise InvalidRequest for a text that no store or request can contain. Paths may have any bytes."""
    for text in value if isinstance(value, list | tuple) else (value,):
        if isinstance(text, str) and any("\udc80" <= character <= "\udcff" for character in text):
            raise InvalidRequest(
                f"{name.replace('_', '-')} '{escape_bytes(text[:80])}' is not UTF-8: encode it as UTF-8"
            )


def _group_of(parameter: Parameter) -> Any:
    """Return the dataclass of a parameter that stands for several options; None for an option."""
    annotation = parameter.annotation
    kind = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return kind if is_dataclass(kind) else None


def _row_fields_of(parameter: Parameter) -> RowFields | None:
    metadata = getattr(parameter.annotation, "__metadata__", ())
    return next((each for each in metadata if isinstance(each, RowFields)), None)


def _options_of(parameter: Parameter) -> list[Parameter]:
    group = _group_of(parameter)
    if group is None:
        return [parameter.replace(kind=Parameter.KEYWORD_ONLY)]
    return _options_of_group(group, _row_fields_of(parameter))


def _options_of_group(group: Any, row_fields: RowFields | None = None) -> list[Parameter]:
    declared = {parameter.name: parameter for parameter in declared_parameters(group)}
    return [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=_annotation(declared[field.name], row_fields) if field.name in declared else field.type,
        )
        for field in fields(group)
        if field.name not in declared or declared[field.name].metadata.is_option
    ]


def _annotation(declared: DeclaredParameter, row_fields: RowFields | None) -> Any:
    """Return the annotation from which Typer makes an option or an argument."""
    metadata = declared.metadata
    values = declared.type | None if declared.default is None else declared.type
    complete: Callable[..., list[Any]] | None = completion_of(metadata.suggestions)
    if declared.name == "columns" and row_fields is not None:
        complete = completion_of_fields(row_fields)
    if metadata.is_argument:
        return Annotated[values, Argument(help=metadata.help, autocompletion=complete)]
    if metadata.parse is not None:
        parser = parser_of(metadata.parse, needs_unit=metadata.needs_unit)
        metavar = metadata.metavar or "TEXT"
        shown = metadata.default_text or True
        option = Option(help=metadata.help, parser=parser, metavar=metavar, show_default=shown, autocompletion=complete)
        return Annotated[values, option]
    if declared.type is bool:
        # With a name, Typer adds no option `--no-NAME`.
        return Annotated[values, Option(f"--{declared.name.replace('_', '-')}", help=metadata.help)]
    least = metadata.least if declared.type in (int, float) else None
    names = [] if metadata.also is None else [f"--{declared.name.replace('_', '-')}", metadata.also]
    return Annotated[values, Option(*names, help=metadata.help, min=least, autocompletion=complete)]
