"""The simulator: schedules that nobody chose, the laws after every step, and mutants that have to be caught.

`scripts/sim` plays as many as one likes; here are a few hundred, some the same each time and some new each time.

The file has over 600 lines, and is whole: most of it is one table, of the schedules that have found a fault.
"""

from __future__ import annotations

import gc
import json
import secrets
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pykka import ActorRef
from rich.console import Console

from actors.model import Barrier
from actors.ports import Batch, HostedAgent, KeptStop, Settings
from actors.requests import NewMessage, Stop
from supervisor.router import SupervisorActor
from supervisor.store import tables
from supervisor.store.events import events as read_events
from supervisor.store.events import thread
from supervisor.store.journal import StopJournal
from supervisor.store.rows import unfinished
from supervisor.store.schema import migrations
from supervisor.store.snapshot import snapshot
from supervisor.store.thread_end import thread_end
from tests.sim import main
from tests.sim.client import Client
from tests.sim.disk import Disk
from tests.sim.hosts import Hosting
from tests.sim.mutants import MUTANTS, Mutant
from tests.sim.schedule import Schedule, broken, draw, shrink
from tests.sim.store import SimStore
from tests.sim.timeline import timeline
from tests.sim.watch import LawBroken, Watch
from tests.sim.world import World, quiet_log

CHUNK = 50
FRESH = secrets.randbelow(1 << 40)
KEPT_S = 7 * 86_400.0
LIMITS = Settings(agent="scripted", queue_max=2, calls_open_max=2, processes_max=2)

