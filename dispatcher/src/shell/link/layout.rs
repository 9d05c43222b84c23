//! The layout of the memory that dispatcher and extension share, as Rust structures.
//!
//! The numbers come from the headers in `shared/` themselves (build.rs), and each
//! structure is asserted against them below: if header and structure part
//! ways, the build fails. Fields that both sides write, or that another
//! process may write at any time, are atomics; what a field means and who may
//! write it is said in the header, not here.

use shared::*;
use std::mem::{offset_of, size_of};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU16, AtomicU32, AtomicU64, AtomicU8};

/// The header's constants, without their prefix `BATON_`.
#[allow(dead_code, missing_docs, clippy::unreadable_literal)]
pub mod shared {
    include!(concat!(env!("OUT_DIR"), "/shared.rs"));
}

/// Header of the CONTROL memory.
#[repr(C)]
pub struct ControlHeader {
    pub magic: AtomicU64,
    pub layout_version: AtomicU32,
    pub backend_slots: AtomicU32,
    pub pool_slots: AtomicU32,
    pub session_slots: AtomicU32,
    pub counter_slots: AtomicU32,
    pub postmaster_pid: AtomicU32,
    pub backend_offset: AtomicU64,
    pub pool_offset: AtomicU64,
    pub session_offset: AtomicU64,
    pub counter_offset: AtomicU64,
    pub total_size: AtomicU64,
    pub secret: AtomicU64,
    pub settings_generation: AtomicU64,
    pub dispatcher_pid: AtomicU32,
    pub force_migration: AtomicU32,
    pub dispatcher_epoch: AtomicU64,
    pub login_generation: AtomicU64,
    pub settings_marks: [AtomicU32; SETTINGS_MARKS as usize],
    pub room_ticket: AtomicU32,
    pub next_pid: AtomicU32,
    pub pid_entries: AtomicU32,
    pub query_size: AtomicU32,
    pub identity_offset: AtomicU64,
    pub pid_offset: AtomicU64,
    pub query_offset: AtomicU64,
    pub identities_used: AtomicU32,
    pub keeps_sessions: AtomicU32,
    pub tickets: [AtomicU64; TICKETS as usize],
    pub names_generation: AtomicU64,
    pub login_changes: [AtomicU64; LOGIN_CHANGES as usize],
    pub tenant_offset: AtomicU64,
}

impl ControlHeader {
    pub fn read_settings_marks(&self) -> Vec<u32> {
        let marks = self.settings_marks.iter();
        marks.map(|mark| mark.load(SeqCst)).collect()
    }

    /// Those that concern a role in a database.
    pub fn settings_marks_of(&self, database_oid: u32, role_oid: u32) -> SettingsMarks {
        [
            (0, 0),
            (database_oid, 0),
            (0, role_oid),
            (database_oid, role_oid),
        ]
        .map(|(database, role)| self.settings_marks[settings_mark(database, role)].load(SeqCst))
    }

    /// What has changed for logins since login_generation was `from`, now that
    /// it is `to`.
    pub fn login_changed(&self, from: u64, to: u64) -> LoginChanged {
        LoginChanged::between(&self.login_changes, from, to)
    }
}

/// The values of marks, in the order that the header names.
pub type SettingsMarks = [u32; SETTINGS_MARKS_OF as usize];

/// Which of the marks is raised for a role's settings in a database; both as
/// the extension computes it.
pub fn settings_mark(database_oid: u32, role_oid: u32) -> usize {
    if (database_oid, role_oid) == (0, 0) {
        return 0;
    }
    let mixed = database_oid.wrapping_mul(0x9E37_79B1) ^ role_oid.wrapping_mul(0x85EB_CA77);
    1 + (mixed >> 16) as usize % (SETTINGS_MARKS as usize - 1)
}

