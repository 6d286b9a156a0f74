//! `lockstep init`: a node's identity, configuration and store, and what to do next.
//!
//! Invariants: nothing that exists is overwritten, everything asked for is checked before anything
//! is made, and what could be made only in part is removed again. The private key is never printed.

use std::fmt::Write as _;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use lockstep_driver::{Place, make_store_on_this_machine, prepare};
use lockstep_link::{Fingerprint, Identity};
use lockstep_types::DatastoreUuid;
use lockstepfs::config::{
    self, Choice, Draft, DraftPeer, NodeConfig, PeerAddress, Role, draft_text,
};

use super::mount_directory::{self, Protection};
use super::{absolute, one_of, say, say_json};

/// Name of the configuration file in the node's directory.
const CONFIG_FILE: &str = "node.toml";

/// Make this server a node: identity, configuration, store, and what to do next
///
/// Run it once on each server. On the first, it prints the command for the second. Nothing that
/// exists is overwritten; a store that holds this datastore already is kept. The mount directory, if it
/// is empty, is made immutable where its file system allows it, so that nothing is written into it
/// while nothing is mounted there; `chattr -i DIR` undoes that.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InitArgs {
    /// Directory for the identity (node.key, node.crt) and the configuration (node.toml)
    #[arg(long, value_name = "DIR", default_value = "/etc/lockstep")]
    dir: PathBuf,

    /// Name of this node
    #[arg(long)]
    name: String,

    /// Address and port of this server for replication
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:7400")]
    listen: SocketAddr,

    /// Unix socket for the commands [default: /run/lockstep/NAME.sock]
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,

    /// Name of the datastore
    #[arg(long, value_name = "NAME", default_value = "data")]
    datastore: String,

    /// Where programs find the directory [default: /srv/DATASTORE]
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,

    /// Where this node keeps the data [default: /var/lib/lockstep/DATASTORE]
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,

    /// What this node is [default: secondary when --uuid is given, else primary]
    #[arg(long, value_parser = one_of::<Role>())]
    role: Option<Role>,

    /// Identity of the datastore: on the second node, the one the first printed [default: a new one]
    #[arg(long)]
    uuid: Option<DatastoreUuid>,

    /// Address and port of the other node, if known
    #[arg(long, value_name = "ADDR")]
    peer: Option<PeerAddress>,

    /// Fingerprint of the other node, if known
    #[arg(long, value_name = "SHA256:…")]
    peer_fingerprint: Option<Fingerprint>,

    /// Keep one copy only, without a peer
    #[arg(long, conflicts_with_all = ["peer", "peer_fingerprint"])]
    unmirrored: bool,

    /// Print what was made as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  On the first server (10.0.0.1):
    lockstep init --name a --listen 10.0.0.1:7400 --peer 10.0.0.2:7400 --mount /srv/data
  On the second, as the first printed it:
    lockstep init --name b --listen 10.0.0.2:7400 --peer 10.0.0.1:7400 --mount /srv/data \\
      --uuid UUID --peer-fingerprint SHA256:…

Exit codes: 0 made, 2 could not be made (then nothing is left behind).";

