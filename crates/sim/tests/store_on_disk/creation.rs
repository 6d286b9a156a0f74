//! The creation of a store, crashed at every call. Afterwards there is a whole store, or no store
//! and nothing that prevents another creation.

use lockstep_sim::disk::Verdict;
use lockstep_sim::random::Random;

use super::states::{Crash, check};
use super::*;

fn check_made(disk: &Disk, boot: u8, is_made: bool) {
    disk.observe(None);
    let backing: Arc<dyn Backing> = disk.mount();
    if !Store::exists(&*backing).unwrap() {
        assert!(!is_made);
        Store::check_vacant(&backing).unwrap();
        create(disk).unwrap();
    }
    let opened = open(disk, boot).unwrap();
    check(&opened.store, 0, Crash::Process);
}

#[test]
fn a_store_is_made_whole_or_not_at_all() {
    let disk = empty_disk();
    let calls = calls_of(&disk, || create(&disk).unwrap()).len() as u64;
    let mut random = Random::new(1);
    for nth in 1..=calls {
        for verdict in [
            Verdict::CrashBefore,
            Verdict::CrashAfter,
            Verdict::CrashTorn(6000),
        ] {
            let disk = empty_disk();
            at_call(&disk, nth, verdict);
            let is_made = create(&disk).is_ok();
            for _ in 0..6 {
                let left = disk.fork();
                left.power_loss(&mut random);
                check_made(&left, NEXT_BOOT, is_made);
            }
            check_made(&disk, BOOT, is_made);
        }
    }
}

#[test]
fn a_store_that_was_made_survives_a_power_loss() {
    let mut random = Random::new(2);
    for _ in 0..100 {
        let disk = made_disk();
        disk.power_loss(&mut random);
        check_made(&disk, NEXT_BOOT, true);
    }
}
