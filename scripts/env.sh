# Makes .venv, beside the project, what requirements.lock says. Sourced by scripts/run and scripts/test.
# And .venv-sdks in the same way, what requirements-sdks.lock says, which only scripts/test needs.
#
# Theory of operation. A virtual environment cannot be moved, since the commands in it carry its path; so it
# is built where it stays, and .venv/ready, written last and by a rename, says that it is whole. That file
# holds what it was made from (this project's path and the lock file, in full, and pyproject.toml in a second
# file), so the check at every start is a comparison of texts by bash alone, without a process.
#
#   * Interrupted, at any point: there is no `ready`, so the next start begins anew from an empty folder.
#   * Twice at once: the builder holds an flock on .venv.lock, the second waits and then finds it ready. Pip
#     inherits the lock: if only this shell is killed, a later start waits until that pip is through.
#   * The lock file changed, the project was moved, or its Python went away: the check fails; built anew.
#   * Only pyproject.toml changed: the project's own entry is installed again, which takes a second or two.
#
# Nothing here writes to stdout but the help that is asked for: the rest is the command's.

venv=$root/.venv
lock=$root/requirements.lock

# Print to stderr.
say() {
    printf 'countermand: %s\n' "$*" >&2
}

# True if the text of file $1 is $2.
file_says() {
    local LC_ALL=C text=""
    [[ -r $1 ]] || return 1
    IFS= read -rd '' text <"$1" || true
    [[ $text == "$2" ]]
}

# Set `dependencies` and `project` to what a whole .venv is made from.
read_wanted() {
    local LC_ALL=C
    read_dependencies
    IFS= read -rd '' project <"$root/pyproject.toml" || true
}

read_dependencies() {
    local LC_ALL=C
    IFS= read -rd '' dependencies <"$lock" || true
    dependencies=$root$'\n'$dependencies
}

has_dependencies() {
    [[ -x $venv/bin/python ]] && file_says "$venv/ready" "$dependencies"
}

has_project() {
    [[ -f $venv/bin/countermand ]] && file_says "$venv/ready-project" "$project"
}

# Write text $2 to file $1, all of it or nothing.
write_whole() {
    printf '%s' "$2" >"$1.new"
    mv -f "$1.new" "$1"
}

# Set `python` to the real path of a Python that will do: the link `python3` may point elsewhere tomorrow.
find_python() {
    local candidate found=""
    for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
        python=$("$candidate" -I -c '
import os, sys
if sys.version_info < (3, 11):
    sys.exit(1)
print(os.path.realpath(sys.executable))' 2>/dev/null) || continue
        if "$python" -I -c 'import ensurepip, venv' 2>/dev/null; then
            return 0
        fi
        found=$python
    done
    if [[ -n $found ]]; then
        say "$found has no venv module, which is needed to make $venv."
        say "Install it (Debian, Ubuntu: apt install python3-venv), or set PYTHON to another Python."
    else
        found=$("${PYTHON:-python3}" -V 2>/dev/null) || found="not here"
        say "Python 3.11 or later is needed, and ${PYTHON:-python3} is $found."
        say "Install python3.11 or later with its venv module, or set PYTHON to its path."
    fi
    return 1
}

# Take the lock on descriptor 9; it is dropped when the last process that inherited it ends. Python takes it,
# because flock(1) is not on every system.
take_lock() {
    if ! exec 9>>"$root/.venv.lock"; then
        say "cannot write in $root, where the environment is made."
        return 1
    fi
    "$python" -I -c '
import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("countermand: another start is making the environment; waiting for it", file=sys.stderr)
    fcntl.flock(9, fcntl.LOCK_EX)'
}

# Python with nothing of the caller's: not what lies in the current folder, nor what the environment says.
isolated() {
    env -u PYTHONPATH -u PYTHONHOME -u PIP_TARGET -u PIP_PREFIX -u PIP_ROOT -u PIP_USER -u PIP_REQUIRE_VIRTUALENV \
        "$1" -I "${@:2}" >&2
}

pip() {
    isolated "$venv/bin/python" -m pip --disable-pip-version-check --no-input -qq "$@"
}

make_dependencies() {
    say "making $venv with $("$python" -V); this happens once and takes up to a minute"
    rm -rf "$venv"
    isolated "$python" -m venv "$venv"
    say "installing $(grep -c '==' "$lock") packages (${SECONDS} s)"
    if ! pip install --require-hashes --requirement "$lock"; then
        say "the dependencies could not be installed (above: why); the next start tries again."
        return 1
    fi
    write_whole "$venv/ready" "$dependencies"
}

make_project() {
    rm -f "$venv/ready-project"
    say "installing the project itself (${SECONDS} s)"
    pip install --no-index --no-deps --no-build-isolation --editable "$root"
    write_whole "$venv/ready-project" "$project"
}

# True if one of the arguments behind $1 asks for help; then the head of $1, a Python file, was printed: its
# docstring, which needs no environment.
helped() {
    local file=$1 word
    shift
    for word in "$@"; do
        if [[ $word == -h || $word == --help ]]; then
            sed -n '/^"""$/q;1s/^"""//;p' "$file"
            return 0
        fi
    done
    return 1
}

# Make .venv ready, if it is not.
ensure_venv() {
    local dependencies="" project="" python=""
    read_wanted
    if has_dependencies && has_project; then
        return 0
    fi
    find_python
    take_lock
    SECONDS=0
    # What was missing before the lock may have been made by the one who held it.
    if ! has_dependencies; then
        make_dependencies
    fi
    if ! has_project; then
        make_project
        say "the environment is ready (${SECONDS} s)"
    fi
    # The command must not inherit the lock: a daemon would hold it for as long as it lives.
    exec 9>&-
}

# Make .venv-sdks ready, if it is not: what the agents of some tests are written with (requirements-sdks.lock).
ensure_sdks() {
    local venv=$root/.venv-sdks lock=$root/requirements-sdks.lock dependencies="" python=""
    read_dependencies
    if has_dependencies; then
        return 0
    fi
    find_python
    take_lock
    SECONDS=0
    if ! has_dependencies; then
        make_dependencies
        say "$venv is ready (${SECONDS} s)"
    fi
    exec 9>&-
}

# Coding agents that tests run. Claude Code is among the packages of .venv-sdks.
programs="@openai/codex@0.171.0 opencode-ai@1.18.33 @google/gemini-cli@0.61.0"

# Put these on the PATH, in .programs if they are not there, and have all their tests run. The variable has not the
# prefix of the daemon's own: each of those is a key of its configuration.
ensure_programs() {
    local folder=$root/.programs
    if ! file_says "$folder/ready" "$programs"; then
        if ! command -v npm >/dev/null; then
            say "npm is needed for the tests of coding agents (--agents)."
            return 1
        fi
        mkdir -p "$folder"
        # shellcheck disable=SC2086  # it is a list
        if ! npm install --prefix "$folder" --no-audit --no-fund --loglevel=error $programs >&2; then
            say "the coding agents could not be installed (above: why); the next start tries again."
            return 1
        fi
        write_whole "$folder/ready" "$programs"
    fi
    export PATH=$folder/node_modules/.bin:$PATH CM_TEST_AGENTS=1
}
