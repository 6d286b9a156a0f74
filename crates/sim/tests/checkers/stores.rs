//! Two stores that are in sync are equal in everything.

use lockstep_sim::check::{Body, Dump, identical};

use crate::hand::{blocks, dump, ino};

fn differing(change: impl FnOnce(&mut Dump)) -> String {
    let here = dump(&[("f", 2), ("g", 2), ("d", 3)], &blocks(&[1, 2, 3]));
    let mut there = here.clone();
    assert_eq!(identical::check(&here, &there), Ok(()));
    change(&mut there);
    identical::check(&here, &there).unwrap_err().to_string()
}

#[test]
fn a_block_that_differs_is_named() {
    let told = differing(|there| {
        let inode = there.inodes.get_mut(&ino(2)).unwrap();
        inode.body = Body::File(blocks(&[1, 4, 3]));
    });
    assert!(told.contains("#2 block 1, byte 0 of it"), "{told}");
    let told = differing(|there| {
        let inode = there.inodes.get_mut(&ino(2)).unwrap();
        inode.body = Body::File(blocks(&[1, 2]));
    });
    assert!(told.contains("#2 block 2"), "{told}");
}

#[test]
fn an_attribute_that_differs_is_named() {
    let told = differing(|there| there.inodes.get_mut(&ino(2)).unwrap().mtime.nanos = 1);
    assert!(told.contains("#2 mtime"), "{told}");
    let told = differing(|there| {
        let inode = there.inodes.get_mut(&ino(3)).unwrap();
        inode.xattrs.insert(b"user.a".to_vec(), b"x".to_vec());
    });
    assert!(told.contains("#3 xattr user.a"), "{told}");
}

#[test]
fn an_entry_cookie_or_inode_that_differs_is_named() {
    let told = differing(|there| {
        let Body::Directory(entries) = &mut there.inodes.get_mut(&ino(1)).unwrap().body else {
            panic!("the root is a directory");
        };
        entries[1].cookie = 77;
    });
    assert!(told.contains("at cookie 77"), "{told}");
    let told = differing(|there| {
        there.inodes.remove(&ino(3));
    });
    assert!(told.contains("#3 is here only"), "{told}");
}
