//! `lockstep init --witness`: makes a witness's identity, configuration and empty store, and prints the next steps.
//!
//! Invariants: existing files are never overwritten. After a failure nothing of the new witness is left.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use clap::Args;
use lockstep_link::identity::{CERTIFICATE_FILE, KEY_FILE};
use lockstep_link::{Fingerprint, FingerprintError, Identity};
use lockstep_witness::{WitnessConfig, WitnessStore};
use lockstepfs::config::{
    self, WitnessDraft, WitnessedNode, witness_draft_text, witness_section_text,
};

use crate::cli::setup::new_files::{NewDirectories, refuse_existing, remove_new, write_new};
use crate::cli::terminal::{open_lines, say, say_json, shell};

/// Name of the configuration file in the witness's directory.
const CONFIG_FILE: &str = "witness.toml";

/// Default directory of the store.
const STORE_DEFAULT: &str = "/var/lib/lockstep/witness";

/// The arguments that only a witness has.
#[derive(Debug, Args)]
pub(in crate::cli) struct WitnessInitArgs {
    /// Make this server a witness instead of a node
    #[arg(long, conflicts_with_all = [
        "control", "datastore", "mount", "role", "uuid", "address", "fingerprint", "unmirrored", "own", "etcd",
    ])]
    witness: bool,

    /// With --witness: a node that may use the witness, by name and fingerprint; once for each node
    #[arg(long = "allow", value_name = "NAME=SHA256:…")]
    nodes: Vec<NamedNode>,
}

impl WitnessInitArgs {
    /// Whether a witness is to be made.
    pub(in crate::cli) const fn is_asked(&self) -> bool {
        self.witness
    }

    /// Refuses what only a witness has, for a node.
    pub(in crate::cli) fn refuse_for_node(&self) -> Result<()> {
        if !self.nodes.is_empty() {
            bail!(
                "--allow names the nodes of a witness, and this is to be a node\n  \
                 cure: add --witness to make a witness; to name the witness of a node, use --ask-witness"
            );
        }
        Ok(())
    }

    /// The known nodes.
    pub(in crate::cli) fn nodes(self) -> Vec<WitnessedNode> {
        self.nodes.into_iter().map(|NamedNode(node)| node).collect()
    }
}

/// A node as the command line names it.
#[derive(Clone, Debug)]
struct NamedNode(WitnessedNode);

/// A text that names no node.
#[derive(Debug, thiserror::Error)]
enum NamedNodeError {
    #[error("{0:?} is not NAME=FINGERPRINT, such as a=SHA256:…")]
    NoName(String),
    #[error(transparent)]
    Fingerprint(#[from] FingerprintError),
}

impl FromStr for NamedNode {
    type Err = NamedNodeError;

