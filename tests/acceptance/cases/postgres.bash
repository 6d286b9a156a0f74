# PostgreSQL with pgbench in a cluster on the mount, then its own checks

data=
sockets=
server=()

as_postgres() {
    (cd / && runuser -u postgres -- "$@")
}

ask() {
    as_postgres psql --host "$sockets" --dbname bench --tuples-only --no-align --command "$1"
}

start_server() {
    server=(/usr/lib/postgresql/*/bin)
    data=$mount/cluster
    sockets=$work/sockets
    install -d -o postgres "$data" "$sockets"
    as_postgres "${server[-1]}/initdb" --pgdata "$data" --data-checksums --auth trust >/dev/null
    as_postgres "${server[-1]}/pg_ctl" start --pgdata "$data" --wait --silent \
        --log "$sockets/log" --options "-k $sockets -c listen_addresses=''"
    add_pid "$(head -n 1 "$data/postmaster.pid")"
}

stop_server() {
    as_postgres "${server[-1]}/pg_ctl" stop --pgdata "$data" --wait --silent --mode fast
}

# Every transaction adds one amount to three tables and records it in a fourth.
check_sums() {
    local sums
    sums=$(ask "SELECT count(DISTINCT s) FROM (SELECT sum(abalance) s FROM pgbench_accounts
        UNION ALL SELECT sum(tbalance) FROM pgbench_tellers
        UNION ALL SELECT sum(bbalance) FROM pgbench_branches
        UNION ALL SELECT sum(delta) FROM pgbench_history) sums")
    [ "$sums" = 1 ] || fail "the tables do not add up"
}

workload() {
    local transactions
    transactions=$(size 200 20000)
    start_server
    as_postgres createdb --host "$sockets" bench
    as_postgres pgbench --host "$sockets" --initialize --quiet --scale "$(size 1 10)" bench
    as_postgres pgbench --host "$sockets" --client 4 --jobs 2 --transactions "$transactions" \
        bench | tee "$work/pgbench.txt"
    check_sums
    [ "$(ask 'SELECT count(*) FROM pgbench_history')" -eq $((4 * transactions)) ] ||
        fail "transactions are missing"
    stop_server
    as_postgres "${server[-1]}/pg_checksums" --check --pgdata "$data" >/dev/null
    echo "note: $(sed -n 's/^tps = \([0-9]*\).*/\1 transactions\/s/p' "$work/pgbench.txt")"
}
