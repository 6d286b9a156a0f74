//! The files of a store. After damage to one of them, the store opens with its whole content, or is refused with
//! an error that names the file and a cure, and stays unchanged.
//!
//! Some damage looks exactly like legal data. No program can detect such damage, and this test does not ask for it:
//!
//! - Content is not checksummed on one node (`lockstep verify` finds wrong bytes), and while a file has unflushed
//!   writes, only the content tells its length. So content is only cut, extended or removed, and only in stores after
//!   a clean shutdown.
//! - A killed process may leave a torn or empty slot of `tables/times`. Then the times of last writes may be older;
//!   sizes and bytes may not differ.
//! - The append of the last log record may be incomplete if the process was killed before a request for stable
//!   storage.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use lockstep_driver::{Datastore, Dial};
use lockstep_fs::os_backing::OsBacking;
use lockstep_link::{Identity, LinkOptions, ReceiveFrames, SendFrames, accept};
use lockstep_paw_saw::{InFlightEntry, InFlightTable, TABLE_BYTES};
use lockstep_repl::message::Envelope;
use lockstep_testbed::chance::Chance;
use lockstep_types::backing::Backing;
use lockstep_types::{Generation, Ino, MetaRequest, NodeKind, Osn};
use lockstepfs::config::{DatastoreConfig, Encryption, Role};

use crate::bytes;
use crate::client::Client;
use crate::dialer::LinkDialer;
use crate::run::cases;
use crate::store::{self, Running};

#[test]
fn a_damaged_store_is_refused_or_keeps_its_content() {
    if !store::can_export() {
        return;
    }
    let place = store::quick_place();
    let stores = Undamaged::make_all(place.path());
    let dir = place.path().join("damaged");
    cases(
        "disk::a_damaged_store_is_refused_or_keeps_its_content",
        120,
        |chance| {
            let undamaged = &stores[bytes::index(chance, stores.len())];
            store::copy(&undamaged.dir, &dir);
            let damage = Damage::choose(chance, undamaged);
            if damage.inflict(chance, &dir) {
                judge(undamaged, &damage, &dir);
            }
            fs::remove_dir_all(&dir).unwrap();
        },
    );
}

/// A store before the damage.
struct Undamaged {
    name: &'static str,
    dir: PathBuf,
    role: Role,
    /// The process was killed, not stopped.
    killed: bool,
    manifest: String,
    /// All its files.
    files: Vec<PathBuf>,
}

impl Undamaged {
    /// Uses a datastore in sync. Returns the stores of both nodes, once after a kill of both and once after a clean
    /// shutdown.
    fn make_all(place: &Path) -> Vec<Self> {
        let pair = Pair::start(place);
        pair.work();
        let killed = pair.copies(place, "killed");
        pair.stop();
        let stopped = [pair_dir(place, "primary"), pair_dir(place, "secondary")];
        let [killed_primary, killed_secondary] = killed;
        let [primary, secondary] = stopped;
        for dir in [&killed_primary, &killed_secondary] {
            add_writes_in_flight(dir);
        }
        vec![
            Self::look("killed primary", killed_primary, Role::Primary, true),
            Self::look("killed secondary", killed_secondary, Role::Secondary, true),
            Self::look("stopped primary", primary, Role::Primary, false),
            Self::look("stopped secondary", secondary, Role::Secondary, false),
        ]
    }

    fn look(name: &'static str, dir: PathBuf, role: Role, killed: bool) -> Self {
        let all = store::all(&dir).into_iter();
        Self {
            name,
            role,
            killed,
            manifest: store::manifest(&dir).unwrap(),
            files: all
                .filter_map(|(path, bytes)| bytes.map(|_| path))
                .collect(),
            dir,
        }
    }
}

fn pair_dir(place: &Path, name: &str) -> PathBuf {
    place.join(name)
}

/// Both nodes of a datastore, in this process.
struct Pair {
    primary: Running,
    secondary: Running,
    place: PathBuf,
}

