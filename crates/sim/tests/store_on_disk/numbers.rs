//! The numbers of inodes over a loss of power: a number that the other node has given out, and this node has only heard of, is not given
//! out again (rule P13).

use lockstep_sim::disk::Survivors;
use lockstep_types::mutants::{Mutant, activate};
use lockstep_types::{MetaOp, Timestamp};

use super::*;

/// A number far beyond those that a new store has reserved.
const HEARD: u64 = 1 << 24;

/// A file of the other node is lost with the power. Returns whether its number is not given out again.
fn keeps_the_number() -> bool {
    let disk = made_disk();
    let store = open(&disk, BOOT).unwrap().store;
    let op = MetaOp {
        osn: osn(1),
        time: Timestamp::default(),
        request: creation(
            Ino::ROOT,
            file_name("lost"),
            Ino::new(HEARD).unwrap(),
            NodeKind::File,
        ),
    };
    store.commit(&op).unwrap();
    let disk = disk.after_power_loss(Survivors::Nothing, 1);
    let store = open(&disk, NEXT_BOOT).unwrap().store;
    store.next_ino().unwrap().get() > HEARD
}

#[test]
fn a_number_that_this_node_has_only_heard_of_is_not_given_out_again() {
    assert!(keeps_the_number());
    activate(Some(Mutant::ForgetNumbers));
    let keeps = keeps_the_number();
    activate(None);
    assert!(!keeps, "ForgetNumbers is not found");
}
