//! `lockstep health`: whether this node serves a datastore now, for a load balancer and for keepalived.
//!
//! Invariant: the command ends within its limit, also if the node hangs. Only the node itself can answer yes, or has done so
//! for the time of its restart (`grace`).

mod grace;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use lockstep_driver::report::{DatastoreStatus, ServiceStatus};
use lockstepfs::config::{Choice, Role};
use lockstepfs::control::ControlClient;

use crate::cli::arguments::RunningNodeArgs;
use crate::cli::inspect::status::{self, cluster_text};
use crate::cli::outcome::{FAILED, NO};
use crate::cli::terminal::{say, warn};
use grace::Grace;

/// Longest wait for the answer without `--limit-ms`, in milliseconds.
const LIMIT_MS: u64 = 1000;
/// Pause between two questions while the answer is held.
const HOLD_POLL: Duration = Duration::from_millis(50);
/// An answer that became true less than the hold and this time ago is given at once: the run before may not have seen it.
const FRESH: Duration = Duration::from_millis(500);
/// The next run has looked by then. A grace that is over before that is awaited: so the caller hears of its end at once.
const NEXT_LOOK: Duration = Duration::from_millis(500);

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
    /// just become true is given at once. A node that restarts goes on serving for this caller while no other node can
    /// serve, if its mount outlives the process.
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=60_000))]
    hold_ms: u64,

    /// The cluster address that the caller moves by this answer, again and again
    ///
    /// A planned failover then waits until the address has left this server: the answer becomes no before the role changes.
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,

    /// The NFS server behind the cluster address belongs to the service: a node whose NFS server gives no answer for 20 s does
    /// not serve
    ///
    /// The answer becomes yes again when the address has left. keepalived then starts the NFS server anew, if its
    /// configuration has `--ganesha`.
    #[arg(long, requires = "address")]
    nfs: bool,
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
    /// The node is away, and this is left of its grace.
    grace: Option<Duration>,
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

/// Asks until the answer changes, or the hold is over. The end of a grace that is near is awaited, too.
fn held_answer(args: &HealthArgs, begin: Instant, hold: Duration) -> Result<HealthAnswer> {
    let mut questions = Questions::new(args, hold)?;
    let outcome = hold_answer(&mut questions, begin, hold);
    questions.leave_grace(outcome.as_ref().is_ok_and(|answer| answer.serves));
    outcome
}

fn hold_answer(
    questions: &mut Questions<'_>,
    begin: Instant,
    hold: Duration,
) -> Result<HealthAnswer> {
    // Only a run that has answered yes leaves a grace: then the caller need not hear of a restart.
    let is_known = questions.grace.is_some();
    let first = questions.ask()?;
    let is_news = first.age < hold + FRESH && !(is_known && first.serves);
    if is_news {
        return Ok(first);
    }
    let serves = first.serves;
    let mut answer = first;
    while answer.serves == serves
        && (begin.elapsed() + HOLD_POLL <= hold
            || answer.grace.is_some_and(|left| left < NEXT_LOOK))
    {
        sleep(HOLD_POLL);
        answer = questions.ask()?;
    }
    Ok(answer)
}

/// The questions of one run.
struct Questions<'a> {
    args: &'a HealthArgs,
    socket: PathBuf,
    limit: Duration,
    client: Option<ControlClient>,
    /// The file with the grace for the next run, if this run gives one.
    file: Option<PathBuf>,
    grace: Option<Grace>,
    /// The longest grace of any node, or of this one.
    longest: Duration,
}

impl<'a> Questions<'a> {
    /// The questions of a run that holds its answer. A run without a hold tells what is now, and gives no grace.
    fn new(args: &'a HealthArgs, hold: Duration) -> Result<Self> {
        let socket = args.node.socket()?;
        let file = (!hold.is_zero()).then(|| grace::file(&socket, &args.name));
        Ok(Self {
            args,
            limit: Duration::from_millis(args.limit_ms),
            longest: args.node.longest_restart(&args.name),
            client: None,
            grace: file.as_deref().and_then(Grace::read),
            file,
            socket,
        })
    }

