//! One cluster of `PostgreSQL` in a mount, its server processes, and a client that inserts rows.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use lockstep_testbed::await_that;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

/// The account of the server.
const USER: &str = "postgres";
/// The directory of the cluster in the mount.
const DIRECTORY: &str = "cluster";
/// The text of a row.
pub const FILLER: &str = "repeat(md5(n::text), 20)";

/// A command of the account of the server.
fn as_postgres(program: &Path) -> Command {
    let mut command = Command::new("runuser");
    command
        .args(["-u", USER, "--"])
        .arg(program)
        .current_dir("/");
    command
}

fn run(command: Command) -> String {
    try_run(command).unwrap_or_else(|error| panic!("{error}"))
}

/// The output of a command, or its command line and error.
fn try_run(mut command: Command) -> Result<String, String> {
    let done = command.stdin(Stdio::null()).output().unwrap();
    if done.status.success() {
        return Ok(String::from_utf8(done.stdout).unwrap().trim().to_owned());
    }
    let error = String::from_utf8_lossy(&done.stderr);
    Err(format!("{command:?}: {error}"))
}

/// Gives the account of the server the way to a path.
pub fn open_way_to(path: &Path) {
    for above in path.ancestors().skip(1) {
        if above.starts_with(std::env::temp_dir()) && above != std::env::temp_dir() {
            run_chmod("o+x", above);
        }
    }
}

fn group_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed()).unwrap()
}

fn run_chmod(mode: &str, path: &Path) {
    let mut command = Command::new("chmod");
    command.arg(mode).arg(path);
    run(command);
}

/// See the head of this file.
pub struct Cluster {
    programs: PathBuf,
    /// The sockets, and the log.
    place: TempDir,
}

impl Cluster {
    /// Makes a cluster with checksums in a mount.
    pub fn create(mount: &Path) -> Self {
        let versions = fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL");
        let programs = versions.map(|version| version.unwrap().path().join("bin"));
        let cluster = Self {
            programs: programs.max().expect("a version"),
            place: tempfile::tempdir().unwrap(),
        };
        open_way_to(&cluster.place.path().join("socket"));
        for directory in [cluster.place.path(), &mount.join(DIRECTORY)] {
            let mut install = Command::new("install");
            install.args(["-d", "-m", "700", "-o", USER]).arg(directory);
            run(install);
        }
        let mut initdb = cluster.program("initdb", mount);
        initdb.args(["--data-checksums", "--auth", "trust", "--no-sync"]);
        run(initdb);
        let server = cluster.start(mount);
        server.ask(&format!(
            "CREATE EXTENSION amcheck; CREATE TABLE rows (n bigint PRIMARY KEY, filler text); \
             INSERT INTO rows SELECT n, {FILLER} FROM generate_series(-1000, -1) n; CHECKPOINT"
        ));
        server.stop();
        cluster
    }

    fn program(&self, name: &str, mount: &Path) -> Command {
        open_way_to(&mount.join(DIRECTORY));
        let mut command = as_postgres(&self.programs.join(name));
        command.arg("--pgdata").arg(mount.join(DIRECTORY));
        command
    }

