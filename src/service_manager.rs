//! The service manager of this process: systemd, or any program that reads the same messages.
//!
//! The protocol is `sd_notify(3)`: datagrams to the Unix socket that `NOTIFY_SOCKET` names. `lockstep node --background`
//! reads the same messages. Without that variable nothing is sent. An error of sending is ignored: the service manager
//! may have gone, which does not affect this process.

use std::env;
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with,
};

/// The way to the service manager: its address, and a socket to send from.
#[derive(Debug)]
pub(crate) struct NotifySocket {
    pub address: SocketAddrUnix,
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

/// The service manager, if there is one.
#[derive(Debug)]
pub struct ServiceManager(Option<NotifySocket>);

impl ServiceManager {
    /// Reads the environment of this process.
    pub fn from_environment() -> Self {
        Self(NotifySocket::from_environment())
    }

    /// Whether there is one.
    pub const fn exists(&self) -> bool {
        self.0.is_some()
    }

    /// Reports that the service answers requests, with a status for people.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// Reports a new status for people, or the error with which the service ends.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={}", one_line(status)));
    }

    /// Reports that the service makes progress.
    pub fn keep_alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// Reports that the service begins to stop.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    fn send(&self, message: &str) {
        if let Self(Some(NotifySocket { address, socket })) = self {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _sent = sendto(socket, message.as_bytes(), flags, address);
        }
    }
}

/// Joins the lines of a text into one line, for the log and the status.
pub fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("; ")
}
