"""Signals: none is lost, however many come while nobody reads, and what is there is bounded."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

from tests.daemon_kit import PROJECT, WAIT_S


def told(script: str) -> Any:
    """What a script prints, in a process of its own, since signals are a process's."""
    head = """
        import json, os, signal, threading
        from supervisor.daemon.signals import WAKE, Signals

        def send(number, times):
            for _ in range(times):
                os.kill(os.getpid(), number)

        def all_of(signals):
            found = []
            while (number := signals.wait(0.0)) is not None:
                found.append(int(number))
            return found
    """
    command = [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(script)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_sigterm_behind_a_thousand_unread_signals_is_not_lost() -> None:
    # A socket takes fewer than three hundred bytes that come one by one.
    found = told("""
        with Signals() as signals:
            send(signal.SIGHUP, 1000)
            send(signal.SIGTERM, 1)
            print(json.dumps(all_of(signals)))
    """)
    assert found == [1, 15]


def test_what_ends_the_daemon_is_counted_and_what_reloads_it_is_not() -> None:
    found = told("""
        with Signals() as signals:
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                send(number, 1)
            first = all_of(signals)
            send(signal.SIGHUP, 1)
            again = all_of(signals)
            send(signal.SIGTERM, 1000)
            print(json.dumps([first, again, all_of(signals)]))
    """)
    assert found == [[1, 15, 2, 15], [1], [15, 15, 15]]


def test_a_wake_from_a_thread_gets_through_a_socket_that_is_full() -> None:
    found = told("""
        with Signals() as signals:
            send(signal.SIGHUP, 1000)
            waker = threading.Thread(target=signals.wake)
            waker.start()
            waker.join()
            print(json.dumps(all_of(signals)))
    """)
    assert found == [1, 0]


def test_a_waiter_is_woken_by_a_signal_and_by_a_thread() -> None:
    found = told("""
        with Signals() as signals:
            found = []
            for act in (lambda: send(signal.SIGINT, 1), signals.wake) * 50:
                other = threading.Thread(target=act)
                other.start()
                found.append(int(signals.wait()))
                other.join()
            print(json.dumps(found))
    """)
    assert found == [2, 0] * 50


def test_what_a_parent_has_blocked_is_heard_also_what_came_before_and_is_blocked_again_behind() -> None:
    found = told("""
        taken = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        signal.pthread_sigmask(signal.SIG_BLOCK, taken)
        send(signal.SIGHUP, 1)
        with Signals() as signals:
            first = all_of(signals)
            send(signal.SIGTERM, 1)
            send(signal.SIGINT, 1)
            second = sorted(all_of(signals))
        print(json.dumps([first, second, signal.pthread_sigmask(signal.SIG_BLOCK, ()) == taken]))
    """)
    assert found == [[1], [2, 15], True]


def test_what_was_ignored_stays_so_but_for_what_ends_a_daemon() -> None:
    found = told("""
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        with Signals() as signals:
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
                send(number, 1)
            print(json.dumps(all_of(signals)))
    """)
    assert found == [15]


def test_a_thread_hands_signals_on_while_the_main_thread_sleeps_elsewhere() -> None:
    # The signal goes to another thread, so nothing interrupts the main thread's sleep.
    found = told("""
        import queue
        inbox = queue.SimpleQueue()
        with Signals(hand_on=inbox.put):
            over = threading.Event()
            other = threading.Thread(target=over.wait)
            other.start()
            threading.Timer(0.2, signal.pthread_kill, (other.ident, signal.SIGINT)).start()
            number = inbox.get()
            over.set()
            other.join()
        print(json.dumps(number))
    """)
    assert found == 2


def test_signals_are_handed_on_in_their_order_and_none_is_lost_at_the_end() -> None:
    sent = [15, 2, 1, 2, 15]
    found = told(f"""
        found = []
        for _ in range(20):
            with Signals(hand_on=found.append):
                for number in {sent}:
                    send(number, 1)
        print(json.dumps([found, signal.getsignal(signal.SIGINT) is signal.default_int_handler]))
    """)
    assert found == [sent * 20, True]
