//! The network between the two nodes, with faults: cut, stalled in one or both directions, and with flipped bits.
//!
//! The primary dials a [`DelayProxy`], which cuts and corrupts. Behind the proxy, a relay stalls one direction.
//! Behind the relay, the secondary listens. Bytes are never dropped or reordered while a connection lasts.
//!
//! Each network is a process of its own: the program of the test again, which [`network_process`](crate::network_process) gives
//! that part. A test may have a mapping of a file of the mount. The kernel may hold the address space of such a program until a
//! node has answered, and with it every thread of that process.
//!
//! Invariant: the process has ended when [`Network`] is dropped. It ends with the process of the test, too.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockstep_delay_proxy::DelayProxy;
use parking_lot::{Condvar, Mutex};

/// Names the host, the secondary and the rate of a network to its process: three words.
const NETWORK: &str = "LOCKSTEP_TEST_NETWORK";

/// The rate of a network without a limit.
const UNLIMITED: &str = "unlimited";

/// The answer of the process to a command.
const DONE: &str = "done";

/// A direction through the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the primary to the secondary.
    ToSecondary,
    /// From the secondary to the primary.
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
    process: Child,
    commands: Mutex<BufReader<UnixStream>>,
    address: SocketAddr,
}

impl Network {
    /// A healthy network in front of `secondary`, on free ports of `host`, with this rate in each direction.
    pub fn start(host: IpAddr, secondary: SocketAddr, bytes_per_sec: Option<u64>) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let rate = bytes_per_sec.map_or(UNLIMITED.to_owned(), |rate| rate.to_string());
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "passes_bytes_on", "--ignored", "--nocapture"])
            .env(NETWORK, format!("{host} {secondary} {rate}"))
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut commands = BufReader::new(ours);
        let address = read_line(&mut commands).parse().unwrap();
        Self {
            process,
            commands: Mutex::new(commands),
            address,
        }
    }

    /// The address of the secondary for the primary.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins a fault.
    pub fn apply_fault(&self, fault: Fault) {
        self.command(match fault {
            Fault::Cut => "cut",
            Fault::Stall => "stall",
            Fault::StallOneWay(Direction::ToSecondary) => "stall-to-secondary",
            Fault::StallOneWay(Direction::ToPrimary) => "stall-to-primary",
        });
    }

    /// Flips one bit in each of the next pieces that pass.
    pub fn corrupt(&self, pieces: u32) {
        self.command(&format!("corrupt {pieces}"));
    }

    /// Ends every fault; the delayed bytes continue.
    pub fn heal(&self) {
        self.command("heal");
    }

    /// Bytes that have passed so far, in both directions.
    pub fn carried(&self) -> u64 {
        self.ask("carried").parse().unwrap()
    }

    /// Has the process do something, and waits until that is done.
    fn command(&self, words: &str) {
        assert_eq!(self.ask(words), DONE, "{words}");
    }

    /// The answer of the process to a command.
    fn ask(&self, words: &str) -> String {
        let mut commands = self.commands.lock();
        writeln!(commands.get_mut(), "{words}").unwrap();
        read_line(&mut *commands)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn read_line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Lets a test program be the process of a network. Each test program with a [`Network`] says so in its
/// root.
#[macro_export]
macro_rules! network_process {
    () => {
        #[test]
        #[ignore = "a process that other tests start"]
        fn passes_bytes_on() {
            $crate::network::pass_bytes_on();
        }
    };
}

/// Is the process of one network: obeys the commands that its standard input brings, until that ends. Returns at once in a process
/// that is no network.
pub fn pass_bytes_on() {
    let Ok(given) = std::env::var(NETWORK) else {
        return;
    };
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
    let mut commands = BufReader::new(socket);
    let wires = Wires::start(&given);
    writeln!(commands.get_mut(), "{}", wires.proxy.local_addr()).unwrap();
    loop {
        let words = read_line(&mut commands);
        if words.is_empty() {
            return;
        }
        let answer = if words == "carried" {
            wires
                .relay
                .gates
                .carried
                .load(Ordering::Relaxed)
                .to_string()
        } else {
            wires.obey(&words);
            DONE.to_owned()
        };
        // The test may be gone.
        let _ = writeln!(commands.get_mut(), "{answer}");
    }
}

/// The parts of a network, in its process.
struct Wires {
    proxy: DelayProxy,
    relay: Relay,
}

impl Wires {
    /// The network that [`NETWORK`] names.
    fn start(given: &str) -> Self {
        let [host, secondary, rate] = given.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{NETWORK} has three words, not {given:?}");
        };
        let any = SocketAddr::new(host.parse().unwrap(), 0);
        let rate = (rate != UNLIMITED).then(|| rate.parse().unwrap());
        let relay = Relay::start(any, secondary.parse().unwrap());
        let proxy = DelayProxy::start(any, relay.address, Duration::ZERO, rate).unwrap();
        Self { proxy, relay }
    }

    fn obey(&self, words: &str) {
        match words {
            "cut" => self.proxy.cut(),
            "stall" => self.proxy.stall(true),
            "stall-to-secondary" => self.hold(Some(Direction::ToSecondary)),
            "stall-to-primary" => self.hold(Some(Direction::ToPrimary)),
            "heal" => {
                self.hold(None);
                self.proxy.stall(false);
                self.proxy.heal();
            }
            _ => {
                let pieces = words.strip_prefix("corrupt ").unwrap();
                self.proxy.corrupt_next(pieces.parse().unwrap());
            }
        }
    }

    fn hold(&self, direction: Option<Direction>) {
        self.relay.gates.set(|gates| gates.held = direction);
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
    /// Bytes that have passed, in both directions.
    carried: AtomicU64,
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
        gates.carried.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    gates.pass(direction);
    let _ = from.shutdown(Shutdown::Read);
    let _ = to.shutdown(Shutdown::Both);
}
