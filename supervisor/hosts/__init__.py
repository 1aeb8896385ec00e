"""Agents in processes of their own. The map:

    countermand_host.py   the runtime of Python agents: one file, which runs in the host
"""
