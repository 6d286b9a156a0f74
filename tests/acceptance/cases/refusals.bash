# Mistakes are refused with an error that names cause and cure, and change nothing
# shellcheck disable=SC2034
needs_nodes=yes

# refused WHAT PATTERN COMMAND...: the command fails soon and by itself, prints the pattern, and does not panic.
refused() {
    local what=$1 pattern=$2 said=$work/said status=0
    shift 2
    echo "== $what: $*"
    # Followed by KILL: a node that starts against expectation would continue.
    timeout --kill-after=5 20 "$@" >"$said" 2>&1 || status=$?
    cat "$said"
    case $status in
    0 | 124 | 137) fail "$what was accepted" ;;
    esac
    grep -qiE "$pattern" "$said" || fail "$what: the error does not say $pattern"
    ! grep -q 'panicked' "$said" || fail "$what: panicked"
}

# state_of DIR: prints every name with type, mode, owner, size and time of change, and every byte.
state_of() {
    (
        cd "$1"
        find . -printf '%y %m %U %G %s %T@ %p\n' | sort -k 7
        find . -type f -print0 | sort -z | xargs -0r cksum
    )
}

# Pattern of an error that names a cure.
cures='a store is damaged|cure:|check|correct|create|modprobe|move|name an|remove|restore|stop|unmount|use (the|a) newer'

# untouched ROLE WHAT PATTERN COMMAND...: the command is refused, and the store of that node is unchanged.
untouched() {
    local role=$1 store
    shift
    store=$(node "$role" store)
    state_of "$store" >"$work/state-before"
    refused "$@"
    grep -qiE "$cures" "$work/said" || fail "$1: the error does not say what to do"
    state_of "$store" >"$work/state-after"
    diff "$work/state-before" "$work/state-after" || fail "$1: the store was changed"
}

# changed SED_EXPRESSION: makes a copy of the primary's configuration with that change.
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

# Needs the primary stopped: otherwise each of these commands would be refused because of the running node.
wrong_surroundings() {
    local command=()
    eval "command=($(node_command primary))"
    rmdir "$mount"
    untouched primary "a missing mount point" "$mount" "${command[@]}"
    mkdir "$mount"
    mount -t tmpfs -o size=1m busy "$mount"
    untouched primary "a busy mount point" "$mount" "${command[@]}"
    umount "$mount"
    # shellcheck disable=SC2016
    untouched primary "no /dev/fuse" "fuse" unshare --mount sh -c \
        'mount --bind /dev/null /dev/fuse && exec "$@"' sh "${command[@]}"
}

