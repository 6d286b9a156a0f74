//! Remote procedure calls over a connection (RFC 5531), with the values of XDR (RFC 4506).

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use lockstep_testbed::WAIT_LIMIT;

/// The port of NFS.
pub const NFS_PORT: u16 = 2049;
/// The status of a call that was executed.
const OK: u32 = 0;

/// A program of a server, and its version.
#[derive(Clone, Copy)]
pub struct Program {
    pub number: u32,
    pub version: u32,
}

/// A connection.
pub struct Connection {
    socket: TcpStream,
    transaction: u32,
}

/// Arguments of a call.
#[derive(Clone, Default)]
pub struct Arguments(pub Vec<u8>);

impl Arguments {
    pub fn number(mut self, number: u32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub fn long(mut self, number: u64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub fn bytes(self, bytes: &[u8]) -> Self {
        let mut longer = self.number(u32::try_from(bytes.len()).unwrap());
        longer.0.extend(bytes);
        longer.0.resize(longer.0.len().next_multiple_of(4), 0);
        longer
    }
}

/// The rest of an answer.
pub struct Answer(Vec<u8>);

impl Answer {
    pub fn take(&mut self, bytes: usize) -> Vec<u8> {
        let rest = self.0.split_off(bytes);
        std::mem::replace(&mut self.0, rest)
    }

    pub fn number(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    pub fn long(&mut self) -> u64 {
        u64::from_be_bytes(self.take(8).try_into().unwrap())
    }

    pub fn bytes(&mut self) -> Vec<u8> {
        let length = self.number() as usize;
        let mut padded = self.take(length.next_multiple_of(4));
        padded.truncate(length);
        padded
    }
}

impl Connection {
    /// A connection over this socket.
    pub fn new(socket: TcpStream) -> Self {
        socket.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
        Self {
            socket,
            transaction: 0,
        }
    }

    /// Sends a call.
    pub fn send(&mut self, program: Program, procedure: u32, arguments: &Arguments) {
        self.transaction += 1;
        let credentials = Arguments::default()
            .number(0)
            .bytes(b"test")
            .number(0)
            .number(0)
            .number(0);
        let Program { number, version } = program;
        let call = [self.transaction, 0, 2, number, version, procedure, 1];
        let mut message = call
            .into_iter()
            .fold(Arguments::default(), Arguments::number);
        message = message.bytes(&credentials.0).number(0).number(0);
        message.0.extend(&arguments.0);
        let length = u32::try_from(message.0.len()).unwrap() | 1 << 31;
        let framed = [&length.to_be_bytes(), &message.0[..]].concat();
        self.socket.write_all(&framed).unwrap();
    }

    /// Receives the answer to the last call.
    pub fn receive(&mut self) -> io::Result<Answer> {
        let mut message = Vec::new();
        loop {
            let mut head = [0; 4];
            self.socket.read_exact(&mut head)?;
            let head = u32::from_be_bytes(head);
            let begin = message.len();
            message.resize(begin + (head & !(1 << 31)) as usize, 0);
            self.socket.read_exact(&mut message[begin..])?;
            if head >> 31 == 1 {
                break;
            }
        }
        let mut answer = Answer(message);
        assert_eq!(answer.number(), self.transaction, "the number of the call");
        assert_eq!((answer.number(), answer.number()), (1, OK), "accepted");
        answer.number();
        answer.bytes();
        assert_eq!(answer.number(), OK, "executed");
        Ok(answer)
    }

    /// Whether an answer arrives within this time, or the connection ends.
    pub fn awaits_answer(&self, limit: Duration) -> bool {
        self.socket.set_read_timeout(Some(limit)).unwrap();
        let seen = self.socket.peek(&mut [0]);
        self.socket.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
        seen.is_ok()
    }
}
