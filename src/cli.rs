//! The commands: their arguments, output and exit codes.
//!
//! Every command ends with 0 (done, or the answer is yes), 1 (the answer is no) or 2 (could not be
//! done), and the demo with 130 when it is interrupted. The help of each command explains its codes 0 and 1.
//! Results go to standard output, all other text to standard error. Only this module, the playground and the
//! demo print.

mod arguments;
mod background;
mod clear_poison;
mod create_store;
mod export;
mod init;
mod log;
mod mount_directory;
mod mount_helper;
mod new_files;
mod node;
mod outcome;
mod setting;
mod status;
mod terminal;
mod verify;
mod wait;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

// For the playground and the demo.
pub(crate) use outcome::{NO, chain};
pub(crate) use setting::one_of;
pub(crate) use terminal::{bytes, count, duration, is_terminal, say};

use outcome::FAILED;

use crate::{demo, playground};

/// Keeps a directory identical on two servers, at every moment.
///
/// Every write into the mounted directory is on both servers before it is acknowledged.
#[derive(Debug, Parser)]
#[command(name = "lockstep", version, max_term_width = 100, after_help = MAIN_EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const MAIN_EXAMPLES: &str = "\
Examples:
  lockstep demo                               see it work, in about a minute, on this machine
  lockstep init --name a --mount /srv/data    set up this server and say what comes next
  lockstep node                               run the node configured in /etc/lockstep/node.toml
  lockstep status                             is everything on both servers?

Exit codes: 0 done or yes, 1 no, 2 could not be done. See `lockstep help COMMAND` for each.";

#[derive(Debug, Subcommand)]
enum Command {
    Init(init::InitArgs),
    CreateStore(create_store::CreateStoreArgs),
    Node(node::NodeArgs),
    Wait(wait::WaitArgs),
    Status(status::StatusArgs),
    Verify(verify::VerifyArgs),
    Export(export::ExportArgs),
    ClearPoison(clear_poison::ClearPoisonArgs),
    Playground(playground::PlaygroundArgs),
    Demo(demo::DemoArgs),
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
        Command::Wait(args) => wait::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Export(args) => export::run(&args),
        Command::ClearPoison(args) => clear_poison::run(&args),
        Command::Playground(args) => playground::run(&args),
        Command::Demo(args) => demo::run(&args),
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
        assert_eq!(version, format!("lockstep {}\n", env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
