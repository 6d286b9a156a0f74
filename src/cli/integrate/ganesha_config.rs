//! `lockstep ganesha-config`: the configuration of NFS-Ganesha that exports a datastore, for both nodes.
//!
//! Invariants of the text:
//! - it depends only on the options, the mount point and the UUID, so both nodes print the same text;
//! - no option and no path can end a value and begin another one.

use std::fmt::Write;
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use lockstep_types::limits::WRITE_BYTES_MAX;
use lockstepfs::config::{DatastoreConfig, Standby};

use crate::cli::arguments::{ConfigArgs, find_datastore};
use crate::cli::terminal::{say, warn};

/// Directory of the datastore's root in which Ganesha keeps the names of its clients of NFS version 4.
const RECOVERY_DIRECTORY: &str = ".lockstep-nfs";
/// Port of the MOUNT protocol, for firewalls.
const MOUNT_PORT: u16 = 20_048;
/// Time after which a client of NFS version 4 that is silent loses its state, in seconds. Ganesha looks every half of it
/// whether the time of [`GRACE_SECONDS`] may end, so a failover stops opens for about as long. A shorter lease costs the locks
/// of a client that is cut off for a few seconds. docs/hypervisors.md has the measured waits of other values.
const LEASE_SECONDS: u32 = 8;
/// The longest time in which clients of NFS version 4 take their state back after a start, in seconds. A failover takes so long if
/// a client has died with the server. A client finds the new server within two thirds of a lease and a few seconds for its
/// connection.
const GRACE_SECONDS: u32 = 12;

/// Print the configuration of NFS-Ganesha that exports a datastore
///
/// Install NFS-Ganesha on both servers, and run this command there with the same options. Both nodes need the same
/// `mount`, and `standby = "eagain"`. The text has a comment for each line. docs/hypervisors.md has the steps, and the
/// settings of the hypervisors.
///
/// Each Ganesha exports one datastore.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GaneshaConfigArgs {
    /// Name of the datastore
    name: String,

    #[command(flatten)]
    config: ConfigArgs,

    /// Clients with access: a network such as 10.0.0.0/24, an address, or a host name; several with commas. Without
    /// this option no client has access
    #[arg(long, value_name = "CLIENT", value_delimiter = ',', value_parser = client)]
    clients: Vec<String>,

    /// Versions of NFS
    #[arg(
        long,
        value_name = "VERSION",
        value_delimiter = ',',
        default_value = "3,4"
    )]
    nfs: Vec<NfsVersion>,
}

const EXAMPLES: &str = "\
Examples:
  lockstep ganesha-config data --clients 10.0.0.0/24 > ganesha.conf && cp ganesha.conf /etc/ganesha/
  lockstep ganesha-config data --clients 10.0.0.11,10.0.0.12 --nfs 3

Exit codes: 0 printed, 2 could not.";

/// A version of NFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum NfsVersion {
    /// NFS version 3
    #[value(name = "3")]
    Three,
    /// NFS versions 4.0, 4.1 and 4.2
    #[value(name = "4")]
    Four,
}

/// A path that Ganesha's configuration cannot hold.
#[derive(Debug, thiserror::Error)]
#[error(
    "the mount point {mount:?} cannot be exported: Ganesha takes paths of printable characters without quotation mark, \
     backslash and space\n  cure: change `mount` of the datastore on both nodes"
)]
struct UnfitMount {
    mount: std::path::PathBuf,
}

/// Not a client of an export.
#[derive(Debug, thiserror::Error)]
#[error(
    "name a network (10.0.0.0/24, fd00::/64), an address, or a host name, `*` for every client"
)]
struct NotAClient;

fn client(text: &str) -> Result<String, NotAClient> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || ".:/*?-_@".contains(c);
    let is_network = |(address, prefix): (&str, &str)| {
        let bits = address
            .parse()
            .map(|ip: IpAddr| if ip.is_ipv4() { 32 } else { 128 });
        let prefix: Option<u8> = prefix.parse().ok();
        prefix.is_some_and(|prefix| bits.is_ok_and(|bits| prefix <= bits))
    };
    let is_client = text.chars().all(is_part) && text.split_once('/').is_none_or(is_network);
    if text.is_empty() || !is_client {
        return Err(NotAClient);
    }
    Ok(text.to_owned())
}