    /// Starts the server, as on a machine that knows nothing of the processes of another one.
    pub fn start(&self, mount: &Path) -> Server {
        let data = mount.join(DIRECTORY);
        let _left = fs::remove_file(data.join("postmaster.pid"));
        open_way_to(&data);
        let sockets = tempfile::tempdir_in(self.place.path()).unwrap().keep();
        let mut install = Command::new("chown");
        install.arg(USER).arg(&sockets);
        run(install);
        let log = fs::File::create(sockets.join("log")).unwrap();
        let mut command = as_postgres(&self.programs.join("postgres"));
        command
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(&sockets)
            .args(["-c", "listen_addresses=", "-c", "max_wal_size=64MB"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0);
        let mut server = Server {
            child: command.spawn().unwrap(),
            sockets,
        };
        await_that("the database to start", || {
            let ended = server.child.try_wait().unwrap();
            assert!(ended.is_none(), "{}", server.log());
            server
                .psql()
                .arg("-c")
                .arg("SELECT 1")
                .output()
                .unwrap()
                .status
                .success()
        });
        server
    }

    /// Copies the files of a cluster from one directory to another, which is made.
    pub fn copy(from: &Path, to: &Path) {
        fs::create_dir(to).unwrap();
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(from.join(DIRECTORY)).arg(to);
        run(copy);
    }

    /// The place in the log from which a cluster would recover that is not running: that of its last checkpoint. Changes no file.
    pub fn recovers_from(&self, mount: &Path) -> LogPlace {
        let mut command = Command::new(self.programs.join("pg_controldata"));
        command.arg(mount.join(DIRECTORY));
        let told = run(command);
        let line = told
            .lines()
            .find_map(|line| line.strip_prefix("Latest checkpoint's REDO location:"));
        LogPlace::read(line.unwrap())
    }

    /// Checks all pages of a cluster that is not running. Returns what is wrong.
    pub fn check_sums(&self, mount: &Path) -> Result<(), String> {
        self.checksums(mount, "--check").map(drop)
    }

    /// Gives each page of a cluster that is not running the checksum of its content.
    pub fn renew_sums(&self, mount: &Path) {
        for action in ["--disable", "--enable"] {
            self.checksums(mount, action).unwrap();
        }
    }

    fn checksums(&self, mount: &Path, action: &str) -> Result<String, String> {
        let mut command = self.program("pg_checksums", mount);
        command.arg(action);
        try_run(command)
    }

    /// The file of a table or an index, by its path below the cluster.
    pub fn file(mount: &Path, path: &str) -> PathBuf {
        mount.join(DIRECTORY).join(path)
    }
}

/// A place in the write-ahead log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPlace(u64);

impl LogPlace {
    fn read(text: &str) -> Self {
        let half = |text: &str| u64::from_str_radix(text.trim(), 16).unwrap();
        let (upper, lower) = text.split_once('/').unwrap();
        Self(half(upper) << 32 | half(lower))
    }
}

/// The processes of a server.
pub struct Server {
    child: Child,
    sockets: PathBuf,
}

impl Server {
    fn log(&self) -> String {
        fs::read_to_string(self.sockets.join("log")).unwrap_or_default()
    }

    fn psql(&self) -> Command {
        let mut command = as_postgres(Path::new("psql"));
        let options = ["-d", "postgres", "-qtAX", "-v", "ON_ERROR_STOP=1", "-h"];
        command.args(options).arg(&self.sockets);
        command
    }

    /// The directory of the socket.
    pub fn sockets(&self) -> &Path {
        &self.sockets
    }

    /// The end of the write-ahead log.
    pub fn log_end(&self) -> LogPlace {
        LogPlace::read(&self.ask("SELECT pg_current_wal_insert_lsn()"))
    }

    /// Suspends the process that accepts sessions. Sessions that have begun go on.
    pub fn suspend(&self) {
        let pid = self.ask("SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)");
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
    }

    /// Lets the process go on, and `runuser`, which stops with its child.
    pub fn resume(&self) {
        kill_process_group(group_of(&self.child), Signal::CONT).unwrap();
    }

