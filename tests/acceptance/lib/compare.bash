# Comparison of trees by standard tools.

# attributes_of DIR: one NUL-ended record per name: type, mode, owner, links, modification time,
# link target, and size (meaningless for a directory).
attributes_of() {
    (cd "$1" && find . \
        \( -type d -printf '%p|%y|%m|%U:%G|%n|%T@|%l|\0' \) -o \
        -printf '%p|%y|%m|%U:%G|%n|%T@|%l|%s\0') | sort -z
}

# xattrs_of DIR: one line per extended attribute, ACLs and capabilities among them.
xattrs_of() {
    (cd "$1" && find . -print0 | sort -z | xargs -0 getfattr -h -d -m - -e hex |
        awk '/^# file: / { file = $0; next } NF { print file " " $0 }' | sort)
}

# hard_links_of DIR: prints the groups of names of one file, by the first name of each.
hard_links_of() {
    (cd "$1" && find . -type f -links +1 -printf '%i %p\n' | sort -k 2 |
        awk '{ if ($1 in first) print first[$1], $0; else first[$1] = $2 }' | cut -d ' ' -f 1,3-)
}

# same_output WHAT COMMAND A B
same_output() {
    local what=$1 command=$2
    if ! cmp -s <("$command" "$3") <("$command" "$4"); then
        diff -a <("$command" "$3" | tr '\0' '\n') <("$command" "$4" | tr '\0' '\n') | head -n 40 || true
        fail "$what differ between $3 and $4"
    fi
}

# The message of diff about two special files of one kind, which it cannot compare; rsync compares
# their numbers and kinds.
both_special='^File .* is a (fifo|socket|character special file|block special file) while file .* is a \1$'

compare_trees() {
    local a=$1 b=$2 found
    found=$(diff -r --no-dereference "$a" "$b" | grep -vE "$both_special" || true)
    [ -z "$found" ] || fail "diff -r $a $b: $found"
    found=$(rsync -nacHAX --modify-window=-1 --delete --itemize-changes "$a/" "$b/")
    [ -z "$found" ] || fail "rsync -nacHAX $a $b: $found"
    same_output "attributes" attributes_of "$a" "$b"
    same_output "extended attributes" xattrs_of "$a" "$b"
    same_output "hard links" hard_links_of "$a" "$b"
}

export_node() {
    "$LOCKSTEP" export playground "$work/export-$1" --config "$(node "$1" config)" \
        --manifest "$work/manifest-$1"
}

# Runs the nodes' own comparison, stops them, exports each store, and compares the two exports with each other and with
# the last state that the client saw.
compare_nodes() {
    attributes_of "$mount" >"$work/seen"
    local names
    names=$(tr -cd '\0' <"$work/seen" | wc -c)
    if [ "$PLAIN" = yes ]; then
        cp -a "$mount" "$work/export-primary"
        compare_trees "$mount" "$work/export-primary"
        return
    fi
    "$LOCKSTEP" verify playground --config "$(node primary config)" || fail "lockstep verify"
    stop_playground
    export_node primary
    export_node secondary
    compare_trees "$work/export-primary" "$work/export-secondary"
    cmp "$work/manifest-primary" "$work/manifest-secondary" || fail "the manifests differ"
    [ -s "$work/manifest-primary" ] || fail "the manifest is empty"
    attributes_of "$work/export-primary" >"$work/exported"
    cmp -s "$work/seen" "$work/exported" || {
        diff -a <(tr '\0' '\n' <"$work/seen") <(tr '\0' '\n' <"$work/exported") | head -n 40 || true
        fail "the export is not what the client saw"
    }
    echo "compared $names names"
}
