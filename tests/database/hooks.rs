//! The recipes of docs/operations/snapshots.md for `PostgreSQL`: the commands around a snapshot, while a database writes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lockstep_testbed::chance::Chance;
use lockstep_testbed::holder::Holder;
use lockstep_testbed::{DATASTORE, NodeEnvironment, Pair, Spawn, await_that, program};
use tempfile::TempDir;

use crate::postgres::{Client, Cluster, LogPlace, Server, open_way_to};
use crate::{ROWS, SETTINGS};

/// Snapshots in a row, a second apart, unless the variable says otherwise.
pub const IN_A_ROW: u64 = 2;
/// The most of them on which the database is started.
const CHECKED_MAX: usize = 10;

/// The line of the page that has these words.
fn recipe(words: &str) -> String {
    let page = include_str!("../../docs/operations/snapshots.md");
    let blocks = page.split("```toml\n").skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap());
    let found: Vec<&str> = blocks
        .filter(|block| block.contains("psql") && block.contains(words))
        .collect();
    let [line] = found[..] else {
        panic!("{found:?}");
    };
    line.trim().to_owned()
}

/// A snapshot, and the state of the database when the snapshot was asked for.
struct Taken {
    name: String,
    /// The rows that were acknowledged before.
    rows: u64,
    log_end: LogPlace,
    /// Whether the commands ran around it.
    is_hooked: bool,
}

/// Two nodes with commands of the page, and a database. The fields end in this order.
struct HookedSite {
    pair: Pair,
    _holders: [Holder; 2],
    cluster: Cluster,
    /// Where programs of the nodes look for the socket of the database.
    place: TempDir,
}

impl HookedSite {
    fn start(recipe: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        let host = place.path().join("host");
        let spawn: Spawn = Arc::new(move |command| command.env("PGHOST", &host).spawn());
        let environment = NodeEnvironment {
            spawn,
            ..NodeEnvironment::default()
        };
        let mut pair = Pair::prepare(SETTINGS, [environment.clone(), environment]);
        for node in [&pair.primary, &pair.secondary] {
            node.add_to_datastore(recipe);
        }
        let holders = [&pair.primary, &pair.secondary].map(Holder::start);
        pair.start();
        let cluster = Cluster::create(&pair.mount());
        Self {
            pair,
            _holders: holders,
            cluster,
            place,
        }
    }

    /// Starts the database where the commands look for it.
    fn start_server(&self) -> Server {
        let server = self.cluster.start(&self.pair.mount());
        let host = self.place.path().join("host");
        open_way_to(&host);
        symlink(server.sockets(), host).unwrap();
        server
    }

    /// Asks for a snapshot by the command. Returns its error; none if the snapshot was made.
    fn try_snapshot(&self, name: &str, options: &[&str]) -> Result<(), String> {
        let mut command = Command::new(program());
        command.args(["snapshot", "create", DATASTORE, name]);
        command.args(options).arg("--control");
        let done = command.arg(self.pair.primary.control()).output().unwrap();
        let error = String::from_utf8(done.stderr).unwrap();
        assert!(matches!(done.status.code(), Some(0 | 2)), "{error}");
        done.status.success().then_some(()).ok_or(error)
    }

    fn snapshot(&self, name: &str, is_hooked: bool, server: &Server, client: &Client) -> Taken {
        let taken = Taken {
            name: name.to_owned(),
            rows: client.acknowledged(),
            log_end: server.log_end(),
            is_hooked,
        };
        let options: &[&str] = if is_hooked { &[] } else { &["--no-hooks"] };
        self.try_snapshot(name, options).unwrap();
        taken
    }

    /// The path of a snapshot in the mount.
    fn shown(&self, name: &str) -> PathBuf {
        self.pair.mount().join(".lockstep/snapshots").join(name)
    }

    /// The first command has made a checkpoint, if it ran: the database would recover from a place behind all that it had
    /// before. Without the command it would recover from an earlier place.
    fn check_place(&self, taken: &Taken) {
        let Taken { name, log_end, .. } = taken;
        let from = self.cluster.recovers_from(&self.shown(name));
        let is_hooked = from >= *log_end;
        assert_eq!(is_hooked, taken.is_hooked, "{name}: {from:?}, {log_end:?}");
    }

    /// Starts the database on a copy of the snapshot: it recovers, and has each row that was acknowledged before.
    fn check_copy(&self, taken: &Taken) {
        let Taken { name, rows, .. } = taken;
        let copy = self.pair.outside("copy");
        Cluster::copy(&self.shown(name), &copy);
        let server = self.cluster.start(&copy);
        let checked = server.check(*rows);
        checked.unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
        println!("{name}: {rows} rows before it, {} in it", server.last_row());
        server.stop();
        self.cluster.check_sums(&copy).unwrap();
        fs::remove_dir_all(copy).unwrap();
    }

