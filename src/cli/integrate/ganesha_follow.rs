//! `lockstep ganesha-follow`: starts NFS-Ganesha where the datastore is served, and stops it where not. keepalived runs this
//! command by the configuration that `lockstep keepalived-config --ganesha` prints.
//!
//! Ganesha hands the opens and locks of clients of NFS version 4 out anew. So a Ganesha from before the time of the other node
//! must not meet a client: it stops with the role, and a new one reads the names of the clients once the datastore is served
//! here.
//!
//! Invariants:
//! - The command ends within its limits, also if Ganesha hangs.
//! - One such command at a time works on the Ganesha of a node.
//! - A late `lost` does not stop the Ganesha of a node that serves again.

use std::fs::{File, OpenOptions};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::cli::arguments::RunningNodeArgs;
use crate::cli::inspect::health;
use crate::cli::outcome::chain;
use crate::cli::terminal::say;

/// The unit of Debian's package nfs-ganesha.
const UNIT: &str = "nfs-ganesha.service";
/// keepalived does not promise its programs a search path.
pub(in crate::cli) const SYSTEMCTL: &str = "/usr/bin/systemctl";
/// The longest wait for an earlier command of this kind, and then for Ganesha. A stop waits for a mount that hangs.
const LIMIT: Duration = Duration::from_secs(120);
/// The longest wait for a program of the network or of the log.
pub(in crate::cli) const SHORT_LIMIT: Duration = Duration::from_secs(5);
/// The longest wait for the answer of the node.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// Pause between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Start NFS-Ganesha where the datastore is served, and stop it where not
///
/// keepalived runs this command, by the configuration that `lockstep keepalived-config --ganesha` prints. The connections of
/// the cluster address end in both cases. The outcome goes to the system's log, with the tag `lockstep`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GaneshaFollowArgs {
    /// Name of the datastore
    name: String,

    /// The change on this server
    event: ServiceEvent,

    #[command(flatten)]
    node: RunningNodeArgs,

    /// The cluster address
    #[arg(long, value_name = "ADDRESS")]
    address: IpAddr,

    /// Program that is run with `restart` or `stop`, instead of `systemctl restart nfs-ganesha` and `stop`
    #[arg(long, value_name = "PROGRAM")]
    program: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  lockstep ganesha-follow data serves --address 192.0.2.10
  lockstep ganesha-follow data lost --address 192.0.2.10

Exit codes: 0 Ganesha is as it should be; 2 it may not be: see the reason.";

/// A change of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ServiceEvent {
    /// The node has begun to serve, and the address comes
    Serves,
    /// The node does not serve, and the address has left
    Lost,
}

pub(crate) fn run(args: &GaneshaFollowArgs) -> Result<ExitCode> {
    let outcome = follow(args);
    let (name, address) = (&args.name, args.address);
    let text = match &outcome {
        Ok(done) => format!("{name}: cluster address {address}: {done}"),
        Err(error) => format!("{name}: cluster address {address}: error: {}", chain(error)),
    };
    log(&text);
    outcome?;
    say(&format!("{text}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a line to the log of the system. A server may have none.
pub(in crate::cli) fn log(text: &str) {
    let _ = finish(
        Command::new("/usr/bin/logger").args(["--tag", "lockstep", "--", text]),
        SHORT_LIMIT,
    );
}

/// Returns what was done.
fn follow(args: &GaneshaFollowArgs) -> Result<&'static str> {
    // No connection comes back to life with the address.
    let connections = finish(&mut end_connections(args.address), SHORT_LIMIT);
    let socket = args.node.socket()?;
    let _alone = lock(&socket)?;
    let done = match args.event {
        ServiceEvent::Serves => {
            order(args.program.as_deref(), "restart")?;
            "NFS-Ganesha has started anew"
        }
        ServiceEvent::Lost if serves(args, &socket) => {
            "the node serves again: NFS-Ganesha is left alone"
        }
        ServiceEvent::Lost => {
            order(args.program.as_deref(), "stop")?;
            "NFS-Ganesha has stopped"
        }
    };
    connections?;
    Ok(done)
}

/// A node that does not answer does not serve.
fn serves(args: &GaneshaFollowArgs, socket: &Path) -> bool {
    health::serves(socket, &args.name, ANSWER_LIMIT).unwrap_or(false)
}

/// The command that ends all connections of the address on this server.
fn end_connections(address: IpAddr) -> Command {
    let mut command = Command::new("/usr/bin/ss");
    command.args(["--kill", "--tcp", "src", &filter_word(address)]);
    command
}

/// The address as the filters of `ss` take it.
pub(in crate::cli) fn filter_word(address: IpAddr) -> String {
    match address {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// Waits until no other command of this kind works on the node.
fn lock(socket: &Path) -> Result<File> {
    let path = PathBuf::from(format!("{}.ganesha", socket.display()));
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(&path)
        .with_context(|| format!("cannot open the lock {}", path.display()))?;
    let begin = Instant::now();
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if begin.elapsed() >= LIMIT {
            bail!(
                "another command has been at work on NFS-Ganesha for {} s\n  cure: see `systemctl status {UNIT}`",
                LIMIT.as_secs()
            );
        }
        sleep(LOOK_INTERVAL);
    }
    Ok(file)
}

/// Restarts or stops Ganesha.
fn order(program: Option<&Path>, verb: &str) -> Result<()> {
    let mut command = match program {
        Some(program) => Command::new(program),
        None => Command::new(SYSTEMCTL),
    };
    command.arg(verb);
    if program.is_none() {
        // A unit that has failed too often would not start again for a while.
        let _ = finish(
            Command::new(SYSTEMCTL).args(["reset-failed", UNIT]),
            SHORT_LIMIT,
        );
        command.arg(UNIT);
    }
    finish(&mut command, LIMIT).with_context(|| format!("NFS-Ganesha: {verb} has failed"))
}

/// Runs a program to its end, and ends it after `limit`.
pub(in crate::cli) fn finish(command: &mut Command, limit: Duration) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut process = command
        .spawn()
        .with_context(|| format!("cannot run {name}"))?;
    let begin = Instant::now();
    loop {
        if let Some(status) = process.try_wait()? {
            if status.success() {
                return Ok(());
            }
            bail!("{name}: {status}\n  cure: run the command by hand and see its reason");
        }
        if begin.elapsed() >= limit {
            process.kill()?;
            process.wait()?;
            bail!(
                "{name} has not ended within {} s\n  cure: see whether the service, or the mount that it uses, hangs",
                limit.as_secs()
            );
        }
        sleep(LOOK_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_or_hangs_is_an_error_and_ends() {
        let mut good = Command::new("true");
        assert!(finish(&mut good, SHORT_LIMIT).is_ok());
        let mut bad = Command::new("false");
        let error = finish(&mut bad, SHORT_LIMIT).unwrap_err();
        assert!(error.to_string().contains("exit status: 1"), "{error}");
        let mut hanging = Command::new("sleep");
        let error = finish(hanging.arg("600"), Duration::from_millis(20)).unwrap_err();
        assert!(error.to_string().contains("has not ended"), "{error}");
        let mut missing = Command::new("/nowhere/program");
        let error = finish(&mut missing, SHORT_LIMIT).unwrap_err();
        assert!(error.to_string().contains("cannot run"), "{error}");
    }

    #[test]
    fn the_filter_of_connections_takes_both_families() {
        assert_eq!(filter_word("192.0.2.10".parse().unwrap()), "192.0.2.10");
        assert_eq!(
            filter_word("2001:db8::10".parse().unwrap()),
            "[2001:db8::10]"
        );
    }
}
