//! What the two-machines form costs at the least: the time of core 0 that it takes to hand bytes to
//! a process on core 1 through a loopback socket and to hear that they are there. Nothing is hashed,
//! encrypted, written or looked at, on either side.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::net::{RecvFlags, recv};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Messages on their way at once, as with eight jobs.
const WINDOW: u32 = 8;
const MESSAGES: u32 = 20_000;

/// Time of core 0 for one message of so many KiB, in microseconds. Less than what passes: what the
/// kernel does in interrupts may not be counted.
pub fn microseconds(block_kib: u32) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
    let address = listener.local_addr().context("listen")?;
    let block = vec![7; usize::try_from(block_kib).unwrap_or(0) << 10];
    let bytes = block.len();
    std::thread::scope(|scope| {
        let sink = scope.spawn(move || take(&listener, bytes));
        let source = scope.spawn(move || give(TcpStream::connect(address)?, &block));
        let panicked = |_| anyhow::anyhow!("a thread that hands bytes over panicked");
        let spent = source.join().map_err(panicked)?;
        sink.join().map_err(panicked)??;
        Ok(spent?.as_secs_f64() * 1e6 / f64::from(MESSAGES))
    })
}

fn give(mut socket: TcpStream, block: &[u8]) -> Result<Duration> {
    pin(0)?;
    socket.set_nodelay(true)?;
    let mut heard = [0; WINDOW as usize];
    let mut on_the_way = 0;
    let start = spent();
    for _ in 0..MESSAGES {
        if on_the_way == WINDOW {
            on_the_way -= u32::try_from(socket.read(&mut heard)?)?;
        }
        socket.write_all(block)?;
        on_the_way += 1;
    }
    Ok(spent().saturating_sub(start))
}

/// Takes messages without copying them and answers each by one byte.
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
        // The sender may have ended: it does not wait for the last answers.
        let _heard = socket.write(&[1]);
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
