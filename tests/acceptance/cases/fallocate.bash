# fallocate in every mode, zero range among them, against the same on the file system below

# Two files, one on the mount and one beside it, get the same random operations.
both() {
    "$@" "$mount/file"
    "$@" "$work/twin"
}

# within LIMIT: a random number below it.
within() {
    echo $(((RANDOM << 15 | RANDOM) % $1))
}

# overwrite FROM LENGTH OFFSET FILE: overwrites with that part of the noise.
overwrite() {
    dd if="$work/noise" skip="$1" count="$2" of="$4" seek="$3" bs=64K conv=notrunc status=none \
        iflag=skip_bytes,count_bytes,fullblock oflag=seek_bytes
}

one_operation() {
    local offset length
    offset=$(within 400000)
    length=$(($(within 70000) + 1))
    case $(within 8) in
    0 | 1) both overwrite "$(within 500000)" "$length" "$offset" ;;
    2) both fallocate --offset "$offset" --length "$length" ;;
    3) both fallocate --keep-size --offset "$offset" --length "$length" ;;
    4) both fallocate --punch-hole --offset "$offset" --length "$length" ;;
    5) both fallocate --zero-range --offset "$offset" --length "$length" ;;
    6) both fallocate --zero-range --keep-size --offset "$offset" --length "$length" ;;
    7) both truncate --size "$offset" ;;
    esac
}

workload() {
    local i operations
    operations=$(size 300 5000)
    RANDOM=4711
    noise 7 1048576 >"$work/noise"
    both touch
    for ((i = 1; i <= operations; i++)); do
        one_operation
        cmp "$mount/file" "$work/twin" || fail "the files differ after operation $i"
    done
    [ "$(stat -c %s "$mount/file")" -eq "$(stat -c %s "$work/twin")" ] || fail "the sizes differ"
    echo "note: $operations operations"
}