    fn from_str(text: &str) -> Result<Self, NamedNodeError> {
        let (name, fingerprint) = text
            .split_once('=')
            .ok_or_else(|| NamedNodeError::NoName(text.to_owned()))?;
        Ok(Self(WitnessedNode {
            name: name.to_owned(),
            fingerprint: fingerprint.parse()?,
        }))
    }
}

/// The witness to be made.
pub(in crate::cli) struct WitnessPlan {
    pub(in crate::cli) directory: PathBuf,
    pub(in crate::cli) name: String,
    pub(in crate::cli) listen: SocketAddr,
    /// `None` for the default.
    pub(in crate::cli) store: Option<PathBuf>,
    pub(in crate::cli) nodes: Vec<WitnessedNode>,
    pub(in crate::cli) json: bool,
}

pub(in crate::cli) fn run(plan: &WitnessPlan) -> Result<ExitCode> {
    let text = plan.config_text()?;
    refuse_existing(&plan.directory, CONFIG_FILE)?;
    let fingerprint = plan.make(&text)?;
    if plan.json {
        say_json(&plan.summary(fingerprint))?;
    } else {
        say(&plan.next_steps(fingerprint, &text))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl WitnessPlan {
    fn store(&self) -> &Path {
        self.store.as_deref().unwrap_or(Path::new(STORE_DEFAULT))
    }

    fn config_path(&self) -> PathBuf {
        self.directory.join(CONFIG_FILE)
    }

    fn is_complete(&self) -> bool {
        self.nodes.len() >= 2
    }

    /// Returns the text of the configuration file. Nodes may be missing; any other mistake is an error.
    fn config_text(&self) -> Result<String> {
        let draft = |nodes| WitnessDraft {
            listen: self.listen,
            identity: self.directory.clone(),
            store: self.store().to_owned(),
            nodes,
        };
        let mut filled = self.nodes.clone();
        for name in ["placeholder-1", "placeholder-2"] {
            filled.push(WitnessedNode {
                name: name.to_owned(),
                fingerprint: Fingerprint::of_certificate(name.as_bytes()),
            });
        }
        let filled = witness_draft_text(&draft(filled))?;
        config::parse_witness(&filled, &self.config_path())
            .context("nothing was made, because the configuration would be wrong")?;
        Ok(witness_draft_text(&draft(self.nodes.clone()))?)
    }

    fn make(&self, text: &str) -> Result<Fingerprint> {
        let mut directories = NewDirectories::default();
        directories.make(&self.directory)?;
        directories.make(self.store())?;
        let config = self.config_path();
        write_new(&config, text)?;
        let identity =
            Identity::create(&self.directory, &self.name).inspect_err(|_| remove_new(&config))?;
        // The store is made last: it is the only step that may find files of another program.
        WitnessStore::create(self.store()).inspect_err(|_| {
            for name in [CONFIG_FILE, KEY_FILE, CERTIFICATE_FILE] {
                remove_new(&self.directory.join(name));
            }
        })?;
        directories.keep();
        Ok(identity.fingerprint())
    }

    fn summary(&self, fingerprint: Fingerprint) -> serde_json::Value {
        serde_json::json!({
            "witness": self.name,
            "fingerprint": fingerprint.to_string(),
            "config": self.config_path(),
            "listen": self.listen.to_string(),
            "store": self.store(),
            "ready": self.is_complete(),
        })
    }

    fn next_steps(&self, fingerprint: Fingerprint, text: &str) -> String {
        let config = shell(&self.config_path());
        let mut out = format!(
            "Made the identity, the configuration and the empty store of witness {:?} in {}.\n\n  \
             fingerprint  {fingerprint}\n  address      {}\n  store        {}\n\nNext:\n\n",
            self.name,
            self.directory.display(),
            self.listen,
            self.store().display(),
        );
        let mut steps = Vec::new();
        if !self.is_complete() {
            steps.push(format!(
                "Here, in {} ({}),\n   fill in the fingerprint of each node. `lockstep init` has printed it, and \
                 `lockstep status` shows it.",
                self.config_path().display(),
                open_lines(text),
            ));
        }
        steps.push(format!(
            "Here, as root:\n\n       lockstep witness --config {config}"
        ));
        steps.push(format!(
            "Check it (exit code 0: it runs):\n\n       lockstep witness-status --config {config}"
        ));
        steps.push(self.node_step(fingerprint));
        for (number, step) in steps.iter().enumerate() {
            let _ = writeln!(out, "{}. {step}\n", number + 1);
        }
        out
    }

    /// Returns the step that lets both nodes ask this witness.
    fn node_step(&self, fingerprint: Fingerprint) -> String {
        let section = witness_section_text(&WitnessConfig::Own {
            address: self.listen.into(),
            fingerprint,
        });
        let mut lines = String::new();
        for line in section.lines() {
            let _ = writeln!(lines, "       {line}");
        }
        let unknown = if self.listen.ip().is_unspecified() {
            "\n   (with the address of this server, as the nodes reach it)"
        } else {
            ""
        };
        format!(
            "On both nodes, the secondary first: put these lines into node.toml, behind the section [datastore.peer]{unknown},\n   \
             remove the line pause_limit_ms there, and start the node again:\n\n{lines}\n   \
             Then `lockstep status` on the primary says that the witness answers and protects."
        )
    }
}
