//! The layout of the memory that dispatcher and extension share. build.rs generates it from the
//! headers in `shared/`, which say what each field means and which process may write it.

use shared::*;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

pub use shared::{
    ArenaHeader, BackendSlot, ControlHeader, Identity, Item, PoolSlot, SessionRecord, SessionSlot,
    StatementCounter, TallySlot, TenantSlot, Tls, TotalsSlot,
};

/// The headers' constants and structures, without their prefix `BATON_` or `Baton`.
#[allow(clippy::all, dead_code, missing_docs, unused_imports)]
#[rustfmt::skip]
pub mod shared {
    include!(concat!(env!("OUT_DIR"), "/shared.rs"));
}

include!("../../../../shared/program_note.rs");

impl ControlHeader {
    pub fn read_settings_marks(&self) -> Vec<u32> {
        let marks = self.settings_marks.iter();
        marks.map(|mark| mark.load(SeqCst)).collect()
    }

    /// The marks that concern a role in a database.
    pub fn settings_marks_of(&self, database_oid: u32, role_oid: u32) -> SettingsMarks {
        [
            (0, 0),
            (database_oid, 0),
            (0, role_oid),
            (database_oid, role_oid),
        ]
        .map(|(database, role)| self.settings_marks[settings_mark(database, role)].load(SeqCst))
    }

    /// The changes that concern logins while login_generation went from `from` to `to`.
    pub fn login_changed(&self, from: u64, to: u64) -> LoginChanged {
        LoginChanged::between(&self.login_changes, from, to)
    }
}

/// The values of the marks, in the order that the header gives.
pub type SettingsMarks = [u32; SETTINGS_MARKS_OF as usize];

/// The index of the mark that is raised for a role's settings in a database; the extension
/// computes the same.
pub fn settings_mark(database_oid: u32, role_oid: u32) -> usize {
    if (database_oid, role_oid) == (0, 0) {
        return 0;
    }
    let mixed = database_oid.wrapping_mul(SETTINGS_MARK_DATABASE)
        ^ role_oid.wrapping_mul(SETTINGS_MARK_ROLE);
    1 + (mixed >> 16) as usize % (SETTINGS_MARKS as usize - 1)
}

// ---- Changes that concern logins ------------------------------------------
//
// The changes that concern logins, and which earlier results they make stale.
//
// The process that raises login_generation in CONTROL records there what has changed
// (catalog_watch.c): the row of one role, the row of one database, memberships, or anything. A
// record may be missing, because it is not written yet or has been overwritten by later ones.
// The change is then taken to concern everything.

/// What a result depends on, and so which changes make it stale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LoginMarks {
    pub role_hash: u32,
    pub database_hash: u32,
    pub any_role: bool,
    pub any_database: bool,
    /// The result depends on which role is a member of which, or on the names of groups.
    pub memberships: bool,
}

/// The changes between two login_generations.
#[derive(Debug, PartialEq, Eq)]
pub enum LoginChanged {
    Anything,
    /// Hashes of names, sorted.
    Only {
        roles: Vec<u32>,
        databases: Vec<u32>,
        memberships: bool,
        /// The files by which clients are let in have been read again.
        rules: bool,
    },
}

impl LoginChanged {
    pub fn between(changes: &[AtomicU64], from: u64, to: u64) -> LoginChanged {
        let (mut roles, mut databases) = (Vec::new(), Vec::new());
        let (mut memberships, mut rules) = (false, false);
        let count = to.wrapping_sub(from);
        if count > changes.len() as u64 {
            return LoginChanged::Anything;
        }
        for number in (1..=count).map(|step| from.wrapping_add(step)) {
            let place = (number % changes.len() as u64) as usize;
            let change = changes[place].load(SeqCst);
            if (change >> 32) & 0x1FFF_FFFF != number & 0x1FFF_FFFF {
                return LoginChanged::Anything;
            }
            match (change >> 61) as u32 {
                LOGIN_CHANGE_ROLE => roles.push(change as u32),
                LOGIN_CHANGE_DATABASE => databases.push(change as u32),
                LOGIN_CHANGE_MEMBERSHIPS => memberships = true,
                LOGIN_CHANGE_RULES => rules = true,
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
            rules,
        }
    }

    /// Does it concern who may log in, and how?
    pub fn concerns_login(&self, marks: &LoginMarks) -> bool {
        matches!(self, LoginChanged::Only { rules: true, .. }) || self.concerns(marks)
    }

    /// Does it concern what a session begins with?
    pub fn concerns(&self, marks: &LoginMarks) -> bool {
        let LoginChanged::Only {
            roles,
            databases,
            memberships,
            ..
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
        AtomicU64::new(u64::from(kind) << 61 | (number & 0x1FFF_FFFF) << 32 | u64::from(hash))
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
            rules: false,
        };
        let between = |from, to| LoginChanged::between(&ring, from, to);
        assert_eq!(between(6, 8), only(&[70, 80], &[]));
        assert_eq!(between(4, 5), only(&[], &[50]));
        assert_eq!(between(3, 3), only(&[], &[]));
        // One of the changes is of kind ALL; is overwritten; is not written yet.
        assert_eq!(between(5, 7), LoginChanged::Anything);
        assert_eq!(between(3, 5), LoginChanged::Anything);
        assert_eq!(between(8, 9), LoginChanged::Anything);
        // Too many changes; the generation goes backwards.
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
            rules: false,
        };
        assert!(changed(&[0, 1, 3], &[]).concerns(&marks));
        assert!(changed(&[], &[2]).concerns(&marks));
        assert!(!changed(&[0, 2], &[1, 3]).concerns(&marks));
        assert!(LoginChanged::Anything.concerns(&marks));
        let ring = [change(LOGIN_CHANGE_RULES, 0, 0)];
        let rules = LoginChanged::between(&ring, u64::MAX, 0);
        assert!(rules.concerns_login(&marks) && !rules.concerns(&marks));
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
