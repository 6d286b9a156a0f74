//! The bits of a mode, as Linux numbers them.

/// A program runs as the owner of its file.
pub const SET_USER_ID: u32 = 0o4000;
/// A program runs in the group of its file; the entries of a directory inherit the group of the directory.
pub const SET_GROUP_ID: u32 = 0o2000;
/// Both bits that change the user or the group of a program.
pub const SET_ID: u32 = SET_USER_ID | SET_GROUP_ID;
/// The group may execute the file.
pub const GROUP_EXECUTE: u32 = 0o0010;
/// All bits: permission, set-id and sticky bits.
pub const MODE_BITS: u32 = 0o7777;
