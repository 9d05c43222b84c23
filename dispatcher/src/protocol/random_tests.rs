//! Random bytes, by seed: no reader may panic, stall or consume bytes that it was not given,
//! and pieces must read as the whole does.

use super::backend::tests::all;
use super::frontend::RequestSkipper;
use super::startup::{StartupEvent, StartupReader};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Random bytes that look a little like real messages.
fn bytes(random: &mut StdRng) -> Vec<u8> {
    let mut out = match random.gen_range(0..6) {
        0 => b"\0\0\0\x1c\0\x03\0\0user\0u\0options\0-e x\0\0".to_vec(),
        1 => b"\0\0\0\x08\x04\xd2\x16\x2f\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x01\0\0\0\x02".to_vec(),
        2 => b"P\0\0\0\x05aB\0\0\0\x04S\0\0\0\x04Q\0\0\0\x05a".to_vec(),
        3 => b"R\0\0\0\x08\0\0\0\0S\0\0\0\x08a\0b\0Z\0\0\0\x05I".to_vec(),
        4 => b"E\0\0\0\x10SFATAL\0C28000\0\0K\0\0\0\x0c\0\0\0\x01\0\0\0\x02".to_vec(),
        _ => (0..random.gen_range(1..60)).map(|_| random.gen()).collect(),
    };
    for _ in 0..random.gen_range(0..4) {
        let at = random.gen_range(0..out.len());
        out[at] = if random.gen() { random.gen() } else { 0 };
    }
    out
}

fn startup_events(input: &[u8], chunk: usize) -> Vec<StartupEvent> {
    let mut reader = StartupReader::new(18, crate::protocol::startup::Tls::OfferedDirectly);
    let mut events = Vec::new();
    let mut position = 0;
    while position < input.len() {
        // Not `wanted`: data that come too early are a different case.
        let missing = reader.missing();
        assert!((1..=reader.wanted()).contains(&missing));
        let take = chunk.min(missing).min(input.len() - position);
        let (consumed, event) = reader.feed(&input[position..position + take]);
        assert!(consumed <= take);
        position += consumed;
        match event {
            StartupEvent::NeedMore => assert_eq!(consumed, take),
            StartupEvent::Answer(_) => events.push(event),
            last => {
                if let StartupEvent::Startup(startup) = &last {
                    let _ = startup.clone().take_settings();
                }
                events.push(last);
                break;
            }
        }
    }
    events
}

#[test]
fn random_startup_packets_read_alike_in_pieces_and_never_panic() {
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..50_000 {
        let input = bytes(&mut random);
        assert_eq!(startup_events(&input, 1), startup_events(&input, 99_999));
    }
}

#[test]
fn random_options_never_panic() {
    let mut random = StdRng::seed_from_u64(2);
    let alphabet = b"-- \\=:abcdeEfFszt\t0\xff";
    for _ in 0..100_000 {
        let text: Vec<u8> = (0..random.gen_range(0..24))
            .map(|_| alphabet[random.gen_range(0..alphabet.len())])
            .collect();
        let _ = super::options::parse(&text);
    }
}

#[test]
fn random_requests_are_skipped_alike_in_pieces() {
    let mut random = StdRng::seed_from_u64(3);
    let run = |input: &[u8], chunk: usize| {
        let mut skipper = RequestSkipper::new();
        let mut position = 0;
        let mut found = Vec::new();
        while position < input.len() {
            let end = (position + chunk).min(input.len());
            match skipper.feed(&input[position..end]) {
                Ok((consumed, end)) => {
                    assert!(consumed > 0);
                    position += consumed;
                    found.extend(end.map(|end| (position, end)));
                }
                Err(error) => return (found, Some(error)),
            }
        }
        (found, None)
    };
    for _ in 0..50_000 {
        let input = bytes(&mut random);
        assert_eq!(run(&input, 1), run(&input, 99_999));
    }
}

#[test]
fn random_backend_messages_read_alike_in_pieces() {
    let mut random = StdRng::seed_from_u64(4);
    for _ in 0..50_000 {
        let input = bytes(&mut random);
        assert_eq!(all(&input, 1), all(&input, 99_999));
    }
}
