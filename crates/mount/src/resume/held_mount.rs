//! A mount that outlives its process: kept by a [`crate::hold::DescriptorStore`], and resumed by the next process.
//!
//! The next process resumes a mount after it has opened the store: the store is locked until the last thread of the
//! killed process is gone, so no request is executed by both.
//!
//! Invariants:
//! - A mount is kept only if the kernel can send requests again. Otherwise its programs would wait for ever.
//! - A mount that cannot be resumed is ended, so that its programs get an error rather than no answer.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use lockstep_driver::client::FileService;

use crate::device::fuse_device::Device;
use crate::device::init;
use crate::device::mount_point::MountPoint;
use crate::error::MountError;
use crate::kernel_cache::guard::{self, GuardedMount};
use crate::kernel_cache::invalidator::Invalidator;
use crate::memory::guard_words::GuardBoard;
use crate::memory::lease_timer::LeaseTimer;
use crate::memory::mount_memory::{MountMemory, MountRecord};
use crate::options::MountOptions;

/// The parts of a mount that outlive a process.
#[derive(Debug)]
pub(crate) struct HeldMount {
    pub point: MountPoint,
    /// Descriptors of the device. Each may have requests that were read through it and not answered.
    pub devices: Vec<Device>,
    pub memory: MountMemory,
}

/// Returns whether an earlier process has left a mount. Only the process that resumes the mount may touch its
/// directory: any other would wait for an answer of the mount.
pub(crate) fn exists(options: &MountOptions) -> Result<bool, MountError> {
    LeftMount::find(options).map(|left| left.is_some())
}

/// Ends a mount that an earlier process has left.
pub(crate) fn end(options: &MountOptions, reason: &str) -> Result<(), MountError> {
    if let Some(left) = LeftMount::find(options)? {
        left.end(options, reason);
    }
    Ok(())
}

impl HeldMount {
    /// The parts of a new mount, with a descriptor for each thread. INIT has been answered.
    pub fn new(
        point: MountPoint,
        device: Device,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        let record = MountRecord::new(point.id(), options.mount_point.clone());
        let memory = MountMemory::create(&record);
        let mut held = Self {
            point,
            devices: vec![device],
            memory: memory.map_err(|source| options.failed(source))?,
        };
        held.add_devices(options)?;
        Ok(held)
    }

    /// Opens descriptors until there is one for each thread. Returns the new ones.
    fn add_devices(&mut self, options: &MountOptions) -> Result<&[Device], MountError> {
        let first = self.devices.len();
        for _ in first..options.threads {
            let another = self.devices.first().map(Device::another).transpose();
            let another = another.map_err(|source| options.failed(source))?;
            self.devices.extend(another);
        }
        Ok(self.devices.get(first..).unwrap_or_default())
    }

    /// Leaves the mount to the next process, should this one be killed. Call it before the first request is read. Returns
    /// whether that is possible.
    pub fn keep(&self, options: &MountOptions) -> bool {
        if !options.descriptors.exists() {
            return false;
        }
        if let Some(device) = self.devices.first()
            && let Err(errno) = device.resend_requests()
        {
            tracing::warn!(
                %errno,
                "this kernel cannot send requests again (Linux 6.9 can): the mount ends with this process"
            );
            return false;
        }
        let devices = self.devices.iter().map(AsFd::as_fd);
        let all: Vec<_> = devices.chain([self.memory.as_fd()]).collect();
        let name = &options.held_name;
        let kept = options.descriptors.keep(name, &all);
        match &kept {
            Ok(()) => tracing::info!(name, "the mount outlives a crash of this process"),
            Err(error) => tracing::warn!(%error, "the mount ends with this process"),
        }
        kept.is_ok()
    }

    /// Resumes the mount of an earlier process; `None` if there is none, or none that can be resumed.
    ///
    /// # Errors
    /// If the place of the descriptors does not answer, or this process gets no further descriptors.
    pub fn resume(options: &MountOptions) -> Result<Option<Self>, MountError> {
        let Some(left) = LeftMount::find(options)? else {
            return Ok(None);
        };
        let (point, memory) = match left.fitting(options) {
            Ok(parts) => parts,
            Err(misfit) => {
                left.end(options, &misfit.to_string());
                return Ok(None);
            }
        };
        let mut held = Self {
            point,
            devices: left.devices,
            memory,
        };
        let added: Vec<_> = held.add_devices(options)?.iter().map(AsFd::as_fd).collect();
        if !added.is_empty() {
            let kept = options.descriptors.keep(&options.held_name, &added);
            kept.map_err(|source| MountError::Held { source })?;
        }
        Ok(Some(held))
    }

