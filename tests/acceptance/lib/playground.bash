# A playground: both nodes as processes of this machine, and their mount.

playground_pid=

# add_pid PID, add_mount DIR: registers a process and a mount for the end of the case.
add_pid() {
    echo "$1" >>"$work/pids"
}

# Sets $mount, which is a plain directory in plain mode.
start_playground() {
    if [ "$PLAIN" = yes ]; then
        mount=$work/plain
        mkdir "$mount"
        return
    fi
    mkdir -p "$work/p"
    "$LOCKSTEP" playground --dir "$work/p" >"$work/ready" 2>"$work/playground.log" &
    playground_pid=$!
    add_pid "$playground_pid"
    await "the playground to be ready" 60 grep -qx ready "$work/ready"
    mount=$(jq -er .mount "$work/p/playground.json")
    mountpoint -q "$mount" || fail "$mount is not mounted"
}

# await WHAT SECONDS COMMAND...: waits until the command succeeds.
await() {
    local what=$1 tenths=$(($2 * 10))
    shift 2
    until "$@" >/dev/null 2>&1; do
        if [ -n "$playground_pid" ] && ! alive "$playground_pid"; then
            fail "the playground ended while waiting for $what"
        fi
        [ "$tenths" -gt 0 ] || fail "waited too long for $what"
        tenths=$((tenths - 1))
        sleep 0.1
    done
}

# node ROLE FIELD: prints the field of playground.json for the node that started in this role.
node() {
    jq -er --arg role "$1" --arg field "$2" \
        '.nodes[] | select(.role == $role) | .[$field]' "$work/p/playground.json"
}

# node_pid ROLE: prints the id of the running process.
node_pid() {
    cat "$work/$1.pid" 2>/dev/null || node "$1" pid
}

# kill_node ROLE: ends the node with SIGKILL, as a crash does.
kill_node() {
    local pid
    pid=$(node_pid "$1")
    kill -KILL "$pid"
    await_end "$pid" 10 || fail "the $1 survived SIGKILL"
}

# stop_node ROLE: ends the node with SIGTERM, as an administrator does.
stop_node() {
    local pid
    pid=$(node_pid "$1")
    kill -TERM "$pid"
    await_end "$pid" 60 || fail "the $1 did not stop within 60 s of SIGTERM"
}

# node_command ROLE: prints the command that starts the node again, quoted for the shell.
node_command() {
    jq -er --arg role "$1" '.nodes[] | select(.role == $role) | .command | @sh' \
        "$work/p/playground.json"
}

# start_node ROLE: starts the node by that command.
start_node() {
    local command=()
    eval "command=($(node_command "$1"))"
    "${command[@]}" >>"$work/$1.log" 2>&1 &
    echo $! >"$work/$1.pid"
    add_pid $!
}

in_sync() {
    "$LOCKSTEP" status --config "$(node primary config)"
}

await_in_sync() {
    await "the nodes to be in sync" 120 in_sync
}

# resident_mib ROLE: prints the most memory that the node has used.
resident_mib() {
    awk '/^VmHWM/ { printf "%d\n", $2 / 1024 }' "/proc/$(node_pid "$1")/status"
}

# Stops every running process; the nodes that this case has restarted come last.
stop_playground() {
    local status=0 pid
    kill -TERM "$playground_pid"
    await_end "$playground_pid" 120 || fail "the playground did not stop within 120 s of SIGTERM"
    wait "$playground_pid" || status=$?
    playground_pid=
    for pid in $(cat "$work"/primary.pid "$work"/secondary.pid 2>/dev/null); do
        kill -TERM "$pid" 2>/dev/null || true
        await_end "$pid" 60 || fail "node $pid did not stop within 60 s of SIGTERM"
    done
    [ "$status" -eq 0 ] || fail "the playground ended with status $status"
    ! mountpoint -q "$mount" || fail "$mount is still mounted"
}
