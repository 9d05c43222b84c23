//! What the server's processes can know of a session: its identity in CONTROL, and
//! its process ID, which is what BackendKeyData says, and SQL.
//!
//! Numbers are given one after the other, above all that the kernel gives to
//! processes, and come again when all others have been: some two thousand
//! million sessions later, if not for those that live still. A directory in
//! CONTROL leads from a number to its session's slot, so that a look-up costs
//! the same however many there are, here and in every process of the server.

use crate::core::TenantKey;
use crate::shell::link::layout::shared::*;
use crate::shell::link::layout::{SessionRecord, Tls};
use crate::shell::link::memory::control::Control;
use crate::shell::tls::Facts;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// What pg_stat_ssl and pg_stat_gssapi show of a session.
pub struct Security<'a> {
    pub tls: Option<&'a Facts>,
    pub principal: Option<&'a [u8]>,
}

/// How a client has proved itself, and as whom: what SYSTEM_USER says, and
/// "connection authenticated" in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Authenticated {
    /// As pg_hba.conf names it (hba_authname in hba.c).
    pub method: Vec<u8>,
    pub identity: Vec<u8>,
}

impl Security<'_> {
    /// What stock adds to "connection authorized" (PerformAuthentication in postinit.c).
    pub fn for_log(&self, server_major: u32) -> String {
        let tls = self.tls.map(|facts| facts.for_log());
        let gss = self.principal.map(|principal| {
            let delegated = match server_major {
                ..=15 => "",
                // Who may delegate is native.
                _ => " delegated_credentials=no,",
            };
            format!(
                " GSS (authenticated=yes, encrypted=no,{delegated} principal={})",
                String::from_utf8_lossy(principal)
            )
        });
        tls.unwrap_or_default() + &gss.unwrap_or_default()
    }
}

/// The numbers after `first`, each once.
fn numbers_from(first: u32) -> impl Iterator<Item = u32> {
    let most = i32::MAX as u32;
    let first = first.clamp(FIRST_PID, most);
    (first..=most).chain(FIRST_PID..first)
}

impl Control {
    /// Does a live session stand at this place of the directory?
    fn has_live_pid(&self, place: usize) -> bool {
        let Some(holder) = self.pids[place].load(Relaxed).checked_sub(1) else {
            return false;
        };
        let Some(holder) = self.identities.get(holder as usize) else {
            return false;
        };
        holder.id.load(Relaxed) != 0 && holder.pid.load(Relaxed) as usize % self.pids.len() == place
    }
}

impl Control {
    /// A number for the session in this slot, that none has who lives.
    pub fn new_pid(&self, index: u32) -> i32 {
        let place = |number: u32| number as usize % self.pids.len();
        let number = numbers_from(self.header.next_pid.load(Relaxed))
            .find(|number| !self.has_live_pid(place(*number)))
            .unwrap_or(FIRST_PID); // the directory has more places than there are sessions
        self.header.next_pid.store(number + 1, Relaxed);
        self.pids[place(number)].store(index + 1, SeqCst);
        number as i32
    }

    /// In whose slot a number may be found; its key says whether it is.
    pub fn slot_of_pid(&self, pid: i32) -> Option<u32> {
        let place = u32::try_from(pid).ok()? as usize % self.pids.len();
        self.pids[place].load(Relaxed).checked_sub(1)
    }

    /// From here on the server's processes know the session.
    pub fn show_identity(
        &self,
        index: u32,
        record: &SessionRecord,
        key: &TenantKey,
        application_name: &[u8],
        security: &Security<'_>,
    ) {
        let identity = &self.identities[index as usize];
        identity.changes.fetch_or(1, SeqCst);
        identity.terminate.store(0, Relaxed);
        identity.cancel.store(0, Relaxed);
        identity.pid.store(record.cancel_pid, Relaxed);
        identity.role_oid.store(key.role_oid, Relaxed);
        identity.database_oid.store(key.database_oid, Relaxed);
        identity.login_time_us.store(record.login_time_us, Relaxed);
        identity.peer_family.store(record.peer_family, Relaxed);
        identity.peer_port.store(record.peer_port, Relaxed);
        identity.peer_scope.store(record.peer_scope, Relaxed);
        for (to, from) in identity.peer_address.iter().zip(record.peer_address) {
            to.store(from, Relaxed);
        }
        identity.query_start_us.store(0, Relaxed);
        identity.idle_since_us.store(record.login_time_us, Relaxed);
        identity.query_id.store(0, Relaxed);
        identity.is_tracked.store(1, Relaxed);
        put_text(&identity.application_name, application_name);
        show_tls(&identity.tls, security.tls);
        let principal = security.principal;
        put_text(&identity.gss_principal, principal.unwrap_or_default());
        (identity.gss_authenticated).store(u32::from(principal.is_some()), Relaxed);
        identity.changes.fetch_add(1, SeqCst);
        let used = &self.header.identities_used;
        used.fetch_max(index + 1, SeqCst);
        identity.id.store(record.id, SeqCst);
    }
}

/// As much as there is room for, and NUL.
fn put_text(to: &[AtomicU8], text: &[u8]) {
    let text = text.iter().copied().take(to.len() - 1);
    for (to, from) in to.iter().zip(text.chain(std::iter::repeat(0))) {
        to.store(from, Relaxed);
    }
}

/// As pgstat_bestart (backend_status.c) does of a stock connection.
fn show_tls(to: &Tls, tls: Option<&Facts>) {
    let Some(facts) = tls else {
        return to.in_use.store(0, Relaxed);
    };
    to.bits.store(facts.bits.unsigned_abs(), Relaxed);
    put_text(&to.version, facts.protocol.as_bytes());
    put_text(&to.cipher, facts.cipher.as_bytes());
    let certificate = facts.certificate.as_ref();
    put_text(&to.client_dn, certificate.map_or(&[], |it| &it.subject));
    put_text(&to.issuer_dn, certificate.map_or(&[], |it| &it.issuer));
    let serial = certificate.map_or(&[][..], |it| it.serial.as_bytes());
    put_text(&to.client_serial, serial);
    to.in_use.store(1, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_positive_and_no_process_s() {
        for first in [0, 1, FIRST_PID, i32::MAX as u32, u32::MAX] {
            let some: Vec<u32> = numbers_from(first).take(3).collect();
            assert_eq!(some.len(), 3);
            for number in &some {
                assert!(*number > 4_194_304 && i32::try_from(*number).is_ok());
            }
        }
        let last = i32::MAX as u32;
        let some: Vec<u32> = numbers_from(last).take(3).collect();
        assert_eq!(some, [last, FIRST_PID, FIRST_PID + 1]);
    }
}
