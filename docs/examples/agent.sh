#!/usr/bin/env bash
# An agent in bash and jq: command = ["bash", "agent.sh"]. The protocol: docs/host-protocol.md.

# ── The agent: this part is yours. A step that returns 1 was cancelled: clean up, and return. ──

agent() {
    emit "You said: $(jq -r '.params.thread[-1].content' <<<"$run")"$'\n' || return
    call shell '{"script": "make test"}' || return # a tool of the daemon's
    emit "$(jq -r .content <<<"$result")" || return
    work sleep 0.1 || return # a command of your own
    value='{"ok": true}'
}

# ── The host ──

if ((COUNTERMAND_CHANNEL != 3)); then eval "exec 3<&$COUNTERMAND_CHANNEL $COUNTERMAND_CHANNEL<&-"; fi
unset COUNTERMAND_CHANNEL
jq() { command jq "$@" 3<&-; } # what is started here does not get the channel
send() { jq -cn "$@" '{jsonrpc: "2.0"} + $ARGS.named' >&3; }
of_run() { jq -cn --argjson run "$run" "$@" '{fence: $run.params.fence} + ($ARGS.named | del(.run))'; }
ids=0 unread='' run='{}' cancelled=

take() { # take [SECONDS]: read the next frame; 1: it cancels the run, 2: none came in that time
    local piece status
    IFS= read -r ${1:+-t "$1"} -u 3 piece
    status=$? unread+=$piece
    ((status > 128)) && return 2
    ((status == 0)) || exit 75 # the daemon is gone
    frame=$unread unread=''
    [[ $(jq -r .method <<<"$frame") == '$/cancel_request' ]] || return 0
    [[ $(jq .params.requestId <<<"$frame") == $(jq .id <<<"$run") ]] || return 0
    cancelled=1 && return 1
}

emit() { # emit TEXT
    [[ ! $cancelled ]] && send --arg method emit --argjson params "$(of_run --arg text "$1")"
}

call() { # call TOOL ARGUMENTS: sets `result`
    [[ ! $cancelled ]] || return 1
    send --argjson id $((++ids)) --arg method call --argjson params "$(of_run --arg tool "$1" --argjson arguments "$2")"
    while take; do
        [[ $(jq -r '.method // .id' <<<"$frame") == "$ids" ]] || continue
        result=$(jq -c '.result // {content: .error.message}' <<<"$frame") && return
    done
    return 1
}

work() { # work COMMAND...: run it; a cancel ends it
    [[ ! $cancelled ]] || return 1
    local child
    "$@" 3<&- & child=$!
    while kill -0 $child 2>/dev/null; do
        take 0.1
        (($? != 1)) || kill -TERM $child
    done
    wait $child && [[ ! $cancelled ]]
}

hello=$(jq -n --arg runtime "bash $BASH_VERSION" '{protocol: [1], $runtime}')
send --argjson id $((++ids)) --arg method hello --argjson params "$hello"
while true; do
    take && [[ $(jq -r .method <<<"$frame") == run ]] || continue
    run=$frame cancelled='' value=null
    if agent; then
        send --argjson id "$(jq .id <<<"$run")" --argjson result "{\"value\": $value}"
    else
        code=$([[ $cancelled ]] && echo -32800 || echo -32000)
        send --argjson id "$(jq .id <<<"$run")" --argjson error "{\"code\": $code, \"message\": \"ended early\"}"
    fi
done
