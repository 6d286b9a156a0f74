//! `lockstep status`: shows whether both servers hold all data; if not, the reason and the next step.

pub(in crate::cli) mod cluster_text;
pub(in crate::cli) mod disk_text;
mod own_snapshots_text;
mod promotion;
pub(in crate::cli) mod readers_text;
pub(in crate::cli) mod resync_text;
mod scrub_text;
mod space_text;
mod trash_text;
pub(in crate::cli) mod witness_text;

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use lockstep_driver::report::{DatastoreStatus, PeerStatus, ServiceStatus, VerifiedStatus};
use lockstepfs::config::{Choice, Durability, Encryption, OnPeerLoss, Role};
use lockstepfs::control::{ControlClient, NodeStatus};

use crate::cli::arguments::RunningNodeArgs;
use crate::cli::outcome::NO;
use crate::cli::terminal::{count, duration, say, say_json};

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

    /// Show all times that are in force, too (with --json they are always there)
    #[arg(long, short)]
    verbose: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockstep status
  lockstep status data --json
  lockstep status --verbose
  lockstep status --control /run/lockstep/a.sock

Exit codes: 0 every datastore runs, and the mirrored ones are in sync; 1 a datastore does not run,
is not served or is not in sync, its witness does not answer, its
cluster address is not where the role is, a disk has failed, hangs or is full, its store was
moved, or the last verify found differences; 2 could not ask.
A running datastore without a peer is shown as not mirrored, and is no reason for exit code 1.";

pub(crate) fn run(args: &StatusArgs) -> Result<ExitCode> {
    let mut status = ControlClient::connect(&args.node.socket()?)?.status()?;
    if let Some(name) = &args.name {
        keep_only(&mut status, name)?;
    }
    if args.json {
        say_json(&status)?;
    } else {
        say(&text(&status, args.verbose))?;
    }
    let all_healthy = status.datastores.iter().all(is_healthy);
    Ok(if all_healthy {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NO)
    })
}

/// Asks a node for its name and the status of one of its datastores.
pub(in crate::cli) fn of_datastore(
    client: &mut ControlClient,
    name: &str,
) -> Result<(String, DatastoreStatus)> {
    let mut status = client.status()?;
    keep_only(&mut status, name)?;
    let store = status.datastores.pop();
    let store = store.with_context(|| format!("there is no datastore {name:?}"))?;
    Ok((status.node, store))
}

fn keep_only(status: &mut NodeStatus, name: &str) -> Result<()> {
    let names: Vec<_> = status
        .datastores
        .iter()
        .map(|store| store.settings.name.clone())
        .collect();
    status
        .datastores
        .retain(|store| store.settings.name == name);
    if status.datastores.is_empty() {
        bail!(
            "node {:?} has no datastore {name:?}\n  cure: name one of: {}",
            status.node,
            names.join(", ")
        );
    }
    Ok(())
}

/// Whether a datastore runs on a healthy disk, is served, and is in sync or deliberately not mirrored; and its witness, if it
/// has one, answers.
fn is_healthy(store: &DatastoreStatus) -> bool {
    store.sync.started
        && store.poisoned.is_none()
        && !disk_text::is_stuck(store)
        && found_different(store).is_none()
        && store.sync.service != ServiceStatus::Undecided
        && !witness_text::is_silent(store)
        && !space_text::is_full(store)
        && !cluster_text::is_wrong(store)
        && !needs_operator(store)
        && (store.sync.in_sync || store.peer.is_none())
}

/// Whether a datastore does all that it should, and has a reason all the same: an operator has to mend something before the node
/// is started again.
const fn needs_operator(store: &DatastoreStatus) -> bool {
    store.sync.started
        && store.sync.reason.is_some()
        && (store.sync.in_sync || store.peer.is_none())
}

/// Returns the last comparison, if it has found differences.
fn found_different(store: &DatastoreStatus) -> Option<&VerifiedStatus> {
    store
        .verified
        .as_ref()
        .filter(|verified| !verified.identical)
}