REGRESSIONS = {
    # The simulator took the child runs that outlived their calls for parts beyond what a receipt lists.
    "child runs are open beside as many calls and trees as may be": Schedule(
        1852692181,
        Settings(agent="scripted", queue_max=2, credit_events=1, calls_open_max=2, processes_max=2),
        (
            (
                "new",
                "delegate=other/late:9 crowd=4 delegate=other/stubborn files=1 sleep=1 crowd=4",
                None,
                "user",
                True,
                None,
            ),
            ("wait", 0.05),
            ("child", 1, ("stop", "graceful", None, None, "session", "user", None)),
            ("wait", 0.05),
            ("hold", True),
            ("new", "say=1", None, "user", True, None),
            ("wait", 9.0),
        ),
        parts_max=6,
        hosting=Hosting(1604522978, HostedAgent("scripted", overlap=False)),
    ),
    # The simulator counted what a run had used although the batch erased it: a Stop that names it was stored with that.
    # Its answer said that it had withdrawn what waited. The store had not taken the start of its run, and the rest ran.
    "a Stop ends a run whose start is lost, and withdraws what waits": Schedule(
        2040223160,
        Settings(agent="scripted", run_deadline_s=3.0, children_max=1),
        (
            ("at", "t", ("stop", "graceful", 0, "keep", "session", "bot", 5.0)),
            ("wait", 0.05),
            ("new", "late=4", None, "user", True, None),
            (
                "new",
                "delegate=broken/sleep:60 sleep=0.3 steer effect=3 say=1 draws=3 to=scripted",
                "enqueue",
                "user",
                True,
                0.5,
            ),
            ("steps", 9),
            ("lose", 2),
            ("steps", 60),
            ("new", "delegate=other@s/run:30,ignores_term", "enqueue", "bot", False, None),
            ("new", "to=broken", None, "user", True, None),
            ("new", "delegate=other/run:30,children=2", "steer", "bot", True, 0.5),
            ("new", "hand_off=other", "steer", "user", False, None),
            ("steps", 20),
            ("stop", "graceful", 3, "withdraw", "run", "bot", None),
            ("unfit", 2),
        ),
    ),
    "a Stop that came too late is stored with the deletion": Schedule(
        1577489515,
        Settings(agent="scripted"),
        (
            ("new", "gate=4", None, "user", True, None),
            ("wait", 9.0),
            ("stop", "graceful", 2, None, "session", "bot", None),
            ("hold", True),
            ("delete",),
            ("poison", 0, 0, False),
            ("steps", 15),
        ),
    ),
    # The store was asked for the receipt of a child run. It was not waited for: its session was deleted meanwhile.
    "a child run ends late, and its session is deleted at once": Schedule(
        73009360361,
        Settings(agent="scripted", passivate_s=1.0, max_tokens=2),
        (
            ("new", "left_delegate=other/late:9 answer_left=1", None, "user", True, None),
            ("steps", 15),
            ("wait", 9.0),
            ("hold", True),
            ("idle", 4),
            ("child", 0, ("delete",)),
        ),
    ),
    # A receipt waited for ever: a Stop had named a tree of the session, and the run that had asked for it ended first.
    "a tree that a Stop ends is voided before its spawn": Schedule(
        269507841908,
        Settings(agent="scripted", barrier=Barrier.STRICT),
        (
            ("new", "late=4", None, "user", True, None),
            ("wait", 0.05),
            ("new", "serve=60", None, "user", True, None),
            ("steps", 35),
            ("stop", "immediate", 2, "park", "session", "user", 0.0),
            ("stop", "graceful", None, None, "run", "user", None),
        ),
    ),
    # A result with files was given to the agent before they were durable, where the call's actor had failed.
    "an actor fails at a result with files": Schedule(
        2594152111,
        Settings(agent="scripted", queue_max=2, credit_events=1, calls_open_max=1, processes_max=1, passivate_s=0.05),
        (("new", "draws=3", None, "user", True, None), ("wait", 0.05), ("poison", 2, 1, True)),
    ),
    # The session failed: behind a deletion that was not stored, it took a message for the Stop whose id it had.
    "a message has the id of a Stop that waits behind a deletion": Schedule(
        1051457002,
        Settings(agent="scripted", call_deadline_s=2.0),
        (
            ("stop", "graceful", None, None, "run", "user", None),
            ("wait", 0.05),
            ("hold", True),
            ("delete",),
            ("repeat", 0),
            ("reuse", 2),
            ("steps", 20),
        ),
    ),
    # The simulator took a run that a message in memory had taken over from for one that a later Stop had ended.
    "a Stop joins a run, and the next, not begun, is over by what no store has": Schedule(
        755688429,
        Settings(agent="scripted"),
        (
            ("new", "run=30,children=2,output=3", None, "user", True, None),
            ("wait", 0.5),
            ("new", "say=1", None, "user", True, None),
            ("new", "say=1", None, "user", True, None),
            ("delete",),
            ("steps", 8),
            ("stop", "graceful", None, None, "run", "user", None),
            ("hold", True),
            ("wait", 1.0),
            ("crash",),
        ),
    ),
    # The simulator took the repeat of a Stop behind a deletion for the Stop that the deletion forgot.
    "a kept Stop that is sent again behind a deletion": Schedule(
        2193160720,
        Settings(agent="scripted"),
        (
            ("hold_reads", True),
            ("later", 0.0, ("stop", "immediate", None, "park", "run", "user", None)),
            ("steps", 1),
            ("new", "say=1", None, "user", True, None),
            ("stop", "graceful", None, None, "run", "user", None),
            ("delete",),
            ("wait", 3.0),
            ("wait", 3.0),
            *[("new", "say=1", None, "user", True, None)] * 4,
            ("restop", 2),
        ),
    ),
    # The simulator asked only the record whose tree it is: a hand-over that the store holds back is not there yet.
    "a Stop that kills behind a hand-over that is not stored yet": Schedule(
        3855177525,
        Settings(agent="scripted", queue_max=2, calls_open_max=2, processes_max=2, passivate_s=0.05),
        (
            ("stop", "graceful", None, None, "run", "user", None),
            ("steps", 1),
            ("stop", "graceful", None, None, "run", "user", None),
            ("new", "hand=0,serves", None, "user", True, None),
            ("wait", 0.05),
            ("hold", True),
            ("stop", "immediate", 2, "withdraw", "run", "user", None),
            ("idle", 3),
            ("stop", "graceful", None, None, "run", "user", None),
        ),
    ),
    # The session's actor failed behind the commit that freed a spare, which no later incarnation had on record.
    "a spare of a call whose actor is gone, and then the session's": Schedule(
        3320887781,
        Settings(agent="scripted"),
        (
            ("new", "say=1", None, "user", True, None),
            ("wait", 0.05),
            ("new", "proc=0.1", None, "user", True, None),
            ("steps", 27),
            ("poison", 2, 0, True),
            ("steps", 9),
            ("poison", 0, 1, True),
        ),
        hosting=Hosting(3660736225, HostedAgent("scripted", keep_idle_s=0.5)),
    ),
    # A host was released by a call that was not told of it, and reserved for the next call of the run: nobody answered.
    "a host that a call was not told of is the next call's": Schedule(
        1489478479,
        Settings(agent="scripted", barrier=Barrier.STRICT),
        (
            ("new", "proc=0.01 say=1 write=0.01 say=1", None, "user", True, None),
            ("steps", 60),
            ("shutdown", 0.0),
            ("wait", 0.05),
            ("steps", 60),
            ("new", "proc=0.1 proc=3", None, "user", True, None),
            ("steps", 34),
            ("poison", 2, 0, True),
        ),
        hosting=Hosting(4199405806, HostedAgent("scripted", keep_idle_s=0.5)),
    ),
    # The actor of a call was gone before the host of its tool was permitted: the run took a spare over, and killed it.
    "a spare of a call whose actor is gone": Schedule(
        493266864,
        Settings(agent="scripted"),
        (
            ("stop", "graceful", None, None, "run", "user", None),
            ("stop", "immediate", 0, "park", "run", "user", 0.0),
            ("later", 0.5, ("stop", "immediate", 2, "keep", "session", "user", 5.0)),
            ("new", "proc=3", None, "user", True, None),
            ("steps", 20),
            ("steps", 9),
            ("poison", 2, 3, False),
        ),
        hosting=Hosting(2275102087, HostedAgent("scripted", keep_idle_s=0.5)),
    ),
    # A tool in a process that nothing ends goes on, and the receipt of its run names it.
    "a tool in a process that never dies": Schedule(
        3539510690,
        Settings(agent="scripted"),
        (
            ("at", "t", ("new", "serve=0,serves,ignores_term proc=1", "enqueue", "user", False, 5.0)),
            ("new", "say=1", None, "user", True, None),
            ("new", "run=30,children=2,output=3", "enqueue", "user", False, None),
            ("stop", "graceful", None, "keep", "run", "user", 0.0),
            ("stop", "graceful", None, None, "run", "user", None),
        ),
        hosting=Hosting(2232150406, HostedAgent("scripted", keep=True, keep_idle_s=5.0, overlap=False)),
    ),
    # A Stop of a deleted session was refused; its copy was under way, behind a message, and was answered early.
    "a copy of a Stop that was refused": Schedule(
        3950797940,
        Settings(agent="scripted"),
        (
            ("stop", "graceful", None, None, "run", "user", None),
            ("delete",),
            ("wait", 0.05),
            ("stop", "graceful", None, None, "run", "user", None),
            ("hold", True),
            ("new", "say=1", None, "user", True, None),
            ("come",),
            ("steps", 20),
        ),
    ),
    # A batch that was written and reported as failed: the Stop in it stopped the run of the message behind it.
    "a Stop that was stored after all": Schedule(
        3480262220,
        Settings(agent="scripted"),
        (
            ("stop", "graceful", None, None, "run", "user", None),
            ("new", "say=1", None, "user", True, None),
            ("lose", 1),
        ),
    ),
    # The same by way of a Stop that is repeated while the store is thought to be down.
    "a repeat of a Stop that was stored": Schedule(
        943462396,
        Settings(agent="scripted"),
        (
            ("stop", "graceful", None, None, "run", "user", None),
            ("stop", "graceful", None, None, "run", "user", None),
            ("new", "say=1", None, "user", True, None),
            ("withdraw", 3),
            ("new", "say=1", None, "user", True, None),
            ("come",),
            ("lose", 2),
        ),
    ),
    # The kill deadline of a run that was taken up again fired by the timer of the incarnation before.
    "a deadline of an earlier incarnation": Schedule(
        2698669879,
        Settings(agent="scripted"),
        (
            ("lose", 2),
            ("new", "say=1", None, "user", True, None),
            ("steps", 20),
            ("new", "say=1", None, "user", True, None),
            ("hold", True),
            ("steps", 20),
        ),
    ),
    # A session that drains said that it was quiet before the Stop that had waited for it to be read was decided.
    "a Stop that waits while its session is read, in a shutdown": Schedule(
        3053322,
        Settings(agent="scripted"),
        (("stop", "graceful", None, None, "run", "user", None), ("shutdown", 0.0)),
    ),
    # It had said so, and the supervisor took the word for the Stop that came behind it.
    "a Stop behind the word that all is quiet": Schedule(
        1960158902,
        Settings(agent="scripted"),
        (
            ("new", "say=1", None, "user", True, None),
            ("shutdown", 0.0),
            ("stop", "graceful", None, None, "run", "user", None),
        ),
    ),
    # A Stop that hurries a run which had ended by itself was named nowhere in its receipt.
    "a Stop that hurries what has completed": Schedule(
        4154275159,
        Settings(agent="scripted", call_deadline_s=0.5),
        (
            ("new", "run=1,lost", None, "user", True, None),
            ("new", "fail", "enqueue", "bot", False, 0.0),
            ("steps", 60),
            ("stop", "immediate", None, "withdraw", "session", "user", 0.5),
        ),
    ),
    # The next incarnation did not know that the Stop which it found in the journal had been answered: no word followed.
    "a Stop of the journal that an incarnation before had answered": Schedule(
        2240422935,
        Settings(agent="scripted", barrier=Barrier.STRICT, passivate_s=1.0),
        (
            ("stop", "graceful", None, None, "run", "user", None),
            ("hold", True),
            ("wait", 3.0),
            ("poison", 0, 3, True),
            ("new", "say=1", None, "user", True, None),
            ("wait", 0.05),
            ("steps", 1),
        ),
    ),
    # A repeat that was answered at once counted as one that waits, since an erasure had left with it: kept for ever.
    "a repeated Stop that lets an erasure go": Schedule(
        4129053479,
        Settings(agent="scripted", barrier=Barrier.STRICT, passivate_s=1.0),
        (("stop", "graceful", None, None, "run", "user", None), ("idle", 2), ("delete",), ("repeat", 0)),
    ),
    # A Stop had withdrawn what waits, and the store did not take it: the next one, aimed at what waits, was answered
    # that it had stopped that, and when it was decided again that it was over already.
    "a Stop of what a kept Stop withdraws": Schedule(
        2837381277,
        Settings(agent="scripted"),
        (
            ("stop", "graceful", 1, "park", "session", "user", None),
            ("lose", 2),
            ("at", "t", ("stop", "graceful", 1, "park", "session", "bot", 0.5)),
            ("steps", 10),
            ("new", "say=1", None, "user", True, None),
            ("new", "stubborn", "enqueue", "user", True, None),
            ("steps", 3),
            ("steps", 3),
            ("stop", "graceful", None, None, "run", "user", None),
            ("stop", "graceful", 3, "withdraw", "run", "bot", None),
        ),
    ),
    # The same with a batch that cannot be stored, and a run that goes on.
    "a Stop of what waits, behind one that was unfit": Schedule(
        1310140804,
        Settings(agent="scripted"),
        (
            ("at", "t", ("new", "hand=60,children=1 say=1", "enqueue", "user", False, 0.5)),
            ("new", "leave=60,ignores_term", None, "user", True, None),
            ("new", "stubborn", "enqueue", "bot", False, 0.0),
            ("steps", 60),
            ("stop", "graceful", None, None, "run", "user", None),
            ("unfit", 1),
            ("stop", "graceful", 1, None, "session", "user", None),
        ),
    ),
    # The session's actor died before the journal had written its Stop: nobody took that up.
    "a Stop that the journal has not written when its actor dies": Schedule(
        1799579204,
        Settings(agent="scripted", passivate_s=0.05),
        (
            ("fail", 1),
            ("stop", "immediate", 0, "withdraw", "run", "bot", None),
            ("steps", 20),
            ("stop", "graceful", 2, "withdraw", "run", "bot", 0.5),
            ("steps", 1),
            ("stop", "immediate", 1, "withdraw", "run", "bot", 0.5),
            ("steps", 9),
            ("stop", "graceful", None, None, "run", "user", None),
            ("steps", 9),
            ("new", "sleep=60", None, "user", True, None),
            ("later", 0.0, ("stop", "graceful", 0, "park", "run", "bot", None)),
            ("poison", 0, 1, False),
        ),
    ),
    # A Stop with a stored answer came again while its session was being read: it was answered that nothing ran.
    "a repeat of a Stop while its session is being read": Schedule(
        2276856906,
        Settings(agent="scripted", run_deadline_s=3.0, barrier=Barrier.STRICT, passivate_s=0.05),
        (
            ("unfit", 2),
            ("stop", "graceful", None, None, "run", "user", None),
            ("idle", 0),
            ("steps", 1),
            ("hold", True),
            ("repeat", 7),
            ("idle", 2),
        ),
    ),
    # Messages that were refused had taken over from one that waits: a Stop of that was answered that it is over.
    "a Stop of what waits again, since what took over was refused": Schedule(
        1698601656,
        Settings(agent="scripted"),
        (
            ("new", "forever", None, "user", True, None),
            ("steps", 2),
            ("new", "run=1,absent", "enqueue", "bot", False, None),
            ("wait", 0.05),
            ("fail", 2),
            ("new", "say=1", None, "user", True, None),
            ("new", "say=1", None, "user", True, None),
            ("stop", "immediate", 3, "keep", "session", "user", None),
        ),
    ),
    # The session was quiet while its erasure waited for a Stop to be durable.
    "an erasure that waits for a Stop, in a shutdown": Schedule(
        3750389533,
        Settings(agent="scripted"),
        (
            ("steps", 60),
            ("new", "run=1,absent say=1", "reject", "user", False, None),
            ("leave",),
            ("leave",),
            ("steps", 60),
            ("hold", True),
            ("later", 0.0, ("stop", "graceful", 1, "park", "session", "bot", 0.5)),
            ("steps", 3),
            ("new", "say=3 write=1 say=1", "rollback", "bot", False, 0.0),
            ("delete",),
            ("steps", 1),
            ("hold", False),
            ("stop", "graceful", 3, "park", "run", "user", 5.0),
            ("stop", "graceful", 0, None, "run", "bot", None),
            ("later", 0.0, ("stop", "graceful", 1, "park", "run", "bot", None)),
            ("later", 0.5, ("new", "open=5", "enqueue", "bot", True, 0.0)),
            ("shutdown", 3.0),
        ),
    ),
    # A call counted as not started, and what its execution looked for behind that was news to a run that was over.
    "a call that is shut before its first line, in a run that leaves things behind": Schedule(
        2137270146,
        Settings(agent="scripted"),
        (
            ("litter", 1306278588),
            ("stop", "immediate", 2, "withdraw", "run", "bot", 0.0),
            ("new", "open=0.1 say=1", None, "user", True, None),
            ("steps", 30),
        ),
    ),
    # An agent that swallows its end, and cleans up when it hears of it again, was told of it at the first time.
    "an agent that swallows its end, and cleans up later": Schedule(
        2751701519,
        Settings(agent="scripted", run_deadline_s=1.0, call_deadline_s=0.5),
        (
            ("new", "say=1", None, "user", True, None),
            ("new", "stubborn", "enqueue", "user", True, 5.0),
            ("new", "tidy=1", None, "user", True, None),
        ),
    ),
    # A thread that was found after the kill deadline of its run held up no call, and no event said so.
    "a thread of a run whose kill deadline has passed": Schedule(
        741529104,
        Settings(agent="scripted"),
        (
            ("litter", 351204943),
            ("new", "tidy=9", None, "user", True, None),
            ("later", 0.5, ("stop", "immediate", 0, "keep", "session", "user", 0.0)),
            ("new", "tidy=1", "enqueue", "user", False, 0.5),
        ),
    ),
    "threads of a call that goes on after the kill deadline": Schedule(
        2181281700,
        Settings(agent="scripted"),
        (
            ("litter", 2468585329),
            ("new", "late=9", None, "user", True, None),
            ("wait", 0.05),
            ("new", "late=9", "enqueue", "user", True, 0.5),
            ("new", "leave=60", None, "user", True, None),
        ),
    ),
    # The agent's time limit was over while it waited for credit: it had not asked for the call.
    "a time limit that is over before a call is asked for": Schedule(
        197,
        Settings(agent="scripted", credit_events=1),
        (("new", "limit=0.9998 limit=0.01 limit=0", None, "user", True, None),),
    ),
    # The journal had the Stop of the incarnation before, and the simulated one overwrote it: nobody heard more of it.
    "a Stop that an incarnation had answered as not known": Schedule(
        3548231974,
        Settings(agent="scripted", passivate_s=1.0),
        (
            ("stop", "graceful", None, None, "run", "user", None),
            ("hold_reads", True),
            ("steps", 8),
            ("steps", 2),
            ("poison", 0, 2, False),
            ("wait", 0.3),
        ),
    ),
    # The session was quiet, and then what it had named as abandoned ended: a shutdown does not wait for such news.
    "an abandoned part that ends behind the word that all is quiet": Schedule(
        809033412,
        Settings(agent="scripted", run_deadline_s=3.0),
        (
            ("litter", 2538926440),
            ("new", "tidy=1", None, "user", True, None),
            ("new", "run=30,children=2,output=3", None, "bot", True, None),
            ("steps", 9),
            ("shutdown", 3.0),
            ("stop", "graceful", None, None, "run", "user", None),
            ("new", "say=1", None, "user", True, None),
            ("steps", 60),
            ("steps", 1),
            ("new", "say=1", None, "user", True, None),
            ("steps", 1),
            ("shutdown", 3.0),
        ),
    ),
    # A Stop had an answer, came again behind a deletion that the store did not take, and was answered anew.
    "a repeat of a Stop behind a deletion that was unfit": Schedule(
        2704270160,
        Settings(agent="scripted", barrier=Barrier.STRICT, passivate_s=0.05),
        (
            ("stop", "graceful", None, None, "run", "user", None),
            ("wait", 0.05),
            ("delete",),
            ("new", "say=1", None, "user", True, None),
            ("restop", 0),
            ("unfit", 2),
        ),
    ),
    "a repeat of a Stop while the store fails that did not take a deletion": Schedule(
        1,
        Settings(agent="scripted"),
        (
            ("new", "say=1 sleep=60", None, "user", True, None),
            ("wait", 0.05),
            ("stop", "graceful", None, None, "run", "user", None),
            ("wait", 3.0),
            ("delete",),
            ("fail", 1),
            ("wait", 0.05),
            ("restop", 0),
        ),
    ),
    "a repeat of a Stop that waits behind a deletion": Schedule(
        1,
        Settings(agent="scripted"),
        (
            ("stop", "graceful", None, None, "run", "user", None),
            ("wait", 0.05),
            ("hold", True),
            ("delete",),
            ("new", "say=1", None, "user", True, None),
            ("restop", 0),
            ("wait", 0.3),
            ("fail", 1),
            ("hold", False),
            ("wait", 1.0),
        ),
    ),
    # Behind a deletion that was not stored yet a Stop that had an answer was refused: its run, or its session, is gone.
    "a Stop that had an answer, of a run that is being deleted": Schedule(
        2036008022,
        Settings(agent="scripted"),
        (
            ("steps", 1),
            ("new", "say=1", None, "user", True, None),
            ("wait", 0.05),
            ("stop", "graceful", 1, "withdraw", "session", "bot", None),
            ("wait", 0.05),
            ("delete",),
            ("new", "say=1", None, "user", True, None),
            ("restop", 0),
        ),
    ),
    "a Stop that had an answer, of a session whose deletion is unfit": Schedule(
        1,
        Settings(agent="scripted"),
        (
            ("stop", "graceful", None, None, "run", "user", None),
            ("wait", 0.05),
            ("delete",),
            ("restop", 0),
            ("unfit", 1),
        ),
    ),
    "a Stop that had an answer, and waits behind a deletion": Schedule(
        1,
        Settings(agent="scripted"),
        (
            ("stop", "graceful", None, None, "run", "user", None),
            ("wait", 0.05),
            ("hold", True),
            ("delete",),
            ("restop", 0),
            ("wait", 1.0),
            ("hold", False),
            ("wait", 1.0),
            ("restop", 0),
        ),
    ),
    # It had been told that it is not known, and was refused when the deletion, and what came behind, were stored.
    "a kept Stop that is refused behind a deletion, in a session that has begun anew": Schedule(
        744949630,
        Settings(agent="scripted"),
        (
            ("stop", "graceful", None, None, "run", "user", None),
            ("wait", 0.02),
            ("hold", True),
            ("delete",),
            ("restop", 0),
            ("new", "say=1", None, "user", True, None),
            ("wait", 0.3),
        ),
    ),
    # The store had it in a deleted session, whose log takes no event; then the session began anew.
    "a kept Stop that is stored behind a deletion, in a session that has begun anew": Schedule(
        460701227,
        Settings(agent="scripted"),
        (
            ("stop", "graceful", None, None, "run", "user", None),
            ("delete",),
            ("wait", 0.05),
            ("new", "say=1", None, "user", True, None),
            ("stop", "graceful", None, None, "run", "user", None),
            ("hold", True),
            ("steps", 10),
            ("crash",),
        ),
    ),
    # Of the Stop that was kept the store had the id, from before a deletion: it did not end the run it had stopped.
    "a kept Stop whose id was deleted": Schedule(
        806374302,
        Settings(agent="scripted", barrier=Barrier.STRICT),
        (
            ("stop", "graceful", None, None, "run", "user", None),
            ("delete",),
            ("wait", 0.05),
            ("new", "tidy=1", None, "user", True, None),
            ("wait", 0.05),
            ("fail", 1),
            ("hold", True),
            ("restop", 0),
            ("wait", 0.11),
            ("poison", 0, 1, True),
        ),
    ),
    # The run that a Stop of the journal had ended was not on record when the crash came: it has a receipt, and no more.
    "a Stop of the journal whose run was never on record": Schedule(
        2101566741,
        Settings(agent="scripted", passivate_s=1.0),
        (
            ("new", "say=1", None, "user", True, None),
            ("new", "serve=0,serves,ignores_term", "enqueue", "user", True, None),
            ("new", "hand=60,children=1", None, "user", True, None),
            ("wait", 0.05),
            ("new", "say=1", None, "user", True, None),
            ("hold", True),
            ("steps", 7),
            ("stop", "immediate", None, "keep", "session", "bot", 5.0),
            ("steps", 20),
            ("crash",),
        ),
    ),
    # A receipt was filed with something left, and its session read anew: what had ended before was new to it.
    "something left that has ended, told again to a session that is read anew": Schedule(
        3286895051,
        Settings(agent="scripted", call_deadline_s=2.0, passivate_s=0.05),
        (
            ("litter", 2088625153),
            ("new", "tidy=1", None, "user", True, None),
            ("wait", 1.0),
            ("hold", True),
            ("lose", 1),
            ("steps", 20),
            ("new", "say=1", None, "user", True, None),
            ("idle", 3),
        ),
    ),
    # A store refused what closed a run, and what took it over: the Stop found no actor of the run to tell.
    "a Stop that kills at once, of a run that nobody has while the store fails": Schedule(
        231577790,
        Settings(agent="scripted", queue_max=2, calls_open_max=2, processes_max=2),
        (
            ("new", "run=30,ignores_term", None, "user", True, None),
            ("wait", 0.05),
            ("new", "say=1", None, "user", True, None),
            ("unfit", 2),
            ("wait", 0.16),
            ("stop", "immediate", 3, None, "run", "user", 0.0),
            ("unfit", 2),
        ),
    ),
    # It was answered, a crash lost it before the journal had it, and its repeat counted as one that was answered.
    "a repeat of a Stop that a crash lost ahead of the journal": Schedule(
        917752636,
        Settings(agent="scripted", run_deadline_s=3.0),
        (
            ("hold_journal", True),
            ("stop", "graceful", None, None, "run", "user", None),
            ("down", True),
            ("steps", 15),
            ("restop", 1),
            ("new", "say=1", None, "user", True, None),
            ("crash",),
        ),
    ),
    # The store failed again before the end that it had brought about was on record: that counted as the Stop's.
    "a Stop that ends another attempt, which is not stored either": Schedule(
        2219185016,
        Settings(agent="scripted"),
        (
            ("stop", "graceful", None, None, "run", "user", None),
            ("stop", "graceful", None, None, "run", "user", None),
            ("steps", 4),
            ("wait", 0.05),
            ("later", 0.001, ("repeat", 5)),
            ("steps", 1),
            ("restop", 0),
            ("new", "say=1 steer say=1 steer say=1", None, "user", True, None),
            ("hold_reads", True),
            ("stop", "graceful", 2, None, "run", "bot", 5.0),
            ("steps", 9),
            ("steps", 1),
            ("fail", 2),
            ("wait", 0.11),
            ("stop", "graceful", None, None, "run", "user", None),
        ),
    ),
    # It came when the grace was over, and put off the kill deadline: the shutdown did not wait for that.
    "a Stop that hurries, and comes late": Schedule(
        816710331,
        Settings(agent="scripted", barrier=Barrier.STRICT),
        (
            ("litter", 1941183991),
            ("new", "run=40,never_dies", None, "user", True, None),
            ("wait", 0.05),
            ("new", "say=1", None, "user", True, None),
            ("shutdown", 0.0),
            ("repeat", 5),
            ("wait", 0.05),
            ("steps", 20),
            ("wait", 3.0),
            ("stop", "immediate", None, "park", "run", "user", 0.0),
        ),
    ),
    # The Stop came while the session could not be read, and counted as what had ended a run that had failed before.
    "a Stop that comes behind a run that could not be stored": Schedule(
        4200862879,
        Settings(agent="scripted", barrier=Barrier.STRICT),
        (
            ("later", 0.5, ("stop", "graceful", None, None, "run", "bot", None)),
            ("new", "leave=60,ignores_term leave=1 sleep=2 say=1", None, "user", True, None),
            ("wait", 0.3),
            ("new", "run=1,absent", None, "user", True, None),
            ("steps", 4),
            ("unfit", 2),
        ),
    ),
    # The same, and a crash: nobody else was left who knew what had ended the run first.
    "a Stop of the journal that has joined another run than the one that could not be stored": Schedule(
        4200862879,
        Settings(agent="scripted", barrier=Barrier.STRICT),
        (
            ("later", 0.5, ("stop", "graceful", None, None, "run", "bot", None)),
            ("new", "leave=60,ignores_term leave=1 sleep=2 say=1", None, "user", True, None),
            ("wait", 0.3),
            ("new", "run=1,absent", None, "user", True, None),
            ("steps", 4),
            ("unfit", 2),
            ("wait", 0.2),
            ("steps", 4),
            ("crash",),
        ),
    ),
    # What it had left was told while the store failed, and not taken; its end was, and its receipt was complete.
    "something that is left while the store fails, by code that ends when the session is read": Schedule(
        1279060333,
        Settings(agent="scripted", run_deadline_s=1.0, call_deadline_s=0.5),
        (
            ("litter", 3975666563),
            ("new", "deaf=3", None, "user", True, None),
            ("steps", 9),
            ("unfit", 1),
        ),
    ),
    # Code went on behind the kill deadline, and left a task: it was found behind the receipt, and is said to be left.
    "something that is found behind the receipt, while a shutdown ends": Schedule(
        4,
        Settings(agent="scripted", call_deadline_s=0.5),
        (
            ("litter", 31677),
            ("new", "tidy=9", None, "user", True, None),
            ("wait", 0.02),
            ("shutdown", 3.0),
        ),
    ),
    # A new message had taken over from one that waits, and was refused: a Stop of that one was told that it is over.
    "a Stop of what waits again, since what took over was unfit": Schedule(
        2355631140,
        Settings(agent="scripted", barrier=Barrier.STRICT),
        (
            ("new", "say=1", None, "user", True, None),
            ("new", "sleep=60", "enqueue", "user", True, 0.0),
            ("steps", 20),
            ("new", "say=1", None, "user", True, None),
            ("stop", "graceful", 3, "withdraw", "session", "bot", 5.0),
            ("unfit", 2),
        ),
    ),
    "a Stop of what waits again, since what took over behind a crash was unfit": Schedule(
        903747986,
        Settings(agent="scripted", run_deadline_s=0.5),
        (
            ("new", "serve=0,serves,ignores_term", None, "user", True, None),
            ("new", "stubborn", None, "bot", False, 0.0),
            ("steps", 20),
            ("new", "say=1", None, "user", True, None),
            ("stop", "graceful", 3, None, "run", "user", 5.0),
            ("crash",),
            ("unfit", 2),
        ),
    ),
    "a Stop of what waits again, since a deletion was unfit": Schedule(
        4283111578,
        Settings(agent="scripted"),
        (
            ("new", "leave=60 say=1 sleep=1", None, "user", True, None),
            ("new", "sleep=60", "enqueue", "user", False, None),
            ("wait", 0.05),
            ("delete",),
            ("unfit", 2),
            ("stop", "graceful", 1, "park", "run", "user", 0.0),
        ),
    ),
    # A Withdraw was refused, its message ran, and the store failed again: the run was ended by that Withdraw.
    "what a Withdraw that was refused had ended": Schedule(
        4218764688,
        Settings(agent="scripted"),
        (
            ("new", "say=1", None, "user", True, None),
            ("new", "write=0.01", "enqueue", "bot", True, 0.0),
            ("withdraw", 1),
            ("new", "say=1", None, "user", True, None),
            ("steps", 10),
            ("fail", 2),
            ("lose", 1),
        ),
    ),
    "what a deletion that was refused had ended": Schedule(
        1,
        Settings(agent="scripted"),
        (
            ("new", "sleep=60", None, "user", True, None),
            ("new", "sleep=60", "enqueue", "bot", True, None),
            ("wait", 0.05),
            ("delete",),
            ("fail", 1),
            ("lose", 1),
            ("wait", 2.0),
        ),
    ),
    # A message was told that it had stopped a run, of which the store had taken neither start nor end: it began.
    "what was taken over before its start was stored": Schedule(
        1,
        Settings(agent="scripted"),
        (
            ("new", "sleep=60", None, "user", True, None),
            ("new", "sleep=60", "enqueue", "bot", True, None),
            ("wait", 0.05),
            ("hold", True),
            ("new", "say=1", None, "user", True, None),
            ("new", "say=1", None, "user", True, None),
            ("wait", 0.05),
            ("fail", 1),
            ("lose", 1),
            ("hold", False),
            ("wait", 2.0),
        ),
    ),
    # A client was told that a run is over, and then the store did not take what had ended it: it began.
    "a Stop that was told in time that its run is over": Schedule(
        1,
        Settings(agent="scripted"),
        (
            ("new", "sleep=60", None, "user", True, None),
            ("new", "sleep=60", "enqueue", "user", True, None),
            ("wait", 0.05),
            ("hold", True),
            ("new", "say=1", None, "user", True, None),
            ("new", "say=1", None, "user", True, None),
            ("stop", "graceful", 1, None, "run", "user", None),
            ("wait", 0.4),
            ("fail", 1),
            ("hold", False),
            ("wait", 1.0),
        ),
    ),
    "a Stop that was told before a crash that its run is over": Schedule(
        1,
        Settings(agent="scripted"),
        (
            ("new", "sleep=60", None, "user", True, None),
            ("new", "sleep=60", "enqueue", "user", True, None),
            ("wait", 0.05),
            ("hold", True),
            ("new", "say=1", None, "user", True, None),
            ("new", "say=1", None, "user", True, None),
            ("stop", "graceful", 1, None, "run", "user", None),
            ("wait", 0.4),
            ("crash",),
            ("wait", 1.0),
        ),
    ),
    # The run had completed, which the store did not take. So it was tried again, behind a Stop that was aimed at it.
    "a Stop of a run that has completed, and is not tried again": Schedule(
        1,
        Settings(agent="scripted"),
        (
            ("new", "sleep=0.1", None, "user", True, None),
            ("wait", 0.05),
            ("hold", True),
            ("wait", 0.1),
            ("stop", "graceful", 0, None, "run", "user", None),
            ("fail", 1),
            ("hold", False),
            ("wait", 1.0),
        ),
    ),
    "a Stop of a run that has completed, and is not tried again after a crash": Schedule(
        1,
        Settings(agent="scripted"),
        (
            ("new", "sleep=0.1", None, "user", True, None),
            ("wait", 0.05),
            ("hold", True),
            ("wait", 0.1),
            ("stop", "graceful", 0, None, "run", "user", None),
            ("wait", 0.4),
            ("crash",),
            ("wait", 1.0),
        ),
    ),
    # The start of a run was said to have failed, and was stored. Meanwhile a Stop of another one withdrew what waits.
    "a Stop that withdraws what waits, beside a run whose start was stored after all": Schedule(
        1956444605,
        Settings(agent="scripted", run_deadline_s=3.0, call_deadline_s=0.5),
        (
            ("new", "say=3 write=1 say=1", None, "user", True, None),
            ("wait", 0.05),
            ("steps", 1),
            ("stop", "graceful", None, None, "run", "user", None),
            ("lose", 1),
            ("new", "say=1", None, "user", True, None),
            ("stop", "graceful", 0, "withdraw", "run", "bot", 0.0),
        ),
    ),
    # The store said that it had not taken what had ended a run, nor the Stop behind that, and had taken both.
    "a Stop that came too late, and was stored after all": Schedule(
        785220802,
        Settings(agent="scripted", barrier=Barrier.STRICT),
        (
            ("new", "say=1", None, "user", True, None),
            ("new", "stubborn", None, "bot", True, 0.0),
            ("steps", 10),
            ("delete",),
            ("stop", "graceful", 3, "withdraw", "session", "bot", 0.0),
            ("lose", 2),
        ),
    ),
    # Its message had been stored, and came again behind a deletion that the store did not take: it was too old.
    "a repeat of a message behind a deletion that was unfit": Schedule(
        3702214857,
        Settings(agent="scripted", passivate_s=0.05),
        (
            ("delete",),
            ("new", "say=1", None, "user", True, None),
            ("lose", 2),
            ("stop", "graceful", None, None, "run", "user", None),
            ("wait", 0.16),
            ("unfit", 1),
            ("repeat", 0),
        ),
    ),
    # Both had waited for their session to be read. The crash left the message's run, and of the Stop that it had come.
    "a Stop of the journal that came behind a message, and was stored later than that": Schedule(
        4027430261,
        Settings(agent="scripted", call_deadline_s=0.5),
        (
            ("new", "say=1", None, "user", True, None),
            ("hold", True),
            ("at", "t", ("resume",)),
            ("stop", "graceful", None, None, "run", "user", None),
            ("steps", 15),
            ("poison", 4, 1, False),
            ("shutdown", 0.0),
            ("steps", 1),
            ("steps", 3),
        ),
    ),
    "a Stop that has waited with a message for their session to be read, and a crash as that is stored": Schedule(
        30,
        Settings(agent="scripted"),
        (
            ("hold_reads", True),
            ("new", "say=1", None, "user", True, None),
            ("stop", "graceful", None, None, "run", "user", None),
            ("wait", 0.2),
            ("hold_reads", False),
            ("steps", 3),
            ("crash",),
        ),
    ),
    # It was decided as its time was over: its answer was said to be in the journal, which had the Stop without it.
    "a Stop that is decided as its time to wait for that is over": Schedule(
        39,
        Settings(agent="scripted"),
        (
            ("hold_reads", True),
            ("new", "say=1", None, "user", True, None),
            ("stop", "graceful", None, None, "run", "user", None),
            ("wait", 0.2),
            ("hold_reads", False),
            ("steps", 4),
            ("crash",),
        ),
    ),
    # Its end was on record, its record had no room for it, and so it was found anew: its process was dead twice.
    "something left whose end was stored after all, of a run that has many parts": Schedule(
        2541802474,
        LIMITS,
        (
            ("litter", 2586806699),
            ("new", "fan=4", None, "user", True, None),
            ("steps", 30),
            ("hold", True),
            ("wait", 1.0),
            ("lose", 1),
            ("new", "say=1", None, "user", True, None),
            ("steps", 15),
        ),
        parts_max=6,
    ),
    # The same, behind its receipt: that said for a moment that it goes on.
    "something left whose end was stored after all, of a run that has its receipt": Schedule(
        2541802474,
        LIMITS,
        (
            ("litter", 2586806699),
            ("new", "fan=4", None, "user", True, None),
            ("steps", 30),
            ("hold", True),
            ("wait", 1.0),
            ("lose", 1),
        ),
        parts_max=6,
    ),
    # A Stop said that it withdrew a message that was not on record, and that was sent again and ran.
    "a Stop that withdraws what is never stored, in a session that fails": Schedule(
        4137353319,
        Settings(agent="scripted"),
        (
            ("new", "many=14", None, "user", True, None),
            ("wait", 0.05),
            ("new", "say=1", None, "bot", False, None),
            ("hold", True),
            ("stop", "graceful", None, None, "run", "user", None),
            ("stop", "graceful", None, None, "run", "user", None),
            ("steps", 60),
            ("new", "say=1", None, "user", True, None),
            ("poison", 0, 0, False),
            ("unfit", 1),
        ),
    ),
    # The start of a run was said to have failed, and was stored. The Stop behind that joined the run before: after the
    # crash nobody knew that the store's failure had ended this one first.
    "a Stop that joins a run, beside the next whose start was stored after all, and a crash": Schedule(
        0,
        Settings(agent="scripted", passivate_s=0.001),
        (
            ("new", "hand=60,after=0.4998", None, "user", True, None),
            ("wait", 0.05),
            ("lose", 1),
            ("at", "t", ("stop", "graceful", None, None, "run", "user", None)),
            ("new", "say=1", None, "user", True, None),
            ("stop", "graceful", None, None, "run", "user", None),
            ("idle", 7),
            ("crash",),
        ),
    ),
    "the same where two messages have taken over": Schedule(
        3672868397,
        Settings(agent="scripted", run_deadline_s=3.0),
        (
            ("new", "serve=0,serves,ignores_term write=1", None, "user", True, None),
            ("steps", 60),
            ("lose", 1),
            ("new", "say=1", None, "user", True, None),
            ("new", "say=1", None, "user", True, None),
            ("steps", 20),
            ("stop", "graceful", None, None, "run", "user", None),
            ("steps", 9),
            ("crash",),
        ),
    ),
    # The run had completed before the Stop joined the run before it, and the crash came before that was written.
    "a Stop that joins a run, behind the unwritten end of the next, and a crash": Schedule(
        0,
        Settings(agent="scripted"),
        (
            ("new", "run=30,ignores_term", None, "user", True, None),
            ("wait", 0.05),
            ("new", "sleep=0.1", None, "user", True, None),
            ("steps", 9),
            ("hold", True),
            ("wait", 0.12),
            ("stop", "graceful", None, None, "run", "user", None),
            ("wait", 0.4),
            ("steps", 1),
            ("crash",),
        ),
    ),
    # More went on than a receipt has room for, and what had ended was listed beside that.
    "more that goes on behind a receipt than it has room for": Schedule(
        1544700104,
        LIMITS,
        (
            ("litter", 2506777343),
            ("new", "run=30,children=2,output=3", None, "user", True, None),
            ("steps", 3),
            ("steps", 9),
            ("steps", 20),
            ("new", "say=1", None, "user", True, None),
            ("new", "say=1", None, "user", True, None),
            ("hold", True),
            ("later", 0.0, ("repeat", 1)),
            ("at", "t", ("stop", "graceful", 2, None, "session", "bot", None)),
            ("steps", 15),
            ("steps", 60),
        ),
        parts_max=6,
    ),
    # The second copy of a message was refused for good, ahead of the first, which was refused for a store that took it.
    "a copy that is answered ahead of the first": Schedule(
        1584804102,
        Settings(agent="scripted"),
        (
            ("new", "say=1", None, "user", True, None),
            ("at", "t", ("stop", "graceful", None, None, "session", "user", None)),
            ("hold", True),
            ("steps", 9),
            ("poison", 0, 3, True),
            ("steps", 1),
            ("at", "t", ("new", "serve=0,serves,ignores_term write=1", "enqueue", "user", True, None)),
            ("steps", 20),
            ("later", 0.001, ("stop", "immediate", None, "withdraw", "run", "user", None)),
            ("new", "hand=0,serves", "reject", "bot", False, None),
            ("repeat", 5),
            ("poison", 0, 2, True),
            ("wait", 1.0),
            ("poison", 0, 2, False),
            ("steps", 2),
            ("lose", 1),
        ),
    ),
    # The journal kept the Stop as it was decided first; it was sent again after a crash, while the disk was down.
    "a Stop sent again that the journal had decided": Schedule(
        4179201696,
        Settings(agent="scripted", passivate_s=0.001),
        (
            ("new", "run=30,ignores_term", None, "user", True, None),
            ("wait", 0.05),
            ("lose", 1),
            ("steps", 20),
            ("stop", "graceful", None, None, "run", "user", None),
            ("steps", 14),
            ("crash",),
            ("down", True),
            ("restop", 1),
            ("steps", 15),
            ("crash",),
        ),
    ),
    # A Stop parked what waits, and a run it was not about was tried again: a message that is no person's took over.
    "a retry beside parked messages": Schedule(
        1802274150,
        Settings(agent="scripted"),
        (
            ("stop", "immediate", 2, "keep", "run", "bot", None),
            ("new", "serve=0.5 hand=0.5 leave=0.5 sleep=1", None, "user", True, None),
            ("steps", 60),
            ("steps", 3),
            ("new", "run=1,lost", None, "user", True, None),
            ("lose", 1),
            ("new", "run=30,children=2,output=3", "enqueue", "user", False, 0.0),
            ("stop", "graceful", 0, "park", "session", "user", 0.0),
            ("steps", 60),
            ("new", "hand=60,after=1.9998", "rollback", "bot", False, None),
        ),
    ),
    # A Stop of the session met a tree whose hand-over was decided, and not yet stored.
    "a tree that is ended before its hand-over is stored": Schedule(
        849222566,
        Settings(agent="scripted", passivate_s=0.001),
        (
            ("later", 0.5, ("withdraw", 2)),
            ("later", 0.001, ("stop", "graceful", 1, "withdraw", "session", "bot", 0.0)),
            ("idle", 2),
            ("new", "tidy=1", None, "user", True, None),
            ("steps", 3),
            ("steps", 60),
            ("at", "t", ("new", "fail bad", "enqueue", "bot", False, 5.0)),
            ("repeat", 8),
            ("new", "late=4", "reject", "user", False, 0.0),
            ("later", 0.0, ("new", "serve=60 say=1", "rollback", "user", False, None)),
            ("steps", 60),
            ("new", "serve=0.5 hand=0.5 leave=0.5 sleep=1", "enqueue", "bot", False, 5.0),
            ("idle", 3),
            ("stop", "graceful", 0, "withdraw", "session", "bot", 0.0),
        ),
    ),
    # The session's actor for a host had its first turn behind that of the run's, and had the port report to itself.
    "a host that goes from the session to a run and back": Schedule(
        4129002311,
        Settings(agent="scripted"),
        (
            ("new", "serve=60 say=1", None, "user", True, None),
            ("new", "leave=60 say=1 sleep=1", "enqueue", "user", True, 0.0),
            ("new", "open=5", "enqueue", "user", False, None),
            ("steps", 15),
        ),
        hosting=Hosting(718104191, HostedAgent("scripted", keep=True, keep_idle_s=0.5)),
    ),
    # A tree that was ending outlived its kill deadline, and the receipts of later Stops waited for it for ever.
    "a Stop of what outlived an earlier end": Schedule(
        1,
        Settings(agent="scripted"),
        (
            ("new", "hand=60,never_dies say=1", None, "user", True, None),
            ("wait", 1.0),
            ("stop", "graceful", None, None, "session", "user", None),
            ("wait", 9.0),
            ("new", "hand=60 say=1", None, "user", True, None),
            ("wait", 1.0),
            ("stop", "graceful", None, None, "session", "user", None),
            ("wait", 1.0),
            ("stop", "graceful", None, None, "session", "user", None),
        ),
    ),
    # A tree that had ended with its daemon was no longer the session's when nobody could prove its end. The receipt of
    # a Stop that had named it waited for it for ever, and a Delete with it.
    "a Delete of what ended with its daemon, and is not proven to have ended": Schedule(
        1188327046,
        Settings(agent="scripted"),
        (
            ("new", "serve=60,never_dies say=1", None, "user", True, None),
            ("wait", 1.0),
            ("crash",),
            ("stop", "graceful", None, None, "session", "user", None),
            ("wait", 9.0),
            ("wait", 9.0),
            ("delete",),
        ),
    ),
    # The same, where that is told while the receipt still waits: it was never filed.
    "a Stop of what ended with its daemon, and is not proven to have ended": Schedule(
        1,
        Settings(agent="scripted"),
        (
            ("new", "hand=60,lost say=1", None, "user", True, None),
            ("wait", 1.0),
            ("crash",),
            ("stop", "graceful", None, None, "session", "user", None),
            ("wait", 9.0),
        ),
    ),
    # The journal named the failure that had ended a run. What was restored was not stored, and the next Stop named
    # another one.
    "a Stop behind a failure that an earlier Stop names": Schedule(
        838963167,
        Settings(agent="scripted"),
        (
            ("new", "hand=60,after=0.4998", None, "user", True, None),
            ("wait", 0.05),
            ("lose", 1),
            ("new", "say=1", None, "user", True, None),
            ("stop", "graceful", None, None, "run", "user", None),
            ("steps", 17),
            ("crash",),
            ("unfit", 2),
            ("stop", "graceful", None, None, "run", "user", None),
            ("wait", 0.05),
            ("crash",),
        ),
    ),
    # A crash was faster than the journal. The Stop came again, and was decided behind another attempt at what it had
    # found: the watch still held it to the first decision, of which nobody knew any more.
    "a Stop that a crash has forgotten comes again": Schedule(
        603981757,
        Settings(agent="scripted", call_deadline_s=0.5, passivate_s=0.05),
        (
            ("new", "say=1", None, "user", True, None),
            ("wait", 0.05),
            ("lose", 1),
            ("new", "say=1", None, "user", True, None),
            ("steps", 9),
            ("stop", "graceful", None, None, "run", "user", None),
            ("steps", 3),
            ("crash",),
            ("steps", 3),
            ("new", "say=1", None, "user", True, None),
            ("new", "raise", "enqueue", "bot", False, 5.0),
            ("steps", 9),
            ("hold", True),
            ("steps", 20),
        ),
        hosting=Hosting(1421128221, HostedAgent("scripted", keep=True, keep_idle_s=30.0)),
    ),
    # A Stop was refused in a session that had been deleted. It came again, and was kept: the watch compared it with
    # what the journal had let go.
    "a Stop that the journal let go is kept again": Schedule(
        3205000669,
        Settings(agent="scripted", passivate_s=1.0),
        (
            ("stop", "graceful", None, None, "run", "user", None),
            ("delete",),
            ("wait", 3.0),
            ("hold", True),
            ("stop", "graceful", None, None, "run", "user", None),
            ("new", "say=1", None, "user", True, None),
            ("restop", 0),
            ("idle", 6),
        ),
    ),
    # It was on record, and deleted. It came again, in a failure of the store that had ended a run.
    "a Stop that was deleted is kept again": Schedule(
        2368443729,
        Settings(agent="scripted", run_deadline_s=1.0, call_deadline_s=0.5),
        (
            ("lose", 2),
            ("new", "sleep=60", None, "user", True, None),
            ("wait", 1.0),
            ("hold", True),
            ("stop", "graceful", None, None, "run", "user", None),
            ("wait", 0.3),
            ("delete",),
            ("steps", 1),
            ("hold", False),
            ("wait", 0.05),
            ("new", "say=1", None, "user", True, None),
            ("lose", 2),
            ("restop", 0),
        ),
    ),
    # A Stop came while the session could not be read. An earlier one named the failure that had ended its run.
    "a Stop of what cannot be read behind a failure that an earlier Stop names": Schedule(
        3910347814,
        Settings(agent="scripted"),
        (
            ("new", "hand=60,after=0.4998", None, "user", True, None),
            ("wait", 0.05),
            ("lose", 1),
            ("new", "say=1", "enqueue", "bot", True, None),
            ("steps", 10),
            ("stop", "graceful", None, None, "run", "user", None),
            ("steps", 8),
            ("crash",),
            ("down", True),
            ("stop", "graceful", None, None, "run", "user", None),
            ("wait", 0.02),
            ("crash",),
        ),
    ),
    # A Stop parked, a Resume went on, and a message waited to steer: all were stored in one batch.
    "a Resume in one batch with the Stop that parks": Schedule(
        3062840721,
        Settings(agent="scripted", barrier=Barrier.STRICT),
        (
            ("stop", "graceful", None, None, "run", "user", None),
            ("new", "say=1", None, "user", True, None),
            ("new", "say=1", None, "user", True, None),
            ("stop", "graceful", None, None, "run", "user", None),
            ("steps", 19),
            ("stop", "graceful", None, None, "run", "user", None),
            ("crash",),
            ("stop", "graceful", None, "park", "run", "bot", None),
            ("hold", True),
            ("resume",),
            ("new", "limit=0.5", "steer", "user", False, None),
            ("steps", 15),
            ("repeat", 5),
        ),
    ),
    # Code that was to end was told 7 s later, since the machine was slow, and a second time at once.
    "code that hears late of its end": Schedule(
        3524309667,
        Settings(agent="scripted", barrier=Barrier.STRICT, passivate_s=0.05),
        (
            ("new", "run=30,ignores_term", None, "user", True, None),
            ("steps", 60),
            ("hold", True),
            ("poison", 0, 1, True),
            ("wait", 0.05),
            ("poison", 0, 0, False),
            ("new", "tidy=1", None, "user", True, None),
            ("shutdown", 0.0),
            ("idle", 7),
            ("shutdown", 0.0),
            ("new", "say=1", "enqueue", "bot", True, 0.0),
            ("steps", 20),
            ("idle", 5),
            ("new", "hand=60,after=1.9998", None, "user", True, None),
            ("steps", 20),
            ("poison", 0, 3, False),
            ("steps", 3),
        ),
    ),
    # What a shutdown had interrupted was on record at the next start, of which the simulator knew no shutdown.
    "a Stop that joins what a shutdown interrupts, while the store is down": Schedule(
        475861295,
        Settings(agent="scripted"),
        (
            ("new", "say=1", None, "user", True, None),
            ("steps", 10),
            ("later", 0.5, ("stop", "graceful", None, None, "run", "user", None)),
            ("shutdown", 0.0),
            ("down", True),
            ("wait", 9.0),
        ),
    ),
    # The simulator took a process of a tree of the session, which could not be killed, for one more part of the run.
    "a receipt at its bound that waits for a tree of the session": Schedule(
        5,
        LIMITS,
        (
            ("new", "hand=60,never_dies", None, "user", True, None),
            ("wait", 0.05),
            ("new", "many=14 say=1", None, "user", True, None),
        ),
        parts_max=6,
    ),
    # An agent that waits for earlier runs began when a kill deadline had passed in memory, before that was on record.
    "an agent that begins beside what is not on record as abandoned": Schedule(
        1,
        Settings(agent="scripted"),
        (
            ("new", "run=60,never_dies", None, "user", True, None),
            ("wait", 1.0),
            ("stop", "graceful", None, None, "session", "user", None),
            ("steps", 20),
            ("hold", True),
            ("new", "say=1", None, "user", True, None),
            ("wait", 9.0),
            ("hold", False),
            ("steps", 1),
            ("hold", True),
            ("steps", 20),
        ),
        hosting=Hosting(1, HostedAgent("scripted", overlap=False)),
    ),
    # The same with a tree of the session.
    "an agent that begins beside a tree of the session that is not on record as abandoned": Schedule(
        0,
        Settings(agent="scripted"),
        (
            ("new", "serve=60,never_dies", None, "user", True, None),
            ("wait", 1.0),
            ("stop", "graceful", None, None, "session", "user", None),
            ("steps", 20),
            ("hold", True),
            ("new", "say=1", None, "user", True, None),
            ("wait", 9.0),
            ("hold", False),
            ("steps", 1),
            ("hold", True),
            ("steps", 20),
        ),
        hosting=Hosting(1, HostedAgent("scripted", overlap=False)),
    ),
    # A Stop of a deleted session is let go, sent again, and lost by a crash before the journal has it: the time at
    # which it came first is known to nobody.
    "a stop that is kept anew and lost before it is written": Schedule(
        332702905,
        Settings(agent="scripted", barrier=Barrier.STRICT, passivate_s=1.0),
        (
            ("hold", True),
            ("stop", "graceful", None, None, "run", "user", None),
            ("delete",),
            ("wait", 3.0),
            ("hold", False),
            ("wait", 0.05),
            ("fail", 2),
            ("new", "say=1", None, "user", True, None),
            ("hold_journal", True),
            ("restop", 1),
            ("wait", 0.05),
            ("crash",),
        ),
    ),
    # A host that no signal ends and that answers no cancel: its call is adopted, and a cancel that has no effect is not
    # sent again for ever.
    "a call in a host that never ends, taken over from an actor that was replaced": Schedule(
        1769148361,
        Settings(agent="scripted", call_deadline_s=0.5),
        (
            ("new", "say=1", None, "user", True, None),
            ("new", "proc=9", None, "user", True, None),
            ("wait", 0.05),
            ("unfit", 2),
        ),
        hosting=Hosting(2025424893, HostedAgent("scripted", overlap=False)),
    ),
    # The host that a session had reserved when it failed was killed, and no actor had it forgotten.
    "a host that is on no record when its session fails": Schedule(
        1721228833,
        Settings(agent="scripted"),
        (
            ("unfit", 1),
            ("steps", 1),
            ("new", "say=1", None, "user", True, None),
            ("steps", 4),
            ("poison", 0, 2, False),
        ),
        failures_max=1,
        hosting=Hosting(2925914743, HostedAgent("scripted", keep=True, keep_idle_s=0.5, overlap=False)),
    ),
    # Its execution ended without a line, its run's actor had failed, and its part had ended: no actor adopted it.
    "a call that never began when its run's actor failed": Schedule(
        3978309434,
        Settings(
            agent="scripted",
            run_deadline_s=1.0,
            call_deadline_s=0.5,
            queue_max=2,
            credit_events=1,
            calls_open_max=1,
            processes_max=1,
        ),
        (
            ("new", "say=1", None, "user", True, None),
            ("new", "say=1", None, "user", True, None),
            ("new", "crowd=4", None, "user", True, None),
            ("wait", 0.05),
            ("poison", 1, 0, True),
            ("new", "say=1", None, "user", True, None),
        ),
        failures_max=5,
    ),
    # Its parent asked again about a child run that was deleted with its session, and it began anew.
    "a child run whose session is deleted": Schedule(
        566267300,
        Settings(
            agent="scripted", queue_max=2, credit_events=1, calls_open_max=2, processes_max=2, children_depth_max=1
        ),
        (
            ("wait", 0.05),
            ("new", "say=1", None, "user", True, None),
            ("stop", "graceful", None, None, "run", "user", None),
            (
                "new",
                "left_delegate=scripted@c/serve:60 gate=3 foreign=3 delegate=other/serve:60 effect=0.1",
                None,
                "user",
                True,
                None,
            ),
            ("steps", 60),
            ("child", 1, ("delete",)),
        ),
    ),
    # The simulator knew the Stop from when the store of the parent's session had it, and the child run had ended by it.
    "a child run is stopped at once by a Stop that the store of its parent does not take": Schedule(
        541833568,
        Settings(agent="scripted"),
        (
            ("new", "delegate=other@c/stubborn", None, "user", True, None),
            ("wait", 0.05),
            ("stop", "immediate", None, "keep", "run", "user", None),
            ("unfit", 1),
        ),
    ),
    # An actor of a call that was stopped with its run's closed the gate, and left the token for the session to cancel.
    "a call writes as the actors of its run and of itself are gone": Schedule(
        1018502965,
        Settings(agent="scripted", passivate_s=0.05),
        (
            ("stop", "immediate", 0, None, "run", "user", None),
            ("at", "t", ("new", "hand=60,after=0.4998 answer=0", "steer", "user", False, None)),
            ("stop", "immediate", 3, "withdraw", "session", "bot", 0.0),
            ("steps", 60),
            ("wait", 9.0),
            ("poison", 1, 0, False),
            ("repeat", 6),
        ),
    ),
    # The actor of a run whose session's had failed began its first turn when its successor had taken over its host.
    "a run is closed as its session fails before its own actor has had a turn": Schedule(
        827356322336,
        Settings(agent="scripted", children_depth_max=1),
        (
            ("new", "hand=60,children=1", None, "user", True, None),
            (
                "at",
                "t",
                (
                    "new",
                    "serve=60 effect=1 delegate=scripted/say:2+write:1+say:1 say=1 files=2",
                    "enqueue",
                    "user",
                    True,
                    0.0,
                ),
            ),
            ("steps", 60),
            (
                "at",
                "t",
                (
                    "new",
                    "files=1 delegate=nobody@s/delegate:other/say;1*write;1 effect=3 delegate=nobody@t/forever deaf=9",
                    "interrupt",
                    "user",
                    True,
                    None,
                ),
            ),
            ("hold", True),
            ("steps", 30),
            ("steps", 60),
            ("new", "say=1", None, "user", True, None),
            ("new", "say=1", None, "user", True, None),
            ("steps", 18),
            ("poison", 0, 3, False),
            ("steps", 9),
            ("stop", "immediate", 1, "withdraw", "session", "bot", None),
            ("new", "say=1", None, "user", True, None),
        ),
    ),
    # Its part had ended with the fence, so the successor of the run's actor did not ask for its end.
    "a call that never began ends as the actor of its run fails": Schedule(
        24676221688,
        Settings(agent="scripted"),
        (
            ("answer", 0, False),
            ("steps", 7),
            ("new", "draws=1", None, "user", True, None),
            ("steps", 9),
            ("stop", "graceful", None, None, "run", "user", None),
            ("steps", 20),
            ("poison", 1, 0, True),
        ),
    ),
    # The simulator took a Stop that its session's actor forgot as it failed for one that ended nothing.
    "a child run is ended by a Stop that is forgotten with an actor": Schedule(
        1754005739,
        Settings(agent="scripted", passivate_s=1.0, children_depth_max=1),
        (
            ("stop", "graceful", None, None, "run", "user", None),
            (
                "new",
                "left_delegate=other@t/late:9 effect=3 delegate=other@c/stubborn told=0.2 many=14 draws=3 say=1",
                None,
                "user",
                True,
                None,
            ),
            ("steps", 60),
            ("asked_to_leave",),
            ("stop", "graceful", None, None, "run", "user", None),
            ("unfit", 1),
            ("repeat", 8),
            ("new", "say=1", None, "user", True, None),
            ("poison", 0, 0, False),
            ("poison", 0, 3, True),
        ),
    ),
}


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    with quiet_log():
        yield


