//! `lockstep status`: shows whether both servers hold all data; if not, the reason and the next step.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use lockstep_driver::report::{
    DatastoreStatus, PeerStatus, ResyncStatus, ServiceStatus, VerifiedStatus,
};
use lockstepfs::config::{Choice, Durability, Encryption, OnPeerLoss, Role};
use lockstepfs::control::{ControlClient, NodeStatus};

use super::arguments::RunningNodeArgs;
use super::outcome::NO;
use super::terminal::{bytes, count, duration, say, say_json};

/// Show the status of a node and its datastores
///
/// Asks the running node. If a datastore is not in sync, explains the reason and the next step.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatusArgs {
    /// Only this datastore
    name: Option<String>,

    #[command(flatten)]
    node: RunningNodeArgs,

    /// Print as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockstep status
  lockstep status data --json
  lockstep status --control /run/lockstep/a.sock

Exit codes: 0 every datastore runs, and the mirrored ones are in sync; 1 a datastore does not run
or is not in sync, a disk has failed, or the last verify found differences; 2 could not ask.
A running datastore without a peer is shown as not mirrored, and is no reason for exit code 1.";

pub(crate) fn run(args: &StatusArgs) -> Result<ExitCode> {
    let mut status = ControlClient::connect(&args.node.socket()?)?.status()?;
    if let Some(name) = &args.name {
        keep_only(&mut status, name)?;
    }
    if args.json {
        say_json(&status)?;
    } else {
        say(&text(&status))?;
    }
    let all_healthy = status.datastores.iter().all(is_healthy);
    Ok(if all_healthy {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NO)
    })
}

fn keep_only(status: &mut NodeStatus, name: &str) -> Result<()> {
    let names: Vec<_> = status
        .datastores
        .iter()
        .map(|store| store.name.clone())
        .collect();
    status.datastores.retain(|store| store.name == name);
    if status.datastores.is_empty() {
        bail!(
            "node {:?} has no datastore {name:?}\n  cure: name one of: {}",
            status.node,
            names.join(", ")
        );
    }
    Ok(())
}

/// Whether a datastore runs on a healthy disk, and is in sync or deliberately not mirrored.
fn is_healthy(store: &DatastoreStatus) -> bool {
    store.started
        && store.poisoned.is_none()
        && found_different(store).is_none()
        && (store.in_sync || store.peer.is_none())
}

/// Returns the last comparison, if it has found differences.
fn found_different(store: &DatastoreStatus) -> Option<&VerifiedStatus> {
    store
        .verified
        .as_ref()
        .filter(|verified| !verified.identical)
}

fn text(status: &NodeStatus) -> String {
    let mut text = format!(
        "node {}, version {}, process {}\n",
        status.node, status.version, status.pid
    );
    if let Some(fingerprint) = &status.fingerprint {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "fingerprint {fingerprint}");
    }
    for store in &status.datastores {
        text.push('\n');
        text.push_str(&store_text(store));
    }
    text
}

fn store_text(store: &DatastoreStatus) -> String {
    let mut text = format!("{}: {}\n", store.name, headline(store));
    for (label, value) in rows(store) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {label:<11} {value}");
    }
    for line in explanation(store).into_iter().chain(stray_warning(store)) {
        let _ = writeln!(text, "  {line}");
    }
    text
}

fn headline(store: &DatastoreStatus) -> &'static str {
    if store.poisoned.is_some() {
        return "POISONED (the disk of this node has failed)";
    }
    if !store.started {
        return "NOT STARTED";
    }
    if store.in_sync && found_different(store).is_some() {
        return "in sync, but NOT IDENTICAL";
    }
    match (&store.peer, store.in_sync) {
        (None, _) => "not mirrored (one copy only, as configured)",
        (Some(_), true) => "in sync",
        (Some(_), false) => "NOT IN SYNC",
    }
}

fn rows(store: &DatastoreStatus) -> Vec<(&'static str, String)> {
    let since = duration(Duration::from_millis(store.since_ms));
    let mut rows = vec![
        ("role", store.role.word().to_owned()),
        ("state", format!("{}, for {since}", store.state)),
    ];
    rows.extend(store.poisoned.as_ref().map(|poison| {
        let text = format!("failed at {}: {}", poison.time, poison.reason);
        ("disk", text)
    }));
    rows.extend(store.reason.clone().map(|reason| ("reason", reason)));
    rows.extend(
        store
            .verified
            .as_ref()
            .map(|verified| ("verify", verified_text(verified))),
    );
    rows.extend(store.resync.map(|resync| ("resync", resync_text(&resync))));
    rows.extend(store.peer.as_ref().map(|peer| ("peer", peer_text(peer))));
    rows.extend(store.mount.clone().map(|mount| ("mounted at", mount)));
    rows.push(("operations", operations_text(store)));
    rows.push(("durability", durability_text(store.durability).to_owned()));
    rows.extend(store.space.map(|space| {
        let (free, total) = (bytes(space.available_bytes), bytes(space.total_bytes));
        ("space", format!("{free} free of {total}"))
    }));
    rows.push(("uuid", store.uuid.clone()));
    rows
}