/// One pooled backend.
#[repr(C)]
pub struct BackendSlot {
    pub state: AtomicU32,
    pub pid: AtomicU32,
    pub session: AtomicU64,
    pub cancel: AtomicU64,
    pub attach_token: AtomicU64,
    pub transactions: AtomicU64,
    pub switches: AtomicU64,
    pub starts: AtomicU32,
    pub tenant: AtomicU32,
    pub state_since_us: AtomicI64,
    pub pool: AtomicU32,
    pub dedicated_cause: AtomicU32,
    pub xact_status: AtomicU32,
    pub poked: AtomicU32,
    pub retire: AtomicU32,
    pub served_last: AtomicU32,
    pub served: [AtomicU64; BACKEND_SERVED as usize],
    pub reserved: [AtomicU32; 2],
}

/// What dispatcher and backends of one pool count together.
#[repr(C)]
pub struct PoolSlot {
    pub queued: AtomicI32,
    pub is_held_back: AtomicU32,
    pub reserved: [AtomicU32; 14],
}

/// What dispatcher and backends count together of one tenant: a role's sessions in a pool.
#[repr(C)]
pub struct TenantSlot {
    pub keeps_sessions: AtomicU32,
    pub is_counted: AtomicU32,
    pub memory_left: AtomicI64,
    pub superuser: AtomicU32,
    pub reserved1: [AtomicU32; 11],
    pub completed: AtomicU64,
    pub reserved2: [AtomicU64; 7],
    pub user_name: [AtomicU8; TENANT_NAME_SIZE as usize],
}

/// What the owner of a session writes.
#[repr(C)]
pub struct SessionSlot {
    pub id: AtomicU64,
    pub owner: AtomicU32,
    pub flags: AtomicU32,
    pub last_backend: AtomicU32,
    pub dedicated_cause: AtomicU32,
    pub state: AtomicU32,
    pub idle_session_timeout_ms: AtomicU32,
    pub state_since_us: AtomicI64,
    pub transactions: AtomicU64,
    pub migrations: AtomicU64,
    pub counter_version: AtomicU32,
}

/// Who a session is, for every process of the server.
#[repr(C)]
pub struct Identity {
    pub id: AtomicU64,
    pub terminate: AtomicU64,
    pub changes: AtomicU32,
    pub pid: AtomicI32,
    pub role_oid: AtomicU32,
    pub database_oid: AtomicU32,
    pub login_time_us: AtomicI64,
    pub peer_family: AtomicU16,
    pub peer_port: AtomicU16,
    pub peer_scope: AtomicU32,
    pub peer_address: [AtomicU8; 16],
    pub query_start_us: AtomicI64,
    pub idle_since_us: AtomicI64,
    pub query_id: AtomicU64,
    pub is_tracked: AtomicU32,
    pub gss_authenticated: AtomicU32,
    pub application_name: [AtomicU8; 64],
    pub cancel: AtomicU64,
    pub tls: Tls,
    pub gss_principal: [AtomicU8; 64],
}

/// What pg_stat_ssl shows of a session.
#[repr(C)]
pub struct Tls {
    pub in_use: AtomicU32,
    pub bits: AtomicU32,
    pub version: [AtomicU8; 16],
    pub cipher: [AtomicU8; 64],
    pub client_dn: [AtomicU8; 64],
    pub client_serial: [AtomicU8; 64],
    pub issuer_dn: [AtomicU8; 64],
}

/// Counters of one prepared statement of one session. Doubles as their bits.
#[repr(C)]
pub struct StatementCounter {
    pub generic_cost: AtomicU64,
    pub total_custom_cost: AtomicU64,
    pub num_custom_plans: AtomicI64,
    pub num_generic_plans: AtomicI64,
}

/// Header of the ARENA memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ArenaHeader {
    pub magic: u64,
    pub layout_version: u32,
    pub session_slots: u32,
    pub total_size: u64,
    pub session_offset: u64,
    pub heap_offset: u64,
    pub heap_used: u64,
    pub heap_limit: u64,
}

