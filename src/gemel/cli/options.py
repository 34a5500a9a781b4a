"""Flags that commands share. Those of encoding are made from EncodeOptions, one for each field."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import Field, fields
from functools import wraps
from itertools import pairwise
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from gemel.options import EncodeOptions

DEFAULT_MODEL = "all-MiniLM-L6-v2"

Function = Callable[..., Any]  # a click callback: its arguments are whatever its decorators declare


def model_option(function: Function) -> Function:
    """`--model`: a name or a folder."""
    return click.option(
        "-m",
        "--model",
        default=DEFAULT_MODEL,
        show_default=True,
        metavar="NAME",
        help="A model's name, or its folder.",
    )(function)


def encode_options(function: Function) -> Function:
    """A flag for every field of EncodeOptions; `function` gets all of them as one argument `options`."""
    return options_of(EncodeOptions)(function)


def options_of(cls: type[Any]) -> Callable[[Function], Function]:
    """A flag for every field of a dataclass of options; the function gets all of them as one argument `options`."""
    names = [field.name for field in fields(cls)]

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*arguments: Any, **values: Any) -> Any:  # noqa: ANN401
            settings = {name: values.pop(name) for name in names}
            if settings["progress"] is None:
                settings["progress"] = sys.stderr.isatty()
            return function(*arguments, options=cls(**settings), **values)

        docs, types = field_docs(cls), get_type_hints(cls)
        decorated: Function = call
        for field in reversed(fields(cls)):  # click shows the last decorator first
            decorated = _option(field, types[field.name], flag_help(docs.get(field.name, ""), names))(
                decorated
            )
        return decorated

    return decorate


def _option(field: Field[Any], annotation: object, help: str) -> Callable[[Function], Function]:
    default = field.default
    if field.name == "progress":
        default, help = None, f"{help} Default: when that is a terminal."
    return flag_of(field.name, annotation, default=default, help=help)


def flag_of(name: str, annotation: object, *, default: Any, help: str) -> Callable[[Function], Function]:  # noqa: ANN401
    """The flag of one field: its name with hyphens, its type. Its environment variables: settings.py."""
    flag = "--" + name.replace("_", "-")
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not NoneType]
    shape: dict[str, Any] = {}
    if get_origin(annotation) is tuple:
        shape = {"type": kinds[0], "multiple": True}
        help = f"{help} May be repeated."
    elif get_origin(annotation) is Literal or get_origin(kinds[0]) is Literal:
        literal = annotation if get_origin(annotation) is Literal else kinds[0]
        shape = {"type": click.Choice(get_args(literal))}
    elif kinds == [bool]:
        flag = f"{flag}/--no-{flag[2:]}"
    else:
        shape = {"type": kinds[0] if len(kinds) == 1 else str}
    shown = default is not None and default != ()
    return click.option(flag, name, default=default, show_default=shown, help=help, **shape)


def flag_help(doc: str, names: list[str]) -> str:
    """The words of a field's docstring for someone at a terminal: flags instead of Python names."""
    for name in names:
        doc = doc.replace(f"`{name}`", "--" + name.replace("_", "-"))
    return re.sub(r"\bNone: ", "Default: ", doc)


def field_docs(cls: type) -> dict[str, str]:
    """The string below each field of a dataclass, by field; empty where the source is not at hand."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):
        return {}
    docs: dict[str, str] = {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    for node, below in pairwise(body):
        match node, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                docs[name] = " ".join(doc.split())
    return docs
