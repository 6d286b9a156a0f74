# Very many small files: rate at start and end, memory of the nodes, a very large directory

# make_range FIRST COUNT PER_DIRECTORY: prints the rate per second.
make_range() {
    local i first=$1 count=$2 per_directory=$3 dir started ended
    started=${EPOCHREALTIME/./}
    for ((i = first; i < first + count; i++)); do
        dir=$mount/tree/d$((i / per_directory))
        if ((i % per_directory == 0)); then mkdir "$dir"; fi
        printf 'file %d\n' $i >"$dir/f$i"
    done
    ended=${EPOCHREALTIME/./}
    echo $((count * 1000000 / (ended - started)))
}

# One directory with very many entries: each listed once, no other listed, all gone afterwards.
large_directory() {
    local entries=$1 i
    mkdir "$mount/large"
    for ((i = 0; i < entries; i++)); do : >"$mount/large/an-entry-with-a-name-$i"; done
    find "$mount/large" -mindepth 1 -printf '%f\n' | sort >"$work/listed"
    cmp "$work/listed" <(seq -f 'an-entry-with-a-name-%.0f' 0 $((entries - 1)) | sort) ||
        fail "the listing of $entries entries is wrong"
    find "$mount/large" -name '*[02468]' -delete
    [ "$(find "$mount/large" -mindepth 1 | wc -l)" -eq $((entries / 2)) ] ||
        fail "deleting while listing missed entries"
}

check_memory() {
    local role mib
    [ "$PLAIN" = no ] || return 0
    for role in primary secondary; do
        mib=$(resident_mib $role)
        echo "note: $role used $mib MiB"
        [ "$mib" -lt 1024 ] || fail "the $role used $mib MiB"
    done
}

workload() {
    local total part at_start at_end
    total=$(size 12000 1000000)
    part=$((total / 10))
    mkdir "$mount/tree"
    at_start=$(make_range 0 $part 1000)
    make_range $part $((total - 2 * part)) 1000
    at_end=$(make_range $((total - part)) $part 1000)
    [ "$(find "$mount/tree" -type f | wc -l)" -eq "$total" ] || fail "files are missing"
    echo "note: $total files, $at_start/s at the start, $at_end/s at the end"
    large_directory "$(size 5000 100000)"
    check_memory
    # A quick run is too short to judge rates by.
    [ "$FORM" = ci ] || [ $((2 * at_end)) -ge "$at_start" ] || fail "the rate fell below half"
}
