//! The parts that the commands `failover`, `promote` and `demote` share.
//!
//! Each of these commands asks the running node for one change of its role, and prints the outcome.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lockstep_driver::report::RoleReport;
use lockstepfs::config::{Choice, Role, Standby};
use lockstepfs::control::{ControlClient, RoleCommand};

use crate::cli::arguments::RunningNodeArgs;
use crate::cli::terminal::{say, say_json};

/// The datastore whose role changes, and the node that is asked.
#[derive(Debug, Args)]
pub(in crate::cli) struct RoleChangeArgs {
    /// Name of the datastore
    name: String,

    #[command(flatten)]
    node: RunningNodeArgs,

    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

impl RoleChangeArgs {
    /// Asks the node for `change`. `rest` gives the part of the printed line behind the generation.
    pub(in crate::cli) fn run(
        &self,
        change: RoleCommand,
        rest: impl Fn(&RoleReport) -> String,
    ) -> Result<ExitCode> {
        let mut client = ControlClient::connect(&self.node.socket()?)?;
        let node = client.status()?.node;
        let report = client.change_role(&self.name, change)?;
        if self.json {
            say_json(&report)?;
        } else {
            say(&self.line(&node, &report, &rest(&report)))?;
            say(&standby(&report))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn line(&self, node: &str, report: &RoleReport, rest: &str) -> String {
        let role = report.role.word();
        let (name, generation) = (&self.name, report.generation);
        format!("{name}: node {node} is the {role} now (generation {generation}); {rest}\n")
    }
}

/// The line about programs that go on at a node that does not serve any more; empty for a node that serves.
fn standby(report: &RoleReport) -> String {
    let meet = match report.standby.filter(|_| report.role == Role::Secondary) {
        None => return String::new(),
        Some(Standby::Wait) => "wait, and changes fail with EROFS,",
        Some(Standby::Erofs) => "get EROFS",
        Some(Standby::Eagain) => "get EAGAIN",
    };
    format!("standby: programs that go on here {meet} until this node serves\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_at_a_node_that_does_not_serve_have_a_line() {
        let report = |role, standby| RoleReport {
            role,
            generation: 2,
            pause_ms: 12,
            address: None,
            as_of: None,
            witness_unaware: false,
            standby,
            unproved: None,
        };
        for (setting, text) in [
            (Standby::Wait, "wait, and changes fail with EROFS,"),
            (Standby::Erofs, "get EROFS"),
            (Standby::Eagain, "get EAGAIN"),
        ] {
            let line = standby(&report(Role::Secondary, Some(setting)));
            assert!(line.contains(text), "{line}");
            assert_eq!(standby(&report(Role::Primary, Some(setting))), "");
        }
        assert_eq!(standby(&report(Role::Secondary, None)), "");
    }
}
