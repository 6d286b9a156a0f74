# A generated tree with a file of every kind, the same at every call.

# noise SEED BYTES: prints incompressible bytes, always the same.
noise() {
    head -c "$2" /dev/zero |
        openssl enc -aes-128-ctr -nosalt -K "$(printf '%032x' "$1")" -iv "$(printf '%032x' 0)"
}

# make_files DIR COUNT: plain files of mixed sizes in a few levels of directories.
make_files() {
    local dir=$1 count=$2 i place
    noise 1 1048576 >"$work/noise"
    for ((i = 0; i < count; i++)); do
        place=$dir/d$((i % 7))/e$((i % 31))
        mkdir -p "$place"
        tail -c $((i * 7919 % 40000 + i % 3)) "$work/noise" >"$place/file-$i"
    done
}

# make_special DIR: makes special files and special names, without sockets: tar and git do not
# support them.
make_special() {
    local dir=$1 long
    mkdir -p "$dir/empty" "$dir/sticky" "$dir/setgid"
    chmod 1777 "$dir/sticky"
    chown 0:1 "$dir/setgid"
    chmod 2775 "$dir/setgid"
    long=$(printf 'n%.0s' {1..255})
    echo long >"$dir/$long"
    echo odd >"$dir/$(printf 'line\nbreak \t\001 \\ "quoted" \xff')"
    ln -s "$long" "$dir/symlink"
    ln -s "$(printf 'far/%.0s' {1..250})" "$dir/dangling"
    mkfifo -m 620 "$dir/fifo"
    mknod -m 640 "$dir/char" c 1 3
    mknod -m 600 "$dir/block" b 7 99
    echo one >"$dir/one"
    ln "$dir/one" "$dir/empty/one-again"
    ln "$dir/one" "$dir/one-more"
    echo program >"$dir/setuid"
    chown 65534:65534 "$dir/setuid"
    chmod 6755 "$dir/setuid"
    truncate -s 200M "$dir/sparse"
    noise 2 5000 | dd of="$dir/sparse" bs=1000 seek=150000 conv=notrunc status=none
}

# make_attributes DIR: extended attributes, ACLs and times, on the files of make_special.
make_attributes() {
    local dir=$1
    setfattr -n user.colour -v green "$dir/one"
    setfattr -n user.large -v "$(noise 3 1500 | base64 -w 0)" "$dir/setuid"
    setfattr -n trusted.mark -v yes "$dir/empty"
    setfacl -m u:65534:rw,g:1:r,m::rwx "$dir/one"
    setfacl -d -m u:65534:rwx "$dir/setgid"
    mkdir "$dir/setgid/inherits"
    echo inherits >"$dir/setgid/inherits/file"
    touch -h -d '1969-12-31 23:59:58.123456789' "$dir/symlink"
    touch -d '2038-01-19 03:14:08.000000001' "$dir/fifo"
    touch -d '2001-02-03 04:05:06.789012345' "$dir/one" "$dir/empty"
}

make_tree() {
    mkdir -p "$1"
    make_files "$1/files" "$2"
    make_special "$1/special"
    make_attributes "$1/special"
}
