//! Names of clients' certificates, by number.
//!
//! For whom a backend is opened is a small value that the scheduler copies about
//! (`Provenance`); the names, of any length, lie here. 0 is no TLS at all, 1 is
//! TLS without a certificate.
//!
//! When there are twice as many as were of use last, those are forgotten that no session
//! has: all sessions are looked at, and then all names, some of them each second.

use super::facts::{Facts, Names};
use std::collections::{BTreeMap, HashMap};

/// No TLS.
pub const PLAIN: u32 = 0;
/// TLS, and no certificate.
pub const NAMELESS: u32 = 1;

/// With fewer nobody looks which are of use.
const KEPT: usize = 1000;
/// Sessions, or names, that are looked at once a second: some 100 microseconds.
const LOOKED_AT_ONCE: u32 = 4096;

struct Kept {
    names: Names,
    /// The last look in which, or since which, a session had them.
    used_in: u64,
}

/// How far a look has come.
#[derive(Clone, Copy)]
enum Look {
    Over,
    /// The next slot of a session.
    Sessions(u32),
    /// The next number.
    Names(u32),
}

/// All that sessions have, and some that are past.
pub struct Certificates {
    numbers: HashMap<Names, u32>,
    names: BTreeMap<u32, Kept>,
    last: u32,
    look: Look,
    /// That one's number.
    looks: u64,
    /// With so many another look begins.
    most: usize,
    at_once: u32,
}

impl Default for Certificates {
    fn default() -> Certificates {
        Certificates {
            numbers: HashMap::new(),
            names: BTreeMap::new(),
            last: NAMELESS,
            look: Look::Over,
            looks: 0,
            most: KEPT,
            at_once: LOOKED_AT_ONCE,
        }
    }
}

impl Certificates {
    pub fn number(&mut self, tls: Option<&Facts>) -> u32 {
        let Some(facts) = tls else {
            return PLAIN;
        };
        let Some(certificate) = &facts.certificate else {
            return NAMELESS;
        };
        if let Some(number) = self.numbers.get(&certificate.names).copied() {
            self.is_used(number);
            return number;
        }
        self.last += 1;
        let (names, used_in) = (certificate.names.clone(), self.looks);
        self.numbers.insert(names.clone(), self.last);
        self.names.insert(self.last, Kept { names, used_in });
        self.last
    }

    /// None without one, or if it has been forgotten.
    pub fn names(&self, number: u32) -> Option<&Names> {
        self.names.get(&number).map(|kept| &kept.names)
    }

    fn is_used(&mut self, number: u32) {
        if let Some(kept) = self.names.get_mut(&number) {
            kept.used_in = self.looks;
        }
    }

    /// Once a second: forgets those that none of the sessions in so many slots has, if
    /// there are many. `of_session`: the number of the one that is in a slot, if any.
    pub fn sweep(&mut self, slots: u32, of_session: impl Fn(u32) -> Option<u32>) {
        self.look = match self.look {
            Look::Over if self.names.len() < self.most => Look::Over,
            Look::Over => {
                self.looks += 1;
                Look::Sessions(0)
            }
            Look::Sessions(from) => {
                let to = slots.min(from.saturating_add(self.at_once));
                for number in (from..to).filter_map(of_session) {
                    self.is_used(number);
                }
                match to < slots {
                    true => Look::Sessions(to),
                    false => Look::Names(0),
                }
            }
            Look::Names(from) => self.forget_some(from),
        };
    }

    /// Who has come since the look began has his counted as he came.
    fn forget_some(&mut self, from: u32) -> Look {
        let some = self.names.range(from..).take(self.at_once as usize);
        let some: Vec<(u32, u64)> = some.map(|(at, kept)| (*at, kept.used_in)).collect();
        for (number, _) in some.iter().filter(|(_, used_in)| *used_in < self.looks) {
            let kept = self.names.remove(number);
            kept.and_then(|kept| self.numbers.remove(&kept.names));
        }
        match some.last() {
            Some((last, _)) => Look::Names(last + 1),
            None => {
                self.most = KEPT.max(2 * self.names.len());
                Look::Over
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::Certificate;
    use super::*;

    fn facts(name: &str) -> Facts {
        Facts {
            certificate: Some(Certificate {
                names: Names {
                    common: name.into(),
                    distinguished: Vec::new(),
                },
                ..Certificate::default()
            }),
            ..Facts::default()
        }
    }

    #[test]
    fn a_name_has_one_number_until_it_is_forgotten() {
        let mut all = Certificates::default();
        assert_eq!(all.number(None), PLAIN);
        assert_eq!(all.number(Some(&Facts::default())), NAMELESS);
        let (a, b) = (all.number(Some(&facts("a"))), all.number(Some(&facts("b"))));
        assert!(a > NAMELESS && b > NAMELESS && a != b);
        assert_eq!(all.number(Some(&facts("a"))), a);
        (all.most, all.at_once) = (0, 2);
        for _ in 0..8 {
            all.sweep(5, |slot| (slot == 4).then_some(b));
        }
        assert_eq!(all.names(a), None);
        assert_eq!(all.names(b).unwrap().common, b"b");
        assert!(all.number(Some(&facts("a"))) > b);
    }

    #[test]
    fn names_that_a_session_has_are_not_forgotten_whenever_it_came() {
        let mut all = Certificates {
            at_once: 3,
            ..Certificates::default()
        };
        let mut sessions = [PLAIN; 10];
        for nth in 0..200_usize {
            all.most = 20;
            // One comes, of few names again and again, in the place of the oldest.
            let name = if nth % 3 == 0 { nth % 12 } else { nth };
            sessions[nth % 10] = all.number(Some(&facts(&name.to_string())));
            let before = all.names.len();
            all.sweep(10, |slot| Some(sessions[slot as usize]));
            assert!(before - all.names.len() <= 3, "forgotten at once");
            for number in sessions.iter().filter(|number| **number > NAMELESS) {
                assert!(all.names(*number).is_some(), "{number} is forgotten");
            }
        }
        assert!(all.names.len() < 100, "{} are kept", all.names.len());
    }
}
