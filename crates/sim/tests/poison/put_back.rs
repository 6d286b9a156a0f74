//! An older copy of a store that is put back: by the rollback of a snapshot, or from a backup. No resync has begun since the copy
//! was made, so only the name of the sync, or the count of its operations, shows the age of the copy (rule P17).

use std::time::Duration;

use lockstep_repl::state::State;
use lockstep_sim::disk::Disk;
use lockstep_sim::scenario::{PRIMARY, SECONDARY, ScriptedCluster, Settings};
use lockstep_sim::world::Side;
use lockstep_types::mutants::{Mutant, activate};
use lockstep_types::settings::{Durability, OnPowerLoss};

use super::program::{FIRST, LATER};
use super::steps::{
    in_sync, is_stably_in_sync, kill, make_file, read, restart, shut_down, stable, start_in_sync,
    start_until_it_runs, status, until, until_in_sync, write,
};

/// Longer than any attempt to connect takes, with the pause after it.
const LONG: Duration = Duration::from_secs(30);

/// The moment at which a copy is made.
#[derive(Clone, Copy, Debug)]
enum Copied {
    /// While the node was stopped. The nodes have connected since.
    Stopped,
    /// While the nodes were in sync, as the snapshot of a disk does. They have not connected since.
    InUse,
}

const BOTH: [Copied; 2] = [Copied::Stopped, Copied::InUse];

/// Returns a copy of a node's disk. The nodes are in sync then.
#[track_caller]
fn copy(cluster: &mut ScriptedCluster, side: Side, copied: Copied) -> Disk {
    match copied {
        Copied::InUse => cluster.disk(side).fork(),
        Copied::Stopped => {
            shut_down(cluster, side);
            let copy = cluster.disk(side).fork();
            restart(cluster, side);
            until_in_sync(cluster);
            copy
        }
    }
}

/// Puts a copy back while the node is stopped, and starts the node. Returns the newer disk.
#[track_caller]
fn put_back(cluster: &mut ScriptedCluster, side: Side, old: Disk) -> Disk {
    kill(cluster, side);
    let newer = cluster.replace_disk(side, old);
    cluster.start(side);
    newer
}

#[test]
fn a_copy_of_the_secondary_that_is_put_back_gets_everything() {
    for copied in BOTH {
        let mut cluster = in_sync();
        let old = copy(&mut cluster, SECONDARY, copied);
        assert_eq!(write(&mut cluster, LATER, true), Ok(()));
        put_back(&mut cluster, SECONDARY, old);
        until_in_sync(&mut cluster);
        let found = stable(&cluster, SECONDARY).content;
        assert_eq!(found, Some(LATER), "{copied:?}");
        assert!(is_stably_in_sync(&cluster, SECONDARY));
    }
}

/// The resync of what has changed would send nothing: the write came before the nodes were out of sync.
#[test]
fn a_copy_of_the_secondary_that_is_put_back_while_out_of_sync_gets_everything() {
    for copied in BOTH {
        let mut cluster = ScriptedCluster::manual(&Settings {
            on_power_loss: OnPowerLoss::Serve,
            peer_timeout: Duration::from_secs(1),
            ..Settings::STEADY
        });
        start_in_sync(&mut cluster);
        make_file(&mut cluster, FIRST);
        let old = copy(&mut cluster, SECONDARY, copied);
        assert_eq!(write(&mut cluster, LATER, true), Ok(()));
        kill(&mut cluster, SECONDARY);
        until(&mut cluster, "out of sync", |cluster| {
            cluster.state(PRIMARY) == Some(State::OutOfSync)
        });
        put_back(&mut cluster, SECONDARY, old);
        until_in_sync(&mut cluster);
        let found = stable(&cluster, SECONDARY).content;
        assert_eq!(found, Some(LATER), "{copied:?}");
    }
}

