# File handles (as NFS uses them) open the same file again, also when the kernel has forgotten it

workload() {
    local i
    mkdir "$mount/deep" "$mount/deep/er"
    for ((i = 0; i < 200; i++)); do echo "content $i" >"$mount/deep/er/$i"; done
    (cd "$mount/deep/er" && perl "$here/lib/handle.pl" take {0..199}) >"$work/handles"
    sync
    echo 3 >/proc/sys/vm/drop_caches
    perl "$here/lib/handle.pl" read "$mount" <"$work/handles" >"$work/read"
    cmp "$work/read" <(for ((i = 0; i < 200; i++)); do echo "content $i"; done) ||
        fail "a handle led to another file"
    mv "$mount/deep/er/7" "$mount/moved"
    rm "$mount/deep/er/8"
    echo 3 >/proc/sys/vm/drop_caches
    sed -n 8p "$work/handles" | perl "$here/lib/handle.pl" read "$mount" | grep -qx "content 7" ||
        fail "the handle of a moved file does not follow it"
    ! sed -n 9p "$work/handles" | perl "$here/lib/handle.pl" read "$mount" ||
        fail "the handle of a removed file still opens"
}
