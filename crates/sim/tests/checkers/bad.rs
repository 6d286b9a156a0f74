//! Histories made by hand. Each bad history is caught, and its good counterpart passes.

use lockstep_sim::check::{Dump, durable, exactly_once, reads, survives};
use lockstep_sim::history::{Answer, Stop};
use lockstep_types::{Errno, NodeKind};

use crate::hand::{
    BLOCK, FILE, Hand, attr, blocks, create, dump, durable as durable_write, ino, link, lookup,
    read, rename, rmdir, set_xattr, sync, truncate, unlink, write,
};

fn reads_fail(hand: &Hand) -> String {
    reads::check(&hand.history).unwrap_err().to_string()
}

fn reads_pass(hand: &Hand) {
    assert_eq!(reads::check(&hand.history), Ok(()));
}

/// Returns the store at the end, with the file in its correct state.
fn ended(content: &[u8]) -> Dump {
    dump(&[("f", FILE)], content)
}

#[test]
fn a_stale_read() {
    let mut hand = Hand::new();
    hand.write(write(1, 0, 1));
    hand.write(write(2, 0, 1));
    hand.read(BLOCK, &blocks(&[2]));
    reads_pass(&hand);
    hand.read(BLOCK, &blocks(&[1]));
    let message = reads_fail(&hand);
    assert!(message.contains("write #2 [0, 4096) mark 1"), "{message}");
    assert!(message.contains("read #2 [0, 4096)"), "{message}");
}

#[test]
fn a_write_that_reads_do_not_see() {
    let mut hand = Hand::new();
    hand.write(write(1, 0, 1));
    hand.read(BLOCK, &[]);
    reads_fail(&hand);
}

#[test]
fn a_read_of_the_future_and_of_nothing() {
    let mut hand = Hand::new();
    hand.read(BLOCK, &blocks(&[1]));
    assert!(reads_fail(&hand).contains("no write put here"));
    hand.write(write(1, 0, 1));
    assert!(reads_fail(&hand).contains("before they were written"));
}

#[test]
fn a_read_beside_a_write_may_see_either() {
    for seen in [1, 2] {
        let mut hand = Hand::new();
        hand.write(write(1, 0, 1));
        let under_way = hand.invoke(write(2, 0, 1));
        hand.read(BLOCK, &blocks(&[seen]));
        hand.answer(under_way, Ok(Answer::Done));
        reads_pass(&hand);
    }
}

#[test]
fn new_then_old() {
    let mut hand = Hand::new();
    hand.write(write(1, 0, 1));
    let under_way = hand.invoke(write(2, 0, 1));
    hand.read(BLOCK, &blocks(&[2]));
    hand.read(BLOCK, &blocks(&[1]));
    hand.answer(under_way, Ok(Answer::Done));
    reads_fail(&hand);
}

#[test]
fn new_then_old_of_an_open_write() {
    let mut hand = Hand::new();
    hand.write(write(1, 0, 1));
    hand.invoke(write(2, 0, 1));
    hand.primary(Stop::Process);
    hand.read(BLOCK, &blocks(&[1]));
    hand.read(BLOCK, &blocks(&[2]));
    reads_pass(&hand);
    hand.read(BLOCK, &blocks(&[1]));
    reads_fail(&hand);
}

#[test]
fn size_then_smaller_size() {
    let mut hand = Hand::new();
    let under_way = hand.invoke(write(1, 1, 1));
    hand.done(lookup("f"), Answer::Attr(attr(FILE, 1, 2 * BLOCK)));
    hand.done(lookup("f"), Answer::Attr(attr(FILE, 1, 0)));
    hand.answer(under_way, Ok(Answer::Done));
    reads_fail(&hand);
}

#[test]
fn half_of_a_write() {
    let mut hand = Hand::new();
    hand.write(write(1, 0, 2));
    let under_way = hand.invoke(write(2, 0, 2));
    let look = hand.invoke(read(2 * BLOCK));
    hand.answer(look, Ok(Answer::read(ino(FILE), 0, &blocks(&[2, 1]))));
    reads_pass(&hand); // According to the history, a crash may have torn the write.
    hand.answer(under_way, Ok(Answer::Done));
    reads_fail(&hand);
}