fn verified_text(verified: &VerifiedStatus) -> String {
    if verified.identical {
        return format!("identical at {}", verified.time);
    }
    format!(
        "found {} differences at {}: {}",
        count(verified.differences_total),
        verified.time,
        verified.differences.join("; ")
    )
}

fn resync_text(resync: &ResyncStatus) -> String {
    format!(
        "{} of {} files done, {} of {} compared, {} sent",
        count(resync.files_done),
        count(resync.files_total),
        bytes(resync.bytes_done),
        bytes(resync.bytes_total),
        bytes(resync.bytes_sent)
    )
}

fn peer_text(peer: &PeerStatus) -> String {
    let connected = if peer.connected {
        "connected"
    } else {
        "NOT CONNECTED"
    };
    let encryption = match peer.encryption {
        Encryption::On => "encrypted",
        Encryption::Off => "NOT ENCRYPTED (authenticated)",
    };
    format!("{}, {connected}, {encryption}", peer.address)
}

fn operations_text(store: &DatastoreStatus) -> String {
    format!(
        "last {}; in flight {} writes, {} metadata; kept for recovery {} PAW, {} SAW",
        store.osn,
        count(store.writes_in_flight),
        count(store.metadata_in_flight),
        count(store.paw),
        count(store.saw)
    )
}

const fn durability_text(durability: Durability) -> &'static str {
    match durability {
        Durability::Posix => "posix: on stable storage when a program asks",
        Durability::Always => "always: every operation on stable storage before it is acknowledged",
    }
}

/// Returns a warning about files in the mount directory itself, which are not part of the datastore.
fn stray_warning(store: &DatastoreStatus) -> Option<String> {
    let stray = store.stray.as_ref()?;
    let more = if stray.more { " and more" } else { "" };
    Some(format!(
        "→ WARNING: the mount directory itself holds {}{more}, written while nothing was mounted there and not \
         part of the datastore; move these files away while the node is stopped",
        stray.names.join(", ")
    ))
}

/// Returns the meaning of a problem, and the next step; no line for a healthy datastore.
fn explanation(store: &DatastoreStatus) -> Vec<String> {
    if store.poisoned.is_some() {
        return poison_explanation(store);
    }
    if !store.started {
        return vec![
            match &store.reason {
                Some(_) => {
                    "→ nothing is mounted or mirrored; this node tries again from time to time"
                }
                None => "→ its store is being opened",
            }
            .to_owned(),
        ];
    }
    if store.in_sync && found_different(store).is_some() {
        return vec![
            "→ the nodes hold different data: see \"verify says DIFFERENT\" in docs/operations.md, and run \
             `lockstep verify` again after the repair"
                .to_owned(),
        ];
    }
    let Some(peer) = &store.peer else {
        return Vec::new();
    };
    if store.in_sync {
        return Vec::new();
    }
    vec![
        format!("→ {}", meaning(store)),
        format!("→ {}", next_step(store.role, peer)),
    ]
}

/// Explains to an operator which copy holds which changes.
const fn meaning(store: &DatastoreStatus) -> &'static str {
    match (store.service, store.on_peer_loss) {
        (ServiceStatus::None, _) if store.marked_in_sync => {
            "this copy is complete as of the moment when the connection was lost; the primary may have gone \
             on alone since"
        }
        (ServiceStatus::None, _) => {
            "this copy may be older than the primary's, or incomplete; do not use it alone"
        }
        (ServiceStatus::Mirrored, _) => {
            "new changes are on both nodes; older ones are still being copied to the secondary"
        }
        (ServiceStatus::WritesAlone, _) => {
            "new writes are on this node only; changes of names and attributes wait until the existing \
             names and attributes are copied to the secondary"
        }
        (ServiceStatus::Alone, OnPeerLoss::Continue) => {
            "new changes are on this node only (on_peer_loss = \"continue\")"
        }
        (ServiceStatus::Alone, OnPeerLoss::Freeze) => {
            "new changes are on this node only: on_peer_loss = \"freeze\" takes effect when the nodes \
             are in sync"
        }
        (ServiceStatus::Waiting, OnPeerLoss::Continue) => {
            "nothing is acknowledged until the nodes are in sync or this node goes on alone"
        }
        (ServiceStatus::Waiting, OnPeerLoss::Freeze) => {
            "nothing is acknowledged until the nodes are in sync (on_peer_loss = \"freeze\")"
        }
        (ServiceStatus::Refused, _) => "every change fails",
    }
}

