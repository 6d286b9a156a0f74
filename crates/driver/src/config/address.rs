//! The address of a peer: a host, by name or number, and a port.
//!
//! The name is resolved at each connection, not here, so that a name may get another address.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::str::FromStr;

/// Longest host name that DNS can hold.
const HOST_BYTES_MAX: usize = 253;

/// A host and a port. The port is never zero, the host never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    host: String,
    port: NonZeroU16,
}

impl PeerAddress {
    /// Host name or address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Port, never zero.
    pub const fn port(&self) -> u16 {
        self.port.get()
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Why a text is no address of a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAnAddress {
    /// The text is no host with a port.
    #[error("{0:?} is not a host with a port")]
    Form(String),
    /// The address stands for every address of a server.
    #[error("{0:?} is the address of no server")]
    Unspecified(String),
}

impl FromStr for PeerAddress {
    type Err = NotAnAddress;

    fn from_str(written: &str) -> Result<Self, NotAnAddress> {
        let parts = match SocketAddr::from_str(written) {
            Ok(address) if address.ip().to_canonical().is_unspecified() => {
                return Err(NotAnAddress::Unspecified(written.to_owned()));
            }
            Ok(address) => Some((address.ip().to_string(), address.port())),
            Err(_) => split_host(written),
        };
        parts
            .and_then(|(host, port)| {
                Some(Self {
                    host,
                    port: NonZeroU16::new(port)?,
                })
            })
            .ok_or_else(|| NotAnAddress::Form(written.to_owned()))
    }
}

fn split_host(written: &str) -> Option<(String, u16)> {
    let (host, port) = written.rsplit_once(':')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let is_host = !host.is_empty() && host.len() <= HOST_BYTES_MAX && host.chars().all(plain);
    is_host.then(|| port.parse().ok().map(|port| (host.to_owned(), port)))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_taken() {
        for written in ["node-b.example:7400", "[fd00::2]:7400", "192.0.2.1:1"] {
            assert_eq!(written.parse::<PeerAddress>().unwrap().to_string(), written);
        }
    }

    #[test]
    fn what_cannot_be_reached_is_refused() {
        for written in [
            "",
            ":7400",
            "host",
            "host:",
            "host:0",
            "host:70000",
            "a b:1",
            "fd00::2:1",
            "0.0.0.0:7400",
            "[::]:7400",
            "[::ffff:0.0.0.0]:7400",
        ] {
            assert!(written.parse::<PeerAddress>().is_err(), "{written}");
        }
    }
}
