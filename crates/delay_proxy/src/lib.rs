//! A TCP proxy that stands for the network between two nodes, in tests and in the playground.
//!
//! The proxy adds half a round trip to each direction without limiting throughput: it forwards each chunk at its due
//! time, and holds up to [`WINDOW_BYTES`] in each direction. It can also limit the rate, stall, cut the network, and
//! flip bits.
//!
//! Invariants: bytes are never reordered or, while connected, dropped; memory is bounded by the window; all threads
//! have ended when [`DelayProxy`] is dropped. Not for production traffic: two threads for each direction of each
//! connection.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Bytes in transit in each direction: more than 1 Gbit/s fills in 60 ms.
pub const WINDOW_BYTES: usize = 8 << 20;

/// Most bytes of one chunk.
const CHUNK_BYTES: usize = 64 << 10;

/// Limit for connecting to the target.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after a failed `accept`, which means that the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A running proxy; dropping it cuts its connections and stops it.
pub struct DelayProxy {
    network: Arc<ProxyNetwork>,
    listener: TcpListener,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

impl DelayProxy {
    /// Listens on `listen` (port 0: any free one, see [`DelayProxy::local_addr`]) and forwards to `target`, adding
    /// `rtt` to each round trip; `limit_bytes_per_sec` holds for each direction of each connection.
    ///
    /// # Errors
    ///
    /// Fails if the address or a thread is not available.
    pub fn start(
        listen: SocketAddr,
        target: SocketAddr,
        rtt: Duration,
        limit_bytes_per_sec: Option<u64>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(listen)?;
        let address = listener.local_addr()?;
        let network = Arc::new(ProxyNetwork::new(target, rtt / 2, limit_bytes_per_sec));
        let (accepting, shared) = (listener.try_clone()?, Arc::clone(&network));
        let acceptor = thread::Builder::new()
            .name("delay-accept".into())
            .spawn(move || accept_all(&accepting, &shared))?;
        Ok(Self {
            network,
            listener,
            address,
            acceptor: Some(acceptor),
        })
    }

    /// The address for clients.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Drops all connections, and each new one, until [`DelayProxy::heal`].
    pub fn cut(&self) {
        self.network.change(|state| {
            state.cut = true;
            state.close_all();
        });
    }

    /// Lets connections through again.
    pub fn heal(&self) {
        self.network.change(|state| state.cut = false);
    }

    /// While true, connections stay up and no byte passes.
    pub fn stall(&self, stalled: bool) {
        self.network.change(|state| state.stalled = stalled);
    }

