# Random reads, writes, maps, holes, copies and truncates of one file by fsx, on several seeds, with a snapshot each second

snapshots=yes

workload() {
    local operations seed seeds
    operations=$(size 10000 200000)
    seeds=$(size "1 2 3" "1 2 3 4 5 6")
    cat >"$work/fsx.toml" <<'TOML'
flen = 262144

[opsize]
max = 65536
min = 0
align = 1

[weights]
close_open = 1
invalidate = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
truncate = 5
fsync = 0.5
fdatasync = 0.5
posix_fallocate = 2
punch_hole = 5
sendfile = 2
posix_fadvise = 1
copy_file_range = 5
TOML
    mkdir "$work/artifacts"
    for seed in $seeds; do
        "$tools/fsx" -q -N "$operations" -S "$seed" -f "$work/fsx.toml" \
            -P "$work/artifacts" "$mount/seed-$seed" || fail "fsx with seed $seed"
    done
    echo "note: $operations operations on seeds $seeds"
}
