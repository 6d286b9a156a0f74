//! `lockstep status`, `lockstep verify` and the commands for roles against a fake node, whose answers the test chooses.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

use lockstep_driver::report::{
    ChangeReaderStatus, ChangesPart, ChangesQuestion, CommandFailure, DiffPart, DiffQuestion,
    Difference, ReaderCommand, RoleReport, ServiceStatus, SnapshotCommand, SnapshotStatus,
    TrashAnswer, TrashCommand, VerifyMode, VerifyProgress, VerifyReport,
};
use lockstep_fs::export::{ExportSummary, Lost};
use lockstep_fs::seed::{SeedProgress, SeedSummary};
use lockstep_testbed::status::{alpha, node_with};
use lockstepfs::config::{Role, Standby};
use lockstepfs::control::{ControlServer, ControlService, ExportQuestion, NodeStatus, RoleCommand};

/// A node with one datastore, which is in sync or not, and identical or not.
struct PretendedNode {
    in_sync: bool,
}

impl ControlService for PretendedNode {
    fn status(&self) -> NodeStatus {
        let mut alpha = alpha(ServiceStatus::Alone, self.in_sync);
        alpha.sync.reason = (!self.in_sync).then(|| "the peer has gone".to_owned());
        node_with(alpha)
    }

    fn changes(
        &self,
        _: &str,
        _: &ChangesQuestion,
        _: &mut dyn FnMut(ChangesPart) -> bool,
    ) -> Result<(), CommandFailure> {
        unreachable!("nobody asks what has changed")
    }

    fn snapshots(
        &self,
        _: &str,
        _: &SnapshotCommand,
    ) -> Result<Vec<SnapshotStatus>, CommandFailure> {
        unreachable!("nobody asks for snapshots")
    }

    fn trash(&self, _: &str, _: &TrashCommand) -> Result<TrashAnswer, CommandFailure> {
        unreachable!("nobody asks for the trash")
    }

    fn snapshot_diff(
        &self,
        _: &str,
        _: &DiffQuestion,
        _: &mut dyn FnMut(DiffPart) -> bool,
    ) -> Result<(), CommandFailure> {
        unreachable!("nobody asks for a difference")
    }

    fn change_readers(
        &self,
        _: &str,
        _: &ReaderCommand,
    ) -> Result<Vec<ChangeReaderStatus>, CommandFailure> {
        unreachable!("nobody asks for change readers")
    }