def _keeps_the_laws(seeds: range) -> None:
    tally = main.play(seeds)
    assert not tally.broken, f"replay: scripts/sim --seed {tally.broken[0][0]}: {tally.broken[0][1]}"
    assert tally.schedules == len(seeds)
    assert tally.steps > 10 * len(seeds)


@pytest.mark.parametrize("first", range(0, 6 * CHUNK, CHUNK))
def test_the_laws_hold_in_schedules_that_are_the_same_each_time(first: int) -> None:
    _keeps_the_laws(range(first, first + CHUNK))


@pytest.mark.parametrize("chunk", range(4))
def test_the_laws_hold_in_new_schedules(chunk: int) -> None:
    first = FRESH + chunk * CHUNK
    _keeps_the_laws(range(first, first + CHUNK))


@pytest.mark.parametrize("name", REGRESSIONS)
@pytest.mark.parametrize("shift", range(3))
def test_what_the_simulator_has_found_stays_mended(name: str, shift: int) -> None:
    schedule = REGRESSIONS[name]
    assert broken(replace(schedule, seed=schedule.seed + shift)) is None


@pytest.mark.parametrize("seed", [654])
def test_a_seed_is_replayed_exactly_whenever_garbage_is_collected(seed: int) -> None:
    """A crash drops coroutines; one that is collected would run its clean-up in the world behind the crash."""
    before = gc.get_threshold()
    try:
        gc.set_threshold(50)
        often = timeline(draw(seed))
        gc.set_threshold(1_000_000)
        assert timeline(draw(seed)) == often
    finally:
        gc.set_threshold(*before)


