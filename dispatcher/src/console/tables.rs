//! The columns of each result, in PgBouncer's order and with its types, and the encoding of rows.

use super::averages::{FIGURES, LOGINS};
use super::command::Show;
use super::Layout;
use crate::protocol::messages::{finish_message, put_string, start_message};

/// The types of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Text,
    Int4,
    Int8,
    Numeric,
    Bytea,
}

impl Type {
    /// The OID (pg_type.dat), and the length in bytes.
    fn oid_and_length(self) -> (u32, i16) {
        match self {
            Type::Text => (25, -1),
            Type::Int4 => (23, 4),
            Type::Int8 => (20, 8),
            Type::Numeric => (1700, -1),
            Type::Bytea => (17, -1),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    pub kind: Type,
}

impl Column {
    pub fn text(name: &'static str) -> Column {
        let kind = Type::Text;
        Column { name, kind }
    }
}

/// The format in which a value is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Binary,
}

/// A value; its column says how a number is encoded.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    Null,
    Text(&'a [u8]),
    Number(u64),
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Value<'a> {
        Value::Text(text.as_bytes())
    }
}

impl<'a> From<&'a [u8]> for Value<'a> {
    fn from(text: &'a [u8]) -> Value<'a> {
        Value::Text(text)
    }
}

impl From<usize> for Value<'_> {
    fn from(number: usize) -> Value<'static> {
        Value::Number(number as u64)
    }
}

const SOCKETS: &[(Type, &[&str])] = &[
    (
        Type::Text,
        &["type", "user", "database", "replication", "state", "addr"],
    ),
    (Type::Int4, &["port"]),
    (Type::Text, &["local_addr"]),
    (Type::Int4, &["local_port"]),
    (Type::Text, &["connect_time", "request_time"]),
    (Type::Int4, &["wait", "wait_us", "close_needed"]),
    (Type::Text, &["ptr", "link"]),
    (Type::Int4, &["remote_pid"]),
    (Type::Text, &["tls", "application_name"]),
    (Type::Int4, &["prepared_statements", "id"]),
];

