# Mistakes are refused with an error that names cause and cure, and change nothing
# shellcheck disable=SC2034
needs_nodes=yes

# refused WHAT PATTERN COMMAND...: it fails soon, says the pattern, and does not panic.
refused() {
    local what=$1 pattern=$2 said=$work/said
    shift 2
    echo "== $what: $*"
    # Followed by KILL, for a node that starts after all would carry on.
    if timeout --kill-after=5 20 "$@" >"$said" 2>&1; then fail "$what was accepted"; fi
    cat "$said"
    grep -qiE "$pattern" "$said" || fail "$what: the error does not say $pattern"
    ! grep -q 'panicked' "$said" || fail "$what: panicked"
}

# changed SED_EXPRESSION: a copy of the primary's configuration with that change.
changed() {
    sed -E "$1" "$(node primary config)" >"$work/changed.toml"
    ! cmp -s "$work/changed.toml" "$(node primary config)" || fail "'$1' changes nothing"
}

wrong_configurations() {
    refused "a missing file" "no-such" "$LOCKSTEP" node --config "$work/no-such.toml"
    changed 's/^mount = /muont = /'
    refused "an unknown key" "\`?mount" "$LOCKSTEP" node --config "$work/changed.toml"
    changed 's/^role = .*/role = "boss"/'
    refused "a wrong value" "primary" "$LOCKSTEP" node --config "$work/changed.toml"
    changed 's/^uuid = .*/uuid = 7/'
    refused "a wrong type" "uuid" "$LOCKSTEP" node --config "$work/changed.toml"
    changed '/^store = /d'
    refused "a missing key" "store" "$LOCKSTEP" node --config "$work/changed.toml"
    echo 'name = "unclosed' >"$work/changed.toml"
    refused "no TOML" "changed.toml" "$LOCKSTEP" node --config "$work/changed.toml"
    refused "an unknown datastore" "playground" "$LOCKSTEP" verify nonesuch \
        --config "$(node primary config)"
}

# Needs the primary stopped: each of these would otherwise meet the second-node refusal.
wrong_surroundings() {
    local command=()
    eval "command=($(node_command primary))"
    rmdir "$mount"
    refused "a missing mount point" "$mount" "${command[@]}"
    mkdir "$mount"
    echo mine >"$mount/not-yours"
    refused "a mount point with content" "$mount" "${command[@]}"
    [ "$(cat "$mount/not-yours")" = mine ] || fail "the content of the mount point is gone"
    rm "$mount/not-yours"
    mount -t tmpfs -o size=1m busy "$mount"
    refused "a busy mount point" "$mount" "${command[@]}"
    umount "$mount"
    # shellcheck disable=SC2016
    refused "no /dev/fuse" "fuse" unshare --mount sh -c \
        'mount --bind /dev/null /dev/fuse && exec "$@"' sh "${command[@]}"
}

workload() {
    local command=()
    make_files "$mount/before" 30
    eval "command=($(node_command primary))"
    refused "a second node on one store" "in use|running|lock|already" "${command[@]}"
    wrong_configurations
    refused "an export of a running store" "in use|running|lock|stop" "$LOCKSTEP" export \
        playground "$work/too-early" --config "$(node primary config)"
    stop_node primary
    wrong_surroundings
    start_node primary
    await "the mount to be back" 60 mountpoint -q "$mount"
    await_in_sync
    make_files "$mount/after" 30
}