fn text(status: &NodeStatus, verbose: bool) -> String {
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
        if verbose {
            text.push_str(&witness_text::times(store));
        }
    }
    text
}

fn store_text(store: &DatastoreStatus) -> String {
    let mut text = format!("{}: {}\n", store.settings.name, headline(store));
    for (label, value) in rows(store) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {label:<11} {value}");
    }
    let space_step = space_text::step(store).map(str::to_owned);
    let disk_steps = disk_text::step(store).into_iter().chain(space_step);
    let disk_steps = disk_steps.map(|step| format!("→ {step}"));
    let helper_step = cluster_text::step(store).map(|step| format!("→ {step}"));
    let steps = disk_steps.chain(helper_step).chain(explanation(store));
    for line in steps.chain(stray_warning(store)) {
        let _ = writeln!(text, "  {line}");
    }
    text
}

fn headline(store: &DatastoreStatus) -> &'static str {
    if store.poisoned.is_some() {
        return "POISONED (the disk of this node has failed)";
    }
    if !store.sync.started {
        return "NOT STARTED";
    }
    if store.sync.disk_stall.is_some() {
        return "THE DISK OF THIS NODE HANGS";
    }
    if store.sync.in_sync && found_different(store).is_some() {
        return "in sync, but NOT IDENTICAL";
    }
    if store.sync.service == ServiceStatus::Undecided {
        return "NOT SERVED (undecided which node serves)";
    }
    match (&store.peer, store.sync.in_sync) {
        (None, _) if needs_operator(store) => "not mirrored, and NEEDS AN OPERATOR",
        (None, _) => "not mirrored (one copy only, as configured)",
        (Some(_), true) if witness_text::is_silent(store) => {
            "in sync, but the WITNESS DOES NOT ANSWER"
        }
        (Some(_), true) if space_text::is_full(store) => "in sync, but the DISK IS FULL",
        (Some(_), true) if needs_operator(store) => "in sync, but NEEDS AN OPERATOR",
        (Some(_), true) => "in sync",
        (Some(_), false) => "NOT IN SYNC",
    }
}

fn rows(store: &DatastoreStatus) -> Vec<(&'static str, String)> {
    let since = duration(Duration::from_millis(store.sync.since_ms));
    let mut rows = vec![
        ("role", store.settings.role.word().to_owned()),
        ("state", format!("{}, for {since}", store.sync.state)),
    ];
    rows.extend(store.poisoned.as_ref().map(|poison| {
        let text = format!("failed at {}: {}", poison.time, poison.reason);
        ("disk", text)
    }));
    rows.extend(disk_text::rows(store));
    rows.extend(store.sync.reason.clone().map(|reason| ("reason", reason)));
    rows.extend(
        store
            .verified
            .as_ref()
            .map(|verified| ("verify", verified_text(verified))),
    );
    rows.extend(scrub_text::rows(store));
    let resync = store.resync.as_ref().map(resync_text::row);
    rows.extend(resync.map(|resync| ("resync", resync)));
    rows.extend(resync_text::limits(store).map(|limits| ("limits", limits)));
    rows.extend(store.peer.as_ref().map(|peer| ("peer", peer_text(peer))));
    rows.extend(barrier_text(store).map(|barrier| ("barrier", barrier)));
    rows.extend(witness_text::row(store).map(|witness| ("witness", witness)));
    rows.extend(cluster_text::row(store).map(|address| ("address", address)));
    rows.extend(
        store
            .settings
            .mount
            .clone()
            .map(|mount| ("mounted at", mount)),
    );
    rows.extend(standby_text(store).map(|standby| ("standby", standby)));
    rows.push(("operations", operations_text(store)));
    rows.extend(slow_text(store).map(|text| ("slow", text)));
    rows.push((
        "durability",
        durability_text(store.settings.durability).to_owned(),
    ));
    rows.extend(readers_text::rows(store));
    rows.extend(store.space.map(|space| ("space", space_text::row(&space))));
    rows.extend(own_snapshots_text::rows(&store.sync.copy));
    rows.extend(
        store
            .trash
            .as_ref()
            .map(|trash| ("trash", trash_text::row(trash))),
    );
    rows.push(("uuid", store.settings.uuid.clone()));
    rows
}

