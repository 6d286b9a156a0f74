//! `/sbin/mount.fuse.lockstep`: what `mount -t fuse.lockstep` and `/etc/fstab` run. This program is that
//! helper when it is called by that name.
//!
//! Starts the node of a configuration with one datastore, which this server is the primary of, and
//! returns when it is mounted. The node ends by itself, in order, when the mount is taken away. Exit codes
//! are those of mount(8): 0 mounted, 1 wrong call, 2 the system refused, 32 not mounted.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lockstep_fs::os_backing::OsBacking;
use lockstepfs::config::{self, DatastoreConfig, NodeConfig, Role};
use lockstepfs::control::ControlClient;
use lockstepfs::fuse::mount_table;
use rustix::mount::{MountFlags, mount_remount};

use super::{CONFIG_DEFAULT, background, chain};

/// The name of the helper, by which mount(8) finds it.
const NAME: &str = "mount.fuse.lockstep";

/// What the mount table shows before the name of a datastore.
const SOURCE_PREFIX: &str = "lockstep:";

/// How long a node that is just stopping, or just starting, is waited for.
const OTHER_NODE_MAX: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);

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
pub(super) fn is_called() -> bool {
    let called = std::env::args_os().next().map(PathBuf::from);
    called.is_some_and(|path| path.file_name().is_some_and(|name| name == NAME))
}

/// Does what mount(8) asks.
pub(super) fn run() -> ExitCode {
    let arguments: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let (code, error) = match Request::parse(&arguments) {
        Ok(request) => match request.fulfil() {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => (NOT_MOUNTED, chain(&error)),
        },
        Err(error) => (WRONG_CALL, format!("{}\n\n{USAGE}", chain(&error))),
    };
    // Nobody may be reading.
    let _ = writeln!(std::io::stderr(), "{NAME}: {error}");
    ExitCode::from(code)
}

/// What mount(8) asks for.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    name: String,
    directory: PathBuf,
    config: PathBuf,
    log: Option<PathBuf>,
    /// Of the mount alone, beside those that the node sets.
    flags: MountFlags,
    remount: bool,
    /// Only look whether it could be done (`-f`).
    fake: bool,
}

impl Request {
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
            request.take(option)?;
        }
        Ok(request)
    }

    /// Takes one option of the list.
    fn take(&mut self, option: &str) -> Result<()> {
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
            // Of mount(8) and systemd, or what every mount of Lockstep has.
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

    fn fulfil(&self) -> Result<()> {
        if self.remount {
            ensure!(
                self.is_mounted()?,
                "{} is not mounted on {}, so it cannot be mounted anew with other options\n  cure: mount it \
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
            background::start(&self.node()?, &log)?;
        }
        self.set_flags()
    }

    /// The datastore that is asked for is one that can be mounted there, and the only one of its node.
    fn check(&self, config: &NodeConfig) -> Result<()> {
        let datastore = super::named(config, &self.name)?;
        ensure!(
            datastore.role == Role::Primary,
            "{} is a secondary here: nothing is mounted on this server\n  cure: run `lockstep node` \
             instead, best as a systemd unit (docs/operations.md)",
            self.name
        );
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
            same_place(&self.directory, &datastore.mount),
            "the configuration mounts {} on {}, not on {}\n  cure: name that directory, or change `mount` in the \
             configuration",
            self.name,
            datastore.mount.display(),
            self.directory.display()
        );
        Ok(())
    }

    /// Waits until a node that is just stopping has stopped, or one that is starting has mounted.
    fn wait_for_other_node(&self, config: &NodeConfig) -> Result<()> {
        let deadline = Instant::now() + OTHER_NODE_MAX;
        loop {
            let asked = ControlClient::connect(&config.control);
            let status = asked.and_then(|mut client| client.status());
            let Ok(status) = status else {
                return Ok(());
            };
            if self.is_mounted()? {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "a node runs (process {}) and has not mounted {}\n  cure: see why by `lockstep status --config {}`",
                status.pid,
                self.name,
                self.config.display()
            );
            sleep(LOOK);
        }
    }

    /// A node that has stopped answers no more a moment before it lets go of its store. What is wrong with
    /// the store otherwise, the node says.
    fn wait_for_store(&self, config: &NodeConfig) -> Result<()> {
        let store = &super::named(config, &self.name)?.store;
        let deadline = Instant::now() + OTHER_NODE_MAX;
        let is_in_use = || {
            let taken = OsBacking::open(store).and_then(|backing| backing.lock_for_reading());
            taken.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        while is_in_use() && Instant::now() < deadline {
            sleep(LOOK);
        }
        Ok(())
    }

    /// The arguments of the node.
    fn node(&self) -> Result<Vec<String>> {
        let config = std::path::absolute(&self.config)?;
        let config = config
            .to_str()
            .context("the path of the configuration is not UTF-8")?;
        Ok(["--until-unmounted", "--config", config]
            .map(str::to_owned)
            .to_vec())
    }

    /// Whether the mount that the directory shows is the one that is asked for.
    fn is_mounted(&self) -> Result<bool> {
        let source = format!("{SOURCE_PREFIX}{}", self.name);
        let mounts = mount_table::mounts_on(&self.directory)?;
        Ok(mounts.last().is_some_and(|mount| mount.source == source))
    }

    /// Gives the mount its flags.
    fn set_flags(&self) -> Result<()> {
        let flags = self.flags | MountFlags::BIND;
        mount_remount(&self.directory, flags, "")
            .with_context(|| format!("cannot set the options of {}", self.directory.display()))
    }
}

/// Whether two paths of directories that exist lead to the same place.
fn same_place(one: &Path, other: &Path) -> bool {
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    one == other || whole(one) == whole(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &str) -> Result<Request> {
        let arguments: Vec<_> = arguments.split_whitespace().map(str::to_owned).collect();
        Request::parse(&arguments)
    }

    #[test]
    fn reads_what_mount_gives() {
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
    fn refuses_what_it_does_not_know() {
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
