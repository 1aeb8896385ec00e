"""The model that an agent is: how it is asked, and what its errors mean. Its key is told to nobody but its provider."""

from __future__ import annotations

import importlib
import json
import os
import re
import typing
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from countermand import Invalid, Tool

from ..configured import servers

SETTINGS = "COUNTERMAND_MODEL"
"""The variable with what the agent is configured with, as JSON. The key is not in it."""
NO_KEY = "none"
"""What a server of one's own is shown, where no key is configured."""
KEY_MAX_BYTES = 4_096
SILENT_S = 600.0
"""So long a provider may say nothing."""
ERROR_MAX_CHARS = 2_000

_KEY = re.compile(r"[\x21-\x7e]+")
_TOO_LONG = re.compile(r"context.?(length|size|window|limit)|maximum context|prompt is too long", re.IGNORECASE)
_NOT_ITS_LENGTH = frozenset({401, 403, 404, 429})
_PASSES = frozenset(
    {"api_error", "overloaded_error", "rate_limit_error", "rate_limit_exceeded", "server_error", "timeout_error"}
)
"""What providers call errors that pass, where there is no status."""
_STAYS = frozenset({"billing_error", "insufficient_quota"})
"""What does not pass, though its status says so."""
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")


class BrokenOff(Exception):
    """An answer came to no end: the connection was lost."""


class Failed(Exception):
    """The provider says in its answer that it failed.

    Args:
        said: what it says: its `code` and its `message`.
    """

    def __init__(self, said: Any) -> None:
        super().__init__(getattr(said, "message", None) or "it does not say why")
        self.body = {"code": getattr(said, "code", None), "message": str(self)}


class ModelFailed(Exception):
    """A model gave no answer, or no whole one: what was said, and what to do. What of it had come is in the thread."""


class ContextLimit(ModelFailed):
    """The thread is too long for the model."""


class Model:
    """The model of this process.

    Args:
        package: that of the vendor's SDK, which has an extra of that name.
        client: the class of its client.
        key: the variable that has the key, where no file has it.
        url: the variable that has the address of the provider, where none is configured.

    Raises:
        ModuleNotFoundError: the SDK is not there.
        Invalid: there is no key; it says what to do, and shows nothing of a key.

    Attributes:
        name: the model's.
        provider: whose answers are given back to it as they came: the address of the provider, or the package.
        instructions: what the model is told before the thread; empty: nothing.
        options: further parameters of each request.
        client: the SDK's. It does not retry: see `patience`.
    """

    def __init__(self, package: str, client: str, *, key: str, url: str) -> None:
        settings: dict[str, Any] = json.loads(os.environ.pop(SETTINGS))
        self.name: str = settings["model"]
        self.instructions: str = settings.get("instructions", "")
        self.options: dict[str, Any] = settings.get("options", {})
        base_url: str | None = settings.get("base_url") or os.environ.get(url)
        self.provider = (base_url and urlsplit(base_url).netloc) or package
        # What this process starts must not get it.
        found = os.environ.pop(key, "")
        file = settings.get("key_file")
        self._key = _read_key(file) if file else found
        if not self._key and base_url is None:
            raise Invalid(
                f"there is no key for the model {self.name}",
                expected=f"key_file, or {key} in a file of env_files",
                got="neither",
                remedy="add one to the agent; a server of your own is named by base_url, and need have no key",
            )
        if servers():
            # Their adapter needs it.
            importlib.import_module("mcp")
        self.client = getattr(importlib.import_module(package), client)(
            api_key=self._key or NO_KEY, base_url=base_url, max_retries=0, timeout=SILENT_S
        )

    def shown(self, text: object) -> str:
        """Return a text of the SDK or of the provider, in which the key is never shown."""
        found = str(text)
        if self._key:
            found = found.replace(self._key, "[key]")
        return found if len(found) <= ERROR_MAX_CHARS else found[:ERROR_MAX_CHARS] + "…"

    def problem(self, error: Exception) -> Problem | None:
        """Return what an error of the SDK means; None: it is no error of the provider or of the connection."""
        kinds = {kind.__name__ for kind in type(error).__mro__}
        # Both SDKs have the same names; what the connection raises in the middle of an answer comes as it is.
        if not kinds & {"APIError", "BrokenOff", "Failed", "TransportError"}:
            return None
        status = getattr(error, "status_code", None)
        words, codes = _said(error)
        text = self.shown(" ".join(filter(None, (str(status or ""), words))))
        model = f"the model {self.name} at {self.provider}"
        if status not in _NOT_ITS_LENGTH and _TOO_LONG.search(" ".join((*codes, words))):
            remedy = "go on in a new session, or choose a model with a larger context"
            return Problem(ContextLimit(f"the thread is too long for {model}: {text}; to do: {remedy}"))
        unreached = bool(kinds & {"APIConnectionError", "BrokenOff", "TransportError"})
        if status in (None, 200):
            passes = unreached or not codes or bool(_PASSES & codes)
        else:
            passes = (status in (408, 409, 429) or status >= 500) and not _STAYS & codes
        remedy = "see what it says"
        if unreached:
            remedy = "see that it runs, and that base_url is right"
        elif status in (401, 403):
            remedy = "see that key_file or env_files has the right key"
        elif status == 404:
            remedy = "see that model and base_url are right"
        what = f"{model} cannot be reached" if unreached else f"{model} refused the request"
        if isinstance(error, BrokenOff):
            what = f"an answer of {model} broke off"
        return Problem(ModelFailed(f"{what}: {text}; to do: {remedy}"), passes=passes, wait_s=_retry_after(error))


