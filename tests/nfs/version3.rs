//! A client of NFS version 3 that shows what other clients hide: handles, the stability of each write, and the write verifier.
//!
//! RFC 1813 has the numbers and the order of the fields.

use std::net::TcpStream;
use std::time::Duration;

use crate::rpc::{Answer, Arguments, Connection, NFS_PORT, Program};

const MOUNT_PORT: u16 = 20_048;
const NFS: Program = Program {
    number: 100_003,
    version: 3,
};
const MOUNT: Program = Program {
    number: 100_005,
    version: 3,
};
/// The status of a request that is done.
const OK: u32 = 0;
/// The status of a lookup of a name that is not there.
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

/// A connection with the NFS service.
pub struct Client(Connection);

impl Answer {
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
        Self(Connection::new(connect(NFS_PORT)))
    }

    /// Calls NFS, and returns the status and the rest of the answer.
    fn call(&mut self, procedure: u32, arguments: &Arguments) -> (u32, Answer) {
        self.0.send(NFS, procedure, arguments);
        let mut answer = self.0.receive().unwrap();
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
        self.0.send(NFS, 7, &arguments);
    }

    /// Receives the answer to a write.
    pub fn receive_write(&mut self) -> Written {
        let mut answer = self.0.receive().unwrap();
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
        self.0.send(NFS, 21, &arguments);
    }

    /// Receives the answer to such a demand.
    pub fn receive_commit(&mut self) -> Verifier {
        let mut answer = self.0.receive().unwrap();
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

    /// Whether an answer arrives within this time, or the connection ends.
    pub fn awaits_answer(&self, limit: Duration) -> bool {
        self.0.awaits_answer(limit)
    }
}

/// Asks for the handle of the export.
pub fn mount(connect: impl FnOnce(u16) -> TcpStream, path: &str) -> Handle {
    let mut connection = Connection::new(connect(MOUNT_PORT));
    connection.send(MOUNT, 1, &Arguments::default().bytes(path.as_bytes()));
    let mut answer = connection.receive().unwrap();
    assert_eq!(answer.number(), OK, "status of the mount of {path}");
    answer.bytes()
}
