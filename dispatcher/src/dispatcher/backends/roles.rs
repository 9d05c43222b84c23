//! What is known of the roles that have logged in here: how to open backends
//! as them, and their limits.
//!
//! Only roles that have proved themselves are kept, by OID (another role may get
//! the name), and only as long as they have a session or a backend, which bounds their
//! number.
//! What a login has taught is good for as long as the stored password is the
//! same.

use crate::protocol::auth::client::Credentials;
use crate::protocol::auth::server::Learnt;
use std::collections::HashMap;

#[derive(Default)]
struct Role {
    verifier: Vec<u8>,
    credentials: Credentials,
    /// The server has authenticated one of its clients by itself.
    are_vouched_for: bool,
}

/// All roles, by OID.
#[derive(Default)]
pub struct Roles {
    roles: HashMap<u32, Role>,
    /// Those that have come since it was last looked whether they have a session.
    new: Vec<u32>,
}

impl Roles {
    /// A role has proved itself.
    pub fn logged_in(&mut self, role: u32, verifier: &[u8], learnt: &Learnt) {
        if !self.roles.contains_key(&role) {
            self.new.push(role);
        }
        let role = self.roles.entry(role).or_default();
        if *learnt == Learnt::VouchedFor {
            role.are_vouched_for = true;
            return;
        }
        if role.verifier != verifier {
            role.verifier = verifier.to_vec();
            role.credentials = Credentials::default().with_verifier(verifier);
        }
        let known = std::mem::take(&mut role.credentials);
        role.credentials = known.with_learnt(learnt);
    }

    /// Is what is known of the role good for this verifier?
    pub fn knows(&self, role: u32, verifier: &[u8]) -> bool {
        let known = self.roles.get(&role);
        known.is_some_and(|role| role.verifier == verifier && role.credentials.can_prove())
    }

    /// Are a role's backends the dispatcher's own to open? One of its clients has
    /// been let in by the server, which nobody else can do again.
    pub fn are_vouched_for(&self, role: u32) -> bool {
        let known = self.roles.get(&role);
        known.is_some_and(|role| role.are_vouched_for)
    }

    /// Nobody is this role any more; a login teaches anew.
    pub fn forget(&mut self, role: u32) {
        self.roles.remove(&role);
    }

    /// Those that have logged in and have got no session are forgotten.
    pub fn keep_new(&mut self, is_somebody: impl Fn(u32) -> bool) {
        for role in std::mem::take(&mut self.new) {
            if !is_somebody(role) {
                self.forget(role);
            }
        }
    }

    pub fn credentials(&self, role: u32) -> Credentials {
        self.roles
            .get(&role)
            .map(|role| role.credentials.clone())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::auth::Secret;

    #[test]
    fn what_was_learnt_goes_with_the_password_it_belongs_to() {
        let mut roles = Roles::default();
        let key = Learnt::ClientKey(Secret::new(vec![1; 32]));
        roles.logged_in(1, b"one", &key);
        roles.logged_in(1, b"one", &Learnt::Nothing);
        assert!(roles.credentials(1).client_key.is_some());
        assert!(roles.knows(1, b"one") && !roles.knows(1, b"two"));
        roles.logged_in(1, b"two", &Learnt::Nothing);
        assert!(roles.credentials(1).client_key.is_none());
        assert!(!roles.knows(1, b"two") && !roles.knows(2, b"two"));
        assert!(roles.credentials(2).client_key.is_none());
        roles.logged_in(2, b"", &Learnt::VouchedFor);
        assert!(roles.are_vouched_for(2) && !roles.are_vouched_for(1));
        roles.keep_new(|role| role == 1);
        assert!(roles.roles.contains_key(&1) && !roles.roles.contains_key(&2));
        roles.logged_in(2, b"", &Learnt::VouchedFor);
        roles.forget(1);
        roles.keep_new(|_| false);
        assert!(roles.roles.is_empty() && roles.new.is_empty());
    }
}
