//! Could a pool get another backend? What is known of that, and for how long.
//!
//! Free of I/O. A backend logs in on behalf of a client (origin.rs), and any
//! that does serves the whole pool. But who could get in today may leave
//! tomorrow: so the answer is yes only if there is nobody in the pool whose own
//! way in is closed.

use super::origin::Provenance;

/// Could a backend of this pool still log in? Known from the last that did, or
/// from the launcher, for as long as nothing changes who may.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replaceable {
    answer: bool,
    login_generation: u64,
    until_us: u64,
    /// The launcher has been asked.
    asked_us: Option<u64>,
    /// Where clients come from who could log in, and up to when that is known;
    /// of `able_generation`.
    able: Vec<(Provenance, u64)>,
    able_generation: u64,
}

impl Replaceable {
    /// Answers of which nobody is told when they become wrong are good so long.
    pub const UNSURE_US: u64 = 500_000;
    /// A question that has got lost is put again after this.
    const PATIENCE_US: u64 = 5_000_000;
    /// So many are asked about; they speak for the others of a pool.
    const MOST_ASKED: usize = 32;

    /// `login_generation` as it was before that was found out.
    pub fn found(&mut self, answer: bool, login_generation: u64, until_us: u64) {
        self.answer = answer;
        self.login_generation = login_generation;
        self.until_us = until_us;
        self.asked_us = None;
    }

    /// Clients from there could log in.
    pub fn found_able(&mut self, from: Provenance, login_generation: u64, until_us: u64) {
        self.asked_us = None;
        if self.able_generation != login_generation {
            self.able_generation = login_generation;
            self.able.clear();
        }
        match self.able.iter_mut().find(|(known, _)| *known == from) {
            Some((_, until)) => *until = until_us.max(*until),
            None => self.able.push((from, until_us)),
        }
    }

    /// A backend has logged in on behalf of a client from there; `None`: by the
    /// dispatcher's own connection. Changes of the catalogs raise
    /// login_generation, but time passes (VALID UNTIL), others connect
    /// (CONNECTION LIMIT), and nobody tells a standby.
    pub fn attached(&mut self, from: Option<Provenance>, login_generation: u64, now_us: u64) {
        let until_us = now_us + Self::UNSURE_US;
        match from {
            Some(from) => self.found_able(from, login_generation, until_us),
            None if self.get(login_generation, now_us) != Some(true) => {
                self.found(true, login_generation, until_us);
            }
            None => {}
        }
    }

    pub fn get(&self, login_generation: u64, now_us: u64) -> Option<bool> {
        (self.login_generation == login_generation && now_us < self.until_us).then_some(self.answer)
    }

    /// The first of these who is to be asked about; None: all could log in.
    pub fn next_unknown(
        &mut self,
        login_generation: u64,
        now_us: u64,
        mut clients: impl Iterator<Item = Provenance>,
    ) -> Option<Provenance> {
        if self.able_generation != login_generation {
            self.able.clear();
        }
        self.able.retain(|(_, until)| now_us < *until);
        let able = &self.able;
        let unknown = clients.find(|from| !able.iter().any(|(known, _)| known == from));
        if unknown.is_some() && able.len() < Self::MOST_ASKED {
            return unknown;
        }
        let until_us = able.iter().map(|(_, until)| *until).min();
        self.found(true, login_generation, until_us.unwrap_or(now_us));
        None
    }

    /// Has the launcher been asked, and not answered yet?
    pub fn is_asking(&self, now_us: u64) -> bool {
        self.asked_us
            .is_some_and(|asked| now_us <= asked + Self::PATIENCE_US)
    }

    pub fn is_asked(&mut self, now_us: u64) {
        self.asked_us = Some(now_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last_byte: u8) -> Provenance {
        Provenance::Address {
            family: 2,
            tls: 0,
            bytes: [last_byte; 16],
        }
    }

    #[test]
    fn whether_a_backend_can_be_replaced_is_known_as_long_as_nobody_changes_it() {
        let mut known = Replaceable::default();
        assert_eq!(known.get(7, 0), None);
        known.is_asked(10);
        assert!(known.is_asking(20));
        assert!(!known.is_asking(20 + Replaceable::PATIENCE_US));
        known.found(true, 7, u64::MAX);
        assert!(!known.is_asking(20));
        assert_eq!(known.get(7, u64::MAX - 1), Some(true));
        assert_eq!(known.get(8, 40), None);
        known.found(false, 8, 50);
        assert_eq!(known.get(8, 49), Some(false));
        assert_eq!(known.get(8, 50), None);
    }

    #[test]
    fn all_who_are_there_must_be_able_to_log_in() {
        let mut known = Replaceable::default();
        let clients = || [from(1), from(2), from(1)].into_iter();
        assert_eq!(known.next_unknown(7, 0, clients()), Some(from(1)));
        known.found_able(from(1), 7, u64::MAX);
        assert_eq!(known.next_unknown(7, 0, clients()), Some(from(2)));
        known.attached(Some(from(2)), 7, 10);
        assert_eq!(known.get(7, 10), None);
        assert_eq!(known.next_unknown(7, 10, clients()), None);
        let end = 10 + Replaceable::UNSURE_US;
        assert_eq!(known.get(7, end - 1), Some(true));
        assert_eq!(known.get(7, end), None);
        assert_eq!(known.next_unknown(7, end, clients()), Some(from(2)));
        assert_eq!(known.next_unknown(8, end, clients()), Some(from(1)));
    }

    #[test]
    fn a_few_speak_for_the_others_of_a_large_pool() {
        let mut known = Replaceable::default();
        let clients = || (0..100).map(from);
        let mut asked = 0;
        while let Some(from) = known.next_unknown(7, 0, clients()) {
            known.found_able(from, 7, u64::MAX);
            asked += 1;
        }
        assert_eq!(asked, Replaceable::MOST_ASKED);
        assert_eq!(known.get(7, 0), Some(true));
    }
}
