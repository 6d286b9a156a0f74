//! A program of a server: it writes records into the mount of its server, as a client asks.
//!
//! The client sends a number in a line. The program writes the record of that number, makes it durable, and sends the line
//! back. If it cannot write, it closes the connection.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};

use crate::records;

/// The program on one server. When it is dropped it takes no more requests. A request that waits in the mount ends with
/// the mount.
pub(crate) struct RecordService {
    address: SocketAddr,
    listener: TcpListener,
    shared: Arc<ServiceState>,
}

#[derive(Default)]
struct ServiceState {
    ended: AtomicBool,
    clients: Mutex<Vec<Arc<TcpStream>>>,
}

impl RecordService {
    /// Starts the program of the server with this mount, at a free port of the loopback address.
    pub(crate) fn start(mount: &Path) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen for clients")?;
        let (accepting, shared) = (listener.try_clone()?, Arc::new(ServiceState::default()));
        let (mount, state) = (mount.to_owned(), Arc::clone(&shared));
        std::thread::Builder::new()
            .name("record-service".to_owned())
            .spawn(move || accept_all(&accepting, &mount, &state))?;
        Ok(Self {
            address: listener.local_addr()?,
            listener,
            shared,
        })
    }

    /// The address for clients.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends the connection of each client.
    pub(crate) fn cut_clients(&self) {
        for client in self.shared.clients().drain(..) {
            let _ = client.shutdown(Shutdown::Both);
        }
    }
}

impl ServiceState {
    fn clients(&self) -> MutexGuard<'_, Vec<Arc<TcpStream>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RecordService {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        self.cut_clients();
    }
}

fn accept_all(listener: &TcpListener, mount: &Path, state: &ServiceState) {
    while let Ok((client, _)) = listener.accept() {
        if state.ended.load(Ordering::Relaxed) {
            return;
        }
        let client = Arc::new(client);
        let mut clients = state.clients();
        clients.retain(|kept| Arc::strong_count(kept) > 1);
        clients.push(Arc::clone(&client));
        drop(clients);
        let mount: PathBuf = mount.to_owned();
        // The client tries again if there is no thread for it.
        let _ = std::thread::Builder::new()
            .name("record-client".to_owned())
            .spawn(move || {
                // An error is a closed connection for the client.
                let _ = serve(&client, &mount);
                let _ = client.shutdown(Shutdown::Both);
            });
    }
}

/// Writes records until the client goes away, or a write fails.
fn serve(mut client: &TcpStream, mount: &Path) -> Result<()> {
    client.set_nodelay(true)?;
    let file = records::open(mount)?;
    let mut lines = BufReader::new(client);
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        records::write(&file, line.trim_end().parse()?)?;
        client.write_all(line.as_bytes())?;
        line.clear();
    }
    Ok(())
}
