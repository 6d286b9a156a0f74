//! `lockstep health`: whether this node serves a datastore now, for a load balancer and for keepalived.
//!
//! Invariant: the command ends within its limit, whatever the node does. Only the node itself can answer yes.

use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use lockstep_driver::report::{DatastoreStatus, ServiceStatus};
use lockstepfs::config::{Choice, Role};
use lockstepfs::control::ControlClient;

use super::arguments::RunningNodeArgs;
use super::outcome::{FAILED, NO};
use super::status;
use super::terminal::{say, warn};

/// Longest wait for the answer without `--limit-ms`, in milliseconds.
const LIMIT_MS: u64 = 1000;
/// Pause between two questions while the answer is held.
const HOLD_POLL: Duration = Duration::from_millis(50);
/// An answer that became true less than the hold and this time ago is given at once: the run before may not have seen it.
const FRESH: Duration = Duration::from_millis(500);

/// Is this node the one that serves the datastore?
///
/// Asks the running node, and ends within a limit: a node that hangs, or does not run, does not serve. A primary serves
/// also while changes wait for the other node. One line says why or why not.
///
/// `lockstep keepalived-config` prints a configuration that runs this command. A load balancer runs the command on
/// each server, and sends clients where the exit code is 0.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HealthArgs {
    /// Name of the datastore
    name: String,

    #[command(flatten)]
    node: RunningNodeArgs,

    /// Longest wait for the answer, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = LIMIT_MS, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    limit_ms: u64,

    /// Hold the answer for so long, in milliseconds, unless it changes meanwhile
    ///
    /// For a caller that asks again and again: a change is told at once, and not with the next question. An answer that has
    /// just become true is given at once.
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=60_000))]
    hold_ms: u64,

    /// The cluster address that the caller moves by this answer, again and again
    ///
    /// A planned failover then waits until the address has left this server: the answer becomes no before the role changes.
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
}

const EXAMPLES: &str = "\
Examples:
  lockstep health data
  lockstep health data --limit-ms 300 --control /run/lockstep/a.sock

Exit codes: 0 this node serves the datastore; 1 it does not; 2 it could not be asked. For a load balancer
1 and 2 mean the same: send no client here.";

/// The answer of the node.
struct HealthAnswer {
    serves: bool,
    /// Time for which the answer holds, as far as known.
    age: Duration,
    line: String,
}

pub(crate) fn run(args: &HealthArgs) -> Result<ExitCode> {
    let begin = Instant::now();
    let hold = Duration::from_millis(args.hold_ms);
    end_after(hold + Duration::from_millis(args.limit_ms), args)?;
    let answer = held_answer(args, begin, hold)?;
    say(&answer.line)?;
    Ok(if answer.serves {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NO)
    })
}

/// Ends this process after `limit`. Neither a node that hangs nor a disk that hangs keeps the caller waiting.
fn end_after(limit: Duration, args: &HealthArgs) -> std::io::Result<()> {
    let line = format!(
        "error: {}: no answer within {} ms\n  cure: see whether the node hangs or its server is busy; --limit-ms allows more",
        args.name,
        limit.as_millis()
    );
    let watch = move || {
        sleep(limit);
        warn(&line);
        std::process::exit(i32::from(FAILED));
    };
    std::thread::Builder::new().spawn(watch)?;
    Ok(())
}

/// Asks until the answer changes, or the hold is over.
fn held_answer(args: &HealthArgs, begin: Instant, hold: Duration) -> Result<HealthAnswer> {
    let limit = Duration::from_millis(args.limit_ms);
    let mut client = ControlClient::connect_within(&args.node.socket()?, limit)?;
    if let Some(address) = args.address {
        // An older node does not know the call, and the status tells of all other troubles.
        let _ = client.follow_address(&args.name, address);
    }
    let first = ask(&mut client, &args.name)?;
    if first.age < hold + FRESH {
        return Ok(first);
    }
    let serves = first.serves;
    let mut answer = first;
    while answer.serves == serves && begin.elapsed() + HOLD_POLL <= hold {
        sleep(HOLD_POLL);
        answer = ask(&mut client, &args.name)?;
    }
    Ok(answer)
}

/// Whether the node at the control socket `socket` says within `limit` that it serves the datastore `name`.
pub(super) fn serves(socket: &Path, name: &str, limit: Duration) -> Result<bool> {
    let mut client = ControlClient::connect_within(socket, limit)?;
    Ok(ask(&mut client, name)?.serves)
}

fn ask(client: &mut ControlClient, name: &str) -> Result<HealthAnswer> {
    let (node, store) = status::of_datastore(client, name)?;
    Ok(answer(&node, &store))
}

