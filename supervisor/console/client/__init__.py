"""The client: a daemon over its API, and a store that is read from the disk.

endpoint.py         where a daemon is to be found
api.py              its API, over its socket
follower.py         its events as they come, across breaks of the connection
source.py           where records come from: the daemon that runs, else the store on the disk
records.py          Records: what a command can read of the sessions
remote_records.py   those of a daemon
store_records.py    those of a store
attended.py         whether anything works on a run that is on record as open
"""
