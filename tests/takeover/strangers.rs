//! A stranger at the port of the witness: it says nothing, and takes every place that the witness gives.

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockstep_driver::report::ServiceStatus;
use lockstep_testbed::await_that;
use lockstep_testbed::operator::await_status;
use rustix::net::{AddressFamily, SocketType, bind, connect, ipproto, socket};

use super::{A, B, await_protected, await_service, has_no_answer, start};
use crate::records::{Writer, assert_records};

/// Connections of the stranger.
const CONNECTIONS: usize = 200;

/// The address of the stranger. The nodes come from another one.
const SOURCE: Ipv4Addr = Ipv4Addr::new(127, 66, 66, 66);

/// Keeps idle connections open, and replaces those that the witness closes, until a drop.
struct Stranger {
    is_over: Arc<AtomicBool>,
    open: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Stranger {
    fn start(target: SocketAddr) -> Self {
        let (is_over, open) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (ends, counted) = (Arc::clone(&is_over), Arc::clone(&open));
        let thread = thread::spawn(move || {
            let mut idle: Vec<TcpStream> = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                idle.retain_mut(is_open);
                let missing = CONNECTIONS - idle.len();
                idle.extend((0..missing).filter_map(|_| dial(target)));
                counted.store(idle.len(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(20));
            }
        });
        Self {
            is_over,
            open,
            thread: Some(thread),
        }
    }

    fn await_connections(&self) {
        await_that("the connections of the stranger", || {
            self.open.load(Ordering::Relaxed) == CONNECTIONS
        });
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// A connection from the address of the stranger, that says nothing; `None` if the witness does not listen.
fn dial(target: SocketAddr) -> Option<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, Some(ipproto::TCP)).unwrap();
    bind(&socket, &SocketAddrV4::new(SOURCE, 0)).unwrap();
    connect(&socket, &target).ok()?;
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(true).unwrap();
    Some(stream)
}

fn is_open(stream: &mut TcpStream) -> bool {
    let read = stream.read(&mut [0; 64]);
    read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn a_stranger_with_idle_connections_does_not_keep_the_secondary_from_taking_over() {
    let Some((mut pair, mut witness)) = start() else {
        return;
    };
    let mut first = Writer::start(&pair.node(A).mount(), "first");
    first.await_progress();
    let stranger = Stranger::start(witness.address());
    stranger.await_connections();
    // Both nodes must connect again, to a witness that does not know their addresses.
    witness.stop();
    await_status(pair.node(A), "a question to the witness", has_no_answer);
    await_status(pair.node(B), "a question to the witness", has_no_answer);
    witness.resume();
    for which in [A, B] {
        await_status(pair.node(which), "an answer", |status| {
            status.witness.as_ref().is_some_and(|it| it.answers)
        });
    }
    await_protected(&pair, A);
    pair.node_mut(A).kill();
    let of_first = first.lose();
    await_service(&pair, B, ServiceStatus::Alone);
    assert_records(&pair.node(B).mount(), "first", of_first);
}