impl Pair {
    fn start(place: &Path) -> Self {
        let own = Arc::new(Identity::ephemeral("primary").unwrap());
        let other = Arc::new(Identity::ephemeral("secondary").unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let start = |role, name, peer: &Identity, dialer| {
            let dir = pair_dir(place, name);
            store::make(&dir);
            let config = store::config(&dir, role, peer.fingerprint(), Encryption::On);
            Running::start(store::open(&config).unwrap(), dialer)
        };
        let secondary = start(Role::Secondary, "secondary", &own, None);
        let served = Arc::clone(&secondary.datastore);
        let (accepting, pinned) = (Arc::clone(&other), own.fingerprint());
        thread::spawn(move || serve(&listener, &accepting, pinned, &served));
        let pinned = other.fingerprint();
        let dialer: Box<dyn Dial> = Box::new(LinkDialer {
            address,
            identity: own,
            fingerprint: pinned,
            options: LinkOptions::default(),
        });
        let primary = start(Role::Primary, "primary", &other, Some(dialer));
        let place = place.to_owned();
        Self {
            primary,
            secondary,
            place,
        }
    }

    /// Fills both stores. Some operations come after the last checkpoint, and some of those stay unsynced.
    fn work(&self) {
        let client = Client::of(&self.primary.datastore);
        assert!(self.primary.await_sync(), "the primary is refused");
        client.fill();
        for node in [&self.primary, &self.secondary] {
            node.datastore.store().checkpoint().unwrap();
        }
        let ino = client.create("later");
        client.write(ino, 0, &[3; 9000]);
        client.begin_sync(ino).get().unwrap();
        for name in ["unsynced-1", "unsynced-2", "unsynced-3"] {
            let ino = client.create(name);
            client.write(ino, 100, name.as_bytes());
        }
        let truncate = MetaRequest::Truncate {
            ino,
            size: 5000,
            drop_set_id: false,
        };
        client.begin_change(truncate).get().unwrap();
        client
            .begin_create("last", NodeKind::Directory, &[])
            .1
            .get()
            .unwrap();
    }

    /// Copies both stores as a kill of both processes would leave them now.
    fn copies(&self, place: &Path, name: &str) -> [PathBuf; 2] {
        ["primary", "secondary"].map(|of| {
            let dir = place.join(format!("{name}-{of}"));
            store::copy(&pair_dir(&self.place, of), &dir);
            dir
        })
    }

    fn stop(self) {
        self.primary.stop();
        self.secondary.stop();
    }
}

/// Serves one primary, as a node does.
fn serve(
    listener: &TcpListener,
    identity: &Identity,
    pinned: lockstep_link::Fingerprint,
    datastore: &Arc<Datastore>,
) {
    let (socket, _) = listener.accept().unwrap();
    let connection = accept(socket, identity, &[pinned].into(), &LinkOptions::default()).unwrap();
    let (sender, mut receiver) = connection.split();
    let envelope = Envelope::decode(receiver.recv().unwrap().header).unwrap();
    let sender: Arc<dyn SendFrames> = Arc::new(sender);
    assert!(
        datastore
            .role()
            .serve_peer(&sender, Box::new(receiver), &envelope)
    );
}

/// Adds writes in flight at the time of the kill, in both tables.
fn add_writes_in_flight(dir: &Path) {
    let backing = OsBacking::open(dir).unwrap();
    for table in ["tables/paw", "tables/saw"] {
        let mapped = backing.open_table(table, TABLE_BYTES).unwrap();
        let (table, _) = InFlightTable::open(mapped).unwrap();
        for number in 0..5 {
            let entry = InFlightEntry {
                ino: Ino::new(2 + number).unwrap(),
                osn: Osn {
                    generation: Generation::FIRST,
                    sequence: (1 << 40) + number,
                },
                offset: number * 4096,
                length: 100,
            };
            let _slot = table.insert(entry).unwrap();
        }
    }
}

/// The damage to one file.
struct Damage {
    file: PathBuf,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Accidents to the non-zero bytes.
    Inside,
    /// Accidents to the whole file, its length included.
    Whole,
    Cut,
    Longer,
    Removed,
    Random,
    Directory,
}

impl Damage {
    fn choose(chance: &mut Chance, store: &Undamaged) -> Self {
        let content = !store.killed && chance.percent(15);
        let files: Vec<&PathBuf> = store
            .files
            .iter()
            .filter(|file| file.starts_with("content") == content)
            .collect();
        let file = (*chance.pick(&files)).clone();
        let kind = match chance.within(0..20) {
            _ if content => {
                *chance.pick(&[Kind::Cut, Kind::Longer, Kind::Removed, Kind::Directory])
            }
            0..13 => Kind::Inside,
            13..16 => Kind::Whole,
            16 => Kind::Cut,
            17 => Kind::Removed,
            18 => Kind::Random,
            _ => Kind::Directory,
        };
        Self { file, kind }
    }

    /// Damages the file; false if the file is the same afterwards.
    fn inflict(&self, chance: &mut Chance, dir: &Path) -> bool {
        let path = dir.join(&self.file);
        let before = fs::read(&path).unwrap();
        let mut bytes = before.clone();
        match self.kind {
            Kind::Inside => {
                for _ in 0..chance.within(1..4) {
                    inside(chance, &mut bytes);
                }
            }
            Kind::Whole => bytes::mutate_often(chance, &mut bytes),
            Kind::Cut if bytes.is_empty() => return false,
            Kind::Cut => bytes.truncate(bytes::index(chance, before.len())),
            Kind::Longer => bytes.extend(bytes::random(chance, 10_000)),
            Kind::Random => bytes = bytes::random(chance, 300_000),
            Kind::Removed | Kind::Directory => {
                fs::remove_file(&path).unwrap();
                if self.kind == Kind::Directory {
                    fs::create_dir(&path).unwrap();
                }
                return true;
            }
        }
        fs::write(&path, &bytes).unwrap();
        bytes != before
    }

