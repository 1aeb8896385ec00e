"""The client: a daemon over its API, and a store that is read from the disk.

endpoint.py         where to find a daemon
api.py              its API, over its socket
follower.py         its events as they come, across breaks of the connection
source.py           the source of records: a running daemon, else the store on the disk
records.py          Records: the reads that commands use
remote_records.py   Records over a daemon's API
store_records.py    Records from a store
attended.py         whether a supervisor works on a run that is recorded as unfinished
"""
