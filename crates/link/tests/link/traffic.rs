//! Traffic: order, completeness, back-pressure, and the loss of a connection.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lockstep_delay_proxy::DelayProxy;
use lockstep_link::frame::{HEADER_BYTES_MAX, PAYLOAD_BYTES_MAX};
use lockstep_link::{
    Connection, LinkError, LinkOptions, Payload, ReceiveFrames, Receiver, SendFrames, Sender, dial,
};
use lockstep_sums::{BlockOffset, PieceSums, SumKey, SumSecret, SummedBytes};
use lockstep_types::Encryption;

use crate::pair::{BOTH, Listening, Nodes, options};

const THREADS: u8 = 6;
const FRAMES: u32 = 300;
const PAYLOAD_BYTES: usize = 8192;

fn cramped(encryption: Encryption) -> LinkOptions {
    LinkOptions {
        send_buffer_bytes: Some(64 << 10),
        receive_buffer_bytes: Some(64 << 10),
        ..options(encryption)
    }
}

fn send_numbered(sender: &Sender, thread: u8) {
    for number in 0..FRAMES {
        let [a, b, c, d] = number.to_le_bytes();
        let payload = vec![thread ^ a; PAYLOAD_BYTES];
        let header = [b'd', thread, a, b, c, d];
        match number % 4 {
            0 if number + 1 < FRAMES => drop(
                sender
                    .send_deferred(&header, Payload::of(&payload))
                    .unwrap(),
            ),
            1 => sender.post(&header, Payload::of(&payload)).unwrap(),
            _ => sender.send(&header, Payload::of(&payload)).unwrap(),
        }
    }
}

/// Receives the frames of all threads of the peer, each thread's frames in order, and answers each frame.
fn receive_and_answer(receiver: &mut Receiver, sender: &Sender) {
    let mut next = vec![0u32; THREADS.into()];
    let mut answers = 0;
    while answers < u32::from(THREADS) * FRAMES || next.iter().any(|number| *number < FRAMES) {
        let frame = receiver.recv().unwrap();
        let &[kind, thread, a, b, c, d] = frame.header else {
            panic!("header {:?}", frame.header)
        };
        if kind == b'a' {
            answers += 1;
            continue;
        }
        assert!(frame.payload.iter().all(|byte| *byte == thread ^ a));
        let expected = &mut next[usize::from(thread)];
        assert_eq!(u32::from_le_bytes([a, b, c, d]), *expected);
        *expected += 1;
        sender
            .enqueue(&[b'a', thread, a, b, c, d], Payload::NONE)
            .unwrap();
    }
    sender.flush_nowait().unwrap();
}

fn exchange(connection: Connection) {
    let (sender, mut receiver) = connection.split();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let sender = sender.clone();
            scope.spawn(move || send_numbered(&sender, thread));
        }
        receive_and_answer(&mut receiver, &sender);
    });
    // The peer may still be reading: its last frame says that it has everything.
    sender.send(b"bye", Payload::NONE).unwrap();
    while receiver.recv().unwrap().header != b"bye" {}
}

#[test]
fn many_threads_send_both_ways_through_small_buffers() {
    let nodes = Nodes::new();
    for encryption in BOTH {
        for options in [cramped(encryption), options(encryption)] {
            let (alpha, beta) = nodes.connect(options);
            thread::scope(|scope| {
                scope.spawn(|| exchange(alpha));
                scope.spawn(|| exchange(beta));
            });
        }
    }
}

#[test]
fn a_deferred_frame_leaves_with_the_next_send() {
    let nodes = Nodes::new();
    for encryption in BOTH {
        let (alpha, beta) = nodes.connect(options(encryption));
        let (sender, mut own) = alpha.split();
        let (_kept, mut receiver) = beta.split();
        receiver.set_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut expect = |frames: &[&[u8]]| {
            for frame in frames {
                assert_eq!(receiver.recv().unwrap().header, *frame);
            }
        };
        assert!(sender.send_deferred(b"left", Payload::of(b"1")).unwrap());
        assert!(sender.queued_bytes() > 0);
        sender.send(b"sent", Payload::NONE).unwrap();
        expect(&[b"left", b"sent"]);
        assert!(sender.send_deferred(b"one", Payload::NONE).unwrap());
        assert!(!sender.send_deferred(b"two", Payload::of(b"2")).unwrap());
        expect(&[b"one", b"two"]);
        assert!(sender.send_deferred(b"flushed", Payload::of(b"3")).unwrap());
        sender.flush().unwrap();
        expect(&[b"flushed"]);
        assert!(sender.send_deferred(b"at once", Payload::of(b"4")).unwrap());
        sender.flush_nowait().unwrap();
        expect(&[b"at once"]);
        assert!(sender.send_deferred(b"waited", Payload::of(b"4")).unwrap());
        own.set_timeout(Some(Duration::from_millis(1))).unwrap();
        assert!(own.recv().is_err_and(|error| error.is_timed_out()));
        expect(&[b"waited"]);
        assert!(sender.queued_bytes() == 0);
    }
}

