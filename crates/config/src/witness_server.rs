//! The configuration of a witness: values, keys, the check, and the text of a new file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use lockstep_link::Fingerprint;

use super::problem::{ConfigError, Listed, Problems, Rejection};
use super::section::Section;
use super::sections::read_with;
use super::template::{toml_path, toml_text};
use super::value;

/// Sections of a file.
const DOCUMENT_KEYS: &[&str] = &["witness", "node"];
/// Keys of `[witness]`.
const WITNESS_KEYS: &[&str] = &["listen", "identity", "store"];
/// Keys of `[[node]]`.
const NODE_KEYS: &[&str] = &["name", "fingerprint"];

/// The checked configuration of a witness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WitnessServerConfig {
    /// Address for the nodes. The port is never zero.
    pub listen: SocketAddr,
    /// Directory with `node.key` and `node.crt`, made by `lockstep init`.
    pub identity: PathBuf,
    /// Directory of the records.
    pub store: PathBuf,
    /// The nodes that may use the witness: at least two, and all names and fingerprints are different.
    pub nodes: Vec<WitnessedNode>,
}

impl WitnessServerConfig {
    /// Returns the name of the node with this fingerprint.
    pub fn node_name(&self, fingerprint: Fingerprint) -> Option<&str> {
        let mut nodes = self.nodes.iter();
        let node = nodes.find(|node| node.fingerprint == fingerprint)?;
        Some(&node.name)
    }
}

/// A node that may use the witness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WitnessedNode {
    /// Name of the node, for people.
    pub name: String,
    /// Fingerprint of the node's certificate.
    pub fingerprint: Fingerprint,
}

/// Reads and checks a whole file.
pub(super) fn read(text: &str) -> Result<WitnessServerConfig, Listed> {
    read_with(text, read_document)
}

fn read_document(
    problems: &mut Problems<'_>,
    document: &Section<'_>,
) -> Option<WitnessServerConfig> {
    if document.has("datastore") {
        let rejection = Rejection::new(
            "this is the configuration of a node",
            "name the witness.toml of the witness with --config, or run `lockstep node`",
        );
        document.refuse_foreign(problems, "datastore", rejection);
        return None;
    }
    document.refuse_unknown(problems, DOCUMENT_KEYS);
    if !document.has("witness") {
        let example = "the section [witness], with listen, identity and store";
        document.report_missing(problems, "witness", example);
    }
    let nodes = read_nodes(problems, document);
    let section = document.table(problems, "witness", "[witness]")?;
    section.refuse_unknown(problems, WITNESS_KEYS);
    let listen = "listen = \"10.0.0.3:7400\", the address of this server for the nodes";
    let listen = section.required(problems, "listen", listen, value::listen_address);
    let identity = "identity = \"/etc/lockstep\", the directory made by `lockstep init --witness`";
    let identity = section.required(problems, "identity", identity, value::path);
    let store = "store = \"/var/lib/lockstep/witness\", where the witness keeps its records";
    let store = section.required(problems, "store", store, value::path);
    Some(WitnessServerConfig {
        listen: listen?,
        identity: identity?,
        store: store?,
        nodes,
    })
}

fn read_nodes(problems: &mut Problems<'_>, document: &Section<'_>) -> Vec<WitnessedNode> {
    let sections = document.tables(problems, "node");
    let count = sections.len();
    let mut names = BTreeMap::new();
    let mut fingerprints = BTreeMap::new();
    let mut nodes = Vec::new();
    for section in sections {
        section.refuse_unknown(problems, NODE_KEYS);
        let name = section.required(problems, "name", "name = \"a\"", value::name);
        let fingerprint = "fingerprint = \"SHA256:…\", as printed by `lockstep init` on that node";
        let fingerprint =
            section.required(problems, "fingerprint", fingerprint, value::fingerprint);
        let lines = section.key_lines(problems);
        let refuse = |problems: &mut Problems<'_>, key: &str, first: Option<usize>| {
            let Some(first) = first else { return };
            let cause = format!("the node at line {first} has the same {key}");
            let rejection = Rejection::new(cause, format!("give each node its own {key}"));
            problems.report(lines.line(key), &lines.title, key, rejection);
        };
        if let Some(name) = &name {
            let first = names.insert(name.clone(), lines.line("name"));
            refuse(problems, "name", first);
        }
        if let Some(fingerprint) = fingerprint {
            let first = fingerprints.insert(fingerprint, lines.line("fingerprint"));
            refuse(problems, "fingerprint", first);
        }
        if let (Some(name), Some(fingerprint)) = (name, fingerprint) {
            nodes.push(WitnessedNode { name, fingerprint });
        }
    }
    if count < 2 {
        let example = "a section [[node]] for each of the two nodes of a datastore";
        document.report_missing(problems, "node", example);
    }
    nodes
}

/// The values of a new configuration file of a witness.
#[derive(Clone, Debug)]
pub struct WitnessDraft {
    /// Address for the nodes.
    pub listen: SocketAddr,
    /// Directory with the witness's key and certificate.
    pub identity: PathBuf,
    /// Directory of the records.
    pub store: PathBuf,
    /// The known nodes. The text has a section to be filled in for each of the two nodes that is missing.
    pub nodes: Vec<WitnessedNode>,
}

