//! The messages between a node and a holder: one request and one reply for each connection, each in one packet.
//!
//! A request is a line of text, `KEEP NAME`, `GIVE NAME`, `DROP NAME`, `PING` or `END`. A reply is `OK`, or `NO` and the
//! reason. Descriptors travel beside the text of a `KEEP`, and of the reply to a `GIVE`.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, connect};

use super::error::HoldError;
use super::packet;

/// Longest name of descriptors; the same as systemd's limit.
const NAME_BYTES_MAX: usize = 255;

/// A question of a node to a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HoldRequest {
    /// Keep the descriptors beside this message under a name.
    Keep(String),
    /// Send duplicates of the descriptors of a name.
    Give(String),
    /// Close the descriptors of a name.
    Drop(String),
    /// Answer.
    Ping,
    /// Close all descriptors and end.
    End,
}

impl HoldRequest {
    fn text(&self) -> String {
        match self {
            Self::Keep(name) => format!("KEEP {name}"),
            Self::Give(name) => format!("GIVE {name}"),
            Self::Drop(name) => format!("DROP {name}"),
            Self::Ping => "PING".to_owned(),
            Self::End => "END".to_owned(),
        }
    }

    /// Reads the text of a request.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (verb, name) = text.split_once(' ').unwrap_or((text, ""));
        let is_name = !name.is_empty() && name.len() <= NAME_BYTES_MAX;
        match (verb, name) {
            ("KEEP", name) if is_name => Some(Self::Keep(name.to_owned())),
            ("GIVE", name) if is_name => Some(Self::Give(name.to_owned())),
            ("DROP", name) if is_name => Some(Self::Drop(name.to_owned())),
            ("PING", "") => Some(Self::Ping),
            ("END", "") => Some(Self::End),
            _ => None,
        }
    }
}

/// Asks the holder on a socket, and returns the descriptors of its reply.
pub(super) fn ask(
    path: &Path,
    request: &HoldRequest,
    descriptors: &[BorrowedFd<'_>],
) -> Result<Vec<OwnedFd>, HoldError> {
    let answered = call(path, request, descriptors);
    let (text, received) = answered.map_err(|source| match Errno::from_io_error(&source) {
        Some(Errno::NOENT | Errno::CONNREFUSED) => HoldError::NoHolder {
            socket: path.to_owned(),
        },
        Some(Errno::ACCESS | Errno::PERM) => HoldError::Denied {
            socket: path.to_owned(),
        },
        _ => HoldError::Talk {
            socket: path.to_owned(),
            source,
        },
    })?;
    if text == b"OK" {
        return Ok(received);
    }
    let reason = String::from_utf8_lossy(&text);
    Err(HoldError::Refused {
        socket: path.to_owned(),
        reason: reason.trim_start_matches("NO ").to_owned(),
    })
}

fn call(
    path: &Path,
    request: &HoldRequest,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let socket = packet::open_socket()?;
    packet::limit_waits(&socket)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    packet::send(&socket, request.text().as_bytes(), descriptors)?;
    packet::receive(&socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let name = || "lockstep.x".to_owned();
        let all = [
            HoldRequest::Keep(name()),
            HoldRequest::Give(name()),
            HoldRequest::Drop(name()),
            HoldRequest::Ping,
            HoldRequest::End,
        ];
        for request in all {
            assert_eq!(HoldRequest::parse(request.text().as_bytes()), Some(request));
        }
        let long = format!("KEEP {}", "x".repeat(NAME_BYTES_MAX + 1));
        for bad in ["KEEP", "KEEP ", "PING x", "", "keep x", "\u{0}", &long] {
            assert_eq!(HoldRequest::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
