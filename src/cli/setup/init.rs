//! `lockstep init`: makes a node's identity, configuration and store, and prints the next steps.
//!
//! Invariants: existing files are never overwritten. All arguments are checked before anything is made. After a
//! failure nothing of the new node is left. The private key is never printed.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use lockstep_driver::{Place, make_store_on_this_machine, prepare};
use lockstep_link::{Fingerprint, Identity};
use lockstep_types::DatastoreUuid;
use lockstepfs::config::{
    self, Choice, ConfigDraft, DatastoreConfig, DraftPeer, NodeConfig, PeerAddress, Role,
    draft_text,
};

use crate::cli::arguments::absolute;
use crate::cli::setup::init_ask_witness::{self, AskedWitnessArgs};
use crate::cli::setup::init_witness::{self, WitnessInitArgs, WitnessPlan};
use crate::cli::setup::mount_directory::{self, Protection};
use crate::cli::setup::new_files::{
    NewDirectories, NewStore, refuse_existing, remove_new, write_new,
};
use crate::cli::setup::setting::one_of;
use crate::cli::terminal::{open_lines, say, say_json, shell};

/// Name of the configuration file in the node's directory.
const CONFIG_FILE: &str = "node.toml";

/// Tells where programs find the directory of two nodes.
const STANDBY_HINT: &str = " on the primary;\n   on the other server they get \"Read-only file system\" until that server is the primary";

/// Make this server a node: identity, configuration, store, and the next steps
///
/// Run it once on each server. On the first, it prints the command for the second. Existing files are
/// never overwritten; a store that holds this datastore already is kept. An empty mount directory is made
/// immutable where its file system allows that, so that no program writes into it while nothing is mounted
/// there; `chattr -i DIR` undoes that.
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
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:7400", value_parser = listen_address)]
    listen: SocketAddr,

    /// Unix socket for the commands [default: /run/lockstep/NAME.sock]
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,

    /// Name of the datastore
    #[arg(long, value_name = "NAME", default_value = "data")]
    datastore: String,

    /// Mount directory, where programs find the data [default: /srv/DATASTORE]
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,

    /// Directory of the store [default: /var/lib/lockstep/DATASTORE]
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,

    /// Role with which the new store begins [default: secondary if --uuid is given, else primary]
    #[arg(long, value_parser = one_of::<Role>())]
    role: Option<Role>,

    /// UUID of the datastore: on the second node, the UUID that the first has printed [default: new]
    #[arg(long)]
    uuid: Option<DatastoreUuid>,

    #[command(flatten)]
    peer: PeerArgs,

    #[command(flatten)]
    witness: WitnessInitArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The other node, and the witness of both.
#[derive(Debug, Args)]
struct PeerArgs {
    /// Address and port of the other node, if known
    #[arg(long = "peer", value_name = "ADDR")]
    address: Option<PeerAddress>,

    /// Fingerprint of the other node, if known
    #[arg(long = "peer-fingerprint", value_name = "SHA256:…")]
    fingerprint: Option<Fingerprint>,

    /// Keep one copy only, without a peer
    #[arg(long, conflicts_with_all = ["address", "fingerprint"])]
    unmirrored: bool,

    #[command(flatten)]
    witness: AskedWitnessArgs,
}

/// A text that is no address to listen on.
#[derive(Debug, thiserror::Error)]
#[error(
    "write the address and a port, such as 10.0.0.1:7400, or 0.0.0.0:7400 for every address of this server"
)]
struct NotListenable;

fn listen_address(text: &str) -> Result<SocketAddr, NotListenable> {
    text.parse().map_err(|_| NotListenable)
}

