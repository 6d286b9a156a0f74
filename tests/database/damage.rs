//! Damage that is done to a database in a plain directory, each kind once, and the check that sees it.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::postgres::{Cluster, FILLER, Server};

/// Rows that a client has inserted.
const ROWS: u64 = 40;
/// Place of the first line pointer in a page.
const LINE_POINTERS: u64 = 24;
/// Place of the number of columns in the head of a row.
const COLUMNS: u64 = 18;
/// Number of columns that the table does not have.
const WRONG_COLUMNS: u8 = 5;
/// Bits of a line pointer that are the place of the row in the page.
const PLACE_BITS: u32 = 15;

/// A cluster, and the directory in which it lies.
struct Site<'a> {
    cluster: &'a Cluster,
    directory: &'a Path,
}

/// The words of a check about a damage.
fn assert_seen(check: Result<(), String>, expected: &str) {
    let wrong = check.expect_err(expected);
    println!("seen: {}", wrong.trim());
    assert!(wrong.contains(expected), "{wrong}");
}

/// The file of a table or an index.
fn file_of(server: &Server, directory: &Path, relation: &str) -> PathBuf {
    let path = server.ask(&format!("SELECT pg_relation_filepath('{relation}')"));
    Cluster::file(directory, &path)
}

/// Changes one byte of a file; returns the byte that was there.
fn replace_byte(file: &Path, place: u64, byte: u8) -> u8 {
    let open = fs::File::options()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    let mut before = [0];
    open.read_exact_at(&mut before, place).unwrap();
    open.write_all_at(&[byte], place).unwrap();
    before[0]
}

/// The place of the first row in the first page of a table.
fn first_row(table: &Path) -> u64 {
    let mut pointer = [0; 4];
    let open = fs::File::open(table).unwrap();
    open.read_exact_at(&mut pointer, LINE_POINTERS).unwrap();
    u64::from(u32::from_ne_bytes(pointer) & ((1 << PLACE_BITS) - 1))
}

impl Site<'_> {
    /// Runs the server, and checks the rows.
    fn check(&self, rows: u64) -> Result<(), String> {
        let server = self.cluster.start(self.directory);
        let checked = server.check(rows);
        server.stop();
        checked
    }

    /// Rows that are missing, or have another text.
    fn lose_rows(&self) {
        let server = self.cluster.start(self.directory);
        let insert = |first: u64, last: u64| {
            format!("INSERT INTO rows SELECT n, {FILLER} FROM generate_series({first}, {last}) n")
        };
        server.ask(&insert(1, ROWS));
        server.check(ROWS).unwrap();
        server.ask("DELETE FROM rows WHERE n = 17");
        assert_seen(server.check(ROWS), "rows are lost: 39 of 40");
        server.ask(&insert(17, 17));
        server.ask("UPDATE rows SET filler = 'another' WHERE n = -5");
        assert_seen(server.check(ROWS), "rows are wrong: 1");
        server.ask(&format!("UPDATE rows SET filler = {FILLER} WHERE n = -5"));
        server.check(ROWS).unwrap();
        // The index misses a row that the table has.
        let ready = |is_ready: bool| {
            server.ask(&format!(
                "SET allow_system_table_mods = on; \
                 UPDATE pg_index SET indisready = {is_ready} WHERE indexrelid = 'rows_pkey'::regclass"
            ))
        };
        ready(false);
        server.ask(&insert(ROWS + 1, ROWS + 1));
        ready(true);
        assert_seen(server.check(ROWS + 1), "lacks matching index tuple");
        server.ask("REINDEX INDEX rows_pkey");
        server.check(ROWS + 1).unwrap();
        server.stop();
    }

    /// A page whose checksum is right, and whose content is not.
    fn damage_table(&self) {
        let server = self.cluster.start(self.directory);
        // The first place of the first page has a row then.
        server.ask("VACUUM FULL rows");
        let table = file_of(&server, self.directory, "rows");
        server.stop();
        let place = first_row(&table) + COLUMNS;
        let before = replace_byte(&table, place, WRONG_COLUMNS);
        self.cluster.renew_sums(self.directory);
        assert_seen(self.check(ROWS), "number of attributes");
        replace_byte(&table, place, before);
        self.cluster.renew_sums(self.directory);
        self.check(ROWS).unwrap();
    }

    /// A flipped bit of the index.
    fn damage_index(&self) {
        let server = self.cluster.start(self.directory);
        let index = file_of(&server, self.directory, "rows_pkey");
        server.stop();
        self.cluster.check_sums(self.directory).unwrap();
        let middle = fs::metadata(&index).unwrap().len() / 2;
        let before = replace_byte(&index, middle, 0);
        replace_byte(&index, middle, before ^ 1);
        assert_seen(self.cluster.check_sums(self.directory), "checksum");
        assert_seen(self.check(ROWS), "invalid page in block");
    }
}

/// See the head of this file.
pub fn each_damage_is_seen() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::create(directory.path());
    let site = Site {
        cluster: &cluster,
        directory: directory.path(),
    };
    site.lose_rows();
    site.damage_table();
    site.damage_index();
}
