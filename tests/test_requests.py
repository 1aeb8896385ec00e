"""The book of requests: what it forgot it knows that it forgot, also after a restart (law L10)."""

from __future__ import annotations

import pytest

from actors import Resume, Stop
from actors.errors import RequestTooOld
from actors.messages import Resumed
from actors.ports import RequestRow
from actors.requests import RequestBook
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


def test_l14_a_stop_is_never_too_old() -> None:
    made, _ = filled([Resume(id=made_at(NOW + place)) for place in range(6)])
    for at in (1, NOW):
        assert made.known(Stop(id=made_at(at), source="user.test", reason="enough"), NOW + 10) is None
