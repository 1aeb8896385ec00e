"""Presets: agents that are programs of other people's, such as coding agents, each a process that speaks over pipes.

    session.py       converse: one turn of the program that this host has, started and resumed where necessary
    claude_code.py   Claude Code
    codex.py         Codex, by its app server
    acp.py           programs that speak the Agent Client Protocol
    rpc.py           requests and answers in JSON, as ACP and Codex have them
    calls.py         the tool calls of a program, as calls of the run, and its requests for permission
    servers.py       the MCP servers that the program is handed
    prompts.py       what the program is told: what it has not seen of the thread, and the user's messages
    program.py       Program: the process, its lines, its last words, its exit status

Theory of operation. The host runs in the supervisor's own interpreter, and the program is its child: so it is in the
process tree of the run, and whatever it starts is ended with it and proven. The host is kept after a turn that has
ended by itself, and with it the program. One task reads the program's output. During a turn it passes the messages on,
in a queue with a limit; between turns it drops them, so that nothing of an earlier turn is taken for the next one's.

The program has a session of its own, on disk, with an id. The id is saved, and durable before the first prompt (W1).
After a Stop, a restart, or the end of the host the next turn starts the program again and resumes by the id (W2). A
session that is gone is replaced by a new one, which is told what the thread has (W3).

A Stop cancels the turn's task once. The task asks the program to cancel, and waits for the end of its turn for half of
the grace: the other half is for SIGTERM (W4). Nothing that the program says meanwhile has an effect; a permission that
it asks for is refused. Whatever it does about that, the supervisor then ends the tree of the host.

A program does what it does. Calls for which it asks permission are gated: they are recorded before they begin, and
begin only if the run may still act. Calls that it makes without asking are recorded as it reports them.
"""