/// The columns of a result, as runs of one type.
fn runs(show: Show) -> &'static [(Type, &'static [&'static str])] {
    match show {
        Show::Help => &[],
        Show::Clients | Show::Servers | Show::Sockets | Show::ActiveSockets => SOCKETS,
        Show::Config => &[(Type::Text, &["key", "value", "default", "changeable"])],
        Show::Databases => &[
            (Type::Text, &["name", "host"]),
            (Type::Int4, &["port"]),
            (Type::Text, &["database", "force_user"]),
            (
                Type::Int4,
                &[
                    "pool_size",
                    "min_pool_size",
                    "reserve_pool_size",
                    "server_lifetime",
                ],
            ),
            (Type::Text, &["pool_mode", "load_balance_hosts"]),
            (
                Type::Int4,
                &[
                    "max_connections",
                    "current_connections",
                    "max_client_connections",
                    "current_client_connections",
                    "paused",
                    "disabled",
                ],
            ),
        ],
        Show::DnsHosts => &[
            (Type::Text, &["hostname"]),
            (Type::Int8, &["ttl"]),
            (Type::Text, &["addrs"]),
        ],
        Show::DnsZones => &[
            (Type::Text, &["zonename"]),
            (Type::Int8, &["serial"]),
            (Type::Int4, &["count"]),
        ],
        Show::Fds => &[
            (Type::Int4, &["fd"]),
            (Type::Text, &["task", "user", "database", "addr"]),
            (Type::Int4, &["port"]),
            (Type::Int8, &["cancel"]),
            (Type::Int4, &["link"]),
            (
                Type::Text,
                &[
                    "client_encoding",
                    "std_strings",
                    "datestyle",
                    "timezone",
                    "password",
                ],
            ),
            (Type::Bytea, &["scram_client_key", "scram_server_key"]),
        ],
        Show::Lists => &[(Type::Text, &["list"]), (Type::Int4, &["items"])],
        Show::Mem => &[
            (Type::Text, &["name"]),
            (Type::Int4, &["size", "used", "free", "memtotal"]),
        ],
        Show::PeerPools => &[(
            Type::Int4,
            &[
                "peer_id",
                "cl_active_cancel_req",
                "cl_waiting_cancel_req",
                "sv_active_cancel",
                "sv_login",
            ],
        )],
        Show::Peers => &[
            (Type::Int4, &["peer_id"]),
            (Type::Text, &["host"]),
            (Type::Int4, &["port", "pool_size"]),
        ],
        Show::Pools => &[
            (Type::Text, &["database", "user"]),
            (
                Type::Int4,
                &[
                    "cl_active",
                    "cl_waiting",
                    "cl_active_cancel_req",
                    "cl_waiting_cancel_req",
                    "sv_active",
                    "sv_active_cancel",
                    "sv_being_canceled",
                    "sv_idle",
                    "sv_used",
                    "sv_tested",
                    "sv_login",
                    "maxwait",
                    "maxwait_us",
                ],
            ),
            (Type::Text, &["pool_mode", "load_balance_hosts"]),
        ],
        Show::State => &[(Type::Text, &["key", "value"])],
        Show::Stats => &[
            (Type::Text, &["database"]),
            (
                Type::Numeric,
                &[
                    "total_server_assignment_count",
                    "total_xact_count",
                    "total_query_count",
                    "total_received",
                    "total_sent",
                    "total_xact_time",
                    "total_query_time",
                    "total_wait_time",
                    "total_client_parse_count",
                    "total_server_parse_count",
                    "total_bind_count",
                    "total_client_login_count",
                    "avg_server_assignment_count",
                    "avg_xact_count",
                    "avg_query_count",
                    "avg_recv",
                    "avg_sent",
                    "avg_xact_time",
                    "avg_query_time",
                    "avg_wait_time",
                    "avg_client_parse_count",
                    "avg_server_parse_count",
                    "avg_bind_count",
                    "avg_client_login_count",
                ],
            ),
        ],
        Show::StatsTotals => &[
            (Type::Text, &["database"]),
            (
                Type::Numeric,
                &[
                    "server_assignment_count",
                    "xact_count",
                    "query_count",
                    "bytes_received",
                    "bytes_sent",
                    "xact_time",
                    "query_time",
                    "wait_time",
                    "client_parse_count",
                    "server_parse_count",
                    "bind_count",
                    "client_login_count",
                ],
            ),
        ],
        Show::StatsAverages => &[
            (Type::Text, &["database"]),
            (
                Type::Numeric,
                &[
                    "server_assignment_count",
                    "xact_count",
                    "query_count",
                    "bytes_received",
                    "bytes_sent",
                    "xact_time",
                    "query_time",
                    "wait_time",
                    "avg_client_parse_count",
                    "avg_server_parse_count",
                    "avg_bind_count",
                    "avg_client_login_count",
                ],
            ),
        ],
        Show::Totals => &[(Type::Text, &["name"]), (Type::Numeric, &["value"])],
        Show::Users => &[
            (
                Type::Text,
                &["name", "pool_size", "reserve_pool_size", "pool_mode"],
            ),
            (
                Type::Int4,
                &[
                    "max_user_connections",
                    "current_connections",
                    "max_user_client_connections",
                    "current_client_connections",
                ],
            ),
        ],
        Show::Version => &[(Type::Text, &["version"])],
    }
}

/// What SHOW SOCKETS and SHOW ACTIVE_SOCKETS have beside the columns of SHOW CLIENTS.
const OF_BUFFERS: [&str; 7] = [
    "recv_pos",
    "pkt_pos",
    "pkt_remain",
    "send_pos",
    "send_remain",
    "pkt_avail",
    "send_avail",
];

