//! A wire between two ends that damages bytes on their way.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use lockstep_testbed::chance::Chance;

use crate::bytes;

/// The damage to the bytes of one direction, and its offset in the stream.
#[derive(Clone, Debug)]
struct Accident {
    at: u64,
    chance: Chance,
}

/// Returns an address that forwards one connection to `target` and damages it in a random direction, at a random
/// offset within the first `length` bytes.
pub fn damaged(chance: &mut Chance, target: SocketAddr, length: u64) -> SocketAddr {
    let listener = TcpListener::bind((target.ip(), 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let accident = Accident {
        at: chance.within(0..length),
        chance: chance.fork(),
    };
    let backwards = chance.percent(50);
    thread::spawn(move || {
        let (Ok((client, _)), Ok(server)) = (listener.accept(), TcpStream::connect(target)) else {
            return;
        };
        let (there, back) = if backwards {
            (None, Some(accident))
        } else {
            (Some(accident), None)
        };
        thread::scope(|scope| {
            scope.spawn(|| pass(&client, &server, there));
            pass(&server, &client, back);
        });
    });
    address
}

/// Passes bytes on until either end is gone.
fn pass(mut from: &TcpStream, mut to: &TcpStream, mut accident: Option<Accident>) {
    let (mut buffer, mut passed) = (vec![0; 64 << 10], 0);
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let mut piece = buffer[..length].to_vec();
        passed += length as u64;
        if let Some(due) = accident.take_if(|accident| accident.at < passed) {
            let mut chance = due.chance;
            bytes::mutate(&mut chance, &mut piece);
        }
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Read);
    let _ = to.shutdown(Shutdown::Write);
}
