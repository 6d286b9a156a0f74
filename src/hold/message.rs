//! The messages between a node and a holder: one request and one reply for each connection, each in one packet.
//!
//! A request is a line of text, `KEEP NAME`, `GIVE NAME`, `DROP NAME`, `PING` or `END`. A reply is `OK`, or `NO` and the
//! reason. Descriptors travel beside the text of a `KEEP`, and of the reply to a `GIVE`.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, recvmsg, sendmsg, socket_with,
};

use super::DESCRIPTORS_MAX;
use super::error::HoldError;

/// Longest text of a packet.
const TEXT_BYTES_MAX: usize = 512;
/// Longest name of descriptors; the same as systemd's limit.
const NAME_BYTES_MAX: usize = 255;
/// How long one side waits for the packet of the other.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What a node asks of a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
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

impl Request {
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
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
) -> Result<Vec<OwnedFd>, HoldError> {
    let answered = call(path, request, descriptors);
    let (text, received) = answered.map_err(|source| match Errno::from_io_error(&source) {
        Some(Errno::NOENT | Errno::CONNREFUSED) => HoldError::NoHolder {
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
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let socket = open_socket()?;
    limit_waits(&socket)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    send(&socket, request.text().as_bytes(), descriptors)?;
    receive(&socket)
}

/// A socket whose packets have borders.
pub(super) fn open_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

/// Lets neither side wait for the other without limit.
pub(super) fn limit_waits(socket: impl AsFd) -> io::Result<()> {
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, direction, Some(TIMEOUT))?;
    }
    Ok(())
}

/// Sends one packet.
pub(super) fn send(
    socket: impl AsFd,
    text: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    let mut space = vec![MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let parts = [IoSlice::new(text)];
    sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one packet.
pub(super) fn receive(socket: impl AsFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut space = vec![MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut text = vec![0; TEXT_BYTES_MAX];
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut text)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let cut = ReturnFlags::TRUNC | ReturnFlags::CTRUNC;
    if received.flags.intersects(cut) {
        return Err(io::Error::other("a message did not fit"));
    }
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    text.truncate(received.bytes);
    Ok((text, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let name = || "lockstep.x".to_owned();
        let all = [
            Request::Keep(name()),
            Request::Give(name()),
            Request::Drop(name()),
            Request::Ping,
            Request::End,
        ];
        for request in all {
            assert_eq!(Request::parse(request.text().as_bytes()), Some(request));
        }
        let long = format!("KEEP {}", "x".repeat(NAME_BYTES_MAX + 1));
        for bad in ["KEEP", "KEEP ", "PING x", "", "keep x", "\u{0}", &long] {
            assert_eq!(Request::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
