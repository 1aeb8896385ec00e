"""Where records come from: the daemon that runs, else the store on the disk.

A command that reads takes whichever there is, and shows the same. The daemon goes first: it may belong to another
user, and only it knows what has happened since its last write.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from supervisor.console.client.endpoint import Place
from supervisor.console.client.records import Records
from supervisor.console.client.store_records import StoreRecords


@contextmanager
def open_records(place: Place, patience_s: float | None = None) -> Iterator[Records]:
    """Open what is on record at a place.

    Args:
        place: where a daemon is looked for, and the store where none runs.
        patience_s: how long a daemon may take for an answer, of which nothing is said; None: as long as it may, and
            that it takes long is said.

    Raises:
        StoreUnavailable: no daemon runs, and the store is not there or cannot be read.
        NoDaemon: a socket was named, and nobody answers on it.
    """
    if place.named is None and not place.is_listening():
        with StoreRecords(place.state_dir) as records:
            yield records
        return
    # httpx takes longer to load than the store to be read: it is loaded where there is somebody to talk to.
    from supervisor.console.client.api import Api, need_api
    from supervisor.console.client.remote_records import RemoteRecords

    api = need_api(place) if patience_s is None else Api(place, answer_s=patience_s, on_wait=lambda _: None)
    try:
        yield RemoteRecords(api)
    finally:
        api.close()
