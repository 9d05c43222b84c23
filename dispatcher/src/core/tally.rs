//! How many sessions a role has, and how many are in a database: what CONNECTION LIMIT and
//! max_sessions_per_user count, whatever the number of tenants.

use super::ids::GroupKey;
use super::pool_limits::group_of;
use super::tenants::TenantKey;
use std::collections::HashMap;
use std::hash::Hash;

/// Who has none is not in it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    of_role: HashMap<u32, usize>,
    in_database: HashMap<u32, usize>,
    /// Of a role in a database.
    of_group: HashMap<GroupKey, usize>,
}

impl Tally {
    /// So many more of this tenant.
    pub fn add(&mut self, key: &TenantKey, many: usize) {
        if many > 0 {
            *self.of_role.entry(key.role_oid).or_default() += many;
            *self.in_database.entry(key.database_oid).or_default() += many;
            *self.of_group.entry(group_of(key)).or_default() += many;
        }
    }

    /// So many fewer.
    pub fn take(&mut self, key: &TenantKey, many: usize) {
        take(&mut self.of_role, key.role_oid, many);
        take(&mut self.in_database, key.database_oid, many);
        take(&mut self.of_group, group_of(key), many);
    }

    pub fn of_role(&self, role: u32) -> usize {
        self.of_role.get(&role).copied().unwrap_or(0)
    }

    pub fn in_database(&self, database: u32) -> usize {
        self.in_database.get(&database).copied().unwrap_or(0)
    }

    pub fn of_group(&self, group: GroupKey) -> usize {
        self.of_group.get(&group).copied().unwrap_or(0)
    }
}

fn take<K: Hash + Eq>(counts: &mut HashMap<K, usize>, of: K, many: usize) {
    if let Some(count) = counts.get_mut(&of) {
        debug_assert!(*count >= many, "more go than there are");
        *count = count.saturating_sub(many);
        if *count == 0 {
            counts.remove(&of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(role_oid: u32, database_oid: u32) -> TenantKey {
        TenantKey {
            user: Vec::new(),
            database: Vec::new(),
            role_oid,
            database_oid,
            superuser: false,
            options: Vec::new(),
            is_apart: false,
        }
    }

    #[test]
    fn a_role_is_counted_in_all_databases_and_a_database_with_all_roles() {
        let mut tally = Tally::default();
        for (role, database) in [(1, 7), (1, 8), (2, 7)] {
            tally.add(&key(role, database), 2);
        }
        assert_eq!((tally.of_role(1), tally.of_role(2)), (4, 2));
        assert_eq!((tally.in_database(7), tally.in_database(8)), (4, 2));
        assert_eq!((tally.of_group((1, 7)), tally.of_group((2, 8))), (2, 0));
        assert_eq!((tally.of_role(7), tally.in_database(1)), (0, 0));
    }

    #[test]
    fn who_has_none_any_more_is_forgotten() {
        let mut tally = Tally::default();
        tally.add(&key(1, 7), 3);
        tally.add(&key(2, 7), 0);
        tally.take(&key(1, 7), 2);
        assert_eq!((tally.of_role(1), tally.in_database(7)), (1, 1));
        tally.take(&key(1, 7), 1);
        assert_eq!(tally, Tally::default());
    }
}
