//! `lockstep keepalived-config`: prints a configuration of keepalived that keeps an address on the node that serves.
//!
//! Nothing is written or changed: the operator puts the text where keepalived reads it. `template` has the text and the
//! reasons for each of its settings.

mod error;
mod template;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use lockstepfs::config::{DatastoreConfig, NodeConfig};

use crate::cli::arguments::{ConfigArgs, absolute, find_datastore};
use crate::cli::terminal::{say, warn};
use error::KeepalivedError;
use template::{ClusterAddress, Ganesha, InterfaceName, PlainWord, Template, Timing};

/// Print a configuration of keepalived for an address that follows the primary
///
/// The address is on the node that serves the datastore, and never on both. So clients of an NFS, SMB or database server
/// need not know which node is the primary. keepalived asks `lockstep health` all the time, and moves the address with
/// VRRP. Run this command on both servers, as root, with the same --address and --router-id.
///
/// The command reads the configuration of the node for the addresses of both servers, and changes nothing.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeepalivedConfigArgs {
    /// Name of the datastore
    name: String,

    #[command(flatten)]
    config: ConfigArgs,

    /// The cluster address, with the length of its prefix
    #[arg(long, value_name = "ADDRESS/PREFIX")]
    address: ClusterAddress,

    /// The network interface that gets the address
    #[arg(long)]
    interface: InterfaceName,

    /// Number of the virtual router: the same on both servers, and used by no other virtual router of that network
    #[arg(long, value_name = "N", default_value_t = 51, value_parser = clap::value_parser!(u8).range(1..))]
    router_id: u8,

    /// Address of this server on that network; without it, the address of `listen` in the configuration
    #[arg(long, value_name = "ADDRESS")]
    source: Option<IpAddr>,

    /// Address of the other server on that network; without it, the peer's address in the configuration
    #[arg(long, value_name = "ADDRESS")]
    peer: Option<IpAddr>,

    /// Program that keepalived runs after each move, with `INSTANCE NAME STATE PRIORITY` behind its own arguments
    ///
    /// STATE is MASTER on the server that has got the address, and BACKUP or FAULT on the server that has not. For
    /// example a script that starts and stops the programs which use the datastore.
    #[arg(long, value_name = "PROGRAM")]
    notify: Option<PathBuf>,

    /// Have NFS-Ganesha stop on the server whose node does not serve, and start anew where the node begins to serve
    ///
    /// keepalived then runs `lockstep ganesha-follow`, which calls `systemctl`. With a PROGRAM that command runs `PROGRAM
    /// restart` and `PROGRAM stop` instead.
    #[arg(long, value_name = "PROGRAM", num_args = 0..=1, require_equals = true)]
    #[expect(clippy::option_option, reason = "an option with an optional value")]
    ganesha: Option<Option<PathBuf>>,

    /// The program that keepalived runs; without it, this program
    #[arg(long, value_name = "PROGRAM")]
    program: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  lockstep keepalived-config data --address 192.0.2.10/24 --interface eth0 > keepalived.conf && cp keepalived.conf /etc/keepalived/
  lockstep keepalived-config data --address 192.0.2.10/24 --interface eth0 --notify /usr/local/sbin/on-move
  lockstep keepalived-config data --address 192.0.2.10/24 --interface eth0 --ganesha

Exit codes: 0 printed; 2 could not: see the reason.";

pub(crate) fn run(args: &KeepalivedConfigArgs) -> Result<ExitCode> {
    let node = args.config.load()?;
    let datastore = find_datastore(&node, &args.name)?;
    let [source, peer] = servers(args, &node, datastore)?;
    let template = Template {
        datastore: PlainWord::new("the name of the datastore", &datastore.name)?,
        node: PlainWord::new("the name of the node", &node.name)?,
        address: args.address,
        interface: args.interface.clone(),
        router_id: args.router_id,
        source,
        peer,
        program: path_word("the path of the program", &program(args)?)?,
        config: path_word("the path of the configuration", &args.config.config)?,
        notify: args
            .notify
            .as_deref()
            .map(|path| path_word("the path of --notify", path))
            .transpose()?,
        ganesha: args
            .ganesha
            .as_ref()
            .map(|it| ganesha(it.as_deref()))
            .transpose()?,
        timing: Timing::DEFAULT,
    };
    template.check()?;
    if !Path::new("/sys/class/net")
        .join(args.interface.as_str())
        .exists()
    {
        warn(&format!(
            "warning: this server has no network interface {} now; keepalived does not start without it",
            args.interface.as_str()
        ));
    }
    say(&template.text())?;
    Ok(ExitCode::SUCCESS)
}

/// The addresses of this server and of the other one.
fn servers(
    args: &KeepalivedConfigArgs,
    node: &NodeConfig,
    datastore: &DatastoreConfig,
) -> Result<[IpAddr; 2], KeepalivedError> {
    let Some(peer) = &datastore.peer else {
        return Err(KeepalivedError::NotMirrored {
            name: datastore.name.clone(),
        });
    };
    let listen = node.link.as_ref().map(|link| link.listen.ip());
    let source = args.source.or(listen.filter(|ip| !ip.is_unspecified()));
    let host = peer.address.host();
    let peer = args.peer.or_else(|| host.parse().ok());
    match (source, peer) {
        (Some(source), Some(peer)) => Ok([source, peer]),
        (None, _) => Err(KeepalivedError::NoSource),
        (_, None) => Err(KeepalivedError::NoPeer {
            host: host.to_owned(),
        }),
    }
}

/// The way to start and stop Ganesha.
fn ganesha(program: Option<&Path>) -> Result<Ganesha> {
    Ok(match program {
        Some(path) => Ganesha::Program(path_word("the path of --ganesha", path)?),
        None => Ganesha::Unit,
    })
}

/// The program that keepalived runs.
fn program(args: &KeepalivedConfigArgs) -> Result<PathBuf> {
    match &args.program {
        Some(program) => Ok(program.clone()),
        None => std::env::current_exe().context("cannot find the path of this program"),
    }
}

fn path_word(what: &'static str, path: &Path) -> Result<PlainWord> {
    let path = absolute(path)?;
    Ok(PlainWord::new(what, &path.to_string_lossy())?)
}