/// Judges the status of a datastore on the node `node`.
fn answer(node: &str, store: &DatastoreStatus) -> HealthAnswer {
    let (serves, why) = judge(store);
    let name = &store.settings.name;
    let generation = store.work.generation;
    let verb = if serves { "serves" } else { "does not serve" };
    HealthAnswer {
        serves,
        age: Duration::from_millis(store.sync.service_since_ms),
        line: format!("{name}: node {node} {verb} (generation {generation}): {why}\n"),
    }
}

/// Whether the node serves, and why.
///
/// A primary that makes changes wait, or whose disk has failed, serves: no other node does, and programs can read.
pub(super) fn judge(store: &DatastoreStatus) -> (bool, String) {
    if !store.sync.started {
        let reason = store.sync.reason.as_deref();
        let why = reason.unwrap_or("its store is being opened");
        return (false, format!("the datastore is not started: {why}"));
    }
    if store.settings.role == Role::Secondary {
        let (role, state) = (store.settings.role.word(), &store.sync.state);
        return (false, format!("it is the {role} ({state})"));
    }
    let (serves, why) = match store.sync.service {
        ServiceStatus::Mirrored => (true, "changes go to both nodes"),
        ServiceStatus::Alone => (true, "changes are on this node only"),
        ServiceStatus::WritesAlone => (
            true,
            "writes are on this node only, changes of names wait for the other node",
        ),
        ServiceStatus::Waiting => (true, "changes wait for the other node"),
        ServiceStatus::Refused => (true, "reads only: the disk of this node has failed"),
        ServiceStatus::Undecided if store.witness.is_some() => (
            false,
            "the other node may have taken over: it has not answered for the time of the lease, or since the start of this node",
        ),
        ServiceStatus::Undecided => (
            false,
            "it was the primary, and has not met the other node since its start",
        ),
        ServiceStatus::None => (false, "its role is about to change"),
    };
    (serves, why.to_owned())
}

#[cfg(test)]
mod tests {
    use lockstep_driver::report::PoisonStatus;

    use super::super::status::tests::{store, witnessed};
    use super::*;

    fn line(store: &DatastoreStatus) -> (bool, String) {
        let answer = answer("a", store);
        (answer.serves, answer.line)
    }

    #[test]
    fn a_primary_serves_whether_or_not_its_peer_is_there() {
        let (serves, text) = line(&store(true, true));
        assert!(serves);
        assert_eq!(
            text,
            "alpha: node a serves (generation 1): changes go to both nodes\n"
        );
        for service in [
            ServiceStatus::Alone,
            ServiceStatus::WritesAlone,
            ServiceStatus::Waiting,
        ] {
            let mut store = store(false, true);
            store.sync.service = service;
            assert!(line(&store).0, "{service:?}");
        }
    }

    #[test]
    fn a_primary_with_a_failed_disk_serves_reads() {
        let mut store = store(false, true);
        store.sync.service = ServiceStatus::Refused;
        store.poisoned = Some(PoisonStatus {
            reason: "EIO".to_owned(),
            time: "2025-11-20T21:46:00Z".to_owned(),
        });
        let (serves, text) = line(&store);
        assert!(serves && text.contains("reads only"), "{text}");
    }

    /// The nodes may be in sync, and this node may have met the other one long ago.
    #[test]
    fn a_primary_whose_lease_is_over_does_not_serve() {
        let mut lapsed = witnessed(true, true, None);
        lapsed.sync.service = ServiceStatus::Undecided;
        let (serves, text) = line(&lapsed);
        assert!(!serves && text.contains("may have taken over"), "{text}");
        assert!(!text.contains("has not met"), "{text}");
    }

    #[test]
    fn a_node_that_may_not_serve_says_why() {
        let mut secondary = store(true, true);
        secondary.settings.role = Role::Secondary;
        // Also if the status were from the middle of a change of the role.
        for service in [ServiceStatus::None, ServiceStatus::Mirrored] {
            secondary.sync.service = service;
            let (serves, text) = line(&secondary);
            assert!(!serves && text.contains("it is the secondary"), "{text}");
        }
        for (service, why) in [
            (ServiceStatus::Undecided, "has not met the other node"),
            (ServiceStatus::None, "about to change"),
        ] {
            let mut primary = store(false, true);
            primary.sync.service = service;
            let (serves, text) = line(&primary);
            assert!(!serves && text.contains(why), "{text}");
        }
        let mut stopped = store(false, true);
        stopped.sync.started = false;
        stopped.sync.reason = Some("no disk".to_owned());
        let (serves, text) = line(&stopped);
        assert!(!serves && text.contains("not started: no disk"), "{text}");
    }
}
