//! What is known of the roles that have logged in here: how to open backends
//! as them, and their limits.
//!
//! Only roles that have proved themselves are kept, so their number is bounded
//! by the roles of the server. What a login has taught is good for as long as
//! the stored password is the same.

use crate::protocol::auth::client::Credentials;
use crate::protocol::auth::server::Learnt;
use std::collections::HashMap;

#[derive(Default)]
struct Role {
    verifier: Vec<u8>,
    credentials: Credentials,
}

/// All roles, by name.
#[derive(Default)]
pub struct Roles {
    roles: HashMap<Vec<u8>, Role>,
}

impl Roles {
    /// A role has proved itself.
    pub fn logged_in(&mut self, name: &[u8], verifier: &[u8], learnt: &Learnt) {
        let role = self.roles.entry(name.to_vec()).or_default();
        if role.verifier != verifier {
            role.verifier = verifier.to_vec();
            role.credentials = Credentials::default().with_verifier(verifier);
        }
        let known = std::mem::take(&mut role.credentials);
        role.credentials = known.with_learnt(learnt);
    }

    pub fn credentials(&self, name: &[u8]) -> Credentials {
        self.roles
            .get(name)
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
        roles.logged_in(b"u", b"one", &key);
        roles.logged_in(b"u", b"one", &Learnt::Nothing);
        assert!(roles.credentials(b"u").client_key.is_some());
        roles.logged_in(b"u", b"two", &Learnt::Nothing);
        assert!(roles.credentials(b"u").client_key.is_none());
        assert!(roles.credentials(b"v").client_key.is_none());
    }
}
