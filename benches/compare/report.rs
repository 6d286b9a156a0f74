//! The results as a table and as JSON, and their comparison with the floors.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::system::{GLUSTER, MIRRORED, NO_REPLICA, OTHER_BUILD, System};

/// The unit of a figure; more is better in both.
#[derive(Clone, Copy)]
pub enum Unit {
    PerSecond,
    MibPerSecond,
}

impl Unit {
    const fn text(self) -> &'static str {
        match self {
            Self::PerSecond => "/s",
            Self::MibPerSecond => "MiB/s",
        }
    }
}

/// One measurement.
pub struct Figure {
    /// Name of the workload, or of one phase of it.
    pub workload: String,
    /// The unit of `value`.
    pub unit: Unit,
    /// The rate.
    pub value: f64,
}

/// The least ratio of the mirrored mount to another system that a workload must reach.
struct Floor {
    workload: &'static str,
    versus: &'static str,
    ratio: f64,
}

const fn floor(workload: &'static str, versus: &'static str, ratio: f64) -> Floor {
    Floor {
        workload,
        versus,
        ratio,
    }
}

const FLOORS: [Floor; 7] = [
    floor("random write 8 KiB, 8 jobs, O_SYNC", GLUSTER, 5.0),
    floor("random write 8 KiB, 8 jobs", GLUSTER, 3.0),
    floor("sequential write 1 MiB, 1 job", GLUSTER, 1.5),
    floor("create+write 4 KiB", GLUSTER, 5.0),
    floor("rename", GLUSTER, 5.0),
    floor("unlink", GLUSTER, 5.0),
    floor("stat, not cached", GLUSTER, 10.0),
];

/// The overhead of mirroring in the paper, with client and nodes on two machines.
const TWO_MACHINE_FLOORS: [Floor; 4] = [
    floor("random write 8 KiB, 8 jobs", NO_REPLICA, 0.57),
    floor("random write 64 KiB, 8 jobs", NO_REPLICA, 0.89),
    floor("random write 256 KiB, 8 jobs", NO_REPLICA, 0.93),
    floor("random read 8 KiB, 8 jobs", NO_REPLICA, 0.92),
];

/// All figures of one run, in the order of their measurement.
pub struct Report {
    systems: Vec<String>,
    rows: Vec<Row>,
}

struct Row {
    workload: String,
    unit: Unit,
    /// The figures of all rounds, per system in the order of `Report::systems`.
    figures: Vec<Vec<f64>>,
}

