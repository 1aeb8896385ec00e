"""The bench: measures of the running product.

bench.py      the command: a table, or a document
measures/     one measure a file, named after it
figure.py     Figure: one measured number and its limit; Rounds: how often each thing is measured
kit.py        what the measures share: supervisors, process trees, agents, baselines
sessions.py   a store of many sessions with a past
talker.py     an agent that is measured inside and in a host
"""
