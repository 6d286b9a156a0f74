# SIGKILL of the primary in mid-write; it comes back, every acknowledged write is there
# shellcheck disable=SC2034
needs_nodes=yes

workload() {
    local round
    for ((round = 0; round < $(size 2 20); round++)); do
        start_writer
        more_acknowledged 100
        kill_node primary
        stop_writer
        umount -l "$mount" || true
        start_node primary
        await "the mount to be back" 60 mountpoint -q "$mount"
        await_in_sync
        check_acknowledged
        rm -r "$mount/records" "$mount/lines"
    done
    echo after >"$mount/after"
}
