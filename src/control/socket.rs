//! Making and removing the control socket.
//!
//! Invariants: a socket on which somebody answers is never taken away; the socket has mode 0600
//! from the moment it exists; of two nodes that start at once on one path, one is refused.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::ControlError;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// A bound, listening socket that is removed from the file system when dropped.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Makes the socket at `path`, replacing one that nobody answers on.
pub(super) fn listen(path: &Path) -> Result<(UnixListener, SocketFile), ControlError> {
    let failed = |operation| move |source: io::Error| socket_error(operation, path, source);
    let directory = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(directory).map_err(failed("make the directory"))?;
    // Held until the socket listens, so that no other node judges the path in between.
    let _lock = lock_directory(directory).map_err(failed("lock the directory"))?;
    remove_dead(path)?;
    let listener = bind(path).map_err(failed("bind"))?;
    let file = SocketFile {
        path: path.to_owned(),
    };
    Ok((listener, file))
}

fn lock_directory(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    rustix::fs::flock(&directory, FlockOperation::LockExclusive)?;
    Ok(directory)
}

fn remove_dead(path: &Path) -> Result<(), ControlError> {
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(socket_error("look at the path", path, source)),
    };
    if !metadata.file_type().is_socket() {
        return Err(ControlError::NotSocket {
            path: path.to_owned(),
        });
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(ControlError::InUse {
            path: path.to_owned(),
        }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
                .map_err(|source| socket_error("remove the dead socket", path, source))
        }
        Err(source) => Err(socket_error("ask who uses the path", path, source)),
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // On Linux the file gets the mode of the descriptor: it is never open to others.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

pub(super) fn socket_error(
    operation: &'static str,
    path: &Path,
    source: io::Error,
) -> ControlError {
    ControlError::Socket {
        operation,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/node.sock");
        (directory, path)
    }

    #[test]
    fn only_the_owner_may_reach_the_socket() {
        let (_directory, path) = place();
        let _held = listen(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_live_socket_is_left_alone() {
        let (_directory, path) = place();
        let _held = listen(&path).unwrap();
        assert!(matches!(listen(&path), Err(ControlError::InUse { .. })));
        assert!(UnixStream::connect(&path).is_ok());
    }

    #[test]
    fn a_dead_socket_is_replaced() {
        let (_directory, path) = place();
        let (listener, file) = listen(&path).unwrap();
        drop(listener);
        std::mem::forget(file);
        assert!(listen(&path).is_ok());
    }

    #[test]
    fn a_file_in_its_place_is_not_touched() {
        let (_directory, path) = place();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(listen(&path), Err(ControlError::NotSocket { .. })));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn the_socket_goes_when_the_node_goes() {
        let (_directory, path) = place();
        drop(listen(&path).unwrap());
        assert!(!path.exists());
    }
}
