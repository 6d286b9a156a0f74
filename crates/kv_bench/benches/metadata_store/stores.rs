//! The stores, each behind the same few calls.
//!
//! `apply` makes a batch visible, not durable. `checkpoint` makes the applied batches durable, as a checkpoint does
//! before an intent log is cut.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use fjall::PersistMode;
use heed::types::Bytes;
use heed::{CommitOrAbort, EnvFlags};
use lockstep_fs::kv::memtable::Memtable;
use lockstep_fs::kv::redb::{RedbKv, RedbOptions};
use lockstep_fs::kv::{Kv, KvError};
use lockstep_fs::os_backing::OsBacking;
use redb::{Durability, ReadableDatabase};

/// Keys and their new values.
pub type Batch = Vec<([u8; 16], Vec<u8>)>;

pub const NAMES: [&str; 6] = [
    "redb in a memory table",
    "redb, checked blocks",
    "redb, plain",
    "fjall",
    "lmdb (heed)",
    "sled *",
];

/// A measured store.
pub trait Store {
    fn commit_durable(&mut self, batch: &Batch);
    fn apply(&mut self, batch: &Batch);
    fn checkpoint(&mut self);
    /// Waits for a checkpoint in the background.
    fn wait(&mut self) {}
    /// Length of a value.
    fn get_bytes(&self, key: &[u8]) -> Option<usize>;
}

/// Opens a store, and creates a missing store.
pub fn open(name: &str, dir: &Path) -> Box<dyn Store> {
    match name {
        "redb in a memory table" => Box::new(Table::open(dir)),
        "redb, checked blocks" => Box::new(Checked(checked(dir))),
        "redb, plain" => Box::new(Plain::open(dir)),
        "fjall" => Box::new(Fjall::open(dir)),
        "lmdb (heed)" => Box::new(Lmdb::open(dir)),
        "sled *" => Box::new(Sled(sled::open(dir.join("sled")).unwrap())),
        name => panic!("no store is called {name}"),
    }
}

fn checked(dir: &Path) -> RedbKv {
    let backing = OsBacking::open(dir).unwrap();
    match RedbKv::open(&backing, "metadata", RedbOptions::default()) {
        Err(KvError::Missing { .. }) => {
            RedbKv::create(&backing, "metadata", RedbOptions::default()).unwrap()
        }
        opened => opened.unwrap(),
    }
}

fn commit(kv: &RedbKv, batch: &Batch) {
    let mut changes = batch
        .iter()
        .map(|(key, value)| (&key[..], Some(&value[..])));
    kv.commit_durable(&mut changes).unwrap();
}

/// Lockstep's choice: the checkpoint runs concurrently with later batches.
struct Table {
    table: Arc<Memtable<RedbKv>>,
    flusher: Option<JoinHandle<()>>,
}

impl Table {
    fn open(dir: &Path) -> Self {
        Self {
            table: Arc::new(Memtable::new(checked(dir))),
            flusher: None,
        }
    }
}

impl Store for Table {
    fn commit_durable(&mut self, batch: &Batch) {
        commit(self.table.base(), batch);
    }

    fn apply(&mut self, batch: &Batch) {
        let changes = batch
            .iter()
            .map(|(key, value)| (&key[..], Some(&value[..])));
        self.table.apply(changes);
    }

    fn checkpoint(&mut self) {
        self.wait();
        self.table.freeze();
        let table = Arc::clone(&self.table);
        self.flusher = Some(std::thread::spawn(move || table.flush().unwrap()));
    }

    fn wait(&mut self) {
        if let Some(flusher) = self.flusher.take() {
            flusher.join().unwrap();
        }
    }

    fn get_bytes(&self, key: &[u8]) -> Option<usize> {
        self.table.get(key).unwrap().map(|value| value.len())
    }
}

/// redb as Lockstep runs it; each batch is a commit.
struct Checked(RedbKv);

impl Store for Checked {
    fn commit_durable(&mut self, batch: &Batch) {
        commit(&self.0, batch);
    }

    fn apply(&mut self, batch: &Batch) {
        commit(&self.0, batch);
    }

    fn checkpoint(&mut self) {}

    fn get_bytes(&self, key: &[u8]) -> Option<usize> {
        self.0.get(key).unwrap().map(|value| value.len())
    }
}

/// redb on its own file, with its defaults.
struct Plain(redb::Database);

const TABLE: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("t");

impl Plain {
    fn open(dir: &Path) -> Self {
        let mut builder = redb::Database::builder();
        builder.set_cache_size(64 << 20);
        Self(builder.create(dir.join("redb")).unwrap())
    }

