"""What the API says of a store with a real fault: alive, not ready and why, what helps; and when that is over."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import httpx
import pytest

from actors import NewMessage
from supervisor.states import StoreFault
from supervisor.store.health import JOURNAL_HANGS_S, REMEDIES
from tests.http_kit import Api, api, code
from tests.kit import WAIT_S, check_rest, kit, until
from tests.store_kit import small_disk
from tests.test_http_metrics import value
from tests.test_http_sessions import answers, get, running, say, stop, waits
from tests.test_store import Owner, batch, text
from tests.test_store_faults import PATIENCE_S, STORE, agent, damage, locked_by_another, put

__all__ = ["api", "kit"]


def not_ready(client: httpx.Client) -> dict[str, object]:
    """What readiness says once it says no; the daemon is alive all the same."""
    until(lambda: client.get("/v1/ready").status_code == 503, "it is not ready")
    assert get(client, "/v1/health") == {"status": "ok"}
    found = client.get("/v1/ready").json()
    assert found["reason"]
    assert found["remedy"]
    assert found["supervisor"] is True
    return dict(found)


def finding(client: httpx.Client, check: str) -> dict[str, object]:
    """What `doctor` found of one thing; what is wrong has a remedy."""
    (found,) = (one for one in get(client, "/v1/doctor")["findings"] if one["check"] == check)
    assert found["ok"] or found["remedy"]
    return dict(found)


def test_a_store_that_is_well_is_said_to_be(api: Api) -> None:
    client = api.start(answers)
    say(client)
    check_rest(api.session())
    ready = get(client, "/v1/ready")
    assert (ready["ready"], ready["store_state"], ready["reason"], ready["remedy"]) == (True, "ok", "", "")
    assert all(finding(client, check)["ok"] for check in ("store", "store contents", "stop journal"))
    assert value(client, "store_state", state="ok") == value(client, "store_writable") == 1
    assert value(client, "store_reopened_total") == value(client, "stop_journal_kept") == 0
    assert value(client, "stop_journal_slots_free") > 0


def test_a_store_that_another_process_has_locked(api: Api) -> None:
    client = api.start(waits)
    say(client)
    running(client)
    with locked_by_another(api.supervisor.state_dir / STORE, PATIENCE_S):
        assert stop(client)["durable"] is False
        found = not_ready(client)
        assert found["remedy"] == REMEDIES[StoreFault.LOCKED]
        assert "wait" in str(found["reason"])
        store = finding(client, "store")
        assert store["ok"] is False
        assert REMEDIES[StoreFault.LOCKED] in str(store["remedy"])
        assert "1 stops kept" in str(finding(client, "stop journal")["found"])
        assert value(client, "store_state", state="ok") == 0
        assert value(client, "store_waiting_seconds") > 0
        assert value(client, "stop_journal_kept") == 1
    until(lambda: client.get("/v1/ready").status_code == 200, "it is ready when the lock is gone")
    until(lambda: value(client, "stop_journal_kept") == 0, "the journal lets it go")
    assert finding(client, "store")["ok"] is True


def test_a_store_whose_disk_is_full(api: Api, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16 * 1024 * 1024) as disk, contextlib.ExitStack() as stack:
        api.kit.state_dir = disk.path
        client = api.start(answers)
        # Before the disk goes.
        stack.callback(api.supervisor.close)
        say(client)
        check_rest(api.session())
        disk.fill()

        def refused() -> bool:
            body = {"content": "x" * 50_000, "policy": "enqueue"}
            response = client.post("/v1/sessions/s1/messages", json=body)
            return response.status_code == 503 and code(response) == "store_unavailable"

        until(refused, "the disk takes nothing more")
        found = not_ready(client)
        assert (found["store_state"], found["remedy"]) == ("failing", REMEDIES[StoreFault.FULL])
        assert "full" in str(found["reason"])
        until(lambda: stop(client)["durable"] is False, "a Stop is taken all the same")
        store = finding(client, "store")
        assert store["ok"] is False
        assert "full" in str(store["found"])
        assert "opened again" in str(store["found"])
        assert value(client, "store_state", state="failing") == 1
        assert value(client, "store_writable") == 0
        assert value(client, "store_reopened_total") > 0
        assert value(client, "store_failed_timestamp_seconds") > 0
        assert value(client, "stop_journal_kept") > 0
        disk.free()
        until(lambda: client.get("/v1/ready").status_code == 200, "it is ready when there is room")
        healed = finding(client, "store")
        assert healed["ok"] is True
        assert "last error" in str(healed["found"]), "what it was is still said"


def test_a_store_with_a_damaged_page_is_ready_and_named(api: Api) -> None:
    supervisor = api.kit.start(agent)
    for name, content in (("bad", "say " + "EVIL" * 20_000), ("good", "say")):
        session = supervisor.session(name)
        session.ask(NewMessage(content=content), timeout=WAIT_S)
        check_rest(session)
    supervisor.close()
    api.kit.supervisor = None
    was = damage(api.kit.state_dir / STORE, b"EVIL" * 900, b"good")
    client = api.start(agent)
    assert client.post("/v1/sessions/bad/messages", json={"content": "more"}).status_code == 503
    until(lambda: get(client, "/v1/ready")["store_state"] == "damaged", "it is named")
    ready = get(client, "/v1/ready")
    assert ready["ready"] is True, "it takes what is not on that page"
    store = finding(client, "store")
    assert store["ok"] is False
    assert "damaged" in str(store["found"])
    assert REMEDIES[StoreFault.MALFORMED] in str(store["remedy"])
    assert value(client, "store_state", state="damaged") == value(client, "store_writable") == 1
    say(client, "say more", session="good")
    put(api.kit.state_dir / STORE, was)


def test_a_batch_that_cannot_be_stored_is_counted_and_named(api: Api) -> None:
    client = api.start(answers)
    owner = Owner()
    api.supervisor._store.commit(batch(1, session="ill", events=(text(1, "half \ud800", "ill"),)), owner.ref)
    assert owner.next().unfit
    assert get(client, "/v1/ready")["ready"] is True, "the store is well"
    contents = finding(client, "store contents")
    assert contents["ok"] is False
    assert "session ill: batch 1" in str(contents["found"])
    assert value(client, "store_unfit_batches_total") == 1


def test_a_journal_that_cannot_be_written_is_named_until_it_can(api: Api) -> None:
    client = api.start(waits)
    say(client)
    running(client)
    journal = api.supervisor._store.journal
    aside = journal._path.with_name("aside")
    journal._path.rename(aside)
    journal._path.mkdir()
    full = os.open("/dev/full", os.O_WRONLY | os.O_CLOEXEC)
    assert journal._fd is not None
    os.dup2(full, journal._fd, inheritable=False)
    os.close(full)
    with locked_by_another(api.supervisor.state_dir / STORE, PATIENCE_S):
        assert stop(client)["durable"] is False
        until(lambda: not finding(client, "stop journal")["ok"], "it is named")
        assert value(client, "stop_journal_failing") == 1
        assert value(client, "stop_journal_unwritten") > 0
        journal._path.rmdir()
        aside.rename(journal._path)
        until(lambda: finding(client, "stop journal")["ok"], "it heals by itself")
        assert value(client, "stop_journal_kept") == 1
        assert value(client, "stop_journal_failing") == 0


def test_a_journal_whose_disk_hangs_is_named_until_it_answers(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    client = api.start(waits)
    say(client)
    running(client)
    journal = api.supervisor._store.journal
    answers_again, hung = threading.Event(), threading.Event()

    def hang(fd: int) -> None:
        """A sync that does not come back, and raises nothing, while the disk is away: that of the journal alone."""
        if fd == journal._fd:
            hung.set()
            answers_again.wait()

    monkeypatch.setattr(os, "fdatasync", hang)
    try:
        with locked_by_another(api.supervisor.state_dir / STORE, PATIENCE_S):
            stopped = stop(client)
            assert (stopped["durable"], stopped["journalled"]) == (False, False)
            assert hung.wait(WAIT_S)
        until(lambda: client.get("/v1/ready").json()["store_state"] == "ok", "the store is well again")
        until(lambda: not finding(client, "stop journal")["ok"], "it is named")
        found = finding(client, "stop journal")
        assert "hangs" in str(found["found"])
        assert "disk" in str(found["remedy"])
        ready = get(client, "/v1/ready")
        assert (ready["ready"], ready["journal"]) == (True, False), "messages and stops are the store's to keep"
        assert value(client, "stop_journal_failing") == 1
        assert value(client, "stop_journal_writing_seconds") > JOURNAL_HANGS_S
    finally:
        answers_again.set()
    until(lambda: finding(client, "stop journal")["ok"], "it goes on by itself")
    assert get(client, "/v1/ready")["journal"] is True
    assert value(client, "stop_journal_failing") == value(client, "stop_journal_writing_seconds") == 0


def test_a_supervisor_that_is_being_shut_down_says_so(api: Api) -> None:
    client = api.start(waits)
    say(client)
    running(client)
    drain = threading.Thread(target=lambda: api.supervisor.drain(WAIT_S))
    drain.start()
    try:
        found = not_ready(client)
        assert "shut down" in str(found["reason"])
        assert found["store"] is True
    finally:
        api.supervisor.hurry()
        drain.join(WAIT_S)


def test_what_only_reads_is_answered_while_it_is_being_shut_down(api: Api) -> None:
    client = api.start(waits)
    run_id = say(client, session="stored")["run_id"]
    stop(client, session="stored")
    check_rest(api.session("stored"))
    api.close_server()
    assert api.kit.close()
    client = api.start(waits)
    say(client)
    running(client)
    assert api.supervisor.resident() == ["s1"]
    quiet: list[bool] = []
    drain = threading.Thread(target=lambda: quiet.append(api.supervisor.drain(WAIT_S)))
    drain.start()
    try:
        not_ready(client)
        mine = "/v1/sessions/stored"
        assert get(client, mine)["state"] == "idle"
        for name in ("thread", "waiting", "runs", "log", "processes", f"runs/{run_id}", f"receipts/{run_id}"):
            assert client.get(f"{mine}/{name}").status_code == 200, name
        for name in ("sessions", "processes", f"runs/{run_id}", "runs?start=run_", "dead-letters", "doctor", "info"):
            assert client.get(f"/v1/{name}").status_code == 200, name
        refused = client.post("/v1/sessions/stored2/messages", json={"content": "x"})
        assert (refused.status_code, code(refused)) == (503, "shutting_down")
    finally:
        api.supervisor.hurry()
        drain.join(WAIT_S)
    assert quiet == [True], "who is read keeps nobody"


def test_the_layers_of_containment_are_named_and_what_one_that_is_missing_takes(api: Api) -> None:
    client = api.start(answers, layers=("subreaper", "marker"))
    held = finding(client, "containment")
    assert held["ok"] is True, "the others hold"
    assert str(held["found"]).startswith("marker, subreaper; process trees have no cgroups: it is switched off")
    assert "Delegate=yes" in str(held["remedy"])


def test_a_daemon_that_has_cgroups_says_where(api: Api) -> None:
    client = api.start(answers)
    layers = api.supervisor.layers()
    if layers.cgroup is None:
        pytest.skip(f"no cgroup is to be had: {layers.why_not}")
    held = finding(client, "containment")
    assert f"cgroups below {layers.cgroup}" in str(held["found"])
    assert "cgroup" in layers.names
    assert not held["remedy"]


def test_the_spool_is_said_with_its_size_and_its_bound(api: Api) -> None:
    client = api.start(spool_total_bytes=8 * 1_048_576)
    assert str(finding(client, "spool")["found"]).startswith("0 files")
    say(client, "head -c 3145728 /dev/zero | tr '\\0' x")
    check_rest(api.session())
    assert str(finding(client, "spool")["found"]) == "1 file of long outputs, 3.0 of at most 8 MiB"
