//! The TCP socket below a connection: its options, reads and writes with a deadline, and reads and writes that never
//! wait.
//!
//! This file knows neither TLS nor frames.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno as SystemErrno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, sockopt};

use crate::options::LinkOptions;

/// Number of unanswered probes after which the kernel treats an idle connection as dead.
const KEEPALIVE_PROBES: u32 = 3;

/// The kernel's congestion control. Two adjacent servers lose hardly any packets, so only the cost of the algorithm
/// matters. BBR, the system's choice on some machines, sets a timer for every few segments, which costs a sixth of the
/// rate of large writes.
const CONGESTION_CONTROL: &str = "cubic";

/// Longest spin of a thread before it blocks (docs/adr/0004).
const SPIN_LIMIT: Duration = Duration::from_micros(100);

/// If `yield` takes longer than this, another thread wants the processor: the spinning thread blocks instead.
const YIELD_CONTENDED: Duration = Duration::from_micros(10);

/// Applies the options to a connected socket.
pub(crate) fn tune(socket: &TcpStream, options: &LinkOptions) -> io::Result<()> {
    socket.set_nodelay(true)?;
    // A kernel without this algorithm uses its own, which is as correct.
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

/// The kernel counts keepalive times in whole seconds and refuses zero.
fn at_least_a_second(time: Duration) -> Duration {
    time.max(Duration::from_secs(1))
}

/// A socket whose reads and writes all end at one deadline, however slowly the bytes arrive.
pub(crate) struct DeadlineSocket<'a> {
    socket: &'a TcpStream,
    deadline: Instant,
}

impl<'a> DeadlineSocket<'a> {
    pub(crate) fn new(socket: &'a TcpStream, deadline: Instant) -> Self {
        Self { socket, deadline }
    }

    /// Removes the deadline from the socket.
    pub(crate) fn finish(self) -> io::Result<()> {
        self.socket.set_read_timeout(None)?;
        self.socket.set_write_timeout(None)
    }

    /// Gives a refused peer time to read the reason. A close with unread bytes would discard the reason on its way.
    /// Ends after `grace` or a few reads.
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

/// A socket returns `WouldBlock` when its time-out passes.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

/// Reads once; `WouldBlock` when the time-out of the socket passes. If `spins`, polls before the thread blocks.
pub(crate) fn read_once(mut socket: &TcpStream, into: &mut [u8], spins: bool) -> io::Result<usize> {
    if spins && let Some(bytes) = spin_read(socket, into)? {
        return Ok(bytes);
    }
    loop {
        match socket.read(into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Polls the socket for up to [`SPIN_LIMIT`], as long as no other thread needs the processor.
fn spin_read(socket: &TcpStream, into: &mut [u8]) -> io::Result<Option<usize>> {
    let start = Instant::now();
    let mut now = start;
    while now.duration_since(start) < SPIN_LIMIT {
        if let Some(bytes) = read_nowait(socket, into)? {
            return Ok(Some(bytes));
        }
        let before = Instant::now();
        thread::yield_now();
        now = Instant::now();
        if now.duration_since(before) > YIELD_CONTENDED {
            break;
        }
    }
    Ok(None)
}

/// Reads the bytes that have arrived; `None` when no bytes have arrived.
fn read_nowait(socket: &TcpStream, into: &mut [u8]) -> io::Result<Option<usize>> {
    match rustix::net::recv(socket, into, RecvFlags::DONTWAIT) {
        Ok((bytes, _)) => Ok(Some(bytes)),
        Err(SystemErrno::AGAIN | SystemErrno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// How a write treats a full socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenFull {
    /// Wait for room.
    Wait,
    /// Return at once.
    Return,
}

/// Writes once, as many bytes as the socket takes; `None` when the socket is full and the call must not wait.
pub(crate) fn write_once(
    socket: &TcpStream,
    parts: &[IoSlice<'_>],
    when_full: WhenFull,
) -> io::Result<Option<usize>> {
    let flags = match when_full {
        WhenFull::Wait => SendFlags::NOSIGNAL,
        WhenFull::Return => SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    };
    loop {
        match rustix::net::sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => return Ok(Some(written)),
            Err(SystemErrno::AGAIN) if when_full == WhenFull::Return => return Ok(None),
            Err(SystemErrno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits until the socket has room or has ended.
pub(crate) fn wait_for_room(socket: &TcpStream) -> io::Result<()> {
    let mut watched = [PollFd::new(socket, PollFlags::OUT)];
    loop {
        match poll(&mut watched, None) {
            Ok(_) => return Ok(()),
            Err(SystemErrno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A call that does not wait now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    /// A read. An end or an error of the connection is treated as readable.
    Read,
    /// A write, and not a read.
    Write,
}

/// Waits until a read or a write does not wait; `None` when `limit` passes first.
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
            Err(SystemErrno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let [watched] = watched;
    if watched.revents() == PollFlags::OUT {
        return Ok(Some(Ready::Write));
    }
    Ok(Some(Ready::Read))
}
