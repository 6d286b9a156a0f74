//! Looks whether the NFS server of this machine answers: the call NULL of NFS, which does nothing, over a new connection.
//!
//! Any answer will do, also that the server does not have this version of NFS. No mount is touched.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use lockstep_driver::report::ServiceStatus;
use lockstep_types::time::millis;
use parking_lot::Mutex;

/// The port of NFS.
const PORT: u16 = 2049;
/// Longest wait for the connection, and then for the answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// The identity of the call.
const XID: [u8; 4] = *b"lstp";
/// The call behind its identity: CALL, RPC version 2, NFS, version 4, NULL, and empty credentials and verifier.
const CALL: [u32; 9] = [0, 2, 100_003, 4, 0, 0, 0, 0, 0];
/// Marks the last fragment of a message, in the word before it.
const LAST_FRAGMENT: u32 = 1 << 31;

/// The answers of the NFS server at a cluster address.
#[derive(Debug, Default)]
pub(super) struct NfsProbe(Mutex<Option<NfsAnswers>>);

/// The last look.
#[derive(Clone, Copy, Debug)]
struct NfsAnswers {
    /// Since when the server has given no answer; `None` if it has answered the last time.
    silent_since: Option<Instant>,
}

impl NfsProbe {
    /// Looks at the server at this address, if there is one, and if this node carries out changes at once. While changes wait,
    /// the server may wait with them.
    pub(super) fn look(&self, at: Option<(IpAddr, ServiceStatus)>) {
        let is_served = |service| matches!(service, ServiceStatus::Mirrored | ServiceStatus::Alone);
        let answered = at
            .filter(|(_, service)| is_served(*service))
            .map(|(ip, _)| ask(SocketAddr::new(ip, PORT), ANSWER_LIMIT));
        self.note(answered, Instant::now());
    }

    /// Notes a look: an answer or not, or that there is nothing to look at.
    fn note(&self, answered: Option<io::Result<()>>, now: Instant) {
        let mut last = self.0.lock();
        *last = answered.map(|answered| NfsAnswers {
            silent_since: answered.err().map(|_| {
                let silent = last.and_then(|before| before.silent_since);
                silent.unwrap_or(now)
            }),
        });
    }

    /// Time for which the server has given no answer, in milliseconds; `None` if this node does not look.
    pub(super) fn silent_ms(&self) -> Option<u64> {
        let last = (*self.0.lock())?;
        Some(last.silent_since.map_or(0, |since| millis(since.elapsed())))
    }
}

/// Makes the call. Returns once any answer has come.
fn ask(server: SocketAddr, limit: Duration) -> io::Result<()> {
    let mut socket = TcpStream::connect_timeout(&server, limit)?;
    socket.set_read_timeout(Some(limit))?;
    socket.set_write_timeout(Some(limit))?;
    let length = u32::try_from(XID.len() + size_of_val(&CALL)).unwrap_or(u32::MAX);
    let mut message = (LAST_FRAGMENT | length).to_be_bytes().to_vec();
    message.extend_from_slice(&XID);
    message.extend(CALL.iter().flat_map(|word| word.to_be_bytes()));
    socket.write_all(&message)?;
    let mut answer = [0; 8];
    socket.read_exact(&mut answer)?;
    if answer.ends_with(&XID) {
        Ok(())
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const SHORT: Duration = Duration::from_millis(200);

    #[test]
    fn a_server_answers_or_hangs_or_does_not_run() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        // The kernel accepts the connection. No program answers.
        assert!(ask(server, SHORT).is_err());
        let answering = std::thread::spawn(move || {
            let (_silent, _) = listener.accept().unwrap();
            let (mut socket, _) = listener.accept().unwrap();
            let mut call = [0; 44];
            socket.read_exact(&mut call).unwrap();
            assert_eq!(call[..8], [0x80, 0, 0, 40, b'l', b's', b't', b'p']);
            // A reply, with any content.
            socket.write_all(&[0x80, 0, 0, 24]).unwrap();
            socket.write_all(&call[4..8]).unwrap();
            socket.write_all(&[0, 0, 0, 1]).unwrap();
        });
        ask(server, ANSWER_LIMIT).unwrap();
        answering.join().unwrap();
        assert!(ask(server, SHORT).is_err(), "nobody listens any more");
    }

    #[test]
    fn a_silence_begins_with_the_first_look_without_an_answer_and_ends_with_an_answer() {
        let probe = NfsProbe::default();
        let no = || Some(Err(io::ErrorKind::TimedOut.into()));
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        assert_eq!(probe.silent_ms(), None);
        probe.note(no(), long_ago);
        probe.note(no(), Instant::now());
        assert!(probe.silent_ms().unwrap() >= 60_000);
        probe.note(Some(Ok(())), Instant::now());
        assert_eq!(probe.silent_ms(), Some(0));
        probe.note(no(), long_ago);
        // Changes wait, and the server may wait with them.
        let own = "127.0.0.1".parse().unwrap();
        probe.look(Some((own, ServiceStatus::Waiting)));
        assert_eq!(probe.silent_ms(), None);
    }
}