/// Returns the text of the configuration file for `draft`.
pub fn witness_draft_text(draft: &WitnessDraft) -> Result<String, ConfigError> {
    let mut nodes: Vec<_> = draft
        .nodes
        .iter()
        .map(|node| node_text(&node.name, &node.fingerprint.to_string()))
        .collect();
    let is_free = |name: &&str| draft.nodes.iter().all(|node| node.name != **name);
    let missing = 2_usize.saturating_sub(nodes.len());
    for name in ["a", "b"].iter().filter(|name| is_free(name)).take(missing) {
        nodes.push(node_text(name, "FILL IN: fingerprint of that node"));
    }
    Ok(format!(
        "\
# Configuration of a Lockstep witness. Every key is described in docs/reference-config.md.
# Start the witness with:  lockstep witness --config FILE

[witness]
# Address for the nodes.
listen = {listen}
# Directory with node.key and node.crt. Keep the key secret: the nodes trust its owner.
identity = {identity}
# Directory of the records. A witness that lost them must not be started: see \"A lost witness\" in docs/operations/witness.md.
store = {store}

# The nodes that may use this witness.
{nodes}",
        listen = toml_text(&draft.listen.to_string()),
        identity = toml_path(&draft.identity)?,
        store = toml_path(&draft.store)?,
        nodes = nodes.join("\n"),
    ))
}

fn node_text(name: &str, fingerprint: &str) -> String {
    format!(
        "\
[[node]]
name = {name}
# Printed by `lockstep init` on that node, and by `lockstep status`.
fingerprint = {fingerprint}
",
        name = toml_text(name),
        fingerprint = toml_text(fingerprint),
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::parse_witness;
    use super::*;

    fn fingerprint(name: &str) -> Fingerprint {
        Fingerprint::of_certificate(name.as_bytes())
    }

    fn draft(names: &[&str]) -> WitnessDraft {
        let node = |name: &&str| WitnessedNode {
            name: (*name).to_owned(),
            fingerprint: fingerprint(name),
        };
        WitnessDraft {
            listen: SocketAddr::from(([10, 0, 0, 3], 7400)),
            identity: PathBuf::from("/etc/lockstep"),
            store: PathBuf::from("/var/lib/lockstep/witness"),
            nodes: names.iter().map(node).collect(),
        }
    }

    fn parse(text: &str) -> Result<WitnessServerConfig, ConfigError> {
        parse_witness(text, Path::new("/etc/witness.toml"))
    }

    fn refusal(from: &str, to: &str) -> String {
        let text = witness_draft_text(&draft(&["x", "y"])).unwrap();
        assert!(text.contains(from), "{from} is not in:\n{text}");
        parse(&text.replacen(from, to, 1)).unwrap_err().to_string()
    }

    #[test]
    fn a_complete_draft_is_valid() {
        let draft = draft(&["x", "y", "z"]);
        let config = parse(&witness_draft_text(&draft).unwrap()).unwrap();
        assert_eq!(config.listen, draft.listen);
        assert_eq!(config.identity, draft.identity);
        assert_eq!(config.store, draft.store);
        assert_eq!(config.nodes, draft.nodes);
        assert_eq!(config.node_name(fingerprint("y")), Some("y"));
        assert_eq!(config.node_name(fingerprint("a")), None);
    }

    #[test]
    fn a_draft_without_its_nodes_asks_for_each() {
        for (names, open) in [(&[][..], 2), (&["a"][..], 1), (&["b"][..], 1)] {
            let text = witness_draft_text(&draft(names)).unwrap();
            assert_eq!(text.matches("FILL IN").count(), open);
            let error = parse(&text).unwrap_err().to_string();
            assert_eq!(
                error.matches("is not a fingerprint").count(),
                open,
                "{error}"
            );
        }
    }

    #[test]
    fn every_mistake_names_its_line_its_cause_and_its_cure() {
        let known = fingerprint("y").to_string();
        for (from, to, line, cause) in [
            ("[witness]", "[wittness]", 4, "there is no such key here"),
            ("listen =", "lisen =", 6, "there is no such key here"),
            ("10.0.0.3:7400", "10.0.0.3:0", 6, "port 0 cannot be reached"),
            ("\"/etc/lockstep\"", "\"etc\"", 8, "is not an absolute path"),
            (
                "\"x\"",
                "\"y\"",
                19,
                "the node at line 14 has the same name",
            ),
            ("\"x\"", "\"-\"", 14, "cannot be a name"),
            ("SHA256:", "SHA1:", 16, "is not a fingerprint"),
            (
                &fingerprint("x").to_string(),
                &known,
                21,
                "the node at line 16 has the same fingerprint",
            ),
        ] {
            let text = refusal(from, to);
            assert!(text.contains(cause) && text.contains("cure:"), "{text}");
            assert!(
                text.contains(&format!("/etc/witness.toml:{line}: ")),
                "{line}: {text}"
            );
        }
        let one = witness_draft_text(&draft(&["x", "y"])).unwrap();
        let (one, _) = one.rsplit_once("[[node]]").unwrap();
        let error = parse(one).unwrap_err().to_string();
        assert!(error.contains("each of the two nodes"), "{error}");
    }
}
