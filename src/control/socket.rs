//! Creation and removal of the control socket.
//!
//! The directory of the socket must belong to the user of the node, or root, and others may not write there.
//!
//! Invariants: a socket on which a process answers is never removed. The socket has mode 0600 from the moment it
//! exists. Of two nodes that start at once on one path, one is refused.
//!
//! A lock on a file beside the socket, which only its owner can open, serializes the two nodes. A lock on the
//! directory would not be safe: every user who can open a directory can hold a lock on it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_fs::os_backing::{describe, holders};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::error::ControlError;
use crate::private_directory;

/// Most connections in the accept queue.
const BACKLOG: i32 = 64;

/// Longest wait for another node that starts on the same socket. That node only has to check the path and to bind.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);

/// Pause between two attempts to take the lock.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The file of a listening socket. A drop removes the file.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A missing file is as good as a removed one.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Makes the socket at `path`. Replaces a socket on which no process answers.
pub(super) fn listen(path: &Path) -> Result<(UnixListener, SocketFile), ControlError> {
    let failed = |operation| move |source: io::Error| socket_error(operation, path, source);
    let directory = path.parent().unwrap_or(Path::new("/"));
    private_directory::make(directory).map_err(failed("make the directory"))?;
    private_directory::check(directory).map_err(failed("use the directory"))?;
    // Held until the socket listens, so that no other node checks the path in between.
    let _lock = lock_beside(path).map_err(failed("take the lock file (.lock)"))?;
    remove_dead(path)?;
    let listener = bind(path).map_err(failed("bind"))?;
    let file = SocketFile {
        path: path.to_owned(),
    };
    Ok((listener, file))
}

/// Returns the path of the lock file of the socket at `path`.
fn lock_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// Takes the lock of the socket at `path`. Waits for another node that is starting.
fn lock_beside(path: &Path) -> io::Result<OwnedFd> {
    let file = open_lock(&lock_of(path))?;
    let deadline = Instant::now() + LOCK_WAIT_MAX;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                thread::sleep(LOCK_RETRY_INTERVAL);
            }
            Err(Errno::WOULDBLOCK) => {
                let holder = describe(&holders(file.as_fd()));
                let why = format!("another process has held it for {LOCK_WAIT_MAX:?}{holder}");
                return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
            }
            Err(Errno::INTR) => {}
            locked => return Ok(locked.map(|()| file)?),
        }
    }
}

/// Opens the lock file. No other user may be able to open it.
fn open_lock(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    let stat = rustix::fs::fstat(&file)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
        let why = format!(
            "{} belongs to another user, or others may open it: remove it",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(file)
}

fn remove_dead(path: &Path) -> Result<(), ControlError> {
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(socket_error("check the path", path, source)),
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
        Err(source) => Err(socket_error(
            "connect to the socket at the path",
            path,
            source,
        )),
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // On Linux the file gets the mode of the descriptor, so it is never open to other users.
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

    fn socket_path() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/node.sock");
        (directory, path)
    }

    #[test]
    fn only_the_owner_may_reach_the_socket() {
        let (_directory, path) = socket_path();
        let _held = listen(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    /// Every user who can open the directory can take such a lock.
    #[test]
    fn a_lock_on_the_directory_does_not_delay_the_node() {
        let (_directory, path) = socket_path();
        let directory = path.parent().unwrap();
        std::fs::create_dir(directory).unwrap();
        let theirs = std::fs::File::open(directory).unwrap();
        rustix::fs::flock(&theirs, FlockOperation::NonBlockingLockExclusive).unwrap();
        drop(listen(&path).unwrap());
    }

    #[test]
    fn the_directory_and_the_lock_are_private() {
        let (_directory, path) = socket_path();
        drop(listen(&path).unwrap());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        let lock = lock_of(&path);
        assert_eq!(mode(&lock), 0o600);
        std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o666)).unwrap();
        let refused = listen(&path).unwrap_err().to_string();
        assert!(refused.contains("others may open it"), "{refused}");
    }

    #[test]
    fn a_directory_that_others_may_write_is_refused() {
        let (_directory, path) = socket_path();
        drop(listen(&path).unwrap());
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(path.parent().unwrap(), open).unwrap();
        let refused = listen(&path).unwrap_err().to_string();
        assert!(
            refused.contains("other users may change names"),
            "{refused}"
        );
    }

    #[test]
    fn a_lock_that_is_not_released_is_an_error_that_names_the_process() {
        let (_directory, path) = socket_path();
        drop(listen(&path).unwrap());
        let lock = std::fs::File::open(lock_of(&path)).unwrap();
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        let refused = listen(&path).unwrap_err().to_string();
        let us = format!("process {}", std::process::id());
        assert!(refused.contains(&us), "{refused}");
    }

    #[test]
    fn a_live_socket_is_left_alone() {
        let (_directory, path) = socket_path();
        let _held = listen(&path).unwrap();
        assert!(matches!(listen(&path), Err(ControlError::InUse { .. })));
        assert!(UnixStream::connect(&path).is_ok());
    }

    #[test]
    fn a_dead_socket_is_replaced() {
        let (_directory, path) = socket_path();
        let (listener, file) = listen(&path).unwrap();
        drop(listener);
        std::mem::forget(file);
        assert!(listen(&path).is_ok());
    }

    #[test]
    fn a_file_in_its_place_is_not_touched() {
        let (_directory, path) = socket_path();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(listen(&path), Err(ControlError::NotSocket { .. })));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn the_socket_goes_when_the_node_goes() {
        let (_directory, path) = socket_path();
        drop(listen(&path).unwrap());
        assert!(!path.exists());
    }
}
