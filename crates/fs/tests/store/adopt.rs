//! Directories that become the content of a new store: everything is kept, a stop at any step loses nothing, and names that
//! a store cannot hold are refused before anything changes.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_fs::adopt::{AdoptError, AdoptOptions, AdoptTarget, Reason, adopt};
use lockstep_fs::os_backing::OsBacking;
use lockstep_fs::store::AdoptWay;
use lockstep_fs::{Store, StoreView};
use lockstep_lossy::disk::{Disk, Verdict};
use lockstep_types::{BootId, FileName, Ino, MetaOp, MetaRequest, NodeKind, Osn};
use rustix::fs::IFlags;

use crate::adopt_place::{Listing, Place, Watcher, assert_held, held, listed};
use crate::harness::{SURVIVORS, UUID, log_options, osn_and_time, try_open_in};

#[test]
fn everything_is_kept_by_a_copy_and_by_a_move() {
    for way in [None, Some(AdoptWay::Copy), Some(AdoptWay::Move)] {
        let place = Place::new();
        let before = listed(&place.source);
        // A store that was just made adopts, too.
        if way.is_none() {
            Store::create(&place.backing(), UUID, &log_options()).unwrap();
        }
        let mut watcher = Watcher::default();
        let summary = place.adopt(way, &mut watcher).unwrap();
        assert_eq!((summary.reports, watcher.reports), (0, vec![]));
        assert_eq!(summary.names, before.len() as u64 - 1);
        assert_eq!((summary.files, summary.directories), (4, 4));
        if way == Some(AdoptWay::Move) {
            assert_eq!(place.files_left(), Vec::<PathBuf>::new());
        } else {
            assert_eq!(listed(&place.source), before, "the directory is only read");
        }
        let store = place.open().unwrap();
        assert_held(&store, &before);
        let sparse = store.tree().getattr(find(&store, "sparse")).unwrap();
        assert!(sparse.blocks < 64, "holes stay holes: {}", sparse.blocks);
        assert_private(&place.store.join("content"));
        // No other node is taken for one that has more (P17).
        assert_ne!(store.applied(), Osn::ZERO);
        use_it(&store, 3);
        store.close().unwrap();
        let refused = place.adopt(way, &mut Watcher::default()).unwrap_err();
        assert!(matches!(refused, AdoptError::Used), "{refused}");
    }
}

/// The inode of a name in the directory with the odd name.
fn find(store: &Store, name: &str) -> Ino {
    let lookup = |at, name: &[u8]| store.tree().lookup(at, &FileName::new(name).unwrap());
    let directory = lookup(Ino::ROOT, b"dir\n\xfe").unwrap().ino;
    lookup(directory, name.as_bytes()).unwrap().ino
}

fn assert_private(content: &Path) {
    for entry in fs::read_dir(content).unwrap() {
        for file in fs::read_dir(entry.unwrap().path()).unwrap() {
            let stat = file.unwrap().metadata().unwrap();
            assert_eq!(stat.mode() & 0o7777, 0o600);
            assert_eq!(stat.uid(), rustix::process::geteuid().as_raw());
        }
    }
}

/// The operations of clients find a namespace as if they had made it.
fn use_it(store: &Store, links: u64) {
    let name = |name: &[u8]| FileName::new(name).unwrap();
    let directory = store.tree().lookup(Ino::ROOT, &name(b"dir\n\xfe")).unwrap();
    let made = store.next_ino().unwrap();
    assert!(store.tree().getattr(made).is_err(), "a new number");
    let requests = [
        MetaRequest::creation(directory.ino, name(b"new"), made, NodeKind::Directory).request(),
        MetaRequest::Unlink {
            parent: directory.ino,
            name: name(b"file"),
        },
        MetaRequest::Truncate {
            ino: find(store, "sparse"),
            size: 5,
            drop_set_id: false,
        },
    ];
    for (count, request) in requests.into_iter().enumerate() {
        let (_, time) = osn_and_time(count as u64);
        let osn = Osn {
            sequence: store.first_sequence() + count as u64,
            ..store.applied()
        };
        store.commit(&MetaOp { osn, time, request }).unwrap();
    }
    let after = store.tree().getattr(directory.ino).unwrap();
    assert_eq!(after.nlink, directory.nlink + 1);
    let below = find(store, "below");
    let link = store.tree().lookup(below, &name(b"z link")).unwrap();
    assert_eq!(u64::from(link.nlink), links - 1);
    let sparse = find(store, "sparse");
    let mut bytes = vec![0; 16];
    assert_eq!(store.read(sparse, 0, &mut bytes).unwrap(), 5);
    store.checkpoint().unwrap();
}