/// Says that programs wait in the mount of this node, if some do.
pub(in crate::cli) fn standby_text(store: &DatastoreStatus) -> Option<String> {
    let waiting = store.work.waiting_requests;
    (waiting > 0).then(|| {
        format!(
            "programs wait here until this node serves: {} requests",
            count(waiting)
        )
    })
}

fn verified_text(verified: &VerifiedStatus) -> String {
    if verified.identical {
        let of = if verified.only_touched {
            " (what the last resync has touched)"
        } else {
            ""
        };
        let again = match verified.sent_again {
            0 => String::new(),
            inodes => format!(
                "; {} differed at the end of a resync, which has sent them again: {}",
                count(inodes),
                verified.differences.join("; ")
            ),
        };
        return format!("identical at {}{of}{again}", verified.time);
    }
    format!(
        "found {} differences at {}: {}",
        count(verified.differences_total),
        verified.time,
        verified.differences.join("; ")
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
        store.work.osn,
        count(store.work.writes_in_flight),
        count(store.work.metadata_in_flight),
        count(store.work.paw),
        count(store.work.saw)
    )
}

/// Says what a loss of power of one server costs.
fn barrier_text(store: &DatastoreStatus) -> Option<String> {
    let since = Duration::from_millis(store.sync.barrier_since_ms?);
    let since = duration(since);
    let rest = match store.resync {
        Some(_) => ", and what was left of this one then",
        None => "",
    };
    Some(format!(
        "{since} ago; if one server loses its power, a resync compares what was written since{rest}"
    ))
}

/// The metadata operation that takes long, if there is one.
pub(in crate::cli) fn slow_text(store: &DatastoreStatus) -> Option<String> {
    let slow = store.work.slow_operation.as_ref()?;
    Some(format!(
        "{} of inode {}, for {}; later changes of names wait for it",
        slow.operation,
        slow.inode,
        duration(Duration::from_millis(slow.since_ms))
    ))
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
    if !store.sync.started {
        return vec![
            match &store.sync.reason {
                Some(_) => {
                    "→ nothing is mounted or mirrored; this node tries again from time to time"
                }
                None => "→ its store is being opened",
            }
            .to_owned(),
        ];
    }
    if store.sync.in_sync && found_different(store).is_some() {
        return vec![format!(
            "→ the nodes hold different data: run `lockstep verify {} --deep --repair`, which names the wrong side and heals \
                 it; for what it cannot heal see \"verify says DIFFERENT\" in docs/operations/disks.md",
            store.settings.name
        )];
    }
    let Some(peer) = &store.peer else {
        return Vec::new();
    };
    let witness_step = witness_text::step(store).map(str::to_owned);
    let steps = if store.sync.in_sync && store.sync.service != ServiceStatus::Undecided {
        Vec::new()
    } else {
        let mut steps = vec![meaning(store)];
        steps.extend(next_steps(store, peer));
        steps
    };
    steps
        .into_iter()
        .chain(witness_step)
        .map(|line| format!("→ {line}"))
        .collect()
}

/// Explains to an operator which copy holds which changes.
fn meaning(store: &DatastoreStatus) -> String {
    promotion::age(store).unwrap_or_else(|| service_meaning(store).to_owned())
}

