//! Messages per second over loopback, by size, number of outstanding messages, and encryption. In brackets, the
//! processor time of both ends for one message, which a busy machine changes less.
//!
//! One thread sends. A second thread, at the other end, receives and answers each message without waiting. A third
//! thread receives the answers. `cargo bench -p lockstep-link`.

use std::collections::BTreeSet;
use std::error::Error;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_link::{
    Connection, Identity, LinkError, LinkOptions, Payload, ReceiveFrames, Receiver, SendFrames,
    Sender, accept, dial,
};
use lockstep_types::Encryption;
use rustix::time::{ClockId, clock_gettime};

/// Duration of a run.
const RUN: Duration = Duration::from_millis(700);

/// Runs of each case. The bench prints the median.
const RUNS: usize = 3;

/// A header as long as the header of a write.
const HEADER: [u8; 64] = [7; 64];

fn main() -> Result<(), Box<dyn Error>> {
    println!("thousand messages/s (µs of processor time for one), median of {RUNS}");
    for encryption in [Encryption::Off, Encryption::On] {
        for kib in [8, 64, 1024] {
            print!("{kib:4} KiB, encryption {encryption:3}");
            for depth in [1, 8, 64] {
                let (rate, cpu_us) = median(encryption, kib << 10, depth)?;
                print!("  {depth:2}: {:6.1} ({cpu_us:5.1})", rate / 1e3);
            }
            println!();
        }
    }
    Ok(())
}

fn median(encryption: Encryption, bytes: usize, depth: u64) -> Result<(f64, f64), Box<dyn Error>> {
    let mut rates = Vec::new();
    for _ in 0..RUNS {
        let (near, far) = connect(encryption)?;
        rates.push(rate(near, far, bytes, depth)?);
    }
    rates.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    Ok(rates.get(RUNS / 2).copied().unwrap_or_default())
}

fn connect(encryption: Encryption) -> Result<(Connection, Connection), Box<dyn Error>> {
    let (near, far) = (Identity::ephemeral("near")?, Identity::ephemeral("far")?);
    let options = LinkOptions {
        encryption,
        ..LinkOptions::default()
    };
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let pinned = far.fingerprint();
    let dialled = thread::spawn({
        let near = near.clone();
        move || dial(address, &near, pinned, &options)
    });
    let (socket, _) = listener.accept()?;
    let accepted = accept(
        socket,
        &far,
        &BTreeSet::from([near.fingerprint()]),
        &options,
    )?;
    let dialled = dialled.join().map_err(|_| "the dialling thread died")??;
    Ok((dialled, accepted))
}

fn rate(
    near: Connection,
    far: Connection,
    bytes: usize,
    depth: u64,
) -> Result<(f64, f64), LinkError> {
    let (sender, mut answers) = near.split();
    let (answer, messages) = far.split();
    let answered = AtomicU64::new(0);
    let main = thread::current();
    thread::scope(|scope| {
        scope.spawn(move || answer_all(messages, &answer));
        scope.spawn(|| {
            while answers.recv().is_ok() {
                answered.fetch_add(1, Ordering::Release);
                if !answers.has_more() {
                    main.unpark();
                }
            }
        });
        let outcome = send_for_a_while(&sender, &answered, bytes, depth);
        sender.shutdown("measured");
        outcome
    })
}

fn answer_all(mut messages: Receiver, answer: &Sender) {
    while messages.recv().is_ok() {
        if answer.enqueue(&HEADER, Payload::NONE).is_err() {
            break;
        }
    }
}

fn send_for_a_while(
    sender: &Sender,
    answered: &AtomicU64,
    bytes: usize,
    depth: u64,
) -> Result<(f64, f64), LinkError> {
    let payload = vec![9; bytes];
    let (start, cpu_start) = (Instant::now(), cpu_secs());
    let mut sent = 0;
    while start.elapsed() < RUN {
        while sent - answered.load(Ordering::Acquire) >= depth {
            thread::park();
        }
        sender.send(&HEADER, Payload::of(&payload))?;
        sent += 1;
    }
    let done = answered.load(Ordering::Acquire);
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let done = done as f64;
    let cpu_us = (cpu_secs() - cpu_start) * 1e6 / done;
    Ok((done / start.elapsed().as_secs_f64(), cpu_us))
}

/// The processor time that this process has used.
fn cpu_secs() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let whole = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(whole, nanos).as_secs_f64()
}
