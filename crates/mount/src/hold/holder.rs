//! The holder: a process that keeps descriptors of a node, and nothing else.
//!
//! It has no configuration and no files of its own, and never reads what it keeps, so no upgrade needs to restart it. One
//! thread serves one request at a time. Only root, and the user of the holder, may ask.
//!
//! Invariant: the holder closes the descriptors of a mount when the mount is gone. A FUSE device tells that by an error
//! of the descriptor.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketAddrUnix, SocketFlags, accept_with, bind, listen};

use super::error::{HoldError, HoldRefusal};
use super::message::{self, HoldRequest};
use super::packet::{self, DESCRIPTORS_MAX};

/// Most names at a time.
const NAMES_MAX: usize = 4096;
/// Clients that may wait for their turn.
const BACKLOG: i32 = 64;

/// When a holder ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldUntil {
    /// Never: it ends when it is stopped.
    Stopped,
    /// When it has kept descriptors and every mount behind them is gone.
    Unmounted,
}

/// A holder that listens.
#[derive(Debug)]
pub struct DescriptorHolder {
    socket: PathBuf,
    listener: OwnedFd,
    kept: BTreeMap<String, Vec<OwnedFd>>,
    until: HoldUntil,
    told_to_end: bool,
}

impl DescriptorHolder {
    /// Begins to listen on a socket, in a directory where only this user and root may change names.
    ///
    /// # Errors
    /// If another holder listens there, if the holder there does not answer, or if the socket cannot be made or used.
    pub fn open(socket: &Path, until: HoldUntil) -> Result<Self, HoldError> {
        match message::ask(socket, &HoldRequest::Ping, &[]) {
            Err(HoldError::NoHolder { .. }) => {}
            Ok(_) | Err(HoldError::Refused { .. }) => {
                return Err(HoldError::InUse {
                    socket: socket.to_owned(),
                });
            }
            Err(error) => return Err(error),
        }
        let listener = listen_on(socket).map_err(|source| HoldError::Listen {
            socket: socket.to_owned(),
            source,
        })?;
        Ok(Self {
            socket: socket.to_owned(),
            listener,
            kept: BTreeMap::new(),
            until,
            told_to_end: false,
        })
    }

    /// Asks the holder on a socket to close all descriptors and to end.
    ///
    /// # Errors
    /// If no holder answers.
    pub fn end(socket: &Path) -> Result<(), HoldError> {
        message::ask(socket, &HoldRequest::End, &[]).map(drop)
    }

    /// Keeps descriptors until `stop` can be read, a node asks for the end, or the time of [`HoldUntil`] has come.
    ///
    /// # Errors
    /// If the holder cannot wait for requests.
    pub fn run(mut self, stop: BorrowedFd<'_>) -> Result<(), HoldError> {
        loop {
            let wakened = self.wait(stop);
            let wakened = wakened.map_err(|source| HoldError::Wait { source })?;
            if wakened.stop {
                return Ok(());
            }
            let had_some = !self.kept.is_empty();
            for name in wakened.ended {
                tracing::info!(name, "its mount is gone");
                self.kept.remove(&name);
            }
            if wakened.client
                && let Err(error) = self.serve_next()
            {
                tracing::warn!(%error, "a request failed");
            }
            let unmounted = had_some && self.kept.is_empty();
            if self.told_to_end || (unmounted && self.until == HoldUntil::Unmounted) {
                return Ok(());
            }
        }
    }

    /// Waits for a client, for the end of a mount, or for the end of the holder.
    fn wait(&self, stop: BorrowedFd<'_>) -> io::Result<Wakened> {
        let read = PollFlags::IN;
        let mut watched = vec![
            PollFd::from_borrowed_fd(stop, read),
            PollFd::from_borrowed_fd(self.listener.as_fd(), read),
        ];
        let mut names = Vec::new();
        for (name, descriptors) in &self.kept {
            for descriptor in descriptors {
                watched.push(PollFd::from_borrowed_fd(
                    descriptor.as_fd(),
                    PollFlags::empty(),
                ));
                names.push(name);
            }
        }
        match poll(&mut watched, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Wakened::default()),
            Err(errno) => return Err(errno.into()),
        }
        let happened: Vec<PollFlags> = watched.iter().map(PollFd::revents).collect();
        let is_set = |index: usize| happened.get(index).is_some_and(|flags| !flags.is_empty());
        let devices = happened.iter().skip(2).zip(names);
        let ended = devices.filter(|(flags, _)| flags.contains(PollFlags::ERR));
        Ok(Wakened {
            stop: is_set(0),
            client: is_set(1),
            ended: ended.map(|(_, name)| name.clone()).collect(),
        })
    }

    fn serve_next(&mut self) -> io::Result<()> {
        let client = accept_with(&self.listener, SocketFlags::CLOEXEC)?;
        packet::limit_waits(&client)?;
        if !may_ask(&client)? {
            return refuse(&client, HoldRefusal::Stranger);
        }
        let (text, descriptors) = packet::receive(&client)?;
        let Some(request) = HoldRequest::parse(&text) else {
            return refuse(&client, HoldRefusal::NoRequest);
        };
        match self.answer(request, descriptors) {
            Ok(given) => packet::send(&client, b"OK", &given),
            Err(refusal) => refuse(&client, refusal),
        }
    }

    fn answer(
        &mut self,
        request: HoldRequest,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Vec<BorrowedFd<'_>>, HoldRefusal> {
        match request {
            HoldRequest::Keep(name) => self.keep(name, descriptors)?,
            HoldRequest::Give(name) => {
                let kept = self.kept.get(&name).map(Vec::as_slice).unwrap_or_default();
                return Ok(kept.iter().map(AsFd::as_fd).collect());
            }
            HoldRequest::Drop(name) => drop(self.kept.remove(&name)),
            HoldRequest::Ping => {}
            HoldRequest::End => self.told_to_end = true,
        }
        Ok(Vec::new())
    }

    fn keep(&mut self, name: String, descriptors: Vec<OwnedFd>) -> Result<(), HoldRefusal> {
        let kept = self.kept.get(&name).map_or(0, Vec::len);
        if descriptors.is_empty() {
            return Err(HoldRefusal::NoDescriptor);
        }
        if kept + descriptors.len() > DESCRIPTORS_MAX {
            return Err(HoldRefusal::ManyDescriptors);
        }
        if kept == 0 && self.kept.len() >= NAMES_MAX {
            return Err(HoldRefusal::ManyNames);
        }
        self.kept.entry(name).or_default().extend(descriptors);
        Ok(())
    }
}

