//! The command line of the comparison.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

const HELP: &str = "\
usage: cargo bench --bench compare -- [options]

  --quick            one round of short runs (some minutes) instead of three of longer ones
  --rounds N         measure each workload N times and take the median
  --only WORD        only workloads whose name contains WORD (may be repeated)
  --systems LIST     of plain,no-replica,mirrored,gluster; default: all that are installed
  --other PROGRAM    also the mirrored playground of another build of lockstep, and a line for each
                     workload that is slower than with that build in every round
  --two-machines     the paper's comparison: client and node a on core 0, node b on core 1
  --dir DIR          where everything is kept; its file system is the one compared with
  --json FILE        write the figures of every round as JSON too
";

/// The workloads and systems to measure, the duration, and the place.
pub struct Options {
    /// Shorter runs on less data.
    pub quick: bool,
    /// How often each workload is measured on each system.
    pub rounds: usize,
    /// Parts of workload names to measure; all when empty.
    pub only: Vec<String>,
    /// Names of the systems to measure; all installed ones when empty.
    pub systems: Vec<String>,
    /// Another build of `lockstep` to compare with.
    pub other: Option<PathBuf>,
    /// Client and nodes pinned to cores as if on two machines.
    pub two_machines: bool,
    /// Directory to work in.
    pub dir: PathBuf,
    /// File for the figures as JSON.
    pub json: Option<PathBuf>,
}

impl Options {
    /// Reads the command line; `None` if it only requests help.
    pub fn from_arguments() -> Result<Option<Self>> {
        let mut options = Self {
            quick: false,
            rounds: 0,
            only: Vec::new(),
            systems: Vec::new(),
            other: None,
            two_machines: false,
            dir: PathBuf::from(env!("CARGO_TARGET_TMPDIR")),
            json: None,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || {
                arguments
                    .next()
                    .with_context(|| format!("{argument} needs a value"))
            };
            match argument.as_str() {
                "--quick" => options.quick = true,
                "--two-machines" => options.two_machines = true,
                "--rounds" => options.rounds = value()?.parse().context("--rounds")?,
                "--only" => options.only.push(value()?),
                "--systems" => options.systems = value()?.split(',').map(Into::into).collect(),
                "--other" => options.other = Some(value()?.into()),
                "--dir" => options.dir = value()?.into(),
                "--json" => options.json = Some(value()?.into()),
                // Cargo adds this option.
                "--bench" => {}
                "--help" | "-h" => {
                    print!("{HELP}");
                    return Ok(None);
                }
                unknown => bail!("unknown option {unknown}\n\n{HELP}"),
            }
        }
        if options.rounds == 0 {
            options.rounds = if options.quick { 1 } else { 3 };
        }
        Ok(Some(options))
    }

    /// Whether a system is to be measured. If no system is named, `installed` decides.
    pub fn wants_system(&self, name: &str, installed: bool) -> bool {
        if self.systems.is_empty() {
            installed
        } else {
            self.systems.iter().any(|wanted| wanted == name)
        }
    }

    /// Whether a workload is to be measured.
    pub fn wants_workload(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }
}