    /// Starts the primary anew, with another configuration, below programs that wait for it meanwhile.
    fn restart_primary(&mut self, configure: impl Fn(&str) -> String) {
        self.pair.primary.kill();
        for node in [&self.pair.primary, &self.pair.secondary] {
            let text = fs::read_to_string(node.config()).unwrap();
            fs::write(node.config(), configure(&text)).unwrap();
        }
        self.pair.primary.start();
        self.pair.await_in_sync();
    }

    /// Snapshots by the command, a second apart, every other one without the commands of the page.
    fn in_a_row(&self, count: u64, server: &Server, client: &Client) -> Vec<Taken> {
        let begin = Instant::now();
        let mut taken = Vec::new();
        for number in 0..count {
            client.await_more_rows(ROWS);
            let is_hooked = number % 2 == 0;
            let name = format!("second {number}");
            taken.push(self.snapshot(&name, is_hooked, server, client));
            let next = begin + Duration::from_secs(number + 1);
            sleep(next.saturating_duration_since(Instant::now()));
        }
        println!(
            "{count} snapshots in {:.1} s",
            begin.elapsed().as_secs_f64()
        );
        taken
    }

    /// The schedule makes a snapshot once the node knows of it, with the commands, too.
    fn by_the_schedule(&mut self, server: &Server, client: &Client) -> Taken {
        let (rows, log_end) = (client.acknowledged(), server.log_end());
        self.restart_primary(|text| format!("{text}[datastore.snapshots]\nhourly = 2\n"));
        let scheduled = || {
            let listed = fs::read_dir(self.shown("")).unwrap();
            let names = listed.map(|it| it.unwrap().file_name().into_string().unwrap());
            names.into_iter().find(|name| name.starts_with("@GMT-"))
        };
        await_that("a snapshot of the schedule", || scheduled().is_some());
        Taken {
            name: scheduled().unwrap(),
            rows,
            log_end,
            is_hooked: true,
        }
    }

    /// A database that hangs, or is down, gets no snapshot with the commands.
    fn without_a_database(&self, server: Server, client: Client) {
        server.suspend();
        let refused = self.try_snapshot("hangs", &[]).unwrap_err();
        for part in ["no snapshot was made", "did not end within 1000 ms"] {
            assert!(refused.contains(part), "{refused}");
        }
        server.resume();
        client.await_more_rows(ROWS);
        client.stop();
        server.stop();
        fs::remove_file(self.place.path().join("host")).unwrap();
        let refused = self.try_snapshot("down", &[]).unwrap_err();
        for part in ["no snapshot was made", "exit code 2", "    psql: error: "] {
            assert!(refused.contains(part), "{refused}");
        }
        for name in ["hangs", "down"] {
            assert!(!self.shown(name).exists(), "{name}");
        }
        self.try_snapshot("down", &["--no-hooks"]).unwrap();
    }

    /// With the other recipe of the page there is a snapshot in any case.
    fn with_or_without_a_database(&mut self, before: &str) {
        let lenient = recipe("|| true").replace("timeout 20", "timeout 3");
        self.restart_primary(|text| text.replace(before, &lenient));
        self.try_snapshot("still down", &[]).unwrap();
        let server = self.start_server();
        let client = Client::start(&server, server.last_row());
        client.await_more_rows(ROWS);
        let taken = self.snapshot("up", true, &server, &client);
        self.check_place(&taken);
        server.suspend();
        self.try_snapshot("hangs", &[]).unwrap();
        server.resume();
        client.stop();
        server.stop();
    }
}

/// See the head of this file.
pub fn are_those_of_the_page(in_a_row: u64) {
    let checkpoint = recipe("[\"/usr/sbin/runuser\"");
    let mut site = HookedSite::start(&checkpoint);
    let server = site.start_server();
    let client = Client::start(&server, 0);
    let mut taken = site.in_a_row(in_a_row, &server, &client);
    for taken in &taken {
        site.check_place(taken);
    }
    taken = Chance::of_run().shuffled(taken);
    taken.truncate((taken.len() / 2).clamp(1, CHECKED_MAX));
    taken.push(site.by_the_schedule(&server, &client));
    for taken in &taken {
        site.check_copy(taken);
    }
    client.await_more_rows(ROWS);
    let limited = checkpoint.replace(" }", ", limit_ms = 1000 }");
    site.restart_primary(|text| text.replace(&checkpoint, &limited));
    site.without_a_database(server, client);
    site.with_or_without_a_database(&limited);
    site.pair.end();
}
