"""The tools that ship.

The map, from what a configuration has to what they share:

shell.py       runs a command line
shipped.py     which of the tools a configuration has
files.py       `read`, `write`, `edit`, `list`: files beneath a root
draft.py       the next content of a file, until it takes its place in one step
grep.py        `grep`: it searches files beneath a root
searcher.py    the program that does it, in a process of its own
beneath.py     paths that do not leave their root
http_get.py    `http_get`: it asks the hosts that the configuration names
"""