/// Returns the next step of an operator for a datastore that is not in sync.
fn next_step(role: Role, peer: &PeerStatus) -> String {
    if peer.disk_failed {
        return "repair the disk of the other node: see the reason above".to_owned();
    }
    if peer.connected {
        return "the nodes are connected and get in sync by themselves".to_owned();
    }
    if peer.obstacle {
        return "a start of the other node does not help: solve the problem above; the nodes try again by \
                themselves"
            .to_owned();
    }
    match role {
        Role::Primary => format!(
            "make sure that the other node runs and can be reached at {}; it then catches up by itself",
            peer.address
        ),
        Role::Secondary => {
            "make sure that the primary runs, can reach the address in this node's `listen`, and is \
             configured as primary there; it then connects by itself"
                .to_owned()
        }
    }
}

/// Returns the meaning of a failed disk, and the next step.
fn poison_explanation(store: &DatastoreStatus) -> Vec<String> {
    let (meaning, flag) = match store.role {
        Role::Primary => (
            "reads work as far as the disk can be read; every change and every flush fails",
            " --accept-loss",
        ),
        Role::Secondary => ("this copy is not updated any more; do not use it", ""),
    };
    vec![
        format!("→ {meaning}"),
        format!(
            "→ repair or replace the disk, stop this node, and run `lockstep clear-poison {}{flag}`; \
             its --help explains the effect",
            store.name
        ),
    ]
}

#[cfg(test)]
mod tests {
    use lockstep_driver::report::PoisonStatus;

    use super::*;

    fn store(in_sync: bool, peer: bool) -> DatastoreStatus {
        DatastoreStatus {
            name: "alpha".to_owned(),
            uuid: "6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a001".to_owned(),
            role: Role::Primary,
            state: "synced and connected".to_owned(),
            service: if in_sync {
                ServiceStatus::Mirrored
            } else {
                ServiceStatus::Alone
            },
            in_sync,
            marked_in_sync: in_sync,
            since_ms: 65_000,
            reason: None,
            poisoned: None,
            peer: peer.then(|| PeerStatus {
                address: "10.0.0.2:7400".to_owned(),
                connected: in_sync,
                encryption: Encryption::On,
                disk_failed: false,
                obstacle: false,
            }),
            generation: 1,
            osn: "1.42".to_owned(),
            writes_in_flight: 0,
            metadata_in_flight: 0,
            kept_bytes: 0,
            paw: 0,
            saw: 0,
            mount: Some("/srv/alpha".to_owned()),
            durability: Durability::Posix,
            on_peer_loss: OnPeerLoss::Continue,
            space: None,
            resync: None,
            started: true,
            stray: None,
            verified: None,
        }
    }

    #[test]
    fn a_healthy_datastore_has_no_explanation() {
        let text = store_text(&store(true, true));
        assert!(text.starts_with("alpha: in sync\n"), "{text}");
        assert!(
            text.contains("state       synced and connected, for 1 min 5 s\n"),
            "{text}"
        );
        assert!(!text.contains('→'), "{text}");
    }

    #[test]
    fn a_datastore_that_is_not_in_sync_is_explained() {
        let text = store_text(&store(false, true));
        assert!(text.starts_with("alpha: NOT IN SYNC\n"), "{text}");
        assert!(text.contains("on this node only"), "{text}");
        assert!(text.contains("reached at 10.0.0.2:7400"), "{text}");
    }

    /// The text depends on the effect of a change, and on `on_peer_loss` only where the setting matters.
    #[test]
    fn the_text_says_where_new_changes_go() {
        use OnPeerLoss::{Continue, Freeze};
        use ServiceStatus::{Alone, Mirrored, None, Waiting, WritesAlone};
        let texts = [
            (Mirrored, Continue, "new changes are on both nodes"),
            (Mirrored, Freeze, "new changes are on both nodes"),
            (
                Alone,
                Continue,
                "new changes are on this node only (on_peer_loss",
            ),
            (
                Alone,
                Freeze,
                "new changes are on this node only: on_peer_loss",
            ),
            (WritesAlone, Freeze, "changes of names and attributes wait"),
            (
                Waiting,
                Continue,
                "nothing is acknowledged until the nodes are in sync or this node goes on alone",
            ),
            (
                Waiting,
                Freeze,
                "nothing is acknowledged until the nodes are in sync",
            ),
            (None, Freeze, "this copy may be older"),
        ];
        for (service, on_peer_loss, expected) in texts {
            let store = DatastoreStatus {
                service,
                on_peer_loss,
                ..store(false, true)
            };
            let text = store_text(&store);
            assert!(
                text.contains(expected),
                "{service:?} {on_peer_loss:?}: {text}"
            );
        }
    }

