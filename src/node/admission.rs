//! Admission of connections whose peer is not authenticated yet.
//!
//! A thread of its own answers each connection, which holds two open files and the memory of a TLS handshake.
//! Any program on the network can connect, so the number of such connections is bounded. Otherwise
//! unauthenticated peers could exhaust files and threads, which the stores of this process need.
//!
//! Invariants: at most [`PENDING_MAX`] connections are being authenticated, and at most twice as many threads of
//! such connections exist. A new connection takes the place of the longest pending one: a configured peer
//! authenticates at once, so a connection that stays pending is not from such a peer.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

/// Most connections that are being authenticated at a time. A node has a few peers, which connect again every
/// fraction of a second.
const PENDING_MAX: usize = 64;

/// Most connections whose threads have not ended, including connections that were closed for a newer one.
const THREADS_MAX: usize = 2 * PENDING_MAX;

/// Limits the connections whose peer is not authenticated yet.
#[derive(Default)]
pub(super) struct PreAuthLimiter(Mutex<PreAuthState>);

#[derive(Default)]
struct PreAuthState {
    /// Connections that are being authenticated, in the order of their arrival.
    pending: VecDeque<PendingPeer>,
    /// Threads that have not ended: of pending connections, and of those that were closed.
    threads: usize,
    arrivals: u64,
}

struct PendingPeer {
    number: u64,
    socket: TcpStream,
}

/// The place of one connection, until this is dropped.
pub(super) struct AdmissionGuard {
    limiter: Arc<PreAuthLimiter>,
    number: u64,
}

impl PreAuthLimiter {
    /// Admits a connection. If [`PENDING_MAX`] connections are pending, closes the longest pending one. `None` if
    /// [`THREADS_MAX`] threads have not ended.
    ///
    /// # Errors
    /// When the socket cannot be duplicated.
    pub(super) fn enter(
        self: &Arc<Self>,
        socket: &TcpStream,
    ) -> io::Result<Option<AdmissionGuard>> {
        let socket = socket.try_clone()?;
        let mut state = self.0.lock();
        if state.threads >= THREADS_MAX {
            return Ok(None);
        }
        if state.pending.len() >= PENDING_MAX
            && let Some(longest) = state.pending.pop_front()
        {
            // An error means that the peer has closed the connection: then its thread ends, too.
            let _closed = longest.socket.shutdown(Shutdown::Both);
        }
        state.arrivals += 1;
        let number = state.arrivals;
        state.pending.push_back(PendingPeer { number, socket });
        state.threads += 1;
        let limiter = Arc::clone(self);
        Ok(Some(AdmissionGuard { limiter, number }))
    }
}

impl Drop for AdmissionGuard {
    fn drop(&mut self) {
        let mut state = self.limiter.0.lock();
        state.pending.retain(|peer| peer.number != self.number);
        state.threads -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    /// Both ends of a connection.
    fn connection(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn the_longest_pending_connection_makes_room_for_the_next() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let limiter = Arc::new(PreAuthLimiter::default());
        let mut admitted = Vec::new();
        for _ in 0..=PENDING_MAX {
            let (client, server) = connection(&listener);
            admitted.push((limiter.enter(&server).unwrap().unwrap(), client, server));
        }
        let (_, client, _) = &mut admitted[0];
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "the first was closed");
        for (_, client, _) in &mut admitted[1..] {
            client.set_nonblocking(true).unwrap();
            let error = client.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        }
    }

    #[test]
    fn threads_that_do_not_end_keep_new_connections_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let limiter = Arc::new(PreAuthLimiter::default());
        let (_client, server) = connection(&listener);
        let mut guards: Vec<_> = (0..THREADS_MAX)
            .map(|_| limiter.enter(&server).unwrap().unwrap())
            .collect();
        assert!(limiter.enter(&server).unwrap().is_none());
        guards.pop();
        assert!(limiter.enter(&server).unwrap().is_some());
        guards.clear();
        let state = limiter.0.lock();
        assert!(state.threads == 0 && state.pending.is_empty());
    }
}
