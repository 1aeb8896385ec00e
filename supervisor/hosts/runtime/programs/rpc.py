"""Rpc: requests and answers in JSON, as ACP and the app server of Codex have them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import CountermandError

if TYPE_CHECKING:
    from .program import Program

METHOD_NOT_FOUND = -32601
RESOURCE_NOT_FOUND = -32002
"""The code that ACP has for it."""
GONE = re.compile(
    r"""(sessions?|thread|conversation|rollout)[\s\w:."'`/\\-]{0,80}(not found|no such file|(does not|doesn't) exist)"""
    r"""|(session|thread|conversation)_not_found"""
    r"""|(no|unknown|invalid|find|locate)( \w+)? (session(_?id)?s?|rollout|thread|conversation)"""
    r"""(?=[:"'`]| found| id| with| \w+$|$)"""
    # Of a session that is gone OpenCode says no more.
    r"""|OpenCode service failure.*'service': 'session'""",
    re.IGNORECASE | re.DOTALL,
)
"""How programs say that they have no such session; most have no code for it."""
NOT_GONE = re.compile(r"authenticat|credential|api[ _-]?key", re.IGNORECASE)
"""What is said of an error that the user can mend: the session is kept."""

Handle = Callable[[dict[str, Any]], Awaitable[None]]
"""Takes a message of the program that is no answer."""
Quiet = Callable[[float], Awaitable[object]]
"""Is told for how many seconds nothing has come."""


class RpcError(CountermandError):
    """The program refused a request."""

    def __init__(self, program: str, method: str, error: Mapping[str, Any]) -> None:
        data = error.get("data")
        said = f"{error.get('message')}" + (f" ({data})" if data else "")
        super().__init__(f"{program} refused {method}: {said}", code="program_refused")
        self.number = error.get("code")
        says_gone = GONE.search(said) is not None and NOT_GONE.search(said) is None
        self.gone = self.number in (METHOD_NOT_FOUND, RESOURCE_NOT_FOUND) or says_gone
        """Whether the session that it was to resume is gone for good: any other error may pass."""


class Rpc:
    """The requests to a program. One task takes its messages: that of the turn.

    Args:
        program: the program.
        more: further members of each message.
    """

    def __init__(self, program: Program, more: Mapping[str, Any]) -> None:
        self.program = program
        self._more = dict(more)
        self._numbers = itertools.count(1)

    async def send(self, method: str, params: Mapping[str, Any]) -> int:
        """Send a request; returns its number."""
        number = next(self._numbers)
        await self.program.write({**self._more, "id": number, "method": method, "params": dict(params)})
        return number

    async def answer_to(self, number: int, method: str, handle: Handle, quiet: Quiet | None = None) -> Any:
        """Take messages until the answer to a request; the others are handled, in their order.

        Raises:
            RpcError: the program refused it.
            ProgramEnded: the program has ended.
        """
        while True:
            message = await self.program.next(quiet)
            if "method" in message:
                await handle(message)
            elif message.get("id") == number:
                if "error" in message:
                    raise RpcError(self.program.name, method, message["error"] or {})
                return message.get("result")

    async def ask(self, method: str, params: Mapping[str, Any]) -> Any:
        """Send a request and return its answer; what comes before that is refused, or dropped. See `answer_to`."""
        return await self.answer_to(await self.send(method, params), method, self.refuse)

    async def note(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification."""
        await self.program.write({**self._more, "method": method, "params": dict(params)})

    async def answer(self, message: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Answer a request of the program."""
        await self.program.write({**self._more, "id": message["id"], "result": dict(result)})

    async def refuse(self, message: Mapping[str, Any]) -> None:
        """Refuse a request of the program; a notification is dropped."""
        if "id" in message:
            error = {"code": METHOD_NOT_FOUND, "message": f"{message.get('method')} is not offered here"}
            await self.program.write({**self._more, "id": message["id"], "error": error})
