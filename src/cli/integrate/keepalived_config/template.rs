//! The text of a configuration of keepalived, and the values in it.
//!
//! Reasons for the settings:
//!
//! - Both nodes have the same priority, and begin as BACKUP. Only the script decides: a node that does not serve is in the
//!   state FAULT, and never has the address. So two nodes that do not hear each other cannot both take it.
//! - The script has no weight. With a weight a node that does not serve could win the election.
//! - The script holds its answer until the answer changes. So a change is known at once, although keepalived 2.2 starts
//!   a script once a second at most.
//! - A node that begins to serve waits for three missing adverts before it takes the address. `Timing::DEFAULT` makes that
//!   wait longer than the time that the other node needs to see that it does not serve any more.
//! - keepalived calls a node BACKUP when it begins to serve, before it has the address. Ganesha starts anew in that time.
//! - Adverts go to the other server alone: many networks pass no multicast.
//! - A word that keepalived does not take literally is refused.

use std::fmt::Write;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use super::error::KeepalivedError;
use crate::cli::integrate::ganesha_follow::filter_word;

/// Longest name of a network interface (`IFNAMSIZ` less its NUL).
const INTERFACE_BYTES_MAX: usize = 15;
/// The priority of both nodes. A low one makes the skew of VRRP long.
const PRIORITY: u32 = 50;

/// The times of a configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// Time between two adverts, in hundredths of a second.
    pub(super) advert_centis: u32,
    /// Time between two starts of the script, in seconds.
    pub(super) interval_s: u32,
    /// The time for which the script holds an answer, in milliseconds.
    pub(super) hold_ms: u32,
    /// The longest wait of the script for an answer, in milliseconds.
    pub(super) limit_ms: u32,
}

impl Timing {
    pub(super) const DEFAULT: Self = Self {
        advert_centis: 20,
        interval_s: 1,
        hold_ms: 800,
        limit_ms: 1000,
    };

    /// The shortest time from the moment at which a node may take the address until it does, if it hears no other node:
    /// three adverts and the skew of VRRP version 3.
    #[cfg(test)]
    fn takeover(self) -> Duration {
        let advert = Duration::from_millis(u64::from(self.advert_centis) * 10);
        advert * 3 + advert * (256 - PRIORITY) / 256
    }

    /// The longest time that keepalived may run a script, in seconds.
    fn script_limit_s(self) -> u64 {
        Duration::from_millis(u64::from(self.hold_ms + self.limit_ms)).as_secs() + 1
    }
}

/// The cluster address with the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClusterAddress {
    ip: IpAddr,
    prefix: u8,
}

impl FromStr for ClusterAddress {
    type Err = KeepalivedError;

    fn from_str(text: &str) -> Result<Self, KeepalivedError> {
        let parts = text.split_once('/').and_then(|(ip, prefix)| {
            let is_number = prefix.bytes().all(|digit| digit.is_ascii_digit());
            let prefix = is_number.then(|| prefix.parse().ok())??;
            Some((ip.parse::<IpAddr>().ok()?, prefix))
        });
        let bits = |ip: &IpAddr| if ip.is_ipv4() { 32 } else { 128 };
        let (ip, prefix) = parts
            .filter(|(ip, prefix)| (1..=bits(ip)).contains(prefix))
            .ok_or_else(|| KeepalivedError::NotAddress(text.to_owned()))?;
        match unusable(ip, prefix) {
            Some(why) => Err(KeepalivedError::NotUsable { address: ip, why }),
            None => Ok(Self { ip, prefix }),
        }
    }
}

