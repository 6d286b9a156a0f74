//! POSIX access control lists in the kernel's format, and their relation to permission bits.
//!
//! The value is a version word (2), then entries of tag, permissions and id, little endian. The kernel orders the
//! entries by tag and id, and checks the list before a file system gets it.

use lockstep_types::Errno;

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NO_ID: u32 = u32::MAX;

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
    /// Returns a list that says no more than permission bits.
    pub fn minimal(user: u16, group: u16, other: u16) -> Self {
        Self::of(&[
            (USER_OBJ, user, NO_ID),
            (GROUP_OBJ, group, NO_ID),
            (OTHER, other, NO_ID),
        ])
    }

    /// Returns a list that names a user and a group.
    pub fn named(user: u16, named: u16, mask: u16, other: u16) -> Self {
        Self::of(&[
            (USER_OBJ, user, NO_ID),
            (USER, named, 1000),
            (GROUP_OBJ, 5, NO_ID),
            (GROUP, 7, 50),
            (MASK, mask, NO_ID),
            (OTHER, other, NO_ID),
        ])
    }

    /// Returns a list without entries. Setting such a list removes the attribute.
    pub fn empty() -> Self {
        Self(Vec::new())
    }

    fn of(entries: &[(u16, u16, u32)]) -> Self {
        let entry = |&(tag, permissions, id)| Entry {
            tag,
            permissions,
            id,
        };
        Self(entries.iter().map(entry).collect())
    }

    /// Reads the kernel's format.
    pub fn parse(value: &[u8]) -> Result<Self, Errno> {
        let (version, entries) = value.split_first_chunk().ok_or(Errno::Invalid)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::NotSupported);
        }
        let (entries, rest) = entries.as_chunks();
        if !rest.is_empty() {
            return Err(Errno::Invalid);
        }
        Ok(Self(entries.iter().copied().map(parse_entry).collect()))
    }

    /// Writes the kernel's format.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            bytes.extend(entry.tag.to_le_bytes());
            bytes.extend(entry.permissions.to_le_bytes());
            bytes.extend(entry.id.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the list says no more than permission bits.
    pub(crate) fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// Returns the permission bits that show the list. The group bits are the mask.
    pub fn mode(&self) -> u32 {
        [USER_OBJ, self.group_class(), OTHER]
            .into_iter()
            .fold(0, |mode, tag| {
                let permissions = self.get(tag).expect("every list has this entry");
                mode << 3 | u32::from(permissions)
            })
    }

    /// Changes the list with the permission bits.
    pub(crate) fn chmod(&mut self, mode: u32) {
        let group_class = self.group_class();
        for entry in &mut self.0 {
            let shift = match entry.tag {
                USER_OBJ => 6,
                OTHER => 0,
                tag if tag == group_class => 3,
                _ => continue,
            };
            entry.permissions = u16::try_from(mode >> shift & 7).unwrap();
        }
    }

    /// The tag of the entry that the group bits show.
    fn group_class(&self) -> u16 {
        if self.get(MASK).is_some() {
            MASK
        } else {
            GROUP_OBJ
        }
    }

    fn get(&self, tag: u16) -> Option<u16> {
        let entry = self.0.iter().find(|entry| entry.tag == tag);
        entry.map(|entry| entry.permissions)
    }
}

fn parse_entry([t0, t1, p0, p1, i0, i1, i2, i3]: [u8; 8]) -> Entry {
    Entry {
        tag: u16::from_le_bytes([t0, t1]),
        permissions: u16::from_le_bytes([p0, p1]),
        id: u32::from_le_bytes([i0, i1, i2, i3]),
    }
}
