//! An NFSv3 client that shows what other clients hide: handles, the stability of each write, and the write verifier.
//!
//! RFC 1813 has the numbers and the order of the fields.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::nodes::WAIT_LIMIT;

const PORT: u16 = 2049;
const MOUNT_PORT: u16 = 20_048;
const NFS_PROGRAM: u32 = 100_003;
const MOUNT_PROGRAM: u32 = 100_005;
const VERSION: u32 = 3;
/// The answer of RPC and of NFS to a request that is done.
const OK: u32 = 0;
/// The answer to a lookup of a name that is not there.
const NO_ENTRY: u32 = 2;

/// A handle of a file.
pub type Handle = Vec<u8>;
/// A write verifier.
pub type Verifier = [u8; 8];

/// How far the bytes of a write are saved before the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stable {
    Unstable = 0,
    DataSync = 1,
    FileSync = 2,
}

/// The answer to a write.
#[derive(Debug, PartialEq, Eq)]
pub struct Written {
    pub count: u32,
    /// The number of a [`Stable`].
    pub committed: u32,
    pub verifier: Verifier,
}

/// Attributes of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Attributes {
    pub size: u64,
    pub file_system: u64,
    pub number: u64,
}

/// A connection.
pub struct Client {
    socket: TcpStream,
    transaction: u32,
}

/// Arguments of a call.
#[derive(Clone, Default)]
struct Arguments(Vec<u8>);

impl Arguments {
    fn number(mut self, number: u32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn long(mut self, number: u64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        let mut longer = self.number(u32::try_from(bytes.len()).unwrap());
        longer.0.extend(bytes);
        longer.0.resize(longer.0.len().next_multiple_of(4), 0);
        longer
    }
}

/// The rest of an answer.
struct Answer(Vec<u8>);

impl Answer {
    fn take(&mut self, bytes: usize) -> Vec<u8> {
        let rest = self.0.split_off(bytes);
        std::mem::replace(&mut self.0, rest)
    }

    fn number(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    fn long(&mut self) -> u64 {
        u64::from_be_bytes(self.take(8).try_into().unwrap())
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = self.number() as usize;
        let mut padded = self.take(length.next_multiple_of(4));
        padded.truncate(length);
        padded
    }

    fn attributes(&mut self) -> Attributes {
        self.take(20); // type, mode, links, owner, group
        let size = self.long();
        self.take(16); // used, device
        let (file_system, number) = (self.long(), self.long());
        self.take(24); // times
        Attributes {
            size,
            file_system,
            number,
        }
    }

    fn optional_attributes(&mut self) -> Option<Attributes> {
        (self.number() == 1).then(|| self.attributes())
    }

    /// The attributes of a file before and after a change.
    fn change(&mut self) -> Option<Attributes> {
        if self.number() == 1 {
            self.take(24);
        }
        self.optional_attributes()
    }
}

impl Client {
    /// A client of the NFS service, by a way to connect to a port.
    pub fn new(connect: impl FnOnce(u16) -> TcpStream) -> Self {
        let socket = connect(PORT);
        socket.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
        Self {
            socket,
            transaction: 0,
        }
    }

