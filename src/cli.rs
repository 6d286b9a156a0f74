//! The commands: their arguments, output and exit codes.
//!
//! Every command ends with 0 (done, or the answer is yes), 1 (the answer is no) or 2 (could not be
//! done), and the demo with 130 when it is interrupted. The help of each command explains its codes 0 and 1.
//! Results go to standard output, all other text to standard error. Only this module and `crates/playground` print.

mod arguments;
mod background;
mod clear_poison;
mod create_store;
mod demote;
mod drill;
mod export;
mod failover;
mod ganesha_config;
mod ganesha_follow;
mod guard;
mod health;
mod hold;
mod init;
mod init_ask_witness;
mod init_witness;
mod invalidate;
mod keepalived_config;
mod keepalived_watch;
mod log;
mod mount_directory;
mod mount_helper;
mod new_files;
mod node;
mod outcome;
mod promote;
mod role_change;
mod setting;
mod status;
mod terminal;
mod verify;
mod wait;
mod why;
mod witness;
mod witness_forget;
mod witness_status;
mod write_back;
mod write_verifier;

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
    Init(init::InitArgs),
    CreateStore(create_store::CreateStoreArgs),
    Node(node::NodeArgs),
    Health(health::HealthArgs),
    Hold(hold::HoldArgs),
    Guard(guard::GuardArgs),
    Invalidate(invalidate::InvalidateArgs),
    WriteBack(write_back::WriteBackArgs),
    KeepalivedConfig(keepalived_config::KeepalivedConfigArgs),
    KeepalivedWatch(keepalived_watch::KeepalivedWatchArgs),
    Wait(wait::WaitArgs),
    Status(status::StatusArgs),
    Why(why::WhyArgs),
    Verify(verify::VerifyArgs),
    Failover(failover::FailoverArgs),
    Promote(promote::PromoteArgs),
    Demote(demote::DemoteArgs),
    Drill(drill::DrillArgs),
    Export(export::ExportArgs),
    GaneshaConfig(ganesha_config::GaneshaConfigArgs),
    GaneshaFollow(ganesha_follow::GaneshaFollowArgs),
    ClearPoison(clear_poison::ClearPoisonArgs),
    Witness(witness::WitnessArgs),
    WitnessStatus(witness_status::WitnessStatusArgs),
    WitnessForget(witness_forget::WitnessForgetArgs),
    WriteVerifier(write_verifier::WriteVerifierArgs),
    #[cfg(feature = "playground")]
    Playground(lockstep_playground::PlaygroundArgs),
    #[cfg(feature = "playground")]
    Demo(lockstep_playground::DemoArgs),
}

/// Runs the command of the command line.
pub(crate) fn run() -> ExitCode {
    if mount_helper::is_called() {
        return mount_helper::run();
    }
    let outcome = match Cli::parse().command {
        Command::Init(args) => init::run(args),
        Command::CreateStore(args) => create_store::run(&args),
        Command::Node(args) => node::run(&args),
        Command::Health(args) => health::run(&args),
        Command::Hold(args) => hold::run(&args),
        Command::Guard(args) => guard::run(&args),
        Command::Invalidate(args) => invalidate::run(&args),
        Command::WriteBack(args) => write_back::run(&args),
        Command::KeepalivedConfig(args) => keepalived_config::run(&args),
        Command::KeepalivedWatch(args) => keepalived_watch::run(&args),
        Command::Wait(args) => wait::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Failover(args) => failover::run(&args),
        Command::Promote(args) => promote::run(&args),
        Command::Demote(args) => demote::run(&args),
        Command::Drill(args) => drill::run(&args),
        Command::Export(args) => export::run(&args),
        Command::GaneshaConfig(args) => ganesha_config::run(&args),
        Command::GaneshaFollow(args) => ganesha_follow::run(&args),
        Command::ClearPoison(args) => clear_poison::run(&args),
        Command::Witness(args) => witness::run(&args),
        Command::WitnessStatus(args) => witness_status::run(&args),
        Command::WitnessForget(args) => witness_forget::run(&args),
        Command::WriteVerifier(args) => write_verifier::run(&args),
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