const EXAMPLES: &str = "\
Examples:
  On the first server (10.0.0.1):
    lockstep init --name a --listen 10.0.0.1:7400 --peer 10.0.0.2:7400 --mount /srv/data
  On the second, as the first printed it:
    lockstep init --name b --listen 10.0.0.2:7400 --peer 10.0.0.1:7400 --mount /srv/data \\
      --uuid UUID --peer-fingerprint SHA256:…
  With a witness that runs already, on both:
    lockstep init … --ask-witness 10.0.0.3:7400=SHA256:…
  A witness, on a third server (10.0.0.3):
    lockstep init --witness --name w --listen 10.0.0.3:7400 --allow a=SHA256:… --allow b=SHA256:…

Exit codes: 0 made, 2 could not be made (then nothing is left behind).";

pub(crate) fn run(args: InitArgs) -> Result<ExitCode> {
    let json = args.json;
    if args.witness.is_asked() {
        return init_witness::run(&WitnessPlan {
            directory: absolute(&args.dir)?,
            name: args.name,
            listen: args.listen,
            store: args.store.as_deref().map(absolute).transpose()?,
            nodes: args.witness.nodes(),
            json,
        });
    }
    args.witness.refuse_for_node()?;
    let plan = InitPlan::new(args)?;
    let text = plan.config_text()?;
    refuse_existing(&plan.directory, CONFIG_FILE)?;
    let made = plan.make(&text)?;
    if json {
        say_json(&plan.summary(&made))?;
    } else {
        say(&plan.next_steps(&made, &text))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The node to be made, with all defaults filled in.
struct InitPlan {
    directory: PathBuf,
    draft: ConfigDraft,
}

impl InitPlan {
    fn new(args: InitArgs) -> Result<Self> {
        let directory = absolute(&args.dir)?;
        let or_default = |path: Option<PathBuf>, default: String| match path {
            Some(path) => absolute(&path),
            None => Ok(PathBuf::from(default)),
        };
        let name = &args.datastore;
        let control = or_default(args.control, format!("/run/lockstep/{}.sock", args.name))?;
        let known = DraftPeer {
            address: args.peer.address,
            fingerprint: args.peer.fingerprint,
            ..DraftPeer::default()
        };
        let second = args.uuid.is_some();
        let role = args.role.unwrap_or(if second {
            Role::Secondary
        } else {
            Role::Primary
        });
        let uuid = args.uuid.unwrap_or_else(DatastoreUuid::random);
        let store = or_default(args.store, format!("/var/lib/lockstep/{name}"))?;
        let mount = or_default(args.mount, format!("/srv/{name}"))?;
        let draft = ConfigDraft {
            datastore: DatastoreConfig::new(name, uuid, [store, mount], role),
            peer: (!args.peer.unmirrored).then_some(known),
            witness: args.peer.witness.witness(),
            ..ConfigDraft::new(&args.name, &directory, &control, args.listen)
        };
        Ok(Self { directory, draft })
    }

    fn config_path(&self) -> PathBuf {
        self.directory.join(CONFIG_FILE)
    }

    /// Returns the text of the configuration file. Unknown values of the peer may be missing; any other mistake is an
    /// error.
    fn config_text(&self) -> Result<String> {
        self.checked()
            .context("nothing was made, because the configuration would be wrong")?;
        Ok(draft_text(&self.draft)?)
    }

    /// Returns the checked configuration, with placeholders for the unknown values of the peer.
    fn checked(&self) -> Result<NodeConfig> {
        let filled = ConfigDraft {
            peer: self.draft.peer.as_ref().map(filled_in).transpose()?,
            ..self.draft.clone()
        };
        Ok(config::parse(&draft_text(&filled)?, &self.config_path())?)
    }

    fn make(&self, text: &str) -> Result<InitOutcome> {
        let mut directories = NewDirectories::default();
        directories.make(&self.directory)?;
        directories.make(&self.draft.datastore.mount)?;
        let had_store = self.draft.datastore.store.exists();
        let store = self.make_store().inspect_err(|_| {
            if !had_store {
                // The store did not exist before, so its files are all new.
                let _ = std::fs::remove_dir_all(&self.draft.datastore.store);
            }
        })?;
        let store = NewStore {
            path: store.then(|| self.draft.datastore.store.clone()),
            had_directory: had_store,
        };
        let config = self.config_path();
        write_new(&config, text)?;
        let identity = Identity::create(&self.directory, &self.draft.node.name)
            .inspect_err(|_| remove_new(&config))?;
        directories.keep();
        Ok(InitOutcome {
            fingerprint: identity.fingerprint(),
            store_made: store.keep(),
            // Last: an immutable directory could not be removed after a failure.
            protection: mount_directory::protect(&self.draft.datastore.mount),
        })
    }

    /// Makes the store, unless it exists and holds this datastore. Returns whether it was made.
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

    fn summary(&self, made: &InitOutcome) -> serde_json::Value {
        serde_json::json!({
            "node": self.draft.node.name,
            "fingerprint": made.fingerprint.to_string(),
            "config": self.config_path(),
            "store": self.draft.datastore.store,
            "store_made": made.store_made,
            "mount": self.draft.datastore.mount,
            "mount_protection": made.protection.word(),
            "datastore": self.draft.datastore.name,
            "uuid": self.draft.datastore.uuid.to_string(),
            "role": self.draft.datastore.role,
            "ready": self.missing_keys().is_empty(),
        })
    }

    /// Returns the keys of `[datastore.peer]` whose values are unknown.
    fn missing_keys(&self) -> Vec<&'static str> {
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

    fn next_steps(&self, made: &InitOutcome, text: &str) -> String {
        let fingerprint = made.fingerprint;
        let config = shell(&self.config_path());
        let mut out = format!(
            "Made the identity and the configuration of node {:?} in {}.\n\n  \
             fingerprint  {fingerprint}\n  datastore    {:?}, uuid {}\n  role         {}\n  \
             store        {}\n  mount        {}\n\nNext:\n\n",
            self.draft.node.name,
            self.directory.display(),
            self.draft.datastore.name,
            self.draft.datastore.uuid,
            self.draft.datastore.role.word(),
            self.store_text(made.store_made),
            made.protection.text(&self.draft.datastore.mount),
        );
        let mut steps = self.pairing_steps(fingerprint, text);
        steps.extend(self.allow_step(fingerprint));
        let (servers, healthy, standby) = if self.draft.peer.is_some() {
            ("On both servers", "in sync", STANDBY_HINT)
        } else {
            ("Here", "healthy", "")
        };
        steps.push(format!(
            "{servers}, as root:\n\n       lockstep node --config {config}"
        ));
        steps.push(format!(
            "Check it (exit code 0: {healthy}):\n\n       \
             lockstep status --config {config}\n\n   \
             Programs find the directory at {}{standby}.",
            self.draft.datastore.mount.display()
        ));
        steps.extend(self.offer_step(fingerprint));
        for (number, step) in steps.iter().enumerate() {
            let _ = writeln!(out, "{}. {step}\n", number + 1);
        }
        out
    }

    /// Returns the step on the witness, if this node has one that must know it.
    fn allow_step(&self, fingerprint: Fingerprint) -> Option<String> {
        let witness = self.draft.witness.as_ref()?;
        init_ask_witness::allow_step(witness, &self.draft.node.name, fingerprint)
    }

    /// Returns the step that adds a witness, on the second node: it knows both fingerprints.
    fn offer_step(&self, fingerprint: Fingerprint) -> Option<String> {
        let peer = self.draft.peer.as_ref()?.fingerprint?;
        let nodes = [
            (self.other_name(), peer),
            (&*self.draft.node.name, fingerprint),
        ];
        let has_witness = self.draft.witness.is_some();
        (!has_witness).then(|| init_ask_witness::offer_step(nodes))
    }

    /// A name for the other node, which this node does not know.
    fn other_name(&self) -> &'static str {
        if self.draft.node.name == "b" {
            "a"
        } else {
            "b"
        }
    }

    fn store_text(&self, made: bool) -> String {
        let store = self.draft.datastore.store.display();
        if made {
            format!("{store}, made: empty, 194 MiB")
        } else {
            format!("{store}, kept: it holds this datastore already")
        }
    }

    fn pairing_steps(&self, fingerprint: Fingerprint, text: &str) -> Vec<String> {
        let Some(peer) = &self.draft.peer else {
            return Vec::new();
        };
        let own = self.own_address();
        let on_other = if peer.fingerprint.is_some() {
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
        [Some(on_other), self.fill_in(text)]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Returns the step that fills in the unknown values, if there are any: the node does not start without them.
    fn fill_in(&self, text: &str) -> Option<String> {
        let missing = self.missing_keys();
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

    /// Returns the command that sets up the other server.
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
        let role = match draft.datastore.role {
            Role::Primary => Role::Secondary,
            Role::Secondary => Role::Primary,
        };
        let other = self.other_name();
        let witness = draft.witness.as_ref().map(init_ask_witness::options);
        let witness = witness.map_or_else(String::new, |options| format!(" \\\n        {options}"));
        format!(
            "       lockstep init --name {other} --dir {} --listen {listen} \\\n         \
             --peer {own} --peer-fingerprint {fingerprint} \\\n         \
             --datastore {} --uuid {} --role {} \\\n         \
             --mount {} --store {}{witness}",
            shell(&self.directory),
            draft.datastore.name,
            draft.datastore.uuid,
            role.word(),
            shell(&draft.datastore.mount),
            shell(&draft.datastore.store),
        )
    }

    /// Returns the address of this node for the configuration of the other node.
    fn own_address(&self) -> String {
        let listen = self.draft.node.listen;
        if listen.ip().is_unspecified() {
            format!("ADDRESS-OF-THIS-SERVER:{}", listen.port())
        } else {
            listen.to_string()
        }
    }
}

/// The result of the command.
struct InitOutcome {
    fingerprint: Fingerprint,
    /// Whether the store was made; `false` if it existed before.
    store_made: bool,
    protection: Protection,
}

/// Returns the peer with placeholders for its unknown values.
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        init: InitArgs,
    }

    fn plan(arguments: &[&str]) -> InitPlan {
        let line = [&["init", "--name", "a"][..], arguments].concat();
        InitPlan::new(Line::try_parse_from(line).unwrap().init).unwrap()
    }

    fn steps(arguments: &[&str]) -> String {
        let plan = plan(arguments);
        let made = InitOutcome {
            fingerprint: some_fingerprint(),
            store_made: true,
            protection: Protection::Immutable,
        };
        plan.next_steps(&made, &plan.config_text().unwrap())
    }

    fn some_fingerprint() -> Fingerprint {
        Fingerprint::of_certificate(&[])
    }

    #[test]
    fn an_address_to_listen_on_that_is_none_is_refused_with_the_cure() {
        for wrong in [
            "10.0.0.1",
            "node-a:7400",
            "7400",
            ":7400",
            "fd00::1:7400",
            "",
        ] {
            let line = ["init", "--name", "a", "--listen", wrong];
            let error = Line::try_parse_from(line).unwrap_err().to_string();
            assert!(error.contains("write the address and a port"), "{error}");
        }
    }

    #[test]
    fn unknown_values_are_to_be_filled_in() {
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
    fn the_page_on_the_set_up_shows_the_printed_steps() {
        let page = include_str!("../../../docs/set-up.md");
        let plan = plan(&["--listen", "10.0.0.1:7400", "--peer", "10.0.0.2:7400"]);
        let made = InitOutcome {
            fingerprint: some_fingerprint(),
            store_made: true,
            protection: Protection::Immutable,
        };
        let printed = plan
            .next_steps(&made, &plan.config_text().unwrap())
            .replace(&made.fingerprint.to_string(), "SHA256:…")
            .replace(&plan.draft.datastore.uuid.to_string(), "…");
        let first_step = printed.split("\n2. ").next().unwrap();
        assert!(
            page.contains(first_step),
            "not in docs/set-up.md:\n{first_step}"
        );
    }
}
