//! Secondaries without a primary: which reasons they report to the operator, and which strangers can change the
//! reason.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::net::{SocketAddr, TcpListener};

use lockstep_link::{Fingerprint, Identity, LinkOptions, dial};
use lockstep_testbed::address::own_address;
use lockstep_testbed::operator::run;
use lockstep_testbed::{Node, NodeConfig, NodeEnvironment, PeerConfig, await_that, can_mount};
use serde_json::Value;
use tempfile::TempDir;

const TWO: &str = "both nodes are the secondary";

/// A node, its address and its identity.
struct Secondary {
    node: Node,
    listen: SocketAddr,
    fingerprint: Fingerprint,
    _directory: TempDir,
}

impl Secondary {
    fn make(name: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let node = Node::make(directory.path(), name, NodeEnvironment::default());
        let free = TcpListener::bind((own_address(), 0)).unwrap();
        Self {
            listen: free.local_addr().unwrap(),
            fingerprint: node.identify(),
            node,
            _directory: directory,
        }
    }

    /// Starts the node as the secondary of another one.
    fn follow(&mut self, other: &Self) {
        self.configure(other.listen, other.fingerprint);
        self.node.start();
    }

    fn configure(&self, address: SocketAddr, fingerprint: Fingerprint) {
        self.node.configure(&NodeConfig {
            role: "secondary",
            settings: String::new(),
            peer: Some(PeerConfig {
                listen: self.listen,
                address,
                fingerprint,
                encryption: "on",
            }),
        });
    }

    /// Waits until the status of the datastore is as wanted, and returns the status.
    fn status(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut found = Value::Null;
        await_that("a status", || {
            self.node.assert_alive();
            let printed = run(&self.node, "status", &["--json"]).output;
            let status: Value = serde_json::from_str(&printed).unwrap_or_default();
            found = status["datastores"][0].clone();
            found.is_object() && wanted(&found)
        });
        found
    }
}

fn reason(status: &Value) -> &str {
    status["reason"].as_str().unwrap_or_default()
}

/// Two secondaries that wait for each other.
fn two_secondaries() -> [Secondary; 2] {
    let [mut a, mut b] = ["a", "b"].map(Secondary::make);
    a.follow(&b);
    b.follow(&a);
    [a, b]
}

#[test]
fn two_secondaries_report_each_other_and_the_cure_they_name_works() {
    let [mut a, mut b] = two_secondaries();
    for node in [&mut a, &mut b] {
        let status = node.status(|status| reason(status).starts_with(TWO));
        assert_eq!(status["peer"]["obstacle"], true);
        assert_ne!(node.node.times_logged(TWO), 0);
    }
    if !can_mount() {
        return;
    }
    let promoted = run(&b.node, "promote", &["--force-data-loss"]);
    assert_eq!(promoted.code, Some(0), "{}", promoted.error);
    for node in [&mut a, &mut b] {
        let status = node.status(|status| status["in_sync"] == true);
        assert_eq!(status["reason"], Value::Null);
        assert_eq!(status["peer"]["obstacle"], false);
    }
    b.node.stop();
    let status = a.status(|status| status["in_sync"] == false);
    assert!(!reason(&status).contains(TWO), "{status}");
}

/// The node reports a stranger at its port in addition to the known reason, not in place of it.
#[test]
fn a_stranger_hides_no_reason() {
    let [mut a, _b] = two_secondaries();
    a.status(|status| reason(status).starts_with(TWO));
    let stranger = Identity::ephemeral("stranger").unwrap();
    let options = LinkOptions::default();
    dial(a.listen, &stranger, a.fingerprint, &options).unwrap_err();
    let presented = stranger.fingerprint().to_string();
    let status = a.status(|status| reason(status).contains(&presented));
    assert!(reason(&status).starts_with(TWO), "{status}");
    assert!(
        reason(&status).contains("may be the primary, or not"),
        "{status}"
    );
    assert_eq!(status["peer"]["obstacle"], true);
}

/// The stranger may be the primary with another identity: then the operator has to know.
#[test]
fn a_primary_with_an_unknown_fingerprint_is_reported() {
    let [mut a, b] = ["a", "b"].map(Secondary::make);
    a.follow(&b);
    let before = a.status(|status| !reason(status).is_empty());
    assert!(
        reason(&before).starts_with("no primary has connected"),
        "{before}"
    );
    let primary = Identity::ephemeral("primary").unwrap();
    dial(a.listen, &primary, a.fingerprint, &LinkOptions::default()).unwrap_err();
    let presented = primary.fingerprint().to_string();
    let status = a.status(|status| reason(status).contains(&presented));
    assert!(
        reason(&status).starts_with("no primary has connected"),
        "{status}"
    );
    assert!(
        reason(&status).contains("pin the new fingerprint"),
        "{status}"
    );
}