/// A thread that posts does not wait while the peer reads nothing. All frames arrive once the peer reads.
#[test]
fn a_post_never_waits_and_all_frames_arrive() {
    const FRAMES: usize = 40;
    let nodes = Nodes::new();
    for encryption in BOTH {
        for bytes in [1 << 10, 1 << 20] {
            let (alpha, beta) = nodes.connect(cramped(encryption));
            let (sender, _own) = alpha.split();
            let (_kept, mut receiver) = beta.split();
            for number in 0..FRAMES {
                let number = u8::try_from(number).unwrap();
                sender
                    .post(&[number], Payload::of(&vec![number; bytes]))
                    .unwrap();
            }
            for number in 0..FRAMES {
                let number = u8::try_from(number).unwrap();
                let frame = receiver.recv().unwrap();
                assert_eq!(frame.header, [number]);
                assert!(frame.payload.len() == bytes && frame.payload.iter().all(|b| *b == number));
            }
            assert_eq!(sender.queued_bytes(), 0);
        }
    }
}

#[test]
fn a_frame_posted_while_another_thread_waits_keeps_its_place() {
    let nodes = Nodes::new();
    for encryption in BOTH {
        let (alpha, beta) = nodes.connect(cramped(encryption));
        let (sender, _own) = alpha.split();
        let (_kept, mut receiver) = beta.split();
        thread::scope(|scope| {
            let waiting = sender.clone();
            scope.spawn(move || {
                for number in 0..20u8 {
                    waiting
                        .send(&[b'w', number], Payload::of(&vec![number; 1 << 20]))
                        .unwrap();
                }
            });
            for number in 0..20u8 {
                sender
                    .post(&[b'p', number], Payload::of(&vec![number; 1 << 20]))
                    .unwrap();
            }
            let mut next = [0u8; 2];
            while next != [20, 20] {
                let frame = receiver.recv().unwrap();
                let &[kind, number] = frame.header else {
                    panic!("header {:?}", frame.header)
                };
                let next = &mut next[usize::from(kind == b'p')];
                assert_eq!(number, *next);
                *next += 1;
                assert!(frame.payload.iter().all(|byte| *byte == number));
            }
        });
    }
}

/// While a frame takes longer than the time-out to arrive, each time-out still shows that the peer is alive.
#[test]
fn a_slow_frame_is_heard_before_it_is_whole() {
    for encryption in BOTH {
        let (alpha, beta, _proxy) = through_proxy(encryption, Some(2 << 20));
        let (sender, _own) = alpha.split();
        let (_kept, mut receiver) = beta.split();
        receiver
            .set_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let mut silences = 0;
        sender
            .post(b"long", Payload::of(&vec![7; 1 << 20]))
            .unwrap();
        loop {
            match receiver.recv() {
                Ok(frame) => {
                    assert_eq!((frame.header, frame.payload.len()), (&b"long"[..], 1 << 20));
                    break;
                }
                Err(error) => {
                    assert!(error.is_timed_out(), "{error}");
                    silences += usize::from(error.is_slow());
                }
            }
        }
        assert!(silences > 0, "half a second at this rate");
    }
}

#[test]
fn answers_alone_fill_both_sockets_without_a_deadlock() {
    let nodes = Nodes::new();
    for encryption in BOTH {
        let (alpha, beta) = nodes.connect(cramped(encryption));
        thread::scope(|scope| {
            scope.spawn(|| answer_only(alpha));
            scope.spawn(|| answer_only(beta));
        });
    }
}

/// Runs one end with one thread that only enqueues, far more bytes than the sockets hold.
fn answer_only(connection: Connection) {
    let (sender, mut receiver) = connection.split();
    let payload = vec![3; 1 << 20];
    for _ in 0..10 {
        sender.enqueue(b"x", Payload::of(&payload)).unwrap();
    }
    for _ in 0..10 {
        assert_eq!(receiver.recv().unwrap().payload.len(), payload.len());
        sender.enqueue(b"y", Payload::NONE).unwrap();
    }
    for _ in 0..10 {
        assert_eq!(receiver.recv().unwrap().header, b"y");
    }
    // While this end waits for the last frame, its own queued frames leave.
    sender.send(b"z", Payload::NONE).unwrap();
    while receiver.recv().unwrap().header != b"z" {}
}