/// The names of the rows of SHOW TOTALS, after `total_` and `avg_`.
pub const TOTALS: [&str; FIGURES] = [
    "server_assignment_count",
    "xact_count",
    "query_count",
    "client_bytes",
    "server_bytes",
    "xact_time",
    "query_time",
    "wait_time",
    "ps_client_parse_count",
    "ps_server_parse_count",
    "ps_bind_count",
    "client_login_count",
];

/// How many of a database's figures the layout has: the last one counts logins.
pub fn figures_of(layout: Layout) -> usize {
    match layout.counts_logins() {
        true => FIGURES,
        false => LOGINS,
    }
}

pub fn columns(show: Show, layout: Layout) -> Vec<Column> {
    let of_run = |(kind, names): &(Type, &'static [&'static str])| {
        let kind = *kind;
        names.iter().map(move |name| Column { name, kind })
    };
    let of_buffers = match show {
        Show::Sockets | Show::ActiveSockets => &OF_BUFFERS[..],
        _ => &[],
    };
    let of_buffers = of_run(&(Type::Int4, of_buffers)).collect::<Vec<Column>>();
    runs(show)
        .iter()
        .flat_map(of_run)
        .chain(of_buffers)
        .filter(|column| layout.counts_logins() || !column.name.ends_with("client_login_count"))
        .collect()
}

/// The columns of a result and the format of each. Formats that are missing are text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    pub columns: Vec<Column>,
    pub formats: Vec<Format>,
}

impl Table {
    pub fn new(columns: Vec<Column>) -> Table {
        let formats = Vec::new();
        Table { columns, formats }
    }

    fn format(&self, column: usize) -> Format {
        self.formats.get(column).copied().unwrap_or(Format::Text)
    }

    /// Appends RowDescription.
    pub fn describe(&self, out: &mut Vec<u8>) {
        let start = start_message(out, b'T');
        out.extend_from_slice(&(self.columns.len() as u16).to_be_bytes());
        for (at, column) in self.columns.iter().enumerate() {
            let (oid, length) = column.kind.oid_and_length();
            put_string(out, column.name.as_bytes());
            // No table and no attribute.
            out.extend_from_slice(&[0; 6]);
            out.extend_from_slice(&oid.to_be_bytes());
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(&(-1i32).to_be_bytes());
            out.extend_from_slice(&(self.format(at) as u16).to_be_bytes());
        }
        finish_message(out, start);
    }