/// What a backend must know to serve a session.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct SessionRecord {
    pub id: u64,
    pub context_version: u64,
    pub items: u32,
    pub item_count: u32,
    pub record_flags: u32,
    pub protocol: u32,
    pub cancel_pid: i32,
    pub cancel_key_length: u32,
    pub login_time_us: i64,
    pub start_settings: u64,
    pub peer_family: u16,
    pub peer_port: u16,
    pub local_port: u16,
    pub reserved0: u16,
    pub peer_address: [u8; 16],
    pub local_address: [u8; 16],
    pub peer_scope: u32,
    pub is_relayed: u32,
    pub first_statement: u32,
    pub statement_count: u32,
    pub cancel_key: [u8; 32],
    pub authenticated: u32,
    pub account: u32,
    pub settings_marks: SettingsMarks,
    pub starts: u32,
    pub tenant: u32,
    pub reserved: [u64; 2],
}

/// A reference from a session's context to an entry.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Item {
    pub entry: u32,
    pub counter: u32,
    pub aux: i64,
}

#[allow(dead_code)] // older compilers do not see that a constant uses it
const fn same(ours: usize, theirs: u32) {
    assert!(ours == theirs as usize);
}

const _: () = {
    assert!(size_of::<ControlHeader>() <= CONTROL_HEADER_SIZE as usize);
    same(offset_of!(ControlHeader, secret), CONTROL_OFF_SECRET);
    same(
        offset_of!(ControlHeader, settings_generation),
        CONTROL_OFF_SETTINGS_GENERATION,
    );
    same(
        offset_of!(ControlHeader, dispatcher_epoch),
        CONTROL_OFF_DISPATCHER_EPOCH,
    );
    same(
        offset_of!(ControlHeader, login_generation),
        CONTROL_OFF_LOGIN_GENERATION,
    );
    same(
        offset_of!(ControlHeader, settings_marks),
        CONTROL_OFF_SETTINGS_MARKS,
    );
    same(
        offset_of!(ControlHeader, room_ticket),
        CONTROL_OFF_ROOM_TICKET,
    );
    same(offset_of!(ControlHeader, next_pid), CONTROL_OFF_NEXT_PID);
    same(
        offset_of!(ControlHeader, identity_offset),
        CONTROL_OFF_IDENTITY_OFFSET,
    );
    same(offset_of!(ControlHeader, tickets), CONTROL_OFF_TICKETS);
    same(
        offset_of!(ControlHeader, names_generation),
        CONTROL_OFF_NAMES_GENERATION,
    );
    same(
        offset_of!(ControlHeader, login_changes),
        CONTROL_OFF_LOGIN_CHANGES,
    );
    same(
        offset_of!(ControlHeader, tenant_offset),
        CONTROL_OFF_TENANT_OFFSET,
    );
    same(size_of::<BackendSlot>(), BACKEND_SLOT_SIZE);
    same(offset_of!(BackendSlot, served), BACKEND_OFF_SERVED);
    same(size_of::<Identity>(), IDENTITY_SIZE);
    same(offset_of!(Identity, pid), IDENTITY_OFF_PID);
    same(
        offset_of!(Identity, peer_address),
        IDENTITY_OFF_PEER_ADDRESS,
    );
    same(
        offset_of!(Identity, application_name),
        IDENTITY_OFF_APPLICATION_NAME,
    );
    same(offset_of!(BackendSlot, cancel), BACKEND_OFF_CANCEL);
    same(
        offset_of!(BackendSlot, state_since_us),
        BACKEND_OFF_STATE_SINCE,
    );
    same(offset_of!(BackendSlot, pool), BACKEND_OFF_POOL);
    same(offset_of!(BackendSlot, retire), BACKEND_OFF_RETIRE);
    same(size_of::<PoolSlot>(), POOL_SLOT_SIZE);
    same(size_of::<TenantSlot>(), TENANT_SLOT_SIZE);
    same(offset_of!(TenantSlot, memory_left), TENANT_OFF_MEMORY_LEFT);
    same(offset_of!(TenantSlot, completed), TENANT_OFF_COMPLETED);
    same(offset_of!(TenantSlot, user_name), TENANT_OFF_USER_NAME);
    same(size_of::<SessionSlot>(), SESSION_SLOT_SIZE);
    same(offset_of!(SessionSlot, state), SESSION_OFF_STATE);
    same(
        offset_of!(SessionSlot, transactions),
        SESSION_OFF_TRANSACTIONS,
    );
    same(size_of::<StatementCounter>(), COUNTER_SLOT_SIZE);
    assert!(size_of::<ArenaHeader>() <= ARENA_OFF_ACCOUNTS as usize);
    same(size_of::<SessionRecord>(), RECORD_SIZE);
    same(offset_of!(SessionRecord, cancel_pid), RECORD_OFF_CANCEL_PID);
    same(
        offset_of!(SessionRecord, login_time_us),
        RECORD_OFF_LOGIN_TIME,
    );
    same(
        offset_of!(SessionRecord, peer_family),
        RECORD_OFF_PEER_FAMILY,
    );
    same(
        offset_of!(SessionRecord, peer_address),
        RECORD_OFF_PEER_ADDRESS,
    );
    same(offset_of!(SessionRecord, peer_scope), RECORD_OFF_PEER_SCOPE);
    same(
        offset_of!(SessionRecord, first_statement),
        RECORD_OFF_FIRST_STATEMENT,
    );
    same(offset_of!(SessionRecord, cancel_key), RECORD_OFF_CANCEL_KEY);
    same(
        offset_of!(SessionRecord, authenticated),
        RECORD_OFF_AUTHENTICATED,
    );
    same(offset_of!(SessionRecord, account), RECORD_OFF_ACCOUNT);
    same(
        offset_of!(SessionRecord, start_settings),
        RECORD_OFF_START_SETTINGS,
    );
    same(
        offset_of!(SessionRecord, settings_marks),
        RECORD_OFF_SETTINGS_MARKS,
    );
    same(size_of::<Item>(), ITEM_SIZE);
    assert!(FRAME_HEADER_SIZE == 16 && ENTRY_HEADER_SIZE == 16);
};

