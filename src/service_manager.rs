//! The service manager of this process: systemd, or any program that reads the same messages.
//!
//! The protocol is `sd_notify(3)`: datagrams to the Unix socket that `NOTIFY_SOCKET` names. Without that variable
//! nothing is sent. An error of sending is ignored: the service manager may have gone.

use std::env;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The socket of the service manager, if there is one.
#[derive(Debug)]
pub struct ServiceManager(Option<(UnixDatagram, SocketAddr)>);

impl ServiceManager {
    /// Reads the environment of this process.
    pub fn from_environment() -> Self {
        let path = env::var_os("NOTIFY_SOCKET");
        Self(path.and_then(|path| open(path.as_encoded_bytes())))
    }

    /// Reports that the service answers requests, with a status for people.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// Reports that the service begins to stop.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    /// Reports that the service could not start, or ends with an error.
    pub fn failed(&self, error: &str) {
        self.send(&format!("STATUS={}", one_line(error)));
    }

    fn send(&self, message: &str) {
        if let Self(Some((socket, address))) = self {
            let _sent = socket.send_to_addr(message.as_bytes(), address);
        }
    }
}

/// A name that begins with `@` is in the abstract namespace.
fn open(path: &[u8]) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match path.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(std::str::from_utf8(path).ok()?),
    };
    let address = address.ok()?;
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    Some((socket, address))
}

/// A message has one line for each value.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join("; ")
}
