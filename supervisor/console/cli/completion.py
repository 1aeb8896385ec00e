"""`--install-completion` and `--show-completion`: the script that has the shell ask this command what fits after Tab.

The script is click's. It calls the command again with the line so far in the environment; see `complete`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import click

NAME: Final = "countermand"
VARIABLE: Final = "_COUNTERMAND_COMPLETE"
"""Set by the script: the shell, and what it asks for."""


def complete(command: click.Command) -> int | None:
    """Answer a shell that asks what fits, and return the exit code; None: no shell asks."""
    asked = os.environ.get(VARIABLE)
    if not asked:
        return None
    from click.shell_completion import shell_complete

    return shell_complete(command, {}, NAME, VARIABLE, asked)


def show(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:  # noqa: ARG001
    """Print the script for the current shell, and exit."""
    if wanted and not context.resilient_parsing:
        click.echo(_script(_shell(), context.command).rstrip())
        context.exit()


def install(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:  # noqa: ARG001
    """Write the script to where the current shell finds it, and exit."""
    if not wanted or context.resilient_parsing:
        return
    shell = _shell()
    script = _script(shell, context.command)
    home = Path.home()
    path = {
        "bash": home / ".bash_completions" / f"{NAME}.sh",
        "zsh": home / ".zfunc" / f"_{NAME}",
        "fish": home / ".config" / "fish" / "completions" / f"{NAME}.fish",
    }[shell]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    if shell == "bash":
        _add(home / ".bashrc", f"source '{path}'")
    elif shell == "zsh":
        _add(home / ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit")
    click.secho(f"{shell} completion installed in {path}", fg="green")
    click.echo("Completion will take effect once you restart the terminal")
    context.exit()


def options(command: Any) -> Any:
    """Give the root command both options."""
    for name, callback, text in (
        ("--show-completion", show, "Show completion for the current shell, to copy it or customize the installation."),
        ("--install-completion", install, "Install completion for the current shell."),
    ):
        option = click.option(name, is_flag=True, is_eager=True, expose_value=False, callback=callback, help=text)
        command = option(command)
    return command


def _shell() -> str:
    """The name of the shell that this command was started from: bash, zsh or fish."""
    import shellingham  # type: ignore[import-untyped]  # it has no annotations
    from click.shell_completion import get_completion_class

    try:
        name: str = shellingham.detect_shell()[0]
    except shellingham.ShellDetectionFailure:
        name = ""
    if get_completion_class(name) is None:
        found = f"this is {name}" if name else "the shell was not recognized"
        raise click.ClickException(f"completion is for bash, zsh and fish, and {found}: run it from one of them")
    return name


def _script(shell: str, command: click.Command) -> str:
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "_shell has looked"
    return kind(command, {}, NAME, VARIABLE).source()


def _add(file: Path, line: str) -> None:
    """Add a line to a file of the shell, unless it is there."""
    text = file.read_text() if file.exists() else ""
    if line not in text.splitlines():
        file.write_text(f"{text.rstrip()}\n\n{line}\n".lstrip())
