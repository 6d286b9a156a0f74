//! Makes a failing schedule smaller: fewer faults, fewer clients, fewer operations.
//!
//! What is left out shifts everything that is drawn afterwards, so a smaller schedule may need other
//! luck to fail; some is tried for each. What remains fails for certain, and in the same way: what is said
//! of it begins alike.

use std::fmt;

use lockstep_types::deliberate::Bug;

use crate::scenario::{self, Failure, Less, Outcome, Plan};

/// Other luck that is tried for each smaller schedule.
const LUCKS: u64 = 20;
/// Schedules that are run, at most.
const RUNS_MAX: u64 = 3000;

/// A schedule as a line on a command names it: by its seed, and by what is left out.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// The seed of the whole.
    pub seed: u64,
    /// What is left out.
    pub less: Less,
}

impl Case {
    /// The whole schedule of a seed.
    pub fn of(seed: u64) -> Self {
        Self {
            seed,
            less: Less::default(),
        }
    }

    /// What is planned.
    pub fn plan(&self) -> Plan {
        Plan::of(self.seed).with(&self.less)
    }

    /// Runs it, with a bug put in if one is named.
    pub fn run(&self, bug: Option<Bug>) -> Result<Outcome, Box<Failure>> {
        scenario::run(&self.plan(), bug)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Less {
            without,
            clients,
            operations,
            luck,
        } = &self.less;
        write!(
            f,
            "cargo run --profile ci -p lockstep-sim -- replay {}",
            self.seed
        )?;
        if !without.is_empty() {
            let numbers: Vec<_> = without.iter().map(ToString::to_string).collect();
            write!(f, " --without {}", numbers.join(","))?;
        }
        let said = [
            ("clients", clients.map(u64::from)),
            ("operations", *operations),
            ("luck", *luck),
        ];
        for (what, number) in said {
            if let Some(number) = number {
                write!(f, " --{what} {number}")?;
            }
        }
        Ok(())
    }
}

/// A schedule in which something was wrong.
#[derive(Clone, Debug)]
pub struct Found {
    /// Which.
    pub case: Case,
    /// What was wrong.
    pub failure: Box<Failure>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.case.seed, self.failure.what)?;
        for fault in &self.failure.faults {
            writeln!(f, "  {fault}")?;
        }
        write!(f, "replay: {}", self.case)
    }
}

impl Found {
    /// The smallest failing schedule that is found by leaving things out.
    #[must_use]
    pub fn shrunk(self, bug: Option<Bug>) -> Self {
        let mut shrinking = Shrinking {
            best: self,
            bug,
            runs: 0,
        };
        while shrinking.is_smaller() {}
        shrinking.best
    }
}

struct Shrinking {
    best: Found,
    bug: Option<Bug>,
    runs: u64,
}

impl Shrinking {
    /// Whether something more could be left out.
    fn is_smaller(&mut self) -> bool {
        let candidates = smaller(&self.best.case);
        candidates.into_iter().any(|less| self.fails(&less))
    }

    /// Whether it fails with so much left out, with some luck; then it is the best.
    fn fails(&mut self, less: &Less) -> bool {
        let lucks = std::iter::once(less.luck).chain((0..LUCKS).map(Some));
        for luck in lucks {
            if self.runs == RUNS_MAX {
                return false;
            }
            self.runs += 1;
            let less = Less {
                luck,
                ..less.clone()
            };
            let seed = self.best.case.seed;
            let case = Case { seed, less };
            match case.run(self.bug) {
                Err(failure) if failure.kind() == self.best.failure.kind() => {
                    self.best = Found { case, failure };
                    return true;
                }
                _ => {}
            }
        }
        false
    }
}

/// What could be left out besides, the largest parts first.
fn smaller(case: &Case) -> Vec<Less> {
    let whole = Plan::of(case.seed);
    let now = case.plan();
    let less = &case.less;
    let mut smaller = Vec::new();
    for fault in (0..whole.faults.len()).filter(|fault| !less.without.contains(fault)) {
        let mut without = less.without.clone();
        without.insert(fault);
        smaller.push(Less {
            without,
            ..less.clone()
        });
    }
    let clients = now.workload.clients;
    let fewer = [clients / 2, clients - 1];
    let fewer = fewer
        .into_iter()
        .filter(|fewer| (1..clients).contains(fewer));
    smaller.extend(fewer.map(|fewer| Less {
        clients: Some(fewer),
        ..less.clone()
    }));
    let operations = now.workload.operations_max;
    let fewer = [operations / 2, operations - operations / 4, operations - 1];
    let fewer = fewer
        .into_iter()
        .filter(|fewer| (1..operations).contains(fewer));
    smaller.extend(fewer.map(|fewer| Less {
        operations: Some(fewer),
        ..less.clone()
    }));
    smaller
}
