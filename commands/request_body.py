"""Options from which commands build a request."""

import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from kvproxy.commands.files import read_text, shown_name
from kvproxy.errors import InvalidRequest

SAMPLING = ("temperature", "max_tokens")


@dataclass(frozen=True, slots=True)
class RequestFieldOptions:
    temperature: Annotated[float | None, Option(help="Value of temperature, as clients send it.")] = None
    max_tokens: Annotated[int | None, Option(help="Value of max_tokens, as clients send it.")] = None
    body: Annotated[list[str] | None, Option(help="Another field as FIELD=JSON; repeat for several.")] = None
    namespace: Annotated[str | None, Option(help="Value of the header x-kvproxy-namespace.")] = None
    header: Annotated[list[str] | None, Option(help="Header as NAME:VALUE; repeat for several.")] = None

    def fields(self) -> dict[str, Any]:
        fields = {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}
        for argument in self.body or []:
            name, _, value = argument.partition("=")
            try:
                fields[name] = json.loads(value)
            except ValueError:
                name = ""
            if not name:
                raise typer.BadParameter(
                    f"use FIELD=JSON, such as 'seed=1' or 'user=\"ann\"', instead of {argument!r}", param_hint="--body"
                )
        return fields

    def headers(self) -> dict[str, str]:
        headers = {}
        for argument in self.header or []:
            name, separator, value = argument.partition(":")
            if not name.strip() or not separator:
                raise typer.BadParameter(
                    f"use NAME:VALUE, such as 'Remote-User: ann', instead of {argument!r}", param_hint="--header"
                )
            headers[name.strip().lower()] = value.strip()
        return headers if self.namespace is None else headers | {"x-kvproxy-namespace": self.namespace}


@dataclass(frozen=True, slots=True)
class PromptOptions:
    prompt: Annotated[str | None, Argument(help="Question of the user; - is stdin, as is a pipe without one.")] = None
    system: Annotated[str | None, Option(help="System prompt before the question.")] = None
    file: Annotated[Path | None, Option(help="File with a request body instead of a prompt; - is stdin.")] = None

    def body(self) -> dict[str, Any]:
        """Return the body of a chat request with the prompt, or the body in the file.

        Raises:
            BadParameter: both a prompt and a file are given, or neither, also on stdin, or the prompt is the name of a file.
            NotFound, InvalidRequest: the file cannot be read.
        """
        if self.file is None:
            question = self._question()
            before = [{"role": "system", "content": self.system}] if self.system else []
            return {"messages": [*before, {"role": "user", "content": question}]}
        if self.prompt is not None:
            raise typer.BadParameter("give a prompt, or --file with a request, and not both")
        if self.system is not None:
            raise typer.BadParameter("--system needs a prompt: write the system prompt into the file instead")
        try:
            body = json.loads(read_text(self.file))
        except (ValueError, RecursionError) as error:
            hint = " (--file takes one request)" if str(error).startswith("Extra data") else ""
            raise InvalidRequest(f"{shown_name(self.file)} is not JSON: {error}{hint}") from None
        if not isinstance(body, dict):
            raise InvalidRequest(f"{shown_name(self.file)} must contain one request as a JSON object")
        return body

    def _question(self) -> str:
        if self.prompt not in (None, "-"):
            self._refuse_file_name()
            return str(self.prompt)
        # At a terminal, only an explicit - waits for text.
        text = "" if self.prompt is None and sys.stdin.isatty() else read_text(Path("-")).rstrip("\r\n")
        if not text:
            raise typer.BadParameter("give a prompt, also on stdin, or --file with a request")
        return text

    def _refuse_file_name(self) -> None:
        # A long prompt is no valid name.
        with contextlib.suppress(OSError, ValueError):
            if Path(self.prompt or "").is_file():
                raise typer.BadParameter(f"{self.prompt} is a file: give a file with a request as --file {self.prompt}")
