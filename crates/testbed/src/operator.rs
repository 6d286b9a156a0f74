//! The operator of both nodes: the commands that change roles, and the status.

use std::process::{Child, Command, Output, Stdio};

use lockstep_driver::report::{DatastoreStatus, RoleReport};
use lockstepfs::config::Role;

use crate::network::{Fault, Network};
use crate::node::{DATASTORE, Node};
use crate::pair::{Pair, Which};
use crate::program::program;
use crate::wait::await_that;

/// No command may take longer, in seconds.
const COMMAND_SECONDS_MAX: &str = "120";
/// The log line of a primary that compares the namespaces.
const RESYNC: &str = "state=\"resyncing (namespace)\"";

/// The output of a command, and its exit code.
pub struct Outcome {
    /// The exit code; `None` if a signal has ended the command.
    pub code: Option<i32>,
    /// The standard output.
    pub output: String,
    /// The standard error.
    pub error: String,
}

impl Outcome {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: output.status.code(),
            output: text(&output.stdout),
            error: text(&output.stderr),
        }
    }
}

/// The command `lockstep COMMAND data` for a running node.
fn command(node: &Node, command: &str) -> Command {
    let mut bounded = Command::new("timeout");
    bounded
        .args([
            COMMAND_SECONDS_MAX,
            program(),
            command,
            DATASTORE,
            "--control",
        ])
        .arg(node.control())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    bounded
}

/// Begins a command.
pub fn begin(node: &Node, verb: &str) -> Child {
    command(node, verb).spawn().unwrap()
}

/// Waits for the end of a command.
pub fn end(running: Child) -> Outcome {
    Outcome::of(&running.wait_with_output().unwrap())
}

/// Runs a command.
pub fn run(node: &Node, verb: &str, options: &[&str]) -> Outcome {
    Outcome::of(&command(node, verb).args(options).output().unwrap())
}

/// Runs a command that changes the role of this node, and returns its report.
pub fn change(node: &Node, command: &str, options: &[&str]) -> RoleReport {
    let done = run(node, command, &[options, &["--json"]].concat());
    assert_eq!(done.code, Some(0), "{command}: {}", done.error);
    let report: RoleReport = serde_json::from_str(&done.output).unwrap();
    let (role, generation) = role(&node.status().unwrap());
    assert_eq!(report.role, role, "{command}");
    // The nodes may have met since.
    assert!(report.generation <= generation, "{command}: {generation}");
    report
}

/// Gives the role of the primary from `from`, which is the primary of generation `before`, to the other node.
pub fn fail_over(pair: &mut Pair, from: Which, before: u64) {
    let report = change(pair.node(from), "failover", &[]);
    println!("failover: programs waited {} ms", report.pause_ms);
    assert_eq!(
        (report.role, report.generation),
        (Role::Secondary, before + 1)
    );
    assert_eq!(report.address, None, "no cluster address is waited for");
    let other = pair.node(other(from)).status().unwrap();
    assert_eq!(role(&other), (Role::Primary, before + 1), "{other:#?}");
}

/// The other node.
pub const fn other(which: Which) -> Which {
    match which {
        Which::Primary => Which::Secondary,
        Which::Secondary => Which::Primary,
    }
}

/// Role and generation.
pub const fn role(status: &DatastoreStatus) -> (Role, u64) {
    (status.settings.role, status.work.generation)
}

/// Waits until the status of a node is as wanted, and returns that status.
pub fn await_status(
    node: &Node,
    what: &str,
    is: impl Fn(&DatastoreStatus) -> bool,
) -> DatastoreStatus {
    let mut found = None;
    await_that(what, || {
        found = node.status().filter(|status| is(status));
        found.is_some()
    });
    found.unwrap()
}

/// Waits until a node has lost its connection.
pub fn await_alone(node: &Node) {
    await_status(node, "the loss of the connection", |status| {
        status.peer.as_ref().is_some_and(|peer| !peer.connected)
    });
}

/// Waits until both nodes are in sync, with this primary of this generation.
pub fn await_in_sync(pair: &mut Pair, primary: Which, generation: u64) {
    pair.await_in_sync();
    for which in [Which::Primary, Which::Secondary] {
        let expected = if which == primary {
            Role::Primary
        } else {
            Role::Secondary
        };
        let status = pair.node(which).status().unwrap();
        assert_eq!(
            role(&status),
            (expected, generation),
            "{which:?}: {status:#?}"
        );
    }
}

/// Checks that both nodes hold the same, by the command on the primary.
pub fn assert_identical(primary: &Node) {
    let verified = run(primary, "verify", &[]);
    let Outcome { output, error, .. } = &verified;
    assert_eq!(verified.code, Some(0), "{output}{error}");
    assert!(output.contains("identical"), "{output}");
}

/// How often the nodes have compared everything so far.
pub fn resyncs(pair: &Pair) -> usize {
    pair.primary.times_logged(RESYNC) + pair.secondary.times_logged(RESYNC)
}

/// Lets no byte pass between the nodes, or lets all pass again.
pub fn cut(pair: &Pair, is_cut: bool) {
    for way in [&pair.network, &pair.way_back] {
        if is_cut {
            way.apply_fault(Fault::Cut);
        } else {
            Network::heal(way);
        }
    }
}