    /// The answer to a statement.
    pub fn ask(&self, statement: &str) -> String {
        self.try_ask(statement)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    fn try_ask(&self, statement: &str) -> Result<String, String> {
        let mut command = self.psql();
        command.arg("-c").arg(statement);
        try_run(command)
    }

    /// Checks that the rows up to this number are there, and that table and index fit together. Reads every page of both. Returns
    /// what is wrong.
    pub fn check(&self, acknowledged: u64) -> Result<(), String> {
        let damaged = self.try_ask(
            "SELECT bt_index_parent_check('rows_pkey', true, true); SELECT * FROM verify_heapam('rows')",
        )?;
        if !damaged.is_empty() {
            return Err(format!("the table is damaged: {damaged}"));
        }
        let wrong = self.try_ask(&format!(
            "SELECT count(*) FROM rows WHERE filler <> {FILLER}"
        ))?;
        if wrong != "0" {
            return Err(format!("rows are wrong: {wrong}"));
        }
        let found = self.try_ask(&format!(
            "SELECT count(*) FROM rows WHERE n BETWEEN 1 AND {acknowledged}"
        ))?;
        if found != acknowledged.to_string() {
            return Err(format!("rows are lost: {found} of {acknowledged}"));
        }
        Ok(())
    }

    /// The number of the last row.
    pub fn last_row(&self) -> u64 {
        let last = self.ask("SELECT greatest(max(n), 0) FROM rows");
        last.parse().unwrap()
    }

    /// Kills all processes. Does not wait for those that wait for a node.
    pub fn kill(mut self) -> JoinHandle<()> {
        let _gone = kill_process_group(group_of(&self.child), Signal::KILL);
        thread::spawn(move || drop(self.child.wait()))
    }

    /// Stops the server cleanly.
    pub fn stop(mut self) {
        kill_process_group(group_of(&self.child), Signal::INT).unwrap();
        assert!(
            self.child.wait().unwrap().code().is_some(),
            "{}",
            self.log()
        );
    }
}

/// A session that inserts one row after the other.
pub struct Client {
    rows: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    before: u64,
    /// The process group of the session.
    group: Pid,
}

impl Client {
    /// Begins behind the rows that are acknowledged. A row behind them may be there.
    pub fn start(server: &Server, acknowledged: u64) -> Self {
        let mut session = server.psql();
        session
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        let session = session.spawn().unwrap();
        let group = group_of(&session);
        let rows = Arc::new(AtomicU64::new(acknowledged));
        let stop = Arc::new(AtomicBool::new(false));
        let (own, told) = (Arc::clone(&rows), Arc::clone(&stop));
        Self {
            rows,
            stop,
            thread: thread::spawn(move || insert(session, &own, &told)),
            before: acknowledged,
            group,
        }
    }

    /// Waits until so many rows are acknowledged since the start.
    pub fn await_rows(&self, count: u64) {
        await_that("rows", || {
            assert!(!self.thread.is_finished(), "the session has ended");
            self.rows.load(Ordering::SeqCst) >= self.before + count
        });
    }

    /// Waits until so many rows more are acknowledged.
    pub fn await_more_rows(&self, count: u64) {
        self.await_rows(self.acknowledged() - self.before + count);
    }

    /// The number of the last row that is acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.rows.load(Ordering::SeqCst)
    }

    /// Waits until the session has met an error.
    pub fn await_error(&self) {
        await_that("an error", || self.thread.is_finished());
    }

    /// Kills the session, whose server may wait for a node, and returns the acknowledged rows.
    pub fn end(self) -> u64 {
        let _gone = kill_process_group(self.group, Signal::KILL);
        self.await_error();
        self.acknowledged()
    }

    /// Ends the session, and returns the acknowledged rows.
    pub fn stop(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        self.await_error();
        self.acknowledged()
    }
}

fn insert(mut session: Child, rows: &AtomicU64, stop: &AtomicBool) {
    let mut input = session.stdin.take().unwrap();
    let mut output = BufReader::new(session.stdout.take().unwrap());
    while !stop.load(Ordering::SeqCst) {
        let next = rows.load(Ordering::SeqCst) + 1;
        let statement = format!(
            "INSERT INTO rows SELECT n, {FILLER} FROM (VALUES ({next})) v(n) \
             ON CONFLICT (n) DO UPDATE SET filler = excluded.filler RETURNING n;\n"
        );
        let mut answer = String::new();
        let is_sent = input.write_all(statement.as_bytes()).is_ok();
        if !is_sent || output.read_line(&mut answer).unwrap_or(0) == 0 {
            break;
        }
        assert_eq!(answer.trim(), next.to_string());
        rows.store(next, Ordering::SeqCst);
    }
    drop(input);
    let _ended = session.wait();
}
