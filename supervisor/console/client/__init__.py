"""The client: a daemon over its API, and a store that is read from the disk.

endpoint.py   where a daemon is to be found
api.py        its API, over its socket
follower.py   its events as they come, across breaks of the connection
records.py    what is on record: asked of the daemon, else read from the disk
remote.py     the one
reading.py    the other
attended.py   whether anything works on a run that is on record as open
"""