    /// Sends a call.
    fn send(&mut self, program: u32, procedure: u32, arguments: &Arguments) {
        self.transaction += 1;
        let credentials = Arguments::default()
            .number(0)
            .bytes(b"test")
            .number(0)
            .number(0)
            .number(0);
        let call = [self.transaction, 0, 2, program, VERSION, procedure, 1];
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
    fn receive(&mut self) -> io::Result<Answer> {
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

    /// Calls NFS, and returns the status and the rest of the answer.
    fn call(&mut self, procedure: u32, arguments: &Arguments) -> (u32, Answer) {
        self.send(NFS_PROGRAM, procedure, arguments);
        let mut answer = self.receive().unwrap();
        (answer.number(), answer)
    }

    fn done(&mut self, procedure: u32, arguments: &Arguments) -> Answer {
        let (status, answer) = self.call(procedure, arguments);
        assert_eq!(status, OK, "status of procedure {procedure}");
        answer
    }

    /// The size and the numbers of a file.
    pub fn attributes(&mut self, file: &Handle) -> Attributes {
        self.done(1, &Arguments::default().bytes(file)).attributes()
    }

    /// The handle of a name; `None` if there is none.
    pub fn lookup(&mut self, directory: &Handle, name: &str) -> Option<Handle> {
        let arguments = Arguments::default().bytes(directory).bytes(name.as_bytes());
        let (status, mut answer) = self.call(3, &arguments);
        if status == NO_ENTRY {
            return None;
        }
        assert_eq!(status, OK, "lookup of {name}");
        Some(answer.bytes())
    }

    /// Reads bytes.
    pub fn read(&mut self, file: &Handle, offset: u64, count: u32) -> Vec<u8> {
        let arguments = Arguments::default().bytes(file).long(offset).number(count);
        let mut answer = self.done(6, &arguments);
        answer.optional_attributes();
        answer.number();
        answer.number();
        answer.bytes()
    }

    /// Sends a write, and does not wait for the answer.
    pub fn send_write(&mut self, file: &Handle, offset: u64, data: &[u8], stable: Stable) {
        let arguments = Arguments::default().bytes(file).long(offset);
        let arguments = arguments.number(u32::try_from(data.len()).unwrap());
        let arguments = arguments.number(stable as u32).bytes(data);
        self.send(NFS_PROGRAM, 7, &arguments);
    }

    /// Receives the answer to a write.
    pub fn receive_write(&mut self) -> Written {
        let mut answer = self.receive().unwrap();
        assert_eq!(answer.number(), OK, "status of a write");
        answer.change();
        Written {
            count: answer.number(),
            committed: answer.number(),
            verifier: answer.take(8).try_into().unwrap(),
        }
    }

    /// Writes bytes.
    pub fn write(&mut self, file: &Handle, offset: u64, data: &[u8], stable: Stable) -> Written {
        self.send_write(file, offset, data, stable);
        self.receive_write()
    }

    /// Sends a demand that the bytes of a file be saved, and does not wait for the answer.
    pub fn send_commit(&mut self, file: &Handle) {
        let arguments = Arguments::default().bytes(file).long(0).number(0);
        self.send(NFS_PROGRAM, 21, &arguments);
    }

    /// Receives the answer to such a demand.
    pub fn receive_commit(&mut self) -> Verifier {
        let mut answer = self.receive().unwrap();
        assert_eq!(answer.number(), OK, "status of a commit");
        answer.change();
        answer.take(8).try_into().unwrap()
    }

    /// Has the bytes of a file saved.
    pub fn commit(&mut self, file: &Handle) -> Verifier {
        self.send_commit(file);
        self.receive_commit()
    }

    /// Makes a file.
    pub fn create(&mut self, directory: &Handle, name: &str) -> Handle {
        let arguments = Arguments::default().bytes(directory).bytes(name.as_bytes());
        // Unchecked; a mode and nothing else.
        let arguments = arguments.number(0).number(1).number(0o644);
        let arguments = (0..5).fold(arguments, |arguments, _| arguments.number(0));
        let mut answer = self.done(8, &arguments);
        assert_eq!(answer.number(), 1, "a handle follows");
        answer.bytes()
    }

    /// Removes a name.
    pub fn remove(&mut self, directory: &Handle, name: &str) {
        let arguments = Arguments::default().bytes(directory).bytes(name.as_bytes());
        self.done(12, &arguments);
    }

    /// Whether an answer has arrived, or the connection has ended.
    pub fn has_answer(&self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        let seen = self.socket.peek(&mut [0]);
        self.socket.set_nonblocking(false).unwrap();
        seen.is_ok()
    }

    /// Waits for a moment for an answer.
    pub fn await_answer(&self, limit: Duration) -> bool {
        self.socket.set_read_timeout(Some(limit)).unwrap();
        let seen = self.socket.peek(&mut [0]);
        self.socket.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
        seen.is_ok()
    }
}

/// Asks for the handle of the export.
pub fn mount(connect: impl FnOnce(u16) -> TcpStream, path: &str) -> Handle {
    let mut client = Client::new(|_| connect(MOUNT_PORT));
    let arguments = Arguments::default().bytes(path.as_bytes());
    client.send(MOUNT_PROGRAM, 1, &arguments);
    let mut answer = client.receive().unwrap();
    assert_eq!(answer.number(), OK, "status of the mount of {path}");
    answer.bytes()
}