    /// Whether the log of a killed process has no whole frame behind the first damaged one. Then the damaged frame
    /// looks like an incomplete last append.
    fn removed_the_tail(&self, undamaged: &Undamaged, dir: &Path) -> bool {
        if !self.is_of("log") || !undamaged.killed {
            return false;
        }
        let whole = fs::read(undamaged.dir.join(&self.file)).unwrap();
        let now = fs::read(dir.join(&self.file)).unwrap_or_default();
        let frames = frames(&whole);
        let is_whole =
            |&(start, end): &(usize, usize)| now.get(start..end) == whole.get(start..end);
        let first = frames.iter().position(|frame| !is_whole(frame));
        first.is_some_and(|first| !frames[first..].iter().any(is_whole))
    }

    fn is_of(&self, name: &str) -> bool {
        self.file.starts_with(name)
    }
}

/// The ranges of the frames in a segment of the log, by their length fields: see `docs/on-disk.md`.
fn frames(segment: &[u8]) -> Vec<(usize, usize)> {
    let (mut frames, mut at) = (Vec::new(), 4096);
    while segment.get(at + 36).is_some_and(|&kind| kind != 0) {
        let payload = u32::from_le_bytes(segment[at + 32..at + 36].try_into().unwrap());
        let end = at + (40 + payload as usize).next_multiple_of(8);
        frames.push((at, end));
        at = end;
    }
    frames
}

/// Applies an accident to a piece of a file that is not all zeros, if there is one.
fn inside(chance: &mut Chance, bytes: &mut [u8]) {
    const PIECE_BYTES: usize = 512;
    let filled: Vec<usize> = (0..bytes.len())
        .step_by(PIECE_BYTES)
        .filter(|&at| bytes[at..].iter().take(PIECE_BYTES).any(|&byte| byte != 0))
        .collect();
    if filled.is_empty() {
        return;
    }
    let start = *chance.pick(&filled);
    let end = (start + PIECE_BYTES).min(bytes.len());
    let mut piece = bytes[start..end].to_vec();
    bytes::mutate(chance, &mut piece);
    piece.resize(end - start, 0);
    bytes[start..end].copy_from_slice(&piece);
}

/// Checks the store after the damage.
fn judge(undamaged: &Undamaged, damage: &Damage, dir: &Path) {
    let what = format!(
        "{} of a {}: {:?}",
        damage.file.display(),
        undamaged.name,
        damage.kind
    );
    let before = store::all(dir);
    let written_out = store::manifest(dir);
    assert!(
        store::all(dir) == before,
        "{what}: export changed the store"
    );
    let tail_gone = damage.removed_the_tail(undamaged, dir);
    judge_manifest(undamaged, damage, tail_gone, &what, &written_out);
    let nobody = Identity::ephemeral("nobody").unwrap().fingerprint();
    let config = store::config(dir, undamaged.role, nobody, Encryption::On);
    match open(&config) {
        Ok(datastore) => {
            datastore.stop();
            datastore.close();
            drop(datastore);
            let again = store::manifest(dir);
            judge_manifest(
                undamaged,
                damage,
                tail_gone,
                &format!("{what}, opened"),
                &again,
            );
        }
        Err(error) => {
            assert_helpful(damage, &what, &error);
            assert!(
                store::all(dir) == before,
                "{what}: changed though refused: {error}"
            );
        }
    }
}

fn open(config: &DatastoreConfig) -> Result<Arc<Datastore>, String> {
    store::open(config).map_err(|error| error.to_string())
}

fn judge_manifest(
    undamaged: &Undamaged,
    damage: &Damage,
    tail_gone: bool,
    what: &str,
    found: &Result<String, String>,
) {
    match found {
        Err(error) => assert_helpful(damage, what, error),
        Ok(found) if damage.is_of("tables/times") => {
            assert_same(
                what,
                &without_times(found),
                &without_times(&undamaged.manifest),
            );
        }
        Ok(_) if tail_gone => {}
        Ok(found) => assert_same(what, found, &undamaged.manifest),
    }
}

fn assert_same(what: &str, found: &str, expected: &str) {
    let missing = expected
        .lines()
        .find(|line| !found.lines().any(|other| other == *line));
    if let Some(line) = missing {
        panic!("{what}: lost silently: {line}\n{found}");
    }
    assert_eq!(found, expected, "{what}: more than there was");
}

/// A manifest without the times of last writes.
fn without_times(manifest: &str) -> String {
    let line = |line: &str| {
        let mut columns: Vec<&str> = line.split('\t').collect();
        if columns.get(2) == Some(&"f") {
            columns[8] = "";
            columns[9] = "";
        }
        columns.join("\t") + "\n"
    };
    manifest.lines().map(line).collect()
}

/// Checks that an error names the file and a cure.
fn assert_helpful(damage: &Damage, what: &str, error: &str) {
    let file = damage.file.to_str().unwrap();
    // A missing or torn slot of the table of times is reported with the content of its file.
    let named =
        error.contains(file) || (damage.is_of("tables/times") && error.contains("content/"));
    assert!(named, "{what}: the file is not named: {error}");
    let cures = [
        "check the disk",
        "Check the disk",
        "A store is damaged",
        "move",
        "newer program",
        "correct `store`",
    ];
    assert!(
        cures.iter().any(|cure| error.contains(cure)),
        "{what}: no cure is named: {error}"
    );
}
