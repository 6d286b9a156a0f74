//! The commands: their arguments, output and exit codes.
//!
//! Every command ends with 0 (done, or the answer is yes), 1 (the answer is no) or 2 (could not be
//! done), and the demo with 130 when it is interrupted. The help of each command explains its codes 0 and 1.
//! Results go to standard output, all other text to standard error. Only this module and `crates/playground` print.

mod arguments;
mod inspect;
mod integrate;
mod log;
mod operate;
mod outcome;
mod setup;
mod terminal;

use std::io::Write;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{Parser, Subcommand};

use lockstep_repl::message::PROTOCOL_VERSION;
use outcome::{FAILED, chain};

/// Keeps a directory identical on two servers, at every moment.
///
/// Every write into the mounted directory is on both servers before it is acknowledged.
#[derive(Debug, Parser)]
#[command(name = "lockstep", version = version(), max_term_width = 100, after_help = main_examples())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The version, and the protocol of the nodes: two nodes of different protocols do not talk.
fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        format!(
            "{} (node protocol {PROTOCOL_VERSION})",
            env!("CARGO_PKG_VERSION")
        )
    });
    TEXT.as_str()
}

/// The first example, in a build that has the command.
const DEMO_EXAMPLE: &str = if cfg!(feature = "playground") {
    "  lockstep demo                               see it work, in about a minute, on this machine\n"
} else {
    ""
};

fn main_examples() -> String {
    format!(
        "\
Examples:
{DEMO_EXAMPLE}  lockstep init --name a --mount /srv/data    set up this server and say what comes next
  lockstep node                               run the node configured in /etc/lockstep/node.toml
  lockstep status                             is everything on both servers?

Exit codes: 0 done or yes, 1 no, 2 could not be done. See `lockstep help COMMAND` for each."
    )
}

#[derive(Debug, Subcommand)]
enum Command {
    Init(setup::init::InitArgs),
    CreateStore(setup::create_store::CreateStoreArgs),
    Adopt(setup::adopt::AdoptArgs),
    Import(setup::import::ImportArgs),
    Node(operate::node::NodeArgs),
    Health(inspect::health::HealthArgs),
    Hold(operate::hold::HoldArgs),
    Guard(integrate::guard::GuardArgs),
    Invalidate(integrate::invalidate::InvalidateArgs),
    WriteBack(integrate::write_back::WriteBackArgs),
    KeepalivedConfig(integrate::keepalived_config::KeepalivedConfigArgs),
    KeepalivedWatch(integrate::keepalived_watch::KeepalivedWatchArgs),
    Wait(inspect::wait::WaitArgs),
    Status(inspect::status::StatusArgs),
    Why(inspect::why::WhyArgs),
    Verify(inspect::verify::VerifyArgs),
    Changes(operate::changes::ChangesArgs),
    Snapshot(operate::snapshot::SnapshotArgs),
    Trash(operate::trash::TrashArgs),
    Failover(operate::failover::FailoverArgs),
    Promote(operate::promote::PromoteArgs),
    Demote(operate::demote::DemoteArgs),
    Drill(operate::drill::DrillArgs),
    Export(inspect::export::ExportArgs),
    GaneshaConfig(integrate::ganesha_config::GaneshaConfigArgs),
    GaneshaFollow(integrate::ganesha_follow::GaneshaFollowArgs),
    ClearPoison(operate::clear_poison::ClearPoisonArgs),
    Witness(operate::witness::WitnessArgs),
    WitnessStatus(inspect::witness_status::WitnessStatusArgs),
    WitnessForget(operate::witness_forget::WitnessForgetArgs),
    WriteVerifier(inspect::write_verifier::WriteVerifierArgs),
    #[cfg(feature = "playground")]
    Playground(lockstep_playground::PlaygroundArgs),
    #[cfg(feature = "playground")]
    Demo(lockstep_playground::DemoArgs),
}

/// Runs the command of the command line.
pub(crate) fn run() -> ExitCode {
    if integrate::mount_helper::is_called() {
        return integrate::mount_helper::run();
    }
    let outcome = match Cli::parse().command {
        Command::Init(args) => setup::init::run(args),
        Command::CreateStore(args) => setup::create_store::run(&args),
        Command::Adopt(args) => setup::adopt::run(&args),
        Command::Import(args) => setup::import::run(&args),
        Command::Node(args) => operate::node::run(&args),
        Command::Health(args) => inspect::health::run(&args),
        Command::Hold(args) => operate::hold::run(&args),
        Command::Guard(args) => integrate::guard::run(&args),
        Command::Invalidate(args) => integrate::invalidate::run(&args),
        Command::WriteBack(args) => integrate::write_back::run(&args),
        Command::KeepalivedConfig(args) => integrate::keepalived_config::run(&args),
        Command::KeepalivedWatch(args) => integrate::keepalived_watch::run(&args),
        Command::Wait(args) => inspect::wait::run(&args),
        Command::Status(args) => inspect::status::run(&args),
        Command::Why(args) => inspect::why::run(&args),
        Command::Verify(args) => inspect::verify::run(&args),
        Command::Changes(args) => operate::changes::run(&args),
        Command::Snapshot(args) => operate::snapshot::run(&args),
        Command::Trash(args) => operate::trash::run(&args),
        Command::Failover(args) => operate::failover::run(&args),
        Command::Promote(args) => operate::promote::run(&args),
        Command::Demote(args) => operate::demote::run(&args),
        Command::Drill(args) => operate::drill::run(&args),
        Command::Export(args) => inspect::export::run(&args),
        Command::GaneshaConfig(args) => integrate::ganesha_config::run(&args),
        Command::GaneshaFollow(args) => integrate::ganesha_follow::run(&args),
        Command::ClearPoison(args) => operate::clear_poison::run(&args),
        Command::Witness(args) => operate::witness::run(&args),
        Command::WitnessStatus(args) => inspect::witness_status::run(&args),
        Command::WitnessForget(args) => operate::witness_forget::run(&args),
        Command::WriteVerifier(args) => inspect::write_verifier::run(&args),
        #[cfg(feature = "playground")]
        Command::Playground(args) => {
            lockstep_playground::run_playground(&args, &lockstepfs::signals::stop_signals())
        }
        #[cfg(feature = "playground")]
        Command::Demo(args) => {
            lockstep_playground::run_demo(&args, &lockstepfs::signals::stop_signals())
        }
    };
    outcome.unwrap_or_else(|error| {
        // Standard error may be closed.
        let _ = writeln!(std::io::stderr(), "error: {}", chain(&error));
        ExitCode::from(FAILED)
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_version_shows_the_name_of_the_program() {
        let version = Cli::command().render_version();
        let own = env!("CARGO_PKG_VERSION");
        assert_eq!(
            version,
            format!("lockstep {own} (node protocol {PROTOCOL_VERSION})\n")
        );
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
