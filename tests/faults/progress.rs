//! Both nodes show how far a resync is, and `lockstep wait` shows it, too.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Command, Stdio};

use lockstep_driver::report::{ResyncPhase, ResyncStatus, ResyncWait};
use lockstep_testbed::{IMPATIENT, Node, NodeEnvironment, Pair, Settings, await_that};

use crate::check::at_rest;
use crate::slow::WRITE_BYTES;

/// The resync takes some seconds, in which the secondary hears of it.
const SETTINGS: Settings = Settings {
    resync_bytes_per_second: 4 << 20,
    ..IMPATIENT
};
/// Bytes of the file that the secondary lacks.
const BYTES: usize = 24 << 20;

/// Begins `lockstep wait --in-sync` for a node.
fn wait(node: &Node) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.args(["wait", "--in-sync", "--timeout", "120", "--control"]);
    command.arg(node.control()).stdin(Stdio::null());
    command.stderr(Stdio::piped()).spawn().unwrap()
}

/// The progress that a node has shown.
#[derive(Default)]
struct Said {
    phases: BTreeSet<&'static str>,
    has_waited: bool,
    bytes_done: u64,
}

impl Said {
    fn note(&mut self, resync: ResyncStatus) {
        let phase = match resync.phase {
            ResyncPhase::Recovery => "recovery",
            ResyncPhase::Namespace => "namespace",
            ResyncPhase::Content => "content",
            ResyncPhase::Proving => "proving",
            ResyncPhase::Finish => "finish",
        };
        self.phases.insert(phase);
        self.has_waited |= resync.waits_for == Some(ResyncWait::Limit);
        if resync.phase == ResyncPhase::Content {
            assert!(resync.bytes_total.is_none_or(|total| total == BYTES as u64));
            assert!(resync.bytes_done >= self.bytes_done);
            self.bytes_done = resync.bytes_done;
        }
    }
}

/// See the head of this file.
pub fn both_nodes() {
    let mut pair = Pair::prepare(SETTINGS, [(); 2].map(|()| NodeEnvironment::default()));
    pair.primary.start();
    await_that("the primary to serve", || {
        let status = pair.primary.status();
        status.is_some_and(|status| status.sync.started && status.settings.mount.is_some())
    });
    let long = vec![7; WRITE_BYTES].repeat(BYTES / WRITE_BYTES);
    fs::write(pair.mount().join("long"), long).unwrap();
    pair.secondary.start();
    let waits = [&pair.primary, &pair.secondary].map(wait);
    let mut said = [Said::default(), Said::default()];
    await_that("the end of the resync", || {
        let both = [&pair.primary, &pair.secondary].map(Node::status);
        for (said, status) in said.iter_mut().zip(&both) {
            if let Some(resync) = status.as_ref().and_then(|status| status.resync) {
                said.note(resync);
            }
        }
        both.iter()
            .all(|status| status.as_ref().is_some_and(|status| status.sync.in_sync))
    });
    for Said {
        phases,
        has_waited,
        bytes_done,
    } in said
    {
        assert!(phases.contains("content"), "{phases:?}");
        assert!(has_waited && bytes_done > 0, "{bytes_done}");
    }
    for wait in waits {
        let output = wait.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let lines = String::from_utf8(output.stderr).unwrap();
        assert!(lines.contains(": content: everything, "), "{lines}");
    }
    for node in [&pair.primary, &pair.secondary] {
        assert_eq!(node.status().unwrap().resync, None);
    }
    at_rest(&mut pair);
}
