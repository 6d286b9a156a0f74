//! `lockstep playground`: both nodes of a datastore on this machine, as separate processes.
//!
//! For trying things out: the demo, the tests and the benchmarks stand on it. It starts the nodes,
//! says `ready`, and stops everything when it is asked to. In between it does nothing: a node that
//! is killed stays dead until somebody runs its `command` again.
//!
//! Invariants: whatever it started or mounted is gone when it ends, unless it is itself killed by
//! SIGKILL; a directory that holds anything else is never touched.

mod description;
mod layout;
mod mounts;
mod ports;
mod process;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use lockstep_driver::report::DatastoreStatus;
use lockstep_link::DelayProxy;
use lockstepfs::config::{Choice, Durability, Encryption, OnPeerLoss, Role};
use lockstepfs::control::ControlClient;
use lockstepfs::signals::stop_signals;
use signal_hook::consts::SIGCHLD;
use signal_hook::iterator::Signals;

use crate::cli::{chain, one_of, say};
use layout::{Layout, NewRoot, NodePlan};
use process::NodeProcess;

/// Name of the datastore in every playground.
pub(crate) const DATASTORE: &str = "playground";

/// How long the nodes may take until everything is mounted and in sync.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// How often they are asked.
const READY_INTERVAL: Duration = Duration::from_millis(50);
/// How long a node may take to stop before it is killed.
const STOP_GRACE: Duration = Duration::from_secs(20);

/// Run both nodes on this machine, to try things out
///
/// Starts a primary and a secondary as two processes on loopback addresses, mounts the datastore,
/// waits until it is in sync, writes DIR/playground.json (mount, and for each node its pid, paths
/// and the command that starts it again) and prints the single line `ready`. SIGTERM, SIGINT or
/// a closed terminal stops everything. A DIR that holds an earlier playground carries on with its data. Needs root
/// and /dev/fuse, for the mount.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PlaygroundArgs {
    /// Directory for everything: stores, mount, logs
    #[arg(long)]
    dir: PathBuf,

    /// The same file system unmirrored: one node, for comparison
    #[arg(long)]
    no_replica: bool,

    /// Delay between the nodes, there and back together, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "no_replica",
          value_parser = clap::value_parser!(u64).range(..=10_000))]
    peer_delay_ms: u64,

    #[command(flatten)]
    tuning: TuningArgs,
}

/// What tests and benchmarks turn.
#[derive(Debug, Args)]
struct TuningArgs {
    /// How long acknowledgements wait for a lost peer
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000,
        hide_short_help = true
    )]
    pause_limit_ms: u64,

    /// When acknowledged writes are on stable storage
    #[arg(long, value_parser = one_of::<Durability>(), default_value = Durability::default().word(), hide_short_help = true)]
    durability: Durability,

    /// What happens when the peer stays away
    #[arg(long, value_parser = one_of::<OnPeerLoss>(), default_value = OnPeerLoss::default().word(), hide_short_help = true)]
    on_peer_loss: OnPeerLoss,

    /// Whether the bytes between the nodes are encrypted
    #[arg(long, value_parser = one_of::<Encryption>(), default_value = Encryption::default().word(), hide_short_help = true)]
    encryption: Encryption,

    /// Processors each node runs on, such as `a=0,b=1`
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_cpu, hide_short_help = true)]
    node_cpus: Vec<(String, usize)>,

    /// What the nodes log
    #[arg(
        long,
        value_name = "FILTER",
        default_value = "info",
        hide_short_help = true
    )]
    node_log: String,

    /// Program to run as a node
    #[arg(long, value_name = "FILE", hide = true)]
    node_program: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  lockstep playground --dir /tmp/play
  lockstep playground --dir /tmp/play --peer-delay-ms 5
  lockstep status --control /tmp/play/a/control.sock

Exit codes: 0 stopped as asked, 2 could not start (then everything is cleaned up).";

fn parse_cpu(text: &str) -> Result<(String, usize), String> {
    let wrong = || format!("{text:?} is not NODE=PROCESSOR, such as a=0");
    let (name, cpu) = text.split_once('=').ok_or_else(wrong)?;
    let cpu = cpu.parse().map_err(|_| wrong())?;
    if !layout::NAMES.contains(&name) {
        return Err(format!(
            "there is no node {name:?} here; the nodes are a and b"
        ));
    }
    Ok((name.to_owned(), cpu))
}