def test_a_session_is_seen_for_as_long_as_it_lives_though_its_root_has_failed_and_is_collected() -> None:
    """Else a call that begins in it is said to begin while its session is down, where garbage was collected."""
    with World(1) as world:
        world.answer("s", NewMessage(content="sleep=60"))
        session = world.session()
        assert world.poison(SupervisorActor)
        world.ask("s", NewMessage(content="say=1"))
        assert world.run(lambda: not world.supervisor.is_alive())
        gc.collect()
        assert not session.actor_stopped.is_set(), "it is told to stop, and has not been there yet"
        assert world.session_if_alive("s") is session
        world.settle()
        gc.collect()
        assert world.session_if_alive("s") is None


@pytest.mark.parametrize("seed", [3, 94, 207])
def test_a_seed_is_replayed_exactly(seed: int) -> None:
    def logs() -> list[object]:
        schedule = draw(seed)
        with Client(schedule.seed, schedule.settings) as client:
            client.play(schedule.script)
            return [client.steps, {name: rows.events for name, rows in client.world.disk.tables.items()}]

    assert draw(seed) == draw(seed)
    assert logs() == logs()


# ── Mutants ───────────────────────────────────────────────────────────────────────────────────────


def test_there_are_enough_mutants_and_each_can_be_planted() -> None:
    assert len(MUTANTS) >= 25
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        with mutant.planted():
            pass


