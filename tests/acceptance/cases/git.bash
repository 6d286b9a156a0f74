# git clone of a local repository, a build in it, and commits

files=60

make_source() {
    local dir=$1 i
    mkdir -p "$dir/src"
    for ((i = 0; i < files; i++)); do
        {
            echo "#include \"all.h\""
            printf 'int part_%d(int x) { return x * %d + %d; }\n' $i $((i + 2)) $((i * i))
        } >"$dir/src/part_$i.c"
    done
    for ((i = 0; i < files; i++)); do echo "int part_$i(int x);"; done >"$dir/src/all.h"
    {
        printf '#include <stdio.h>\n#include "all.h"\nint main(void) { long sum = 0;\n'
        for ((i = 0; i < files; i++)); do echo "sum += part_$i($i);"; done
        printf 'printf("%%ld\\n", sum); return 0; }\n'
    } >"$dir/src/main.c"
    cat >"$dir/Makefile" <<'MAKE'
objects := $(patsubst %.c,%.o,$(wildcard src/*.c))
program: $(objects)
	cc -o $@ $^
%.o: %.c src/all.h
	cc -O1 -c -o $@ $<
MAKE
    echo '*.o' >"$dir/.gitignore"
}

git_as() {
    git -c user.name=Tester -c user.email=tester@example.org -c init.defaultBranch=main \
        -c safe.directory='*' -c advice.detachedHead=false "$@"
}

make_repository() {
    make_source "$1"
    git_as -C "$1" init -q
    local i
    for ((i = 0; i < 20; i++)); do
        echo "int extra_$i(void) { return $i; }" >>"$1/src/part_$i.c"
        git_as -C "$1" add -A
        git_as -C "$1" commit -q -m "Change $i"
    done
}

workload() {
    local clone=$mount/clone
    make_repository "$work/origin"
    git_as clone -q --no-local "$work/origin" "$clone"
    make -s -C "$clone" -j 2
    make -s -C "$work/origin" -j 2
    [ "$("$clone/program")" = "$("$work/origin/program")" ] || fail "the program built differs"
    git_as -C "$clone" checkout -q -b side HEAD~10
    echo "int side(void) { return 1; }" >"$clone/src/side.c"
    git_as -C "$clone" add src/side.c
    git_as -C "$clone" commit -q -m Side
    git_as -C "$clone" merge -q --no-edit main
    make -s -C "$clone" -j 2
    git_as -C "$clone" gc -q
    git_as -C "$clone" fsck --strict
    # `program` is the one file that is neither tracked nor ignored.
    [ "$(git_as -C "$clone" status --porcelain)" = "?? program" ] || fail "the work tree is unclean"
}