// ---- Changes that concern logins ------------------------------------------
//
// What has changed for logins: which of the things that were learnt before are old.
//
// Whoever raises login_generation in CONTROL writes there what was changed
// (catalog_watch.c): one role's row, one database's, memberships, or anything. A change that is not
// found, because it is not written yet or others have come since, may be anything.

/// Whom something was learnt about: by which changes it becomes old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LoginMarks {
    pub role_hash: u32,
    pub database_hash: u32,
    pub any_role: bool,
    pub any_database: bool,
    /// It depends on which role is a member of which, or on names of groups.
    pub memberships: bool,
}

/// The changes between two login_generations.
#[derive(Debug, PartialEq, Eq)]
pub enum LoginChanged {
    Anything,
    /// Hashes, sorted.
    Only {
        roles: Vec<u32>,
        databases: Vec<u32>,
        memberships: bool,
    },
}

impl LoginChanged {
    pub fn between(changes: &[AtomicU64], from: u64, to: u64) -> LoginChanged {
        let (mut roles, mut databases, mut memberships) = (Vec::new(), Vec::new(), false);
        let count = to.wrapping_sub(from);
        if count > changes.len() as u64 {
            return LoginChanged::Anything;
        }
        for number in (1..=count).map(|step| from.wrapping_add(step)) {
            let place = (number % changes.len() as u64) as usize;
            let change = changes[place].load(SeqCst);
            if (change >> 32) & 0x3FFF_FFFF != number & 0x3FFF_FFFF {
                return LoginChanged::Anything;
            }
            match (change >> 62) as u32 {
                LOGIN_CHANGE_ROLE => roles.push(change as u32),
                LOGIN_CHANGE_DATABASE => databases.push(change as u32),
                LOGIN_CHANGE_MEMBERSHIPS => memberships = true,
                _ => return LoginChanged::Anything,
            }
        }
        for hashes in [&mut roles, &mut databases] {
            hashes.sort_unstable();
            hashes.dedup();
        }
        LoginChanged::Only {
            roles,
            databases,
            memberships,
        }
    }

    pub fn concerns(&self, marks: &LoginMarks) -> bool {
        let LoginChanged::Only {
            roles,
            databases,
            memberships,
        } = self
        else {
            return true;
        };
        (marks.any_role && !roles.is_empty())
            || (marks.any_database && !databases.is_empty())
            || (marks.memberships && *memberships)
            || roles.binary_search(&marks.role_hash).is_ok()
            || databases.binary_search(&marks.database_hash).is_ok()
    }

