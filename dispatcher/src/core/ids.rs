//! Names of sessions, and of pools of one role in one database.

/// Generation in the upper half (never 0, and 31 bits, so that a bigint holds a
/// name), index in the lower.
pub type SessionId = u64;

pub fn index_of(session: SessionId) -> u32 {
    session as u32
}

pub fn name(generation: u32, index: u32) -> SessionId {
    (u64::from(generation) << 32) | u64::from(index)
}

/// Role and database.
pub type GroupKey = (u32, u32);