pub(crate) fn run(args: &GaneshaConfigArgs) -> Result<ExitCode> {
    let node = args.config.load()?;
    let datastore = find_datastore(&node, &args.name)?;
    let export = GaneshaExport::new(datastore, &args.clients, &args.nfs)?;
    say(&export.text())?;
    if args.clients.is_empty() {
        warn("warning: no client has access; name the clients with --clients");
    }
    if datastore.policies.standby != Standby::Eagain {
        warn(
            "warning: set standby = \"eagain\" in the [[datastore]] of both nodes: otherwise a client whose request \
             reaches the node that does not serve gets an error, or its reads wait",
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The values of the configuration.
struct GaneshaExport<'a> {
    path: &'a str,
    datastore: &'a DatastoreConfig,
    clients: String,
    versions: String,
    has_version_3: bool,
    has_version_4: bool,
}

/// The price of a mount by NFS version 3.
const VERSION_3_PRICE: &str = "\
#     for virtual disks: after a failover reads and writes go on as soon as the address has moved. No locks between clients.
";
/// The further price of a mount by NFS version 3 where clients may use version 4, too.
const VERSION_3_PRICE_BESIDE_4: &str = "\
#     If a client has the mount below, exclusive creations and changes of attributes wait as there.
";
/// The price of a mount by NFS version 4.
const VERSION_4_PRICE: &str = "\
#     for directories that clients share: locks work. After each failover, opens, creations, removals, renames and locks of
#     all clients wait some 10 s, and some 20 s if a client has died with the server.
";

impl<'a> GaneshaExport<'a> {
    fn new(
        datastore: &'a DatastoreConfig,
        clients: &[String],
        versions: &[NfsVersion],
    ) -> Result<Self, UnfitMount> {
        let is_fit = |c: char| !c.is_whitespace() && !c.is_control() && !"\"'\\".contains(c);
        let path = datastore.mount.to_str();
        let path = path.filter(|path| path.chars().all(is_fit));
        let words = [(NfsVersion::Three, "3"), (NfsVersion::Four, "4")];
        let named = words.iter().filter(|(it, _)| versions.contains(it));
        Ok(Self {
            path: path.ok_or_else(|| UnfitMount {
                mount: datastore.mount.clone(),
            })?,
            datastore,
            clients: clients.join(", "),
            versions: named.map(|(_, word)| *word).collect::<Vec<_>>().join(", "),
            has_version_3: versions.contains(&NfsVersion::Three),
            has_version_4: versions.contains(&NfsVersion::Four),
        })
    }

    fn text(&self) -> String {
        let version_4 = if self.has_version_4 {
            self.version_4_text()
        } else {
            String::new()
        };
        let head = self.head_text();
        format!(
            "{head}{}{version_4}{}",
            self.core_text(),
            self.export_text()
        )
    }

    fn head_text(&self) -> String {
        let verifier = if self.has_version_4 {
            ""
        } else {
            "\
# Clients send unsaved data again after each start of Ganesha, unless it starts with the option -E and the number that
# `lockstep write-verifier` prints. Never do that with NFSv4.
"
        };
        format!(
            "\
# NFS-Ganesha for the datastore \"{name}\" of Lockstep, printed by `lockstep ganesha-config`.
# Install the same file on both nodes, as /etc/ganesha/ganesha.conf. The datastore needs `standby = \"eagain\"`.
# Ganesha stops with the role, and starts anew with the role: `lockstep keepalived-config --ganesha` does that.
{verifier}{}
",
            self.mount_text(),
            name = self.datastore.name
        )
    }

    /// The lines by which Linux clients mount the export, with the price of each.
    fn mount_text(&self) -> String {
        let mut text = "# Linux clients, with the cluster address for ADDRESS:\n".to_owned();
        let mut add = |options: &str, price: &str| {
            let path = self.path;
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "#   mount -t nfs -o {options},hard,proto=tcp,timeo=50 ADDRESS:{path} DIRECTORY\n{price}"
            );
        };
        if self.has_version_3 {
            let further = if self.has_version_4 {
                VERSION_3_PRICE_BESIDE_4
            } else {
                ""
            };
            add("vers=3,nolock", &format!("{VERSION_3_PRICE}{further}"));
        }
        if self.has_version_4 {
            add("vers=4.2", VERSION_4_PRICE);
        }
        text
    }

    fn core_text(&self) -> String {
        format!(
            "\
NFS_CORE_PARAM {{
    # The versions that Ganesha listens for.
    Protocols = {versions};
    # A fixed port, for firewalls: open it with 2049 (NFS) and 111 (rpcbind). NFSv4 needs 2049 only.
    MNT_Port = {MOUNT_PORT};
    # TCP only: a client finds out at once that the address has moved.
    Enable_UDP = false;
    # NFSv3 locks lie in the memory of one server, and would be lost in a failover. NFSv4 has its own.
    Enable_NLM = false;
    Enable_RQUOTA = false;
    # Names the recovery directory without the number of a node, so that both nodes have the same.
    Clustered = false;
    # An NFSv3 client gets no answer, and asks again, where Lockstep says that this node does not serve (EAGAIN), and
    # where the mount is gone (EIO). An answer would be an I/O error for the guest.
    Drop_Delay_Errors = true;
    Drop_IO_Errors = true;
}}

MDCACHE {{
    # No directory entries in Ganesha's memory: the other node changes them while it serves.
    Dir_Chunk = 0;
}}

",
            versions = self.versions
        )
    }

    fn version_4_text(&self) -> String {
        format!(
            "\
NFSv4 {{
    # The names of the clients lie in the datastore, so that clients take back opens and locks from the other node.
    RecoveryBackend = fs;
    RecoveryRoot = \"{path}/{RECOVERY_DIRECTORY}\";
    # A client that is silent for this long loses its opens and locks, in seconds.
    Lease_Lifetime = {LEASE_SECONDS};
    # Only clients that take back their own opens and locks get any, for this long after a start, in seconds. It ends
    # earlier once all NFSv4.1 clients are done: Ganesha looks every half of the time above.
    Grace_Period = {GRACE_SECONDS};
    # Both nodes are one server for NFSv4.1 clients.
    Server_Scope = \"{uuid}\";
    Server_Owner = \"{uuid}\";
}}

