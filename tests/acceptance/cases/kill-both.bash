# SIGKILL of both nodes in mid-write; they come back, every acknowledged write is there
# shellcheck disable=SC2034
needs_nodes=yes

workload() {
    start_writer
    more_acknowledged 200
    kill_node secondary
    kill_node primary
    stop_writer
    umount -l "$mount" || true
    start_node primary
    start_node secondary
    await "the mount to be back" 60 mountpoint -q "$mount"
    await_in_sync
    check_acknowledged
    echo after >"$mount/after"
}