impl Drop for DescriptorHolder {
    fn drop(&mut self) {
        // The next holder replaces a socket that is left behind.
        let _ = fs::remove_file(&self.socket);
    }
}

/// The events that one wait has found.
#[derive(Default)]
struct Wakened {
    stop: bool,
    client: bool,
    ended: BTreeSet<String>,
}

/// Makes the socket under another name first: a node that finds the name can connect. A socket that another holder has
/// left behind is replaced.
fn listen_on(socket: &Path) -> io::Result<OwnedFd> {
    let mut new = socket.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = packet::open_socket()?;
    bind(&listener, &SocketAddrUnix::new(&new)?)?;
    fs::set_permissions(&new, Permissions::from_mode(0o600))?;
    listen(&listener, BACKLOG)?;
    fs::rename(&new, socket)?;
    Ok(listener)
}

fn refuse(client: &OwnedFd, refusal: HoldRefusal) -> io::Result<()> {
    packet::send(client, format!("NO {refusal}").as_bytes(), &[])
}

/// Whether the process at the other end runs as root, or as the user of the holder.
fn may_ask(client: &OwnedFd) -> io::Result<bool> {
    let user = socket_peercred(client)?.uid;
    Ok(user.is_root() || user == rustix::process::geteuid())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::super::DescriptorStore;
    use super::*;

    fn holder(until: HoldUntil) -> (tempfile::TempDir, PathBuf, DescriptorHolder) {
        let directory = tempfile::tempdir().unwrap();
        let socket = super::super::socket_path(&directory.path().join("a.sock"));
        let holder = DescriptorHolder::open(&socket, until).unwrap();
        (directory, socket, holder)
    }

    #[test]
    fn descriptors_come_back_until_they_are_discarded() {
        let (directory, socket, holder) = holder(HoldUntil::Stopped);
        let (_running, stop) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            let held = scope.spawn(|| holder.run(stop.as_fd()));
            let store = DescriptorStore::find(&directory.path().join("a.sock"));
            assert!(matches!(store, DescriptorStore::Holder(_)));
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(b"kept").unwrap();
            store.keep("x", &[file.as_fd(), file.as_fd()]).unwrap();
            for _ in 0..2 {
                let given = store.give("x").unwrap();
                assert_eq!(given.len(), 2);
                let mut again = File::from(given.into_iter().next().unwrap());
                let mut text = String::new();
                again.rewind().unwrap();
                again.read_to_string(&mut text).unwrap();
                assert_eq!(text, "kept");
            }
            assert!(store.give("y").unwrap().is_empty());
            let refused = store.keep("x", &[]).unwrap_err();
            assert!(matches!(refused, HoldError::Refused { .. }), "{refused}");
            store.discard("x");
            assert!(store.give("x").unwrap().is_empty());
            let second = DescriptorHolder::open(&socket, HoldUntil::Stopped).unwrap_err();
            assert!(matches!(second, HoldError::InUse { .. }), "{second}");
            DescriptorHolder::end(&socket).unwrap();
            held.join().unwrap().unwrap();
            assert!(DescriptorHolder::end(&socket).unwrap_err().is_no_holder());
        });
    }

    #[test]
    fn a_holder_until_unmounted_ends_with_its_last_descriptor() {
        let (directory, _socket, holder) = holder(HoldUntil::Unmounted);
        let (_running, stop) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            let held = scope.spawn(|| holder.run(stop.as_fd()));
            let store = DescriptorStore::find(&directory.path().join("a.sock"));
            let (kept, other_end) = std::io::pipe().unwrap();
            // A pipe without a reader reports an error to its writer, as the device of a mount that is gone.
            store.keep("x", &[other_end.as_fd()]).unwrap();
            assert_eq!(store.give("x").unwrap().len(), 1);
            drop(kept);
            held.join().unwrap().unwrap();
        });
    }
}