    /// Flips one bit in each of the next `chunks` chunks that are forwarded, in either direction.
    pub fn corrupt_next(&self, chunks: u32) {
        self.network.corrupt.store(chunks, Ordering::Relaxed);
    }
}

impl Drop for DelayProxy {
    fn drop(&mut self) {
        self.network.change(|state| {
            state.stopped = true;
            state.close_all();
        });
        // Wakes the acceptor, which joins all other threads.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

/// The state that all connections through one proxy share.
struct ProxyNetwork {
    target: SocketAddr,
    one_way: Duration,
    limit_bytes_per_sec: Option<u64>,
    corrupt: AtomicU32,
    state: Mutex<ProxyState>,
    /// Notified of every change of `state`.
    changed: Condvar,
}

#[derive(Default)]
struct ProxyState {
    cut: bool,
    stalled: bool,
    stopped: bool,
    sockets: Vec<Arc<TcpStream>>,
}

impl ProxyState {
    fn close_all(&mut self) {
        for socket in self.sockets.drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl ProxyNetwork {
    fn new(target: SocketAddr, one_way: Duration, limit_bytes_per_sec: Option<u64>) -> Self {
        Self {
            target,
            one_way,
            limit_bytes_per_sec,
            corrupt: AtomicU32::new(0),
            state: Mutex::new(ProxyState::default()),
            changed: Condvar::new(),
        }
    }

    fn change(&self, change: impl FnOnce(&mut ProxyState)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    /// Registers the sockets for [`ProxyState::close_all`]; false if the connection is refused.
    fn admit(&self, sockets: [&Arc<TcpStream>; 2]) -> bool {
        let mut state = self.state.lock();
        let admitted = !state.cut && !state.stopped;
        if admitted {
            state.sockets.extend(sockets.map(Arc::clone));
        }
        admitted
    }

    fn forget(&self, socket: &Arc<TcpStream>) {
        let mut state = self.state.lock();
        state.sockets.retain(|kept| !Arc::ptr_eq(kept, socket));
    }

    fn is_cut(&self) -> bool {
        let state = self.state.lock();
        state.cut || state.stopped
    }

    /// Waits until `due`, and while the network is stalled.
    fn wait_until(&self, due: Instant) {
        let mut state = self.state.lock();
        while !state.cut && !state.stopped {
            if state.stalled {
                self.changed.wait(&mut state);
            } else if self.changed.wait_until(&mut state, due).timed_out() {
                return;
            }
        }
    }

    fn maybe_corrupt(&self, bytes: &mut [u8]) {
        let take = |left: u32| left.checked_sub(1);
        let taken = self
            .corrupt
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let middle = bytes.len() / 2;
        if let (Ok(_), Some(byte)) = (taken, bytes.get_mut(middle)) {
            *byte ^= 0x10;
        }
    }
}

fn accept_all(listener: &TcpListener, network: &Arc<ProxyNetwork>) {
    let mut pumps: Vec<JoinHandle<()>> = Vec::new();
    while !network.state.lock().stopped {
        match listener.accept() {
            Ok((client, _)) => pumps.extend(connect_through(client, network)),
            Err(_) => thread::sleep(ACCEPT_PAUSE),
        }
        pumps.retain(|pump| !pump.is_finished());
    }
    for pump in pumps {
        let _ = pump.join();
    }
}

/// Starts the thread of a new connection. The thread connects to the target and runs the four pumps.
fn connect_through(client: TcpStream, network: &Arc<ProxyNetwork>) -> Option<JoinHandle<()>> {
    if network.is_cut() {
        refuse(&client);
        return None;
    }
    let network = Arc::clone(network);
    thread::Builder::new()
        .name("delay-connect".into())
        .spawn(move || serve(client, &network))
        .ok()
}

/// Closes with a reset, as a network without the target would.
fn refuse(client: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(client, Some(Duration::ZERO));
}

fn serve(client: TcpStream, network: &Arc<ProxyNetwork>) {
    let Ok(server) = TcpStream::connect_timeout(&network.target, CONNECT_TIMEOUT) else {
        return refuse(&client);
    };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (client, server) = (Arc::new(client), Arc::new(server));
    if !network.admit([&client, &server]) {
        return refuse(&client);
    }
    thread::scope(|scope| {
        for (from, to) in [(&client, &server), (&server, &client)] {
            let queue = Arc::new(DelayQueue::default());
            let filled = Arc::clone(&queue);
            scope.spawn(move || read_into(&filled, from, network));
            scope.spawn(move || write_from(&queue, to, from, network));
        }
    });
    network.forget(&client);
    network.forget(&server);
}

/// The chunks in transit in one direction of one connection, each with its due time.
#[derive(Default)]
struct DelayQueue {
    transit: Mutex<Transit>,
    changed: Condvar,
}

#[derive(Default)]
struct Transit {
    chunks: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    ended: bool,
}

impl DelayQueue {
    fn push(&self, due: Instant, chunk: Vec<u8>) -> bool {
        let mut transit = self.transit.lock();
        while transit.bytes >= WINDOW_BYTES && !transit.ended {
            self.changed.wait(&mut transit);
        }
        transit.bytes += chunk.len();
        transit.chunks.push_back((due, chunk));
        self.changed.notify_all();
        !transit.ended
    }

    fn pop(&self) -> Option<(Instant, Vec<u8>)> {
        let mut transit = self.transit.lock();
        while transit.chunks.is_empty() && !transit.ended {
            self.changed.wait(&mut transit);
        }
        let next = transit.chunks.pop_front()?;
        transit.bytes -= next.1.len();
        self.changed.notify_all();
        Some(next)
    }

    /// Takes no more chunks; the ones inside may still come out.
    fn end(&self) {
        self.transit.lock().ended = true;
        self.changed.notify_all();
    }
}

fn read_into(queue: &DelayQueue, mut from: &TcpStream, network: &ProxyNetwork) {
    let mut line_free = Instant::now();
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(bytes @ 1..) = from.read(&mut chunk) {
        let sent = line_free.max(Instant::now()) + transmission(bytes, network);
        line_free = sent;
        let bytes = chunk.get(..bytes).unwrap_or_default().to_vec();
        if !queue.push(sent + network.one_way, bytes) {
            break;
        }
    }
    queue.end();
}

/// How long this many bytes occupy the line.
fn transmission(bytes: usize, network: &ProxyNetwork) -> Duration {
    let Some(limit) = network.limit_bytes_per_sec else {
        return Duration::ZERO;
    };
    let nanos = bytes as u64 * 1_000_000_000 / limit.max(1);
    Duration::from_nanos(nanos)
}

/// Forwards until the source ends, then passes the end on. After a failure, ends the source too.
fn write_from(queue: &DelayQueue, mut to: &TcpStream, from: &TcpStream, network: &ProxyNetwork) {
    while let Some((due, mut chunk)) = queue.pop() {
        network.wait_until(due);
        network.maybe_corrupt(&mut chunk);
        if network.is_cut() || to.write_all(&chunk).is_err() {
            queue.end();
            let _ = from.shutdown(Shutdown::Both);
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests;
