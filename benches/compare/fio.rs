//! Workloads within files, done by fio.
//!
//! Every random workload starts on fresh files. The files are filled with blocks of one size for every measured block
//! size: the kernel's page cache keeps the folios of the filling, and overwriting large folios in small pieces is up to
//! three times slower.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::process;
use crate::report::{Figure, Unit};

/// Block size of the filling.
const FILL_KIB: u32 = 8;

/// The access pattern of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    RandomWrite,
    SequentialWrite,
    RandomRead,
}

/// One fio workload.
pub struct FioJob {
    pub access: Access,
    /// Bytes per request in KiB.
    pub block_kib: u32,
    /// Processes, each on a file of its own; together they cover the same amount of data.
    pub jobs: u32,
    /// Writes with `O_SYNC`.
    pub sync: bool,
    /// Less data, less time.
    pub quick: bool,
}

impl FioJob {
    /// A name such as `random write 8 KiB, 8 jobs, O_SYNC`.
    pub fn name(&self) -> String {
        let access = match self.access {
            Access::RandomWrite => "random write",
            Access::SequentialWrite => "sequential write",
            Access::RandomRead => "random read",
        };
        let size = match self.block_kib {
            1024 => "1 MiB".to_owned(),
            kib => format!("{kib} KiB"),
        };
        let jobs = if self.jobs == 1 { "job" } else { "jobs" };
        let sync = if self.sync { ", O_SYNC" } else { "" };
        format!("{access} {size}, {} {jobs}{sync}", self.jobs)
    }

    /// Runs the job in the empty directory `dir`, with the client pinned to `cpu` if one is given.
    pub fn run(&self, dir: &Path, cpu: Option<u32>) -> Result<Figure> {
        if self.access != Access::SequentialWrite {
            let mut fill = self.fio(dir, None);
            process::output(fill.arg("--rw=write").arg(format!("--bs={FILL_KIB}k")))?;
        }
        let mut fio = self.fio(dir, cpu);
        fio.arg(format!("--bs={}k", self.block_kib));
        if self.sync {
            fio.arg("--sync=1");
        }
        match self.access {
            Access::RandomWrite => fio.args(["--rw=randwrite", "--time_based"]),
            Access::RandomRead => fio.args(["--rw=randread", "--time_based"]),
            // One pass over a new file: the growth of the file is measured, too.
            Access::SequentialWrite => fio.arg("--rw=write"),
        };
        fio.arg(format!("--runtime={}", if self.quick { 2 } else { 5 }));
        self.figure(&process::output(&mut fio)?)
    }

    fn fio(&self, dir: &Path, cpu: Option<u32>) -> Command {
        let mut command = pinned("fio", cpu);
        command
            .current_dir(dir)
            .args(["--name=compare", "--ioengine=psync", "--fallocate=none"])
            .args(["--group_reporting", "--output-format=json"])
            .args(["--randrepeat=1", "--norandommap", "--invalidate=0"])
            .arg("--filename_format=file.$jobnum")
            .arg("--directory=.")
            .arg(format!("--numjobs={}", self.jobs))
            .arg(format!("--size={}m", self.total_mib() / self.jobs));
        command
    }

    fn total_mib(&self) -> u32 {
        match (self.access, self.quick) {
            (Access::SequentialWrite, false) => 1024,
            (Access::SequentialWrite, true) | (_, false) => 256,
            (_, true) => 64,
        }
    }

    fn figure(&self, json: &str) -> Result<Figure> {
        let report: Value = serde_json::from_str(json).context("decode what fio printed")?;
        let side = match self.access {
            Access::RandomRead => "read",
            Access::RandomWrite | Access::SequentialWrite => "write",
        };
        let (field, unit, per) = match self.access {
            Access::SequentialWrite => ("bw_bytes", Unit::MibPerSecond, f64::from(1 << 20)),
            Access::RandomRead | Access::RandomWrite => ("iops", Unit::PerSecond, 1.0),
        };
        let value = report
            .pointer(&format!("/jobs/0/{side}/{field}"))
            .and_then(Value::as_f64)
            .with_context(|| format!("fio reported no {side} {field}"))?;
        Ok(Figure {
            workload: self.name(),
            unit,
            value: value / per,
        })
    }
}

fn pinned(program: &str, cpu: Option<u32>) -> Command {
    let Some(cpu) = cpu else {
        return Command::new(program);
    };
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &cpu.to_string(), program]);
    command
}
