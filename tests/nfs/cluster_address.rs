//! The address under which clients reach the server that serves: it moves from one server to the other.
//!
//! Connections to the address are passed on to the server that has it. When the address moves, the connections end, as
//! they do when the new server answers to a connection that it does not know. While no server has the address,
//! connections wait, as they do when no machine answers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use lockstep_testbed::namespace::NetNamespace;
use parking_lot::{Condvar, Mutex};

/// The ports of rpcbind, NFS and MOUNT.
const PORTS: [u16; 3] = [111, 2049, 20_048];

/// The address of the NFS service, in the network of the clients.
pub struct ClusterAddress {
    /// The network of the clients.
    pub clients: NetNamespace,
    route: Arc<Route>,
    listeners: Vec<TcpListener>,
    acceptors: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Route {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    server: Option<Arc<NetNamespace>>,
    /// Connections to the server, by both ends.
    sockets: Vec<Weak<TcpStream>>,
    is_over: bool,
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

impl ClusterAddress {
    /// An address that no server has.
    pub fn new() -> Self {
        let clients = NetNamespace::make();
        let route = Arc::<Route>::default();
        let listeners = PORTS.map(|port| clients.listen(local(port)));
        let accept = |listener: &TcpListener| {
            let (listener, route) = (listener.try_clone().unwrap(), Arc::clone(&route));
            thread::spawn(move || route.accept(&listener))
        };
        Self {
            acceptors: listeners.iter().map(accept).collect(),
            listeners: listeners.into(),
            clients,
            route,
        }
    }

    /// Ends all connections, and gives the address to a server.
    pub fn move_to(&self, server: Option<Arc<NetNamespace>>) {
        self.route.set(|state| {
            state.end_connections();
            state.server = server;
        });
    }

    /// Connects a client to a port.
    pub fn connect(&self, port: u16) -> TcpStream {
        self.clients.connect(local(port)).unwrap()
    }
}

impl Drop for ClusterAddress {
    fn drop(&mut self) {
        self.route.set(|state| {
            state.is_over = true;
            state.end_connections();
        });
        for listener in &self.listeners {
            // Wakes the acceptor.
            let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        }
        for acceptor in self.acceptors.drain(..) {
            let _ = acceptor.join();
        }
    }
}

impl State {
    fn end_connections(&mut self) {
        for socket in self.sockets.drain(..).filter_map(|kept| kept.upgrade()) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Route {
    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    fn accept(&self, listener: &TcpListener) {
        let port = listener.local_addr().unwrap().port();
        thread::scope(|scope| {
            while let Ok((client, _)) = listener.accept() {
                scope.spawn(move || self.serve(client, port));
            }
        });
    }

    /// Waits for a server; `None` at the end of the test.
    fn server(&self) -> Option<Arc<NetNamespace>> {
        let mut state = self.state.lock();
        loop {
            if state.is_over {
                return None;
            }
            if let Some(server) = &state.server {
                return Some(Arc::clone(server));
            }
            self.changed.wait(&mut state);
        }
    }

    fn serve(&self, client: TcpStream, port: u16) {
        let Some(server) = self.server() else { return };
        let Ok(socket) = server.connect(local(port)) else {
            return;
        };
        let (client, socket) = (Arc::new(client), Arc::new(socket));
        {
            let mut state = self.state.lock();
            if state.is_over
                || !state
                    .server
                    .as_ref()
                    .is_some_and(|it| Arc::ptr_eq(it, &server))
            {
                return;
            }
            for end in [&client, &socket] {
                let _ = end.set_nodelay(true);
                state.sockets.push(Arc::downgrade(end));
            }
        }
        thread::scope(|scope| {
            scope.spawn(|| pump(&client, &socket));
            pump(&socket, &client);
        });
    }
}

fn pump(mut from: &TcpStream, mut to: &TcpStream) {
    let mut chunk = vec![0; 256 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut chunk) {
        if to.write_all(&chunk[..bytes]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
