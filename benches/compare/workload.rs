//! The workloads: names and sizes.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::fio::{Access, FioJob};
use crate::options::Options;
use crate::report::Figure;
use crate::small_files::{self, SmallFiles};
use crate::system::System;

/// A workload to measure.
pub enum Workload {
    /// Reads or writes within files.
    Fio(FioJob),
    /// Create, stat, read, rename and unlink of many files.
    SmallFiles(SmallFiles),
    /// Unpacking of the archive at this path.
    Untar(PathBuf),
}

impl Workload {
    /// Name in tables, which `--only` selects by.
    pub fn name(&self) -> String {
        match self {
            Self::Fio(job) => job.name(),
            Self::SmallFiles(_) => "small files".to_owned(),
            Self::Untar(_) => small_files::UNTAR.to_owned(),
        }
    }

    /// Runs the workload once in the empty directory `dir` of `system`.
    pub fn run(&self, dir: &Path, system: &System) -> Result<Vec<Figure>> {
        match self {
            Self::Fio(job) => Ok(vec![job.run(dir, system.client_cpu)?]),
            Self::SmallFiles(files) => files.run(dir),
            Self::Untar(archive) => Ok(vec![small_files::untar(archive, dir)?]),
        }
    }
}

/// The workloads that the options select. Their input files are made in `work`.
pub fn chosen(options: &Options, work: &Path) -> Result<Vec<Workload>> {
    let mut all: Vec<Workload> = fio_jobs(options).into_iter().map(Workload::Fio).collect();
    if !options.two_machines {
        all.push(Workload::SmallFiles(SmallFiles::new(options.quick)));
        all.push(Workload::Untar(small_files::make_archive(
            work,
            options.quick,
        )?));
    }
    all.retain(|workload| options.wants_workload(&workload.name()));
    if all.is_empty() {
        bail!("no workload has a name with {:?} in it", options.only);
    }
    Ok(all)
}

/// Sizes of random writes.
pub const BLOCKS_KIB: [u32; 3] = [8, 64, 256];

/// The write in the comparison of the paper.
pub fn mirrored_write(options: &Options, block_kib: u32) -> FioJob {
    fio_job(options, Access::RandomWrite, block_kib, 8, false)
}

fn fio_job(options: &Options, access: Access, block_kib: u32, jobs: u32, sync: bool) -> FioJob {
    FioJob {
        access,
        block_kib,
        jobs,
        sync,
        quick: options.quick,
    }
}

fn fio_jobs(options: &Options) -> Vec<FioJob> {
    let job = |access, block_kib, jobs, sync| fio_job(options, access, block_kib, jobs, sync);
    let mut all = Vec::new();
    if options.two_machines {
        all.extend(BLOCKS_KIB.map(|kib| mirrored_write(options, kib)));
    } else {
        for sync in [false, true] {
            for jobs in [1, 8] {
                all.extend(BLOCKS_KIB.map(|kib| job(Access::RandomWrite, kib, jobs, sync)));
            }
        }
        all.push(job(Access::SequentialWrite, 1024, 1, false));
        all.push(job(Access::RandomRead, 8, 1, false));
    }
    all.push(job(Access::RandomRead, 8, 8, false));
    all
}
