# Every kind of node, names, modes, owners, times, links, xattrs and ACLs, made on the mount itself

# No shell tool makes a socket; a listening program makes one.
make_socket() {
    perl -e 'use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die; bind($s, sockaddr_un($ARGV[0])) or die' "$1"
}

workload() {
    make_tree "$mount/made" 100
    make_tree "$work/twin" 100
    (cd "$mount/made" && make_socket socket)
    (cd "$work/twin" && make_socket socket)
    for tree in "$mount/made" "$work/twin"; do
        mv "$tree/special/one-more" "$tree/special/sticky/moved"
        mv --exchange "$tree/special/fifo" "$tree/special/char" 2>/dev/null || true
        setfattr -x user.colour "$tree/special/one"
        chmod g+s "$tree/files"
        # Times that the clock would set get one fixed value.
        find "$tree" -newermt 2005-01-01 -exec touch -h -d '2020-05-05 05:05:05.5' {} +
    done
    compare_trees "$work/twin" "$mount/made"
}