/// What a playground is to be.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Where everything goes.
    pub(crate) dir: PathBuf,
    /// Whether there is a secondary.
    pub(crate) replica: bool,
    /// Delay between the nodes, there and back together.
    pub(crate) round_trip: Duration,
    /// How long acknowledgements wait for a lost peer.
    pub(crate) pause_limit: Duration,
    /// When acknowledged writes are on stable storage.
    pub(crate) durability: Durability,
    /// What happens when the peer stays away.
    pub(crate) on_peer_loss: OnPeerLoss,
    /// Whether the bytes between the nodes are encrypted.
    pub(crate) encryption: Encryption,
    /// Processors of each node that is to be kept on some.
    pub(crate) cpus: BTreeMap<String, Vec<usize>>,
    /// What the nodes log.
    pub(crate) log: String,
    /// Program to run as a node.
    pub(crate) program: PathBuf,
}

impl Options {
    /// A mirrored playground in `dir` with the defaults of the configuration.
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        Ok(Self {
            dir: dir.to_owned(),
            replica: true,
            round_trip: Duration::ZERO,
            pause_limit: lockstepfs::config::PAUSE_LIMIT_DEFAULT,
            durability: Durability::default(),
            on_peer_loss: OnPeerLoss::default(),
            encryption: Encryption::default(),
            cpus: BTreeMap::new(),
            log: "info".to_owned(),
            program: std::env::current_exe().context("cannot find this program's own file")?,
        })
    }

    fn from_args(args: &PlaygroundArgs) -> Result<Self> {
        let tuning = &args.tuning;
        let mut options = Self {
            replica: !args.no_replica,
            round_trip: Duration::from_millis(args.peer_delay_ms),
            pause_limit: Duration::from_millis(tuning.pause_limit_ms),
            durability: tuning.durability,
            on_peer_loss: tuning.on_peer_loss,
            encryption: tuning.encryption,
            log: tuning.node_log.clone(),
            ..Self::new(&args.dir)?
        };
        if let Some(program) = &tuning.node_program {
            options.program.clone_from(program);
        }
        for (name, cpu) in &tuning.node_cpus {
            options.cpus.entry(name.clone()).or_default().push(*cpu);
        }
        Ok(options)
    }
}

pub(crate) fn run(args: &PlaygroundArgs) -> Result<ExitCode> {
    let options = Options::from_args(args)?;
    // Before anything is started, so that no signal finds it half-started and unwatched.
    let mut signals = Signals::new([stop_signals(), vec![SIGCHLD]].concat())?;
    let mut asked_to_stop = || signals.pending().any(|signal| signal != SIGCHLD);
    let Some(mut playground) = Playground::start(&options, &mut asked_to_stop)? else {
        return Ok(ExitCode::SUCCESS);
    };
    say("ready\n")?;
    for signal in signals.forever() {
        playground.reap();
        if signal != SIGCHLD {
            break;
        }
    }
    playground.stop()?;
    Ok(ExitCode::SUCCESS)
}

/// Nodes that run, until it is stopped or dropped.
pub(crate) struct Playground {
    layout: Layout,
    nodes: Vec<NodeProcess>,
    /// Delays what passes between the nodes as long as they exist.
    _proxies: Vec<DelayProxy>,
}

