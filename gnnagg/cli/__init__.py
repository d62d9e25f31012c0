"""The command line: ``python -m gnnagg COMMAND`` or the console script ``gnnagg``."""

from __future__ import annotations

from typing import Annotated

import typer

from .train import train

__all__ = ["main"]

main = typer.Typer(
    name="gnnagg",
    help="Fused, deterministic aggregation for graph neural networks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:
    if value:
        from .. import __version__

        typer.echo(f"gnnagg {__version__}")
        raise typer.Exit


@main.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Fused, deterministic aggregation for graph neural networks."""


main.command()(train)
