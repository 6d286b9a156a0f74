//! Makes a failing schedule smaller: fewer faults, fewer clients, fewer operations.
//!
//! Each removed part shifts every later random choice. So a smaller schedule may need another
//! random seed to fail. The shrinker tries several seeds for each smaller schedule. The final
//! schedule certainly fails, and in the same way: its failure message begins with the same words.

use std::fmt;

use lockstep_types::mutants::Mutant;

use crate::scenario::{self, Failure, Less, Outcome, Plan};

/// Number of other random seeds that are tried for each smaller schedule.
const LUCKS: u64 = 20;
/// Maximum number of schedules that are run.
const RUNS_MAX: u64 = 3000;

/// A schedule in the form of a command line: its seed and its removed parts.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// The seed of the complete schedule.
    pub seed: u64,
    /// The removed parts.
    pub less: Less,
}

impl Case {
    /// Returns the complete schedule of a seed.
    pub fn of(seed: u64) -> Self {
        Self {
            seed,
            less: Less::default(),
        }
    }

    /// Returns the plan of the schedule.
    pub fn plan(&self) -> Plan {
        Plan::of(self.seed).with(&self.less)
    }

    /// Runs the schedule, with a deliberate bug if `bug` names one.
    pub fn run(&self, bug: Option<Mutant>) -> Result<Outcome, Box<Failure>> {
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

/// A schedule that failed.
#[derive(Clone, Debug)]
pub struct Found {
    /// The schedule.
    pub case: Case,
    /// The failure.
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
    /// Returns the smallest failing schedule that the shrinker finds by removing parts.
    #[must_use]
    pub fn shrunk(self, bug: Option<Mutant>) -> Self {
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
    bug: Option<Mutant>,
    runs: u64,
}

impl Shrinking {
    /// Returns whether another part could be removed.
    fn is_smaller(&mut self) -> bool {
        let candidates = smaller(&self.best.case);
        candidates.into_iter().any(|less| self.fails(&less))
    }

    /// Returns whether the schedule with these parts removed still fails with one of the random
    /// seeds. If so, it becomes the best schedule.
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

/// Returns the further parts that could be removed, the largest parts first.
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