#[test]
fn an_adoption_that_stops_at_any_step_goes_on() {
    for (way, stride) in [(AdoptWay::Copy, 3), (AdoptWay::Move, 1)] {
        for stop_after in (0..).step_by(stride) {
            let place = Place::in_memory();
            let before = listed(&place.source);
            let mut stopping = Watcher {
                stop_after: Some(stop_after),
                ..Watcher::default()
            };
            let stopped = place.adopt(Some(way), &mut stopping);
            if stopped.is_ok() {
                assert!(stop_after > 30, "{stop_after} steps");
                break;
            }
            assert!(matches!(stopped, Err(AdoptError::Stopped)), "{stopped:?}");
            refuse_meanwhile(&place, &before, stop_after);
            // A second stop, and then to the end.
            let mut again = Watcher {
                stop_after: Some(stop_after / 2),
                ..Watcher::default()
            };
            let _stopped = place.adopt(Some(way), &mut again);
            let mut last = Watcher::default();
            if !place.store.join("format.json").exists() {
                let summary = place.adopt(Some(way), &mut last).unwrap();
                assert_eq!(summary.reports, 0, "{:?}", last.reports);
            }
            assert_held(&place.open().unwrap(), &before);
            assert_eq!(
                place.files_left().is_empty(),
                way == AdoptWay::Move,
                "{stop_after}"
            );
        }
    }
}

/// While an adoption is under way, there is no store to open, and none is made.
fn refuse_meanwhile(place: &Place, before: &Listing, steps: u64) {
    let is_begun = place.store.join("adoption.json").exists();
    let is_complete = place.store.join("format.json").exists();
    if is_complete {
        drop(place.open().unwrap());
        return;
    }
    if !is_begun {
        Store::check_vacant(&place.backing()).unwrap();
        return;
    }
    let opened = place.open().err().map(|error| error.to_string());
    let made = Store::create(&place.backing(), UUID, &log_options());
    // Until the directory is being emptied, an operator may give up.
    let left = listed_names(&place.source).len();
    let note = fs::read_to_string(place.store.join("adoption.json")).unwrap();
    let cure = if note.contains("\"emptying\": true") {
        "do not remove this directory"
    } else {
        assert_eq!(left, before.len(), "{steps}");
        "or remove this directory to give up"
    };
    for error in [opened, made.err().map(|error| error.to_string())] {
        let error = error.unwrap();
        assert!(
            error.contains("run the same `lockstep adopt` again"),
            "{error}"
        );
        assert!(error.contains(cure), "{steps}: {error}");
    }
    let mut other = place.options(None);
    other.source = place.source.join(std::ffi::OsStr::from_bytes(b"dir\n\xfe"));
    let files = Arc::new(OsBacking::open(&place.store).unwrap());
    let target = AdoptTarget::of_directory(files, &place.store).unwrap();
    let refused = adopt(&target, &other, &mut Watcher::default());
    assert!(
        matches!(refused, Err(AdoptError::Other { .. })),
        "{refused:?}"
    );
}

/// A disk that stops the process at any of its calls, with and without the loss of its power.
#[test]
fn a_disk_that_stops_or_loses_power_at_any_call_gets_everything() {
    let place = Place::new();
    let before = listed(&place.source);
    let run = |disk: &Disk| {
        let target = AdoptTarget::of_disk(disk.mount());
        adopt(&target, &place.options(None), &mut Watcher::default())
    };
    for calls in 1.. {
        let disk = Disk::default();
        disk.set_verdict(calls, Verdict::CrashBefore);
        let done = run(&disk).is_ok();
        let mut left = vec![(disk.fork(), 1)];
        // Not all: the last ones differ in little.
        if calls % 3 == 0 {
            let lost = SURVIVORS.map(|kind| (disk.after_power_loss(kind, calls), 2));
            left.extend(lost);
        }
        for (disk, boot) in left {
            if !Store::exists(disk.mount().as_ref()).unwrap() {
                assert_eq!(run(&disk).unwrap().reports, 0);
            }
            // A complete store survives, or the adoption goes on once more.
            let disk = disk.after_power_loss(SURVIVORS[0], 0);
            if !Store::exists(disk.mount().as_ref()).unwrap() {
                assert_eq!(run(&disk).unwrap().reports, 0);
            }
            let store = try_open_in(&disk, BootId::from_bytes([boot; 16])).unwrap();
            assert_held(&store, &before);
        }
        if done {
            return assert!(calls > 60, "{calls} calls");
        }
    }
}

