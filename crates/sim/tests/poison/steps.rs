//! The steps of a test with two nodes: starts, stops, requests of a program, and looks at the disks.

use std::time::Duration;

use lockstep_driver::report::DatastoreStatus;
use lockstep_fs::poison::MARKER_FILE;
use lockstep_repl::state::State;
use lockstep_sim::disk::Disk;
use lockstep_sim::history::Stop;
use lockstep_sim::op::{Mark, mark};
use lockstep_sim::scenario::{Mount, ScriptedCluster, Settings};
use lockstep_sim::world::Side;
use lockstep_types::settings::{OnPeerLoss, OnPowerLoss};
use lockstep_types::{Errno, Ino};

use super::program::{self, FILE, FIRST};

/// Longer than any step takes.
const LIMIT: Duration = Duration::from_secs(120);

/// Returns two nodes that have never run.
pub fn two_nodes(on_peer_loss: OnPeerLoss) -> ScriptedCluster {
    two_nodes_with(on_peer_loss, OnPowerLoss::Serve)
}

/// Returns two nodes that have never run.
pub fn two_nodes_with(on_peer_loss: OnPeerLoss, on_power_loss: OnPowerLoss) -> ScriptedCluster {
    ScriptedCluster::manual(&Settings {
        on_peer_loss,
        on_power_loss,
        pause_limit: Duration::from_secs(3600),
        peer_timeout: Duration::from_secs(1),
        ..Settings::STEADY
    })
}

/// Starts both nodes, and waits until they are in sync.
#[track_caller]
pub fn start_in_sync(cluster: &mut ScriptedCluster) {
    cluster.start_both();
    until_in_sync(cluster);
}

/// Returns two nodes in sync, and a file.
#[track_caller]
pub fn in_sync() -> ScriptedCluster {
    let mut cluster = two_nodes(OnPeerLoss::Continue);
    start_in_sync(&mut cluster);
    make_file(&mut cluster, FIRST);
    cluster
}

/// Creates the file, and fills it.
#[track_caller]
pub fn make_file(cluster: &mut ScriptedCluster, mark: Mark) {
    assert_eq!(run(cluster, |mount| program::create(mount, FILE)), Ok(()));
    assert_eq!(write(cluster, mark, true), Ok(()));
}

/// Runs a program on the primary's mount. The program must end.
#[track_caller]
pub fn run<T: Send + 'static>(
    cluster: &mut ScriptedCluster,
    body: impl FnOnce(&Mount) -> Result<T, Errno> + Send + 'static,
) -> Result<T, Errno> {
    cluster.use_mount(body).expect("the program ends")
}

#[track_caller]
pub fn write(cluster: &mut ScriptedCluster, mark: Mark, durable: bool) -> Result<(), Errno> {
    run(cluster, move |mount| program::write(mount, mark, durable))
}

#[track_caller]
pub fn read(cluster: &mut ScriptedCluster) -> Result<Option<Mark>, Errno> {
    run(cluster, program::read)
}

pub fn kill(cluster: &mut ScriptedCluster, side: Side) {
    cluster.stop(side, Stop::Process);
}

/// Kills the process of a node, if it is running, and starts the node.
pub fn restart(cluster: &mut ScriptedCluster, side: Side) {
    kill(cluster, side);
    cluster.start(side);
}

/// Shuts a node down cleanly.
#[track_caller]
pub fn shut_down(cluster: &mut ScriptedCluster, side: Side) {
    cluster.shut_down(side).unwrap();
}

/// Starts a node until it runs, if it is not running. A node whose disk fails during the start may
/// refuse to start.
#[track_caller]
pub fn start_until_it_runs(cluster: &mut ScriptedCluster, side: Side) {
    let mut refusal = None;
    for _ in 0..4 {
        if cluster.state(side).is_some() {
            return;
        }
        kill(cluster, side);
        refusal = cluster.start_or_refusal(side).unwrap();
    }
    assert_eq!(refusal, None, "{side:?} does not start");
}

/// Runs the world until something holds.
#[track_caller]
pub fn until(cluster: &mut ScriptedCluster, what: &str, holds: impl Fn(&ScriptedCluster) -> bool) {
    if let Err(error) = cluster.until(LIMIT, holds) {
        panic!("{what}: {error}");
    }
}

#[track_caller]
pub fn until_in_sync(cluster: &mut ScriptedCluster) {
    until(cluster, "in sync", |cluster| cluster.is_in_sync());
}

/// Runs the world until a node reports that its disk has failed.
#[track_caller]
pub fn until_poisoned(cluster: &mut ScriptedCluster, side: Side) {
    until(cluster, "poisoned", |cluster| {
        cluster.state(side).is_some_and(State::is_poisoned)
    });
}

#[track_caller]
pub fn status(cluster: &ScriptedCluster, side: Side) -> DatastoreStatus {
    cluster.status(side).expect("the node is running")
}

/// Returns whether a resync has left a difference. The proof at its end finds most of them, and sends their files again (rule P33).
pub fn has_left_difference(cluster: &mut ScriptedCluster) -> bool {
    let is_healed = |side| {
        let verified = cluster.status(side).and_then(|status| status.verified);
        verified.is_some_and(|verified| verified.sent_again > 0)
    };
    Side::BOTH.into_iter().any(is_healed) || !cluster.compare().unwrap().is_identical()
}

/// Returns whether a poison marker is on the disk of a node.
pub fn is_marked(cluster: &ScriptedCluster, side: Side) -> bool {
    let files = cluster.disk(side).files();
    files.contains(&MARKER_FILE.to_owned())
}

/// The synced data of a node.
#[derive(Debug, PartialEq, Eq)]
pub struct Stable {
    /// The role file.
    pub role: Vec<u8>,
    /// The mark of the file's content. `None` if there is no file, or if the content is of no single
    /// write.
    pub content: Option<Mark>,
}

/// Returns the data that a power loss would leave on the disk of a node.
pub fn stable(cluster: &ScriptedCluster, side: Side) -> Stable {
    let (disk, dump) = cluster.stable(side);
    let content = dump.ok().and_then(|dump| {
        let ino = dump.lookup(Ino::ROOT, &program::name(FILE))?;
        let runs = mark::runs(ino, 0, dump.bytes(ino)?);
        let [run] = *runs else { return None };
        run.mark
    });
    Stable {
        role: disk.read_all("role.json").unwrap_or_default(),
        content,
    }
}

/// Returns whether the synced role file of a node says that its copy is in sync.
pub fn is_stably_in_sync(cluster: &ScriptedCluster, side: Side) -> bool {
    let marks = lockstep_driver::RoleMarks::of(&stable(cluster, side).role);
    marks.unwrap().in_sync
}

fn role_text(disk: &Disk) -> String {
    String::from_utf8(disk.read_all("role.json").unwrap()).unwrap()
}

/// Returns the part of a node's role file with the names of the store and of the sync, if any.
pub fn names(cluster: &ScriptedCluster, side: Side) -> Option<String> {
    let role = role_text(cluster.disk(side));
    let (_, names) = role.split_once("\"store\"")?;
    let (names, _) = names.split_once("\"was_resynced\"")?;
    Some(names.to_owned())
}
