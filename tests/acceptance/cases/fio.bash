# Data verified by fio: several block sizes and jobs, buffered, O_SYNC and direct

# fio_verify NAME OPTION...: writes blocks that carry their own checksum, reads them back.
fio_verify() {
    local name=$1
    shift
    (cd "$work" && fio --name="$name" --directory="$mount" --ioengine=psync --group_reporting \
        --randrepeat=1 --verify=crc32c --verify_fatal=1 --do_verify=1 --fallocate=none \
        --output="$work/fio-$name.log" "$@") || fail "fio $name"
}

workload() {
    local megabytes
    megabytes=$(size 8 256)
    fio_verify small --rw=randwrite --bs=4k --numjobs=4 --size="${megabytes}m"
    fio_verify odd --rw=randwrite --bsrange=512-70000 --bs_unaligned --numjobs=2 \
        --size="${megabytes}m"
    fio_verify mixed --rw=randrw --bs=64k --numjobs=4 --size="${megabytes}m"
    fio_verify large --rw=write --bs=1m --numjobs=2 --size=$((megabytes * 4))m
    fio_verify sync --rw=randwrite --bs=8k --sync=1 --numjobs=4 --size=$((megabytes / 4))m
    fio_verify direct --rw=randwrite --bs=16k --direct=1 --numjobs=4 --size="${megabytes}m"
    fio_verify fsync --rw=randwrite --bs=32k --fsync=16 --numjobs=2 --size="${megabytes}m"
    fio_verify mapped --rw=randwrite --bs=4k --ioengine=mmap --numjobs=2 --size="${megabytes}m"
    fio_verify shared --rw=randwrite --bs=8k --ioengine=libaio --iodepth=16 --direct=1 \
        --size=$((megabytes * 2))m
}
