//! The errors of `lockstep keepalived-config`.

use std::net::IpAddr;

/// Why no configuration of keepalived was printed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::cli) enum KeepalivedError {
    /// The datastore has no peer.
    #[error(
        "the datastore {name:?} is not mirrored, so its address cannot move\n  \
         cure: set the address up on this server as any other one"
    )]
    NotMirrored {
        /// Name of the datastore.
        name: String,
    },
    /// The configuration does not say which address this server has.
    #[error(
        "the configuration does not name an address of this server: `listen` accepts connections at each one\n  \
         cure: name the address of this server on the network of the interface, with --source"
    )]
    NoSource,
    /// The configuration has a name instead of an address.
    #[error(
        "the configuration names the other server {host:?}, and keepalived needs its address\n  \
         cure: name the address of the other server on the network of the interface, with --peer"
    )]
    NoPeer {
        /// The host of the peer.
        host: String,
    },
    /// keepalived gives some characters a meaning.
    #[error(
        "{what}, {word:?}, has characters that keepalived does not take literally\n  \
         cure: use only letters, digits and the characters / . _ - + : @"
    )]
    NotPlain {
        /// The kind of the word.
        what: &'static str,
        /// The word.
        word: String,
    },
    /// The address is no address with a prefix.
    #[error(
        "{0:?} is not an address with the length of its prefix\n  \
         cure: write it as 192.0.2.10/24 or 2001:db8::10/64"
    )]
    NotAddress(String),
    /// No server can have the address.
    #[error(
        "{address} is {why}, so it cannot be the cluster address\n  \
         cure: name a free address of the network of the interface"
    )]
    NotUsable {
        /// The address.
        address: IpAddr,
        /// Its kind.
        why: &'static str,
    },
    /// keepalived cannot reach the other server by the address.
    #[error(
        "the address of {server} is {address}, {why}: keepalived cannot reach the other server by it\n  \
         cure: name the address of {server} on the network of the interface, with {option}"
    )]
    NotReachable {
        /// Which of the two servers.
        server: &'static str,
        /// Its address.
        address: IpAddr,
        /// The kind of the address.
        why: &'static str,
        /// The option that names another one.
        option: &'static str,
    },
    /// The address belongs to one of the servers.
    #[error(
        "{0} is the address of one of the servers\n  cure: name a free address of the same network, which moves between them"
    )]
    NotFree(IpAddr),
    /// Both servers have the same address.
    #[error(
        "the address of both servers is {0}\n  \
         cure: name the two addresses on the network of the interface, with --source and --peer"
    )]
    SameServer(IpAddr),
    /// One address is of the other family.
    #[error(
        "{0} and {1} are of different families\n  \
         cure: use only IPv4 addresses, or only IPv6 addresses, in --address, --source and --peer"
    )]
    Mixed(IpAddr, IpAddr),
    /// The kernel takes no such name.
    #[error(
        "{0:?} cannot be the name of a network interface\n  \
         cure: name one of those that `ip link` shows, such as eth0"
    )]
    NotInterface(String),
}
