# Plain stop and start of either node, with writes before, between and after
# shellcheck disable=SC2034
needs_nodes=yes

workload() {
    start_writer
    more_acknowledged 100
    stop_node secondary
    start_node secondary
    more_acknowledged 100
    await_in_sync
    stop_writer
    stop_node primary
    ! mountpoint -q "$mount" || fail "a stopped primary left its mount"
    start_node primary
    await "the mount to be back" 60 mountpoint -q "$mount"
    await_in_sync
    check_acknowledged
    make_files "$mount/after" 50
}