    /// Asks the node. While a node is away that was to serve, its grace is the answer.
    fn ask(&mut self) -> Result<HealthAnswer> {
        let asked_ms = grace::moment_ms();
        let answered = self.ask_node();
        if let Ok((_, store)) = &answered
            && !may_be_restarting(store)
        {
            self.grace = Grace::of(store, asked_ms);
        } else if let Some(left) = self.left() {
            return Ok(self.away(left));
        }
        let (node, store) = answered?;
        Ok(self.with_helpers(answer(&node, &store), &store))
    }

    /// A node that serves with an NFS server that hangs does not serve for this caller.
    fn with_helpers(&self, answer: HealthAnswer, store: &DatastoreStatus) -> HealthAnswer {
        if !(answer.serves && self.args.nfs && cluster_text::nfs_hangs(store)) {
            return answer;
        }
        let name = &self.args.name;
        HealthAnswer {
            serves: false,
            line: format!("{name}: the node serves, but the NFS server gives no answer\n"),
            ..answer
        }
    }

    fn left(&self) -> Option<Duration> {
        self.grace.as_ref()?.left(self.longest)
    }

    fn ask_node(&mut self) -> Result<(String, DatastoreStatus)> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => self.connect()?,
        };
        let answered = status::of_datastore(&mut client, &self.args.name)?;
        self.client = Some(client);
        Ok(answered)
    }

    fn connect(&self) -> Result<ControlClient> {
        let left = self.left();
        let limit = left.map_or(self.limit, |left| left.max(HOLD_POLL).min(self.limit));
        let mut client = ControlClient::connect_within(&self.socket, limit)?;
        if let Some(address) = self.args.address {
            // An older node does not know the call, and the status tells of all other troubles.
            let _ = client.follow_address(&self.args.name, address, self.args.nfs);
        }
        Ok(client)
    }

    /// Leaves the grace to the next run, if this one answers yes.
    fn leave_grace(&self, serves: bool) {
        let Some(file) = &self.file else { return };
        match self.grace.as_ref().filter(|_| serves) {
            Some(grace) => grace.write(file),
            None => grace::remove(file),
        }
    }

    fn away(&self, left: Duration) -> HealthAnswer {
        let (name, left_ms) = (&self.args.name, left.as_millis());
        HealthAnswer {
            serves: true,
            age: Duration::MAX,
            grace: Some(left),
            line: format!(
                "{name}: this node is away or has just restarted; no other node serves within {left_ms} ms\n"
            ),
        }
    }
}

/// Whether a node that does not serve may have served before a restart, and may serve again. Before its store is open, a node
/// does not know its role.
fn may_be_restarting(store: &DatastoreStatus) -> bool {
    let is_primary = store.settings.role == Role::Primary;
    !store.sync.started || is_primary && store.sync.service == ServiceStatus::Undecided
}

/// Whether the node at the control socket `socket` says within `limit` that it serves the datastore `name`, and its NFS server
/// does not hang.
pub(in crate::cli) fn serves(socket: &Path, name: &str, limit: Duration) -> Result<bool> {
    let mut client = ControlClient::connect_within(socket, limit)?;
    let (_, store) = status::of_datastore(&mut client, name)?;
    Ok(judge(&store).0 && !cluster_text::nfs_hangs(&store))
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
        grace: None,
        line: format!("{name}: node {node} {verb} (generation {generation}): {why}\n"),
    }
}

/// Whether the node serves, and why.
///
/// A primary that makes changes wait, or whose disk has failed, serves: no other node does, and programs can read.
pub(in crate::cli) fn judge(store: &DatastoreStatus) -> (bool, String) {
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

    use super::*;
    use crate::cli::inspect::status::tests::{store, witnessed};

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
        let mut expired = witnessed(true, true, None);
        expired.sync.service = ServiceStatus::Undecided;
        let (serves, text) = line(&expired);
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
