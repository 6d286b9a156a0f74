# Removes everything that a case has left behind, in any state of the case.
#
# The directory of a case lists its processes and mounts: `pids` (one process id per line), `mounts` (one mount
# point per line) and `p/playground.json` (the nodes). Nothing else is ever ended or
# unmounted.

# alive PID: true if the process runs; a zombie does not.
alive() {
    local state
    state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null)
    [ -n "$state" ] && [ "$state" != Z ]
}

# await_end PID SECONDS: true if the process ends in that time.
await_end() {
    local tenths=$(($2 * 10))
    while alive "$1"; do
        [ "$tenths" -gt 0 ] || return 1
        tenths=$((tenths - 1))
        sleep 0.1
    done
}

# end_process PID: sends SIGTERM, later SIGKILL.
end_process() {
    alive "$1" || return 0
    kill -TERM "$1" 2>/dev/null || true
    await_end "$1" 10 || kill -KILL "$1" 2>/dev/null || true
}

# end_group PID: ends every process of the session that this process leads.
end_group() {
    kill -KILL -- "-$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}

node_pids() {
    jq -r '.nodes[].pid' "$1/p/playground.json" 2>/dev/null
}

mounts_below() {
    awk -v below="$1/" 'index($2, below) == 1 { print $2 }' /proc/mounts | sort -r
}

# clean_up DIR KEEP: ends what the case started, unmounts, and removes the directory unless KEEP
# is yes.
clean_up() {
    local dir=$1 keep=$2 pid mount
    for pid in $(tac "$dir/pids" 2>/dev/null) $(node_pids "$dir"); do
        end_process "$pid"
    done
    for mount in $(mounts_below "$dir"); do
        umount "$mount" 2>/dev/null || umount -l "$mount" || true
    done
    if [ "$keep" = yes ]; then
        echo "note: kept $dir"
    else
        rm -rf --one-file-system "$dir"
    fi
}
