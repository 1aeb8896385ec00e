"""Agents in processes of their own: hosts.

The map:

    countermand_host.py   the runtime of Python agents: one file, which runs in the host
"""
