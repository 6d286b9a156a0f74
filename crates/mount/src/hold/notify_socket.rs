//! The socket of the service manager (`sd_notify(3)`), which takes messages of the process, and descriptors with them.

use std::env;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

/// The way to the service manager: its address, and a socket to send from.
#[derive(Debug)]
pub struct NotifySocket {
    /// Address of the service manager.
    pub address: SocketAddrUnix,
    /// A datagram socket of this process.
    pub socket: OwnedFd,
}

impl NotifySocket {
    /// Reads the environment of this process; `None` without a service manager. A name that begins with `@` is in the
    /// abstract namespace.
    pub fn from_environment() -> Option<Self> {
        let path = env::var_os("NOTIFY_SOCKET")?;
        let path = path.as_encoded_bytes();
        let address = match path.strip_prefix(b"@") {
            Some(name) => SocketAddrUnix::new_abstract_name(name),
            None => SocketAddrUnix::new(path),
        };
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        );
        Some(Self {
            address: address.ok()?,
            socket: socket.ok()?,
        })
    }
}
