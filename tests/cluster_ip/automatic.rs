//! The address with a witness: nodes, links and pairs of links fail, and no operator acts.
//!
//! The cases run at the same time, each in a network of its own: they wait most of the time.

use std::thread::{self, Builder};

use lockstep_driver::report::ServiceStatus;
use rustix::process::Signal;

use crate::network::Host::{self, A, B, Client as C, Witness as W};
use crate::watch::Holder::{Nobody, One};
use crate::{AUTOMATIC, Site, UNHURRIED, await_that, without_gaps};

/// Number of times that a process ends and starts again.
const RESTARTS: usize = 5;

/// A node serves by the answer of the witness, without the other one.
fn await_alone(site: &Site, host: Host) {
    site.server(host).await_status("service alone", |status| {
        status.sync.service == ServiceStatus::Alone
    });
}

/// Every link works again, and the nodes are in sync.
fn heal(site: &Site, primary: Host) {
    site.lan.cut(&[]);
    site.await_protected(primary);
    site.assert_served_at(primary);
}

/// The nodes have these roles after a takeover by `host`. Only the new primary has the address, and has told all hosts so since
/// the last change of the cuts.
fn assert_replaced_by(site: &Site, host: Host) {
    site.assert_served_at(host);
    await_that("a gratuitous ARP request", || site.lan.has_announced(host));
    let old = if host == A { B } else { A };
    assert_ne!(site.server(old).health(), Some(0));
}

/// A case with its name and the settings of its site. A site is in sync, and protected by the witness.
type Case = (&'static str, &'static str, fn(Site));

#[test]
fn the_address_follows_the_word_of_the_witness() {
    let cases: [Case; 7] = [
        ("dead_primary", AUTOMATIC, dead_primary),
        ("restarted_primary", UNHURRIED, restarted_primary),
        ("hung_primary", AUTOMATIC, hung_primary),
        ("cut_witness", AUTOMATIC, cut_witness),
        ("cut_nodes", AUTOMATIC, cut_nodes),
        ("isolated_primary", AUTOMATIC, isolated_primary),
        ("nobody_decides", AUTOMATIC, nobody_decides),
    ];
    thread::scope(|scope| {
        for (name, settings, case) in cases {
            let run = move || {
                if let Some(site) = Site::start_witnessed(settings) {
                    case(site);
                }
            };
            // A case that fails ends the test with its name.
            Builder::new()
                .name(name.to_owned())
                .spawn_scoped(scope, run)
                .unwrap();
        }
    });
}

/// The address leaves a dead primary, and comes to its successor.
fn dead_primary(mut site: Site) {
    for (dead, successor) in [(A, B), (B, A)] {
        site.lan.cut(&[]);
        site.server_mut(dead).kill_node();
        assert_replaced_by(&site, successor);
        let Site { servers, lan, .. } = &mut site;
        servers[dead as usize].start_node(lan);
        site.await_protected(successor);
        site.assert_served_at(successor);
        assert_eq!(site.server(dead).health(), Some(1));
    }
    assert_eq!(without_gaps(site.finish(A)), [One(A), One(B), One(A)]);
}

/// The address and its connections stay with a primary whose process alone ends, and starts again at once.
fn restarted_primary(mut site: Site) {
    let status = site.server(A).status().unwrap();
    if status.sync.restart_within_ms.is_none() {
        eprintln!("skipped: this kernel cannot send requests again");
        return;
    }
    for _ in 0..RESTARTS {
        site.server_mut(A).kill_node();
        let Site { servers, lan, .. } = &mut site;
        servers[0].start_node(lan);
        site.client.await_progress();
        site.await_protected(A);
        site.assert_served_at(A);
    }
    assert!(site.lan.has_connections(A), "no connection was ended");
    assert_eq!(site.finish(A), [Nobody, One(A)]);
}

/// A primary that hung does not take the address back. It believes that it serves when it goes on, but its lease is over.
fn hung_primary(site: Site) {
    site.server(A).signal(Signal::STOP);
    assert_replaced_by(&site, B);
    site.server(A).signal(Signal::CONT);
    site.await_protected(B);
    site.assert_served_at(B);
    assert_eq!(site.server(A).health(), Some(1));
    assert_eq!(without_gaps(site.finish(B)), [One(A), One(B)]);
}

/// The address stays.
fn cut_witness(site: Site) {
    for (cut, answers) in [
        (&[(A, W)][..], [false, true]),
        (&[(A, W), (B, C)], [false, true]),
        (&[(A, W), (B, W)], [false, false]),
        (&[(B, W)], [true, false]),
        (&[(B, W), (B, C)], [true, false]),
    ] {
        site.lan.cut(cut);
        site.assert_served_at(A);
        site.server(A).await_witness(answers[0]);
        site.server(B).await_witness(answers[1]);
        site.await_in_sync(A);
        site.assert_served_at(A);
    }
    // Only the client does not reach the primary. Then the primary does not reach the witness, either.
    for cut in [&[(A, C)][..], &[(A, C), (A, W)], &[(A, C), (B, W)]] {
        site.lan.cut(cut);
        site.await_in_sync(A);
        site.observer.await_holder(One(A));
    }
    heal(&site, A);
    assert_eq!(without_gaps(site.finish(A)), [One(A)]);
}

/// The primary serves alone, with the address. Its lease is over for a moment before that, since it misses a silent secondary
/// late.
fn cut_nodes(site: Site) {
    for cut in [&[(A, B)][..], &[(A, B), (B, W)], &[(A, B), (B, W), (B, C)]] {
        site.lan.cut(cut);
        await_alone(&site, A);
        site.assert_served_at(A);
        assert_eq!(site.server(B).health(), Some(1));
        heal(&site, A);
    }
    // No node that the client reaches may take over from a primary that the witness hears.
    site.lan.cut(&[(A, B), (A, C)]);
    await_alone(&site, A);
    site.observer.await_holder(One(A));
    heal(&site, A);
    assert_eq!(without_gaps(site.finish(A)), [One(A)]);
}

/// The address leaves a primary that the client still reaches, and that knows nothing of its successor.
fn isolated_primary(site: Site) {
    site.lan.cut(&[(A, B), (A, W)]);
    assert_replaced_by(&site, B);
    assert_eq!(site.server(A).health(), Some(1));
    heal(&site, B);
    // The same from the other side, for a server that reaches nobody.
    site.lan.cut(&[(B, A), (B, W), (B, C)]);
    assert_replaced_by(&site, A);
    heal(&site, A);
    assert_eq!(without_gaps(site.finish(A)), [One(A), One(B), One(A)]);
}

/// The address is nowhere.
fn nobody_decides(site: Site) {
    site.lan.cut(&[(A, B), (A, W), (B, W)]);
    site.observer.await_holder(Nobody);
    for host in [A, B] {
        site.server(host).await_cut_off();
        site.server(host).await_witness(false);
        assert_eq!(site.server(host).health(), Some(1));
    }
    site.observer.await_holder(Nobody);
    // The nodes need no witness once they meet.
    site.lan.cut(&[(A, W), (B, W)]);
    site.await_in_sync(A);
    site.assert_served_at(A);
    heal(&site, A);
    assert_eq!(without_gaps(site.finish(A)), [One(A)]);
}
