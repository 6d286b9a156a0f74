//! POSIX access control lists in the kernel's format, and how they go with permission bits.
//!
//! The value is a version word (2) and entries of tag, permissions and id, little endian, ordered
//! as the kernel orders them.

use lockstep_types::Errno;

/// Attribute that is one with the permission bits.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Attribute of a directory that gives new inodes their access list.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: [u8; 4] = [2, 0, 0, 0];
const USER_OBJ: u16 = 0x01;
const GROUP_OBJ: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// A list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<Entry>);

impl Acl {
    /// Reads the kernel's format.
    pub fn parse(value: &[u8]) -> Result<Self, Errno> {
        let entries = value.strip_prefix(&VERSION).ok_or(Errno::NotSupported)?;
        let (entries, rest) = entries.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(Errno::Invalid);
        }
        Ok(Self(entries.iter().copied().map(parse_entry).collect()))
    }

    /// Writes the kernel's format.
    pub fn encode(&self) -> Vec<u8> {
        let entries = self.0.iter().flat_map(|entry| {
            let mut bytes = entry.tag.to_le_bytes().to_vec();
            bytes.extend(entry.permissions.to_le_bytes());
            bytes.extend(entry.id.to_le_bytes());
            bytes
        });
        VERSION.into_iter().chain(entries).collect()
    }

    /// Whether it says no more than permission bits can.
    pub fn is_minimal(&self) -> bool {
        self.0
            .iter()
            .all(|entry| [USER_OBJ, GROUP_OBJ, OTHER].contains(&entry.tag))
    }

    /// `mode` with the permission bits this list stands for: the group bits are the mask.
    pub fn mode(&self, mode: u32) -> u32 {
        let group = self.get(MASK).or_else(|| self.get(GROUP_OBJ));
        let bits = [self.get(USER_OBJ), group, self.get(OTHER)]
            .into_iter()
            .fold(0, |bits, part| bits << 3 | u32::from(part.unwrap_or(0)));
        mode & !0o777 | bits
    }

    /// Takes over changed permission bits.
    pub fn chmod(&mut self, mode: u32) {
        let group_tag = if self.get(MASK).is_some() {
            MASK
        } else {
            GROUP_OBJ
        };
        for entry in &mut self.0 {
            let shift = match entry.tag {
                USER_OBJ => 6,
                OTHER => 0,
                tag if tag == group_tag => 3,
                _ => continue,
            };
            entry.permissions = (mode >> shift & 7) as u16;
        }
    }

    /// Takes away what the creator's mode does not ask for.
    pub fn restrict(&mut self, mode: u32) {
        let allowed = self.mode(0) & mode;
        self.chmod(allowed);
    }

    fn get(&self, tag: u16) -> Option<u16> {
        let entry = self.0.iter().find(|entry| entry.tag == tag);
        entry.map(|entry| entry.permissions)
    }
}

fn parse_entry(bytes: [u8; 8]) -> Entry {
    let [t0, t1, p0, p1, i0, i1, i2, i3] = bytes;
    Entry {
        tag: u16::from_le_bytes([t0, t1]),
        permissions: u16::from_le_bytes([p0, p1]),
        id: u32::from_le_bytes([i0, i1, i2, i3]),
    }
}
