# tar out of and into the mount, with every kind of file attribute, compared with the original

pack() {
    tar --create --sparse --xattrs --xattrs-include='*' --acls --numeric-owner --sort=name \
        --directory "$1" --file "$2" .
}

unpack() {
    mkdir -p "$2"
    tar --extract --preserve-permissions --same-owner --xattrs --xattrs-include='*' --acls \
        --numeric-owner --delay-directory-restore --directory "$2" --file "$1"
}

workload() {
    make_tree "$work/original" "$(size 500 20000)"
    pack "$work/original" "$work/original.tar"
    unpack "$work/original.tar" "$mount/unpacked"
    compare_trees "$work/original" "$mount/unpacked"
    pack "$mount/unpacked" "$work/back.tar"
    unpack "$work/back.tar" "$work/back"
    compare_trees "$work/original" "$work/back"
    # The archive itself as a file, then changes of the unpacked files.
    cp "$work/original.tar" "$mount/original.tar"
    cmp "$work/original.tar" "$mount/original.tar"
    mv "$mount/unpacked/files/d0" "$mount/unpacked/files/d1/moved"
    rm -r "$mount/unpacked/files/d2"
}
