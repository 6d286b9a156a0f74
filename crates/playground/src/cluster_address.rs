//! The address of a playground that follows the node which serves.
//!
//! In a real cluster keepalived moves an address between the servers (`lockstep keepalived-config`). A playground leaves the
//! network of its machine alone: this module listens on the loopback address, and passes each connection on to the server
//! whose `lockstep health` says that it serves. As with a moved address,
//!
//! - a connection stays with its server until another server serves, and is cut then;
//! - while no server serves, no new connection comes about.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::program::{Program, ServingAnswer};

/// How long a node holds an answer that does not change.
const HOLD: Duration = Duration::from_millis(400);
/// Pause before the next question to a node that does not run.
const SILENT_INTERVAL: Duration = Duration::from_millis(50);

/// The address; it is gone when this is dropped.
pub(crate) struct ClusterAddressForwarder {
    address: SocketAddr,
    listener: TcpListener,
    state: Arc<Mutex<ForwarderState>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct ForwarderState {
    /// Number of the server that serves.
    serving: Option<usize>,
    connections: Vec<ForwardedConnection>,
    ended: bool,
}

/// Both ends of a connection, and the number of its server.
struct ForwardedConnection {
    server: usize,
    ends: [Arc<TcpStream>; 2],
}

impl ForwardedConnection {
    fn cut(&self) {
        for end in &self.ends {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

impl ForwarderState {
    /// Notes the answer of a server.
    fn note(&mut self, server: usize, is_serving: bool) {
        if is_serving && self.serving != Some(server) {
            self.serving = Some(server);
            self.connections.retain(|connection| {
                let stays = connection.server == server;
                if !stays {
                    connection.cut();
                }
                stays
            });
        } else if !is_serving && self.serving == Some(server) {
            self.serving = None;
        }
    }
}

fn lock(state: &Mutex<ForwarderState>) -> MutexGuard<'_, ForwarderState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ClusterAddressForwarder {
    /// Starts the address for these servers: the control socket of the node, and the address of the program for clients.
    pub(crate) fn start(program: &Program, servers: &[(PathBuf, SocketAddr)]) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen for clients")?;
        let mut forwarder = Self {
            address: listener.local_addr()?,
            listener,
            state: Arc::default(),
            threads: Vec::new(),
        };
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.to_owned());
            thread.spawn(work).context("cannot start a thread")
        };
        for (number, (control, _)) in servers.iter().enumerate() {
            let (program, control) = (program.clone(), control.clone());
            let state = Arc::clone(&forwarder.state);
            let watch = move || watch(&program, &control, number, &state);
            forwarder.threads.push(spawn("health", Box::new(watch))?);
        }
        let targets: Vec<SocketAddr> = servers.iter().map(|(_, address)| *address).collect();
        let accepting = forwarder.listener.try_clone()?;
        let state = Arc::clone(&forwarder.state);
        let accept = move || accept_all(&accepting, &targets, &state);
        forwarder.threads.push(spawn("address", Box::new(accept))?);
        Ok(forwarder)
    }

    /// The address for clients.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ClusterAddressForwarder {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.ended = true;
        for connection in state.connections.drain(..) {
            connection.cut();
        }
        drop(state);
        // Wakes the thread that accepts.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Asks a node all the time whether it serves.
fn watch(program: &Program, control: &Path, server: usize, state: &Mutex<ForwarderState>) {
    while !lock(state).ended {
        // A command that cannot run is as good as a node that does not answer.
        let answer = program.health(control, HOLD);
        let answer = answer.unwrap_or(ServingAnswer::Silent);
        lock(state).note(server, answer == ServingAnswer::Serves);
        if answer == ServingAnswer::Silent {
            std::thread::sleep(SILENT_INTERVAL);
        }
    }
}

fn accept_all(listener: &TcpListener, targets: &[SocketAddr], state: &Arc<Mutex<ForwarderState>>) {
    while let Ok((client, _)) = listener.accept() {
        if lock(state).ended {
            return;
        }
        // A client that is not passed on finds its connection closed, and tries again.
        let _ = forward(client, targets, state);
    }
}

/// Passes a connection on to the server that serves, if one does.
fn forward(
    client: TcpStream,
    targets: &[SocketAddr],
    state: &Arc<Mutex<ForwarderState>>,
) -> std::io::Result<()> {
    let serving = lock(state).serving;
    let target = serving.and_then(|server| Some((server, *targets.get(server)?)));
    let Some((server, target)) = target else {
        return Ok(());
    };
    let ends = [client, TcpStream::connect(target)?].map(Arc::new);
    for end in &ends {
        end.set_nodelay(true)?;
    }
    let mut locked = lock(state);
    if locked.serving != Some(server) || locked.ended {
        return Ok(());
    }
    let connections = &mut locked.connections;
    // The threads of an ended connection have dropped their ends.
    connections.retain(|kept| Arc::strong_count(&kept.ends[0]) > 1);
    let [client, program] = ends.clone();
    connections.push(ForwardedConnection { server, ends });
    drop(locked);
    for (from, to) in [
        (Arc::clone(&client), Arc::clone(&program)),
        (program, client),
    ] {
        std::thread::Builder::new()
            .name("forward".to_owned())
            .spawn(move || {
                let _ = std::io::copy(&mut &*from, &mut &*to);
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
            })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn pair(listener: &TcpListener) -> [Arc<TcpStream>; 2] {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [Arc::new(client), Arc::new(listener.accept().unwrap().0)]
    }

    #[test]
    fn a_connection_is_cut_when_another_server_serves() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut state = ForwarderState::default();
        state.note(0, true);
        let ends = pair(&listener);
        let client = Arc::clone(&ends[0]);
        state
            .connections
            .push(ForwardedConnection { server: 0, ends });
        // The process is away for a moment.
        state.note(0, false);
        assert_eq!((state.serving, state.connections.len()), (None, 1));
        state.note(0, true);
        assert_eq!((state.serving, state.connections.len()), (Some(0), 1));
        state.note(1, true);
        assert_eq!((state.serving, state.connections.len()), (Some(1), 0));
        assert_eq!((&*client).read(&mut [0; 1]).unwrap(), 0);
        // The old server says only now that it does not serve.
        state.note(0, false);
        assert_eq!(state.serving, Some(1));
    }
}