    /// Has any role changed?
    pub fn has_roles(&self) -> bool {
        match self {
            LoginChanged::Anything => true,
            LoginChanged::Only { roles, .. } => !roles.is_empty(),
        }
    }

    /// Has any membership changed?
    pub fn has_memberships(&self) -> bool {
        match self {
            LoginChanged::Anything => true,
            LoginChanged::Only { memberships, .. } => *memberships,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(kind: u32, number: u64, hash: u32) -> AtomicU64 {
        AtomicU64::new(u64::from(kind) << 62 | (number & 0x3FFF_FFFF) << 32 | u64::from(hash))
    }

    #[test]
    fn only_changes_that_are_all_found_are_less_than_anything() {
        let ring = [
            change(LOGIN_CHANGE_ROLE, 8, 80),
            change(LOGIN_CHANGE_DATABASE, 5, 50),
            change(LOGIN_CHANGE_ALL, 6, 0),
            change(LOGIN_CHANGE_ROLE, 7, 70),
        ];
        let only = |roles: &[u32], databases: &[u32]| LoginChanged::Only {
            roles: roles.to_vec(),
            databases: databases.to_vec(),
            memberships: false,
        };
        let between = |from, to| LoginChanged::between(&ring, from, to);
        assert_eq!(between(6, 8), only(&[70, 80], &[]));
        assert_eq!(between(4, 5), only(&[], &[50]));
        assert_eq!(between(3, 3), only(&[], &[]));
        // One of them may be anything; is overwritten; is yet to be written.
        assert_eq!(between(5, 7), LoginChanged::Anything);
        assert_eq!(between(3, 5), LoginChanged::Anything);
        assert_eq!(between(8, 9), LoginChanged::Anything);
        // Too many; backwards.
        assert_eq!(between(3, 8), LoginChanged::Anything);
        assert_eq!(between(8, 7), LoginChanged::Anything);
        assert_eq!(between(0, u64::MAX), LoginChanged::Anything);
    }

    #[test]
    fn a_change_concerns_its_own_role_or_database() {
        let marks = LoginMarks {
            role_hash: 1,
            database_hash: 2,
            ..LoginMarks::default()
        };
        let changed = |roles: &[u32], databases: &[u32]| LoginChanged::Only {
            roles: roles.to_vec(),
            databases: databases.to_vec(),
            memberships: false,
        };
        assert!(changed(&[0, 1, 3], &[]).concerns(&marks));
        assert!(changed(&[], &[2]).concerns(&marks));
        assert!(!changed(&[0, 2], &[1, 3]).concerns(&marks));
        assert!(LoginChanged::Anything.concerns(&marks));
        let any_role = LoginMarks {
            any_role: true,
            ..marks
        };
        assert!(changed(&[9], &[]).concerns(&any_role) && !changed(&[], &[9]).concerns(&any_role));
        let any_database = LoginMarks {
            any_database: true,
            ..marks
        };
        assert!(changed(&[], &[9]).concerns(&any_database));
        assert!(!changed(&[9], &[]).concerns(&any_database));
    }

    #[test]
    fn memberships_concern_what_depends_on_them_and_nothing_else() {
        let changes = [
            change(LOGIN_CHANGE_MEMBERSHIPS, 0, 0),
            change(LOGIN_CHANGE_ROLE, 1, 80),
        ];
        let changed = LoginChanged::between(&changes, 0, 1);
        assert!(!changed.has_memberships());
        let changes = [
            change(LOGIN_CHANGE_MEMBERSHIPS, 2, 0),
            change(LOGIN_CHANGE_ROLE, 1, 80),
        ];
        let changed = LoginChanged::between(&changes, 0, 2);
        let marks = |role_hash, memberships| LoginMarks {
            role_hash,
            memberships,
            ..LoginMarks::default()
        };
        assert!(changed.has_memberships() && changed.has_roles());
        assert!(changed.concerns(&marks(1, true)) && changed.concerns(&marks(80, false)));
        assert!(!changed.concerns(&marks(1, false)));
    }
}