    fn verify(
        &self,
        name: &str,
        _mode: VerifyMode,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<VerifyReport, CommandFailure> {
        progress(VerifyProgress {
            inodes_compared: 1,
            inodes_total: None,
            bytes_compared: 0,
        });
        if name != "alpha" {
            let cause = format!("there is no datastore {name:?}");
            return Err(CommandFailure::new(cause, "name another"));
        }
        let difference = Difference {
            inode: 12,
            path: Some("/file".to_owned()),
            what: "content".to_owned(),
            blocks: None,
        };
        Ok(VerifyReport {
            identical: self.in_sync,
            inodes_compared: 3,
            bytes_compared: 4096,
            differences_total: u64::from(!self.in_sync),
            differences: if self.in_sync {
                vec![]
            } else {
                vec![difference]
            },
            ..VerifyReport::default()
        })
    }

    fn export(
        &self,
        _: &str,
        _: &ExportQuestion,
        _: &mut dyn FnMut(&Lost),
        _: &dyn Fn() -> bool,
    ) -> Result<ExportSummary, CommandFailure> {
        unreachable!("no status exports")
    }

    fn export_seed(
        &self,
        _: &str,
        _: &ExportQuestion,
        _: &mut dyn FnMut(SeedProgress),
        _: &dyn Fn() -> bool,
    ) -> Result<SeedSummary, CommandFailure> {
        unreachable!("no status exports")
    }

    /// Only nodes in sync can swap their roles; a copy that is not in sync needs force.
    fn change_role(&self, name: &str, change: RoleCommand) -> Result<RoleReport, CommandFailure> {
        if name != "alpha" {
            let cause = format!("there is no datastore {name:?}");
            return Err(CommandFailure::new(cause, "name another"));
        }
        let role = match change {
            RoleCommand::HandOver { .. } if self.in_sync => Role::Secondary,
            RoleCommand::Promote { accepts_loss } if self.in_sync || accepts_loss => Role::Primary,
            RoleCommand::Demote if !self.in_sync => Role::Secondary,
            _ => return Err(CommandFailure::new("the state does not fit", "wait")),
        };
        Ok(RoleReport {
            role,
            generation: 2,
            pause_ms: 12,
            address: None,
            as_of: None,
            witness_unaware: false,
            standby: Some(if role == Role::Primary {
                Standby::Wait
            } else {
                Standby::Erofs
            }),
            unproved: None,
        })
    }

    fn follow_address(&self, _name: &str, _address: IpAddr, _has_nfs: bool) {
        panic!("no command of these tests follows an address")
    }
}

struct Asked {
    _directory: tempfile::TempDir,
    _server: ControlServer,
    socket: PathBuf,
}

fn node(in_sync: bool) -> Asked {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("node.sock");
    let server = ControlServer::start(&socket, Arc::new(PretendedNode { in_sync })).unwrap();
    Asked {
        _directory: directory,
        _server: server,
        socket,
    }
}

impl Asked {
    fn ask(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let output: Output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
            .args(arguments)
            .arg("--control")
            .arg(&self.socket)
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    }
}

#[test]
fn the_exit_code_of_status_says_whether_all_is_in_sync() {
    let (code, printed, _) = node(true).ask(&["status"]);
    assert_eq!(code, Some(0));
    assert!(printed.contains("alpha: in sync"), "{printed}");
    let (code, printed, _) = node(false).ask(&["status", "alpha"]);
    assert_eq!(code, Some(1));
    assert!(printed.contains("alpha: NOT IN SYNC"), "{printed}");
    assert!(printed.contains("the peer has gone"), "{printed}");
}

#[test]
fn status_as_json_is_the_node_s_own_report() {
    let (code, printed, _) = node(false).ask(&["status", "--json"]);
    assert_eq!(code, Some(1));
    let status: NodeStatus = serde_json::from_str(&printed).unwrap();
    assert_eq!(status, PretendedNode { in_sync: false }.status());
}

#[test]
fn an_unknown_datastore_is_an_error() {
    let (code, _, error) = node(true).ask(&["status", "nonsense"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("alpha"), "{error}");
    let (code, _, error) = node(true).ask(&["verify", "nonsense"]);
    assert_eq!(code, Some(2));
    assert!(
        error.contains("could not compare") && error.contains("cure:"),
        "{error}"
    );
}

#[test]
fn the_exit_code_of_verify_says_whether_both_nodes_are_identical() {
    let (code, printed, error) = node(true).ask(&["verify", "alpha"]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert!(printed.starts_with("identical on both nodes"), "{printed}");
    let (code, printed, _) = node(false).ask(&["verify", "alpha"]);
    assert_eq!(code, Some(1));
    assert!(printed.contains("/file (inode 12): content"), "{printed}");
    let (code, printed, _) = node(false).ask(&["verify", "alpha", "--json"]);
    assert_eq!(code, Some(1));
    let report: VerifyReport = serde_json::from_str(&printed).unwrap();
    assert_eq!(report.differences_total, 1);
}

#[test]
fn a_change_of_the_role_is_printed() {
    for (in_sync, command, expected) in [
        (
            true,
            &["failover", "alpha"][..],
            "alpha: node a is the secondary now (generation 2); the other node serves; requests waited 12 ms\n\
             standby: programs that go on here get EROFS until this node serves\n",
        ),
        (
            true,
            &["promote", "alpha"],
            "alpha: node a is the primary now (generation 2); it serves; keep the other node from serving\n",
        ),
        (
            false,
            &["promote", "alpha", "--force-data-loss"],
            "alpha: node a is the primary now (generation 2); it serves",
        ),
        (
            false,
            &["demote", "alpha"],
            "alpha: node a is the secondary now (generation 2); the next resync drops the changes that only this node has",
        ),
    ] {
        let (code, printed, error) = node(in_sync).ask(command);
        assert_eq!((code, error.as_str()), (Some(0), ""), "{command:?}");
        assert!(printed.starts_with(expected), "{printed}");
    }
    let (code, printed, _) = node(true).ask(&["failover", "alpha", "--json"]);
    assert_eq!(code, Some(0));
    let report: RoleReport = serde_json::from_str(&printed).unwrap();
    assert_eq!((report.role, report.generation), (Role::Secondary, 2));
}

#[test]
fn a_change_of_the_role_that_fails_ends_with_two() {
    for (in_sync, command) in [
        (false, &["failover", "alpha"]),
        (false, &["promote", "alpha"]),
        (true, &["demote", "alpha"]),
        (true, &["failover", "nonsense"]),
        (true, &["promote", "nonsense"]),
        (false, &["demote", "nonsense"]),
    ] {
        let (code, printed, error) = node(in_sync).ask(command);
        assert_eq!((code, printed.as_str()), (Some(2), ""), "{command:?}");
        assert!(
            error.contains("could not change the role") && error.contains("cure:"),
            "{error}"
        );
    }
}

/// An operator who reads the help learns what the command may cost.
#[test]
fn the_help_of_the_commands_for_roles_names_effect_and_exit_codes() {
    for (command, expected) in [
        ("failover", "those under way end with their answers"),
        ("promote", "You vouch that the other node does not serve"),
        (
            "demote",
            "only this node has, and keeps the copy from before",
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
            .args([command, "--help"])
            .output()
            .unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains(expected), "{help}");
        assert!(help.contains("Exit codes: 0"), "{help}");
        assert!(help.contains("2 could not"), "{help}");
    }
}

#[test]
fn a_node_that_does_not_run_is_an_error() {
    let asked = node(true);
    let gone = Asked {
        socket: asked.socket.with_extension("none"),
        ..asked
    };
    for command in [
        &["status"][..],
        &["verify", "alpha"],
        &["failover", "alpha"],
        &["promote", "alpha"],
        &["demote", "alpha"],
    ] {
        let (code, _, error) = gone.ask(command);
        assert_eq!(code, Some(2));
        assert!(
            error.contains("no node answers") && error.contains("cure:"),
            "{error}"
        );
    }
}
