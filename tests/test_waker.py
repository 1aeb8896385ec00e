"""Waker: one coroutine waits, and any thread wakes it."""

from __future__ import annotations

import asyncio
import threading

from actors.kernel.waker import Waker


def test_another_thread_wakes_the_coroutine() -> None:
    async def wait() -> None:
        waker = Waker()
        threading.Thread(target=waker.wake).start()
        await waker.woken

    asyncio.run(wait())


def test_a_second_wake_has_no_effect() -> None:
    async def wait() -> None:
        waker = Waker()
        waker.wake()
        waker.wake()
        await waker.woken
        # The second one was passed to the loop as well: it runs before this does.
        await asyncio.sleep(0)

    asyncio.run(wait(), debug=True)


def test_a_wake_after_the_waiter_was_cancelled_has_no_effect() -> None:
    async def wait() -> None:
        waker = Waker()
        waiting = asyncio.ensure_future(waker.woken)
        waiting.cancel()
        waker.wake()
        await asyncio.sleep(0)
        assert waker.woken.cancelled()

    asyncio.run(wait(), debug=True)


def test_a_wake_after_the_loop_was_closed_has_no_effect() -> None:
    async def make() -> Waker:
        return Waker()

    asyncio.run(make()).wake()
