//! `PostgreSQL` under a supervisor, through failovers: the database is killed where the node does not serve, and started where
//! it does.
//!
//! An operator fails over or promotes in one test, and a witness decides in the other one. The mounts outlive their nodes, so the
//! requests of the database wait while their node is away. After each failover the database recovers, all acknowledged rows
//! are there, table and index fit together (amcheck), and the checksums of all pages are right. `LOCKSTEP_DATABASE_FAILOVERS`
//! sets the number of failovers of each kind. In a third test a crashed database is rolled back to a snapshot
//! (`LOCKSTEP_DATABASE_ROLLBACKS` times), and in a fourth one the commands of the manual run around snapshots
//! (`LOCKSTEP_DATABASE_SNAPSHOTS` of them, a second apart). A test of its own damages a database, and sees that these checks fail. Needs root,
//! /dev/fuse and `PostgreSQL` (`scripts/setup test`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "database/cause.rs"]
mod cause;
#[path = "database/damage.rs"]
mod damage;
#[path = "database/hooks.rs"]
mod hooks;
#[path = "database/postgres.rs"]
mod postgres;

use std::process::Command;

use lockstep_testbed::Which::{self, Primary as A, Secondary as B};
use lockstep_testbed::holder::Holder;
use lockstep_testbed::operator::{assert_identical, await_in_sync, other};
use lockstep_testbed::witness::{Witness, await_protected};
use lockstep_testbed::{DATASTORE, NodeEnvironment, PATIENT, Pair, Settings, repetitions};

use cause::Cause;
use postgres::{Client, Cluster, Server};

lockstep_testbed::network_process!();

/// Failovers of each kind by an operator, unless the variable says otherwise.
const BY_OPERATOR: u64 = 2;
/// Failovers of each kind with a witness, unless the variable says otherwise.
const BY_WITNESS: u64 = 1;
/// Rollbacks of a database, unless the variable says otherwise.
const ROLLBACKS: u64 = 2;
/// Rows between two failovers.
const ROWS: u64 = 30;
/// The takeover comes this time after the loss of the connection. A busy machine may stop a node for a while.
const FAILOVER_AFTER_MS: u64 = 2000;

/// The settings of a new configuration, for a busy machine.
const SETTINGS: Settings = Settings {
    peer_timeout_ms: 10_000,
    standby: "erofs",
    ..PATIENT
};
/// The secondary soon misses a primary that is silent.
const WITNESSED: Settings = Settings {
    peer_timeout_ms: 2000,
    ..SETTINGS
};

/// The pair, and the database on the node that serves. The fields end in this order.
struct Site {
    pair: Pair,
    witness: Option<Witness>,
    _holders: [Holder; 2],
    cluster: Cluster,
    primary: Which,
    generation: u64,
    acknowledged: u64,
    /// The last row that the database had when it began on the node that serves.
    recovered: u64,
}

impl Site {
    fn start(settings: Settings, is_witnessed: bool) -> Self {
        let environments = [NodeEnvironment::default(), NodeEnvironment::default()];
        let mut pair = Pair::prepare(settings, environments);
        let witness = is_witnessed.then(|| Witness::start(&pair, FAILOVER_AFTER_MS));
        let holders = [A, B].map(|which| Holder::start(pair.node(which)));
        pair.start();
        let cluster = Cluster::create(&pair.node(A).mount());
        Self {
            pair,
            witness,
            _holders: holders,
            cluster,
            primary: A,
            generation: 1,
            acknowledged: 0,
            recovered: 0,
        }
    }

    /// Starts the database, checks it, stops it, checks its pages, starts it again, and lets a client insert rows.
    fn serve(&mut self) -> (Server, Client) {
        self.recover();
        let server = self.start_server();
        let client = Client::start(&server, self.acknowledged);
        client.await_rows(ROWS);
        (server, client)
    }

    fn start_server(&self) -> Server {
        self.cluster.start(&self.pair.node(self.primary).mount())
    }

    fn recover(&mut self) {
        let server = self.start_server();
        server.check(self.acknowledged).unwrap();
        self.recovered = server.last_row();
        server.stop();
        let mount = self.pair.node(self.primary).mount();
        self.cluster.check_sums(&mount).unwrap();
    }

    /// The supervisor of a node that does not serve any more.
    fn kill(&mut self, server: Server, client: Client) {
        let begun = server.kill();
        self.acknowledged = client.end();
        // Requests may wait in a node that is away.
        drop(begun);
    }