#[test]
fn the_largest_frames_pass() {
    let nodes = Nodes::new();
    let header: Vec<u8> = (0..=250).cycle().take(HEADER_BYTES_MAX).collect();
    let payload: Vec<u8> = (0..=240).cycle().take(PAYLOAD_BYTES_MAX).collect();
    for encryption in BOTH {
        let (alpha, beta) = nodes.connect(options(encryption));
        let ((to_beta, _a), (_b, mut from_alpha)) = (alpha.split(), beta.split());
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..5 {
                    to_beta.send(&header, Payload::of(&payload)).unwrap();
                    to_beta.send(b"", Payload::NONE).unwrap();
                }
            });
            for _ in 0..5 {
                let frame = from_alpha.recv().unwrap();
                assert!(frame.header == header && *frame.payload == payload);
                assert_eq!(from_alpha.recv().unwrap().header, b"");
            }
        });
    }
}

#[test]
fn a_frame_out_of_bounds_is_refused_and_harms_nothing() {
    let nodes = Nodes::new();
    for encryption in BOTH {
        let (alpha, beta) = nodes.connect(options(encryption));
        let ((to_beta, _a), (_b, mut from_alpha)) = (alpha.split(), beta.split());
        let large = vec![0; HEADER_BYTES_MAX + 1];
        for sent in [
            to_beta.send(&large, Payload::NONE),
            to_beta.enqueue(b"", Payload::of(&vec![0; PAYLOAD_BYTES_MAX + 1])),
        ] {
            assert!(matches!(sent, Err(LinkError::Unsendable { .. })));
        }
        to_beta.enqueue(b"good", Payload::NONE).unwrap();
        to_beta.flush().unwrap();
        assert_eq!(from_alpha.recv().unwrap().header, b"good");
    }
}

/// A connection through a proxy, and the proxy.
fn through_proxy(
    encryption: Encryption,
    limit_bytes_per_sec: Option<u64>,
) -> (Connection, Connection, DelayProxy) {
    let (nodes, options) = (Nodes::new(), options(encryption));
    let beta = Listening::start(&nodes.beta, nodes.alpha.fingerprint(), options);
    let any = "127.0.0.1:0".parse().unwrap();
    let proxy = DelayProxy::start(any, beta.address, Duration::ZERO, limit_bytes_per_sec).unwrap();
    let pinned = nodes.beta.fingerprint();
    let alpha = dial(proxy.local_addr(), &nodes.alpha, pinned, &options).unwrap();
    (alpha, beta.outcome().unwrap(), proxy)
}

#[test]
fn a_flipped_bit_loses_the_connection() {
    for encryption in BOTH {
        let (alpha, beta, proxy) = through_proxy(encryption, None);
        let ((to_beta, _a), (_b, mut from_alpha)) = (alpha.split(), beta.split());
        proxy.corrupt_next(1);
        to_beta.send(&[1; 500], Payload::NONE).unwrap();
        let error = from_alpha.recv().unwrap_err();
        let found = match encryption {
            Encryption::On => matches!(error, LinkError::BadStream { .. }),
            Encryption::Off => matches!(error, LinkError::BadFrame { .. }),
        };
        assert!(found, "{error}");
        let after = from_alpha.recv().unwrap_err();
        assert!(matches!(after, LinkError::Closed { .. }), "{after}");
    }
}

#[test]
fn a_flipped_bit_of_a_payload_in_clear_fails_its_sum() {
    let (alpha, beta, proxy) = through_proxy(Encryption::Off, None);
    let ((to_beta, _a), (_b, mut from_alpha)) = (alpha.split(), beta.split());
    let payload = vec![1; 8000];
    proxy.corrupt_next(1);
    to_beta.send(b"w", Payload::of(&payload)).unwrap();
    let error = from_alpha.recv().unwrap_err();
    assert!(matches!(error, LinkError::BadFrame { .. }), "{error}");
}

#[test]
fn a_cut_network_ends_both_ends() {
    for encryption in BOTH {
        let (alpha, beta, proxy) = through_proxy(encryption, None);
        let ((_a, mut from_beta), (_b, mut from_alpha)) = (alpha.split(), beta.split());
        proxy.cut();
        from_beta.recv().unwrap_err();
        from_alpha.recv().unwrap_err();
    }
}

#[test]
fn a_time_out_loses_nothing() {
    for encryption in BOTH {
        let (alpha, beta, _proxy) = through_proxy(encryption, Some(8 << 20));
        let ((to_beta, _a), (_b, mut from_alpha)) = (alpha.split(), beta.split());
        from_alpha
            .set_timeout(Some(Duration::from_millis(2)))
            .unwrap();
        assert!(from_alpha.recv().unwrap_err().is_timed_out());
        let payload = vec![9; 1 << 20];
        to_beta.send(b"slow", Payload::of(&payload)).unwrap();
        loop {
            match from_alpha.recv() {
                Ok(frame) => break assert_eq!(*frame.payload, payload),
                Err(error) => assert!(error.is_timed_out(), "{error}"),
            }
        }
    }
}

