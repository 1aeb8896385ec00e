"""Variables: those that a process gets by the configuration, in a table or in files of lines ``NAME=value``."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from actors.errors import Invalid
from actors.text import shown

FILE_MAX_BYTES: Final = 1_048_576

_VARIABLE: Final = re.compile(r"[^=\0]+")
_URL: Final = re.compile(r"https?://[^\s/@?#]+(/[^\s?#]*)?")


def read_variables(file: str, key: str, reserved: Collection[str]) -> dict[str, str]:
    """Read a file of variables. It blocks.

    Args:
        file: its path.
        key: the key of the configuration that names it, for errors.
        reserved: names that it may not have.

    Raises:
        Invalid: it cannot be read, or has an invalid line. The error shows no content of it.
    """
    try:
        with open(file, "rb") as opened:
            content = opened.read(FILE_MAX_BYTES + 1)
        if len(content) > FILE_MAX_BYTES:
            raise ValueError(f"more than {FILE_MAX_BYTES} bytes")
        lines = content.decode().splitlines()
    except (OSError, ValueError) as error:
        # The text of a decoding error shows bytes of the file.
        got = error.strerror or "" if isinstance(error, OSError) else "not UTF-8, or too large"
        raise _unreadable(file, key, "a text file of at most 1 MiB that the supervisor may read", got) from None
    found = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.removeprefix("export ").partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name.isidentifier() or name in reserved or "\0" in value:
            expected = "lines NAME=value, and comments that begin with #"
            raise _unreadable(file, key, expected, f"another, line {number}")
        quoted = len(value) > 1 and value[0] in "'\"" and value[-1] == value[0]
        found[name] = value[1:-1] if quoted else value
    return found


def _unreadable(file: str, key: str, expected: str, got: str) -> Invalid:
    return Invalid(
        f"the file {file} of {key} cannot be used",
        expected=expected,
        got=got,
        remedy="mend it, then: countermand agents reload",
    )


def is_environment(value: object) -> bool:
    """Return True if `value` has variables by name."""
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and isinstance(text, str) and _VARIABLE.fullmatch(name) is not None and "\0" not in text
        for name, text in value.items()
    )


def is_text(value: object) -> bool:
    """Return True if `value` is a text that a process can be given, and not a blank one."""
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value


def is_texts(value: object) -> bool:
    """Return True if `value` is a list of such texts."""
    return isinstance(value, Sequence) and not isinstance(value, str) and all(is_text(one) for one in value)


def is_url(value: object) -> bool:
    """Return True if `value` is an address without a user or a query: those are secrets, which are shown nowhere."""
    return is_text(value) and _URL.fullmatch(str(value)) is not None


def names_of(value: object) -> str:
    """Return the names of a table whose values may be secret, for an error; of anything else, what it is."""
    return ", ".join(map(str, value)) if isinstance(value, Mapping) else type(value).__name__


def shown_url(value: object) -> str:
    """Return what was given for an address, for an error; nothing of one that may have a secret."""
    secret = isinstance(value, str) and any(mark in value for mark in "@?#")
    return "an address that has a user, or a key" if secret else shown(value)
