//! The client of a record service: it sends one record after the other, counts the acknowledged ones, and measures the
//! time between two acknowledgements.
//!
//! When its connection is lost, the client connects again and sends the record again, as a client of any server must.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::records::WrittenRecords;

/// Pause between two records, so that minutes of writing do not fill the disk.
const RECORD_INTERVAL: Duration = Duration::from_millis(1);
/// Pause between two attempts to connect.
const CONNECT_INTERVAL: Duration = Duration::from_millis(10);
/// How often the client looks whether it is to stop while it waits for an answer.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The answers that the client has seen so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClientProgress {
    /// Acknowledged records.
    pub(crate) acknowledged: u64,
    /// Lost connections.
    pub(crate) interruptions: u64,
    /// Longest time between two acknowledgements, since [`RecordClient::mark`].
    pub(crate) longest_pause: Duration,
}

#[derive(Default)]
struct ClientState {
    progress: Mutex<ClientProgress>,
    stop: AtomicBool,
}

impl ClientState {
    fn progress(&self) -> MutexGuard<'_, ClientProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_to_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// The running client; it stops when this is dropped.
pub(crate) struct RecordClient {
    state: Arc<ClientState>,
    thread: Option<JoinHandle<()>>,
}

impl RecordClient {
    /// Starts the client of a service at this address.
    pub(crate) fn start(address: SocketAddr) -> Result<Self> {
        let state = Arc::new(ClientState::default());
        let shared = Arc::clone(&state);
        let thread = std::thread::Builder::new()
            .name("client".to_owned())
            .spawn(move || send_records(address, &shared))
            .context("cannot start the client")?;
        Ok(Self {
            state,
            thread: Some(thread),
        })
    }

    /// The answers that the client has seen so far.
    pub(crate) fn progress(&self) -> ClientProgress {
        *self.state.progress()
    }

    /// Begins to look for the longest pause anew, and returns the progress so far.
    pub(crate) fn mark(&self) -> ClientProgress {
        let mut progress = self.state.progress();
        progress.longest_pause = Duration::ZERO;
        *progress
    }

    /// Stops the client, and returns its acknowledged records.
    pub(crate) fn finish(mut self) -> Result<WrittenRecords> {
        self.stop()?;
        Ok(WrittenRecords {
            acknowledged: self.progress().acknowledged,
        })
    }

    fn stop(&mut self) -> Result<()> {
        self.state.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map_or(Ok(()), JoinHandle::join);
        ended.map_err(|_| anyhow!("the client has panicked"))
    }
}

impl Drop for RecordClient {
    fn drop(&mut self) {
        // The client writes nothing that would be lost.
        let _ = self.stop();
    }
}

/// Sends records until the client is to stop, over one connection after the other.
fn send_records(address: SocketAddr, state: &ClientState) {
    let mut last = Instant::now();
    while !state.is_to_stop() {
        let before = state.progress().acknowledged;
        // The record that was under way is sent again.
        let _ = send_over_connection(address, state, &mut last);
        if state.is_to_stop() {
            return;
        }
        let mut progress = state.progress();
        if progress.acknowledged > before {
            progress.interruptions += 1;
        }
        drop(progress);
        std::thread::sleep(CONNECT_INTERVAL);
    }
}

/// Sends records over one connection until it is lost, or the client is to stop. `last` is the time of the last
/// acknowledgement.
fn send_over_connection(
    address: SocketAddr,
    state: &ClientState,
    last: &mut Instant,
) -> std::io::Result<()> {
    let mut connection = TcpStream::connect(address)?;
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(LOOK_INTERVAL))?;
    while !state.is_to_stop() {
        let line = format!("{}\n", state.progress().acknowledged);
        connection.write_all(line.as_bytes())?;
        if !await_answer(&mut connection, &line, state)? {
            break;
        }
        let now = Instant::now();
        let mut progress = state.progress();
        progress.acknowledged += 1;
        progress.longest_pause = progress.longest_pause.max(now - *last);
        drop(progress);
        *last = now;
        std::thread::sleep(RECORD_INTERVAL);
    }
    Ok(())
}

/// Waits for the line to come back; false if the client is to stop before.
fn await_answer(
    connection: &mut TcpStream,
    line: &str,
    state: &ClientState,
) -> std::io::Result<bool> {
    let mut answer = vec![0; line.len()];
    let mut filled = 0;
    while let Some(rest @ [_, ..]) = answer.get_mut(filled..) {
        match connection.read(rest) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => filled += bytes,
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
        if state.is_to_stop() && filled < line.len() {
            return Ok(false);
        }
    }
    if answer == line.as_bytes() {
        Ok(true)
    } else {
        Err(ErrorKind::InvalidData.into())
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    let retry = [
        ErrorKind::WouldBlock,
        ErrorKind::TimedOut,
        ErrorKind::Interrupted,
    ];
    retry.contains(&error.kind())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record_service::RecordService;

    #[test]
    fn acknowledged_records_are_in_the_file() {
        let root = tempfile::tempdir().unwrap();
        let service = RecordService::start(root.path()).unwrap();
        let client = RecordClient::start(service.address()).unwrap();
        while client.progress().acknowledged < 3 {
            std::thread::yield_now();
        }
        let records = client.finish().unwrap();
        assert!(records.acknowledged >= 3);
        records.check(root.path()).unwrap();
    }

    #[test]
    fn a_client_goes_on_when_its_connection_is_lost() {
        let root = tempfile::tempdir().unwrap();
        let service = RecordService::start(root.path()).unwrap();
        let client = RecordClient::start(service.address()).unwrap();
        while client.progress().acknowledged < 3 {
            std::thread::yield_now();
        }
        service.cut_clients();
        let before = client.progress().acknowledged;
        while client.progress().acknowledged < before + 3 {
            std::thread::yield_now();
        }
        assert_eq!(client.progress().interruptions, 1);
        client.finish().unwrap().check(root.path()).unwrap();
    }
}
