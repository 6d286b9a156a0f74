//! What clients were told, and what they may therefore find.
//!
//! Each client has a block of a shared file and some names to itself, so that what it may find there
//! is known exactly: the last write acknowledged, or one after it of which it never heard. What is
//! found once stays, until the machine of the primary loses power: then it may go back as far as to
//! the last write acknowledged as durable.

use std::collections::BTreeMap;

/// Which client.
pub type ClientId = u64;

/// What one client may find in its block.
#[derive(Clone, Debug, Default)]
struct Block {
    /// The last write that must be there, unless a later one is.
    firm: u64,
    /// The last write that must be there even after a loss of power.
    durable: u64,
    /// Later writes that may be there.
    open: Vec<u64>,
}

/// Whether a name of a client exists; `None` when it cannot know.
type Names = BTreeMap<u64, Option<bool>>;

/// Everything clients were told.
#[derive(Debug, Default)]
pub struct Ledger {
    next: u64,
    blocks: BTreeMap<ClientId, Block>,
    names: BTreeMap<ClientId, Names>,
    answered: u64,
    wrong: Option<String>,
}

impl Ledger {
    /// A write begins; returns what to write.
    pub fn begin_write(&mut self, client: ClientId) -> u64 {
        self.next += 1;
        self.blocks.entry(client).or_default().open.push(self.next);
        self.next
    }

    /// A write was acknowledged.
    pub fn wrote(&mut self, client: ClientId, write: u64, durable: bool) {
        self.answered += 1;
        let block = self.blocks.entry(client).or_default();
        block.firm = write;
        block.open.clear();
        if durable {
            block.durable = write;
        }
    }

    /// The write that a sync which begins now will cover.
    pub fn firm(&self, client: ClientId) -> u64 {
        self.blocks.get(&client).map_or(0, |block| block.firm)
    }

    /// The last write acknowledged as durable.
    pub fn durable(&self, client: ClientId) -> u64 {
        self.blocks.get(&client).map_or(0, |block| block.durable)
    }

    /// A sync was acknowledged that covers a write.
    pub fn synced(&mut self, client: ClientId, write: u64) {
        self.answered += 1;
        let block = self.blocks.entry(client).or_default();
        block.durable = block.durable.max(write);
    }

    /// A client has found something in its block.
    pub fn found(&mut self, client: ClientId, bytes: &[u8]) {
        self.answered += 1;
        let words = bytes
            .as_chunks()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word));
        let written = words.clone().next().unwrap_or(0);
        let block = self.blocks.entry(client).or_default();
        if words.clone().any(|word| word != written) {
            self.wrong(format!("the block of client {client} is torn"));
        } else if written == block.firm || block.open.contains(&written) {
            block.firm = written;
            block.open.clear();
        } else {
            let expected = block.clone();
            self.wrong(format!(
                "client {client} found write {written}, expected {expected:?}"
            ));
        }
    }

    /// Making or removing a name was done, or refused because it was there or missing.
    pub fn named(&mut self, client: ClientId, name: u64, made: bool, done: bool) {
        self.answered += 1;
        let known = self
            .names
            .entry(client)
            .or_default()
            .entry(name)
            .or_default();
        // Made if it was missing, removed if it was there; refused otherwise.
        let was_there = made != done;
        if known.is_some_and(|there| there != was_there) {
            let what = if made { "making" } else { "removing" };
            let answer = if done { "done" } else { "refused" };
            let there = if was_there { "missing" } else { "there" };
            return self.wrong(format!(
                "{what} name {name} of client {client} was {answer}, though it was {there}"
            ));
        }
        *known = Some(if done { made } else { was_there });
    }

    /// A change of a name begins: until it is answered nobody can know.
    pub fn begin_naming(&mut self, client: ClientId, name: u64) -> Option<bool> {
        let known = self
            .names
            .entry(client)
            .or_default()
            .entry(name)
            .or_default();
        std::mem::take(known)
    }

    /// What is known of a name, put back for the answer to be held against.
    pub fn recall(&mut self, client: ClientId, name: u64, known: Option<bool>) {
        self.names.entry(client).or_default().insert(name, known);
    }

    /// The machine of the primary has lost power.
    pub fn power_lost(&mut self) {
        for block in self.blocks.values_mut() {
            let lost = block.durable..=self.next;
            block.open = lost.filter(|write| *write > block.durable).collect();
            block.firm = block.durable;
        }
        for known in self.names.values_mut().flat_map(BTreeMap::values_mut) {
            *known = None;
        }
    }

    /// A client was told what it may never be told.
    pub fn wrong(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    /// The first thing that was wrong.
    pub fn verdict(&self) -> Result<(), String> {
        self.wrong.clone().map_or(Ok(()), Err)
    }

    /// Answers given to clients.
    pub const fn answered(&self) -> u64 {
        self.answered
    }
}
