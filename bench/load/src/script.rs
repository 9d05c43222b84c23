//! What the sessions do, without I/O: the batches that a session sends after its login, and
//! those of one transaction after another.
//!
//! A batch ends with Query or Sync, so exactly one ReadyForQuery answers it; the next batch is
//! requested after that.

use super::random::Random;
use super::wire;
use super::{Prepare, Protocol};
use std::fmt::Write;

const ACCOUNTS_A_SCALE: u32 = 100_000;
/// The most Parse messages in a batch, which must fit into a socket's buffer.
const PARSES_A_BATCH: usize = 50;
const TIME_ZONES: [&str; 5] = [
    "Europe/Berlin",
    "America/New_York",
    "Asia/Tokyo",
    "Australia/Sydney",
    "UTC",
];

/// The kinds of statements in a stock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StockKind {
    /// Look-ups of one account.
    Reads,
    /// Joins, updates and inserts as well.
    Mixed,
    /// Calls of the PL/pgSQL functions of bench/functions.sql.
    Functions,
}

/// What all sessions of a run have in common.
#[derive(Clone)]
pub struct Script {
    /// How a statement is sent.
    pub protocol: Protocol,
    /// When a statement is prepared (protocol prepared).
    pub prepare: Prepare,
    /// Scale of pgbench's tables.
    pub scale: u32,
    /// The number of different statements.
    pub stock: u32,
    /// Statements of the stock that each session uses: its own choice, in its own order, under
    /// names by that order.
    pub own: u32,
    /// Statements in a transaction; if there are several, BEGIN and COMMIT enclose them.
    pub statements: u32,
    /// The kind of the stock's statements.
    pub stock_kind: StockKind,
    /// A transaction creates and fills a temporary table, which is dropped at its end.
    pub temporary: bool,
    /// Each session sets three settings to values of its own.
    pub settings: bool,
    /// The statement of a transaction, in place of all that.
    pub text: Option<String>,
}

/// One session's position in the script.
pub struct Client {
    number: u32,
    random: Random,
    /// Its statements' numbers in the stock.
    own: Vec<u32>,
    prepared: Vec<bool>,
    settings_sent: bool,
    /// Batches of the present transaction that were sent; 0 between two transactions.
    sent: u32,
    /// The accounts of the present transaction, ascending: two transactions that update the
    /// same accounts lock them in the same order.
    accounts: Vec<u32>,
}

impl Client {
    /// True while a transaction has batches that were not sent yet.
    pub fn in_transaction(&self) -> bool {
        self.sent > 0
    }
}

impl Script {
    /// A new session.
    pub fn client(&self, seed: u64, number: u32) -> Client {
        let mut random = Random::new(seed, u64::from(number));
        let own = random.draw(self.own, self.stock);
        Client {
            number,
            random,
            prepared: vec![false; own.len()],
            own,
            settings_sent: false,
            sent: 0,
            accounts: Vec::new(),
        }
    }

    /// Writes the next batch that precedes all transactions into `out`, which is emptied first;
    /// false if there is none any more.
    pub fn opening(&self, client: &mut Client, out: &mut Vec<u8>) -> bool {
        out.clear();
        if self.settings && !client.settings_sent {
            client.settings_sent = true;
            wire::query(out, &settings(client.number));
            return true;
        }
        if self.protocol != Protocol::Prepared || self.prepare != Prepare::Login {
            return false;
        }
        let missing = (0..client.own.len()).filter(|&place| !client.prepared[place]);
        let batch: Vec<usize> = missing.take(PARSES_A_BATCH).collect();
        for &place in &batch {
            self.parse(client, place, out);
        }
        if !batch.is_empty() {
            wire::sync(out);
        }
        !batch.is_empty()
    }

