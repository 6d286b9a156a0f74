//! The witness in a configuration: its keys, and every mistake.

use std::time::Duration;

use lockstep_witness::WitnessConfig;

use super::*;

const OWN: &str = "[datastore.witness]
address = \"10.0.0.3:7400\"
fingerprint = \"SHA256:0000000000000000000000000000000000000000000000000000000000000003\"
";
const ETCD: &str = "[datastore.witness]
etcd = [\"http://10.0.0.3:2379\", \"http://10.0.0.4:2379\"]
";

/// The good file with a witness of its first datastore, at line 22, and with `keys` in place of line 15.
fn witnessed(witness: &str, keys: &str) -> String {
    let second = "[[datastore]]\nname = \"beta\"";
    good().replacen("pause_limit_ms = 10000", keys, 1).replacen(
        second,
        &format!("{witness}\n{second}"),
        1,
    )
}

#[track_caller]
fn alpha(witness: &str, keys: &str) -> (DatastoreConfig, Option<WitnessConfig>) {
    let config = read(&witnessed(witness, keys)).unwrap();
    let alpha = config.datastore("alpha").unwrap();
    (alpha.clone(), config.witness(alpha.uuid).cloned())
}

/// The only mistake of a file.
#[track_caller]
fn wrong(text: &str, line: usize, key: &str, cause: &str, cure: &str) {
    let found = problems(text);
    assert_eq!(found.len(), 1, "{found:#?}");
    let problem = &found[0];
    assert_eq!((problem.line, &*problem.key), (line, key), "{problem}");
    assert!(problem.cause.contains(cause), "{problem}");
    assert!(problem.cure.contains(cure), "{problem}");
}

#[test]
fn a_witness_of_lockstep_and_an_etcd_are_read() {
    let (datastore, witness) = alpha(OWN, "");
    let Some(WitnessConfig::Own { address, .. }) = witness else {
        panic!("{witness:?}");
    };
    assert_eq!(address.to_string(), "10.0.0.3:7400");
    assert_eq!(
        datastore.failover_after,
        Some(settings::FAILOVER_AFTER.default_time())
    );
    assert_eq!(
        datastore.peer_timeout,
        settings::FAILOVER_AFTER.default_time() * 2
    );
    let (datastore, witness) = alpha(ETCD, "failover_after_ms = 60000");
    let Some(WitnessConfig::Etcd { endpoints }) = witness else {
        panic!("{witness:?}");
    };
    assert_eq!(endpoints.len(), 2);
    assert_eq!(datastore.failover_after, Some(Duration::from_mins(1)));
    // Twice as long would be out of bounds.
    let most = settings::PEER_TIMEOUT.most;
    assert_eq!(datastore.peer_timeout, Duration::from_millis(most));
    let beta = read(&witnessed(OWN, "")).unwrap();
    let beta = beta.datastore("beta").unwrap();
    assert_eq!(beta.failover_after, None);
}

#[test]
fn a_primary_with_a_witness_may_freeze() {
    let keys = "peer_timeout_ms = 15000";
    let text = witnessed(OWN, keys).replacen("\"continue\"", "\"freeze\"", 1);
    let config = read(&text).unwrap();
    let alpha = config.datastore("alpha").unwrap();
    assert_eq!(alpha.policies.on_peer_loss, OnPeerLoss::Freeze);
    assert_eq!(alpha.peer_timeout, Duration::from_secs(15));
}

#[test]
fn a_wrong_witness_is_refused() {
    let own = |from: &str, to: &str| witnessed(&OWN.replacen(from, to, 1), "");
    let etcd = |from: &str, to: &str| witnessed(&ETCD.replacen(from, to, 1), "");
    for (text, line, key, cause, cure) in [
        (
            own("address", "adress"),
            23,
            "adress",
            "no such key",
            "`address`",
        ),
        (
            own("10.0.0.3:7400", "10.0.0.3"),
            23,
            "address",
            "is not HOST:PORT",
            "`listen` of the witness",
        ),
        (
            own("\"10.0.0.3:7400\"", "7400"),
            23,
            "address",
            "must be a text",
            "double quotes",
        ),
        (
            own("SHA256", "SHA1"),
            24,
            "fingerprint",
            "SHA1",
            "lockstep init",
        ),
        (
            etcd("[\"http", "[\"https"),
            23,
            "etcd",
            "asks for TLS",
            "such as",
        ),
        (
            etcd("3:2379", "3"),
            23,
            "etcd",
            "is not an endpoint",
            "such as",
        ),
        (
            etcd("[\"http://10.0.0.3:2379\", \"http://10.0.0.4:2379\"]", "[]"),
            23,
            "etcd",
            "is empty",
            "such as",
        ),
        (
            etcd(
                "[\"http://10.0.0.3:2379\", \"http://10.0.0.4:2379\"]",
                "\"x\"",
            ),
            23,
            "etcd",
            "must be a list",
            "such as",
        ),
        (
            etcd("[\"http://10.0.0.3:2379\", ", "[1, "),
            23,
            "etcd",
            "must be a text",
            "such as",
        ),
    ] {
        // An unknown key leaves the known one missing, too.
        if key == "adress" {
            let keys: Vec<_> = problems(&text)
                .into_iter()
                .map(|problem| problem.key)
                .collect();
            assert!(keys.contains(&key.to_owned()), "{keys:?}");
        } else {
            wrong(&text, line, key, cause, cure);
        }
    }
    let half = OWN.lines().take(2).collect::<Vec<_>>().join("\n");
    wrong(
        &witnessed(&half, ""),
        22,
        "fingerprint",
        "missing",
        "lockstep init --witness",
    );
}

#[test]
fn a_datastore_has_one_witness() {
    let both = format!("{OWN}etcd = [\"http://10.0.0.3:2379\"]\n");
    let found = problems(&witnessed(&both, ""));
    let places: Vec<_> = found.iter().map(|it| (it.line, &*it.key)).collect();
    assert_eq!(places, [(23, "address"), (24, "fingerprint")]);
    assert!(found[0].cause.contains("one witness") && found[0].cure.contains("`etcd`"));
}

#[test]
fn a_witness_decides_between_two_nodes() {
    let text = good() + "\n" + OWN;
    wrong(&text, 29, "witness", "has no peer", "[datastore.peer]");
}

#[test]
fn neither_node_is_the_witness() {
    let third = "SHA256:0000000000000000000000000000000000000000000000000000000000000003";
    let of_peer = witnessed(&OWN.replacen(third, FINGERPRINT, 1), "");
    wrong(
        &of_peer,
        24,
        "fingerprint",
        "of the other node",
        "a third server",
    );
    for (address, cause) in [
        ("10.0.0.1:7400", "this node itself"),
        ("10.0.0.2:7400", "address of the other node"),
    ] {
        let text = witnessed(&OWN.replacen("10.0.0.3:7400", address, 1), "");
        wrong(&text, 23, "address", cause, "a third server");
    }
}

#[test]
fn the_times_fit_the_witness() {
    for (witness, key, cause, cure) in [
        (
            "",
            "failover_after_ms = 1500",
            "without a witness",
            "[datastore.witness]",
        ),
        (
            OWN,
            "pause_limit_ms = 10000",
            "failover_after_ms",
            "remove this key",
        ),
        (OWN, "failover_after_ms = 299", "299", "from 300 to 60000"),
        (
            ETCD,
            "failover_after_ms = 60001",
            "60001",
            "from 300 to 60000",
        ),
        (
            OWN,
            "failover_after_ms = \"1s\"",
            "a string",
            "whole number",
        ),
        (
            OWN,
            "peer_timeout_ms = 15001",
            "is missed after 15001 ms",
            "at most 15000 ms",
        ),
    ] {
        let (name, _) = key.split_once(' ').unwrap();
        wrong(&witnessed(witness, key), 15, name, cause, cure);
    }
}
