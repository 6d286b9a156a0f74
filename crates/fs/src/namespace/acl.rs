//! POSIX access control lists, in the form the kernel keeps them in extended attributes.
//!
//! The kernel checks access. The file system keeps the list and the mode bits of a file in step, and hands the default
//! list of a directory down to new files in it (`acl(5)`, and the withdrawn POSIX.1e draft 17 that Linux follows).

use lockstep_types::Errno;
pub use lockstep_types::xattr::{ACCESS_ACL as ACCESS, DEFAULT_ACL as DEFAULT};

/// Version word that opens the attribute.
const VERSION: u32 = 2;
/// Bytes of one entry: tag, permissions, id.
const ENTRY_BYTES: usize = 8;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// One line of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A valid access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

impl Acl {
    /// Reads the attribute's bytes. A list without entries is `None`: it means "remove".
    ///
    /// # Errors
    /// [`Errno::NotSupported`] for another version, [`Errno::Invalid`] for anything that is not a
    /// well-formed list.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, Errno> {
        let (version, rest) = bytes.split_first_chunk::<4>().ok_or(Errno::Invalid)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::NotSupported);
        }
        let (chunks, tail) = rest.as_chunks::<ENTRY_BYTES>();
        if !tail.is_empty() {
            return Err(Errno::Invalid);
        }
        let entries: Vec<_> = chunks.iter().copied().map(AclEntry::parse).collect();
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Self { entries };
        if acl.is_well_formed() {
            Ok(Some(acl))
        } else {
            Err(Errno::Invalid)
        }
    }

    /// The attribute's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.tag.to_le_bytes());
            bytes.extend_from_slice(&entry.perm.to_le_bytes());
            bytes.extend_from_slice(&entry.id.to_le_bytes());
        }
        bytes
    }

    /// One of each owner, group and other; a mask when there are named entries; in order of tag
    /// and then of id without repeats; permissions of three bits.
    fn is_well_formed(&self) -> bool {
        let count = |tag| self.entries.iter().filter(|entry| entry.tag == tag).count();
        let named = count(USER) + count(GROUP) > 0;
        let known = self.entries.iter().all(|entry| {
            matches!(
                entry.tag,
                USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER
            ) && entry.perm <= 7
        });
        let ordered = self.entries.windows(2).all(|pair| match pair {
            [a, b] if a.tag == b.tag => matches!(a.tag, USER | GROUP) && a.id < b.id,
            [a, b] => a.tag < b.tag,
            _ => true,
        });
        known
            && ordered
            && count(USER_OBJ) == 1
            && count(GROUP_OBJ) == 1
            && count(OTHER) == 1
            && (!named || count(MASK) == 1)
    }

    fn perm(&self, tag: u16) -> Option<u32> {
        let entry = self.entries.iter().find(|entry| entry.tag == tag)?;
        Some(u32::from(entry.perm))
    }

    fn set_perm(&mut self, tag: u16, perm: u32) {
        let bits = u16::try_from(perm & 7).unwrap_or(7);
        for entry in &mut self.entries {
            if entry.tag == tag {
                entry.perm = bits;
            }
        }
    }

    /// The tag that the group bits of a mode stand for: the mask, if the list has one.
    fn group_class(&self) -> u16 {
        if self.perm(MASK).is_some() {
            MASK
        } else {
            GROUP_OBJ
        }
    }

    /// The nine permission bits that show this list in a mode.
    pub fn mode_bits(&self) -> u32 {
        let of = |tag| self.perm(tag).unwrap_or(0);
        of(USER_OBJ) << 6 | of(self.group_class()) << 3 | of(OTHER)
    }

    /// The bits of a mode that give the owning group what this list gives it.
    pub fn group_bits(&self) -> u32 {
        let granted = self.perm(GROUP_OBJ).unwrap_or(0) & self.perm(MASK).unwrap_or(7);
        granted << 3
    }

    /// Whether the mode bits alone express this list.
    pub fn is_only_mode(&self) -> bool {
        self.entries.len() == 3
    }

    /// Changes the list as `chmod` to `mode` does.
    pub fn chmod(&mut self, mode: u32) {
        self.set_perm(USER_OBJ, mode >> 6);
        self.set_perm(self.group_class(), mode >> 3);
        self.set_perm(OTHER, mode);
    }

    /// Narrows the list by the requested mode of a new file, and returns the permission bits of the file.
    pub fn inherit(&mut self, mode: u32) -> u32 {
        let narrowed = self.mode_bits() & mode;
        self.chmod(narrowed);
        narrowed & 0o777
    }
}

impl AclEntry {
    fn parse(bytes: [u8; ENTRY_BYTES]) -> Self {
        let [t0, t1, p0, p1, i0, i1, i2, i3] = bytes;
        Self {
            tag: u16::from_le_bytes([t0, t1]),
            perm: u16::from_le_bytes([p0, p1]),
            id: u32::from_le_bytes([i0, i1, i2, i3]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl {
            entries: entries
                .iter()
                .map(|&(tag, perm, id)| AclEntry { tag, perm, id })
                .collect(),
        }
    }

    const NONE: u32 = u32::MAX;

    fn with_named_user() -> Acl {
        acl(&[
            (USER_OBJ, 7, NONE),
            (USER, 6, 1000),
            (GROUP_OBJ, 5, NONE),
            (MASK, 7, NONE),
            (OTHER, 1, NONE),
        ])
    }

    #[test]
    fn bytes_round_trip() {
        let list = with_named_user();
        assert_eq!(Acl::parse(&list.to_bytes()), Ok(Some(list)));
        assert_eq!(Acl::parse(&VERSION.to_le_bytes()), Ok(None));
    }

    #[test]
    fn malformed_lists_are_refused() {
        let no_mask = acl(&[
            (USER_OBJ, 7, NONE),
            (USER, 6, 1),
            (GROUP_OBJ, 5, NONE),
            (OTHER, 1, NONE),
        ]);
        let twice = acl(&[(USER_OBJ, 7, NONE), (USER_OBJ, 7, NONE)]);
        for bad in [no_mask, twice] {
            assert_eq!(Acl::parse(&bad.to_bytes()), Err(Errno::Invalid));
        }
        assert_eq!(Acl::parse(&[1, 0, 0, 0]), Err(Errno::NotSupported));
        assert_eq!(Acl::parse(&[2, 0]), Err(Errno::Invalid));
        assert_eq!(Acl::parse(&[2, 0, 0, 0, 1]), Err(Errno::Invalid));
    }

    #[test]
    fn group_bits_of_a_mode_are_the_mask() {
        let mut list = with_named_user();
        assert_eq!(list.mode_bits(), 0o771);
        list.chmod(0o640);
        assert_eq!(list.mode_bits(), 0o640);
        assert_eq!(list.perm(GROUP_OBJ), Some(5));
        assert_eq!(list.group_bits(), 0o040);
    }

    #[test]
    fn what_is_inherited_is_narrowed_by_the_mode_asked_for() {
        let mut list = with_named_user();
        assert_eq!(list.inherit(0o644), 0o640);
        assert_eq!(list.perm(MASK), Some(4));
    }
}
