//! The peer's port and the control socket under attack by unauthenticated peers.
//!
//! A case is a volley: many connections at once, each wrong in another way, sometimes beside a crowd of silent
//! connections. The node refuses them, keeps its memory and threads within bounds, and accepts the true peer.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use lockstep_link::{Fingerprint, Identity, LinkOptions, dial};
use lockstep_testbed::chance::Chance;
use lockstepfs::config::Encryption;

use crate::bytes;
use crate::node::AttackedNode;
use crate::run::cases;
use crate::wire;

/// Connections of a volley.
const VOLLEY: usize = 120;
/// Threads that make them.
const SHOOTERS: usize = 20;
/// Silent connections at once.
const CROWD: usize = 300;
/// Volleys between two connections of the true peer.
const VOLLEYS_PER_SYNC: u64 = 3;
/// Longer than the node takes to close a refused connection.
const CLOSED_WITHIN: Duration = Duration::from_secs(120);

#[test]
fn an_encrypted_port_serves_its_peer_through_anything() {
    attack(
        "strangers::an_encrypted_port_serves_its_peer_through_anything",
        Encryption::On,
    );
}

#[test]
fn a_clear_port_serves_its_peer_through_anything() {
    attack(
        "strangers::a_clear_port_serves_its_peer_through_anything",
        Encryption::Off,
    );
}

fn attack(target: &'static str, encryption: Encryption) {
    let mut node = AttackedNode::start(encryption);
    let hello = client_hello(&node);
    let mut volleys = 0;
    cases(target, VOLLEYS_PER_SYNC, |chance| {
        let crowd = chance.percent(30).then(|| crowd(node.address));
        volley(chance, &node, &hello);
        node.assert_in_order();
        volleys += 1;
        if volleys % VOLLEYS_PER_SYNC == 0 {
            // The crowd, if there is one, is still connected.
            node.sync_with_true_peer();
        }
        drop(crowd);
    });
    node.restart();
    node.sync_with_true_peer();
    println!("{target}: the node held at most {} bytes", node.peak_bytes);
}

/// The first bytes of a true peer. Most attempts that pass the first check start with them.
fn client_hello(node: &AttackedNode) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            dial(address, &node.identity, node.fingerprint, &node.options()).unwrap_err()
        });
        let (mut socket, _) = listener.accept().unwrap();
        let mut hello = vec![0; 4096];
        let length = socket.read(&mut hello).unwrap();
        hello.truncate(length);
        hello
    })
}

/// Silent connections. The node has closed some of them.
fn crowd(address: SocketAddr) -> Vec<TcpStream> {
    (0..CROWD)
        .filter_map(|_| TcpStream::connect(address).ok())
        .collect()
}

fn volley(chance: &mut Chance, node: &AttackedNode, hello: &[u8]) {
    let mut chances: Vec<Chance> = (0..VOLLEY).map(|_| chance.fork()).collect();
    thread::scope(|scope| {
        for share in chances.chunks_mut(VOLLEY / SHOOTERS) {
            scope.spawn(move || {
                for chance in share {
                    shot(chance, node, hello);
                }
            });
        }
    });
}

fn shot(chance: &mut Chance, node: &AttackedNode, hello: &[u8]) {
    match chance.within(0..16) {
        0 => refuses(node.address, &bytes::random(chance, 200_000)),
        1..5 => {
            let mut hello = hello.to_vec();
            bytes::mutate_often(chance, &mut hello);
            refuses(node.address, &hello);
        }
        5 => refuses(node.address, &lengths(chance)),
        6 => refuses(node.address, &records(chance)),
        7 => refuses(node.address, &foreign(chance)),
        8 => dribble(chance, node.address, hello),
        9 => say_nothing(chance, node.address, hello),
        10 => stranger(chance, node),
        11 => control(chance, &node.control),
        _ => damaged(chance, node),
    }
}

/// Sends bytes and waits until the node has closed the connection.
fn refuses(address: SocketAddr, sent: &[u8]) {
    let Ok(mut socket) = TcpStream::connect(address) else {
        return;
    };
    // The node may close the connection before all bytes are sent.
    let _sent = socket.write_all(sent);
    let _over = socket.shutdown(Shutdown::Write);
    assert_closed(&mut socket);
}

