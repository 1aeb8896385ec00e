// An agent in Node, without any library: command = ["node", "agent.mjs"]. The protocol: docs/host-protocol.md.
import net from "node:net";
import readline from "node:readline";

// ── The agent: this part is yours ──
async function agent(turn) {
  turn.emit(`You said: ${turn.thread.at(-1).content}\n`);
  const made = await turn.call("shell", { script: "make test" }); // a tool of the daemon's
  turn.emit(made.content);
  const words = made.content.split(/\s+/).length;
  // A function of your own: it is on record, and does not begin after a Stop.
  const text = await turn.gate("report", { words }, async () => `${words} words`);
  await fetch("data:,done", { signal: turn.signal }); // whatever takes a signal ends with the run
  return { report: text };
}

// ── The host ──
const socket = new net.Socket({ fd: Number(process.env.COUNTERMAND_CHANNEL) });
delete process.env.COUNTERMAND_CHANNEL;
const send = (frame) => socket.write(JSON.stringify({ jsonrpc: "2.0", ...frame }) + "\n");
const waiting = new Map(); // requests that have no answer yet, by their id
let ids = 0, run;
const request = (method, params, own) => new Promise((resolve, reject) => {
  waiting.set(++ids, { resolve, reject, own });
  send({ id: ids, method, params });
});
const answer = (id, work, signal) => work().then((result) => send({ id, result }), (error) => send({
  id, error: { code: signal.aborted ? -32800 : -32000, message: `${error?.message ?? error}` },
}));

function begin(id, params) {
  const stop = new AbortController(), { fence } = params, { signal } = stop;
  const ended = new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  ended.catch(() => {}); // each door tells it
  const door = (open) => (...given) => { signal.throwIfAborted(); return open(...given); };
  const call = async (params, own) => Promise.race([request("call", { fence, ...params }, own), ended]);
  run = { id, stop };
  answer(id, async () => ({ value: (await agent({
    ...params, signal,
    emit: door((text) => send({ method: "emit", params: { fence, text } })),
    call: door((tool, args) => call({ tool, arguments: args })),
    gate: door(async (tool, args, own) => {
      const done = await call({ tool, arguments: args, where: "host" }, own);
      if (done.outcome === "finished" && !done.is_error) return done.content;
      throw new Error(done.content);
    }),
  })) ?? null }), signal);
}

readline.createInterface({ input: socket }).on("line", (line) => {
  const { id, method, params, result, error } = JSON.parse(line);
  const { resolve, reject, own } = waiting.get(params?.of ?? id) ?? {};
  if (method === "run") begin(id, params);
  else if (method === "execute") answer(id, async () => ({ content: String(await own()) }), run.stop.signal);
  else if (method === "$/cancel_request" && params.requestId === run?.id) run.stop.abort(new Error(params.why.reason));
  else if (!method) { waiting.delete(id); if (error) reject?.(error); else resolve?.(result); }
});
socket.on("close", () => process.exit(75)); // the daemon is gone
request("hello", { protocol: [1], runtime: `node ${process.version}` });