",
            path = self.path,
            uuid = self.datastore.uuid,
        )
    }

    fn export_text(&self) -> String {
        let (path, versions) = (self.path, &self.versions);
        let [major, minor] = self.file_system_id();
        format!(
            "\
EXPORT {{
    # A part of every handle: the same on both nodes.
    Export_Id = 1;
    # The mount of the datastore.
    Path = \"{path}\";
    # Its path for NFSv4 clients.
    Pseudo = \"{path}\";
    Protocols = {versions};
    Transports = TCP;
    # The number of the file system for clients, from the UUID of the datastore: the same on both nodes.
    Filesystem_Id = {major}.{minor};
    # Only the clients below have access.
    Access_Type = None;
    # Hypervisors write as root.
    Squash = No_Root_Squash;
    SecType = sys;
    # No attributes in Ganesha's memory: the other node changes them while it serves.
    Attr_Expiration_Time = 0;
    # The largest request of Lockstep.
    MaxRead = {WRITE_BYTES_MAX};
    MaxWrite = {WRITE_BYTES_MAX};
    PrefRead = {WRITE_BYTES_MAX};
    PrefWrite = {WRITE_BYTES_MAX};
{client}    FSAL {{
        Name = VFS;
        # Otherwise handles have the device number of the mount, which differs between the nodes.
        fsid_type = Major64;
    }}
}}
",
            client = self.client_text(),
        )
    }

    fn client_text(&self) -> String {
        if self.clients.is_empty() {
            return "    # No CLIENT: no client has access. Print this text with --clients.\n"
                .to_owned();
        }
        format!(
            "    CLIENT {{\n        Clients = {};\n        Access_Type = RW;\n    }}\n",
            self.clients
        )
    }

    /// The two numbers of the file system. Neither is zero, and both are below 2^31 for the sake of old clients.
    fn file_system_id(&self) -> [u128; 2] {
        let number = u128::from_be_bytes(*self.datastore.uuid.as_bytes());
        [number >> 97, (number >> 64) & 0x7fff_ffff].map(|part| part | 1)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const CONFIG: &str = "\
[node]
name = \"a\"
control = \"/run/a.sock\"
[[datastore]]
name = \"data\"
uuid = \"b693abd6-0bdd-4c22-b0b5-e40b65bc4fb4\"
store = \"/var/lib/data\"
mount = \"/srv/data\"
role = \"primary\"
";

    fn datastore(text: &str) -> DatastoreConfig {
        let node = lockstepfs::config::parse(text, Path::new("test")).unwrap();
        node.datastores[0].clone()
    }

    #[test]
    fn the_text_has_the_values_of_the_datastore_and_of_the_options() {
        let datastore = datastore(CONFIG);
        let clients = ["10.0.0.0/24".to_owned(), "host.example".to_owned()];
        let both = [NfsVersion::Four, NfsVersion::Three];
        let text = GaneshaExport::new(&datastore, &clients, &both)
            .unwrap()
            .text();
        for expected in [
            "Path = \"/srv/data\";",
            "Protocols = 3, 4;",
            "Clients = 10.0.0.0/24, host.example;",
            "RecoveryRoot = \"/srv/data/.lockstep-nfs\";",
            "Server_Scope = \"b693abd6-0bdd-4c22-b0b5-e40b65bc4fb4\";",
            "fsid_type = Major64;",
            "-o vers=3,nolock,hard,proto=tcp,timeo=50 ADDRESS:/srv/data",
            "-o vers=4.2,hard,proto=tcp,timeo=50 ADDRESS:/srv/data",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }

    #[test]
    fn version_3_alone_has_no_part_for_version_4() {
        let datastore = datastore(CONFIG);
        let export = GaneshaExport::new(&datastore, &[], &[NfsVersion::Three]).unwrap();
        let text = export.text();
        assert!(text.contains("Protocols = 3;") && !text.contains("NFSv4 {"));
        assert!(text.contains("vers=3,nolock") && !text.contains("vers=4"));
        assert!(!text.contains("the mount below"), "{text}");
        assert!(text.contains("`lockstep write-verifier`"), "{text}");
        assert!(!text.contains("CLIENT {"), "no client has access");
    }

    #[test]
    fn a_mount_point_that_would_end_its_value_is_refused() {
        for bad in ["/srv/a\\\"b", "/srv/a b", "/srv/a\\\\b", "/srv/a\\nb"] {
            let text = CONFIG.replace("/srv/data", bad);
            let datastore = datastore(&text);
            let refused = GaneshaExport::new(&datastore, &[], &[NfsVersion::Three]);
            let error = refused.err().expect(bad).to_string();
            assert!(error.contains("cure:"), "{error}");
        }
    }

    #[test]
    fn only_names_and_addresses_are_clients() {
        for good in [
            "10.0.0.0/24",
            "10.0.0.1/32",
            "fd00::/8",
            "*",
            "@group",
            "esx-1.example",
        ] {
            assert!(client(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "a;b",
            "a b",
            "a{",
            "a\nb",
            "\"a\"",
            "10.0.0.0/44",
            "fd00::/129",
            "10.0.0.0/",
        ] {
            assert!(client(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn datastores_differ_in_their_file_system_id() {
        let first = datastore(CONFIG);
        let second = datastore(&CONFIG.replace("b693abd6", "c693abd6"));
        let id = |datastore| {
            GaneshaExport::new(datastore, &[], &[])
                .unwrap()
                .file_system_id()
        };
        assert_ne!(id(&first), id(&second));
        assert_eq!(id(&first), id(&first));
    }
}
