//! The proxy between a client and an echo server.

use super::*;

/// A server that sends all received bytes back, on any number of connections, until it is dropped.
struct Echo {
    address: SocketAddr,
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = listener.try_clone().unwrap();
        let thread = thread::spawn(move || {
            thread::scope(|scope| {
                while let Ok((socket, _)) = accepting.accept() {
                    scope.spawn(move || drop(io::copy(&mut &socket, &mut &socket)));
                }
            });
        });
        Self {
            address,
            listener,
            thread: Some(thread),
        }
    }

    fn behind(&self, rtt: Duration) -> DelayProxy {
        let any = "127.0.0.1:0".parse().unwrap();
        DelayProxy::start(any, self.address, rtt, None).unwrap()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both).unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn ask(mut socket: &TcpStream, bytes: &[u8]) -> io::Result<Vec<u8>> {
    socket.write_all(bytes)?;
    let mut answer = vec![0; bytes.len()];
    socket.read_exact(&mut answer)?;
    Ok(answer)
}

#[test]
fn delays_by_the_round_trip_and_changes_nothing() {
    let echo = Echo::start();
    let proxy = echo.behind(Duration::from_millis(30));
    let socket = TcpStream::connect(proxy.local_addr()).unwrap();
    let sent: Vec<u8> = (0..=255).cycle().take(30_000).collect();
    let start = Instant::now();
    assert_eq!(ask(&socket, &sent).unwrap(), sent);
    assert!(start.elapsed() >= Duration::from_millis(30));
}

#[test]
fn much_is_under_way_at_once() {
    let echo = Echo::start();
    let proxy = echo.behind(Duration::from_millis(20));
    let socket = TcpStream::connect(proxy.local_addr()).unwrap();
    let sent = vec![5; 4 << 20];
    thread::scope(|scope| {
        let mut writing = &socket;
        let sent = &sent;
        scope.spawn(move || {
            writing.write_all(sent).unwrap();
            writing.shutdown(Shutdown::Write).unwrap();
        });
        let mut answer = Vec::new();
        (&socket).read_to_end(&mut answer).unwrap();
        assert_eq!(&answer, sent);
    });
}

#[test]
fn cut_ends_and_refuses_until_healed() {
    let echo = Echo::start();
    let proxy = echo.behind(Duration::ZERO);
    let before = TcpStream::connect(proxy.local_addr()).unwrap();
    assert_eq!(ask(&before, b"one").unwrap(), b"one");
    proxy.cut();
    assert!(ask(&before, b"two").is_err());
    let during = TcpStream::connect(proxy.local_addr()).unwrap();
    assert!(ask(&during, b"three").is_err());
    proxy.heal();
    let after = TcpStream::connect(proxy.local_addr()).unwrap();
    assert_eq!(ask(&after, b"four").unwrap(), b"four");
}

#[test]
fn stall_holds_everything_back() {
    let echo = Echo::start();
    let proxy = echo.behind(Duration::ZERO);
    let mut socket = TcpStream::connect(proxy.local_addr()).unwrap();
    assert_eq!(ask(&socket, b"one").unwrap(), b"one");
    proxy.stall(true);
    socket.write_all(b"two").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(30)))
        .unwrap();
    socket.read_exact(&mut [0; 3]).unwrap_err();
    socket.set_read_timeout(None).unwrap();
    proxy.stall(false);
    let mut answer = [0; 3];
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"two");
}

#[test]
fn corrupts_one_bit_of_as_many_chunks_as_told() {
    let echo = Echo::start();
    let proxy = echo.behind(Duration::ZERO);
    let socket = TcpStream::connect(proxy.local_addr()).unwrap();
    proxy.corrupt_next(1);
    let answer = ask(&socket, b"hello").unwrap();
    let flipped: u32 = answer
        .iter()
        .zip(b"hello")
        .map(|(a, b)| (a ^ b).count_ones())
        .sum();
    assert_eq!(flipped, 1);
    assert_eq!(ask(&socket, b"hello").unwrap(), b"hello");
}

#[test]
fn dropping_it_ends_its_connections() {
    let echo = Echo::start();
    let proxy = echo.behind(Duration::from_secs(60));
    let socket = TcpStream::connect(proxy.local_addr()).unwrap();
    (&socket).write_all(b"under way for a long time").unwrap();
    drop(proxy);
    assert!(!matches!((&socket).read(&mut [0]), Ok(1)));
}