    /// Appends DataRow. Columns without a value are 0, or NULL where that is no number.
    pub fn row(&self, out: &mut Vec<u8>, values: &[Value<'_>]) {
        debug_assert!(values.len() <= self.columns.len());
        let start = start_message(out, b'D');
        out.extend_from_slice(&(self.columns.len() as u16).to_be_bytes());
        for (at, column) in self.columns.iter().enumerate() {
            let missing = match column.kind {
                Type::Text | Type::Bytea => Value::Null,
                Type::Int4 | Type::Int8 | Type::Numeric => Value::Number(0),
            };
            let value = values.get(at).copied().unwrap_or(missing);
            let Value::Null = value else {
                let length = out.len();
                out.extend_from_slice(&[0; 4]);
                put_value(out, value, column.kind, self.format(at));
                let bytes = (out.len() - length - 4) as u32;
                out[length..length + 4].copy_from_slice(&bytes.to_be_bytes());
                continue;
            };
            out.extend_from_slice(&(-1i32).to_be_bytes());
        }
        finish_message(out, start);
    }
}

fn put_value(out: &mut Vec<u8>, value: Value<'_>, kind: Type, format: Format) {
    let number = match value {
        Value::Null => return,
        Value::Text(text) => return out.extend_from_slice(text),
        Value::Number(number) => number,
    };
    let number = match kind {
        Type::Int4 => number.min(i32::MAX as u64),
        Type::Int8 => number.min(i64::MAX as u64),
        _ => number,
    };
    match (kind, format) {
        (Type::Int4, Format::Binary) => out.extend_from_slice(&(number as u32).to_be_bytes()),
        (Type::Int8, Format::Binary) => out.extend_from_slice(&number.to_be_bytes()),
        (Type::Numeric, Format::Binary) => put_numeric(out, number),
        _ => out.extend_from_slice(number.to_string().as_bytes()),
    }
}

/// As numeric_send (numeric.c): digits of base 10,000.
fn put_numeric(out: &mut Vec<u8>, number: u64) {
    let (mut digits, mut left) = (Vec::new(), number);
    while left > 0 {
        digits.push((left % 10_000) as u16);
        left /= 10_000;
    }
    let weight = (digits.len() as i16 - 1).max(0);
    // Zeros at the end are left out.
    let zeros = digits.iter().take_while(|digit| **digit == 0).count();
    let digits = &digits[zeros..];
    out.extend_from_slice(&(digits.len() as u16).to_be_bytes());
    out.extend_from_slice(&weight.to_be_bytes());
    // The sign, and the digits after the point that are shown.
    out.extend_from_slice(&[0; 4]);
    for digit in digits.iter().rev() {
        out.extend_from_slice(&digit.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::command::SHOWS;

    #[test]
    fn results_have_as_many_columns_as_pgbouncers() {
        for (show, expected) in [
            (Show::Stats, 23),
            (Show::StatsTotals, 12),
            (Show::StatsAverages, 12),
            (Show::Pools, 17),
            (Show::Clients, 21),
            (Show::Servers, 21),
            (Show::Sockets, 28),
            (Show::Databases, 17),
            (Show::Users, 8),
            (Show::Fds, 15),
            (Show::Config, 4),
            (Show::Help, 0),
        ] {
            assert_eq!(columns(show, Layout::V1_25).len(), expected, "{show:?}");
        }
        for show in [Show::StatsTotals, Show::StatsAverages] {
            assert_eq!(columns(show, Layout::V1_26).len(), 13);
        }
        assert_eq!(columns(Show::Stats, Layout::V1_26).len(), 25);
        for (name, show) in SHOWS {
            let mut names: Vec<_> = (columns(show, Layout::V1_26).iter())
                .map(|column| column.name)
                .collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "{name}");
        }
    }

    #[test]
    fn numbers_are_encoded_as_their_column_says() {
        let put = |number, kind, format| {
            let mut out = Vec::new();
            put_value(&mut out, Value::Number(number), kind, format);
            out
        };
        assert_eq!(put(7, Type::Int4, Format::Binary), [0, 0, 0, 7]);
        assert_eq!(put(u64::MAX, Type::Int4, Format::Text), b"2147483647");
        assert_eq!(
            put(258, Type::Int8, Format::Binary),
            [0, 0, 0, 0, 0, 0, 1, 2]
        );
        let numeric = |number| put(number, Type::Numeric, Format::Binary);
        assert_eq!(numeric(0), [0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(numeric(12), [0, 1, 0, 0, 0, 0, 0, 0, 0, 12]);
        assert_eq!(numeric(10_000), [0, 1, 0, 1, 0, 0, 0, 0, 0, 1]);
        let two = [0, 2, 0, 1, 0, 0, 0, 0, 0, 3, 0, 4];
        assert_eq!(numeric(30_004), two);
        assert_eq!(
            put(u64::MAX, Type::Numeric, Format::Text),
            u64::MAX.to_string().as_bytes()
        );
    }

    #[test]
    fn missing_values_are_zero_or_null() {
        let mut out = Vec::new();
        Table::new(columns(Show::Lists, Layout::V1_25)).row(&mut out, &[]);
        let row = [
            b'D', 0, 0, 0, 15, 0, 2, 255, 255, 255, 255, 0, 0, 0, 1, b'0',
        ];
        assert_eq!(out, row);
    }
}