    /// Writes the next batch of the present transaction, or the first one of the next, into
    /// `out`, which is emptied first.
    pub fn next(&self, client: &mut Client, out: &mut Vec<u8>) {
        out.clear();
        if client.sent == 0 {
            let accounts = (0..self.statements)
                .map(|_| client.random.below(self.scale * ACCOUNTS_A_SCALE) + 1)
                .collect();
            client.accounts = accounts;
            client.accounts.sort_unstable();
        }
        let step = client.sent;
        client.sent += 1;
        if let Some(text) = &self.text {
            wire::query(out, text);
            client.sent = 0;
        } else if self.temporary {
            self.temporary_step(client, step, out);
        } else if self.statements == 1 {
            self.statement(client, 0, out);
            client.sent = 0;
        } else if step == 0 {
            wire::query(out, "BEGIN");
        } else if step <= self.statements {
            self.statement(client, step as usize - 1, out);
        } else {
            wire::query(out, "COMMIT");
            client.sent = 0;
        }
    }

    /// Always by Query, as applications rarely prepare these statements.
    fn temporary_step(&self, client: &mut Client, step: u32, out: &mut Vec<u8>) {
        let account = client.accounts[0];
        match step {
            0 => wire::query(out, "BEGIN"),
            1 => wire::query(
                out,
                "CREATE TEMPORARY TABLE load (id integer, amount integer) ON COMMIT DROP",
            ),
            2 => wire::query(
                out,
                &format!(
                    "INSERT INTO load SELECT aid, abalance FROM pgbench_accounts \
                     WHERE aid BETWEEN {account} AND {account} + 9"
                ),
            ),
            3 => wire::query(out, "SELECT sum(amount) FROM load"),
            _ => {
                wire::query(out, "COMMIT");
                client.sent = 0;
            }
        }
    }

    /// Writes one of the session's own statements, for the transaction's account at this place.
    fn statement(&self, client: &mut Client, account: usize, out: &mut Vec<u8>) {
        let place = client.random.below(client.own.len() as u32) as usize;
        let value = client.accounts[account].to_string();
        match self.protocol {
            Protocol::Simple => {
                wire::query(out, &self.text(client, place, &value));
                return;
            }
            Protocol::Extended => {
                wire::parse(out, "", &self.text(client, place, "$1"));
                wire::bind_and_execute(out, "", &[&value]);
            }
            Protocol::Prepared => {
                if !client.prepared[place] {
                    self.parse(client, place, out);
                }
                wire::bind_and_execute(out, &name(place), &[&value]);
            }
        }
        wire::sync(out);
    }

    fn parse(&self, client: &mut Client, place: usize, out: &mut Vec<u8>) {
        wire::parse(out, &name(place), &self.text(client, place, "$1"));
        client.prepared[place] = true;
    }

    /// The text of the session's statement at this place.
    fn text(&self, client: &Client, place: usize, account: &str) -> String {
        match self.stock_kind {
            StockKind::Functions => call(client.own[place], client.number, account),
            kind => read_or_write(client.own[place], kind == StockKind::Mixed, account),
        }
    }
}

/// The statement with this number of the stock. The first one is pgbench's select-only; unless
/// the stock is mixed, all the others cost the same.
fn read_or_write(number: u32, mixed: bool, account: &str) -> String {
    match (number, if mixed { number % 10 } else { 0 }) {
        (0, _) => format!("SELECT abalance FROM pgbench_accounts WHERE aid = {account};"),
        (_, 3 | 6) => format!(
            "SELECT a.abalance, b.bbalance, {number} AS number \
             FROM pgbench_accounts a JOIN pgbench_branches b USING (bid) WHERE a.aid = {account};"
        ),
        (_, 8) => format!(
            "UPDATE pgbench_accounts SET abalance = abalance + {number} WHERE aid = {account};"
        ),
        (_, 9) => format!(
            "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) \
             VALUES (1, 1, {account}, {number}, CURRENT_TIMESTAMP);"
        ),
        _ => format!(
            "SELECT abalance, {number} AS number FROM pgbench_accounts WHERE aid = {account};"
        ),
    }
}

