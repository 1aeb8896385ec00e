"""Agents that are a model: the presets `openai`, `openai-responses` and `anthropic`, and the example for one's own.

    chat.py       chat completions, as OpenAI has them, and llama.cpp, vLLM, Ollama and many others
    responses.py  the Responses API of OpenAI
    messages.py   the Messages API of Anthropic
    model.py      what such an agent is configured with: the model, its client, its key, its errors; calls as it asks
    offers.py     the tools that it may call, those of its MCP servers too
    patience.py   the loop around one answer; it asks again after what passes, and says what does not

Each is a loop around one answer: render the thread, ask, put on record what comes, wait for the calls, ask again. They
use nothing but what every agent has (`from countermand import …`, and the turn), and the SDK of the vendor.

They run in hosts, as every agent of the configuration, and not in the daemon. The SDK is a package of the agent's
environment: the daemon needs none, two agents may have two versions of it, and its import, which takes a second, is
over in a spare before a message comes. The key is in the memory of that process alone. What the SDK does after a Stop
(a connection that hangs, a thread that resolves a name) ends with the process, and the receipt proves it.

The text of an answer is on record piece by piece, so that a Stop leaves what people have seen. Thinking is shown as
progress, and is on record when it is whole. Calls of one answer start together when the answer has ended.
"""
