//! The files of a node's identity: files with any content are loaded or refused with a reason, and a loaded identity
//! connects or fails to connect.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;

use lockstep_link::identity::{CERTIFICATE_FILE, KEY_FILE};
use lockstep_link::{Identity, LinkOptions, accept, dial};

use crate::bytes;
use crate::run::cases;

#[test]
fn a_damaged_identity_is_refused_or_works() {
    let whole = tempfile::tempdir().unwrap();
    Identity::create(whole.path(), "fuzzed").unwrap();
    let files = [KEY_FILE, CERTIFICATE_FILE].map(|name| fs::read(whole.path().join(name)).unwrap());
    let dir = tempfile::tempdir().unwrap();
    Identity::create(dir.path(), "replaced").unwrap();
    cases(
        "identity::a_damaged_identity_is_refused_or_works",
        2000,
        |chance| {
            let mut files = files.clone();
            let changed = bytes::index(chance, 2);
            if chance.percent(5) {
                files[changed] = bytes::random(chance, 100_000);
            } else {
                bytes::mutate_often(chance, &mut files[changed]);
            }
            for (name, bytes) in [KEY_FILE, CERTIFICATE_FILE].iter().zip(&files) {
                fs::write(dir.path().join(name), bytes).unwrap();
            }
            match Identity::load(dir.path()) {
                Ok(identity) if chance.percent(5) => connect(&identity),
                Ok(_) => {}
                Err(error) => {
                    let text = error.to_string();
                    let named = text.contains(KEY_FILE) || text.contains(CERTIFICATE_FILE);
                    assert!(named && text.contains("lockstep init"), "{text}");
                }
            }
        },
    );
}

/// Connects both ends with this identity. A failed connection is no failure of the test.
fn connect(identity: &Identity) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, options) = (listener.local_addr().unwrap(), LinkOptions::default());
    let pinned = identity.fingerprint();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (socket, _) = listener.accept().unwrap();
            let _outcome = accept(socket, identity, &BTreeSet::from([pinned]), &options);
        });
        let _outcome = dial(address, identity, pinned, &options);
    });
}
