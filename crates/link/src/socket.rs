//! The TCP socket below a connection: its options, and reads and writes that mind a deadline or
//! never wait.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, sockopt};

use crate::connection::LinkOptions;

/// Probes unanswered before an idle connection counts as dead.
const KEEPALIVE_PROBES: u32 = 3;

/// How the kernel finds out how fast it may send. Two servers beside each other lose next to nothing,
/// so what matters is what it costs: BBR, the system's choice on some machines, sets a timer for
/// every few segments, which takes a sixth of the rate of large writes.
const CONGESTION_CONTROL: &str = "cubic";

/// How long a thread looks out for what is likely to come at once, before it sleeps (docs/adr/0004).
const LOOKOUT: Duration = Duration::from_micros(100);

/// Who gives the processor away and has it back only later than this is not alone on it, and sleeps.
const ALONE: Duration = Duration::from_micros(10);

/// Applies the options to a connected socket.
pub(crate) fn tune(socket: &TcpStream, options: &LinkOptions) -> io::Result<()> {
    socket.set_nodelay(true)?;
    // Where the kernel does not have it, its own choice is as correct.
    let _slower = sockopt::set_tcp_congestion(socket, CONGESTION_CONTROL);
    if let Some(idle) = options.keepalive {
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, at_least_a_second(idle))?;
        sockopt::set_tcp_keepintvl(socket, at_least_a_second(idle / KEEPALIVE_PROBES))?;
        sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    }
    if let Some(limit) = options.user_timeout {
        let millis = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(socket, millis)?;
    }
    if let Some(bytes) = options.send_buffer_bytes {
        sockopt::set_socket_send_buffer_size(socket, bytes)?;
    }
    if let Some(bytes) = options.receive_buffer_bytes {
        sockopt::set_socket_recv_buffer_size(socket, bytes)?;
    }
    Ok(())
}

/// The kernel counts these in whole seconds and refuses zero.
fn at_least_a_second(time: Duration) -> Duration {
    time.max(Duration::from_secs(1))
}

/// A socket whose reads and writes all end by one deadline, however slowly bytes trickle.
pub(crate) struct DeadlineSocket<'a> {
    socket: &'a TcpStream,
    deadline: Instant,
}

impl<'a> DeadlineSocket<'a> {
    pub(crate) fn new(socket: &'a TcpStream, deadline: Instant) -> Self {
        Self { socket, deadline }
    }

    /// Takes the deadline off the socket again.
    pub(crate) fn finish(self) -> io::Result<()> {
        self.socket.set_read_timeout(None)?;
        self.socket.set_write_timeout(None)
    }

    /// After a refusal: lets the peer read why, before the socket is closed with bytes unread,
    /// which would take the reason back. Ends after `grace` or a few bytes.
    pub(crate) fn linger(mut self, grace: Duration) {
        self.deadline = self.deadline.min(Instant::now() + grace);
        let mut unread = [0; 4096];
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
        for _ in 0..16 {
            match self.read(&mut unread) {
                Ok(1..) => {}
                Ok(0) | Err(_) => break,
            }
        }
    }

    fn remaining(&self) -> io::Result<Duration> {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(remaining)
    }
}

impl Read for DeadlineSocket<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.remaining()?))?;
        self.socket.read(into).map_err(timed_out)
    }
}

impl Write for DeadlineSocket<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.remaining()?))?;
        self.socket.write(from).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket says "would block" when its time-out passes.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

/// Reads once; `WouldBlock` when the time-out of the socket passes. What comes `soon` is looked out for
/// before the thread sleeps.
pub(crate) fn read_once(mut socket: &TcpStream, into: &mut [u8], soon: bool) -> io::Result<usize> {
    if soon && let Some(bytes) = look_out(socket, into)? {
        return Ok(bytes);
    }
    loop {
        match socket.read(into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Reads what comes within [`LOOKOUT`], as long as nobody else needs the processor.
fn look_out(socket: &TcpStream, into: &mut [u8]) -> io::Result<Option<usize>> {
    let start = Instant::now();
    let mut now = start;
    while now.duration_since(start) < LOOKOUT {
        if let Some(bytes) = read_nowait(socket, into)? {
            return Ok(Some(bytes));
        }
        let before = Instant::now();
        thread::yield_now();
        now = Instant::now();
        if now.duration_since(before) > ALONE {
            break;
        }
    }
    Ok(None)
}

/// Reads what there is; `None` when there is nothing now.
fn read_nowait(socket: &TcpStream, into: &mut [u8]) -> io::Result<Option<usize>> {
    match rustix::net::recv(socket, into, RecvFlags::DONTWAIT) {
        Ok((bytes, _)) => Ok(Some(bytes)),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Writes as much as the socket takes at once; `None` when it takes nothing now.
pub(crate) fn write_nowait(socket: &TcpStream, parts: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match rustix::net::sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags) {
            Ok(written) => return Ok(Some(written)),
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits until the socket takes something, or has ended.
pub(crate) fn wait_for_room(socket: &TcpStream) -> io::Result<()> {
    let mut watched = [PollFd::new(socket, PollFlags::OUT)];
    loop {
        match poll(&mut watched, None) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// What a socket can do without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    /// There is something to read (an end or an error counts).
    Read,
    /// There is room to write, and nothing to read.
    Write,
}

/// Waits until the socket can be read or written; `None` when `limit` passes first.
pub(crate) fn wait_either(
    socket: &TcpStream,
    limit: Option<Duration>,
) -> io::Result<Option<Ready>> {
    let limit = limit.map(|limit| Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let mut watched = [PollFd::new(socket, PollFlags::IN | PollFlags::OUT)];
    loop {
        match poll(&mut watched, limit.as_ref()) {
            Ok(0) => return Ok(None),
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let [watched] = watched;
    if watched.revents() == PollFlags::OUT {
        return Ok(Some(Ready::Write));
    }
    Ok(Some(Ready::Read))
}
