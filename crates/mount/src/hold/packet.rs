//! Packets with descriptors, on Unix sockets that keep the borders of packets.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::cmsg_space;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    recvmsg, sendmsg, sendmsg_addr, socket_with, socketpair,
};

/// Most descriptors of one packet. The kernel passes at most 253.
pub(crate) const DESCRIPTORS_MAX: usize = 250;
/// Longest text of a packet.
const TEXT_BYTES_MAX: usize = 512;
/// How long one side waits for the packet of the other.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A socket whose packets have borders.
pub(crate) fn open_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

/// Two connected sockets whose packets have borders.
pub(crate) fn open_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    Ok(socketpair(AddressFamily::UNIX, kind, flags, None)?)
}

/// Lets neither side wait for the other without limit.
pub(crate) fn limit_waits(socket: impl AsFd) -> io::Result<()> {
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, direction, Some(TIMEOUT))?;
    }
    Ok(())
}

/// Sends one packet.
pub(crate) fn send(
    socket: impl AsFd,
    text: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    transmit(socket, None, text, descriptors)
}

/// Sends one packet to an address.
pub(crate) fn send_to(
    socket: impl AsFd,
    address: &SocketAddrUnix,
    text: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    transmit(socket, Some(address), text, descriptors)
}

fn transmit(
    socket: impl AsFd,
    address: Option<&SocketAddrUnix>,
    text: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::Error::other("too many descriptors for one packet"));
    }
    let mut space = vec![MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let (parts, flags) = ([IoSlice::new(text)], SendFlags::NOSIGNAL);
    match address {
        Some(address) => sendmsg_addr(socket, address, &parts, &mut control, flags)?,
        None => sendmsg(socket, &parts, &mut control, flags)?,
    };
    Ok(())
}

/// Receives one packet.
pub(crate) fn receive(socket: impl AsFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
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
        return Err(io::Error::other("a packet did not fit"));
    }
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    text.truncate(received.bytes);
    Ok((text, descriptors))
}
