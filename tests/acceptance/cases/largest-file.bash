# The largest file: bytes at its very end, no byte beyond, and both nodes still in sync

workload() {
    local largest=$(((16 << 40) - 4096)) file=$mount/largest
    truncate --size "$largest" "$file"
    printf 'the last bytes' | dd of="$file" conv=notrunc oflag=seek_bytes seek=$((largest - 14)) \
        status=none
    printf 'in the middle' | dd of="$file" conv=notrunc oflag=seek_bytes seek=$((8 << 40)) status=none
    [ "$(tail -c 14 "$file")" = 'the last bytes' ] || fail "the end of the file reads otherwise"
    [ "$(dd if="$file" iflag=skip_bytes,count_bytes skip=$((8 << 40)) count=13 status=none)" = \
        'in the middle' ] || fail "the middle of the file reads otherwise"
    for beyond in "truncate --size $((largest + 1)) $file" \
        "dd if=/etc/hostname of=$file conv=notrunc oflag=append status=none" \
        "fallocate --keep-size --offset $largest --length 1 $file"; do
        if $beyond 2>"$work/said"; then fail "allowed: $beyond"; fi
        grep -q 'File too large' "$work/said" || fail "not refused as too large: $beyond"
    done
    [ "$(stat -c %s "$file")" -eq "$largest" ] || fail "the size is wrong"
    [ "$(stat -c %b "$file")" -le 32 ] || fail "holes take room"
    cp --sparse=always --reflink=never "$file" "$work/copy"
    [ "$(stat -c %s "$work/copy")" -eq "$largest" ] || fail "the copy is cut"
    [ "$PLAIN" = yes ] || "$LOCKSTEP" verify playground --config "$(node primary config)" ||
        fail "the nodes differ"
    # The comparison afterwards reads every byte, holes too.
    rm "$file" "$work/copy"
}
