//! The commands: what each takes, prints and answers with its exit code.
//!
//! Every command ends with 0 (done, or the answer is yes), 1 (the answer is no) or 2 (could not be
//! done), and the demo with 130 when it is interrupted; what 0 and 1 mean for a command stands in its
//! help. Results go to standard output, everything else to standard error. Nothing outside this
//! module and `crates/playground` prints.

mod background;
mod clear_poison;
mod create_store;
mod export;
mod init;
mod log;
mod mount_directory;
mod mount_helper;
mod node;
mod setting;
mod status;
mod terminal;
mod verify;
mod wait;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use lockstepfs::config::{self, DatastoreConfig, NodeConfig};

use setting::one_of;
use terminal::{bytes, count, duration, say, say_json, warn};

/// Where a node's configuration is looked for unless said otherwise.
const CONFIG_DEFAULT: &str = "/etc/lockstep/node.toml";

/// Exit code for a question answered with no.
const NO: u8 = 1;
/// Exit code for what could not be done.
const FAILED: u8 = 2;

/// Keeps a directory identical on two servers, at every moment.
///
/// Every write into the mounted directory is on both servers before it is acknowledged.
#[derive(Debug, Parser)]
#[command(name = "lockstep", version, max_term_width = 100, after_help = main_examples())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The first of the examples, in a build that has the command.
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
    Wait(wait::WaitArgs),
    Status(status::StatusArgs),
    Verify(verify::VerifyArgs),
    Export(export::ExportArgs),
    ClearPoison(clear_poison::ClearPoisonArgs),
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
        Command::Wait(args) => wait::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Export(args) => export::run(&args),
        Command::ClearPoison(args) => clear_poison::run(&args),
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
        // Nobody may be reading.
        let _ = writeln!(std::io::stderr(), "error: {}", chain(&error));
        ExitCode::from(FAILED)
    })
}

/// What went wrong, with its causes, each of them once: many errors name their cause in their own text.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = with_cause(&text, &cause);
        }
    }
    text
}

/// An error and its cause, which comes before what cures it.
fn with_cause(text: &str, cause: &str) -> String {
    match text.split_once(CURE) {
        Some((what, cure)) => format!("{what}: {cause}{CURE}{cure}"),
        None => format!("{text}: {cause}"),
    }
}

/// Between an error and its cure.
const CURE: &str = "\n  cure: ";

/// Which configuration file to read.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// Configuration file of the node
    #[arg(long, value_name = "FILE", default_value = CONFIG_DEFAULT)]
    config: PathBuf,
}

impl ConfigArgs {
    fn load(&self) -> Result<NodeConfig> {
        Ok(config::load(&self.config)?)
    }
}

/// The datastore of that name; an error names those that there are.
fn named<'a>(config: &'a NodeConfig, name: &str) -> Result<&'a DatastoreConfig> {
    config.datastore(name).with_context(|| {
        let names: Vec<_> = config
            .datastores
            .iter()
            .map(|store| store.name.as_str())
            .collect();
        format!(
            "there is no datastore {name:?}\n  cure: name one of: {}",
            names.join(", ")
        )
    })
}

/// Which running node to ask.
#[derive(Debug, Args)]
pub(crate) struct NodeToAsk {
    #[command(flatten)]
    config: ConfigArgs,

    /// Control socket of the node, instead of the one its configuration names
    #[arg(long, value_name = "SOCKET", conflicts_with = "config")]
    control: Option<PathBuf>,
}

impl NodeToAsk {
    fn socket(&self) -> Result<PathBuf> {
        match &self.control {
            Some(socket) => Ok(socket.clone()),
            None => Ok(self.config.load()?.control),
        }
    }
}

/// An absolute path of what the command line names, without asking the disk.
fn absolute(path: &Path) -> Result<PathBuf> {
    Ok(std::path::absolute(path)?.components().collect())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// An error that names its cause, as most here do.
    #[derive(Debug)]
    struct Outer(std::io::Error);

    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "cannot open the store: {}", self.0)
        }
    }

    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_cause_is_told_once() {
        let full = || Outer(std::io::Error::other("disk full"));
        let error = anyhow::Error::new(full());
        assert_eq!(chain(&error), "cannot open the store: disk full");
        let error = error.context("nothing was made");
        assert_eq!(
            chain(&error),
            "nothing was made: cannot open the store: disk full"
        );
        let error = anyhow::Error::new(full()).context("no store\n  cure: make room");
        assert_eq!(
            chain(&error),
            "no store: cannot open the store: disk full\n  cure: make room"
        );
    }

    #[test]
    fn the_program_goes_by_its_name() {
        let version = Cli::command().render_version();
        assert_eq!(version, format!("lockstep {}\n", env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