    #[test]
    fn a_complete_copy_on_a_secondary_is_reported() {
        let survivor = DatastoreStatus {
            role: Role::Secondary,
            service: ServiceStatus::None,
            marked_in_sync: true,
            ..store(false, true)
        };
        let text = store_text(&survivor);
        assert!(text.contains("complete as of"), "{text}");
        assert!(text.contains("can reach the address"), "{text}");
    }

    #[test]
    fn a_failed_disk_comes_before_everything_else() {
        for peer in [true, false] {
            let mut failed = store(true, peer);
            failed.poisoned = Some(PoisonStatus {
                reason: "cannot sync content/00/07: Input/output error (os error 5)".to_owned(),
                time: "2025-11-20T21:46:00Z".to_owned(),
            });
            assert!(!is_healthy(&failed));
            let text = store_text(&failed);
            assert!(text.starts_with("alpha: POISONED"), "{text}");
            let line =
                "disk        failed at 2025-11-20T21:46:00Z: cannot sync content/00/07: Input";
            assert!(text.contains(line), "{text}");
            assert!(text.contains("clear-poison alpha --accept-loss`"), "{text}");
            failed.role = Role::Secondary;
            assert!(store_text(&failed).contains("clear-poison alpha`"));
        }
    }

    #[test]
    fn a_failed_disk_of_the_other_node_does_not_go_away_by_itself() {
        let mut alone = store(false, true);
        alone.reason = Some("the secondary's disk failed".to_owned());
        alone.peer.as_mut().unwrap().disk_failed = true;
        let text = store_text(&alone);
        assert!(text.contains("repair the disk of the other node"), "{text}");
        assert!(!text.contains("by itself"), "{text}");
    }

    /// Two primaries, a wrong uuid, a full disk: a start of the other node would not help.
    #[test]
    fn an_obstacle_is_not_solved_by_starting_the_other_node() {
        let mut alone = store(false, true);
        alone.reason = Some("both nodes are configured as primary".to_owned());
        alone.peer.as_mut().unwrap().obstacle = true;
        let text = store_text(&alone);
        assert!(text.contains("solve the problem above"), "{text}");
        assert!(
            !text.contains("make sure that the other node runs"),
            "{text}"
        );
    }

    #[test]
    fn a_datastore_that_was_not_started_says_why() {
        let mut failed = store(false, true);
        failed.started = false;
        failed.reason = Some("mount point /srv/alpha does not exist".to_owned());
        assert!(!is_healthy(&failed));
        let text = store_text(&failed);
        assert!(text.starts_with("alpha: NOT STARTED\n"), "{text}");
        assert!(
            text.contains("reason      mount point /srv/alpha"),
            "{text}"
        );
        assert!(text.contains("tries again"), "{text}");
    }

    #[test]
    fn nodes_with_differences_are_not_healthy() {
        let mut different = store(true, true);
        let mut verified = VerifiedStatus {
            time: "2025-11-20T21:46:00Z".to_owned(),
            identical: false,
            differences_total: 2,
            differences: vec!["/a: size 1 here, 2 there".to_owned()],
        };
        different.verified = Some(verified.clone());
        assert!(!is_healthy(&different));
        let text = store_text(&different);
        assert!(
            text.starts_with("alpha: in sync, but NOT IDENTICAL\n"),
            "{text}"
        );
        assert!(
            text.contains("found 2 differences at 2025-11-20T21:46:00Z: /a: size"),
            "{text}"
        );
        verified.identical = true;
        different.verified = Some(verified);
        assert!(is_healthy(&different));
        assert!(store_text(&different).starts_with("alpha: in sync\n"));
    }

    #[test]
    fn the_progress_of_a_resync_is_shown() {
        let mut resyncing = store(false, true);
        assert!(!store_text(&resyncing).contains("resync"));
        resyncing.resync = Some(ResyncStatus {
            files_total: 3000,
            files_done: 12,
            bytes_total: 4 << 30,
            bytes_done: 1 << 30,
            bytes_sent: 5 << 20,
        });
        let text = store_text(&resyncing);
        let line =
            "resync      12 of 3,000 files done, 1.00 GiB of 4.00 GiB compared, 5.00 MiB sent";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn an_unmirrored_datastore_is_healthy_and_shown_as_unmirrored() {
        let single = store(false, false);
        assert!(is_healthy(&single));
        assert!(!is_healthy(&store(false, true)));
        assert!(
            store_text(&single).starts_with("alpha: not mirrored"),
            "{}",
            store_text(&single)
        );
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_existing_names() {
        let mut status = NodeStatus {
            node: "a".to_owned(),
            version: String::new(),
            pid: 1,
            fingerprint: None,
            datastores: vec![store(true, true)],
        };
        let error = keep_only(&mut status.clone(), "beta")
            .unwrap_err()
            .to_string();
        assert!(error.contains("name one of: alpha"), "{error}");
        assert!(keep_only(&mut status, "alpha").is_ok());
    }
}
