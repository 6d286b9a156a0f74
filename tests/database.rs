//! `PostgreSQL` under a supervisor, through failovers: the database is killed where the node does not serve, and started where
//! it does.
//!
//! Each round is a planned failover, or a kill of the primary's node and a promotion of the other one; the mounts outlive
//! their nodes, so the requests of the database wait while their node is away. After each round the database starts, all
//! acknowledged rows are there, and the checksums of its pages are right. `LOCKSTEP_DATABASE_FAILOVERS` sets the number of
//! failovers. Needs root, /dev/fuse and `PostgreSQL` (`scripts/setup test`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "faults/address.rs"]
mod address;
#[path = "failover/holder.rs"]
mod holder;
#[path = "faults/network.rs"]
mod network;
#[path = "faults/nodes.rs"]
mod nodes;
#[path = "failover/operator.rs"]
#[allow(dead_code)] // other tests use the rest
mod operator;
#[path = "database/postgres.rs"]
mod postgres;

use holder::Holder;
use nodes::Which::{Primary as A, Secondary as B};
use nodes::{NodeEnvironment, PATIENT, Pair, Settings, Which, repetitions};
use operator::{assert_identical, await_alone, await_in_sync, change, fail_over, other};
use postgres::{Client, Cluster, Server};

/// Failovers, unless the variable says otherwise.
const FAILOVERS: u64 = 4;
/// Rows between two failovers.
const ROWS: u64 = 30;

/// The settings of a new configuration, for a busy machine.
const SETTINGS: Settings = Settings {
    peer_timeout_ms: 10_000,
    standby: "erofs",
    ..PATIENT
};

/// The pair, and the database on the node that serves.
struct Site {
    pair: Pair,
    cluster: Cluster,
    primary: Which,
    generation: u64,
    acknowledged: u64,
}

impl Site {
    /// Starts the database, checks it, and lets a client insert rows.
    fn serve(&mut self) -> (Server, Client) {
        let server = self.cluster.start(&self.pair.node(self.primary).mount());
        server.check(self.acknowledged);
        let client = Client::start(&server, self.acknowledged);
        client.await_rows(ROWS);
        (server, client)
    }

    /// The supervisor of a node that does not serve any more.
    fn kill(&mut self, server: Server, client: Client) {
        let begun = server.kill();
        self.acknowledged = client.end();
        // Requests may wait in a node that is away.
        drop(begun);
    }

    fn plan_failover(&mut self, server: Server, client: Client) {
        await_in_sync(&mut self.pair, self.primary, self.generation);
        fail_over(&mut self.pair, self.primary, self.generation);
        // The database goes on for a while where it must not.
        client.await_error();
        self.kill(server, client);
    }

    fn lose_node(&mut self, server: Server, client: Client) {
        await_in_sync(&mut self.pair, self.primary, self.generation);
        let (old, new) = (self.primary, other(self.primary));
        self.pair.node_mut(old).kill();
        self.kill(server, client);
        await_alone(self.pair.node(new));
        change(self.pair.node(new), "promote", &[]);
    }

    /// The node that was killed comes back while the database runs on the other one.
    fn bring_back(&mut self) {
        self.pair.node_mut(other(self.primary)).start();
        await_in_sync(&mut self.pair, self.primary, self.generation);
    }
}

#[test]
fn a_database_under_a_supervisor_survives_failovers() {
    let Some(failovers) = repetitions("LOCKSTEP_DATABASE_FAILOVERS", FAILOVERS) else {
        return;
    };
    let environments = [NodeEnvironment::default(), NodeEnvironment::default()];
    let mut pair = Pair::prepare(SETTINGS, environments);
    let _holders = [A, B].map(|which| Holder::start(pair.node(which)));
    pair.start();
    let cluster = Cluster::create(&pair.node(A).mount());
    let mut site = Site {
        pair,
        cluster,
        primary: A,
        generation: 1,
        acknowledged: 0,
    };
    for round in 0..failovers {
        let (server, client) = site.serve();
        let is_planned = round % 4 < 2;
        if is_planned {
            site.plan_failover(server, client);
        } else {
            site.lose_node(server, client);
        }
        site.primary = other(site.primary);
        site.generation += 1;
        if !is_planned {
            let (server, client) = site.serve();
            site.bring_back();
            client.await_rows(ROWS);
            site.kill(server, client);
        }
    }
    let (server, client) = site.serve();
    site.acknowledged = client.stop();
    server.check(site.acknowledged);
    server.stop();
    site.cluster
        .check_sums(&site.pair.node(site.primary).mount());
    await_in_sync(&mut site.pair, site.primary, site.generation);
    assert_identical(site.pair.node(site.primary));
    site.pair.end();
}