/// The call with this number of the stock, for this session: the session's relation and type
/// are always the same, but other sessions have others.
fn call(number: u32, session: u32, account: &str) -> String {
    let kind = session % 3;
    match number % 6 {
        0 => format!("SELECT bench_loop({account}), {number} AS number;"),
        1 => {
            let (table, key, column) = [
                ("pgbench_accounts", "aid", "abalance"),
                ("pgbench_tellers", "tid", "tbalance"),
                ("pgbench_branches", "bid", "bbalance"),
            ][kind as usize];
            format!("SELECT bench_dynamic('{table}', '{key}', '{column}', {account}), {number} AS number;")
        }
        2 => format!("SELECT *, {number} AS number FROM bench_row({account});"),
        3 => format!("SELECT bench_write({account}, {number});"),
        4 => format!("SELECT *, {number} AS number FROM bench_rows({account});"),
        _ => format!("SELECT bench_own_type({kind}, {account}), {number} AS number;"),
    }
}

/// The name of a prepared statement, numbered as drivers do it: the same name means another
/// statement in another session.
fn name(place: usize) -> String {
    format!("S_{}", place + 1)
}

fn settings(number: u32) -> String {
    let mut text = String::new();
    let zone = TIME_ZONES[number as usize % TIME_ZONES.len()];
    // Writing into a String cannot fail.
    let _ = write!(
        text,
        "SET app.tenant_id = '{number}'; SET statement_timeout = {}; SET timezone = '{zone}'",
        60_000 + number
    );
    text
}

#[cfg(test)]
mod tests {
    use super::{Client, Script, StockKind};
    use crate::{Prepare, Protocol};
    use std::collections::HashSet;

    const PLAIN: Script = Script {
        protocol: Protocol::Prepared,
        prepare: Prepare::Use,
        scale: 10,
        stock: 1,
        own: 1,
        statements: 1,
        stock_kind: StockKind::Reads,
        temporary: false,
        settings: false,
        text: None,
    };