impl Report {
    /// An empty report on these systems.
    pub fn new(systems: &[System]) -> Self {
        Self {
            systems: systems.iter().map(|system| system.name.clone()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a figure of `system`.
    pub fn add(&mut self, system: &str, figure: Figure) {
        let Some(column) = self.column(system) else {
            return;
        };
        let known = self
            .rows
            .iter()
            .position(|row| row.workload == figure.workload);
        let index = known.unwrap_or_else(|| {
            self.rows.push(Row {
                workload: figure.workload,
                unit: figure.unit,
                figures: vec![Vec::new(); self.systems.len()],
            });
            self.rows.len() - 1
        });
        let cell = self
            .rows
            .get_mut(index)
            .and_then(|row| row.figures.get_mut(column));
        if let Some(cell) = cell {
            cell.push(figure.value);
        }
    }

    /// The table of medians and ratios, and the verdict on each floor.
    pub fn markdown(&self, two_machines: bool) -> String {
        let floors: &[Floor] = if two_machines {
            &TWO_MACHINE_FLOORS
        } else {
            &FLOORS
        };
        let mut text = self.table_head();
        for row in &self.rows {
            text.push_str(&self.table_row(row));
        }
        text.push('\n');
        for floor in floors {
            text.push_str(&self.verdict(floor));
        }
        for row in &self.rows {
            text.push_str(&self.slower_than_other_build(row));
        }
        text
    }

    /// The best possible ratio of a workload if passing its bytes on takes so many microseconds; empty if the
    /// workload was not measured.
    pub fn at_best(&self, workload: &str, hand_over: f64) -> String {
        let Some(rate) = self
            .row(workload)
            .and_then(|row| self.median_of(row, NO_REPLICA))
        else {
            return String::new();
        };
        let alone = 1e6 / rate;
        format!(
            "- at best {:.2}: {workload}: {alone:.1} µs unmirrored, {hand_over:.1} µs to hand the bytes \
             over, neither hashed nor encrypted\n",
            alone / (alone + hand_over)
        )
    }

    /// Every figure of every round.
    pub fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(|row| self.row_json(row)).collect();
        json!({ "systems": self.systems, "workloads": rows })
    }

    fn row_json(&self, row: &Row) -> Value {
        let figures: serde_json::Map<String, Value> = self
            .systems
            .iter()
            .zip(&row.figures)
            .map(|(system, rounds)| {
                let cell = json!({ "median": median(rounds), "rounds": rounds });
                (system.clone(), cell)
            })
            .collect();
        json!({ "workload": row.workload, "unit": row.unit.text(), "figures": figures })
    }

    fn row(&self, workload: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.workload == workload)
    }

    fn column(&self, system: &str) -> Option<usize> {
        self.systems.iter().position(|known| known == system)
    }

    fn median_of(&self, row: &Row, system: &str) -> Option<f64> {
        median(row.figures.get(self.column(system)?)?)
    }

    fn ratio(&self, row: &Row, versus: &str) -> Option<f64> {
        Some(self.median_of(row, MIRRORED)? / self.median_of(row, versus)?)
    }

    /// The systems to compare the mirrored mount with, in the order of the columns.
    fn competitors(&self) -> impl Iterator<Item = &String> {
        let compared = self.column(MIRRORED).is_some();
        self.systems
            .iter()
            .filter(move |system| compared && *system != MIRRORED)
    }

    fn table_head(&self) -> String {
        let mut head = "| workload | unit |".to_owned();
        let mut line = "|---|---|".to_owned();
        for system in &self.systems {
            let _ = write!(head, " {system} |");
            line.push_str("---:|");
        }
        for competitor in self.competitors() {
            let _ = write!(head, " mirrored / {competitor} |");
            line.push_str("---:|");
        }
        format!("{head}\n{line}\n")
    }

    fn table_row(&self, row: &Row) -> String {
        let mut line = format!("| {} | {} |", row.workload, row.unit.text());
        for rounds in &row.figures {
            let cell = median(rounds).map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
            let _ = write!(line, " {cell} |");
        }
        for competitor in self.competitors() {
            let cell = self
                .ratio(row, competitor)
                .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
            let _ = write!(line, " {cell} |");
        }
        format!("{line}\n")
    }

    /// A line if the best round of this build is below the worst round of the other build. Rounds that overlap are
    /// noise.
    fn slower_than_other_build(&self, row: &Row) -> String {
        let rounds_of = |system| row.figures.get(self.column(system)?);
        let (Some(ours), Some(others)) = (rounds_of(MIRRORED), rounds_of(OTHER_BUILD)) else {
            return String::new();
        };
        let best = ours.iter().copied().fold(0.0, f64::max);
        let worst = others.iter().copied().fold(f64::INFINITY, f64::min);
        if others.is_empty() || best >= worst {
            return String::new();
        }
        format!(
            "- SLOWER: {}: at most {best:.0} in any round, at least {worst:.0} in each of the other build\n",
            row.workload
        )
    }

    /// The verdict on one floor; empty if its workload was not measured.
    fn verdict(&self, floor: &Floor) -> String {
        let Some(ratio) = self
            .row(floor.workload)
            .and_then(|row| self.ratio(row, floor.versus))
        else {
            return String::new();
        };
        let verdict = if ratio >= floor.ratio { "pass" } else { "FAIL" };
        format!(
            "- {verdict}: {}, mirrored / {}: {ratio:.2}, floor {:.2}\n",
            floor.workload, floor.versus, floor.ratio
        )
    }
}

/// The middle of the figures, the mean of the middle two if their number is even.
fn median(rounds: &[f64]) -> Option<f64> {
    let mut sorted = rounds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(*sorted.get(middle.checked_sub(1)?)?, upper))
}
