//! One suite for every witness: a reference in memory, the own server over TLS, and etcd.
//!
//! The own server runs in a process of its own, which is this program again, so that a test can kill it. etcd comes
//! from the Debian package `etcd-server`; without it, its tests say `skipped`. Each test has its own witness.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "conformance/child.rs"]
mod child;
#[path = "conformance/etcd.rs"]
mod etcd;
#[path = "conformance/memory.rs"]
mod memory;
#[path = "conformance/own.rs"]
mod own;
#[path = "conformance/subject.rs"]
mod subject;
#[path = "conformance/suite.rs"]
mod suite;

/// Makes one test of each promise, for one kind of witness.
macro_rules! conformance {
    ($kind:ident: $($promise:ident,)*) => {
        mod $kind {
            $(
                #[test]
                fn $promise() {
                    if !crate::$kind::is_installed() {
                        println!("skipped: it is not installed");
                        return;
                    }
                    crate::suite::$promise(&mut crate::$kind::start());
                }
            )*
        }
    };
}

/// The promises that every witness keeps.
macro_rules! all_promises {
    ($kind:ident $(, $own:ident)*) => {
        conformance! { $kind:
            an_unknown_datastore_has_no_record,
            the_first_claim_makes_the_record,
            a_claim_with_a_wrong_expectation_changes_nothing,
            a_repeated_claim_is_granted_again,
            a_late_claim_changes_nothing,
            a_claim_that_breaks_a_rule_is_refused,
            of_racing_claims_one_wins_each_change,
            datastores_do_not_mix,
            a_killed_witness_keeps_its_records,
            a_witness_killed_amid_claims_loses_no_acknowledged_claim,
            an_unreachable_witness_is_an_error_and_comes_back,
            other_nodes_get_no_record,
            $($own,)*
        }
    };
}

mod of {
    all_promises!(memory, an_unknown_node_is_refused);
    all_promises!(own, an_unknown_node_is_refused);
    all_promises!(etcd);
}

/// Not a test of a promise: the process of a witness, started by the tests of the own server.
#[test]
fn the_process_of_a_witness() {
    own::serve_if_asked();
}