#[test]
fn torn_order_of_two_writes() {
    for (content, is_good) in [
        ([1, 1], true),
        ([2, 2], true),
        ([1, 2], false),
        ([2, 1], false),
    ] {
        let mut hand = Hand::new();
        let one = hand.invoke(write(1, 0, 2));
        let two = hand.invoke(write(2, 0, 2));
        hand.answer(one, Ok(Answer::Done));
        hand.answer(two, Ok(Answer::Done));
        let judged = survives::check(&hand.history, &ended(&blocks(&content)));
        assert_eq!(judged.is_ok(), is_good, "{content:?}: {judged:?}");
    }
}

#[test]
fn zeros_after_a_truncation_and_not_before() {
    let mut hand = Hand::new();
    hand.write(write(1, 0, 2));
    hand.write(truncate(BLOCK));
    hand.write(truncate(2 * BLOCK));
    hand.read(2 * BLOCK, &blocks(&[1, 0]));
    reads_pass(&hand);
    hand.read(2 * BLOCK, &blocks(&[0, 0]));
    reads_fail(&hand);
}

#[test]
fn a_lost_acknowledged_write() {
    for stop in [Stop::Process, Stop::Power] {
        let mut hand = Hand::new();
        hand.write(sync());
        hand.write(write(1, 0, 2));
        hand.primary(stop);
        let judged = survives::check(&hand.history, &ended(&blocks(&[1, 0])));
        assert_eq!(judged.is_ok(), stop == Stop::Power, "{stop:?}: {judged:?}");
        hand.read(2 * BLOCK, &blocks(&[1, 0]));
        let judged = reads::check(&hand.history);
        assert_eq!(judged.is_ok(), stop == Stop::Power, "{stop:?}: {judged:?}");
    }
}

#[test]
fn what_a_power_loss_left_stays() {
    let mut hand = Hand::new();
    hand.write(sync());
    hand.write(write(1, 0, 1));
    hand.write(write(2, 0, 1));
    hand.primary(Stop::Power);
    hand.read(BLOCK, &blocks(&[1]));
    reads_pass(&hand);
    hand.primary(Stop::Power);
    hand.read(BLOCK, &blocks(&[2]));
    assert!(reads_fail(&hand).contains("before the last loss"));
}

#[test]
fn a_lost_sync() {
    for (covers, is_good) in [(true, false), (false, true)] {
        let mut hand = Hand::new();
        hand.write(durable_write(1, 0, 1));
        hand.write(write(2, 0, 1));
        if covers {
            hand.write(sync());
        }
        hand.primary(Stop::Power);
        let judged = durable::check(&hand.history, &ended(&blocks(&[1])));
        assert_eq!(judged.is_ok(), is_good, "{judged:?}");
        hand.read(BLOCK, &blocks(&[1]));
        assert_eq!(reads::check(&hand.history).is_ok(), is_good);
    }
}

#[test]
fn a_lost_durable_write() {
    let mut hand = Hand::new();
    hand.write(durable_write(1, 0, 1));
    hand.primary(Stop::Power);
    let lost = durable::check(&hand.history, &ended(&[])).unwrap_err();
    assert!(lost.to_string().contains("durable write #2"), "{lost}");
    assert_eq!(durable::check(&hand.history, &ended(&blocks(&[1]))), Ok(()));
}

#[test]
fn a_lost_name() {
    let mut hand = Hand::new();
    hand.done(create(3, "g", NodeKind::File), Answer::Attr(attr(3, 1, 0)));
    hand.primary(Stop::Power);
    let (with, without) = (dump(&[("f", 2), ("g", 3)], &[]), dump(&[("f", 2)], &[]));
    for last in [&with, &without] {
        assert_eq!(durable::check(&hand.history, last), Ok(()));
        assert_eq!(survives::check(&hand.history, last), Ok(()));
        assert_eq!(exactly_once::check(&hand.history, last), Ok(()));
    }
    let mut hand = Hand::new();
    hand.done(create(3, "g", NodeKind::File), Answer::Attr(attr(3, 1, 0)));
    hand.primary(Stop::Process);
    assert!(survives::check(&hand.history, &without).is_err());
    assert!(exactly_once::check(&hand.history, &without).is_err());
    hand.write(sync());
    hand.primary(Stop::Power);
    assert!(durable::check(&hand.history, &without).is_err());
    assert!(exactly_once::check(&hand.history, &without).is_err());
    assert_eq!(exactly_once::check(&hand.history, &with), Ok(()));
}