    fn commit(&self, batch: &Batch, durability: Durability) {
        let mut transaction = self.0.begin_write().unwrap();
        transaction.set_durability(durability).unwrap();
        {
            let mut table = transaction.open_table(TABLE).unwrap();
            for (key, value) in batch {
                table.insert(&key[..], &value[..]).unwrap();
            }
        }
        transaction.commit().unwrap();
    }
}

impl Store for Plain {
    fn commit_durable(&mut self, batch: &Batch) {
        self.commit(batch, Durability::Immediate);
    }

    fn apply(&mut self, batch: &Batch) {
        self.commit(batch, Durability::None);
    }

    fn checkpoint(&mut self) {
        self.commit(&Vec::new(), Durability::Immediate);
    }

    fn get_bytes(&self, key: &[u8]) -> Option<usize> {
        let transaction = self.0.begin_read().unwrap();
        let table = transaction.open_table(TABLE).unwrap();
        table.get(key).unwrap().map(|found| found.value().len())
    }
}

struct Fjall {
    database: fjall::Database,
    keyspace: fjall::Keyspace,
}

impl Fjall {
    fn open(dir: &Path) -> Self {
        let database = fjall::Database::builder(dir.join("fjall")).open().unwrap();
        let options = fjall::KeyspaceCreateOptions::default;
        let keyspace = database.keyspace("t", options).unwrap();
        Self { database, keyspace }
    }
}

impl Store for Fjall {
    fn commit_durable(&mut self, batch: &Batch) {
        self.apply(batch);
        self.checkpoint();
    }

    fn apply(&mut self, batch: &Batch) {
        let mut changes = self.database.batch();
        for (key, value) in batch {
            changes.insert(&self.keyspace, &key[..], &value[..]);
        }
        changes.commit().unwrap();
    }

    fn checkpoint(&mut self) {
        self.database.persist(PersistMode::SyncData).unwrap();
    }

    fn get_bytes(&self, key: &[u8]) -> Option<usize> {
        self.keyspace.get(key).unwrap().map(|value| value.len())
    }
}

/// LMDB. It does not sync between checkpoints, and a power loss may then damage the store.
struct Lmdb {
    env: heed::Env,
    database: heed::Database<'static, Bytes, Bytes>,
}

impl Lmdb {
    fn open(dir: &Path) -> Self {
        let path = dir.join("lmdb");
        std::fs::create_dir_all(&path).unwrap();
        let mut options = heed::EnvOpenOptions::new();
        options.map_size(4 << 30);
        // SAFETY: no other code opens this directory, and the bench syncs where it needs durability.
        let env = unsafe { options.flags(EnvFlags::NO_SYNC).open(path).unwrap() };
        let transaction = env.write_txn().unwrap();
        let database = env
            .create_databases_and_commit(transaction, |opener, transaction| {
                let database = opener.create_database(transaction, None)?;
                Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(database))
            })
            .unwrap()
            .unwrap_commit();
        Self { env, database }
    }
}

impl Store for Lmdb {
    fn commit_durable(&mut self, batch: &Batch) {
        self.apply(batch);
        self.checkpoint();
    }

    fn apply(&mut self, batch: &Batch) {
        let mut transaction = self.env.write_txn().unwrap();
        for (key, value) in batch {
            self.database.put(&mut transaction, key, value).unwrap();
        }
        transaction.commit().unwrap();
    }

    fn checkpoint(&mut self) {
        self.env.force_sync().unwrap();
    }

    fn get_bytes(&self, key: &[u8]) -> Option<usize> {
        let transaction = self.env.read_txn().unwrap();
        self.database
            .get(&transaction, key)
            .unwrap()
            .map(<[u8]>::len)
    }
}

/// sled. Its flush does not reach stable storage; see ADR 0001.
struct Sled(sled::Db);

impl Store for Sled {
    fn commit_durable(&mut self, batch: &Batch) {
        self.apply(batch);
        self.checkpoint();
    }

    fn apply(&mut self, batch: &Batch) {
        let mut changes = sled::Batch::default();
        for (key, value) in batch {
            changes.insert(&key[..], &value[..]);
        }
        self.0.apply_batch(changes).unwrap();
    }

    fn checkpoint(&mut self) {
        self.0.flush().unwrap();
    }

    fn get_bytes(&self, key: &[u8]) -> Option<usize> {
        self.0.get(key).unwrap().map(|value| value.len())
    }
}
