//! The lowest possible cost of mirroring in the two-machines form: the time of core 0 for passing bytes to a process
//! on core 1 through a loopback socket and for receiving the confirmation. Neither side hashes, encrypts, writes or
//! reads the bytes. The bytes lie in memory, or in a file in the page cache, from where the kernel sends them without
//! a copy. The cheaper of the two is the result.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::net::{RecvFlags, recv};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Messages in flight at once, as with eight jobs.
const WINDOW: u32 = 8;
const MESSAGES: u32 = 20_000;

/// The place of the bytes.
enum Block {
    Memory(Vec<u8>),
    File(File, usize),
}

impl Block {
    /// The bytes in a file without a name.
    fn in_file(bytes: usize) -> Result<Self> {
        let mut file = tempfile::tempfile().context("make a file to send from")?;
        file.write_all(&vec![7; bytes])?;
        Ok(Self::File(file, bytes))
    }

    fn send(&self, mut socket: &TcpStream) -> Result<()> {
        match self {
            Self::Memory(bytes) => socket.write_all(bytes)?,
            Self::File(file, bytes) => {
                let mut sent = 0;
                while sent < *bytes as u64 {
                    let left = *bytes - usize::try_from(sent)?;
                    rustix::fs::sendfile(socket, file, Some(&mut sent), left)?;
                }
            }
        }
        Ok(())
    }
}

/// Time of core 0 for one message of so many KiB, in microseconds. The time may be too low, because the kernel's work
/// in interrupts may not be counted.
pub fn microseconds(block_kib: u32) -> Result<f64> {
    let bytes = usize::try_from(block_kib)? << 10;
    let copied = microseconds_from(&Block::Memory(vec![7; bytes]), bytes)?;
    let sent_from_file = microseconds_from(&Block::in_file(bytes)?, bytes)?;
    Ok(copied.min(sent_from_file))
}

fn microseconds_from(block: &Block, bytes: usize) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
    let address = listener.local_addr().context("listen")?;
    std::thread::scope(|scope| {
        let sink = scope.spawn(move || take(&listener, bytes));
        let source = scope.spawn(move || give(TcpStream::connect(address)?, block));
        let panicked = |_| anyhow::anyhow!("a thread that hands bytes over panicked");
        let spent = source.join().map_err(panicked)??;
        sink.join().map_err(panicked)??;
        Ok(spent.as_secs_f64() * 1e6 / f64::from(MESSAGES))
    })
}

fn give(mut socket: TcpStream, block: &Block) -> Result<Duration> {
    pin(0)?;
    socket.set_nodelay(true)?;
    let mut on_the_way = 0;
    let start = spent();
    for _ in 0..MESSAGES {
        if on_the_way == WINDOW {
            on_the_way -= receive_answers(&mut socket)?;
        }
        block.send(&socket)?;
        on_the_way += 1;
    }
    let spent = spent().saturating_sub(start);
    // If a socket is closed with unread answers, the kernel discards data that the other side has not read.
    while on_the_way > 0 {
        on_the_way -= receive_answers(&mut socket)?;
    }
    Ok(spent)
}

/// Reads the pending answers and returns their number.
fn receive_answers(socket: &mut TcpStream) -> Result<u32> {
    let answers = socket.read(&mut [0; WINDOW as usize])?;
    anyhow::ensure!(answers > 0, "the receiving thread has ended early");
    Ok(u32::try_from(answers)?)
}

/// Receives messages without copying them and answers each by one byte.
fn take(listener: &TcpListener, bytes: usize) -> Result<()> {
    pin(1)?;
    let (mut socket, _) = listener.accept()?;
    socket.set_nodelay(true)?;
    let mut discarded = vec![0; bytes];
    for _ in 0..MESSAGES {
        let mut left = bytes;
        while left > 0 {
            let room = discarded.get_mut(..left).unwrap_or_default();
            let (_, taken) = recv(&socket, room, RecvFlags::TRUNC)?;
            anyhow::ensure!(taken > 0, "the sending thread has ended early");
            left -= taken;
        }
        socket.write_all(&[1])?;
    }
    Ok(())
}

fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("run on core {cpu}"))
}

fn spent() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}
