//! Programs that change names. Each name is made and removed exactly once, or the program sees an error that no refusal is.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};

use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags, mknodat, renameat_with};

use crate::programs::{Place, Tree};

/// Makes, links, renames and removes names of every kind.
pub fn names(place: &Place) -> Tree {
    let path = |name: &str| place.path(name);
    let target = path("target");
    place.ask(|| fs::write(&target, "t"));
    while let Some(round) = place.next() {
        let (file, other) = (path(&format!("file {round}")), path("other"));
        drop(place.create(&format!("file {round}"), OFlags::empty()));
        place.ask(|| fs::hard_link(&file, &other));
        assert_eq!(place.ask(|| fs::metadata(&file)).nlink(), 2);
        place.ask(|| fs::rename(&other, path("moved")));
        place.ask(|| fs::remove_file(path("moved")));
        assert_eq!(place.ask(|| fs::metadata(&file)).nlink(), 1);
        // A rename that replaces.
        place.ask(|| fs::write(&other, round.to_string()));
        place.ask(|| fs::rename(&file, &other));
        assert_eq!(place.ask(|| fs::read(&other)), b"");
        place.ask(|| renameat_with(CWD, &other, CWD, &file, RenameFlags::NOREPLACE));
        place.ask(|| fs::remove_file(&file));
        let link = path("link");
        place.ask(|| symlink(&target, &link));
        assert_eq!(place.ask(|| fs::read_link(&link)), target);
        assert_eq!(place.ask(|| fs::read(&link)), b"t");
        place.ask(|| fs::remove_file(&link));
        let pipe = path("pipe");
        place.ask(|| mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0));
        assert!(place.ask(|| fs::metadata(&pipe)).file_type().is_fifo());
        place.ask(|| fs::remove_file(&pipe));
        directories(place);
    }
    Tree::from([("target".to_owned(), b"t".to_vec())])
}

fn directories(place: &Place) {
    let (first, second) = (place.path("first"), place.path("second"));
    place.ask(|| fs::create_dir(&first));
    place.ask(|| fs::write(first.join("in"), "it"));
    place.ask(|| fs::create_dir(&second));
    place.ask(|| fs::rename(first.join("in"), second.join("in")));
    // A directory replaces an empty one.
    place.ask(|| fs::rename(&second, &first));
    assert_eq!(place.ask(|| fs::read(first.join("in"))), b"it");
    place.ask(|| fs::remove_file(first.join("in")));
    place.ask(|| fs::remove_dir(&first));
}

/// Exchanges two names again and again.
pub fn exchanges(place: &Place) -> Tree {
    let (a, b) = (place.path("a"), place.path("b"));
    let mut contents = [b"first".to_vec(), b"second".to_vec()];
    place.ask(|| fs::write(&a, &contents[0]));
    place.ask(|| fs::write(&b, &contents[1]));
    while place.next().is_some() {
        place.ask(|| renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE));
        contents.swap(0, 1);
        assert_eq!(place.ask(|| fs::read(&a)), contents[0]);
        assert_eq!(place.ask(|| fs::read(&b)), contents[1]);
    }
    let [first, second] = contents;
    Tree::from([("a".to_owned(), first), ("b".to_owned(), second)])
}