const fn service_meaning(store: &DatastoreStatus) -> &'static str {
    let has_witness = store.witness.is_some();
    match (store.sync.service, store.settings.on_peer_loss) {
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
        (ServiceStatus::Waiting, OnPeerLoss::Continue) if has_witness => {
            "nothing is acknowledged until the nodes are in sync, or the witness lets this node go on alone"
        }
        (ServiceStatus::Waiting, OnPeerLoss::Continue) => {
            "nothing is acknowledged until the nodes are in sync or this node goes on alone"
        }
        (ServiceStatus::Waiting, OnPeerLoss::Freeze) => {
            "nothing is acknowledged until the nodes are in sync (on_peer_loss = \"freeze\")"
        }
        (ServiceStatus::Refused, _) => "every change fails",
        (ServiceStatus::Undecided, OnPeerLoss::Freeze) if has_witness => {
            "this node serves nothing at the moment, because the other node may have taken over: it serves when it has \
             met the other node (on_peer_loss = \"freeze\")"
        }
        (ServiceStatus::Undecided, _) if has_witness => {
            "this node serves nothing at the moment, because the other node may have taken over: it serves when it has \
             met the other node, or when the witness says that no other node serves"
        }
        (ServiceStatus::Undecided, _) => {
            "this node serves nothing until it has met the other node: an operator may have promoted that node, \
             or that node may hold newer changes after a power loss"
        }
    }
}

/// Returns the next steps of an operator for a datastore that is not in sync.
fn next_steps(store: &DatastoreStatus, peer: &PeerStatus) -> Vec<String> {
    let mut steps = vec![peer_step(store, peer)];
    if !peer.connected {
        steps.extend(promotion::step(store));
    }
    steps
}

/// Returns the next step that concerns the other node.
fn peer_step(store: &DatastoreStatus, peer: &PeerStatus) -> String {
    if peer.disk_failed {
        return "repair the disk of the other node: see the reason above".to_owned();
    }
    if peer.connected {
        return match store.sync.service {
            ServiceStatus::Undecided => {
                "the nodes are connected: this node serves again when the other node answers"
            }
            _ => "the nodes are connected and get in sync by themselves",
        }
        .to_owned();
    }
    if peer.obstacle {
        return "a start of the other node does not help: solve the problem above; the nodes try again by \
                themselves"
            .to_owned();
    }
    let then = match (store.sync.service, store.settings.role) {
        (ServiceStatus::Undecided, _) => "the nodes then decide which of them serves",
        (_, Role::Primary) => "it then catches up by itself",
        (_, Role::Secondary) => "the nodes then connect by themselves",
    };
    format!(
        "make sure that the other node runs and can be reached at {}; {then}",
        peer.address
    )
}

/// Returns the meaning of a failed disk, and the next step.
fn poison_explanation(store: &DatastoreStatus) -> Vec<String> {
    let name = &store.settings.name;
    let repair = |flag: &str| {
        format!(
            "→ repair or replace the disk, stop this node, and run `lockstep clear-poison {name}{flag}`; its --help \
             explains the effect"
        )
    };
    let reads = "→ reads work as far as the disk can be read; every change and every flush fails";
    let then = format!(
        "then `lockstep clear-poison {name}` here: see \"A disk has failed\" in docs/operations/disks.md"
    );
    match (store.settings.role, &store.witness) {
        (Role::Secondary, _) => vec![
            "→ this copy is not updated any more; do not use it".to_owned(),
            repair(""),
        ],
        (Role::Primary, _) if !store.is_peer_fit() => {
            vec![reads.to_owned(), repair(" --accept-loss")]
        }
        (Role::Primary, Some(witness)) if !witness.answers => vec![
            reads.to_owned(),
            format!(
                "→ the other node has every acknowledged change, and cannot take over without the witness: bring the witness \
                 back; only if the witness is lost for good, stop this node, and run `lockstep promote {name} \
                 --force-data-loss` there; {then}"
            ),
        ],
        (Role::Primary, Some(witness)) if witness.protects => vec![
            reads.to_owned(),
            format!(
                "→ the other node has every acknowledged change, and takes over by itself; {then}"
            ),
        ],
        (Role::Primary, _) => {
            let flag = promotion::flag(store);
            vec![
                reads.to_owned(),
                format!(
                    "→ the other node has every acknowledged change: stop this node, and run `lockstep promote {name}{flag}` \
                     there; {then}"
                ),
            ]
        }
    }
}

#[cfg(test)]
pub(in crate::cli) mod tests;
