//! The first packets of a connection.

use crate::pieces::{choice, lengths};
use crate::protocol::options;
use crate::protocol::startup::{StartupEvent, StartupReader, Tls};

/// Of a server that speaks protocol 3.2, or of one that does not; offering GSSAPI
/// encryption or not.
fn reader(choice: u8) -> StartupReader {
    let server_major = if choice & 4 == 0 { 15 } else { 18 };
    let reader = match choice % 4 {
        0 => StartupReader::new(server_major, Tls::Refused),
        1 => StartupReader::new(server_major, Tls::Offered),
        2 => StartupReader::new(server_major, Tls::OfferedDirectly),
        _ if choice & 16 != 0 => StartupReader::within_direct_tls(server_major),
        _ => StartupReader::within_tls(server_major),
    };
    reader.offering_gss(choice & 8 != 0)
}

/// All that comes of them, read as the dispatcher reads: no more at a time than
/// is wanted, and in pieces besides.
fn events(choice: u8, input: &[u8], piece: usize) -> Vec<StartupEvent> {
    let mut reader = reader(choice);
    let mut found = Vec::new();
    let mut at = 0;
    while at < input.len() {
        let wanted = reader.wanted();
        assert!((1..=10_004).contains(&wanted), "{wanted}");
        // With the byte beyond a request for encryption or without it is another
        // matter, so pieces end where packets do.
        let most = reader.missing().min(wanted).max(1);
        let take = piece.min(most).min(input.len() - at);
        let (consumed, event) = reader.feed(&input[at..at + take]);
        assert!(consumed <= take);
        at += consumed;
        match event {
            StartupEvent::NeedMore => assert_eq!(consumed, take),
            StartupEvent::Answer(byte) => {
                assert_eq!(byte, b'N');
                found.push(event);
            }
            last => {
                found.push(last);
                break;
            }
        }
    }
    found
}

/// And as the dispatcher reads: as much as is wanted.
fn wanted_whole(choice: u8, input: &[u8]) {
    let mut reader = reader(choice);
    let mut at = 0;
    while at < input.len() {
        let take = reader.wanted().min(input.len() - at);
        let (consumed, event) = reader.feed(&input[at..at + take]);
        at += consumed;
        match event {
            StartupEvent::NeedMore => assert_eq!(consumed, take),
            StartupEvent::Answer(_) => assert_eq!(consumed, take),
            _ => return,
        }
    }
}

pub fn run(data: &[u8]) {
    let (choice, input) = choice(data);
    let [one, some, all] = lengths(input).map(|piece| events(choice, input, piece));
    assert_eq!(one, all);
    assert_eq!(some, all);
    wanted_whole(choice, input);
    if let Some(StartupEvent::Startup(startup)) = all.last() {
        assert!(!startup.user.is_empty());
        assert!(startup.user.len() < 64 && startup.database.len() < 64);
        let _ = startup.clone().take_settings();
    }
    let _ = options::parse(input);
}
