"""Serve a model over HTTP: embeddings, rerank, search, and a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from gemel.cli import flags
from gemel.cli.output import echo
from gemel.errors import MissingExtra
from gemel.serve.options import ANY_ORIGIN, ServeOptions

if TYPE_CHECKING:
    from gemel.serve.services import Services

EXAMPLES = """\b
Examples:
  gemel serve --index notes
  gemel serve --model all-MiniLM-L6-v2 --model support=./my-model
  gemel serve --sparse ./my-splade --late ./my-colbert
  gemel serve --host 0.0.0.0 --api-key-file keys.txt --memory-limit 2GB"""

CORS_WARNING = (
    "warning: --cors-origin '*' lets every web page that a user of this machine opens call this server. "
    "Without API keys it may read and change your indexes: name the origins instead, or use --api-key-file"
)


class _Names(click.types.StringParamType):
    """Several in an environment variable are separated by commas: a path may contain a space."""

    envvar_list_splitter = ","


@click.command(epilog=EXAMPLES)
@click.option(
    "-m",
    "--model",
    "models",
    type=_Names(),
    multiple=True,
    default=(flags.DEFAULT_MODEL,),
    show_default=True,
    metavar="NAME",
    help="A model's name, or its folder; NAME=FOLDER says what clients call it. May be repeated: the first is that of "
    "the page, and of requests that cannot name one.",
)
@flags.options_of(ServeOptions)
def command(models: tuple[str, ...], options: ServeOptions) -> None:
    """Serve models over HTTP to the clients of OpenAI, Azure, Cohere, Voyage, Jina, Ollama, vLLM and
    text-embeddings-inference; rerank, search, and a page.

    Listens on this machine only, unless --host is given. SIGTERM lets running requests finish; a second signal stops
    immediately.
    """
    try:
        from gemel.serve.run import ServerProcess

        ServerProcess(models, options, _say_ready(options)).run()
    except ModuleNotFoundError as error:
        raise MissingExtra("gemel serve", str(error.name), "serve") from error


def _say_ready(options: ServeOptions) -> Callable[[str, Services], None]:
    def say(address: str, services: Services) -> None:
        name, *others = [each.name for each in services.models]
        if ANY_ORIGIN in options.cors_origin:
            echo(CORS_WARNING, err=True)
        key = ' -H "Authorization: Bearer $KEY"' if options.api_key_file else ""
        echo(f"{name} is served at {address} (the page: {address}/)", err=True)
        for other in others:
            echo(f"{other} is served there too", err=True)
        for extra, what in ((services.sparse, "sparse vectors"), (services.late, "late interaction")):
            if extra is not None:
                echo(f"{extra.name} is served there too ({what})", err=True)
        for index in services.indexes:
            echo(f"index {index}: {address}/indexes/{index}", err=True)
        echo(
            f"try: curl {address}/v1/embeddings{key} -H 'Content-Type: application/json' "
            f"""-d '{{"model": "{name}", "input": "hello world"}}'""",
            err=True,
        )

    return say
