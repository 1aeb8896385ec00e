"""The private parts of Pykka that the actors stand on, as they are in the version that is pinned."""

from __future__ import annotations

import importlib.metadata
import inspect
import threading
from typing import Any

import pykka
from pykka import _actor, _envelope, _future, _ref, _registry, _threading, messages


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_pykka_is_the_version_that_was_read() -> None:
    assert importlib.metadata.version("pykka").startswith("4.5.")


def test_start_calls_the_hooks_that_the_base_implements() -> None:
    source = inspect.getsource(pykka.Actor.start)
    assert "cls(*args, **kwargs)" in source
    assert "ActorRegistry.register(obj.actor_ref)" in source
    assert "obj._start_actor_loop()" in source
    abstract = pykka.Actor.__abstractmethods__
    assert abstract == {"_create_actor_inbox", "_create_future", "_start_actor_loop"}
    assert isinstance(inspect.getattr_static(pykka.Actor, "_create_actor_inbox"), staticmethod)
    assert isinstance(inspect.getattr_static(pykka.Actor, "_create_future"), staticmethod)


def test_the_constructor_sets_the_four_fields_that_the_base_sets_and_no_other() -> None:
    class Plain(pykka.ThreadingActor):
        pass

    assert set(vars(Plain())) == {"actor_urn", "actor_inbox", "actor_stopped", "_actor_ref"}


def test_the_hooks_have_the_signatures_that_the_base_overrides() -> None:
    assert parameters(pykka.Actor._stop) == ["self"]
    failure = ["self", "exception_type", "exception_value", "traceback"]
    assert parameters(pykka.Actor._handle_failure) == failure
    assert parameters(pykka.Actor.on_failure) == failure
    assert parameters(pykka.Actor._handle_receive) == ["self", "message"]
    for hook in (pykka.Actor.on_start, pykka.Actor.on_stop):
        assert parameters(hook) == ["self"]


def test_a_ref_uses_of_its_actor_what_the_base_provides() -> None:
    class Plain(pykka.ThreadingActor):
        pass

    actor = Plain()
    ref = actor.actor_ref
    assert set(vars(ref)) == {"_actor_weakref", "actor_class", "actor_urn", "actor_inbox", "actor_stopped"}
    assert ref.actor_inbox is actor.actor_inbox
    assert "self.actor_stopped.is_set()" in inspect.getsource(_ref.ActorRef.is_alive)
    assert "self.actor_class._create_future()" in inspect.getsource(_ref.ActorRef.ask)
    assert "self.actor_inbox.put(Envelope(message, reply_to=future))" in inspect.getsource(_ref.ActorRef.ask)
    assert "ask_future.__class__()" in inspect.getsource(_ref.ActorRef.stop)


def test_an_inbox_is_put_get_and_empty() -> None:
    names = {name for name in vars(_actor.ActorInbox) if not name.startswith("_")}
    assert names == {"put", "get", "empty"}


def test_an_envelope_is_a_message_and_where_to_reply() -> None:
    assert parameters(_envelope.Envelope.__init__) == ["self", "message", "reply_to"]
    assert _envelope.Envelope("m").reply_to is None


def test_the_stop_message_is_a_plain_tuple_class() -> None:
    assert messages._ActorStop() == ()
    assert messages._ActorStop._fields == ()


def test_a_future_keeps_its_state_where_the_reply_future_looks() -> None:
    future: pykka.ThreadingFuture[int] = pykka.ThreadingFuture()
    assert future._result is None
    assert future._get_hook is None
    assert isinstance(future._get_hook_result, _future._Unset)
    assert isinstance(future._condition, threading.Condition)
    assert future._condition.acquire(blocking=False)
    assert future._condition.acquire(blocking=False), "its lock may be taken again by the thread that has it"
    future._condition.release()
    future._condition.release()
    assert _threading.ThreadingFutureResult._fields == ("value", "exc_info")
    future.set(1)
    assert future._result == _threading.ThreadingFutureResult(value=1)


def test_the_registry_uses_its_list_by_the_operations_that_the_table_has() -> None:
    source = inspect.getsource(_registry.ActorRegistry)
    uses = [line.strip() for line in source.splitlines() if "_actor_refs" in line and "_lock" not in line]
    assert uses == [
        "_actor_refs: ClassVar[list[ActorRef[Any]]] = []",
        "return cls._actor_refs[:]",
        "for ref in cls._actor_refs",
        "for ref in cls._actor_refs",
        "refs = [ref for ref in cls._actor_refs if ref.actor_urn == actor_urn]",
        "cls._actor_refs.append(actor_ref)",
        "if actor_ref in cls._actor_refs:",
        "cls._actor_refs.remove(actor_ref)",
    ]
