"""The JSON schema of the protocol, made from the structs of `frames`. `scripts/host_schema.py` writes it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from actors.model import JsonObject
from supervisor.hosts.frames import FROM_DAEMON, FROM_HOST, PROTOCOLS, Method
from supervisor.hosts.lines import ID_MAX, ErrorObject

_ID: Final = {"type": "integer", "minimum": 1, "maximum": ID_MAX}
_VERSION: Final = {"const": "2.0"}


def document() -> str:
    """Return the text of docs/host-protocol.json."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema() -> JsonObject:
    """Return the schema of a frame. `$defs/from_host` and `$defs/from_daemon` are the frames of each direction."""
    kinds = [kind for method in (*FROM_HOST, *FROM_DAEMON) for kind in (method.params, method.result) if kind]
    _, shared = msgspec.json.schema_components([*kinds, ErrorObject], ref_template="#/$defs/{name}")  # noqa: TID251
    own: dict[str, JsonObject] = {}
    directions = {
        "from_host": [*_asked("host", FROM_HOST, own), *_answered("host", FROM_DAEMON, own)],
        "from_daemon": [*_asked("daemon", FROM_DAEMON, own), *_answered("daemon", FROM_HOST, own)],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A frame between a Countermand daemon and a host",
        "description": f"One line of protocol {', '.join(map(str, PROTOCOLS))}; docs/host-protocol.md has the rules. "
        "Further fields may come, and are ignored.",
        "anyOf": [_ref(direction) for direction in directions],
        "$defs": {
            **{direction: {"anyOf": [_ref(name) for name in names]} for direction, names in directions.items()},
            **own,
            **{name: shared[name] for name in sorted(shared)},
        },
    }


def _asked(sender: str, methods: Iterable[Method], own: dict[str, JsonObject]) -> list[str]:
    """Describe the requests and notifications that `sender` sends; returns their names."""
    names = []
    for method in methods:
        name = f"{sender}_{_word(method)}"
        keys: dict[str, Any] = {"jsonrpc": _VERSION, "method": {"const": method.name}, "params": _of(method.params)}
        if method.result is not None:
            keys["id"] = _ID
        # Parameters of which none is required may be left out.
        required = [key for key in keys if key != "params" or _needs(method)]
        own[name] = {"type": "object", "properties": keys, "required": required}
        names.append(name)
    return names


def _answered(sender: str, methods: Iterable[Method], own: dict[str, JsonObject]) -> list[str]:
    """Describe the answers that `sender` sends; returns their names."""
    names = []
    for method in methods:
        if method.result is not None:
            name = f"{sender}_answers_{_word(method)}"
            keys = {"jsonrpc": _VERSION, "id": _ID, "result": _of(method.result)}
            own[name] = {"type": "object", "properties": keys, "required": list(keys)}
            names.append(name)
    failed = f"{sender}_refuses"
    keys = {"jsonrpc": _VERSION, "id": _ID, "error": _of(ErrorObject)}
    own[failed] = {"type": "object", "properties": keys, "required": list(keys)}
    return [*names, failed]


def _word(method: Method) -> str:
    """Return a method's name for a reference, in which a slash would be a step."""
    return method.name.removeprefix("$/")


def _needs(method: Method) -> bool:
    return any(field.required for field in msgspec.structs.fields(method.params))


def _of(kind: type[msgspec.Struct]) -> JsonObject:
    return _ref(kind.__name__)


def _ref(name: str) -> JsonObject:
    return {"$ref": f"#/$defs/{name}"}
