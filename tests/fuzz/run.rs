//! Runs the cases of a target: which cases, for how long, and how to repeat one.
//!
//! A case is made from its seed alone. Any panic during a case is a failure, on any thread and even if code catches
//! it. The seeds of the running cases are printed first, because a panic on a node's thread ends this process.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockstep_testbed::chance::{Chance, fresh, mix};
use parking_lot::Mutex;

use crate::memory;

/// Runs this one case.
const SEED_VARIABLE: &str = "LOCKSTEP_FUZZ_SEED";
/// Runs fresh cases for this time instead of the fixed ones.
const SECONDS_VARIABLE: &str = "LOCKSTEP_FUZZ_SECONDS";

/// Longer than any case takes: a longer one hangs.
const CASE_LIMIT: Duration = Duration::from_secs(300);
/// More memory than all code in this process may hold at once.
const MEMORY_BYTES_MAX: usize = 768 << 20;

/// Seeds and start times of the running cases, by target.
static UNDER_WAY: Mutex<BTreeMap<&'static str, (u64, Instant)>> = Mutex::new(BTreeMap::new());
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Runs `case` for each seed of this run: `quick` fixed seeds, unless the environment says otherwise. `target` is the
/// path of the test.
pub fn cases(target: &'static str, quick: u64, mut case: impl FnMut(&mut Chance)) {
    watch();
    let began = Instant::now();
    let mut done = 0;
    for seed in seeds(target, quick) {
        one(target, seed, &mut case);
        done += 1;
    }
    println!(
        "{target}: {done} cases in {:.1} s; this process held at most {} MiB",
        began.elapsed().as_secs_f64(),
        memory::peak_bytes() >> 20
    );
}

fn seeds(target: &str, quick: u64) -> Box<dyn Iterator<Item = u64>> {
    let number = |name| -> Option<u64> {
        let text: String = std::env::var(name).ok()?;
        Some(text.parse().expect(name))
    };
    if let Some(seed) = number(SEED_VARIABLE) {
        return Box::new(std::iter::once(seed));
    }
    if let Some(seconds) = number(SECONDS_VARIABLE) {
        let (end, mut chance) = (
            Instant::now() + Duration::from_secs(seconds),
            Chance::of(fresh()),
        );
        return Box::new(std::iter::from_fn(move || {
            (Instant::now() < end).then(|| chance.any())
        }));
    }
    let stream = target
        .bytes()
        .fold(0, |stream, byte| mix(stream ^ u64::from(byte)));
    let mut chance = Chance::of(stream);
    Box::new((0..quick).map(move |_| chance.any()))
}

fn one(target: &'static str, seed: u64, case: &mut impl FnMut(&mut Chance)) {
    UNDER_WAY.lock().insert(target, (seed, Instant::now()));
    let before = PANICS.load(Ordering::SeqCst);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        case(&mut Chance::of(seed));
        let panics = PANICS.load(Ordering::SeqCst) - before;
        assert_eq!(panics, 0, "something panicked meanwhile, see above");
        let peak = memory::peak_bytes();
        assert!(peak < MEMORY_BYTES_MAX, "{peak} bytes were held at once");
    }));
    UNDER_WAY.lock().remove(target);
    if let Err(panic) = outcome {
        print_again(target, seed);
        resume_unwind(panic);
    }
}

/// Prints how to repeat a case.
fn print_again(target: &str, seed: u64) {
    // Not captured by the harness: this may be the last line of the process.
    eprintln!(
        "run the case again: {SEED_VARIABLE}={seed} cargo test --profile ci --test fuzz -- --exact {target}"
    );
}

fn print_all_under_way() {
    for (target, (seed, _)) in &*UNDER_WAY.lock() {
        print_again(target, *seed);
    }
}

/// Counts panics from now on, also those of detached threads. If a case hangs, prints the seeds and ends the process.
fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            before(panic);
            print_all_under_way();
        }));
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let began: Vec<_> = UNDER_WAY.lock().values().map(|(_, began)| *began).collect();
                if began.iter().any(|began| began.elapsed() > CASE_LIMIT) {
                    print_all_under_way();
                    eprintln!("a case has taken more than {CASE_LIMIT:?}");
                    std::process::abort();
                }
            }
        });
    });
}
