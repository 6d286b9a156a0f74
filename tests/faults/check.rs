//! The checks after the faults: no acknowledged operation is lost, and both nodes hold the same.
//!
//! Everything is checked from outside: through the mount, and in the export of each store alone. The tools of
//! `tests/acceptance/lib/compare.bash` compare the exports.

#![allow(dead_code)] // not every test uses all of it

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lockstep_testbed::{DATASTORE, Node, Pair, Which};
use parking_lot::MutexGuard;

use crate::writers::{Client, Seat, Writers};

/// How both nodes go down before their stores are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By SIGTERM, one after the other.
    Stopped,
    /// By SIGKILL while no operation is in flight.
    Killed,
}

/// Waits until the nodes are in sync, holds the clients still, compares everything, calls `while_down` while the
/// nodes are down, and starts the nodes again. Only the clients may be at work.
pub fn check(pair: &mut Pair, writers: &Writers, ending: Ending, while_down: impl FnOnce()) {
    pair.await_in_sync();
    let mut seats = writers.still();
    against_accounts(&pair.mount(), &mut seats);
    for seat in &mut seats {
        seat.leave();
    }
    end(pair, ending);
    if ending == Ending::Stopped {
        // A store after a clean shutdown has everything on stable storage.
        for seat in &mut seats {
            seat.client.saved();
        }
    }
    let [of_primary, of_secondary] = export_both(pair);
    compare(&of_primary, &of_secondary);
    against_accounts(&of_primary.join("tree"), &mut seats);
    for place in [of_primary, of_secondary] {
        fs::remove_dir_all(place).unwrap();
    }
    while_down();
    pair.start();
}

/// Stops both nodes cleanly once they are in sync, and compares their stores.
pub fn at_rest(pair: &mut Pair) {
    pair.await_in_sync();
    end(pair, Ending::Stopped);
    let [of_primary, of_secondary] = export_both(pair);
    compare(&of_primary, &of_secondary);
}

fn export_both(pair: &Pair) -> [PathBuf; 2] {
    [Which::Primary, Which::Secondary].map(|which| {
        let place = pair.outside(&format!("export-{which:?}"));
        export(pair.node(which), &place);
        place
    })
}

fn end(pair: &mut Pair, ending: Ending) {
    match ending {
        Ending::Stopped => pair.stop(),
        Ending::Killed => {
            pair.secondary.kill();
            pair.primary.kill();
        }
    }
}

fn against_accounts(root: &Path, seats: &mut [MutexGuard<'_, Seat>]) {
    for seat in seats {
        against_account(root, &mut *seat.client);
    }
}

/// Checks copies of the clients' accounts against the tree below `root`. The accounts themselves stay unchanged.
pub fn copies_against(root: &Path, seats: &[MutexGuard<'_, Seat>]) {
    for seat in seats {
        against_account(root, &mut *seat.client.copy());
    }
}

fn against_account(root: &Path, client: &mut dyn Client) {
    if let Err(wrong) = client.check(root) {
        let (name, root) = (client.name(), root.display());
        panic!("{name} misses something in {root}: {wrong}");
    }
}

/// Exports the node's store as a tree and a manifest in `place`.
pub fn export(node: &Node, place: &Path) {
    fs::create_dir(place).unwrap();
    let mut command = Command::new(lockstep_testbed::program());
    command.args(["export", DATASTORE]).arg(place.join("tree"));
    command.arg("--config").arg(node.config());
    command.arg("--manifest").arg(place.join("manifest"));
    judge(&node.run(&mut command), "lockstep export");
}

/// Compares two exports with standard tools.
fn compare(one: &Path, other: &Path) {
    let tools = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/acceptance/lib/compare.bash"
    );
    let script = "set -euo pipefail; fail() { echo \"$*\" >&2; exit 1; }; source \"$1\"; \
                  compare_trees \"$2/tree\" \"$3/tree\"; cmp \"$2/manifest\" \"$3/manifest\"";
    let mut command = Command::new("bash");
    command
        .args(["-c", script, "compare", tools])
        .args([one, other]);
    command.env("LC_ALL", "C.UTF-8").env("TZ", "UTC");
    judge(&command.output().unwrap(), "the two nodes differ");
}

fn judge(output: &Output, what: &str) {
    let printed = [&output.stdout[..], &output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    assert!(output.status.success(), "{what}: {printed}");
}
