//! A witness that is added while the datastore is served.

use lockstep_driver::report::DatastoreStatus;
use lockstep_testbed::Which::{Primary as A, Secondary as B};
use lockstep_testbed::operator::{await_in_sync, await_status};
use lockstep_testbed::witness::Witness;
use lockstep_testbed::{NodeEnvironment, PATIENT, Pair, repetitions};

use crate::records::{Writer, assert_records};
use crate::{FAILOVER_AFTER_MS, await_protected, resyncs};

/// A node that asks the witness and a node that does not yet go on as two nodes without a witness.
#[test]
fn a_witness_is_added_on_one_node_after_the_other() {
    if repetitions("LOCKSTEP_TAKEOVER_ROUNDS", 1).is_none() {
        return;
    }
    let mut pair = Pair::prepare(PATIENT, [(); 2].map(|()| NodeEnvironment::default()));
    pair.start();
    pair.await_in_sync();
    let compared = [A, B].map(|which| resyncs(&pair, which).len());
    let witness = Witness::beside(&pair);
    let mut writer = Writer::start(&pair.node(A).mount(), "first");
    writer.await_progress();
    witness.add_to(&pair, B, FAILOVER_AFTER_MS);
    pair.node_mut(B).kill();
    pair.node_mut(B).start();
    pair.await_in_sync();
    writer.await_progress();
    await_status(pair.node(B), "a witness that one node asks", asks_alone);
    witness.add_to(&pair, A, FAILOVER_AFTER_MS);
    pair.node_mut(A).kill();
    let of_first = writer.lose();
    pair.node_mut(A).start();
    await_in_sync(&mut pair, A, 1);
    await_protected(&pair, A);
    assert_eq!([A, B].map(|which| resyncs(&pair, which).len()), compared);
    assert_records(&pair.node(A).mount(), "first", of_first);
}

/// Whether the other node asks no witness.
fn asks_alone(status: &DatastoreStatus) -> bool {
    let trouble = status.witness.as_ref().and_then(|it| it.trouble.as_ref());
    trouble.is_some_and(|text| text.contains("asks no witness yet"))
}
