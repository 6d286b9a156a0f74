//! Programs that change names. Each name is made and removed exactly once, or the program sees an error.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};

use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};

use crate::programs::{Place, Tree};

/// Makes, links, renames and removes names of every kind.
pub fn names(place: &Place) -> Tree {
    let path = |name: &str| place.path(name);
    let target = path("target");
    fs::write(&target, "t").unwrap();
    while let Some(round) = place.next() {
        let (file, other) = (path(&format!("file {round}")), path("other"));
        drop(File::create_new(&file).unwrap());
        fs::hard_link(&file, &other).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().nlink(), 2);
        fs::rename(&other, path("moved")).unwrap();
        fs::remove_file(path("moved")).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().nlink(), 1);
        // A rename that replaces.
        fs::write(&other, round.to_string()).unwrap();
        fs::rename(&file, &other).unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"");
        let moved = renameat_with(CWD, &other, CWD, &file, RenameFlags::NOREPLACE);
        moved.unwrap();
        fs::remove_file(&file).unwrap();
        let link = path("link");
        symlink(&target, &link).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), target);
        assert_eq!(fs::read(&link).unwrap(), b"t");
        fs::remove_file(&link).unwrap();
        let pipe = path("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
        fs::remove_file(&pipe).unwrap();
        directories(place);
    }
    Tree::from([("target".to_owned(), b"t".to_vec())])
}

fn directories(place: &Place) {
    let (first, second) = (place.path("first"), place.path("second"));
    fs::create_dir(&first).unwrap();
    fs::write(first.join("in"), "it").unwrap();
    fs::create_dir(&second).unwrap();
    fs::rename(first.join("in"), second.join("in")).unwrap();
    // A directory replaces an empty one.
    fs::rename(&second, &first).unwrap();
    assert_eq!(fs::read(first.join("in")).unwrap(), b"it");
    fs::remove_file(first.join("in")).unwrap();
    fs::remove_dir(&first).unwrap();
}

/// Exchanges two names again and again.
pub fn exchanges(place: &Place) -> Tree {
    let (a, b) = (place.path("a"), place.path("b"));
    let mut contents = [b"first".to_vec(), b"second".to_vec()];
    fs::write(&a, &contents[0]).unwrap();
    fs::write(&b, &contents[1]).unwrap();
    while place.next().is_some() {
        renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
        contents.swap(0, 1);
        assert_eq!(fs::read(&a).unwrap(), contents[0]);
        assert_eq!(fs::read(&b).unwrap(), contents[1]);
    }
    let [first, second] = contents;
    Tree::from([("a".to_owned(), first), ("b".to_owned(), second)])
}