/// Only an operator can know whether the newer store of the primary comes back.
#[test]
fn a_copy_of_the_primary_that_is_put_back_overwrites_nothing() {
    for copied in BOTH {
        let mut cluster = in_sync();
        let old = copy(&mut cluster, PRIMARY, copied);
        assert_eq!(write(&mut cluster, LATER, true), Ok(()));
        let newer = put_back(&mut cluster, PRIMARY, old);
        start_until_it_runs(&mut cluster, PRIMARY);
        cluster.run_for(LONG).unwrap();
        let reason = status(&cluster, PRIMARY).sync.reason.unwrap();
        assert!(reason.contains("older"), "{copied:?}: {reason}");
        let found = stable(&cluster, SECONDARY).content;
        assert_eq!(found, Some(LATER), "{copied:?}");
        put_back(&mut cluster, PRIMARY, newer);
        until_in_sync(&mut cluster);
        assert_eq!(read(&mut cluster), Ok(Some(LATER)));
    }
}

/// The witness knows the name of the sync. While the other node is down, the older copy does not lead by the answer of the
/// witness.
#[test]
fn a_copy_that_is_put_back_while_its_node_is_alone_does_not_lead() {
    for side in Side::BOTH {
        let mut cluster = protected(Durability::Posix);
        // A short absence, so that no node takes over.
        kill(&mut cluster, SECONDARY);
        let old = cluster.disk(side).fork();
        cluster.start(SECONDARY);
        until_protected(&mut cluster);
        assert_eq!(write(&mut cluster, LATER, true), Ok(()));
        kill(&mut cluster, side.other());
        let newer = put_back(&mut cluster, side, old);
        start_until_it_runs(&mut cluster, side);
        cluster.run_for(LONG).unwrap();
        assert_eq!(status(&cluster, side).work.generation, 1, "{side:?}");
        let state = cluster.state(side).unwrap();
        assert!(state.is_secondary(), "{side:?}: {state:?}");
        // A primary that waits for the other node says that, too, from time to time.
        until(&mut cluster, "the reason", |cluster| {
            let reason = status(cluster, side).sync.reason;
            reason.is_some_and(|reason| reason.contains("an older copy"))
        });
        if side == PRIMARY {
            put_back(&mut cluster, side, newer);
        }
        cluster.start(side.other());
        until_in_sync(&mut cluster);
        // The primary serves once it has a lease.
        until_protected(&mut cluster);
        cluster.run_for(Duration::from_secs(1)).unwrap();
        assert_eq!(read(&mut cluster), Ok(Some(LATER)), "{side:?}");
    }
}

/// Returns two nodes in sync, and a file. The witness lets the secondary take over.
#[track_caller]
fn protected(durability: Durability) -> ScriptedCluster {
    let mut cluster = ScriptedCluster::manual(&Settings {
        durability,
        peer_timeout: Duration::from_secs(1),
        failover_after: Some(Duration::from_secs(2)),
        ..Settings::STEADY
    });
    start_in_sync(&mut cluster);
    make_file(&mut cluster, FIRST);
    until_protected(&mut cluster);
    cluster
}

/// Kills both nodes, and starts the secondary alone on a copy of the present sync. Returns its generation, which is 2 if it has
/// taken over.
#[track_caller]
fn start_alone_on(cluster: &mut ScriptedCluster, copy: Disk) -> u64 {
    kill(cluster, PRIMARY);
    put_back(cluster, SECONDARY, copy);
    start_until_it_runs(cluster, SECONDARY);
    cluster.run_for(LONG).unwrap();
    status(cluster, SECONDARY).work.generation
}

/// The witness knows the name of the sync, which the copy has. The machine has counted the operations that the copy lacks.
#[test]
fn a_copy_of_the_present_sync_does_not_lead_on_the_machine_that_went_on() {
    for durability in [Durability::Posix, Durability::Always] {
        let mut cluster = protected(durability);
        let old = cluster.disk(SECONDARY).fork();
        assert_eq!(write(&mut cluster, LATER, true), Ok(()));
        assert_eq!(start_alone_on(&mut cluster, old), 1, "{durability:?}");
        assert!(!is_stably_in_sync(&cluster, SECONDARY));
        // A further start has nothing to compare.
        restart(&mut cluster, SECONDARY);
        cluster.run_for(LONG).unwrap();
        assert_eq!(status(&cluster, SECONDARY).work.generation, 1);
        cluster.start(PRIMARY);
        until_protected(&mut cluster);
        cluster.run_for(Duration::from_secs(1)).unwrap();
        assert_eq!(read(&mut cluster), Ok(Some(LATER)), "{durability:?}");
    }
}