    /// Starts the part that has the kernel forget pages. Only a mount that outlives this process needs a child process
    /// for that.
    pub fn invalidator(&self, options: &MountOptions) -> io::Result<Arc<Invalidator>> {
        Invalidator::start(self.device()?, options.helper_program())
    }

    /// Starts the guard of a mount under a lease, and has the node show the lease to it. A mount without a guard works too.
    pub fn start_guard(&self, service: &dyn FileService, options: &MountOptions) -> io::Result<()> {
        let Some(program) = options.guard_program() else {
            return Ok(());
        };
        // The guard and the board share the timer. The guard of an earlier process has that of its own node.
        let timer = Arc::new(LeaseTimer::new()?);
        let board = GuardBoard::of(self.memory.guard_words(), Arc::clone(&timer))?;
        self.memory.lock()?;
        let guarded = GuardedMount {
            program: program.to_owned(),
            mount_point: options.mount_point.clone(),
            device: self.device()?,
            memory: self.memory.clone(),
            timer,
            lease: options.lease.unwrap_or_default(),
        };
        if let Err(error) = guarded.start() {
            guard::note_failure(&error);
        }
        service.show_lease(Arc::new(board));
        Ok(())
    }

    /// A descriptor of the device.
    pub fn device(&self) -> io::Result<Device> {
        let device = self.devices.first().map(Device::again).transpose()?;
        device.ok_or_else(|| io::Error::other("there is no descriptor"))
    }

    /// Whether the kernel can drop all names that it caches (Linux 6.16). A new mount tries that. A resumed mount must not:
    /// its programs would notice.
    pub fn has_epochs(&self, is_new: bool) -> bool {
        if !is_new {
            return init::has_epochs();
        }
        let tried = self.devices.first().map(Device::expire_names);
        tried.is_some_and(|outcome| outcome.is_ok())
    }

    /// Makes the kernel send all requests again that the earlier process has not answered. Call it when the threads are
    /// ready to read: each looks for waiting requests before it sleeps.
    pub fn resend_requests(&self, options: &MountOptions) -> Result<(), MountError> {
        let resent = self.devices.first().map(Device::resend_requests);
        resent
            .transpose()
            .map(drop)
            .map_err(|errno| options.failed(errno.into()))
    }
}

/// The descriptors that an earlier process has left. Its mount exists.
struct LeftMount {
    devices: Vec<Device>,
    memory: Option<(MountMemory, MountRecord)>,
}

/// Why a mount that an earlier process has left cannot be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Misfit {
    #[error("its record is not readable")]
    NoRecord,
    #[error("it is not mounted any more")]
    NotMounted,
    #[error("this program or its configuration mounts it in another way")]
    MadeOtherwise,
}

impl LeftMount {
    fn find(options: &MountOptions) -> Result<Option<Self>, MountError> {
        let given = options.descriptors.give(&options.held_name);
        let given = given.map_err(|source| MountError::Held { source })?;
        if given.is_empty() {
            return Ok(None);
        }
        let mut left = Self {
            devices: Vec::new(),
            memory: None,
        };
        for descriptor in given {
            left.add(descriptor);
        }
        if left.devices.first().is_none_or(Device::is_dead) {
            // An operator has unmounted it, or the machine that the record is of has.
            options.descriptors.discard(&options.held_name);
            return Ok(None);
        }
        Ok(Some(left))
    }

    fn add(&mut self, descriptor: OwnedFd) {
        match Device::adopt(descriptor) {
            Ok(device) => self.devices.push(device),
            Err(descriptor) => match MountMemory::open(descriptor) {
                Ok(memory) => self.memory = Some(memory),
                Err(error) => tracing::warn!(%error, "the memory of a mount cannot be read"),
            },
        }
    }

    /// The mount point and the memory, if the mount is as this process would have made it.
    fn fitting(&self, options: &MountOptions) -> Result<(MountPoint, MountMemory), Misfit> {
        let (memory, record) = self.memory.as_ref().ok_or(Misfit::NoRecord)?;
        let point = MountPoint::adopt(record.mount_id, &options.name).ok_or(Misfit::NotMounted)?;
        if *record != MountRecord::new(record.mount_id, options.mount_point.clone()) {
            return Err(Misfit::MadeOtherwise);
        }
        Ok((point, memory.clone()))
    }

    /// Ends the mount: its programs get errors.
    fn end(self, options: &MountOptions, reason: &str) {
        tracing::warn!(
            mount = %options.mount_point.display(),
            reason,
            "ending the mount that an earlier process has left"
        );
        let record = self.memory.map(|(_, record)| record);
        let point = record.and_then(|record| MountPoint::adopt(record.mount_id, &options.name));
        if let Some(point) = point
            && let Err(error) = point.abort()
        {
            tracing::warn!(%error, "the mount is left behind");
        }
        options.descriptors.discard(&options.held_name);
    }
}
