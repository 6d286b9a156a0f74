//! The network between the two nodes, with faults: cut, stalled in one or both directions, and with flipped bits.
//!
//! The primary dials a [`DelayProxy`], which cuts and corrupts. Behind the proxy, a relay stalls one direction.
//! Behind the relay, the secondary listens. Bytes are never dropped or reordered while a connection lasts.
//!
//! Invariant: all threads have ended when [`Network`] is dropped.

#![allow(dead_code)] // not every test uses all of it

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockstep_delay_proxy::DelayProxy;
use parking_lot::{Condvar, Mutex};

/// A direction through the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToSecondary,
    ToPrimary,
}

/// A fault of the network.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// Connections are closed and new ones refused.
    Cut,
    /// Connections stay up, no byte passes.
    Stall,
    /// Connections stay up, no byte passes in this direction.
    StallOneWay(Direction),
}

/// Every fault that lasts until it is healed.
pub const LASTING_FAULTS: [Fault; 4] = [
    Fault::Cut,
    Fault::Stall,
    Fault::StallOneWay(Direction::ToSecondary),
    Fault::StallOneWay(Direction::ToPrimary),
];

/// The network between the primary and the port of the secondary.
pub struct Network {
    proxy: DelayProxy,
    relay: Relay,
}

impl Network {
    /// A healthy network in front of `secondary`, on free ports of `host`, with this rate in each direction.
    pub fn start(host: IpAddr, secondary: SocketAddr, bytes_per_sec: Option<u64>) -> Self {
        let any = SocketAddr::new(host, 0);
        let relay = Relay::start(any, secondary);
        let proxy = DelayProxy::start(any, relay.address, Duration::ZERO, bytes_per_sec).unwrap();
        Self { proxy, relay }
    }

    /// The address of the secondary for the primary.
    pub fn address(&self) -> SocketAddr {
        self.proxy.local_addr()
    }

    /// Begins a fault.
    pub fn apply_fault(&self, fault: Fault) {
        match fault {
            Fault::Cut => self.proxy.cut(),
            Fault::Stall => self.proxy.stall(true),
            Fault::StallOneWay(direction) => self.relay.gates.set(|gates| {
                gates.held = Some(direction);
            }),
        }
    }

    /// Flips one bit in each of the next pieces that pass.
    pub fn corrupt(&self, pieces: u32) {
        self.proxy.corrupt_next(pieces);
    }

    /// Ends every fault; the delayed bytes continue.
    pub fn heal(&self) {
        self.relay.gates.set(|gates| gates.held = None);
        self.proxy.stall(false);
        self.proxy.heal();
    }
}

/// Passes bytes on, and stalls one direction on request.
struct Relay {
    gates: Arc<Gates>,
    listener: TcpListener,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Gates {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    held: Option<Direction>,
    stopped: bool,
    sockets: Vec<Weak<TcpStream>>,
}

impl Gates {
    fn set(&self, change: impl FnOnce(&mut GateState)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    /// Waits while this direction is stalled; false after the end of the relay.
    fn pass(&self, direction: Direction) -> bool {
        let mut state = self.state.lock();
        while state.held == Some(direction) && !state.stopped {
            self.changed.wait(&mut state);
        }
        !state.stopped
    }

    /// Registers a socket for the shutdown at the end of the relay; false if the relay has ended.
    fn note(&self, socket: &Arc<TcpStream>) -> bool {
        let mut state = self.state.lock();
        state.sockets.retain(|kept| kept.strong_count() > 0);
        state.sockets.push(Arc::downgrade(socket));
        !state.stopped
    }
}

impl Relay {
    fn start(listen: SocketAddr, target: SocketAddr) -> Self {
        let listener = TcpListener::bind(listen).unwrap();
        let address = listener.local_addr().unwrap();
        let gates = Arc::new(Gates::default());
        let (accepting, shared) = (listener.try_clone().unwrap(), Arc::clone(&gates));
        let acceptor = thread::spawn(move || {
            thread::scope(|scope| {
                while let Ok((client, _)) = accepting.accept() {
                    let gates = &shared;
                    scope.spawn(move || serve(client, target, gates));
                }
            });
        });
        Self {
            gates,
            listener,
            address,
            acceptor: Some(acceptor),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.gates.set(|gates| {
            gates.stopped = true;
            for socket in gates.sockets.drain(..).filter_map(|kept| kept.upgrade()) {
                let _ = socket.shutdown(Shutdown::Both);
            }
        });
        // Wakes the acceptor, which joins all other threads.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn serve(client: TcpStream, target: SocketAddr, gates: &Gates) {
    let Ok(server) = TcpStream::connect(target) else {
        return;
    };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (client, server) = (Arc::new(client), Arc::new(server));
    if gates.note(&client) && gates.note(&server) {
        thread::scope(|scope| {
            scope.spawn(|| pump(&client, &server, Direction::ToSecondary, gates));
            pump(&server, &client, Direction::ToPrimary, gates);
        });
    }
}

/// Passes bytes on until either end is gone. The end of the connection is stalled like bytes.
fn pump(mut from: &TcpStream, mut to: &TcpStream, direction: Direction, gates: &Gates) {
    let mut chunk = vec![0; 64 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut chunk) {
        if !gates.pass(direction) || to.write_all(&chunk[..bytes]).is_err() {
            break;
        }
    }
    gates.pass(direction);
    let _ = from.shutdown(Shutdown::Read);
    let _ = to.shutdown(Shutdown::Both);
}
