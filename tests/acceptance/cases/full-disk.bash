# Both stores run out of space: programs get an error, nothing is lost, with space the nodes get in sync
needs_nodes=yes

# The playground gets a small disk of its own; its logs are on it too.
prepare() {
    truncate --size 640M "$work/disk"
    mkfs.ext4 -q -F "$work/disk"
    mkdir "$work/p"
    mount -o loop "$work/disk" "$work/p"
    rmdir "$work/p/lost+found"
}

# fill: copies until the disk is full; prints the number of whole copies.
fill() {
    local copies=0
    until ! cp "$work/original" "$mount/copy-$copies" 2>>"$work/said"; do
        copies=$((copies + 1))
        [ "$copies" -lt 100 ] || fail "a disk of 640 MB took $copies copies of 20 MB on both nodes"
    done
    echo "$copies"
}

check_copies() {
    local number
    for ((number = $1; number < $2; number++)); do
        cmp "$work/original" "$mount/copy-$number" || fail "copy $number is not whole"
    done
}

workload() {
    local copies
    dd if=/dev/urandom of="$work/original" bs=1M count=20 status=none
    copies=$(fill)
    grep -q 'No space left on device' "$work/said" || fail "not told that the disk is full"
    check_copies 0 "$copies"
    # Time for attempts that cannot succeed; their log lines find no space either.
    sleep 3
    check_copies 0 "$copies"
    rm "$mount/copy-$copies" "$mount/copy-0" "$mount/copy-1"
    await_in_sync
    echo 'room again' >"$mount/more"
    sync "$mount/more"
    check_copies 2 "$copies"
    echo "note: $copies copies of 20 MB"
}
