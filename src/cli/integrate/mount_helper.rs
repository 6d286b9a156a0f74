//! `/sbin/mount.fuse.lockstep`, the helper of mount(8) for `mount -t fuse.lockstep` and `/etc/fstab`. This program
//! acts as the helper when it is called by that name.
//!
//! The helper starts a node whose configuration has one datastore, and returns when the datastore is mounted. On the
//! secondary the mount is in standby. After an unmount the node shuts down cleanly by itself. Exit codes are those of
//! mount(8): 0 mounted, 1 wrong call, 32 not mounted.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lockstep_fs::os_backing::OsBacking;
use lockstep_mount::mount_table;
use lockstepfs::config::{self, DatastoreConfig, NodeConfig};
use lockstepfs::control::ControlClient;
use rustix::mount::{MountFlags, mount_remount};

use crate::cli::arguments::{CONFIG_DEFAULT, find_datastore};
use crate::cli::operate::background;
use crate::cli::outcome::chain;

/// The name by which mount(8) finds the helper.
const NAME: &str = "mount.fuse.lockstep";

/// The prefix of a datastore's name in the mount table.
const SOURCE_PREFIX: &str = "lockstep:";

/// Longest wait for a node that is stopping or starting.
const OTHER_NODE_MAX: Duration = Duration::from_secs(60);
/// Pause between two checks of that node.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Exit codes of mount(8).
const WRONG_CALL: u8 = 1;
const NOT_MOUNTED: u8 = 32;

const USAGE: &str = "\
Usage: mount.fuse.lockstep SOURCE DIR [-o OPTIONS]      (called by mount(8))

SOURCE is the name of the datastore, or lockstep:NAME. Options besides those of every mount (ro, rw,
suid, dev, exec and their opposites, noatime, remount, nofail, _netdev, x-systemd.*):
  config=FILE   configuration of the node, with this one datastore (/etc/lockstep/node.toml)
  log=FILE      where the log of the node goes (/var/log/lockstep.NAME.log)

Exit codes: 0 mounted, 1 wrong call, 32 not mounted.";

/// Whether this program was called as the helper.
pub(in crate::cli) fn is_called() -> bool {
    let called = std::env::args_os().next().map(PathBuf::from);
    called.is_some_and(|path| path.file_name().is_some_and(|name| name == NAME))
}

/// Carries out the call of mount(8).
pub(in crate::cli) fn run() -> ExitCode {
    let arguments: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let (code, error) = match MountRequest::parse(&arguments) {
        Ok(request) => match request.execute() {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => (NOT_MOUNTED, chain(&error)),
        },
        Err(error) => (WRONG_CALL, format!("{}\n\n{USAGE}", chain(&error))),
    };
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr(), "{NAME}: {error}");
    ExitCode::from(code)
}

/// One call of mount(8).
#[derive(Debug, PartialEq, Eq)]
struct MountRequest {
    name: String,
    directory: PathBuf,
    config: PathBuf,
    log: Option<PathBuf>,
    /// Flags of the mount, besides those that the node sets.
    flags: MountFlags,
    remount: bool,
    /// Only check whether the mount is possible (`-f`).
    fake: bool,
}

