//! How long the NFS client of a kernel waits in failovers: a measurement.
//!
//! A wait is the longest operation between the failure and the moment at which every program of the virtual machine has gone on.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::guest::{Equipment, Guest};
use crate::machine::{NfsSite, other};
use crate::network::GuestPort;
use crate::network::Host::A;

/// `Lease_Lifetime` and `Grace_Period` for each run, in seconds.
const TIMES: &str = "LOCKSTEP_NFS_TIMES";
/// The number of failovers of each kind.
const ROUNDS: &str = "LOCKSTEP_NFS_ROUNDS";

/// The end of a server's service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Planned,
    Killed,
    Isolated,
    /// Another client, with NFS version 4, dies with the server.
    KilledWithClient,
}

const CAUSES: [Cause; 4] = [
    Cause::Planned,
    Cause::Killed,
    Cause::Isolated,
    Cause::KilledWithClient,
];

/// The waits of each program, by cause.
type Waits = BTreeMap<(Cause, String), Vec<Duration>>;

fn given(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}

/// Measures, and prints a row for each program of a run.
pub fn measure() {
    let rounds = given(ROUNDS, "3").parse().expect(ROUNDS);
    for times in given(TIMES, "10/20").split(',') {
        let (lease, grace) = times.split_once('/').expect(TIMES);
        let waits = waits(lease, grace, rounds);
        for ((cause, program), mut found) in waits {
            found.sort_unstable();
            let seconds: Vec<String> = found
                .iter()
                .map(|wait| format!("{:.1}", wait.as_secs_f64()))
                .collect();
            println!(
                "| {times} | {cause:?} | {program} | {} |",
                seconds.join(", ")
            );
        }
    }
}

/// The waits of a run with these times.
fn waits(lease: &str, grace: &str, rounds: usize) -> Waits {
    let (lease, grace) = (lease.to_owned(), grace.to_owned());
    let mut site = NfsSite::start_with(&move |printed| {
        let text = with_value(&printed, "Lease_Lifetime", &lease);
        with_value(&text, "Grace_Period", &grace)
    });
    let mut guest = site.start_guest(&Equipment {
        has_disk: false,
        port: GuestPort::First,
        mounts: site.mount_options(),
    });
    let mut found = Waits::new();
    let mut primary = A;
    for round in 0..rounds {
        for cause in CAUSES {
            // A client of NFS version 4, which dies with the server.
            let mut dying = (cause == Cause::KilledWithClient).then(|| start_other(&site, round));
            let begin = guest.lines();
            match cause {
                Cause::Planned => site.fail_over(primary, &mut guest),
                Cause::Isolated => site.isolate(primary, &mut guest),
                Cause::Killed | Cause::KilledWithClient => {
                    drop(dying.take());
                    site.kill(primary, &mut guest);
                }
            }
            primary = other(primary);
            let waits = guest.pauses_since(begin);
            println!("{cause:?}: {waits:?}");
            for (program, wait) in waits {
                found.entry((cause, program)).or_default().push(wait);
            }
        }
    }
    guest.end();
    found
}

/// Another virtual machine, with a mount by version 4.
fn start_other(site: &NfsSite, round: usize) -> Guest {
    let mut mounts = site.mount_options();
    mounts.retain(|(name, _)| name == "v4");
    // The names of an earlier one are left.
    mounts[0].0 = format!("other{round}");
    site.start_guest(&Equipment {
        has_disk: false,
        port: GuestPort::Second,
        mounts,
    })
}

/// A configuration with another value of one of its parameters.
fn with_value(text: &str, name: &str, value: &str) -> String {
    let start = format!("    {name} = ");
    let line = |line: &str| {
        if line.starts_with(&start) {
            format!("{start}{value};\n")
        } else {
            format!("{line}\n")
        }
    };
    let changed: String = text.lines().map(line).collect();
    assert!(changed.contains(&format!("{start}{value};")), "{text}");
    changed
}