QUICK = (
    "the halt is sent before the fence",
    "a permit is checked at the request instead of at the start",
    "permit before its commit",
    "no barrier",
    "the run's end is taken as proof of death",
    "takeover in two steps",
    "steer handed over twice",
    "the second cause replaces the first",
    "Down ahead of the output",
    "repair after publish",
    "receipt before the reap",
    "token cleared at the end",
    "a Stop aimed at an earlier run ends the current run",
    "request id not stored with its effect",
    "answer before commit",
    "an interrupted run is not closed at a restart",
    "the journal is not read at a restart",
    "the journal lets a Stop go before it is on record",
    "an overdue Stop is not put into the journal",
    "passivates with a run under way",
    "passivates over an open barrier",
    "a message at passivation is dropped",
    "a message at passivation is sent to the actor that leaves",
    "a message that finds the session in use is held for ever",
    "shutdown does not wait for proofs",
    "shutdown interrupts at once",
    "a session that is not at rest is not interrupted",
    "a call starts before its answer ends",
    "a block of another provider is rendered",
    "the agent sees its batch outside of its answer",
    "effects of an agent are lost when its session is read again",
    "a guard in a host is permitted without being counted",
)


@pytest.mark.parametrize("name", QUICK)
def test_a_mutant_is_caught(name: str) -> None:
    mutant = next(one for one in MUTANTS if one.name == name)
    assert mutant.hunt(3000) is not None


