//! The flags of inodes in a store, beside the comparison with the model.

use lockstep_fs::OpError;
use lockstep_types::{Errno, Ino, InodeFlags, MetaRequest};

use crate::durability::Client;
use crate::harness::Node;

fn set(node: &Node, client: &mut Client, ino: Ino, flags: InodeFlags) {
    let op = client.op(MetaRequest::SetFlags { ino, flags });
    node.store.commit(&op).unwrap();
}

/// Whether a client may write bytes of a file.
fn may_write(node: &Node, ino: Ino, bytes: [u64; 2], is_resent_append: bool) -> bool {
    let [start, end] = bytes;
    match node
        .store
        .tree()
        .check_write(ino, start..end, is_resent_append)
    {
        Ok(()) => true,
        Err(OpError::Refused(Errno::NotPermitted)) => false,
        Err(error) => panic!("{error}"),
    }
}

/// An append that was executed, and that the kernel sends again, is at the end of the file no more.
#[test]
fn an_append_that_is_sent_again_ends_where_the_file_ends() {
    let (mut node, mut client) = (Node::new(), Client::new());
    let ino = client.create(&node, "f");
    client.write(&node, ino, b"0123456789");
    for flags in [InodeFlags::APPEND_ONLY, InodeFlags::IMMUTABLE] {
        assert!(may_write(&node, ino, [4, 10], false));
        set(&node, &mut client, ino, flags);
        let appends = flags == InodeFlags::APPEND_ONLY;
        // Once with the file in use, and once without.
        for _ in 0..2 {
            assert_eq!(may_write(&node, ino, [10, 12], false), appends);
            assert_eq!(may_write(&node, ino, [4, 10], true), appends);
            for bytes in [[4, 10], [4, 12], [4, 6]] {
                assert!(!may_write(&node, ino, bytes, false));
            }
            assert!(!may_write(&node, ino, [4, 6], true));
            node.restart();
        }
        set(&node, &mut client, ino, InodeFlags::NONE);
    }
}
