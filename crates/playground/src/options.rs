//! The command line of `lockstep playground`, and the options of a playground.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use lockstep_config::settings;
use lockstep_types::settings::{Choice, Durability, Encryption, OnPeerLoss};

use crate::program::Program;

/// The nodes of a playground, the primary first.
pub(crate) const NODE_NAMES: [&str; 2] = ["a", "b"];

/// A node of a playground, with its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerName {
    /// Begins as the primary.
    A,
    /// Begins as the secondary.
    B,
}

impl ServerName {
    pub(crate) const ALL: [Self; 2] = [Self::A, Self::B];

    /// The number of the node.
    pub(crate) const fn number(self) -> usize {
        self as usize
    }

    /// The name of the node.
    pub(crate) fn word(self) -> &'static str {
        let [a, b] = NODE_NAMES;
        if self == Self::A { a } else { b }
    }

    /// The other node.
    pub(crate) fn other(self) -> Self {
        if self == Self::A { Self::B } else { Self::A }
    }
}

/// Time from the loss of the connection to the takeover, in a playground with a witness: the default of the configuration.
pub(crate) const FAILOVER_AFTER_MS: u64 = 1_500;

/// Run both nodes on this machine, to try things out
///
/// Starts a primary and a secondary as two processes on loopback addresses, mounts the datastore,
/// waits until it is in sync, writes DIR/playground.json (mount, and for each node its pid, paths
/// and the command that starts it again) and prints the single line `ready`. SIGTERM, SIGINT or
/// a closed terminal stops everything. A DIR that holds an earlier playground carries on with its data. Needs root
/// and /dev/fuse, for the mount.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PlaygroundArgs {
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

/// The options that only tests and benchmarks need.
#[derive(Debug, Args)]
struct TuningArgs {
    /// With a witness, and a holder of each mount: the nodes fail over by themselves
    #[arg(long, hide_short_help = true)]
    witness: bool,

    /// How long acknowledgements wait for a lost peer
    #[arg(
        long,
        value_name = "N",
        default_value_t = settings::PAUSE_LIMIT.default,
        hide_short_help = true
    )]
    pause_limit_ms: u64,

    /// When acknowledged writes are on stable storage
    #[arg(long, value_parser = words::<Durability>(), default_value = Durability::default().word(), hide_short_help = true)]
    durability: Durability,

    /// Behaviour when the peer stays away
    #[arg(long, value_parser = words::<OnPeerLoss>(), default_value = OnPeerLoss::default().word(), hide_short_help = true)]
    on_peer_loss: OnPeerLoss,

    /// Whether the bytes between the nodes are encrypted
    #[arg(long, value_parser = words::<Encryption>(), default_value = Encryption::default().word(), hide_short_help = true)]
    encryption: Encryption,

    /// Processors each node runs on, such as `a=0,b=1`
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_cpu, hide_short_help = true)]
    node_cpus: Vec<(String, usize)>,

    /// Log filter of the nodes
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

/// Takes the words of a setting.
fn words<T: Choice + Send + Sync>() -> impl TypedValueParser<Value = T> {
    let words = T::ALL.iter().map(|(_, word)| *word);
    // The first parser rejects all other words.
    PossibleValuesParser::new(words).try_map(|word| T::find(&word).ok_or("no such word"))
}

fn parse_cpu(text: &str) -> Result<(String, usize), String> {
    let wrong = || format!("{text:?} is not NODE=PROCESSOR, such as a=0");
    let (name, cpu) = text.split_once('=').ok_or_else(wrong)?;
    let cpu = cpu.parse().map_err(|_| wrong())?;
    if !NODE_NAMES.contains(&name) {
        return Err(format!(
            "there is no node {name:?} here; the nodes are a and b"
        ));
    }
    Ok((name.to_owned(), cpu))
}

/// The options of a playground that fails over by itself: it has a witness, and a holder of each mount.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterOptions {
    /// Time from the loss of the connection to the takeover, in milliseconds.
    pub(crate) failover_after_ms: u64,
    /// Whether a proxy stands on each way of the network, to cut a node off.
    pub(crate) can_isolate: bool,
}

/// The options of a playground.
#[derive(Clone, Debug)]
pub(crate) struct PlaygroundOptions {
    /// Directory for everything.
    pub(crate) dir: PathBuf,
    /// Whether there is a secondary.
    pub(crate) replica: bool,
    /// Delay between the nodes, there and back together.
    pub(crate) round_trip: Duration,
    /// How long acknowledgements wait for a lost peer, in milliseconds.
    pub(crate) pause_limit_ms: u64,
    /// The parts of a cluster that fails over by itself, if this is one.
    pub(crate) cluster: Option<ClusterOptions>,
    /// Whether each server gets a disk of its own, which can lose its power, if this machine can make one.
    pub(crate) own_disks: bool,
    /// When acknowledged writes are on stable storage.
    pub(crate) durability: Durability,
    /// Behaviour when the peer stays away.
    pub(crate) on_peer_loss: OnPeerLoss,
    /// Whether the bytes between the nodes are encrypted.
    pub(crate) encryption: Encryption,
    /// The processors of each node that is bound to some.
    pub(crate) cpus: BTreeMap<String, Vec<usize>>,
    /// Log filter of the nodes.
    pub(crate) log: String,
    /// Runs the commands.
    pub(crate) program: Program,
    /// Runs as a node.
    pub(crate) node_program: PathBuf,
}

impl PlaygroundOptions {
    /// A mirrored playground in `dir` with the defaults of the configuration.
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        Ok(Self::with_program(dir, Program::of_this_process()?))
    }

    /// The same with this program.
    pub(crate) fn with_program(dir: &Path, program: Program) -> Self {
        Self {
            dir: dir.to_owned(),
            replica: true,
            round_trip: Duration::ZERO,
            pause_limit_ms: settings::PAUSE_LIMIT.default,
            cluster: None,
            own_disks: false,
            durability: Durability::default(),
            on_peer_loss: OnPeerLoss::default(),
            encryption: Encryption::default(),
            cpus: BTreeMap::new(),
            log: "info".to_owned(),
            node_program: program.path().to_owned(),
            program,
        }
    }

    pub(crate) fn from_args(args: &PlaygroundArgs) -> Result<Self> {
        let tuning = &args.tuning;
        let mut options = Self {
            replica: !args.no_replica,
            round_trip: Duration::from_millis(args.peer_delay_ms),
            pause_limit_ms: tuning.pause_limit_ms,
            durability: tuning.durability,
            on_peer_loss: tuning.on_peer_loss,
            encryption: tuning.encryption,
            cluster: tuning.witness.then_some(ClusterOptions {
                failover_after_ms: FAILOVER_AFTER_MS,
                can_isolate: false,
            }),
            log: tuning.node_log.clone(),
            ..Self::new(&args.dir)?
        };
        if let Some(program) = &tuning.node_program {
            options.node_program.clone_from(program);
        }
        for (name, cpu) in &tuning.node_cpus {
            options.cpus.entry(name.clone()).or_default().push(*cpu);
        }
        Ok(options)
    }
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
