# SQLite with transactions in both journal modes, checked and compared with a database beside the mount

# transactions ROWS: prints the statements, the same at every call.
transactions() {
    local i
    echo 'CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, owner TEXT, balance INTEGER);'
    echo 'CREATE INDEX IF NOT EXISTS by_owner ON account (owner);'
    for ((i = 0; i < $1; i += 10)); do
        echo "BEGIN; WITH RECURSIVE n(i) AS (VALUES($i) UNION ALL SELECT i + 1 FROM n WHERE i < $i + 9)
              INSERT INTO account (owner, balance) SELECT 'owner ' || (i * 7 % 101), i * 13 % 1009 FROM n;
              UPDATE account SET balance = balance + 1 WHERE owner = 'owner ' || ($i % 101); COMMIT;"
        if ((i % 100 == 50)); then
            echo "BEGIN; DELETE FROM account; ROLLBACK; DELETE FROM account WHERE id % 37 = $i % 37;"
        fi
    done
}

run_database() {
    local mode=$1 database=$2 rows=$3
    { echo "PRAGMA journal_mode = $mode; PRAGMA synchronous = FULL;" && transactions "$rows"; } |
        sqlite3 -bail "$database" >/dev/null
}

workload() {
    local mode rows
    rows=$(size 1000 50000)
    for mode in delete wal; do
        run_database $mode "$mount/$mode.db" "$rows"
        run_database $mode "$work/$mode.db" "$rows"
        [ "$(sqlite3 "$mount/$mode.db" 'PRAGMA integrity_check')" = ok ] ||
            fail "integrity check in mode $mode"
        cmp <(sqlite3 "$mount/$mode.db" .dump) <(sqlite3 "$work/$mode.db" .dump) ||
            fail "the databases in mode $mode differ"
    done
}
