"""The source of records: a running daemon, else the store on the disk.

A command that reads shows the same from either. The daemon comes first: it may belong to another user, and only it
knows what has happened since its last write.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from supervisor.console.client.endpoint import Endpoint
from supervisor.console.client.records import Records
from supervisor.console.client.store_records import StoreRecords


@contextmanager
def open_records(endpoint: Endpoint, patience_s: float | None = None) -> Iterator[Records]:
    """Open the records of an endpoint.

    Args:
        endpoint: where a daemon is looked for, and the store if none runs.
        patience_s: how long a daemon may take to answer, silently; None: its own limit, with a remark if it is slow.

    Raises:
        StoreUnavailable: no daemon runs, and the store does not exist or cannot be read.
        NoDaemon: a socket was named, and no daemon answers on it.
    """
    if endpoint.named is None and not endpoint.is_listening():
        with StoreRecords(endpoint.state_dir) as records:
            yield records
        return
    # Imported only for a daemon: httpx takes longer to load than the store to be read.
    from supervisor.console.client.api import Api, need_api
    from supervisor.console.client.remote_records import RemoteRecords

    api = need_api(endpoint) if patience_s is None else Api(endpoint, answer_s=patience_s, on_wait=lambda _: None)
    try:
        yield RemoteRecords(api)
    finally:
        api.close()
