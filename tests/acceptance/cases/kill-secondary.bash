# SIGKILL of the secondary in mid-write; it comes back, is in sync again, nothing is lost
# shellcheck disable=SC2034
needs_nodes=yes

workload() {
    local round
    start_writer
    for ((round = 0; round < $(size 2 20); round++)); do
        more_acknowledged 100
        kill_node secondary
        start_node secondary
        more_acknowledged 100
        await_in_sync
    done
    stop_writer
    check_acknowledged
}
