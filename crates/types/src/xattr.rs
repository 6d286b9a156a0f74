//! The namespaces of extended attributes. Pure.
//!
//! Invariant: a store accepts the namespaces that ext4 accepts, and never a name outside [`XattrNamespace`]. The
//! kernel leaves the permission check of `system.*` to the file system, so an unknown name has no check at all.

use crate::Errno;

/// Name of the access control list that governs access to the inode.
pub const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// Name of the access control list that new entries of a directory inherit.
pub const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Name of the capabilities of a program file, which fall with the set-id bits.
pub const CAPABILITIES: &[u8] = b"security.capability";

const USER: &[u8] = b"user.";
const TRUSTED: &[u8] = b"trusted.";
const SECURITY: &[u8] = b"security.";

/// A namespace of extended attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrNamespace {
    /// `user.*`: governed by the permission bits of the file.
    User,
    /// `trusted.*`: only processes with `CAP_SYS_ADMIN` see and change these attributes.
    Trusted,
    /// `security.*`: processes with `CAP_SYS_ADMIN` write these attributes; file capabilities need `CAP_SETFCAP`.
    Security,
    /// The two access control lists: the owner of the file writes them.
    AccessControl,
}

impl XattrNamespace {
    /// The namespace of `name`.
    ///
    /// # Errors
    /// [`Errno::NotSupported`] for a name outside all namespaces; [`Errno::Invalid`] for a namespace without a name.
    pub fn of(name: &[u8]) -> Result<Self, Errno> {
        if name == ACCESS_ACL || name == DEFAULT_ACL {
            return Ok(Self::AccessControl);
        }
        let namespaces = [
            (USER, Self::User),
            (TRUSTED, Self::Trusted),
            (SECURITY, Self::Security),
        ];
        let found = namespaces
            .iter()
            .find_map(|(prefix, namespace)| Some((name.strip_prefix(*prefix)?, *namespace)));
        match found {
            None => Err(Errno::NotSupported),
            Some((b"", _)) => Err(Errno::Invalid),
            Some((_, namespace)) => Ok(namespace),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_namespaces_of_ext4_and_no_others() {
        for (name, namespace) in [
            (&b"user.a"[..], XattrNamespace::User),
            (b"trusted.overlay.opaque", XattrNamespace::Trusted),
            (CAPABILITIES, XattrNamespace::Security),
            (b"system.posix_acl_access", XattrNamespace::AccessControl),
            (b"system.posix_acl_default", XattrNamespace::AccessControl),
        ] {
            assert_eq!(XattrNamespace::of(name), Ok(namespace));
        }
        let unknown: [&[u8]; 7] = [
            b"system.foo",
            b"system.posix_acl_accessory",
            b"system.",
            b"btrfs.compression",
            b"user",
            b"User.a",
            b"",
        ];
        for name in unknown {
            assert_eq!(XattrNamespace::of(name), Err(Errno::NotSupported));
        }
        for empty in [&b"user."[..], b"trusted.", b"security."] {
            assert_eq!(XattrNamespace::of(empty), Err(Errno::Invalid));
        }
    }
}