    /// The kinds of a batch's messages, and its text.
    fn batch(bytes: &[u8]) -> (String, String) {
        let mut kinds = String::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            kinds.push(char::from(rest[0]));
            let length = u32::from_be_bytes([rest[1], rest[2], rest[3], rest[4]]) as usize;
            rest = &rest[length + 1..];
        }
        (kinds, String::from_utf8_lossy(bytes).replace('\0', " "))
    }

    fn next(script: &Script, client: &mut Client) -> (String, String) {
        let mut out = Vec::new();
        script.next(client, &mut out);
        batch(&out)
    }

    fn openings(script: &Script, client: &mut Client) -> Vec<(String, String)> {
        let mut out = Vec::new();
        std::iter::from_fn(|| script.opening(client, &mut out).then(|| batch(&out))).collect()
    }

    #[test]
    fn each_protocol_sends_its_messages() {
        for (protocol, kinds) in [(Protocol::Simple, "Q"), (Protocol::Extended, "PBDES")] {
            let script = Script { protocol, ..PLAIN };
            let mut client = script.client(1, 0);
            assert!(openings(&script, &mut client).is_empty());
            assert_eq!(next(&script, &mut client).0, kinds);
            assert!(!client.in_transaction());
        }
    }

    #[test]
    fn client_prepares_each_statement_once_on_first_use() {
        let script = Script {
            stock: 200,
            own: 60,
            ..PLAIN
        };
        let mut client = script.client(1, 3);
        assert!(openings(&script, &mut client).is_empty());
        let batches: Vec<_> = (0..2000).map(|_| next(&script, &mut client)).collect();
        let with_parse = batches.iter().filter(|(kinds, _)| kinds == "PBDES");
        assert_eq!(with_parse.count(), 60);
        assert_eq!(batches[0].0, "PBDES");
        assert!(batches[1900..].iter().all(|(kinds, _)| kinds == "BDES"));
    }

    #[test]
    fn at_login_all_of_its_own_are_prepared_in_batches() {
        let script = Script {
            stock: 200,
            own: 72,
            prepare: Prepare::Login,
            ..PLAIN
        };
        let mut client = script.client(1, 0);
        let sent: Vec<_> = openings(&script, &mut client)
            .into_iter()
            .map(|(kinds, _)| kinds)
            .collect();
        assert_eq!(
            sent,
            ["P".repeat(50) + "S", "P".repeat(22) + "S"].map(String::from)
        );
        assert_eq!(next(&script, &mut client).0, "BDES");
    }

    #[test]
    fn a_long_transaction_stands_between_begin_and_commit() {
        let script = Script {
            stock: 200,
            own: 72,
            statements: 20,
            stock_kind: StockKind::Mixed,
            ..PLAIN
        };
        let mut client = script.client(1, 0);
        for _ in 0..3 {
            let mut texts = Vec::new();
            loop {
                texts.push(next(&script, &mut client).1);
                if !client.in_transaction() {
                    break;
                }
            }
            assert_eq!(texts.len(), 22);
            assert!(texts[0].contains("BEGIN") && texts[21].contains("COMMIT"));
            assert!(client.accounts.is_sorted());
        }
    }

    #[test]
    fn a_temporary_table_is_made_within_a_transaction() {
        let script = Script {
            protocol: Protocol::Simple,
            temporary: true,
            ..PLAIN
        };
        let mut client = script.client(1, 0);
        let texts: Vec<_> = (0..5).map(|_| next(&script, &mut client).1).collect();
        assert!(texts[1].contains("CREATE TEMPORARY TABLE") && texts[4].contains("COMMIT"));
        assert!(!client.in_transaction());
    }

    #[test]
    fn a_text_of_ones_own_is_all_that_is_sent() {
        let script = Script {
            text: Some("SELECT 42".to_owned()),
            ..PLAIN
        };
        let mut client = script.client(1, 0);
        for _ in 0..2 {
            let (kinds, text) = next(&script, &mut client);
            assert!(kinds == "Q" && text.contains("SELECT 42"));
            assert!(!client.in_transaction());
        }
    }

    #[test]
    fn settings_are_the_sessions_own_and_set_once() {
        let script = Script {
            protocol: Protocol::Simple,
            settings: true,
            ..PLAIN
        };
        let sent: HashSet<String> = (0..10)
            .map(|number| {
                let mut batches = openings(&script, &mut script.client(1, number));
                assert_eq!(batches.len(), 1);
                batches.remove(0).1
            })
            .collect();
        assert_eq!(sent.len(), 10);
    }

    #[test]
    fn every_statement_of_the_stock_has_a_text_of_its_own() {
        for stock_kind in [StockKind::Reads, StockKind::Mixed, StockKind::Functions] {
            let script = Script {
                stock: 200,
                own: 200,
                stock_kind,
                ..PLAIN
            };
            let client = script.client(1, 0);
            let texts: HashSet<String> = (0..200)
                .map(|place| script.text(&client, place, "$1"))
                .collect();
            assert_eq!(texts.len(), 200);
        }
    }

    #[test]
    fn a_session_s_records_have_one_type() {
        let script = Script {
            stock: 6,
            own: 6,
            stock_kind: StockKind::Functions,
            ..PLAIN
        };
        let kinds: Vec<HashSet<String>> = (0..3)
            .map(|number| {
                let client = script.client(1, number);
                (0..6)
                    .map(|place| script.text(&client, place, "$1"))
                    .filter(|text| text.contains("bench_own_type"))
                    .collect()
            })
            .collect();
        assert!(kinds.iter().all(|texts| texts.len() == 1));
        assert!(kinds[0] != kinds[1] && kinds[1] != kinds[2] && kinds[0] != kinds[2]);
    }
}