#[test]
fn what_is_left_of_the_log_is_its_beginning() {
    let mut hand = Hand::new();
    hand.write(sync());
    hand.done(create(3, "g", NodeKind::File), Answer::Attr(attr(3, 1, 0)));
    hand.done(create(4, "h", NodeKind::File), Answer::Attr(attr(4, 1, 0)));
    hand.primary(Stop::Power);
    let first = dump(&[("f", 2), ("g", 3)], &[]);
    assert_eq!(exactly_once::check(&hand.history, &first), Ok(()));
    let second = dump(&[("f", 2), ("h", 4)], &[]);
    assert!(exactly_once::check(&hand.history, &second).is_err());
}

#[test]
fn a_double_mkdir() {
    let mut hand = Hand::new();
    hand.done(create(3, "d", NodeKind::Directory), Answer::Done);
    hand.done(rmdir("d"), Answer::Done);
    assert_eq!(
        exactly_once::check(&hand.history, &dump(&[("f", 2)], &[])),
        Ok(())
    );
    let again = dump(&[("d", 3), ("f", 2)], &[]);
    let message = exactly_once::check(&hand.history, &again)
        .unwrap_err()
        .to_string();
    assert!(message.contains("links"), "{message}");
}

#[test]
fn a_double_link() {
    let mut hand = Hand::new();
    hand.done(link(FILE, "g"), Answer::Attr(attr(FILE, 2, 0)));
    let mut last = dump(&[("f", 2), ("g", 2)], &[]);
    assert_eq!(exactly_once::check(&hand.history, &last), Ok(()));
    last.inodes.get_mut(&ino(FILE)).unwrap().nlink = 3;
    assert!(exactly_once::check(&hand.history, &last).is_err());
}

#[test]
fn a_resurrected_file() {
    let mut hand = Hand::new();
    hand.done(unlink("f"), Answer::Done);
    hand.call(lookup("f"), Err(Errno::NoEntry));
    assert_eq!(exactly_once::check(&hand.history, &dump(&[], &[])), Ok(()));
    let risen = dump(&[("f", FILE)], &[]);
    assert!(exactly_once::check(&hand.history, &risen).is_err());
    hand.done(lookup("f"), Answer::Attr(attr(FILE, 1, 0)));
    assert!(exactly_once::check(&hand.history, &dump(&[], &[])).is_err());
}

#[test]
fn an_answer_that_no_order_gives() {
    // A rename and an unlink of the same name: one of the two must find no entry.
    for (second, is_good) in [(Err(Errno::NoEntry), true), (Ok(Answer::Done), false)] {
        let mut hand = Hand::new();
        let one = hand.invoke(rename("f", "g"));
        let two = hand.invoke(unlink("f"));
        hand.answer(one, Ok(Answer::Done));
        hand.answer(two, second);
        let judged = exactly_once::check(&hand.history, &dump(&[("g", FILE)], &[]));
        assert_eq!(judged.is_ok(), is_good, "{judged:?}");
    }
}

#[test]
fn an_open_operation_happens_as_a_whole_or_not_at_all() {
    let mut hand = Hand::new();
    hand.invoke(rename("f", "g"));
    hand.primary(Stop::Process);
    for names in [[("f", FILE)], [("g", FILE)]] {
        assert_eq!(
            exactly_once::check(&hand.history, &dump(&names, &[])),
            Ok(())
        );
    }
    let both = dump(&[("f", FILE), ("g", FILE)], &[]);
    assert!(exactly_once::check(&hand.history, &both).is_err());
    assert!(exactly_once::check(&hand.history, &dump(&[], &[])).is_err());
}

#[test]
fn an_old_attribute_that_comes_back() {
    let mut hand = Hand::new();
    hand.done(set_xattr("1"), Answer::Done);
    hand.done(set_xattr("2"), Answer::Done);
    for (value, is_good) in [("1", false), ("2", true)] {
        let mut last = ended(&[]);
        let xattrs = &mut last.inodes.get_mut(&ino(FILE)).unwrap().xattrs;
        xattrs.insert(b"user.count".to_vec(), value.as_bytes().to_vec());
        assert_eq!(exactly_once::check(&hand.history, &last).is_ok(), is_good);
    }
}
