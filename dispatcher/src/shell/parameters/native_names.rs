//! Whose sessions are native since the configuration names them.

/// `pg_baton.native_dbuser_names`: entries `database/user`, separated by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativeNames(Vec<(Pattern, Pattern)>);

/// A name, or `*` or `_`: any. In quotes these are names, too.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Any,
    Name(Vec<u8>),
}

impl Pattern {
    fn of(text: &str, quoted: bool) -> Pattern {
        match text {
            "*" | "_" if !quoted => Pattern::Any,
            _ => Pattern::Name(text.as_bytes().to_vec()),
        }
    }

    fn fits(&self, name: &[u8]) -> bool {
        match self {
            Pattern::Any => true,
            Pattern::Name(own) => own == name,
        }
    }
}

/// A name in quotes, where `""` stands for one, or one that goes up to a comma,
/// a slash or a blank; and what comes after it.
fn next_name(text: &str) -> Option<(Pattern, &str)> {
    let text = text.trim_start();
    let (name, quoted, rest) = if let Some(mut rest) = text.strip_prefix('"') {
        let mut name = String::new();
        loop {
            let (part, after) = rest.split_once('"')?;
            name.push_str(part);
            match after.strip_prefix('"') {
                Some(more) => {
                    name.push('"');
                    rest = more;
                }
                None => break (name, true, after),
            }
        }
    } else {
        let end = text.find([',', '/', '"', ' ', '\t', '\n', '\r']);
        let (name, rest) = text.split_at(end.unwrap_or(text.len()));
        (name.to_owned(), false, rest)
    };
    (!name.is_empty()).then(|| (Pattern::of(&name, quoted), rest.trim_start()))
}

impl NativeNames {
    /// None if it is no such list.
    pub fn parse(text: &str) -> Option<NativeNames> {
        let mut entries = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let (database, after) = next_name(rest)?;
            let (user, after) = next_name(after.strip_prefix('/')?)?;
            entries.push((database, user));
            rest = match after.strip_prefix(',') {
                Some(more) if !more.trim().is_empty() => more,
                None if after.is_empty() => after,
                _ => return None,
            };
        }
        Some(NativeNames(entries))
    }

    pub fn have(&self, database: &[u8], user: &[u8]) -> bool {
        let mut entries = self.0.iter();
        entries.any(|(databases, users)| databases.fits(database) && users.fits(user))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_databases_and_users() {
        let names = NativeNames::parse(r#"d1/*, _/u1 ,d2/u2,"_"/"a ""b"",/""#).unwrap();
        let have = |database: &str, user: &str| names.have(database.as_bytes(), user.as_bytes());
        assert!(have("d1", "anybody") && have("anything", "u1") && have("d2", "u2"));
        assert!(!have("d2", "u3") && !have("d3", "u2") && !have("D1", "u3"));
        assert!(have("_", "a \"b\",/") && !have("_", "a"));
        assert!(!NativeNames::parse("").unwrap().have(b"d", b"u"));
        for bad in [
            "d1", "d1/", "/u", "a/b/c", "a/b,", ",a/b", "a b/c", "\"a/b", "a\"b/c",
        ] {
            assert_eq!(NativeNames::parse(bad), None, "{bad}");
        }
    }
}
