//! The door: connections that have not yet proven whose they are.
//!
//! Each is answered on a thread of its own and holds two open files and a handshake's worth of
//! memory. Anybody can connect, so their number is bounded; files and threads that strangers could
//! take without limit would be missing to the stores of this process.
//!
//! Invariants: no more than [`VISITORS_MAX`] are being answered, and no more than twice as many have
//! not left yet. Whoever has been at the door longest makes room for the next: a peer proves itself
//! at once, and those who stay are those who do not.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

/// Most connections that are being answered at once. A node has a few peers, which connect again
/// every fraction of a second.
const VISITORS_MAX: usize = 64;

/// Most connections whose threads have not ended, those that were sent away included.
const LEAVING_MAX: usize = 2 * VISITORS_MAX;

/// Who is at the door.
#[derive(Default)]
pub(super) struct Door(Mutex<Inside>);

#[derive(Default)]
struct Inside {
    /// Being answered, in the order in which they came.
    visitors: VecDeque<Visitor>,
    /// How many have not left: visitors, and those sent away.
    threads: usize,
    came: u64,
}

struct Visitor {
    number: u64,
    socket: TcpStream,
}

/// Somebody at the door, until this is dropped.
pub(super) struct Visit {
    door: Arc<Door>,
    number: u64,
}

impl Door {
    /// Lets a connection in, if need be in place of the one that has been here longest, which is
    /// closed. `None` when too many are still leaving.
    ///
    /// # Errors
    /// When the socket cannot be kept an eye on.
    pub(super) fn enter(self: &Arc<Self>, socket: &TcpStream) -> io::Result<Option<Visit>> {
        let socket = socket.try_clone()?;
        let mut inside = self.0.lock();
        if inside.threads >= LEAVING_MAX {
            return Ok(None);
        }
        if inside.visitors.len() >= VISITORS_MAX
            && let Some(longest) = inside.visitors.pop_front()
        {
            // Closed by the other end already, it leaves as well.
            let _sent_away = longest.socket.shutdown(Shutdown::Both);
        }
        inside.came += 1;
        let number = inside.came;
        inside.visitors.push_back(Visitor { number, socket });
        inside.threads += 1;
        let door = Arc::clone(self);
        Ok(Some(Visit { door, number }))
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut inside = self.door.0.lock();
        inside
            .visitors
            .retain(|visitor| visitor.number != self.number);
        inside.threads -= 1;
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
    fn who_stays_longest_makes_room_for_the_next() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let door = Arc::new(Door::default());
        let mut visits = Vec::new();
        for _ in 0..=VISITORS_MAX {
            let (client, server) = connection(&listener);
            visits.push((door.enter(&server).unwrap().unwrap(), client, server));
        }
        let (_, client, _) = &mut visits[0];
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "the first was closed");
        for (_, client, _) in &mut visits[1..] {
            client.set_nonblocking(true).unwrap();
            let error = client.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        }
    }

    #[test]
    fn those_who_do_not_leave_keep_others_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let door = Arc::new(Door::default());
        let (_client, server) = connection(&listener);
        let mut visits: Vec<_> = (0..LEAVING_MAX)
            .map(|_| door.enter(&server).unwrap().unwrap())
            .collect();
        assert!(door.enter(&server).unwrap().is_none());
        visits.pop();
        assert!(door.enter(&server).unwrap().is_some());
        visits.clear();
        let inside = door.0.lock();
        assert!(inside.threads == 0 && inside.visitors.is_empty());
    }
}