class Problem(typing.NamedTuple):
    """What an error means: the error for people, whether it passes, and when the provider wants to be asked again."""

    error: ModelFailed
    passes: bool = False
    wait_s: float | None = None


def call(said: Any, tool: Any, arguments: str, provider_id: str | None) -> Any:
    """Ask for a call as a model has spelled it, and return it.

    Args:
        said: the answer that it is part of.
        tool: the name of a tool, or a tool that is executed here.
        arguments: JSON. If it is no object, as where the answer was cut off at its limit, the tool is not called: the
            result says so, and the model can call it again.
        provider_id: the provider's id of the call.
    """
    try:
        given = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        given = None
    if isinstance(given, dict):
        return said.call(tool, given, provider_id=provider_id)
    kept = _NOT_IN_A_NAME.sub("_", getattr(tool, "name", tool))[:64] or "unknown"
    refused = Tool(_refuse, name=kept, description="", schema={"type": "object"})
    return said.call(refused, {"arguments": arguments}, provider_id=provider_id)


def _refuse(arguments: str) -> str:
    raise Invalid(
        "the tool was not called",
        expected="arguments that are one JSON object",
        got=f"{len(arguments)} characters that are none",
        remedy="call it again, with shorter arguments if the answer was cut off",
    )


def _read_key(file: str) -> str:
    """Read a key. An error shows nothing of what is in the file."""
    try:
        with open(file, "rb") as opened:
            key = opened.read(KEY_MAX_BYTES + 1).decode().strip()
        got = f"{len(key)} characters"
    except (OSError, UnicodeDecodeError) as error:
        key, got = "", error.strerror or "" if isinstance(error, OSError) else "not a text"
    if len(key) > KEY_MAX_BYTES or _KEY.fullmatch(key) is None:
        raise Invalid(
            f"the file {file} of key_file cannot be used",
            expected="a key and nothing else, in a file that the user of the agent may read",
            got=got,
            remedy="mend it, then: countermand agents reload",
        )
    return key


def _said(error: Any) -> tuple[str, set[str]]:
    """Return the words of an error, and what the provider calls it."""
    found = getattr(error, "body", None)
    inner = found.get("error") if isinstance(found, Mapping) else None
    body = inner if isinstance(inner, Mapping) else found if isinstance(found, Mapping) else {}
    codes = {str(body[name]) for name in ("type", "code") if body.get(name)}
    cause = getattr(error, "__cause__", None)
    words = str(body.get("message") or error)
    return (f"{words} {cause}" if cause is not None and not body else words), codes


def _retry_after(error: Any) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    for name, part in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * part)
        except (KeyError, ValueError):
            # Not there, or a date.
            continue
    return None