/// Why other servers cannot reach a server by the address.
fn unusable(ip: IpAddr, prefix: u8) -> Option<&'static str> {
    if ip.is_unspecified() {
        return Some("the address of no host");
    }
    if ip.is_loopback() {
        return Some("a loopback address");
    }
    if ip.is_multicast() {
        return Some("a multicast address");
    }
    let IpAddr::V4(ip) = ip else { return None };
    let hosts = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
    let host = ip.to_bits() & hosts;
    // A network of one or of two addresses has neither of the two.
    match hosts {
        0 | 1 => None,
        _ if host == 0 => Some("the address of a network"),
        _ if host == hosts => Some("the broadcast address of a network"),
        _ => None,
    }
}

/// A name that the kernel takes for a network interface, and keepalived literally.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InterfaceName(String);

impl InterfaceName {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for InterfaceName {
    type Err = KeepalivedError;

    fn from_str(text: &str) -> Result<Self, KeepalivedError> {
        let fits = (1..=INTERFACE_BYTES_MAX).contains(&text.len());
        let is_name = fits && !text.contains(['/', ':']) && text != "." && text != "..";
        if is_name && is_plain(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(KeepalivedError::NotInterface(text.to_owned()))
        }
    }
}

/// A word that keepalived takes literally.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlainWord(String);

impl PlainWord {
    /// Takes a word. `what` names it in an error.
    pub(super) fn new(what: &'static str, word: &str) -> Result<Self, KeepalivedError> {
        if is_plain(word) {
            Ok(Self(word.to_owned()))
        } else {
            let word = word.to_owned();
            Err(KeepalivedError::NotPlain { what, word })
        }
    }
}

fn is_plain(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@".contains(c);
    !word.is_empty() && word.chars().all(plain)
}

/// How NFS-Ganesha is started and stopped.
pub(super) enum Ganesha {
    /// As a unit of systemd.
    Unit,
    /// By a program, with the verb behind it.
    Program(PlainWord),
}

/// The values of a configuration.
pub(super) struct Template {
    pub(super) datastore: PlainWord,
    pub(super) node: PlainWord,
    pub(super) address: ClusterAddress,
    pub(super) interface: InterfaceName,
    pub(super) router_id: u8,
    /// Address of this server.
    pub(super) source: IpAddr,
    /// Address of the other server.
    pub(super) peer: IpAddr,
    /// The program that keepalived runs.
    pub(super) program: PlainWord,
    /// The configuration file of the node.
    pub(super) config: PlainWord,
    /// A program of the operator.
    pub(super) notify: Option<PlainWord>,
    /// How Ganesha follows the role, if it does.
    pub(super) ganesha: Option<Ganesha>,
    pub(super) timing: Timing,
}

impl Template {
    /// Checks the addresses against each other.
    pub(super) fn check(&self) -> Result<(), KeepalivedError> {
        let address = self.address.ip;
        if self.source == self.peer {
            return Err(KeepalivedError::SameServer(self.source));
        }
        let servers = [
            (self.source, "this server", "--source"),
            (self.peer, "the other server", "--peer"),
        ];
        for (server, name, option) in servers {
            if server.is_ipv4() != address.is_ipv4() {
                return Err(KeepalivedError::Mixed(address, server));
            }
            if server == address {
                return Err(KeepalivedError::NotFree(address));
            }
            if let Some(why) = unusable(server, 32) {
                return Err(KeepalivedError::NotReachable {
                    server: name,
                    address: server,
                    why,
                    option,
                });
            }
        }
        Ok(())
    }

    /// The configuration.
    pub(super) fn text(&self) -> String {
        let mut text = self.head();
        text.push_str(&self.script());
        text.push_str(&self.instance());
        text
    }

    fn head(&self) -> String {
        let (node, datastore) = (&self.node.0, &self.datastore.0);
        let ClusterAddress { ip, prefix } = self.address;
        format!(
            "# The address {ip}/{prefix} is on the node that serves the datastore {datastore}.\n\
             # Made by `lockstep keepalived-config` on node {node}. The other server needs its own file.\n\n\
             global_defs {{\n    \
                 router_id {node}\n    \
                 script_user root\n    \
                 enable_script_security\n\
             }}\n\n"
        )
    }

