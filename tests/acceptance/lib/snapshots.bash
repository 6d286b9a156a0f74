# A snapshot each second while a case runs, and their comparison at its end.

# Snapshots that stay: the older ones are deleted meanwhile.
kept_snapshots=8

snapshots_pid=

# on_snapshot VERB NAME: makes or deletes a snapshot. Fails while the primary is down, or may not do so.
on_snapshot() {
    timeout 20 "$LOCKSTEP" snapshot "$1" playground "$2" --control "$(node primary control)" \
        >>"$work/snapshots.log" 2>&1
}

make_snapshots() {
    local made=()
    for ((number = 1; ; number++)); do
        [ ! -e "$work/snapshots.end" ] || return 0
        if on_snapshot create "second-$number"; then
            made+=("second-$number")
            echo "$number" >"$work/snapshots.made"
        fi
        if [ ${#made[@]} -gt "$kept_snapshots" ] && on_snapshot delete "${made[0]}"; then
            made=("${made[@]:1}")
        fi
        sleep 1
    done
}

start_snapshots() {
    make_snapshots &
    snapshots_pid=$!
    add_pid "$snapshots_pid"
}

# Exports the oldest and the newest snapshot from both running nodes, and compares them.
compare_snapshots() {
    local name which shown=()
    touch "$work/snapshots.end"
    wait "$snapshots_pid" || fail "the snapshots ended early; see $work/snapshots.log"
    mapfile -t shown < <("$LOCKSTEP" snapshot list playground --json --control "$(node primary control)" |
        jq -r '.snapshots[] | select(.kind == "user" and .state != "deleting") | .name')
    [ ${#shown[@]} -gt 0 ] || fail "no snapshot was made; see $work/snapshots.log"
    for name in "${shown[0]}" "${shown[-1]}"; do
        for which in primary secondary; do
            "$LOCKSTEP" export playground "$work/$name-$which" --at "$name" --config "$(node "$which" config)" ||
                fail "lockstep export --at $name by the $which"
        done
        compare_trees "$work/$name-primary" "$work/$name-secondary"
        rm -rf "$work/$name-primary" "$work/$name-secondary"
    done
    echo "note: $(cat "$work/snapshots.made") snapshots"
}