@pytest.mark.timeout(600)
def test_a_failure_is_shrunk_and_has_a_timeline() -> None:
    mutant = next(one for one in MUTANTS if one.name == "no barrier")
    found = mutant.hunt(1000)
    assert found is not None
    schedule = draw(found - 1)
    with mutant.planted():
        small = shrink(schedule)
        assert broken(small) is not None
        assert len(small.script) <= len(schedule.script)
        for index in range(len(small.script)):
            less = replace(small, script=small.script[:index] + small.script[index + 1 :])
            assert "(L3)" not in (broken(less) or ""), "one op more could go"
        lines = timeline(small)
    assert "BROKEN" in lines[-1]
    assert any("run.started" in line for line in lines)
    assert broken(small) is None, "without the fault it keeps the laws"


def test_an_edit_that_no_longer_fits_says_so() -> None:
    edit = replace(MUTANTS[1].edits[0], old="this is not in the source")
    with pytest.raises(ValueError, match="expected 'this is not in the source' once"):
        edit.made()
    with pytest.raises(ValueError, match="no_such_function is not there"):
        replace(edit, function="no_such_function").made()


def test_an_edit_of_a_function_that_calls_its_super_does_what_the_function_does() -> None:
    mutant = next(one for one in MUTANTS if one.name == "one process of the session too many")
    with mutant.planted(), World(0) as world:
        world.answer("s", NewMessage(content="run=1"))
        world.settle()
        assert "process.ended" in world.kinds(), "its spawn went by way of the class below"
        assert not world.errors