impl MountRequest {
    fn parse(arguments: &[String]) -> Result<Self> {
        let mut places = Vec::new();
        let (mut options, mut fake) = (Vec::new(), false);
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "-o" => options.extend(rest.next().context("-o needs options")?.split(',')),
                "-t" | "-N" => drop(rest.next().context("an option lacks its value")?),
                "-f" => fake = true,
                "-n" | "-s" | "-v" => {}
                unknown if unknown.starts_with('-') => bail!("unknown option {unknown}"),
                place => places.push(place),
            }
        }
        let [source, directory] = places[..] else {
            bail!("a source and a directory are needed");
        };
        let mut request = Self {
            name: source
                .strip_prefix(SOURCE_PREFIX)
                .unwrap_or(source)
                .to_owned(),
            directory: std::path::absolute(directory)?,
            config: CONFIG_DEFAULT.into(),
            log: None,
            flags: MountFlags::NOATIME,
            remount: false,
            fake,
        };
        for option in options {
            request.apply(option)?;
        }
        Ok(request)
    }

    /// Applies one option of the list.
    fn apply(&mut self, option: &str) -> Result<()> {
        match option.split_once('=').unwrap_or((option, "")) {
            ("ro", "") => self.flags |= MountFlags::RDONLY,
            ("rw", "") => self.flags -= MountFlags::RDONLY,
            ("nosuid", "") => self.flags |= MountFlags::NOSUID,
            ("suid", "") => self.flags -= MountFlags::NOSUID,
            ("nodev", "") => self.flags |= MountFlags::NODEV,
            ("dev", "") => self.flags -= MountFlags::NODEV,
            ("noexec", "") => self.flags |= MountFlags::NOEXEC,
            ("exec", "") => self.flags -= MountFlags::NOEXEC,
            ("remount", "") => self.remount = true,
            ("config", file) => self.config = file.into(),
            ("log", file) => self.log = Some(file.into()),
            // Options for mount(8) and systemd, and options that every mount of Lockstep has.
            (
                ""
                | "defaults"
                | "auto"
                | "noauto"
                | "nofail"
                | "_netdev"
                | "noatime"
                | "relatime"
                | "nodiratime"
                | "allow_other"
                | "default_permissions"
                | "comment",
                _,
            ) => {}
            (other, _) if other.starts_with("x-") || other.starts_with("X-") => {}
            (other, _) => bail!("unknown mount option {other}"),
        }
        Ok(())
    }

    fn execute(&self) -> Result<()> {
        if self.remount {
            ensure!(
                self.is_mounted()?,
                "{} is not mounted on {}, so it cannot be remounted with other options\n  cure: mount it \
                 without `remount`",
                self.name,
                self.directory.display()
            );
            return self.set_flags();
        }
        let config = config::load(&self.config)?;
        self.check(&config)?;
        if self.fake {
            return Ok(());
        }
        self.wait_for_other_node(&config)?;
        if !self.is_mounted()? {
            self.wait_for_store(&config)?;
            let log = self.log.clone();
            let log = log.unwrap_or_else(|| format!("/var/log/lockstep.{}.log", self.name).into());
            background::start(&self.node_arguments()?, &log)?;
        }
        self.set_flags()
    }

    /// Checks that the datastore can be mounted there, and is the only one of its node.
    fn check(&self, config: &NodeConfig) -> Result<()> {
        let datastore = find_datastore(config, &self.name)?;
        ensure!(
            config.datastores.len() == 1,
            "{} has {} datastores, and a node serves all of them\n  cure: run `lockstep node` instead, or \
             give this datastore a configuration of its own with -o config=FILE",
            self.config.display(),
            config.datastores.len()
        );
        self.check_directory(datastore)
    }

    fn check_directory(&self, datastore: &DatastoreConfig) -> Result<()> {
        ensure!(
            is_same_directory(&self.directory, &datastore.mount),
            "the configuration mounts {} on {}, not on {}\n  cure: name that directory, or change `mount` in the \
             configuration",
            self.name,
            datastore.mount.display(),
            self.directory.display()
        );
        Ok(())
    }

    /// Waits until a stopping node has stopped, or a starting node has mounted.
    fn wait_for_other_node(&self, config: &NodeConfig) -> Result<()> {
        let deadline = Instant::now() + OTHER_NODE_MAX;
        loop {
            let client = ControlClient::connect(&config.control);
            let status = client.and_then(|mut client| client.status());
            let Ok(status) = status else {
                return Ok(());
            };
            if self.is_mounted()? {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "a node runs (process {}) and has not mounted {}\n  cure: see the reason in `lockstep status --config {}`",
                status.pid,
                self.name,
                self.config.display()
            );
            sleep(POLL_INTERVAL);
        }
    }

    /// Waits until a stopping node has released the store: its control socket ends a moment before. Other errors of
    /// the store are left to the new node, which reports them.
    fn wait_for_store(&self, config: &NodeConfig) -> Result<()> {
        let store = &find_datastore(config, &self.name)?.store;
        let deadline = Instant::now() + OTHER_NODE_MAX;
        let is_in_use = || {
            let locked = OsBacking::open(store).and_then(|backing| backing.lock_for_reading());
            locked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        while is_in_use() && Instant::now() < deadline {
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Returns the arguments of the node.
    fn node_arguments(&self) -> Result<Vec<String>> {
        let config = std::path::absolute(&self.config)?;
        let config = config
            .to_str()
            .context("the path of the configuration is not UTF-8")?;
        Ok(["--until-unmounted", "--config", config]
            .map(str::to_owned)
            .to_vec())
    }

    /// Whether the visible mount of the directory is this datastore.
    fn is_mounted(&self) -> Result<bool> {
        let source = format!("{SOURCE_PREFIX}{}", self.name);
        let mounts = mount_table::mounts_on(&self.directory)?;
        Ok(mounts.last().is_some_and(|mount| mount.source == source))
    }

    /// Sets the flags of the mount.
    fn set_flags(&self) -> Result<()> {
        let flags = self.flags | MountFlags::BIND;
        mount_remount(&self.directory, flags, "")
            .with_context(|| format!("cannot set the options of {}", self.directory.display()))
    }
}

/// Whether two paths of existing directories lead to the same directory.
fn is_same_directory(one: &Path, other: &Path) -> bool {
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    one == other || whole(one) == whole(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &str) -> Result<MountRequest> {
        let arguments: Vec<_> = arguments.split_whitespace().map(str::to_owned).collect();
        MountRequest::parse(&arguments)
    }

    #[test]
    fn reads_the_arguments_of_mount() {
        let request = parsed(
            "lockstep:data /srv/data -n -o rw,nosuid,_netdev,x-systemd.requires=a,config=/c",
        )
        .unwrap();
        assert_eq!(
            (&*request.name, request.directory.to_str()),
            ("data", Some("/srv/data"))
        );
        assert_eq!(request.config, Path::new("/c"));
        assert_eq!(request.flags, MountFlags::NOATIME | MountFlags::NOSUID);
        let request = parsed("data /d -o ro,remount,nodev -o dev").unwrap();
        assert_eq!(request.flags, MountFlags::NOATIME | MountFlags::RDONLY);
        assert!(request.remount && !request.fake);
        assert_eq!(request.config, Path::new(CONFIG_DEFAULT));
    }

    #[test]
    fn refuses_unknown_arguments() {
        for wrong in [
            "data",
            "data /d /e",
            "data /d -o quota",
            "data /d -x",
            "data /d -o",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
