//! The parts that the commands `failover`, `promote` and `demote` share.
//!
//! Each of these commands asks the running node for one change of its role, and prints the outcome.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lockstep_driver::report::RoleReport;
use lockstepfs::config::Choice;
use lockstepfs::control::{ControlClient, RoleChange};

use super::arguments::RunningNodeArgs;
use super::terminal::{say, say_json};

/// The datastore whose role changes, and the node that is asked.
#[derive(Debug, Args)]
pub(super) struct RoleChangeArgs {
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
    pub(super) fn run(
        &self,
        change: RoleChange,
        rest: impl Fn(&RoleReport) -> String,
    ) -> Result<ExitCode> {
        let mut client = ControlClient::connect(&self.node.socket()?)?;
        let node = client.status()?.node;
        let report = client.change_role(&self.name, change)?;
        if self.json {
            say_json(&report)?;
        } else {
            say(&self.line(&node, &report, &rest(&report)))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn line(&self, node: &str, report: &RoleReport, rest: &str) -> String {
        let role = report.role.word();
        let (name, generation) = (&self.name, report.generation);
        format!("{name}: node {node} is the {role} now (generation {generation}); {rest}\n")
    }
}