    fn script(&self) -> String {
        let (datastore, program, config) = (&self.datastore.0, &self.program.0, &self.config.0);
        let (timing, ip) = (self.timing, self.address.ip);
        let nfs = if self.ganesha.is_some() { " --nfs" } else { "" };
        let Timing {
            interval_s,
            hold_ms,
            limit_ms,
            ..
        } = timing;
        format!(
            "# Succeeds where the datastore is served. A node that hangs or does not run fails.\n\
             vrrp_script lockstep_{datastore} {{\n    \
                 script \"{program} health {datastore} --config {config} --hold-ms {hold_ms} --limit-ms {limit_ms} --address {ip}{nfs}\"\n    \
                 interval {interval_s}\n    \
                 timeout {}\n    \
                 rise 1\n    \
                 fall 1\n    \
                 user root\n    \
                 init_fail\n\
             }}\n\n",
            timing.script_limit_s()
        )
    }

    fn instance(&self) -> String {
        let (datastore, interface) = (&self.datastore.0, self.interface.as_str());
        let ClusterAddress { ip, prefix } = self.address;
        let (source, peer, router_id) = (self.source, self.peer, self.router_id);
        let advert = self.timing.advert_centis;
        format!(
            "vrrp_instance lockstep_{datastore} {{\n    \
                 interface {interface}\n    \
                 virtual_router_id {router_id}\n    \
                 # The same on both nodes: only the script decides who has the address.\n    \
                 state BACKUP\n    \
                 priority {PRIORITY}\n    \
                 version 3\n    \
                 advert_int {}.{:02}\n    \
                 unicast_src_ip {source}\n    \
                 unicast_peer {{\n        {peer}\n    }}\n    \
                 check_unicast_src\n    \
                 virtual_ipaddress {{\n        {ip}/{prefix}\n    }}\n    \
                 track_script {{\n        lockstep_{datastore}\n    }}\n    \
                 # Gratuitous ARP: at once, again after a second, and from time to time, for a switch that missed it.\n    \
                 garp_master_repeat 3\n    \
                 garp_master_delay 1\n    \
                 garp_master_refresh 30\n\
             {}}}\n",
            advert / 100,
            advert % 100,
            self.hooks()
        )
    }

    /// Ends the connections of the address, has Ganesha follow, and tells the log or the program of the operator.
    fn hooks(&self) -> String {
        let ip = self.address.ip;
        let datastore = &self.datastore.0;
        let (why, [begins, ends]) = match &self.ganesha {
            None => {
                let end = format!("/usr/bin/ss --kill --tcp src {}", filter_word(ip));
                (
                    "Connections that the address had here do not come back to life with it.",
                    [end.clone(), end],
                )
            }
            Some(ganesha) => (
                "NFS-Ganesha starts anew before the address comes, and stops with the service. Connections end.",
                ["serves", "lost"].map(|event| self.follow(ganesha, event)),
            ),
        };
        let mut text = format!(
            "    # {why}\n    \
                 notify_backup \"{begins}\"\n    \
                 notify_fault \"{ends}\"\n"
        );
        let program = match &self.notify {
            Some(program) => program.0.clone(),
            None => format!("/usr/bin/logger --tag lockstep {datastore}: cluster address {ip}:"),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "    notify \"{program}\"");
        text
    }

    /// The command that has Ganesha follow an event.
    fn follow(&self, ganesha: &Ganesha, event: &str) -> String {
        let (datastore, program, config) = (&self.datastore.0, &self.program.0, &self.config.0);
        let own = match ganesha {
            Ganesha::Unit => String::new(),
            Ganesha::Program(path) => format!(" --program {}", path.0),
        };
        let ip = self.address.ip;
        format!(
            "{program} ganesha-follow {datastore} {event} --address {ip} --config {config}{own}"
        )
    }
}

#[cfg(test)]
mod tests;