#[test]
fn a_spinning_receiver_gets_a_frame_at_once_late_or_never() {
    let nodes = Nodes::new();
    for encryption in BOTH {
        let (alpha, beta) = nodes.connect(options(encryption));
        let (sender, _receiver) = alpha.split();
        let (_sender, mut receiver) = beta.split();
        receiver
            .set_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        sender.send(b"at once", Payload::of(&[1; 5000])).unwrap();
        assert_eq!(*receiver.recv_spinning().unwrap().payload, [1; 5000]);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(10));
                sender.send(b"late", Payload::NONE).unwrap();
            });
            assert_eq!(receiver.recv_spinning().unwrap().header, b"late");
        });
        assert!(receiver.recv_spinning().unwrap_err().is_timed_out());
        sender.shutdown("enough");
        assert!(!receiver.recv_spinning().unwrap_err().is_timed_out());
    }
}

#[test]
fn shutdown_wakes_all_waiting_threads() {
    let nodes = Nodes::new();
    for encryption in BOTH {
        let (alpha, beta) = nodes.connect(cramped(encryption));
        let (to_beta, mut from_beta) = alpha.split();
        let payload = vec![0; 1 << 20];
        thread::scope(|scope| {
            for _ in 0..3 {
                // The peer does not read: one thread fills the socket, the others the queue, and all wait.
                scope.spawn(|| {
                    let stopped = loop {
                        if let Err(error) = to_beta.send(b"", Payload::of(&payload)) {
                            break error;
                        }
                    };
                    assert!(stopped.to_string().contains("lease"), "{stopped}");
                });
            }
            let reader = scope.spawn(|| from_beta.recv().unwrap_err().to_string());
            while to_beta.queued_bytes() < lockstep_link::QUEUE_BYTES_MAX {
                thread::yield_now();
            }
            to_beta.shutdown("the lease ran out");
            assert!(reader.join().unwrap().contains("lease"));
        });
        drop(beta);
    }
}

#[test]
fn enqueue_reports_a_full_queue() {
    let nodes = Nodes::new();
    let (alpha, _beta) = nodes.connect(cramped(Encryption::On));
    let (to_beta, _from_beta) = alpha.split();
    let payload = vec![0; 1 << 20];
    let full = loop {
        if let Err(error) = to_beta.enqueue(b"", Payload::of(&payload)) {
            break error;
        }
    };
    assert!(matches!(full, LinkError::QueueFull { .. }), "{full}");
}

#[test]
fn dropping_either_half_closes() {
    let nodes = Nodes::new();
    for encryption in BOTH {
        for drop_sender in [true, false] {
            let (alpha, beta) = nodes.connect(options(encryption));
            let (to_beta, from_beta) = alpha.split();
            let (to_alpha, mut from_alpha) = beta.split();
            to_beta.send(b"last words", Payload::NONE).unwrap();
            let _kept: (Option<Sender>, Option<Receiver>) = if drop_sender {
                drop(to_beta);
                (None, Some(from_beta))
            } else {
                drop(from_beta);
                (Some(to_beta), None)
            };
            assert_eq!(from_alpha.recv().unwrap().header, b"last words");
            let closed = from_alpha.recv().unwrap_err();
            assert!(matches!(closed, LinkError::Closed { .. }), "{closed}");
            to_alpha.send(b"", Payload::NONE).unwrap_err();
        }
    }
}

/// From one frame on, both nodes hash payloads with the secret of their stores: the frame has those sums with it.
#[test]
fn frames_have_the_sums_of_an_agreed_key_with_them() {
    let key = Arc::new(SumKey::new(&SumSecret::new([4; 32])));
    let payload: Vec<u8> = (0..=250).cycle().take(300_000).collect();
    let start = BlockOffset::of(100);
    let sums = PieceSums::of(&key, start, &payload);
    for encryption in BOTH {
        let nodes = Nodes::new();
        let (alpha, beta) = nodes.connect(options(encryption));
        let ((to_beta, _back), (_to_alpha, mut from_alpha)) = (alpha.split(), beta.split());
        to_beta.send(b"before", Payload::of(&payload)).unwrap();
        assert_eq!(from_alpha.recv().unwrap().payload.sums(&key, start), None);
        to_beta.use_sum_key(&key);
        from_alpha.use_sum_key(&key);
        for bytes in [sums.with(&payload), SummedBytes::without(&payload)] {
            to_beta.send(b"behind", Payload::at(100, bytes)).unwrap();
            let frame = from_alpha.recv().unwrap();
            let known = frame.payload.sums(&key, start);
            let expected = (encryption == Encryption::On).then(|| sums.sums());
            assert_eq!(known, expected, "{encryption:?}");
            assert!(*frame.payload == payload);
        }
    }
}
