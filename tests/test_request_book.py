"""The book of requests: what it forgot it knows that it forgot, also after a restart (law L10)."""

from __future__ import annotations

import pytest

from actors import Resume, Stop
from actors.errors import RequestTooOld
from actors.ports import RequestRow
from actors.protocol.request_book import RequestBook
from actors.requests import Resumed
from tests.laws.test_l10_once import made_at

NOW = 2_000_000_000
KEPT_S = 7 * 86_400.0
ANSWER = Resumed("run_1", 1)


def book() -> RequestBook:
    return RequestBook("s", kept=3, kept_s=KEPT_S)


def filled(requests: list[Resume]) -> tuple[RequestBook, list[RequestRow]]:
    made = book()
    return made, [made.answered(request, ANSWER, NOW + place) for place, request in enumerate(requests)]


def test_l10_what_was_forgotten_is_too_old_after_a_restart_too() -> None:
    requests = [Resume(id=made_at(NOW + place)) for place in range(6)]
    before, rows = filled(requests)
    after = book()
    after.restore(rows[-3:], before.forgotten_to)
    for one in (before, after):
        for request in requests[:3]:
            with pytest.raises(RequestTooOld):
                one.known(request, NOW + 10)
        for request in requests[3:]:
            assert one.known(request, NOW + 10) == ANSWER
        assert one.known(Resume(id=made_at(NOW + 7)), NOW + 10) is None


def test_l10_an_id_from_a_clock_that_is_ahead_makes_no_fresh_request_too_old() -> None:
    ten_years = 10 * 365 * 86_400
    made, _ = filled([Resume(id=made_at(NOW + ten_years)), *[Resume(id=made_at(NOW + place)) for place in range(1, 5)]])
    assert made.forgotten_to <= NOW + 5
    assert made.known(Resume(id=made_at(NOW + 6)), NOW + 6) is None


def test_l10_what_was_made_before_a_deletion_is_too_old_and_its_repeats_are_wherever_the_clock_is() -> None:
    requests = [Resume(id=made_at(NOW + place)) for place in range(3)]
    made, _ = filled(requests)
    rows = made.forget(NOW + 10.0, repeats=True)
    after = book()
    after.restore(rows, made.forgotten_to)
    for one in (made, after):
        for at in (NOW + 10.0, NOW + 9.0, NOW - 3600.0, NOW - 10.0 * KEPT_S, NOW + 10.0 * KEPT_S):
            for request in requests:
                with pytest.raises(RequestTooOld):
                    one.known(request, at)
        with pytest.raises(RequestTooOld):
            one.known(Resume(id=made_at(NOW + 5)), NOW + 10.0)


@pytest.mark.parametrize("back_s", [11.0, 3600.0, 3 * 365 * 86_400.0])
def test_l10_a_clock_that_is_set_back_makes_no_new_request_too_old(back_s: float) -> None:
    made, _ = filled([Resume(id=made_at(NOW + place)) for place in range(3)])
    made.forget(NOW + 10.0, repeats=True)
    at = NOW + 10.0 - back_s
    # Made just now, by this clock, or by one that is a little behind or ahead of it.
    for skew_s in (-5, 0, 5):
        assert made.known(Resume(id=made_at(int(at) + skew_s)), at) is None
    # Made before the deletion, by the clock as it was: it is not from now.
    if back_s > 120.0:
        with pytest.raises(RequestTooOld):
            made.known(Resume(id=made_at(NOW + 1)), at)


def test_l10_what_is_forgotten_by_a_clock_that_was_set_back_is_too_old_for_that_clock() -> None:
    made = book()
    made.forget(NOW + 1_000.0, repeats=True)
    requests = [Resume(id=made_at(NOW + place)) for place in range(6)]
    for place, request in enumerate(requests):
        assert made.known(request, NOW + place) is None
        made.answered(request, ANSWER, NOW + place)
    for request in requests[:3]:
        with pytest.raises(RequestTooOld):
            made.known(request, NOW + 10)
    assert made.known(Resume(id=made_at(NOW + 9)), NOW + 10) is None


def test_l10_answers_of_a_clock_that_was_ahead_make_no_request_too_old_when_they_are_forgotten() -> None:
    ten_years = 10 * 365 * 86_400
    made = book()
    for place in range(6):
        ahead = ten_years if place < 3 else 0
        made.answered(Resume(id=made_at(NOW + ahead + place)), ANSWER, NOW + ahead + place)
    assert made.forgotten_to <= NOW + 6
    assert made.known(Resume(id=made_at(NOW + 7)), NOW + 7) is None


def test_l14_a_stop_is_never_too_old() -> None:
    made, _ = filled([Resume(id=made_at(NOW + place)) for place in range(6)])
    for at in (1, NOW):
        assert made.known(Stop(id=made_at(at), source="user.test", reason="enough"), NOW + 10) is None


def test_l10_an_answer_is_in_doubt_until_the_deletion_that_forgot_it_is_stored() -> None:
    made = book()
    first, second = Stop(source="user.test", reason="x"), Stop(source="user.test", reason="y")
    made.answered(first, ANSWER, NOW)
    made.forget(NOW + 1.0, repeats=True)
    made.answered(second, ANSWER, NOW + 2.0)
    assert made.in_doubt(first.id)
    assert not made.in_doubt(second.id)
    made.forget(NOW + 3.0, repeats=True)
    made.forgotten()
    assert not made.in_doubt(first.id), "what is kept of a deletion is an id, and no answer"
    assert made.in_doubt(second.id)
    made.forgotten()
    assert not made.in_doubt(second.id)
