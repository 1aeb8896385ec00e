"""`--install-completion` and `--show-completion`: the shell's completion script, which runs this command after Tab.

The script is click's. It passes the line so far in the environment; see `complete`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import click

NAME: Final = "countermand"
VARIABLE: Final = "_COUNTERMAND_COMPLETE"
"""The script sets it to the shell and the kind of the request."""


def complete(command: click.Command) -> int | None:
    """Print completions if the shell asks for them, and return the exit code; None: it does not ask."""
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
    """Write the script where the current shell finds it, and exit."""
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
    """Add both options to the root command."""
    for name, callback, text in (
        ("--show-completion", show, "Print the completion script of the current shell."),
        ("--install-completion", install, "Install completion for the current shell."),
    ):
        option = click.option(name, is_flag=True, is_eager=True, expose_value=False, callback=callback, help=text)
        command = option(command)
    return command


def _shell() -> str:
    """Return the name of the shell that started this command: bash, zsh or fish."""
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
