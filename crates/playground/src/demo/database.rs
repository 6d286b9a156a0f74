//! A program with an `SQLite` database of accounts: each transaction moves an amount between two accounts and writes a
//! line into the journal, so that a half-done transaction is found.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use rusqlite::Connection;

/// Name of the file.
const FILE_NAME: &str = "ledger.sqlite";
/// Number of accounts.
const ACCOUNTS: i64 = 100;
/// Opening balance of each account.
const OPENING: i64 = 1_000;
/// How long another program may hold the database.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two transactions.
const TRANSFER_INTERVAL: Duration = Duration::from_millis(10);

const SCHEMA: &str = "
    PRAGMA synchronous = FULL;
    CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
    CREATE TABLE journal (id INTEGER PRIMARY KEY, source INTEGER NOT NULL,
                          target INTEGER NOT NULL, amount INTEGER NOT NULL);";

/// The database and the number of its acknowledged transactions.
#[derive(Debug)]
pub(super) struct Ledger {
    path: PathBuf,
    acknowledged: i64,
}

impl Ledger {
    /// Makes the database under `root`.
    pub(super) fn create(root: &Path) -> Result<Self> {
        let path = root.join(FILE_NAME);
        let mut connection = open(&path)?;
        connection
            .execute_batch(SCHEMA)
            .context("cannot make the tables")?;
        let opening = connection.transaction()?;
        for id in 0..ACCOUNTS {
            opening.execute("INSERT INTO account VALUES (?1, ?2)", (id, OPENING))?;
        }
        opening.commit().context("cannot open the accounts")?;
        Ok(Self {
            path,
            acknowledged: 0,
        })
    }

    /// The number of acknowledged transactions.
    pub(super) fn acknowledged(&self) -> u64 {
        u64::try_from(self.acknowledged).unwrap_or(0)
    }

    /// Runs this many transactions, one after the other.
    pub(super) fn transfer_many(&mut self, transactions: u64) -> Result<()> {
        let mut connection = open(&self.path)?;
        for _ in 0..transactions {
            self.transfer(&mut connection)?;
        }
        Ok(())
    }

    fn transfer(&mut self, connection: &mut Connection) -> Result<()> {
        let id = self.acknowledged;
        let (source, target, amount) = (id % ACCOUNTS, (id * 7 + 1) % ACCOUNTS, id % 13);
        let move_amount = "UPDATE account SET balance = balance + ?2 WHERE id = ?1";
        let transfer = connection.transaction()?;
        transfer.execute(move_amount, (source, -amount))?;
        transfer.execute(move_amount, (target, amount))?;
        transfer.execute(
            "INSERT INTO journal VALUES (?1, ?2, ?3, ?4)",
            (id, source, target, amount),
        )?;
        transfer
            .commit()
            .with_context(|| format!("transaction {id} failed"))?;
        self.acknowledged += 1;
        Ok(())
    }

    /// Checks that the database under `root` holds exactly the acknowledged transactions.
    pub(super) fn check(&self, root: &Path) -> Result<()> {
        let connection = open(&root.join(FILE_NAME))?;
        let query_number =
            |query: &str| connection.query_row(query, (), |row| row.get::<_, i64>(0));
        let integrity: String =
            connection.query_row("PRAGMA integrity_check", (), |row| row.get(0))?;
        ensure!(integrity == "ok", "the database is damaged: {integrity}");
        let found = query_number("SELECT count(*) FROM journal")?;
        ensure!(
            found == self.acknowledged,
            "{} transactions were acknowledged, and {found} are there",
            self.acknowledged
        );
        let last = query_number("SELECT coalesce(max(id) + 1, 0) FROM journal")?;
        ensure!(last == found, "transactions are missing between others");
        let total = query_number("SELECT sum(balance) FROM account")?;
        ensure!(
            total == ACCOUNTS * OPENING,
            "the books do not balance: {total}"
        );
        Ok(())
    }
}

fn open(path: &Path) -> Result<Connection> {
    let connection =
        Connection::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.execute_batch("PRAGMA synchronous = FULL;")?;
    Ok(connection)
}

/// The writing thread.
pub(super) struct DatabaseWriter {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Ledger>>,
}

impl DatabaseWriter {
    pub(super) fn start(mut ledger: Ledger) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("database".to_owned())
            .spawn(move || {
                let mut connection = open(&ledger.path)?;
                while !stopped.load(Ordering::Relaxed) {
                    ledger.transfer(&mut connection)?;
                    std::thread::sleep(TRANSFER_INTERVAL);
                }
                Ok(ledger)
            })?;
        Ok(Self { stop, thread })
    }

    /// Stops writing; an error if a transaction has failed.
    pub(super) fn finish(self) -> Result<Ledger> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .map_err(|_| anyhow!("the program that writes the database has panicked"))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledged_transactions_are_found() {
        let root = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::create(root.path()).unwrap();
        ledger.transfer_many(20).unwrap();
        let ledger = DatabaseWriter::start(ledger).unwrap().finish().unwrap();
        assert!(ledger.acknowledged() >= 20);
        ledger.check(root.path()).unwrap();
    }

    #[test]
    fn a_lost_transaction_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::create(root.path()).unwrap();
        ledger.transfer_many(3).unwrap();
        let connection = open(&ledger.path).unwrap();
        connection
            .execute("DELETE FROM journal WHERE id = 1", ())
            .unwrap();
        assert!(ledger.check(root.path()).is_err());
    }
}