    fn await_in_sync(&mut self) {
        await_in_sync(&mut self.pair, self.primary, self.generation);
        if self.witness.is_some() {
            await_protected(&self.pair, self.primary);
        }
    }

    /// The role and the database go to the other node; the database that ran is `before`. Returns the one that runs then.
    fn fail_over(&mut self, cause: Cause, (server, client): (Server, Client)) -> (Server, Client) {
        self.await_in_sync();
        let old = self.primary;
        cause.strike(self, &client);
        let mut late = None;
        if cause.stops_the_supervisor() {
            late = Some((server, client));
        } else {
            self.kill(server, client);
        }
        cause.await_takeover(self, other(old));
        if let Some((_, client)) = &late {
            self.acknowledged = client.acknowledged();
        }
        self.primary = other(old);
        self.generation += 1;
        let running = self.serve();
        cause.heal(self, old);
        self.await_in_sync();
        if let Some((server, client)) = late {
            self.kill(server, client);
            // Its last commit may have been on both nodes already, without the answer.
            let (late, recovered) = (self.acknowledged, self.recovered);
            assert!(
                late <= recovered,
                "acknowledged {late}, recovered {recovered}"
            );
        }
        running
    }

    /// So many failovers of each kind.
    fn go_through(mut self, causes: &[Cause], rounds: u64) {
        let mut running = self.serve();
        for round in 0..rounds {
            for cause in causes {
                println!(
                    "round {round}: {cause:?}, {} rows so far",
                    self.acknowledged
                );
                running = self.fail_over(*cause, running);
            }
        }
        let (server, client) = running;
        self.acknowledged = client.stop();
        server.stop();
        self.recover();
        self.await_in_sync();
        assert_identical(self.pair.node(self.primary));
        self.pair.end();
    }
}

fn snapshot(site: &Site, command: &[&str]) {
    let node = site.pair.node(site.primary);
    let mut program = Command::new(lockstep_testbed::program());
    program.arg("snapshot").args(command).arg("--control");
    let done = program.arg(node.control()).output().unwrap();
    let text = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {text}");
}

/// A snapshot of a database that writes is one from which the database recovers, as after a crash.
#[test]
fn a_crashed_database_is_rolled_back_to_a_snapshot() {
    let Some(rounds) = repetitions("LOCKSTEP_DATABASE_ROLLBACKS", ROLLBACKS) else {
        return;
    };
    let mut site = Site::start(SETTINGS, false);
    for round in 0..rounds {
        let (server, client) = site.serve();
        let name = format!("round {round}");
        let before = client.acknowledged();
        snapshot(&site, &["create", DATASTORE, &name]);
        let after = client.acknowledged();
        client.await_rows(2 * ROWS);
        site.kill(server, client);
        assert!(site.acknowledged > after);
        snapshot(&site, &["rollback", DATASTORE, &name]);
        site.acknowledged = before;
        site.recover();
        // A row that was under way may be there.
        assert!(site.recovered <= after + 1, "{} rows", site.recovered);
        site.acknowledged = site.recovered;
    }
    site.await_in_sync();
    assert_identical(site.pair.node(site.primary));
    site.pair.end();
}

/// The commands of the page run around each snapshot of a database that writes, and the database recovers from each of them.
#[test]
fn the_commands_around_a_snapshot_of_a_database_are_those_of_the_page() {
    if let Some(in_a_row) = repetitions("LOCKSTEP_DATABASE_SNAPSHOTS", hooks::IN_A_ROW) {
        hooks::are_those_of_the_page(in_a_row);
    }
}

#[test]
fn a_database_under_a_supervisor_survives_failovers() {
    if let Some(rounds) = repetitions("LOCKSTEP_DATABASE_FAILOVERS", BY_OPERATOR) {
        Site::start(SETTINGS, false).go_through(&cause::BY_OPERATOR, rounds);
    }
}

#[test]
fn a_database_under_a_supervisor_survives_failovers_by_the_witness() {
    if let Some(rounds) = repetitions("LOCKSTEP_DATABASE_FAILOVERS", BY_WITNESS) {
        Site::start(WITNESSED, true).go_through(&cause::BY_WITNESS, rounds);
    }
}

/// The checks of the other tests would be worth nothing if they could not fail.
#[test]
fn the_checks_of_the_database_see_a_lost_row_and_a_damaged_index() {
    if repetitions("LOCKSTEP_DATABASE_FAILOVERS", 1).is_some() {
        damage::each_damage_is_seen();
    }
}