pub(crate) fn run(args: InitArgs) -> Result<ExitCode> {
    let json = args.json;
    let plan = Plan::new(args)?;
    let text = plan.config_text()?;
    plan.refuse_existing()?;
    let made = plan.make(&text)?;
    if json {
        say_json(&plan.summary(&made))?;
    } else {
        say(&plan.next_steps(&made, &text))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is to be made, with every default settled.
struct Plan {
    directory: PathBuf,
    draft: Draft,
}

impl Plan {
    fn new(args: InitArgs) -> Result<Self> {
        let directory = absolute(&args.dir)?;
        let or_default = |path: Option<PathBuf>, default: String| match path {
            Some(path) => absolute(&path),
            None => Ok(PathBuf::from(default)),
        };
        let name = &args.datastore;
        let control = or_default(args.control, format!("/run/lockstep/{}.sock", args.name))?;
        let known = DraftPeer {
            address: args.peer,
            fingerprint: args.peer_fingerprint,
            ..DraftPeer::default()
        };
        let second = args.uuid.is_some();
        let draft = Draft {
            role: args.role.unwrap_or(if second {
                Role::Secondary
            } else {
                Role::Primary
            }),
            uuid: args.uuid.unwrap_or_else(DatastoreUuid::random),
            mount: or_default(args.mount, format!("/srv/{name}"))?,
            store: or_default(args.store, format!("/var/lib/lockstep/{name}"))?,
            peer: (!args.unmirrored).then_some(known),
            datastore: args.datastore,
            ..Draft::new(&args.name, &directory, &control, args.listen)
        };
        Ok(Self { directory, draft })
    }

    fn config_path(&self) -> PathBuf {
        self.directory.join(CONFIG_FILE)
    }

    /// The text of the configuration file; refused if anything but what is left open is wrong.
    fn config_text(&self) -> Result<String> {
        self.checked()
            .context("nothing was made, because the configuration would be wrong")?;
        Ok(draft_text(&self.draft)?)
    }

    /// The configuration, with something in place of what is left open.
    fn checked(&self) -> Result<NodeConfig> {
        let filled = Draft {
            peer: self.draft.peer.as_ref().map(filled_in).transpose()?,
            ..self.draft.clone()
        };
        Ok(config::parse(&draft_text(&filled)?, &self.config_path())?)
    }

    fn refuse_existing(&self) -> Result<()> {
        for name in [CONFIG_FILE, "node.key", "node.crt"] {
            let path = self.directory.join(name);
            if path.symlink_metadata().is_ok() {
                bail!(
                    "{} exists, and nothing that exists is overwritten\n  \
                     cure: choose another --dir, or move the old files away",
                    path.display()
                );
            }
        }
        Ok(())
    }

    fn make(&self, text: &str) -> Result<Made> {
        let mut directories = NewDirectories::default();
        directories.make(&self.directory)?;
        directories.make(&self.draft.mount)?;
        let had_store = self.draft.store.exists();
        let store = self.make_store().inspect_err(|_| {
            if !had_store {
                // Nothing of anybody's is in it.
                let _ = std::fs::remove_dir_all(&self.draft.store);
            }
        })?;
        let store = NewStore {
            path: store.then(|| self.draft.store.clone()),
            had_directory: had_store,
        };
        let config = NewFile::write(&self.config_path(), text)?;
        let identity = Identity::create(&self.directory, &self.draft.node)?;
        config.keep();
        directories.keep();
        Ok(Made {
            fingerprint: identity.fingerprint(),
            store: store.keep(),
            // Last: a directory that is immutable cannot be removed again.
            protection: mount_directory::protect(&self.draft.mount),
        })
    }

    /// Makes the store, unless there is one that fits; whether it was made.
    fn make_store(&self) -> Result<bool> {
        let node = self.checked()?;
        let config = node.datastores.first().context("there is no datastore")?;
        let made = make_store_on_this_machine(config)?;
        if !made {
            let place = Place::on_this_machine(config)?;
            prepare(config.clone(), place)?;
        }
        Ok(made)
    }

    fn summary(&self, made: &Made) -> serde_json::Value {
        serde_json::json!({
            "node": self.draft.node,
            "fingerprint": made.fingerprint.to_string(),
            "config": self.config_path(),
            "store": self.draft.store,
            "store_made": made.store,
            "mount": self.draft.mount,
            "mount_protection": made.protection.word(),
            "datastore": self.draft.datastore,
            "uuid": self.draft.uuid.to_string(),
            "role": self.draft.role,
            "ready": self.missing_lines().is_empty(),
        })
    }

    /// Keys of `[datastore.peer]` that are still to be filled in.
    fn missing_lines(&self) -> Vec<&'static str> {
        let Some(peer) = &self.draft.peer else {
            return Vec::new();
        };
        let missing = [
            ("address", peer.address.is_none()),
            ("fingerprint", peer.fingerprint.is_none()),
        ];
        missing
            .into_iter()
            .filter(|(_, missing)| *missing)
            .map(|(key, _)| key)
            .collect()
    }

    fn next_steps(&self, made: &Made, text: &str) -> String {
        let fingerprint = made.fingerprint;
        let config = shell(&self.config_path());
        let mut out = format!(
            "Made the identity and the configuration of node {:?} in {}.\n\n  \
             fingerprint  {fingerprint}\n  datastore    {:?}, uuid {}\n  role         {}\n  \
             store        {}\n  mount        {}\n\nNext:\n\n",
            self.draft.node,
            self.directory.display(),
            self.draft.datastore,
            self.draft.uuid,
            self.draft.role.word(),
            self.store_text(made.store),
            made.protection.text(&self.draft.mount),
        );
        let mut steps = self.pairing_steps(fingerprint, text);
        let (where_to, well) = if self.draft.peer.is_some() {
            ("On both servers", "in sync")
        } else {
            ("Here", "in order")
        };
        steps.push(format!(
            "{where_to}, as root:\n\n       lockstep node --config {config}"
        ));
        steps.push(format!(
            "Check it (exit code 0: {well}):\n\n       \
             lockstep status --config {config}\n\n   \
             Programs find the directory at {} on the primary.",
            self.draft.mount.display()
        ));
        for (number, step) in steps.iter().enumerate() {
            let _ = writeln!(out, "{}. {step}\n", number + 1);
        }
        out
    }

    fn store_text(&self, made: bool) -> String {
        let store = self.draft.store.display();
        if made {
            format!("{store}, made: empty, 194 MiB")
        } else {
            format!("{store}, which holds this datastore already, and is kept")
        }
    }

    fn pairing_steps(&self, fingerprint: Fingerprint, text: &str) -> Vec<String> {
        let Some(peer) = &self.draft.peer else {
            return Vec::new();
        };
        let own = self.own_address();
        let there = if peer.fingerprint.is_some() {
            format!(
                "On the other server, in its node.toml under [datastore.peer], put:\n\n       \
                 address = \"{own}\"\n       fingerprint = \"{fingerprint}\""
            )
        } else {
            format!(
                "On the other server, as root:\n\n{}",
                self.other_init(fingerprint, &own)
            )
        };
        [Some(there), self.fill_in(text)]
            .into_iter()
            .flatten()
            .collect()
    }

    /// What is still to be written into the file here, if anything: the node does not start before.
    fn fill_in(&self, text: &str) -> Option<String> {
        let missing = self.missing_lines();
        if missing.is_empty() {
            return None;
        }
        let printed = if missing.contains(&"fingerprint") {
            "That prints a fingerprint. "
        } else {
            ""
        };
        Some(format!(
            "{printed}Here, in {} under [datastore.peer] ({}),\n   \
             fill in the {} of the other server.",
            self.config_path().display(),
            open_lines(text),
            missing.join(" and the ")
        ))
    }

    /// The command that sets up the other server.
    fn other_init(&self, fingerprint: Fingerprint, own: &str) -> String {
        let draft = &self.draft;
        let listen = draft
            .peer
            .as_ref()
            .and_then(|peer| peer.address.as_ref())
            .map_or_else(
                || "ADDRESS-OF-THAT-SERVER:7400".to_owned(),
                ToString::to_string,
            );
        let role = match draft.role {
            Role::Primary => Role::Secondary,
            Role::Secondary => Role::Primary,
        };
        let other = if draft.node == "b" { "a" } else { "b" };
        format!(
            "       lockstep init --name {other} --dir {} --listen {listen} \\\n         \
             --peer {own} --peer-fingerprint {fingerprint} \\\n         \
             --datastore {} --uuid {} --role {} \\\n         \
             --mount {} --store {}",
            shell(&self.directory),
            draft.datastore,
            draft.uuid,
            role.word(),
            shell(&draft.mount),
            shell(&draft.store),
        )
    }

    /// This node's address as the other would write it.
    fn own_address(&self) -> String {
        let listen = self.draft.listen;
        if listen.ip().is_unspecified() {
            format!("ADDRESS-OF-THIS-SERVER:{}", listen.port())
        } else {
            listen.to_string()
        }
    }
}

/// What was made.
struct Made {
    fingerprint: Fingerprint,
    /// Whether the store was; if not, there was one.
    store: bool,
    protection: Protection,
}

/// A store that was made, and is removed again unless it is kept.
struct NewStore {
    path: Option<PathBuf>,
    had_directory: bool,
}

impl NewStore {
    /// Keeps it; whether it was made.
    fn keep(mut self) -> bool {
        self.path.take().is_some()
    }
}

impl Drop for NewStore {
    fn drop(&mut self) {
        let Some(path) = &self.path else { return };
        let entries = path.read_dir().into_iter().flatten().filter_map(Result::ok);
        for entry in entries {
            // All of it was made a moment ago, by this process.
            let _ = match entry.file_type() {
                Ok(kind) if kind.is_dir() => std::fs::remove_dir_all(entry.path()),
                _ => std::fs::remove_file(entry.path()),
            };
        }
        if !self.had_directory {
            let _ = std::fs::remove_dir(path);
        }
    }
}

/// The same peer with something valid in place of what is not known yet.
fn filled_in(peer: &DraftPeer) -> Result<DraftPeer> {
    Ok(DraftPeer {
        address: Some(match &peer.address {
            Some(address) => address.clone(),
            None => "other-node:7400".parse()?,
        }),
        fingerprint: Some(
            peer.fingerprint
                .unwrap_or_else(|| Fingerprint::of_certificate(&[])),
        ),
        encryption: peer.encryption,
    })
}

/// The lines of the keys that are left open, counted from one: `line 33`, or `lines 32 and 33`.
fn open_lines(text: &str) -> String {
    let lines = text.lines().zip(1..);
    let open: Vec<String> = lines
        .filter(|(line, _)| line.contains("FILL IN"))
        .map(|(_, number): (_, usize)| number.to_string())
        .collect();
    let plural = if open.len() == 1 { "" } else { "s" };
    format!("line{plural} {}", open.join(" and "))
}

/// Directories that did not exist before, and are removed again unless they are kept. What holds
/// something by then stays.
#[derive(Default)]
struct NewDirectories(Vec<PathBuf>);

impl NewDirectories {
    /// Makes the directory, and those above it that are missing.
    fn make(&mut self, path: &Path) -> Result<()> {
        self.make_missing(path)
            .with_context(|| format!("cannot make the directory {}", path.display()))
    }

    fn make_missing(&mut self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        if let Some(above) = path.parent() {
            self.make_missing(above)?;
        }
        match DirBuilder::new().mode(0o755).create(path) {
            Ok(()) => self.0.push(path.to_owned()),
            // Somebody else was faster: it is theirs.
            Err(_) if path.is_dir() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for NewDirectories {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            // Not empty, if it cannot be removed: then it is not ours alone any more.
            let _ = std::fs::remove_dir(path);
        }
    }
}

/// A file that did not exist before, and is removed again unless it is kept.
struct NewFile(Option<PathBuf>);

impl NewFile {
    fn write(path: &Path, text: &str) -> Result<Self> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        let made = Self(Some(path.to_owned()));
        file.write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(made)
    }

    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // We made it; if it cannot be removed, the next run says that it exists.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A path as a shell takes it.
fn shell(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%".contains(c);
    if text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        init: InitArgs,
    }

    fn plan(arguments: &[&str]) -> Plan {
        let line = [&["init", "--name", "a"][..], arguments].concat();
        Plan::new(Line::try_parse_from(line).unwrap().init).unwrap()
    }

    fn steps(arguments: &[&str]) -> String {
        let plan = plan(arguments);
        let made = Made {
            fingerprint: some_fingerprint(),
            store: true,
            protection: Protection::Immutable,
        };
        plan.next_steps(&made, &plan.config_text().unwrap())
    }

    fn some_fingerprint() -> Fingerprint {
        Fingerprint::of_certificate(&[])
    }

    #[test]
    fn whatever_is_left_open_is_to_be_filled_in() {
        let known = some_fingerprint().to_string();
        let (address, fingerprint) = (["--peer", "b:7400"], ["--peer-fingerprint", &known]);
        for (arguments, open) in [
            (&[][..], "fill in the address and the fingerprint of"),
            (&address[..], "fill in the fingerprint of"),
            (&fingerprint[..], "fill in the address of"),
        ] {
            let steps = steps(arguments);
            assert!(steps.contains(open), "{open} is not in:\n{steps}");
        }
        let nothing_open = steps(&[address, fingerprint].concat());
        assert!(!nothing_open.contains("fill in"), "{nothing_open}");
    }

    #[test]
    fn the_readme_shows_what_is_printed() {
        let readme = include_str!("../../README.md");
        let plan = plan(&["--listen", "10.0.0.1:7400", "--peer", "10.0.0.2:7400"]);
        let made = Made {
            fingerprint: some_fingerprint(),
            store: true,
            protection: Protection::Immutable,
        };
        let printed = plan
            .next_steps(&made, &plan.config_text().unwrap())
            .replace(&made.fingerprint.to_string(), "SHA256:…")
            .replace(&plan.draft.uuid.to_string(), "…");
        let first_step = printed.split("\n2. ").next().unwrap();
        assert!(
            readme.contains(first_step),
            "not in README.md:\n{first_step}"
        );
    }

    #[test]
    fn directories_that_are_not_kept_go_but_for_what_others_made_or_use() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        std::fs::create_dir(path("there")).unwrap();
        let mut made = NewDirectories::default();
        for name in ["there", "there/new", "a/b", "a/used"] {
            made.make(&path(name)).unwrap();
        }
        std::fs::write(path("a/used/file"), "").unwrap();
        drop(made);
        assert!(path("there").is_dir() && path("a/used/file").is_file());
        assert!(!path("there/new").exists() && !path("a/b").exists());

        let mut made = NewDirectories::default();
        made.make(&path("kept")).unwrap();
        made.keep();
        assert!(path("kept").is_dir());
    }

    #[test]
    fn paths_are_quoted_for_the_shell() {
        assert_eq!(shell(Path::new("/srv/data")), "/srv/data");
        assert_eq!(shell(Path::new("/srv/it's")), "'/srv/it'\\''s'");
    }
}