def test_what_breaks_a_predicate_ends_the_world() -> None:
    with World(0) as world:
        world.watch.break_("a law that was broken by hand")
        world.clock.call_at(0.0, lambda: None)
        with pytest.raises(LawBroken, match="seed 0, step 1: a law that was broken by hand"):
            world.step()


# ── The disk in memory is the store ───────────────────────────────────────────────────────────────


class Both(Disk):
    """A disk that writes every batch to the real tables too."""

    def __init__(self) -> None:
        super().__init__()
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        for _, script in migrations():
            self.connection.executescript(script)

    def write(self, batch: Batch) -> bool:
        """Write a batch to both."""
        last = tables.last_batch(self.connection, batch.session, batch.incarnation)
        written = super().write(batch)
        if written and batch.number == last + 1:
            for sql, values in tables.statements(batch):
                self.connection.execute(sql, values)
            tables.set_last_batch(self.connection, batch.session, batch.incarnation, batch.number)
        return written


def ends_as_the_whole_thread(connection: sqlite3.Connection, session: str) -> None:
    """Read the end of a thread from the end of the log, at each length."""
    whole = thread(connection, session)
    runs = list(dict.fromkeys(message.run_id for message in whole))
    for last in (*range(len(whole)), len(whole) + 1):
        found = thread_end(connection, session, last)
        assert found == (whole[len(whole) - last :] if last < len(whole) else whole, last < len(whole)), last
    for run_id in runs:
        place = next(i for i, message in enumerate(whole) if message.run_id == run_id)
        assert thread_end(connection, session, 0, run_id) == (whole[place:], place > 0), run_id


