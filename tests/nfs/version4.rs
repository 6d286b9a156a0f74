//! A client of NFS version 4.0 that opens a file, and takes its open back from a server that has taken over.
//!
//! RFC 7530 has the numbers and the order of the fields.

use std::net::TcpStream;

use crate::rpc::{Answer, Arguments, Connection, NFS_PORT, Program};

const NFS: Program = Program {
    number: 100_003,
    version: 4,
};
const OK: u32 = 0;
/// The status of an open that is not a return to one, while other clients may return to theirs.
pub const GRACE: u32 = 10_013;
/// The status of an open that returns to one that the client does not have.
pub const RECLAIM_BAD: u32 = 10_034;
/// The status of an open that returns to one, when the time for that is over.
pub const NO_GRACE: u32 = 10_033;

const GETFH: u32 = 10;
const LOOKUP: u32 = 15;
const OPEN: u32 = 18;
const OPEN_CONFIRM: u32 = 20;
const PUTFH: u32 = 22;
const PUTROOTFH: u32 = 24;
const SETCLIENTID: u32 = 35;
const SETCLIENTID_CONFIRM: u32 = 36;
const WRITE: u32 = 38;

/// The flag of an open that needs a confirmation.
const NEEDS_CONFIRMATION: u32 = 2;
/// Read and write.
const ACCESS_BOTH: u32 = 3;

/// The state of an open file.
type StateId = Vec<u8>;

/// A client of one server. The name of the client is the same on each server.
pub struct Client {
    connection: Connection,
    name: String,
    id: u64,
    /// The number of the next operation of the owner of the opens.
    sequence: u32,
}

/// The object of an open.
enum Claim<'a> {
    /// A name in the current directory.
    Name(&'a str),
    /// The current file, which the client had open on the server before.
    Previous,
}

/// A request with several operations.
#[derive(Default)]
struct Compound {
    count: u32,
    operations: Arguments,
}

impl Compound {
    fn then(mut self, operation: u32, arguments: Arguments) -> Self {
        self.count += 1;
        self.operations = self.operations.number(operation);
        self.operations.0.extend(arguments.0);
        self
    }
}

impl Client {
    /// Introduces a client to the server.
    pub fn new(connect: impl FnOnce(u16) -> TcpStream, name: &str) -> Self {
        let mut client = Self {
            connection: Connection::new(connect(NFS_PORT)),
            name: name.to_owned(),
            id: 0,
            sequence: 0,
        };
        let introduction = Arguments::default()
            .long(1)
            .bytes(name.as_bytes())
            .number(0x4000_0000)
            .bytes(b"tcp")
            .bytes(b"127.0.0.1.0.0")
            .number(0);
        let one = Compound::default().then(SETCLIENTID, introduction);
        let mut answer = client.run(one).unwrap();
        skip(&mut answer, SETCLIENTID);
        client.id = answer.long();
        let mut confirmation = Arguments::default().long(client.id);
        confirmation.0.extend(answer.take(8));
        let one = Compound::default().then(SETCLIENTID_CONFIRM, confirmation);
        client.run(one).unwrap();
        client
    }

    /// Runs operations; the error is the status of the one that failed.
    fn run(&mut self, compound: Compound) -> Result<Answer, u32> {
        let mut arguments = Arguments::default()
            .bytes(b"")
            .number(0)
            .number(compound.count);
        arguments.0.extend(compound.operations.0);
        self.connection.send(NFS, 1, &arguments);
        let mut answer = self.connection.receive().unwrap();
        let status = answer.number();
        if status != OK {
            return Err(status);
        }
        answer.bytes();
        assert_eq!(answer.number(), compound.count);
        Ok(answer)
    }

    fn open_arguments(&mut self, claim: &Claim<'_>) -> Arguments {
        let owner = Arguments::default()
            .number(self.sequence)
            .number(ACCESS_BOTH)
            .number(0)
            .long(self.id)
            .bytes(self.name.as_bytes())
            .number(0);
        self.sequence += 1;
        match claim {
            Claim::Name(name) => owner.number(0).bytes(name.as_bytes()),
            Claim::Previous => owner.number(1).number(0),
        }
    }

    /// Opens a file below the root of the server, and returns its handle and its state.
    pub fn open(&mut self, directories: &[&str], name: &str) -> Result<(Vec<u8>, StateId), u32> {
        let nothing = Arguments::default;
        let mut compound = Compound::default().then(PUTROOTFH, nothing());
        for directory in directories {
            compound = compound.then(LOOKUP, nothing().bytes(directory.as_bytes()));
        }
        let open = self.open_arguments(&Claim::Name(name));
        let mut answer = self.run(compound.then(OPEN, open).then(GETFH, nothing()))?;
        skip(&mut answer, PUTROOTFH);
        for _ in directories {
            skip(&mut answer, LOOKUP);
        }
        let (state, flags) = opened(&mut answer);
        skip(&mut answer, GETFH);
        let handle = answer.bytes();
        Ok((handle.clone(), self.confirm(&handle, state, flags)))
    }

    /// Takes back an open that the client had on the server before.
    pub fn reclaim(&mut self, handle: &[u8]) -> Result<StateId, u32> {
        let open = self.open_arguments(&Claim::Previous);
        let compound = Compound::default()
            .then(PUTFH, Arguments::default().bytes(handle))
            .then(OPEN, open);
        let mut answer = self.run(compound)?;
        skip(&mut answer, PUTFH);
        let (state, flags) = opened(&mut answer);
        Ok(self.confirm(handle, state, flags))
    }

    fn confirm(&mut self, handle: &[u8], state: StateId, flags: u32) -> StateId {
        if flags & NEEDS_CONFIRMATION == 0 {
            return state;
        }
        let mut confirmation = Arguments(state);
        confirmation = confirmation.number(self.sequence);
        self.sequence += 1;
        let compound = Compound::default()
            .then(PUTFH, Arguments::default().bytes(handle))
            .then(OPEN_CONFIRM, confirmation);
        let mut answer = self.run(compound).unwrap();
        skip(&mut answer, PUTFH);
        skip(&mut answer, OPEN_CONFIRM);
        answer.take(16)
    }

    /// Writes bytes, saved before the answer.
    pub fn write(&mut self, handle: &[u8], state: &StateId, data: &[u8]) -> Result<(), u32> {
        let write = Arguments(state.clone()).long(0).number(2).bytes(data);
        let compound = Compound::default()
            .then(PUTFH, Arguments::default().bytes(handle))
            .then(WRITE, write);
        self.run(compound).map(drop)
    }
}

/// Passes over the number and the status of an operation in an answer.
fn skip(answer: &mut Answer, operation: u32) {
    assert_eq!((answer.number(), answer.number()), (operation, OK));
}

/// The state and the flags of an open.
fn opened(answer: &mut Answer) -> (StateId, u32) {
    skip(answer, OPEN);
    let state = answer.take(16);
    answer.take(20); // the change of the directory
    let flags = answer.number();
    let words = answer.number() as usize;
    answer.take(4 * words); // the attributes that were set
    assert_eq!(answer.number(), 0, "no delegation");
    (state, flags)
}
