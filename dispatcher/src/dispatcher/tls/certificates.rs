//! Names of clients' certificates, by number.
//!
//! For whom a backend is opened is a small value that the scheduler copies about
//! (`Provenance`); the names, of any length, lie here. 0 is no TLS at all, 1 is
//! TLS without a certificate.

use super::facts::{Facts, Names};
use std::collections::HashMap;

/// No TLS.
pub const PLAIN: u32 = 0;
/// TLS, and no certificate.
pub const NAMELESS: u32 = 1;

/// All that sessions have, and some that are past.
#[derive(Default)]
pub struct Certificates {
    numbers: HashMap<Names, u32>,
    names: HashMap<u32, Names>,
    last: u32,
}

impl Certificates {
    pub fn number(&mut self, tls: Option<&Facts>) -> u32 {
        let Some(facts) = tls else {
            return PLAIN;
        };
        let Some(certificate) = &facts.certificate else {
            return NAMELESS;
        };
        if let Some(number) = self.numbers.get(&certificate.names) {
            return *number;
        }
        self.last = self.last.max(NAMELESS) + 1;
        self.numbers.insert(certificate.names.clone(), self.last);
        self.names.insert(self.last, certificate.names.clone());
        self.last
    }

    /// None without one, or if it has been forgotten.
    pub fn names(&self, number: u32) -> Option<&Names> {
        self.names.get(&number)
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn keep(&mut self, is_used: impl Fn(u32) -> bool) {
        self.names.retain(|number, _| is_used(*number));
        self.numbers.retain(|_, number| is_used(*number));
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::Certificate;
    use super::*;

    #[test]
    fn a_name_has_one_number_until_it_is_forgotten() {
        let facts = |name: &str| Facts {
            certificate: Some(Certificate {
                names: Names {
                    common: name.into(),
                    distinguished: Vec::new(),
                },
                ..Certificate::default()
            }),
            ..Facts::default()
        };
        let mut all = Certificates::default();
        assert_eq!(all.number(None), PLAIN);
        assert_eq!(all.number(Some(&Facts::default())), NAMELESS);
        let (a, b) = (all.number(Some(&facts("a"))), all.number(Some(&facts("b"))));
        assert!(a > NAMELESS && b > NAMELESS && a != b);
        assert_eq!(all.number(Some(&facts("a"))), a);
        all.keep(|number| number == b);
        assert_eq!(all.names(a), None);
        assert_eq!(all.names(b).unwrap().common, b"b");
        assert!(all.number(Some(&facts("a"))) > b);
    }
}