#[test]
fn what_a_store_cannot_hold_is_listed_before_anything_changes() {
    let place = Place::new();
    let outside = place.source.parent().unwrap().join("outside");
    fs::hard_link(place.source.join("a link"), outside).unwrap();
    let large = fs::File::create(place.source.join("large")).unwrap();
    // The file systems of some machines have no file of that size.
    let is_large = large.set_len((16 << 40) - 4096 + 1).is_ok();
    let before = listed_names(&place.source);
    let mut watcher = Watcher::default();
    let refused = place.adopt(Some(AdoptWay::Move), &mut watcher).unwrap_err();
    let expected = 1 + u64::from(is_large);
    assert!(
        matches!(refused, AdoptError::Refused { total } if total == expected),
        "{refused:?}"
    );
    let reasons: Vec<_> = watcher.reports.iter().map(|(_, why)| why).collect();
    assert!(reasons.contains(&&Reason::NamesOutside), "{reasons:?}");
    assert_eq!(listed_names(&place.source), before);
    assert_eq!(fs::read_dir(&place.store).unwrap().count(), 0);
    if !is_large {
        // A copy has no care for other names.
        let copied = place.adopt(Some(AdoptWay::Copy), &mut Watcher::default());
        assert_eq!(copied.unwrap().reports, 0);
    }
    let missing = AdoptOptions {
        source: place.source.join("nowhere"),
        ..place.options(None)
    };
    let target = AdoptTarget::of_disk(Disk::default().mount());
    let refused = adopt(&target, &missing, &mut Watcher::default()).unwrap_err();
    assert!(refused.to_string().contains("nowhere"), "{refused}");
}

fn listed_names(top: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        if path.symlink_metadata().unwrap().is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
        }
        found.push(path);
    }
    found.sort();
    found
}

#[test]
fn what_changes_after_the_listing_is_reported_and_nothing_is_lost() {
    for way in [AdoptWay::Copy, AdoptWay::Move] {
        let place = Place::new();
        let top = place.source.clone();
        let odd = top.join(std::ffi::OsStr::from_bytes(b"dir\n\xfe"));
        let mut watcher = Watcher {
            before_taking: Some(Box::new(|| {
                fs::write(odd.join("sparse"), b"grown less").unwrap();
                fs::remove_file(top.join("a link")).unwrap();
                fs::remove_file(top.join("empty")).unwrap();
                fs::create_dir(top.join("empty")).unwrap();
                fs::write(odd.join("new"), b"new").unwrap();
                fs::remove_dir_all(odd.join("below/deep")).unwrap();
            })),
            ..Watcher::default()
        };
        let summary = place.adopt(Some(way), &mut watcher).unwrap();
        let mut reports = watcher.reports;
        reports.sort_by(|one, other| one.0.cmp(&other.0));
        let below = |name: &str| format!("dir\\x0a\\xfe/{name}");
        let expected = [
            ("a link".to_owned(), Reason::Gone),
            (below("below/deep"), Reason::DirectoryGone),
            (below("below/deep/large"), Reason::Gone),
            (below("new"), Reason::Came),
            ("empty".to_owned(), Reason::Replaced),
        ];
        let mut expected = expected.to_vec();
        expected.sort_by(|one, other| one.0.cmp(&other.0));
        assert_eq!(reports, expected);
        assert_eq!(summary.reports, 5);
        let store = place.open().unwrap();
        let found = held(&store);
        let at = |name: &str| {
            let path = Path::new(std::ffi::OsStr::from_bytes(b"dir\n\xfe")).join(name);
            found
                .get(&path)
                .map(|entry| (entry.links, &entry.bytes[..]))
        };
        assert_eq!(at("sparse"), Some((1, &b"grown less"[..])));
        assert_eq!(at("file"), Some((2, &b"content"[..])));
        assert_eq!(at("below/z link"), Some((2, &b"content"[..])));
        assert_eq!(at("below/deep"), Some((2, &b""[..])));
        assert_eq!(at("new"), None);
        assert_eq!(fs::read(odd.join("new")).unwrap(), b"new");
        assert!(top.join("empty").is_dir());
        use_it(&store, 2);
    }
}

/// Flags keep programs from changing a file. They stay in the store, and a move goes on in spite of them.
#[test]
fn flags_are_kept() {
    let place = Place::new();
    let directory = place.source.join("locked");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("log"), b"line").unwrap();
    let set = |path: &Path, flags: IFlags| {
        let file = fs::File::open(path).unwrap();
        let others = rustix::fs::ioctl_getflags(&file)?;
        let own = IFlags::IMMUTABLE | IFlags::APPEND | IFlags::NODUMP;
        rustix::fs::ioctl_setflags(&file, others.difference(own) | flags)
    };
    if set(&directory.join("log"), IFlags::APPEND | IFlags::NODUMP).is_err() {
        return; // Needs root, and a file system with flags.
    }
    set(&directory, IFlags::IMMUTABLE).unwrap();
    let moved = place.adopt(Some(AdoptWay::Move), &mut Watcher::default());
    let is_kept = set(&directory, IFlags::empty());
    moved.unwrap();
    is_kept.unwrap();
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    let store = place.open().unwrap();
    let lookup = |at, name: &[u8]| {
        let name = FileName::new(name).unwrap();
        store.tree().lookup(at, &name).unwrap()
    };
    let directory = lookup(Ino::ROOT, b"locked");
    assert_eq!(directory.flags.to_string(), "i");
    assert_eq!(lookup(directory.ino, b"log").flags.to_string(), "ad");
}
