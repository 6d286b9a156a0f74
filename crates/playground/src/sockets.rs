//! The process behind a Unix socket.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::Pid;

/// The socket of the holder that belongs to a node with this control socket.
pub(crate) fn of_holder(control: &Path) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(".hold");
    path.into()
}

/// The process that listens on this socket, if any does.
pub(crate) fn listener(socket: &Path) -> Option<Pid> {
    let connection = UnixStream::connect(socket).ok()?;
    Some(socket_peercred(connection).ok()?.pid)
}

/// The process that listens on this socket of packets, if any does.
pub(crate) fn packet_listener(socket: &Path) -> Option<Pid> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let own = socket_with(AddressFamily::UNIX, kind, flags, None).ok()?;
    connect(&own, &SocketAddrUnix::new(socket).ok()?).ok()?;
    Some(socket_peercred(own).ok()?.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_behind_a_socket_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        assert_eq!(listener(&path), None);
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let own = i32::try_from(std::process::id())
            .ok()
            .and_then(Pid::from_raw);
        assert_eq!(listener(&path), own);
    }
}
