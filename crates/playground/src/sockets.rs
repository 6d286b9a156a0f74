//! The process behind a Unix socket.

use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::net::sockopt::socket_peercred;
use rustix::process::Pid;

/// The process that listens on this socket, if any does.
pub(crate) fn listener(socket: &Path) -> Option<Pid> {
    let connection = UnixStream::connect(socket).ok()?;
    Some(socket_peercred(connection).ok()?.pid)
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
