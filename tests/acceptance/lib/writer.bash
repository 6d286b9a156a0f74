# A client that keeps account: the client notes a write outside the mount only after the
# acknowledgement, so every noted write must be found afterwards.

writer_pid=

# writer_loop: record I is a file of its own and a line of a common file. Ends by itself when
# $work/stop appears or when a write fails.
writer_loop() {
    local i=0
    mkdir -p "$mount/records"
    until [ -e "$work/stop" ]; do
        i=$((i + 1))
        printf 'record %d of the writer\n' $i >"$mount/records/$i" || break
        printf '%08d\n' $i >>"$mount/lines" || break
        echo $i >>"$work/acknowledged"
    done
}

start_writer() {
    rm -f "$work/stop"
    : >"$work/acknowledged"
    writer_loop >>"$work/writer.log" 2>&1 &
    writer_pid=$!
    await "the first acknowledged records" 30 acknowledged_at_least 50
}

acknowledged() {
    wc -l <"$work/acknowledged"
}

acknowledged_at_least() {
    [ "$(acknowledged)" -ge "$1" ]
}

# more_acknowledged N: waits for that many more.
more_acknowledged() {
    await "$1 more acknowledged records" 60 acknowledged_at_least $(($(acknowledged) + $1))
}

stop_writer() {
    touch "$work/stop"
    await_end "$writer_pid" 60 || fail "the writer hangs"
    wait "$writer_pid" || true
}

# Checks that every noted write is found, whole.
check_acknowledged() {
    local i
    while read -r i; do
        [ "$(cat "$mount/records/$i")" = "record $i of the writer" ] ||
            fail "acknowledged record $i is lost or damaged"
    done <"$work/acknowledged"
    cmp -n $((9 * $(acknowledged))) "$mount/lines" <(seq -f %08g "$(acknowledged)") ||
        fail "acknowledged lines are lost or damaged"
    echo "note: $(acknowledged) acknowledged records found"
}