# flip FILE OFFSET: flips one bit of that byte.
flip() {
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1" | tr -d ' ')
    # shellcheck disable=SC2059
    printf "\\x$(printf %02x $((byte ^ 4)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# flip_all FILE TEXT BYTES: flips one bit of the byte at this distance behind the beginning of each
# occurrence of the text.
flip_all() {
    local at
    for at in $(LC_ALL=C grep -obUaF "$2" "$1" | cut -d : -f 1); do
        flip "$1" $((at + $3))
    done
}

# damaged ROLE FILE PATTERN HOW...: the command HOW (which gets the path) damages that file of the
# node's stopped store. The node must not start; the file is restored afterwards.
damaged() {
    local role=$1 file=$2 pattern=$3 path command=()
    shift 3
    path=$(node "$role" store)/$file
    eval "command=($(node_command "$role"))"
    cp -a --sparse=never "$path" "$work/whole"
    "$@" "$path"
    ! cmp -s "$path" "$work/whole" || fail "$* does not change $file"
    untouched "$role" "the $role's $file, $*" "$pattern" "${command[@]}"
    cp -a --sparse=never "$work/whole" "$path"
}

newer_format() { sed -i 's/"lockstep_store": *[0-9]*/"lockstep_store": 999/' "$1"; }
no_text() { printf '{' >"$1"; }
cut_to_nothing() { truncate -s 0 "$1"; }
cut_in_half() { truncate -s $(($(stat -c %s "$1") / 2)) "$1"; }
# Removes the second copy of role.json, and the end of the first.
cut_to_a_slot_in_part() { truncate -s 4000 "$1"; }
flip_header() { flip "$1" 20; }
flip_checkpoint() { flip_all "$1" mcheckpoint 1; }
flip_log_header() { flip_all "$1" LSINTENT 20; }
flip_mark() { sed -i 's/"complete": true/"complete": false/' "$1"; }
flip_generation() { sed -i 's/"generation": 1/"generation": 3/' "$1"; }
flip_slot() { flip "$1" 640; }
zero_page() { dd if=/dev/zero of="$1" bs=4096 count=1 conv=notrunc status=none; }

# Both nodes after a clean shutdown. Both run the same code, so the secondary gets one case of each kind.
damaged_stores() {
    local file
    damaged primary format.json 'newer program' newer_format
    damaged primary format.json 'holds no Lockstep store' no_text
    damaged primary format.json 'holds no Lockstep store' cut_to_nothing
    damaged primary namespace.redb 'namespace' cut_in_half
    damaged primary namespace.redb 'namespace' cut_to_nothing
    damaged primary namespace.redb 'namespace' flip_header
    damaged primary namespace.redb 'namespace' flip_checkpoint
    for file in log/intent.0 log/intent.1; do
        damaged primary $file 'truncated|not an intent log' cut_in_half
        damaged primary $file 'truncated|not an intent log' cut_to_nothing
        damaged primary $file 'intent log .* is damaged' flip_log_header
    done
    damaged primary role.json 'role.json is damaged' cut_to_a_slot_in_part
    damaged primary role.json 'role.json is damaged' cut_to_nothing
    damaged primary role.json 'role.json is damaged' flip_mark
    damaged primary role.json 'role.json is damaged' flip_generation
    for file in tables/paw tables/saw; do
        damaged primary $file "$file is damaged: it has" cut_in_half
        damaged primary $file "$file is damaged: it has" cut_to_nothing
        damaged primary $file "$file is damaged: slot 10" flip_slot
        damaged primary $file "$file is damaged: slot 0" zero_page
    done
    damaged secondary format.json 'newer program' newer_format
    damaged secondary namespace.redb 'namespace' flip_checkpoint
    damaged secondary log/intent.0 'intent log .* is damaged' flip_log_header
    damaged secondary role.json 'role.json is damaged' flip_generation
    damaged secondary tables/saw 'tables/saw is damaged: slot 10' flip_slot
}

# The primary is killed, so its log still holds the changes since the checkpoint.
damaged_after_a_kill() {
    damaged primary tables/times 'tables/times has' cut_in_half
    damaged primary tables/times 'tables/times has' cut_to_nothing
    damaged primary tables/paw 'tables/paw is damaged' flip_slot
    damaged primary namespace.redb 'namespace' flip_header
}

# As with any file system, the mount hides the files of the mount point, which come back afterwards.
occupied_mount_point() {
    echo mine >"$mount/not-yours"
    start_node primary
    await "the mount" 60 mountpoint -q "$mount"
    grep -q 'itself holds files' "$work/primary.log" || fail "nothing is said of what is hidden"
    [ ! -e "$mount/not-yours" ] || fail "the mount shows what is below it"
    stop_node primary
    [ "$(cat "$mount/not-yours")" = mine ] || fail "the content of the mount point is gone"
    rm "$mount/not-yours"
}

# Foreign files in the directory of a store, and an interrupted creation.
foreign_store() {
    local command=() store
    eval "command=($(node_command primary))"
    store=$(node primary store)
    mv "$store" "$work/store"
    mkdir "$store"
    echo mine >"$store/namespace.redb.old"
    untouched primary "a directory of something else" 'namespace.redb.old' "${command[@]}"
    rm -r "$store"
    mkdir "$store"
    cp -a "$work/store/namespace.redb" "$work/store/log" "$store"
    untouched primary "a store without its format file" 'no format.json' "${command[@]}"
    rm -r "$store"
    mv "$work/store" "$store"
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
    occupied_mount_point
    foreign_store
    stop_node secondary
    damaged_stores
    start_node secondary
    start_node primary
    await "the mount to be back" 60 mountpoint -q "$mount"
    await_in_sync
    make_files "$mount/between" 30
    kill_node primary
    damaged_after_a_kill
    start_node primary
    await "the mount to be back" 60 mountpoint -q "$mount"
    await_in_sync
    make_files "$mount/after" 30
}
