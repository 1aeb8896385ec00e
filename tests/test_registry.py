"""Pykka's registry on a table: the same answers as on its list, without the search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pykka
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pykka import ActorRef, ActorRegistry

from actors.kernel import registry
from actors.kernel.actor import Actor
from actors.kernel.dispatcher import StepDispatcher
from actors.kernel.registry import RefTable


class Probe:
    """Stands in for a ref and counts how often it was compared: what a search costs."""

    compared = 0

    def __hash__(self) -> int:
        return id(self) >> 4

    def __eq__(self, other: object) -> bool:
        Probe.compared += 1
        return self is other


def refs(count: int) -> list[ActorRef[Any]]:
    return [cast("ActorRef[Any]", Probe()) for _ in range(count)]


class Quiet(Actor):
    def on_receive(self, message: Any) -> Any:
        return message


class Other(Quiet):
    pass


@pytest.fixture
def dispatcher() -> Iterator[StepDispatcher]:
    dispatcher = StepDispatcher(seed=1)
    before = set(ActorRegistry.get_all())
    yield dispatcher
    for ref in ActorRegistry.get_all():
        if ref not in before:
            ref.stop(block=False)
    dispatcher.run_until_idle()
    dispatcher.close()


def test_importing_the_base_installs_the_table_once() -> None:
    table: object = ActorRegistry._actor_refs
    assert isinstance(table, RefTable)
    registry.install()
    again: object = ActorRegistry._actor_refs
    assert again is table


def test_installing_keeps_the_refs_that_were_registered() -> None:
    table = ActorRegistry._actor_refs
    kept = refs(3)
    with ActorRegistry._actor_refs_lock:
        try:
            ActorRegistry._actor_refs = list(kept)
            registry.install()
            installed: object = ActorRegistry._actor_refs
            assert isinstance(installed, RefTable)
            assert installed[:] == kept
        finally:
            ActorRegistry._actor_refs = table


def test_removing_a_ref_compares_none_of_the_others() -> None:
    Probe.compared = 0
    many = refs(20_000)
    table = RefTable()
    for ref in many:
        table.append(ref)
    for ref in reversed(many):
        assert ref in table
        table.remove(ref)
        assert ref not in table
    assert len(table) == 0
    # Only two of the same hash are ever compared; a list would have compared four hundred million.
    assert Probe.compared <= len(many)


def test_removing_a_ref_that_is_not_there_says_so_as_a_list_does() -> None:
    with pytest.raises(ValueError, match="not registered"):
        RefTable().remove(refs(1)[0])


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7))))
def test_the_table_answers_as_a_list_of_distinct_refs_would(operations: list[tuple[bool, int]]) -> None:
    pool = refs(8)
    table, model = RefTable(), list[ActorRef[Any]]()
    for add, number in operations:
        ref = pool[number]
        assert (ref in table) == (ref in model)
        if add and ref not in model:
            table.append(ref)
            model.append(ref)
        elif not add and ref in model:
            table.remove(ref)
            model.remove(ref)
        assert table[:] == model
        assert list(table) == model
        assert list(reversed(table)) == model[::-1]
        assert len(table) == len(model)
        assert table == model
        assert table == RefTable(model)
        assert bool(table) == bool(model)
        if model:
            assert table[0] is model[0]
            assert table[-1] is model[-1]


def test_lookups_by_class_name_and_urn_find_our_actors(dispatcher: StepDispatcher) -> None:
    quiet, other = Quiet.start(dispatcher=dispatcher), Other.start(dispatcher=dispatcher)
    assert ActorRegistry.get_by_class(Quiet) == [quiet, other]
    assert ActorRegistry.get_by_class(Other) == [other]
    assert ActorRegistry.get_by_class_name("Other") == [other]
    assert ActorRegistry.get_by_urn(quiet.actor_urn) is quiet
    assert ActorRegistry.get_by_urn("urn:nobody") is None


def test_twenty_thousand_starts_and_stops_leave_the_registry_as_it_was(dispatcher: StepDispatcher) -> None:
    before = ActorRegistry.get_all()
    started = [Quiet.start(dispatcher=dispatcher) for _ in range(20_000)]
    assert ActorRegistry.get_all() == [*before, *started]
    stopped = [ref.stop(block=False) for ref in reversed(started)]
    dispatcher.run_until_idle()
    assert all(future.get(timeout=0) for future in stopped)
    assert ActorRegistry.get_all() == before


def test_stock_pykka_actors_live_in_the_same_table() -> None:
    class Stock(pykka.ThreadingActor):
        pass

    ref = Stock.start()
    try:
        assert ref in ActorRegistry.get_all()
    finally:
        assert ref.stop()
    assert ref not in ActorRegistry.get_all()
