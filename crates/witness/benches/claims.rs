//! Claims per second: `cargo bench --profile ci -p lockstep-witness -- DIRECTORY [ENDPOINT]`.
//!
//! The own witness keeps its store in DIRECTORY, on the disk that is to be measured. ENDPOINT is a running etcd, such
//! as `http://127.0.0.1:2379`, with its data on the same disk. docs/adr/0010-witness-own-and-etcd.md has the results.

#![allow(clippy::unwrap_used)] // a failed measurement may panic

use std::path::Path;
use std::time::{Duration, Instant};

use lockstep_link::Identity;
use lockstep_roles::{Claim, InSyncSet, Member, Witness, WitnessRecord};
use lockstep_types::{DatastoreUuid, Generation};
use lockstep_witness::{
    WitnessClient, WitnessConfig, WitnessServer, WitnessServerOptions, WitnessStore,
};

const LIMIT: Duration = Duration::from_secs(60);

/// Time for one measurement.
const ROUND: Duration = Duration::from_secs(3);

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|it| it != "--bench")
        .collect();
    let mut arguments = arguments.iter();
    let Some(directory) = arguments.next() else {
        println!("usage: claims DIRECTORY [ENDPOINT]");
        return;
    };
    own(Path::new(directory));
    if let Some(endpoint) = arguments.next() {
        let endpoints = vec![endpoint.parse().unwrap()];
        measure("etcd", &WitnessConfig::Etcd { endpoints }, &nodes());
    }
}

fn nodes() -> [Identity; 2] {
    ["a", "b"].map(|name| Identity::ephemeral(name).unwrap())
}

fn own(directory: &Path) {
    let (identity, nodes) = (Identity::ephemeral("witness").unwrap(), nodes());
    let fingerprint = identity.fingerprint();
    let options = WitnessServerOptions {
        identity,
        listen: ([127, 0, 0, 1], 0).into(),
        nodes: nodes.iter().map(Identity::fingerprint).collect(),
    };
    let store = WitnessStore::create(directory).unwrap();
    let server = WitnessServer::start(options, store).unwrap();
    let address = server.address().into();
    measure(
        "own witness",
        &WitnessConfig::Own {
            address,
            fingerprint,
        },
        &nodes,
    );
}

fn measure(name: &str, config: &WitnessConfig, nodes: &[Identity; 2]) {
    let [node, peer] = nodes;
    let client = WitnessClient::new(config, node).unwrap();
    let witness = || {
        let uuid = DatastoreUuid::random();
        client.datastore(uuid, peer.fingerprint()).unwrap()
    };
    for threads in [1, 8] {
        let started = Instant::now();
        let counts: Vec<u32> = std::thread::scope(|scope| {
            let claiming: Vec<_> = (0..threads)
                .map(|_| scope.spawn(|| claim_for(&*witness(), ROUND)))
                .collect();
            let joined = claiming.into_iter().map(|thread| thread.join().unwrap());
            joined.collect()
        });
        let rate = f64::from(counts.iter().sum::<u32>()) / started.elapsed().as_secs_f64();
        println!("{name}: {threads} datastores at once: {rate:.0} claims/s");
    }
    let witness = witness();
    let (started, mut reads) = (Instant::now(), 0);
    while started.elapsed() < ROUND {
        witness.read(LIMIT).unwrap();
        reads += 1;
    }
    let rate = f64::from(reads) / started.elapsed().as_secs_f64();
    println!("{name}: {rate:.0} reads/s");
}

/// Claims one change after the other. Returns their number.
fn claim_for(witness: &dyn Witness, time: Duration) -> u32 {
    let (started, mut known, mut count) = (Instant::now(), None, 0);
    while started.elapsed() < time {
        let new = WitnessRecord {
            change: u64::from(count),
            generation: Generation::FIRST,
            primary: Member::First,
            in_sync: InSyncSet::Both,
            sync: None,
        };
        let claim = Claim {
            expected: known,
            new,
        };
        known = witness.claim(&claim, LIMIT).unwrap();
        assert_eq!(known, Some(new));
        count += 1;
    }
    count
}