fn assert_closed(socket: &mut TcpStream) {
    socket.set_read_timeout(Some(CLOSED_WITHIN)).unwrap();
    let mut answer = [0; 4096];
    loop {
        match socket.read(&mut answer) {
            Ok(1..) => {}
            Ok(0) => return,
            Err(error) => {
                let waited = error.kind() == std::io::ErrorKind::WouldBlock;
                assert!(!waited, "the node does not close the connection");
                return;
            }
        }
    }
}

/// A TLS record, or a message in one, with a huge length field.
fn lengths(chance: &mut Chance) -> Vec<u8> {
    let kind = *chance.pick(&[0x14, 0x15, 0x16, 0x17, 0x18, 0xff]);
    let claim = bytes::number(chance).to_be_bytes();
    let mut sent = vec![kind, 3, 1, claim[6], claim[7]];
    sent.extend([*chance.pick(&[1, 2, 11, 20]), 0xff, 0xff, 0xff]);
    sent.extend(bytes::random(chance, 70_000));
    sent
}

/// Many small records that carry one endless message.
fn records(chance: &mut Chance) -> Vec<u8> {
    let mut sent = Vec::new();
    for number in 0..chance.within(1..2000) {
        let piece = bytes::random(chance, 60);
        let [high, low] = u16::try_from(piece.len() + 4).unwrap().to_be_bytes();
        sent.extend([0x16, 3, 3, high, low]);
        sent.extend(if number == 0 {
            [1, 0, 0xff, 0xff]
        } else {
            [0; 4]
        });
        sent.extend(piece);
    }
    sent
}

/// Other protocols, and the link protocol without its handshake.
fn foreign(chance: &mut Chance) -> Vec<u8> {
    let mut sent = match chance.within(0..4) {
        0 => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        1 => b"SSH-2.0-OpenSSH_9.2p1\r\n".to_vec(),
        2 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        _ => [
            &b"LSF4\x0e\0\0\0\xff\xff\xff\xff\0\0\0\0"[..],
            b"lockstep hello",
        ]
        .concat(),
    };
    sent.extend(bytes::random(chance, 1000));
    sent
}

/// Sends the right bytes so slowly that the handshake never ends.
fn dribble(chance: &mut Chance, address: SocketAddr, hello: &[u8]) {
    let Ok(mut socket) = TcpStream::connect(address) else {
        return;
    };
    for byte in hello.iter().take(bytes::index(chance, 60)) {
        if socket.write_all(&[*byte]).is_err() {
            return;
        }
        chance.pause(Duration::from_millis(2));
    }
    if chance.percent(3) {
        // The node closes the connection first.
        assert_closed(&mut socket);
    }
}

/// Sends the start of a handshake or nothing, and keeps the connection open.
fn say_nothing(chance: &mut Chance, address: SocketAddr, hello: &[u8]) {
    let Ok(mut socket) = TcpStream::connect(address) else {
        return;
    };
    let _sent = socket.write_all(&hello[..bytes::index(chance, hello.len())]);
    if chance.percent(5) {
        assert_closed(&mut socket);
    } else {
        chance.pause(Duration::from_millis(20));
    }
}

/// A peer with valid credentials that is not the node's peer, or that expects another node.
fn stranger(chance: &mut Chance, node: &AttackedNode) {
    let identity = Identity::ephemeral("stranger").unwrap();
    let (identity, pinned): (&Identity, Fingerprint) = if chance.percent(50) {
        (&identity, node.fingerprint)
    } else {
        (&node.identity, identity.fingerprint())
    };
    let mut options = node.options();
    if chance.percent(30) {
        options = LinkOptions {
            encryption: other(options.encryption),
            ..options
        };
    }
    assert!(dial(node.address, identity, pinned, &options).is_err());
}

const fn other(encryption: Encryption) -> Encryption {
    match encryption {
        Encryption::On => Encryption::Off,
        Encryption::Off => Encryption::On,
    }
}

/// Connects the true peer over a wire that damages a byte of the handshake, or a byte after it.
fn damaged(chance: &mut Chance, node: &AttackedNode) {
    let address = wire::damaged(chance, node.address, 2000);
    // A handshake that succeeds was not damaged.
    let _outcome = node.dial(address);
}

/// Sends garbage to the control socket, which must still answer other clients.
fn control(chance: &mut Chance, path: &Path) {
    let Ok(mut socket) = UnixStream::connect(path) else {
        return;
    };
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    if chance.percent(50) {
        sent.extend(bytes::random(chance, 20_000));
    } else {
        bytes::mutate_often(chance, &mut sent);
    }
    let _sent = socket.write_all(&sent);
    chance.pause(Duration::from_millis(5));
}