/// The run of the machine has ended, so only the meeting of the nodes shows the age of the copy.
#[track_caller]
fn put_back_after_a_power_loss() -> ScriptedCluster {
    let mut cluster = in_sync();
    let old = copy(&mut cluster, SECONDARY, Copied::Stopped);
    assert_eq!(write(&mut cluster, LATER, true), Ok(()));
    cluster.cut_power(SECONDARY);
    cluster.replace_disk(SECONDARY, old);
    cluster.start(SECONDARY);
    until_in_sync(&mut cluster);
    cluster
}

#[test]
fn a_copy_of_the_secondary_that_is_put_back_after_a_power_loss_gets_everything() {
    let cluster = put_back_after_a_power_loss();
    assert_eq!(stable(&cluster, SECONDARY).content, Some(LATER));
}

#[test]
fn a_copy_of_an_earlier_sync_that_is_trusted_is_found() {
    activate(Some(Mutant::TrustOldCopy));
    let cluster = put_back_after_a_power_loss();
    activate(None);
    assert_eq!(stable(&cluster, SECONDARY).content, Some(FIRST));
}

/// The secondary has heard the name of its store in this process, from its first primary. A primary that loses power forgets what
/// it has counted, so nobody else knows the age of the copy.
#[test]
fn a_copy_of_an_earlier_sync_is_known_on_the_machine_that_went_on() {
    let mut cluster = protected(Durability::Posix);
    let old = cluster.disk(SECONDARY).fork();
    kill(&mut cluster, PRIMARY);
    cluster.start(PRIMARY);
    until_protected(&mut cluster);
    assert_eq!(start_alone_on(&mut cluster, old), 1);
    assert!(!is_stably_in_sync(&cluster, SECONDARY));
}

#[test]
fn a_copy_that_lacks_nothing_leads() {
    let mut cluster = protected(Durability::Posix);
    assert_eq!(write(&mut cluster, LATER, true), Ok(()));
    let same = cluster.disk(SECONDARY).fork();
    assert_eq!(start_alone_on(&mut cluster, same), 2);
    assert_eq!(read(&mut cluster), Ok(Some(LATER)));
}

#[test]
fn a_copy_of_the_present_sync_that_is_trusted_is_found() {
    activate(Some(Mutant::TrustLaterCopy));
    let mut cluster = protected(Durability::Posix);
    let old = cluster.disk(SECONDARY).fork();
    assert_eq!(write(&mut cluster, LATER, true), Ok(()));
    let generation = start_alone_on(&mut cluster, old);
    let found = read(&mut cluster);
    activate(None);
    assert_eq!((generation, found), (2, Ok(Some(FIRST))));
}

#[track_caller]
fn until_protected(cluster: &mut ScriptedCluster) {
    until(cluster, "protected", |cluster| {
        let status = cluster.status(PRIMARY);
        let witness = status.and_then(|status| status.witness);
        cluster.is_in_sync() && witness.is_some_and(|witness| witness.protects)
    });
}

/// Nothing was acknowledged since the copy was made: it lacks nothing.
#[test]
fn a_copy_of_the_same_moment_stays_in_sync() {
    for side in Side::BOTH {
        let mut cluster = in_sync();
        let same = cluster.disk(side).fork();
        put_back(&mut cluster, side, same);
        let resync = |state| matches!(state, Some(State::ResyncNamespace | State::LeavingSync));
        until(&mut cluster, "in sync without a resync", |cluster| {
            assert!(!resync(cluster.state(PRIMARY)), "{side:?}");
            cluster.is_in_sync()
        });
        assert_eq!(read(&mut cluster), Ok(Some(FIRST)));
    }
}