@pytest.mark.parametrize("first", range(1000, 1040, 10))
def test_the_disk_in_memory_holds_what_the_tables_hold(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    monkeypatch.setattr("tests.sim.world.Disk", Both)
    # The end of a thread is read from a part of the log, in steps of any length.
    monkeypatch.setattr("supervisor.store.events.PAGE", 3)
    monkeypatch.setattr("supervisor.store.thread_end.EVENTS_A_MESSAGE", 2)
    for seed in range(first, first + 10):
        schedule = draw(seed)
        with Client(schedule.seed, schedule.settings, hosting=schedule.hosting) as client:
            client.play(schedule.script)
            disk = client.world.disk
            assert isinstance(disk, Both)
            for session in disk.tables:
                ours, theirs = disk.snapshot(session), snapshot(disk.connection, session)
                assert ours.thread.messages() == theirs.thread.messages()
                for name in (
                    "row",
                    "runs",
                    "calls",
                    "receipts",
                    "waiting",
                    "requests",
                    "acted",
                    "fates",
                    "over",
                    "told_durable",
                    "handed_over",
                ):
                    assert getattr(ours, name) == getattr(theirs, name), name
                assert set(ours.processes) == set(theirs.processes)
                assert disk.events(session) == read_events(disk.connection, session, 0, 100_000)
                ends_as_the_whole_thread(disk.connection, session)
            assert disk.unfinished() == unfinished(disk.connection)
            disk.connection.close()


@pytest.mark.parametrize("seed", range(20))
def test_the_journal_in_memory_keeps_what_the_stop_journal_keeps(tmp_path: Path, seed: int) -> None:
    """Through records that come again, with and without an answer, and some that are let go."""
    random, simulated = Random(seed), Disk()
    real, mine = StopJournal(tmp_path / "stops"), SimStore(simulated, random, Watch(simulated))
    nobody = cast("ActorRef[Any]", SimpleNamespace(tell=lambda _: None))
    for at in range(40):
        request = Stop(id=random.choice("xyz"), source="user.test", reason="enough")
        if random.random() < 0.2:
            real.forget("s", request.id)
            mine._journal.append(("s", request.id))
        else:
            answer = ("stopped", "run_1", "rcpt_1") if random.random() < 0.4 else (None, None, None)
            kept = KeptStop("s", request, at, *answer)
            real.keep(kept)
            mine.keep_stop(kept, nobody)
        if random.random() < 0.5:
            mine.journal_step()
        assert mine._with_unwritten_stops(simulated.snapshot("s")).kept == real.of("s")
    real.close()


# ── The command ───────────────────────────────────────────────────────────────────────────────────


def test_the_command_plays_and_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--seeds", "30", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert set(said) == {"schedules", "steps", "violations", "steps_per_s"}
    assert said["schedules"] == 30
    assert said["violations"] == 0
    assert said["steps"] > 300


def test_the_command_plays_only_those_with_hosts_if_it_is_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    hosted = [seed for seed in range(40) if draw(seed).hosting is not None]
    assert main.main(["--seeds", "40", "--hosts", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schedules"] == len(hosted) in range(1, 40)


def test_the_command_begins_no_schedule_long_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the minutes are over nothing waits to be played: the next chunk is taken when one is done."""
    ahead: list[int] = []
    done = 0
    add = main.Tally.add

    def counted(tally: main.Tally, other: main.Tally) -> None:
        nonlocal done
        done += 1
        add(tally, other)

    def chunks() -> Iterator[range]:
        for seed in range(12):
            ahead.append(seed - done)
            yield range(seed, seed + 1)

    monkeypatch.setattr(main.Tally, "add", counted)
    tally = main.play_all(Console(stderr=True), chunks(), None, 1)
    assert tally.schedules == done == 12
    # What has come back is counted before the next is taken, also where two come back at once.
    assert max(ahead) <= 1


def test_the_command_replays_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--seed", "3"]) == 0
    shown = capsys.readouterr().err
    assert "it keeps the laws" in shown
    assert "session.fenced" in shown


def test_the_command_shows_a_seed_that_breaks_a_law(capsys: pytest.CaptureFixture[str]) -> None:
    mutant: Mutant = next(one for one in MUTANTS if one.name == "answer before commit")
    with mutant.planted():
        assert main.main(["--seed", "3", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["violations"] == 1
    assert "is answered before its effect is durable (L12)" in captured.err


def test_the_command_hunts_mutants(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--mutants", "aimed", "--schedules", "100", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [set(one) for one in said["mutants"]] == [{"name", "caught", "schedules"}]
    assert said["mutants"][0]["caught"] is True
    assert main.main(["--mutants", "no such mutant"]) == 2


@pytest.mark.parametrize("arguments", [["--seeds", "0"], ["--minutes", "-1"], ["--jobs", "x"]])
def test_the_command_refuses_what_cannot_be(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main.main(arguments)
    assert refused.value.code == 2
