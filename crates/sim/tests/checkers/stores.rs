//! Two stores that are in sync are equal in every respect.

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
    let message = differing(|there| {
        let inode = there.inodes.get_mut(&ino(2)).unwrap();
        inode.body = Body::File(blocks(&[1, 4, 3]));
    });
    assert!(message.contains("#2 block 1, byte 0 of it"), "{message}");
    let message = differing(|there| {
        let inode = there.inodes.get_mut(&ino(2)).unwrap();
        inode.body = Body::File(blocks(&[1, 2]));
    });
    assert!(message.contains("#2 block 2"), "{message}");
}

#[test]
fn an_attribute_that_differs_is_named() {
    let message = differing(|there| there.inodes.get_mut(&ino(2)).unwrap().mtime.nanos = 1);
    assert!(message.contains("#2 mtime"), "{message}");
    let message = differing(|there| {
        let inode = there.inodes.get_mut(&ino(3)).unwrap();
        inode.xattrs.insert(b"user.a".to_vec(), b"x".to_vec());
    });
    assert!(message.contains("#3 xattr user.a"), "{message}");
}

#[test]
fn an_entry_cookie_or_inode_that_differs_is_named() {
    let message = differing(|there| {
        let Body::Directory(entries) = &mut there.inodes.get_mut(&ino(1)).unwrap().body else {
            panic!("the root is a directory");
        };
        entries[1].cookie = 77;
    });
    assert!(message.contains("at cookie 77"), "{message}");
    let message = differing(|there| {
        there.inodes.remove(&ino(3));
    });
    assert!(message.contains("#3 is here only"), "{message}");
}