impl Playground {
    /// Starts everything and waits until it is mounted and in sync; `None` if `asked_to_stop` says
    /// so before.
    pub(crate) fn start(
        options: &Options,
        asked_to_stop: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Self>> {
        let made = NewRoot::look(&options.dir)?;
        let started = Self::start_in(options, asked_to_stop);
        if started.is_err() {
            made.remove();
        }
        started
    }

    fn start_in(
        options: &Options,
        asked_to_stop: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Self>> {
        let layout = Layout::prepare(options)?;
        let proxies = layout.start_proxies(options.round_trip)?;
        let mut playground = Self {
            layout,
            nodes: Vec::new(),
            _proxies: proxies,
        };
        // The secondary first, so that the primary finds it at its first attempt.
        for plan in playground.layout.nodes.iter().rev() {
            playground
                .nodes
                .insert(0, NodeProcess::start(plan, options)?);
        }
        if !playground.wait_ready(asked_to_stop)? {
            return Ok(None);
        }
        playground.describe()?;
        Ok(Some(playground))
    }

    /// Directory where the datastore is mounted.
    pub(crate) fn mount(&self) -> &Path {
        &self.layout.mount
    }

    /// The node of that role, if this playground has one.
    pub(crate) fn node(&mut self, role: Role) -> Result<&mut NodeProcess> {
        let node = self.nodes.iter_mut().find(|node| node.plan.role == role);
        node.with_context(|| format!("there is no {role:?} here"))
    }

    /// What the primary says of the datastore.
    pub(crate) fn status(&self) -> Result<DatastoreStatus> {
        let primary = self.layout.nodes.first().context("there is no node")?;
        datastore_status(primary)
    }

    /// A connection to the primary's control socket.
    pub(crate) fn client(&self) -> Result<ControlClient> {
        let primary = self.layout.nodes.first().context("there is no node")?;
        Ok(ControlClient::connect(&primary.control)?)
    }

    /// Kills all nodes from any thread, so that whatever waits for them returns with an error.
    pub(crate) fn killer(&self) -> impl Fn() + Send + 'static {
        let nodes = self.layout.nodes.iter();
        let sockets: Vec<PathBuf> = nodes.map(|node| node.control.clone()).collect();
        move || {
            for socket in &sockets {
                process::kill_listener(socket);
            }
        }
    }

    /// Waits until the primary says that the datastore is mounted and, if mirrored, in sync.
    fn wait_ready(&mut self, asked_to_stop: &mut dyn FnMut() -> bool) -> Result<bool> {
        let deadline = Instant::now() + READY_TIMEOUT;
        while !self.is_ready() {
            if asked_to_stop() {
                return Ok(false);
            }
            self.report_dead()?;
            if Instant::now() > deadline {
                bail!(
                    "the nodes are not ready after {} s{}",
                    READY_TIMEOUT.as_secs(),
                    self.all_log_tails()
                );
            }
            std::thread::sleep(READY_INTERVAL);
        }
        Ok(true)
    }

    fn is_ready(&self) -> bool {
        let Some((primary, others)) = self.layout.nodes.split_first() else {
            return false;
        };
        let answer = |plan: &NodePlan| ControlClient::connect(&plan.control).is_ok();
        datastore_status(primary).is_ok_and(|status| status.in_sync || status.peer.is_none())
            && mounts::is_mounted(&self.layout.mount).unwrap_or(false)
            && others.iter().all(answer)
    }

    fn report_dead(&mut self) -> Result<()> {
        for node in &mut self.nodes {
            if let Some(status) = node.exited() {
                bail!(
                    "node {} stopped before it was ready ({status}){}",
                    node.plan.name,
                    node.plan.log_tail()
                );
            }
        }
        Ok(())
    }

    fn all_log_tails(&self) -> String {
        self.layout.nodes.iter().map(NodePlan::log_tail).collect()
    }

    fn describe(&self) -> Result<()> {
        description::write(&self.layout, &self.nodes)
    }

    /// Takes note of nodes that have died, so that none stays behind as a zombie.
    pub(crate) fn reap(&mut self) {
        for node in &mut self.nodes {
            node.exited();
        }
    }

    /// Stops the nodes, the primary first, and unmounts what is left.
    pub(crate) fn stop(&mut self) -> Result<()> {
        for node in &mut self.nodes {
            node.stop(STOP_GRACE)?;
        }
        self.layout.unmount()
    }
}

impl Drop for Playground {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            let _ = writeln!(
                std::io::stderr(),
                "error: the playground could not be cleaned up: {}",
                chain(&error)
            );
        }
    }
}

/// What the node of this plan says of the playground's datastore.
fn datastore_status(plan: &NodePlan) -> Result<DatastoreStatus> {
    let status = ControlClient::connect(&plan.control)?.status()?;
    let mut datastores = status.datastores.into_iter();
    datastores.next().context("the node has no datastore")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_given_by_node() {
        assert_eq!(parse_cpu("a=0"), Ok(("a".to_owned(), 0)));
        for wrong in ["a", "a=", "a=x", "c=1", "=1"] {
            assert!(parse_cpu(wrong).is_err(), "{wrong}");
        }
    }
}
